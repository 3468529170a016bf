"""Lines of input answered one by one, until there is no other; messages on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from tgr_local.console.wrap import terminal_width, wrapped
from tgr_local.system.errors import describe
from tgr_local.system.sanitize import printable_line


def print_error(error: Exception) -> None:
    """Prints an error on stderr; with TGR_DEBUG set, after its traceback."""
    if os.environ.get("TGR_DEBUG"):
        traceback.print_exception(error)
    print_note(describe(error))


def until_end(answer_line: Callable[[], object]) -> int:
    """Answers lines until one raises EOFError; the exit code is 1 if one failed."""
    code = 0
    while True:
        try:
            answer_line()
            sys.stdout.flush()
        except EOFError:
            return code
        except BrokenPipeError:
            raise
        except Exception as error:
            print_error(error)
            code = 1


def until_left(
    read: Callable[[], str], answer: Callable[[str], object], stopped: Callable[[], str], hint: str
) -> None:
    """Answers the lines of a person until one raises EOFError. After Ctrl-C `stopped` says what
    that did to an answer under way; where a line was to be typed, `hint` is shown."""
    while True:
        is_typed = False
        try:
            line = read()
            is_typed = True
            answer(line)
        except EOFError:
            return
        except KeyboardInterrupt:
            print(stopped() if is_typed else hint)
        except Exception as error:
            print_error(error)


def print_note(text: str) -> None:
    """Prints a message to the user on stderr."""
    line = f"tgr-local: {printable_line(text)}"
    if sys.stderr.isatty():
        line = wrapped(line, terminal_width(sys.stderr))
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
