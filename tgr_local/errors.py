"""Every error that tgr-local raises on its own account.

A bad argument is a plain ``ValueError``; everything else derives from `TgrError`. Each message is
one sentence that says what went wrong, the value met, the bound, and the way out.
"""

from __future__ import annotations

from tgr_local.console.sanitize import printable_line

_LONGEST = 2000  # characters of a message


class TgrError(Exception):
    """Base class: catch this to catch everything that is not a bad argument."""


class ModelError(TgrError):
    """A model file that is missing, damaged, or of a kind that cannot be used."""


class CapacityError(TgrError):
    """A request that can never fit: more cells, sequences or injections than the engine holds."""


class CancelledError(TgrError):
    """The work was cancelled before it was done."""


class BudgetError(ValueError):
    """A ``max_forward_tokens`` or ``max_seconds`` that does not pay for the next step."""


class InstallError(TgrError):
    """Parts that do not fit together, such as another llama-cpp-python than was built for."""


def describe(error: Exception) -> str:
    """An error as one printable line, for a person."""
    if isinstance(error, OSError) and error.filename is not None:
        return printable_line(f"{error.filename}: {error.strerror}", _LONGEST)
    text = " ".join(str(error).split())
    if not isinstance(error, TgrError | ValueError | OSError):
        text = f"{type(error).__name__}: {text} (this is a bug; TGR_DEBUG=1 shows where)"
    return printable_line(text, _LONGEST)
