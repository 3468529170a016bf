"""The lines that a person typed, in a file that later sessions read."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from prompt_toolkit.history import FileHistory

from tgr_local.console.pastes import Pastes
from tgr_local.system.errors import describe
from tgr_local.system.files import NOFOLLOW
from tgr_local.system.paths import private

_LONGEST = 1 << 16  # characters of a line in the file
_MOST_WAITING = 1000  # lines that wait for room


class HistoryFile(FileHistory):
    """Stores lines with their pastes, except very long ones. Each is added to the file in one
    piece, so that sessions side by side lose none; one that cannot be written waits for the next.
    """

    def __init__(self, path: Path, pastes: Pastes) -> None:
        super().__init__(path)
        self._path, self._pastes = path, pastes
        self._waiting: list[bytes] = []
        self._failure = ""
        self._is_told = False

    def append_string(self, string: str) -> None:
        line = self._pastes.expanded(string)
        if len(line) <= _LONGEST:
            super().append_string(line)

    def store_string(self, string: str) -> None:
        lines = "".join(f"+{line}\n" for line in string.split("\n"))
        entry = f"\n# {datetime.datetime.now()}\n{lines}"
        self._waiting.append(entry.encode("utf-8", "replace"))
        try:
            self._write()
            self._is_told = False
        except OSError as error:
            del self._waiting[:-_MOST_WAITING]
            self._failure = describe(error)

    def _write(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOFOLLOW
        file = os.open(private(self._path), flags, 0o600)
        try:
            while self._waiting:
                # a part that a full disk took is an entry of its own
                n = os.write(file, self._waiting[0])
                if n == len(self._waiting[0]):
                    del self._waiting[0]
        finally:
            os.close(file)

    def load_history_strings(self) -> list[str]:
        try:
            return list(super().load_history_strings())
        except OSError:  # it cannot be read
            return []

    def news(self) -> str:
        """Returns the reason why lines cannot be written since the last call, said once until one
        is written."""
        failure, self._failure = self._failure, ""
        if not failure or self._is_told:
            return ""
        self._is_told = True
        return failure
