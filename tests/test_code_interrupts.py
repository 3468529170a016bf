"""Ctrl-C once and twice: what is begun is completed, and the terminal is as it was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest
from code_folders import write
from surroundings import HANG, environment

from tgr_local.code import interrupts
from tgr_local.code.edits import Change
from tgr_local.code.folder import journal
from tgr_local.code.folder.journal import Accepted
from tgr_local.code.folder.project import Project
from tgr_local.code.workplace import Workplace
from tgr_local.options.config import CodeConfig

CHANGE = Change("a.py", "a = 1\n", "a = 2\n")


@pytest.mark.parametrize("n_interrupts", [1, 2])
def test_an_edit_that_is_being_accepted_is_completed(tmp_path, monkeypatch, n_interrupts: int):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write(tmp_path / "project", {"a.py": "a = 1\n"})
    accept = journal.accept

    def interrupted(project: Project, changes: Sequence[Change]) -> Accepted:
        for _ in range(n_interrupts):
            signal.raise_signal(signal.SIGINT)
        return accept(project, changes)

    monkeypatch.setattr(journal, "accept", interrupted)
    workplace = Workplace(tmp_path / "project", CodeConfig())
    before = signal.getsignal(signal.SIGINT)
    if n_interrupts == 1:
        assert workplace.accept([CHANGE]) == "changed a.py"
    else:
        with pytest.raises(KeyboardInterrupt):
            workplace.accept([CHANGE])
    assert signal.getsignal(signal.SIGINT) is before
    text = (tmp_path / "project/a.py").read_text()
    assert text == (CHANGE.after if n_interrupts == 1 else CHANGE.before)


SECOND = """
from surroundings import sleep_until_signal
from tgr_local.console.dialog import no_echo
from tgr_local.code.interrupts import twice_ends
with twice_ends(), no_echo():
    try:
        print("begun", flush=True)
        sleep_until_signal()
    finally:
        print("stopping", flush=True)
        sleep_until_signal()
"""


def test_a_second_ctrl_c_leaves_the_terminal_as_it_was():
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-c", SECOND], stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(),
    )  # fmt: skip
    try:
        said = b""
        for word in (b"begun", b"stopping", b"ended"):
            while word not in said:
                said += os.read(ours, 4096)
            if word != b"ended":
                process.send_signal(signal.SIGINT)
        assert process.wait(HANG) == 130
        assert termios.tcgetattr(theirs) == before
        shown = said[said.index(b"stopping") :]
        assert b"\x1b[?25h" in shown and b"\x1b[?2004l" in shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.twice_ends():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
