"""A terminal in tests: tmux, with keys in and the screen out."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from surroundings import HANG, environment

_FOLDERS = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")


class Screen:
    """A terminal of its own with a command of tgr-local in it. `setup` is Python code that runs
    first."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        setup: str = "",
        *,
        width: int = 80,
        height: int = 24,
        **variables: str,
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix="tgr")  # short enough for the path of a socket
        start = f"import sys\n{setup}\nfrom tgr_local.commands.cli import main\n"
        script = folder / "terminal.py"
        script.write_text(f"{start}sys.exit(main({list(arguments)!r}))\n")
        self._variables = variables

        inside = " ".join(
            f"{name}={shlex.quote(value)}"
            for name, value in environment(**self._variables).items()
            if name
            in ("PYTHONPATH", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", *self._variables)
        )
        run = f"env {inside} {sys.executable} {script}"
        command = f"trap : INT; {run}; echo left with $?; exec cat"  # the shell survives Ctrl-C
        size = ("-x", str(width), "-y", str(height))
        longer = ("set-option", "-g", "history-limit", "30000", ";")
        plain = ("set-option", "-g", "default-shell", "/bin/sh", ";")
        self._tmux("-f", "/dev/null", "-u", *longer, *plain, "new-session", "-d", *size, command)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", f"{self._folder}/socket", *arguments]
        completed = subprocess.run(command, capture_output=True, timeout=HANG)
        return completed.stdout.decode("utf-8", "replace")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def send(self, data: bytes) -> None:
        self._tmux("send-keys", "-H", *(f"{byte:02x}" for byte in data))

    def paste(self, folder: Path, text: str) -> None:
        (folder / "paste").write_text(text)
        self._tmux("load-buffer", str(folder / "paste"))
        self._tmux("paste-buffer", "-p")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def text(self, *, styled: bool = False) -> str:
        """The screen and the scrollback, wrapped lines joined."""
        screen = self._tmux("capture-pane", "-p", "-J", "-S", "-", *(["-e"] if styled else []))
        return "\n".join(line.rstrip() for line in screen.rstrip("\n").split("\n"))

    def has_cursor(self) -> bool:
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def shown(self) -> str:
        """The screen alone, line by line, with its styles."""
        return self._tmux("capture-pane", "-p", "-e")

    def until(self, wanted: str | Callable[[str], bool], seconds: float = HANG) -> str:
        """The text as soon as `wanted` is in it or true of it; fails with the text otherwise."""
        met = (lambda text: wanted in text) if isinstance(wanted, str) else wanted
        end = time.monotonic() + seconds
        while not met(text := self.text()):
            assert time.monotonic() < end, f"{wanted!r} never came:\n{text[-3000:]}"
            time.sleep(0.03)
        return text

    def close(self) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self._folder)
