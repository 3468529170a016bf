"""A prompt's blocks → a task, and the files that it mentions.

In: content blocks of the protocol. Out: text, and paths in the session's folder. A file is read
from the disk, where the tests run, never from what the client sends; nothing outside of the folder
is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from acp import schema

from tgr_local.code import edits
from tgr_local.code.reading import evidence
from tgr_local.code.workplace import Workplace

MAX_CHARACTERS = 256 << 10
MAX_BLOCKS = 256


@dataclass(frozen=True)
class EditorTask:
    """A prompt."""

    text: str
    named_paths: tuple[str, ...]
    """The mentioned files without the tests: mentioning a test does not allow changing it."""
    notes: tuple[str, ...]
    """Notes about the blocks for the person."""


def read(blocks: Sequence[Any], cwd: str, workplace: Workplace) -> EditorTask:
    """The task in blocks. Raises ValueError for blocks that are not read here and for an empty or a
    very long text."""
    if len(blocks) > MAX_BLOCKS:
        raise ValueError(f"the prompt has {len(blocks):,} parts, but at most {MAX_BLOCKS} are read")
    parts: list[str] = []
    quoted: list[str] = []
    mentioned: list[str] = []
    notes: list[str] = []
    for block in blocks:
        if isinstance(block, schema.TextContentBlock):
            parts.append(block.text)
        elif isinstance(block, schema.ResourceContentBlock):
            place = _place(block.uri, cwd, workplace)
            parts.append(place.path if place else block.uri)
            if place:
                mentioned.append(place.path)
            else:
                notes.append(f"{block.uri:.200} is no file in {cwd:.200}; it is not read")
        elif isinstance(block, schema.EmbeddedResourceContentBlock):
            resource = block.resource
            if not isinstance(resource, schema.TextResourceContents):
                raise ValueError(f"{resource.uri:.200} is no text; only texts are read")
            place = _place(resource.uri, cwd, workplace)
            if not place:
                quoted.append(_quote(resource.uri, resource.text))
                continue
            path, lines = place
            mentioned.append(path)
            parts.append(path)
            if lines:
                quoted.append(_quote(f"{path}, {lines}", resource.text))
            elif (on_disk := workplace.read(path)) is None:
                notes.append(f"{path} is no text file on the disk; save it")
            elif _as_read(resource.text) != on_disk.text:
                # perhaps not saved, perhaps an outline: editors send that of a long file
                notes.append(
                    f"{path} is read from the disk, where it differs from what the editor sent; "
                    "save it if you have changed it"
                )
        else:
            raise ValueError("images and sounds are not read; write what to do")
    text = "\n\n".join(["".join(parts).strip(), *quoted]).strip()
    if not text:
        raise ValueError("the prompt is empty; say what to do")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"the prompt has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are read; "
            "mention files instead of pasting them"
        )
    paths: list[str] = []
    for path in dict.fromkeys(mentioned):
        if os.path.isdir(os.path.join(cwd, path)):
            continue
        if evidence.is_test(path):
            notes.append(f"{path} is a test; it is read, not changed")
            continue
        if reason := workplace.refusal(path):
            notes.append(reason)
        else:
            paths.append(path)
    return EditorTask(text, workplace.named_paths(paths), tuple(notes))


class _UriTarget(NamedTuple):
    path: str
    """Relative to the session's folder."""
    lines: str
    """The fragment of the URI."""


def _place(uri: str, cwd: str, workplace: Workplace) -> _UriTarget | None:
    """Returns the place of a URI in the session's folder; None = elsewhere."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # such as http://[
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    place, fragment, raw = unquote(parts.path), parts.fragment, uri.removeprefix("file://")
    if os.path.lexists(raw) and not os.path.lexists(place):  # some editors escape nothing
        place, fragment = raw, ""
    place = os.path.normpath(place)
    path = os.path.relpath(place, cwd)
    if _leaves(path):  # perhaps one of the two is named by way of a link
        parent = os.path.realpath(os.path.dirname(place))
        path = os.path.relpath(
            os.path.join(parent, os.path.basename(place)), workplace.project.folder
        )
    return None if not os.path.isabs(place) or _leaves(path) else _UriTarget(path, fragment)


def _leaves(path: str) -> bool:
    return path.split(os.sep)[0] == os.pardir


def _as_read(text: str) -> str:
    """Returns the text of a file from a client in the form of a `FileText`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _quote(name: str, text: str) -> str:
    fence = edits.fence_for([text])
    return f"{name:.200}:\n{fence}\n{text}\n{fence}"
