"""Prefixes that the model has read of a conversation, in a file next to that of the conversation,
so that a resumed conversation is not read again.

It is large (0.1 MiB for a token of a 0.6B model), so it is written when the conversation is left
and not after every turn, only in the state folder, and only if reading it again would take long.
The files of removed conversations are removed, and the oldest beyond `ChatConfig.prefix_mib`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from tgr_local.chat import store
from tgr_local.chat.conversation import Conversation
from tgr_local.engine.prefix_files import load_prefix, save_prefix, saved_tokens
from tgr_local.system import paths
from tgr_local.system.errors import TgrError, describe
from tgr_local.system.progress import ProgressLine

ENDING = ".prefix"
LEAST_TOKENS = 256  # fewer are read again in a few seconds


def path_of(file: Path) -> Path:
    """The file with the prefix of the conversation in `file`."""
    return file.with_name(file.name.removesuffix(store.ENDING) + ENDING)


def save(conversation: Conversation, files: Iterable[Path]) -> None:
    """Saves what the engine remembers of the conversation for those of its files that are in the
    state folder. If that fails, a warning is printed."""
    files = [file for file in files if store.is_in_folder(file) and file.exists()]
    most = conversation.chat_config.prefix_mib << 20
    if not files:
        return
    first, *links = (path_of(file) for file in files)
    try:
        saved = None
        if most and conversation.turns:
            with ProgressLine("saving what was read of the conversation; Ctrl-C skips it"):
                saved = save_prefix(
                    conversation.engine,
                    conversation.tokens(),
                    first,
                    least_tokens=LEAST_TOKENS,
                    most_bytes=most,
                )
        for path in links if saved else (first, *links):
            path.unlink(missing_ok=True)  # of an earlier state of the conversation
            if saved:
                with contextlib.suppress(FileExistsError):  # another chat has just made it
                    os.link(first, path)
        _prune(first.parent, most)
    except (TgrError, ValueError, OSError) as error:
        print(
            f"tgr-local: what was read of the conversation is not saved: {describe(error)}",
            file=sys.stderr,
        )


def load(conversation: Conversation, file: Path, *, other_model: bool = False) -> None:
    """Loads what was saved for the conversation in `file`, if anything was. If that fails, a
    warning is printed, and the next reply reads the conversation again. With `other_model` the
    person has changed the model, so it is no news that what the last one had read is of no use."""
    path = path_of(file)
    if not conversation.chat_config.prefix_mib or not path.exists():
        return
    try:
        if other_model and saved_tokens(conversation.engine, path) is None:
            return
        with ProgressLine("loading what was read of the conversation"):
            load_prefix(conversation.engine, path)
    except (TgrError, OSError) as error:
        print(
            f"tgr-local: warning: the conversation is read again: {describe(error)}",
            file=sys.stderr,
        )


def _prune(folder: Path, most: int) -> None:
    """Removes files without a conversation, given-up ones, and the oldest ones beyond `most` bytes;
    two names of one file count once."""
    paths.remove_abandoned(folder, f".*{ENDING}.*")
    sizes: dict[int, int] = {}
    for path, status in paths.latest_first(folder, f"*{ENDING}"):
        sizes[status.st_ino] = status.st_size
        conversation = path.with_name(path.name.removesuffix(ENDING) + store.ENDING)
        if sum(sizes.values()) > most or not conversation.exists():
            path.unlink(missing_ok=True)
