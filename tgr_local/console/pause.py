"""A pause that another thread ends."""

from __future__ import annotations

import queue


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
