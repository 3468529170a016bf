"""The terminal of a dialog: lines of input answered one by one, until there is no other; what is
typed meanwhile, which is not shown and waits for the next prompt; messages on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tgr_local.console.endings import restorer, stopped_by_signals
from tgr_local.console.wrap import terminal_width, wrapped
from tgr_local.system.errors import describe
from tgr_local.system.sanitize import printable_line

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]


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
        except KeyboardInterrupt:  # while that was printed
            pass


def print_note(text: str) -> None:
    """Prints a message to the user on stderr."""
    line = f"tgr-local: {printable_line(text)}"
    if sys.stderr.isatty():
        line = wrapped(line, terminal_width(sys.stderr))
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def is_live() -> bool:
    """Whether stdout is a terminal that can move its cursor. Windows counts as none: under Wine the
    live view stands still."""
    return (
        os.name != "nt"
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    )


def is_interactive() -> bool:
    """Whether a person types the input and reads the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_ahead() -> AbstractContextManager[None]:
    """Inside, as while the model is loaded, what is typed and pasted on a terminal waits for the
    first prompt, and is not shown before."""
    return no_echo() if is_interactive() else contextlib.nullcontext()


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """Typed and pasted text is not shown and waits for the next prompt; Ctrl-C interrupts as
    ever. On Windows what is typed meanwhile is shown."""
    if termios is None:
        yield
        return
    descriptor = sys.stdin.fileno()
    old_settings = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    changed[3] |= termios.NOFLSH  # else Ctrl-C discards the typed text

    leave = restorer()

    def enter() -> None:
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        if is_live():
            os.write(1, b"\x1b[?2004h")  # bracketed paste: it arrives in one piece

    sys.stdout.flush()
    try:
        enter()
        with stopped_by_signals(leave, enter):
            yield
    except BaseException:
        leave()  # perhaps no prompt follows
        raise
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, old_settings)
