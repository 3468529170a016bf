"""Files that are written whole: what a killed process leaves of them goes."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest

from tgr_local.system.errors import describe
from tgr_local.system.files import naming
from tgr_local.system.paths import remove_abandoned, write_whole

LONG_AGO = time.time() - 10**5


@pytest.fixture
def killed(tmp_path, monkeypatch) -> Path:
    """The draft of a process that was killed before the file had its name."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", kill)
        patch.setattr(os, "unlink", kill)
        write_whole(tmp_path / "a", b"1")
    (draft,) = tmp_path.iterdir()
    return draft


def test_a_draft_of_a_killed_process_is_removed_after_an_hour(killed: Path):
    write_whole(killed.with_name("b"), b"2")
    assert killed.exists()  # another process may be about to complete it
    os.utime(killed, (LONG_AGO, LONG_AGO))
    other = killed.with_name("tmpabcdefgh")
    other.write_bytes(b"somebody else's")
    os.utime(other, (LONG_AGO, LONG_AGO))
    write_whole(killed.with_name("b"), b"3")
    assert sorted(path.name for path in killed.parent.iterdir()) == ["b", other.name]
    assert killed.with_name("b").read_bytes() == b"3"


def test_what_cannot_be_removed_stops_nothing(tmp_path):
    (tmp_path / ".tgr-draft-x").mkdir()
    os.utime(tmp_path / ".tgr-draft-x", (LONG_AGO, LONG_AGO))
    write_whole(tmp_path / "a", b"1")
    remove_abandoned(tmp_path / "absent", "*")
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("number", [0, errno.EINVAL, errno.EIO])
def test_the_bytes_are_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch, number: int):
    """Else a machine that loses its power may have an empty file of that name, and not the old
    one. Some file systems cannot; a disk that fails is an error, and the old file stays."""
    path, done = tmp_path / "a", []
    path.write_bytes(b"old")
    replace = os.replace

    def fsync(descriptor: int) -> None:
        done.append(os.fstat(descriptor).st_size)
        if number:
            raise OSError(number, "")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *names: done.append("named") or replace(*names))
    with pytest.raises(OSError) if number == errno.EIO else contextlib.nullcontext():
        write_whole(path, b"newer")
    assert done[0] == 5 and ("named" in done) == (number != errno.EIO)
    assert path.read_bytes() == (b"old" if number == errno.EIO else b"newer")


def test_an_error_of_writing_names_the_file(tmp_path):
    """As where the disk is full: Python's error names no file then."""
    with pytest.raises(OSError) as error, naming("a.jsonl"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert describe(error.value) == "a.jsonl: No space left on device"
    with pytest.raises(OSError) as error, naming("a.jsonl"):
        (tmp_path / "b").read_bytes()
    assert error.value.filename == str(tmp_path / "b")
