"""``run --check COMMAND``: a command of the person says whether an answer is right.

It runs as in a pipe: in the shell, with the person's rights and environment, the answer on stdin;
exit code 0 = right. Unlike there it has a time limit, its output is bounded, and it ends with its
children.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time

from tgr_local.system.errors import InstallError, TgrError
from tgr_local.system.sandbox import backends, usage
from tgr_local.system.sandbox.commands import Output
from tgr_local.system.sanitize import printable_line

MOST_OUTPUT = 64 << 20  # bytes that it may print
_SHELL = "/bin/sh"
_CANNOT_RUN = (126, 127)  # exit codes of a shell that finds no program, or may not start it
_PROGRAM = re.compile(r"[\w./+-]+")
_LENGTH = 120  # characters of a line that a check printed


class CommandCheck:
    """A check of answers, which is called with each."""

    def __init__(self, command: str, seconds: float) -> None:
        """Raises ValueError for what is no command here; nothing is run for that."""
        if not 0 < seconds < float("inf"):
            raise ValueError(f"check_seconds is {seconds:g}, but must be above 0")
        _refuse(command)
        self._command, self._seconds = command, seconds
        self._said: dict[str, tuple[str, str]] = {}

    def __call__(self, text: str) -> bool:
        """Whether an answer is right. Raises TgrError where the command cannot be run."""
        why, code, output = self._run(text)
        last = printable_line((output.strip().splitlines() or [""])[-1], _LENGTH)
        if code in _CANNOT_RUN and not why:
            raise TgrError(f"the check cannot be run: {last or f'exit code {code}'}")
        self._said[text] = why or _ending(code), last
        return not why and code == 0

    def failure(self, n: int) -> str:
        """A line on n answers of which none is right: ``no text of 8 passed the check (exit code
        1)``."""
        ends = ", ".join(dict.fromkeys(end for end, _ in self._said.values()))
        return f"no text of {n} passed the check ({ends})"

    def said(self, text: str) -> str:
        """The last line that it printed of an answer, as a person may see it."""
        return self._said[text][1]

    def _run(self, text: str) -> tuple[str, int, str]:
        """Why it was stopped, its exit code, negative for a signal, and what it printed."""
        read_end, write_end = os.pipe()
        with tempfile.TemporaryFile() as stdin, contextlib.ExitStack() as ends:
            ends.callback(os.close, read_end)
            stdin.write(text.encode(errors="replace") + b"\n" * (not text.endswith("\n")))
            stdin.seek(0)
            try:
                orders = json.dumps({"command": [_SHELL, "-c", self._command]})
                process = subprocess.Popen(
                    [*backends.python(), str(backends.LAUNCHER), orders],
                    stdin=stdin, stdout=write_end, stderr=write_end, start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(write_end)
            output = Output(read_end)
            try:
                why = self._wait(process, output)
            finally:
                usage.end(process)
            output.read()
            return why, process.returncode, output.text()

    def _wait(self, process: subprocess.Popen[bytes], output: Output) -> str:
        deadline = time.monotonic() + self._seconds
        while process.poll() is None:
            if output.total > MOST_OUTPUT:
                return f"it printed more than {MOST_OUTPUT >> 20} MiB"
            if time.monotonic() >= deadline:
                return f"no end after {self._seconds:g} s"
            output.wait(0.02)
        return ""


def _refuse(command: str) -> None:
    """Raises ValueError for a command that the shell cannot read, or whose program is not here."""
    if os.name == "nt":
        raise InstallError("--check needs a POSIX shell, and Windows has none; use it in WSL")
    if not command.strip():
        raise ValueError(
            "check is empty; name a command that reads the answer on stdin and ends with exit code "
            "0 for a right one"
        )
    said = _shell("-n", "-c", command)
    if said.returncode:
        lines = said.stderr.decode(errors="replace").strip().splitlines() or ["it is refused"]
        raise ValueError(f"check is no command of the shell: {printable_line(lines[-1], _LENGTH)}")
    name = ""
    with contextlib.suppress(ValueError, IndexError):  # a quote in a comment
        name = shlex.split(command)[0]
    if _PROGRAM.fullmatch(name) and _shell("-c", 'command -v "$1"', "sh", name).returncode:
        raise ValueError(
            f"check begins with {name}, but there is no such program; correct its name or its path"
        )


def _shell(*words: str) -> subprocess.CompletedProcess[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.run([_SHELL, *words], stdin=quiet, capture_output=True, check=False)


def _ending(code: int) -> str:
    number = -code if code < 0 else code - 128 if code > 128 else 0
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(number).name}" if number else f"exit code {code}"
    return f"exit code {code}"
