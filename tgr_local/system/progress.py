"""Progress line on stderr for slow operations; a pause between two drawings.

A terminal gets one line, redrawn in place and erased at the end; any other stderr, such as a log
file, gets a new line at intervals. Nothing is printed for an operation that ends within `DELAY`, or
in a file within `LOG_INTERVAL`.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import TYPE_CHECKING

from tgr_local.system.sanitize import printable_line

if TYPE_CHECKING:
    from typing_extensions import Self

DELAY = 2.0  # seconds before the first line on a terminal
LOG_INTERVAL = 15.0  # seconds between two lines where stderr is not a terminal
_REDRAW_INTERVAL = 0.2  # seconds between two lines on a terminal
_ERASE = "\r\x1b[K"


class Pause:
    """A `threading.Event` for one waiter and one end, where Ctrl-C may come.

    KeyboardInterrupt in the methods of an Event can leave its lock locked, and whoever uses it next
    waits forever. Those of a SimpleQueue are written in C and are not interrupted halfway.
    """

    def __init__(self) -> None:
        self._end: queue.SimpleQueue[None] = queue.SimpleQueue()

    def end(self) -> None:
        """Ends the pause. May be called again."""
        self._end.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits for the end. True once; False if it does not come within `seconds`."""
        try:
            self._end.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


class ProgressLine:
    """Prints `line` and the seconds since its start until it is closed; use it in a ``with``.

    The operation may assign `line` at any time. With `is_shown` false nothing is printed.
    """

    def __init__(self, line: str, is_shown: bool = True) -> None:
        self.line = line
        self._start = time.monotonic()
        self.closed = False
        """Whether `close` was called."""
        self._pause = Pause()
        self._thread = threading.Thread(target=self._draw, daemon=True)
        if is_shown:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops printing and erases the line on a terminal. May be called again."""
        self.closed = True
        self._pause.end()
        if self._thread.is_alive():
            self._thread.join()

    def _draw(self) -> None:
        terminal = sys.stderr.isatty()
        start, end = (_ERASE, "") if terminal else ("", "\n")
        wait, drawn = DELAY if terminal else LOG_INTERVAL, False
        while not self._pause.wait(wait):
            wait, drawn = _REDRAW_INTERVAL if terminal else LOG_INTERVAL, True
            seconds = time.monotonic() - self._start
            line = f"{printable_line(self.line)}, {seconds:.0f} s"
            print(start + line, end=end, file=sys.stderr, flush=True)
        if terminal and drawn:
            print(_ERASE, end="", file=sys.stderr, flush=True)
