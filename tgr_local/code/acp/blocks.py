"""A prompt's blocks → a task, and the files that it mentions.

In: content blocks of the protocol. Out: text, and paths in the session's folder. A file is read
from the disk, where the tests run, never from what the client sends; nothing outside of the folder
is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from acp import schema

from tgr_local.code import edits, evidence
from tgr_local.code.project import RefusedError
from tgr_local.code.workplace import Workplace

MAX_CHARACTERS = 256 << 10
MAX_BLOCKS = 256


@dataclass(frozen=True)
class Asked:
    """A prompt."""

    text: str
    named: tuple[str, ...]
    """Files that it mentions, but for tests: mentioning one is no leave to change it."""
    notes: tuple[str, ...]
    """What the person has to know about them."""


def read(blocks: Sequence[Any], cwd: str, workplace: Workplace) -> Asked:
    """The task in blocks. Raises ValueError for blocks that are not read here, for files outside of
    `cwd` and for an empty or a very long text."""
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
            path = _path(block.uri, cwd)
            mentioned.append(path)
            parts.append(path)
        elif isinstance(block, schema.EmbeddedResourceContentBlock):
            resource = block.resource
            if not isinstance(resource, schema.TextResourceContents):
                raise ValueError(f"{resource.uri:.200} is no text; only texts are read")
            if not resource.uri.startswith("file:"):
                quoted.append(_quoted(resource.uri, resource.text))
                continue
            path = _path(resource.uri, cwd)
            mentioned.append(path)
            parts.append(path)
            if lines := urlsplit(resource.uri).fragment:
                quoted.append(_quoted(f"{path}, {lines}", resource.text))
            elif resource.text != _on_disk(workplace, path):
                notes.append(f"{path} differs from the file on the disk, which is used; save it")
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
    named: list[str] = []
    for path in dict.fromkeys(mentioned):
        if evidence.is_test(path) or os.path.isdir(os.path.join(cwd, path)):
            continue
        if reason := workplace.refusal(path):
            notes.append(reason)
        else:
            named.append(path)
    return Asked(text, workplace.named(named), tuple(notes))


def _path(uri: str, cwd: str) -> str:
    """The path of a file's URI, relative to the session's folder. Raises ValueError."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError(f"{uri:.200} is no file of this machine")
    place = os.path.normpath(unquote(parts.path))
    path = os.path.relpath(place, cwd)
    if not os.path.isabs(place) or path == "." or path.split(os.sep)[0] == os.pardir:
        raise ValueError(f"{place:.200} is no file in {cwd}; it is not read")
    return path


def _on_disk(workplace: Workplace, path: str) -> str:
    try:
        return workplace.project.read(path).document.text
    except RefusedError as error:
        raise ValueError(str(error)) from None


def _quoted(name: str, text: str) -> str:
    fence = edits.fence_for([text])
    return f"{name:.200}:\n{fence}\n{text}\n{fence}"
