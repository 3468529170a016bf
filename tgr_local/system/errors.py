"""The errors that tgr-local raises, and any error as one line of text (`describe`).

A bad argument is a plain ``ValueError``; everything else derives from `TgrError`. Each message is
one sentence: what went wrong, the value, the bound, and what to do.
"""

from __future__ import annotations

import errno
import re
from typing import Any

from tgr_local.system.sanitize import printable_line

_LONGEST = 2000  # characters of a message
_LONG_NUMBER = re.compile(r"Exceeds the limit \(\d+ digits\) .* to increase the limit")


class TgrError(Exception):
    """Base class of every error except those about a bad argument."""


class ModelError(TgrError):
    """A model file that is missing, damaged or not supported."""


class CapacityError(TgrError):
    """A request that can never fit: more cells, sequences or injections than the engine has."""


class ContextError(CapacityError):
    """A prompt that does not fit into the context, by itself or with the room for its reply."""

    def __init__(self, message: str, n_tokens: int, n_ctx: int) -> None:
        """`n_tokens` of the prompt, by an estimate where it is far too long; `n_ctx` that fit."""
        super().__init__(message)
        self.n_tokens, self.n_ctx = n_tokens, n_ctx


def too_long(subject: str, n_tokens: int, n_ctx: int) -> ContextError:
    """The error about a text, named by `subject`, that is longer than the model was trained for."""
    return ContextError(
        f"{subject} has {n_tokens} tokens, but the model was trained for {n_ctx}; shorten it",
        n_tokens,
        n_ctx,
    )


class CancelledError(TgrError):
    """The work was cancelled before it was finished.

    `reply` is the `Reply` so far, with its counts, where one was being written, else None;
    `replies` those of several that were written together. They have the tokens of the chunk under
    way, too.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.reply: Any = None
        self.replies: list[Any] = []
        self.counts: Any = None
        """`Counts` of the step under way."""
        self.n_decoded = 0
        """Positions that the interrupted tasks had decoded."""
        self.n_reused = 0
        """Positions that they had taken from the cache."""


class PrefixError(TgrError):
    """A saved prefix that cannot be used, or not be saved; the text itself can be read again."""


class PrefixRoomError(PrefixError):
    """A saved prefix for which there is no memory or no room in the cache now."""


class BudgetError(ValueError):
    """The ``max_forward_tokens`` or ``max_seconds`` that remain are too few for the next step."""


class InstallError(TgrError):
    """A required package is missing, or has another version than the one that we built against."""


_NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")


def is_shortage(error: BaseException) -> bool:
    """Whether this process may have no more memory, threads or processes. Python, and C++ through
    it, say that of threads with a RuntimeError."""
    if isinstance(error, OSError):
        if hasattr(error, "characters_written"):  # into a pipe that is full
            return False
        return error.errno in (errno.ENOMEM, errno.EAGAIN) and error.filename is None
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) in _NO_THREAD
    )


def why_not_bound(error: OSError | UnicodeError) -> str:
    """Returns the reason why an address cannot be bound, without the address that socket adds."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.partition(" (while attempting")[0]


def without_advice(text: str) -> str:
    """A message without Python's advice on numbers that are too long, which is for programmers."""
    return _LONG_NUMBER.sub("it has a number of more than 4300 digits", text)


def describe(error: Exception) -> str:
    """An error as one printable line. Any other exception than ours is reported as a bug."""
    if is_shortage(error):
        return (
            "there is no more memory, or no room for another thread; end other programs, or raise "
            "the limit (ulimit -v, ulimit -u)"
        )
    if isinstance(error, OSError) and error.filename is not None:
        name = "an empty name" if error.filename == "" else error.filename
        return printable_line(f"{name}: {error.strerror}", _LONGEST)
    reason = error.strerror if isinstance(error, OSError) else None
    text = " ".join(without_advice(reason or str(error)).split())
    if not isinstance(error, TgrError | ValueError | OSError):
        text = f"{type(error).__name__}: {text} (this is a bug; TGR_DEBUG=1 shows where)"
    return printable_line(text, _LONGEST)
