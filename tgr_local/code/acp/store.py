"""Sessions as files of JSON lines in the user's state folder. The first line describes the session;
each further line has a prompt and the updates that answered it, each in its last state.

A file is written after each prompt and replaced in one step. Its size is bounded: the oldest
prompts are removed first; of too many sessions, the oldest. Several editors may have one session
open; its file has the prompts of all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from acp import schema

from tgr_local.system import paths
from tgr_local.system.errors import TgrError
from tgr_local.system.files import open_plain
from tgr_local.system.json_checks import require_type
from tgr_local.system.owned_file import changing

MAX_BYTES = 2 << 20  # of a session
MAX_SESSIONS = 100
MAX_THOUGHT = 32 << 10  # characters
MAX_DIFF = 128 << 10  # characters of a file
_CHUNKS = ("agent_message_chunk", "agent_thought_chunk")
_FORMAT = "tgr-acp 1"
_ID = re.compile(r"[0-9a-f]{32}")
_DAMAGE = (ValueError, TypeError, KeyError, RecursionError)

Update = dict[str, Any]


@dataclass(frozen=True)
class SessionHeader:
    """Properties of a session, without its messages."""

    cwd: str
    """Folder of the session, as the client names it."""
    mode: str
    test: str
    named: tuple[str, ...]
    title: str
    model: str = ""
    """The path of the model that wrote last; empty = unknown."""


@dataclass
class PromptEntry:
    """A prompt and the updates that answered it."""

    prompt: str
    updates: list[Update] = field(default_factory=list)

    def add(self, update: Update) -> None:
        """Takes an update in: texts grow, a plan and a tool call have their last state."""
        kind = update["sessionUpdate"]
        if kind in _CHUNKS:
            self._add_chunk(kind, update["content"]["text"])
        elif kind == "plan":
            self._replace(update, lambda earlier: earlier["sessionUpdate"] == kind)
        elif kind in ("tool_call", "tool_call_update"):
            update = {**update, "content": [_short(part) for part in update.get("content", [])]}
            if not update["content"]:
                del update["content"]
            number = update["toolCallId"]
            self._replace(update, lambda earlier: earlier.get("toolCallId") == number)

    def _add_chunk(self, kind: str, text: str) -> None:
        last = self.updates[-1] if self.updates else {}
        if last.get("sessionUpdate") != kind:
            self.updates.append({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
        elif len(last["content"]["text"]) < MAX_THOUGHT:
            last["content"]["text"] += text

    def _replace(self, update: Update, is_same: Any) -> None:
        for earlier in self.updates:
            if is_same(earlier):
                earlier.update(update, sessionUpdate=earlier["sessionUpdate"])
                return
        self.updates.append(update)


def new_id() -> str:
    return uuid.uuid4().hex


def save(
    session_id: str, header: SessionHeader, entries: Sequence[PromptEntry], n_kept: int = 0
) -> list[PromptEntry]:
    """Writes a session. The first `n_kept` entries are in the file already. Returns the entries
    that the file has now, with those of other editors, as far as there is room. Raises OSError."""
    path = _path(session_id)
    with changing(path):
        with contextlib.suppress(TgrError, ValueError, OSError):  # there is none, or it is damaged
            _, on_disk = _read(path)
            known = [_entry(path, number, line) for number, line in enumerate(on_disk, 2)]
            entries = [*known, *entries[n_kept:]]
        saved = _write(path, header, entries)
    for old in _all()[MAX_SESSIONS:]:
        with contextlib.suppress(OSError):
            old.unlink()
    return saved


def _write(path: Path, header: SessionHeader, entries: Sequence[PromptEntry]) -> list[PromptEntry]:
    lines: list[str] = []
    saved: list[PromptEntry] = []
    room = MAX_BYTES
    for entry in reversed(entries):
        line = json.dumps(asdict(entry)) + "\n"  # ASCII, so that any text can be written and read
        if len(line) > MAX_BYTES // 2:
            continue
        if len(line) > room:
            break
        room -= len(line)
        lines.insert(0, line)
        saved.insert(0, entry)
    first = json.dumps({"format": _FORMAT, **asdict(header)}) + "\n"
    paths.write_whole(path, "".join([first, *lines]).encode())
    return saved


def load(session_id: str, cwd: str) -> tuple[SessionHeader, list[PromptEntry]]:
    """A saved session of a folder. Raises ValueError where there is none, or it is one of another
    folder, and TgrError where its file is damaged."""
    if not _ID.fullmatch(session_id):
        raise ValueError(f"{session_id!r:.80} is no session of tgr-local")
    path = _path(session_id)
    header, lines = _read(path)
    if os.path.realpath(header.cwd) != os.path.realpath(cwd):
        raise ValueError(f"session {session_id} belongs to {header.cwd}, not to {cwd}")
    return header, [_entry(path, number, line) for number, line in enumerate(lines, 2)]


def listed(cwd: str | None) -> list[schema.SessionInfo]:
    """The saved sessions, of one folder or of all, latest first."""
    sessions = []
    for path in _all()[:MAX_SESSIONS]:
        with contextlib.suppress(TgrError, ValueError, OSError):
            header, _ = _read(path)
            if cwd is None or os.path.realpath(header.cwd) == os.path.realpath(cwd):
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime))
                sessions.append(
                    schema.SessionInfo(
                        session_id=path.stem, cwd=header.cwd, title=header.title, updated_at=at
                    )
                )
    return sessions


def _folder() -> Path:
    return paths.folder("state") / "acp"


def _path(session_id: str) -> Path:
    return _folder() / f"{session_id}.jsonl"


def _all() -> list[Path]:
    """Latest first."""
    files = paths.latest_first(_folder(), "*.jsonl")
    return [path for path, _ in files if _ID.fullmatch(path.stem)]


def _read(path: Path) -> tuple[SessionHeader, list[str]]:
    """The first line of a file, and the others."""
    try:
        with open_plain(path) as file:
            text = file.read(2 * MAX_BYTES).decode("ascii")
    except FileNotFoundError:
        raise ValueError(f"there is no session {path.stem}") from None
    except UnicodeDecodeError:
        raise _damage_error(path, 1) from None
    first, *lines = text.splitlines() or [""]
    try:
        return _header(json.loads(first)), lines
    except _DAMAGE:
        raise _damage_error(path, 1) from None


def _header(value: Any) -> SessionHeader:
    if value["format"] != _FORMAT:
        raise ValueError
    texts = {name: require_type(str, value[name]) for name in ("cwd", "mode", "test", "title")}
    named = tuple(require_type(str, path) for path in require_type(list, value["named"]))
    return SessionHeader(**texts, named=named, model=require_type(str, value.get("model", "")))


def _entry(path: Path, number: int, line: str) -> PromptEntry:
    try:
        value = json.loads(line)
        updates = require_type(list, value["updates"])
        for update in updates:
            schema.SessionNotification.model_validate({"sessionId": "", "update": update})
        return PromptEntry(require_type(str, value["prompt"]), updates)
    except _DAMAGE:
        raise _damage_error(path, number) from None


def _damage_error(path: Path, number: int) -> TgrError:
    return TgrError(f"{path} is damaged in line {number}; delete it")


def _short(content: Update) -> Update:
    """A tool call's content; a note in place of a long diff."""
    if content["type"] != "diff":
        return content
    if len(content["newText"]) + len(content.get("oldText", "")) <= MAX_DIFF:
        return content
    note = f"{content['path']} was changed; the file is too long to be kept here"
    return {"type": "content", "content": {"type": "text", "text": note}}
