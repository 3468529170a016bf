"""Conversations as files: JSON lines, the first about the conversation, the others its messages.

A message is written as chat APIs write it, with `role` and `content`; that of an answer has its
`thinking` too. Saved conversations without another path are in the user's state folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.generation import METHODS
from tgr_local.options import model_files, model_parts
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import updated
from tgr_local.options.former import FORMER_METHODS, has_left
from tgr_local.system import paths
from tgr_local.system.errors import TgrError
from tgr_local.system.json_checks import require_type

FORMAT = "tgr-chat 1"
ENDING = ".jsonl"
_BY_TIME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}-\d+-\d+")  # as `new_path` names files


@dataclass(frozen=True)
class Saved:
    """The content of a file."""

    model: str
    """The path of its file."""
    model_bytes: int
    """Size of the model file in bytes; 0 = unknown."""
    method: str
    system: str
    options: dict[str, Any]
    """Fields of `SearchConfig` that the user had set."""
    turns: list[Turn]
    digest: bytes
    """Digest of the file's content."""

    def model_file(self) -> Path | None:
        """The file of the model, or where there is none any more, one of the same name and size
        among the models of this machine; None if there is none."""
        path = Path(self.model)
        if path.is_file():
            return path
        embedded = [f"{name}-q8_0.gguf" for name in model_files.EMBEDDED]
        embedded += model_files.EMBEDDED.values()
        for file in model_files.local():
            is_ours = path.name in embedded and file.name in embedded
            if (file.name == path.name or is_ours) and self.is_same(file, needed=True):
                return file
        return None

    def is_same(self, path: Path, *, needed: bool = False) -> bool:
        """Whether a model has the size of the one that wrote the conversation; where that is not
        known, not if it is `needed`."""
        return self.model_bytes == n_bytes(path) if self.model_bytes else not needed

    def restore(self, conversation: Conversation) -> None:
        """Replaces everything in `conversation` except the model."""
        conversation.clear()
        conversation.set_method(self.method)
        conversation.system = self.system
        conversation.user_options, conversation.turns = dict(self.options), list(self.turns)


def path_of(name: str) -> Path:
    """The file of a conversation that the user names: by a path, or by a name in the state
    folder. ValueError for a name that is empty or begins with a dot, as of a hidden file."""
    path = os.path.expanduser(name)
    if not {"/", os.sep} & set(path) and (path.startswith(".") or not path.strip("\"' ")):
        why = "begins with a dot" if path.startswith(".") else "is empty"
        raise ValueError(f"the name {name!r:.40} {why}; write another, such as sums, or a path")
    if path.endswith(ENDING) or {"/", os.sep} & set(path):
        return Path(os.path.realpath(path))
    return _folder() / (name + ENDING)


def new_path() -> Path:
    """A path in the state folder, named after the time, at which no file exists."""
    stem = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}"
    numbered = (_folder() / f"{stem}-{number}{ENDING}" for number in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def saved_paths() -> list[Path]:
    """The conversations in the state folder, latest first."""
    files = paths.latest_first(_folder(), f"*{ENDING}")
    return [path for path, about in files if about.st_size]  # else it has just been made


def is_named(path: Path) -> bool:
    """Whether a person has named the conversation, by /save NAME."""
    return not _BY_TIME.fullmatch(path.stem)


def is_in_folder(path: Path) -> bool:
    """Whether it is the path of a conversation in the state folder."""
    return path.parent == _folder() and path.name.endswith(ENDING)


def _folder() -> Path:
    return Path(os.path.realpath(paths.folder("state") / "chats"))  # comparable with `path_of`


def n_bytes(model: Path) -> int:
    """The size of a model, all parts together; 0 if it is not there."""
    try:
        return model_parts.bytes_of(model)
    except OSError:
        return 0


def is_conversation(path: Path) -> bool:
    """Whether a file begins like a conversation."""
    if not path.is_file():  # reading a pipe would block
        return False
    with open(path, "rb") as file:
        return FORMAT.encode() in file.read(200)


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Inside, an OSError names `path`, or what is no folder above it, not a temporary file."""
    try:
        yield
    except NotADirectoryError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def encoded(conversation: Conversation) -> bytes:
    """The content of the file of a conversation: ASCII, so that any text can be written."""
    return "".join(json.dumps(line) + "\n" for line in _lines(conversation)).encode()


def _lines(conversation: Conversation) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT,
        "model": str(conversation.engine.path),
        "model_bytes": n_bytes(conversation.engine.path),
        "method": conversation.method.name,
        "system": conversation.system,
        "options": conversation.user_options,
    }
    for turn in conversation.turns:
        yield {"role": "user", "content": turn.question}
        yield {"role": "assistant", "content": turn.answer, "thinking": turn.thinking}


def load(path: Path) -> Saved:
    """Reads a conversation. TgrError names the first invalid line; OSError as `open` raises it."""
    number, digest = 0, hashlib.sha256()
    records: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                records.append(_record(json.loads(line), number))
            number += 1
            return _saved(records, digest.digest())
    except KeyError as error:
        raise _invalid(path, number, f"it has no {error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise _invalid(path, number, error) from None


def _invalid(path: Path, number: int, why: object) -> TgrError:
    return TgrError(f"{path} is not a conversation: line {number}: {why}")


def _record(record: Any, number: int) -> dict[str, Any]:
    """A line, checked. ValueError, TypeError or KeyError if it is invalid."""
    fields: dict[str, Any] = require_type(dict, record)
    if number == 1:
        if fields["format"] != FORMAT:
            raise ValueError(f"its format is {fields['format']!r:.40}, but must be {FORMAT!r}")
        for name in ("model", "method", "system"):
            require_type(str, fields[name])
        require_type(int, fields.get("model_bytes", 0))
        fields["method"] = FORMER_METHODS.get(fields["method"], fields["method"])
        if fields["method"] not in METHODS:
            raise ValueError(f"its method is {fields['method']!r:.40}, but there is no such method")
        updated(SearchConfig(), _options(fields))
        return fields
    role = "assistant" if number % 2 else "user"
    if fields["role"] != role:
        raise ValueError(f"its role is {fields['role']!r:.40}, but must be {role!r}")
    require_type(str, fields["content"])
    require_type(str, fields.get("thinking", ""))
    return fields


def _options(record: dict[str, Any]) -> dict[str, Any]:
    """The options of the first line, with tuples where JSON has lists, and without former ones."""
    options = require_type(dict, record["options"]).items()
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options
        if not has_left(name, value)
    }


def _saved(records: list[dict[str, Any]], digest: bytes) -> Saved:
    if len(records) % 2 == 0:
        raise ValueError("the file ends before the answer" if records else "the file is empty")
    header, *messages = records
    pairs = zip(messages[::2], messages[1::2], strict=True)
    turns = [Turn(q["content"], a["content"], a.get("thinking", "")) for q, a in pairs]
    options = _options(header)
    return Saved(
        header["model"], header.get("model_bytes", 0), header["method"], header["system"], options,
        turns, digest,
    )  # fmt: skip
