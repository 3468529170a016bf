"""Samples on disk: one writer, incomplete and damaged lines, a full disk."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from tgr_local.errors import TgrError
from tgr_local.lab.eval import samples
from tgr_local.lab.eval.samples import Sample
from tgr_local.lab.eval.store import Store


def test_samples_added_meanwhile_are_not_read_again(tmp_path: Path) -> None:
    old = [
        Sample(
            "t", "p", "s", 1, i, "x" * 10_000, "", 1, "stop", None, 0.0, None, "", None, {}, {}, 0.0
        )
        for i in range(3)
    ]
    with Store(tmp_path / "s") as store:
        for sample in old:
            store.add(sample)
        store.flush()
        read = []
        for sample in store.whole({sample.key for sample in old}):
            read.append(sample.index)
            assert len(read) <= 3
            store.add(dataclasses.replace(sample, correct=True))
            store.flush()  # before the next one is read, as on a busy machine
    assert read == [0, 1, 2]


def test_an_incomplete_line_is_replaced_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "phases.jsonl"
    for record in ({"a": 1}, {"b": 2}):
        samples.append(path, record)
    path.write_bytes(path.read_bytes()[:-3])
    samples.append(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b'{"task": 1}\n')
    with pytest.raises(TgrError, match="line 1 is damaged"):
        list(samples.read(path))
    path.write_bytes(b"\xff\n")
    with pytest.raises(TgrError, match="line 1 is damaged"):
        Store(path)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    sample = Sample("t", "p", "s", 1, 0, "", "", 0, "stop", True, 1.0, None, "", None, {}, {}, 0.0)
    monkeypatch.setattr(os, "fsync", fail)
    says = "cannot be written .*No space left on device.* free space"
    with pytest.raises(TgrError, match=says), Store(tmp_path / "s") as store:
        store.add(sample)
        with pytest.raises(TgrError, match=says):
            store.flush()
        monkeypatch.undo()
        with pytest.raises(TgrError, match=says):
            store.add(sample)  # what comes after a gap is not written either
        assert store.known == {}
