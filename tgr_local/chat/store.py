"""Conversations as files: one JSON object a line, the first about the conversation, the others its
messages as chat APIs write them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.chat.conversation import Chat, Turn
from tgr_local.errors import TgrError
from tgr_local.methods import METHODS
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import updated
from tgr_local.system.paths import folder, private
from tgr_local.trace.json_values import require_type

FORMAT = "tgr-chat 1"
ENDING = ".jsonl"


@dataclass(frozen=True)
class Saved:
    """A conversation as it was kept."""

    model: str
    method: str
    system: str
    chosen: dict[str, Any]
    turns: list[Turn]

    def restore(self, chat: Chat) -> None:
        """Puts everything but the model in the place of what `chat` has."""
        chat.clear()
        chat.method, chat.system = self.method, self.system
        chat.chosen, chat.turns = dict(self.chosen), list(self.turns)


def place(name: str) -> Path:
    """The file that a person means by `name`: a path, or a name among the kept conversations."""
    path = os.path.expanduser(name)
    if path.endswith(ENDING) or os.sep in path:
        return Path(os.path.realpath(path))
    return _folder() / (name + ENDING)


def fresh_place() -> Path:
    """A place for a conversation that begins now; nothing is there yet."""
    stem = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}"
    places = (_folder() / f"{stem}-{number}{ENDING}" for number in itertools.count(1))
    return next(path for path in places if not path.exists())


def kept() -> list[Path]:
    """The kept conversations, newest first."""
    return sorted(_folder().glob("*" + ENDING), key=lambda path: path.stat().st_mtime, reverse=True)


def _folder() -> Path:
    return Path(os.path.realpath(folder("state") / "chats"))  # as `place` gives a path


def save(path: Path, chat: Chat) -> None:
    """Writes the whole conversation; the file is never half of it. OSError if it cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        private(path)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            for line in _lines(chat):
                # ASCII: whatever is in a text, the file can be written and read
                file.write(json.dumps(line) + "\n")
        os.replace(temporary, path)
    except OSError as error:  # of another file, or of none
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _lines(chat: Chat) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT,
        "model": str(chat.engine.path),
        "method": chat.method,
        "system": chat.system,
        "options": chat.chosen,
    }
    for turn in chat.turns:
        yield {"role": "user", "content": turn.question}
        yield {"role": "assistant", "content": turn.answer, "thinking": turn.thinking}


def load(path: Path) -> Saved:
    """Reads a conversation. TgrError names the line that is not what it must be; OSError as
    `open` raises it."""
    number = 0
    records: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                records.append(_record(json.loads(line), number))
            number += 1
            return _saved(records)
    except KeyError as error:
        raise TgrError(f"{path} line {number} is no conversation: it has no {error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise TgrError(f"{path} line {number} is no conversation: {error}") from None


def _record(record: Any, number: int) -> dict[str, Any]:
    found: dict[str, Any] = require_type(dict, record)
    if number == 1:
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r:.40}, but must be {FORMAT!r}")
        for name in ("model", "method", "system"):
            require_type(str, found[name])
        if found["method"] not in METHODS:
            raise ValueError(f"its method is {found['method']!r:.40}, which does not exist")
        updated(SearchConfig(), _options(found))
        return found
    role = "assistant" if number % 2 else "user"
    if found["role"] != role:
        raise ValueError(f"its role is {found['role']!r:.40}, but must be {role!r}")
    require_type(str, found["content"])
    require_type(str, found.get("thinking", ""))
    return found


def _options(record: dict[str, Any]) -> dict[str, Any]:
    options = require_type(dict, record["options"]).items()
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options}


def _saved(records: list[dict[str, Any]]) -> Saved:
    if len(records) % 2 == 0:
        raise ValueError("the file ends before the answer" if records else "the file is empty")
    about, *messages = records
    pairs = zip(messages[::2], messages[1::2], strict=True)
    turns = [Turn(q["content"], a["content"], a.get("thinking", "")) for q, a in pairs]
    return Saved(about["model"], about["method"], about["system"], _options(about), turns)
