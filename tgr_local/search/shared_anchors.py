"""The anchors that the participants of a lockstep group have chosen, boundary by boundary.

What a participant sees depends on the seeds alone. While one participant decides, none of its
group's jobs is decoded. So a participant that has chosen by then is seen by all that decide later;
of those that decide at the same moment, the lower index goes first, and the higher waits for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, LockstepGroup, Participant, Session, watched
from tgr_local.errors import CancelledError


class _Board:
    """What the participants of one group share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sessions: dict[int, Session] = {}  # by index, while they are open
        self.anchors: dict[tuple[int, int], NDArray[np.float64]] = {}  # by boundary and index


_boards: weakref.WeakKeyDictionary[LockstepGroup, _Board] = weakref.WeakKeyDictionary()
_boards_lock = threading.Lock()


def shared_anchors_of(participant: Participant) -> SharedAnchors:
    """The anchors of a participant's group, as that participant sees them."""
    with _boards_lock:
        return SharedAnchors(_boards.setdefault(participant.group, _Board()), participant.index)


class SharedAnchors:
    """One participant's view; `join` with its session, and `leave` before that is closed."""

    def __init__(self, board: _Board, index: int) -> None:
        self._board, self._index = board, index

    def join(self, session: Session) -> None:
        with self._board.changed:
            self._board.sessions[self._index] = session
        session.on_run = self._wake

    def leave(self) -> None:
        with self._board.changed:
            self._board.sessions.pop(self._index, None)
            self._board.changed.notify_all()

    def add(self, boundary: int, anchor: NDArray[np.float64]) -> None:
        """Adds this participant's anchor [d_z] at a boundary."""
        with self._board.changed:
            self._board.anchors[boundary, self._index] = anchor
            self._board.changed.notify_all()

    def of_others(self, boundary: int, cancel: Cancel | None) -> Sequence[NDArray[np.float64]]:
        """The others' anchors [d_z] at this boundary, by index.

        Waits for lower indices that decide now, so call it with no run under way. Raises
        CancelledError when `cancel` is set first.
        """
        board = self._board
        with watched(cancel, self._wake), board.changed:
            for index in range(self._index):
                while self._decides(index, boundary):
                    if cancel and cancel.is_set():
                        raise CancelledError("cancelled while another trajectory chose")
                    board.changed.wait()
            chosen = sorted(at for at in board.anchors if at[0] == boundary)
            return [board.anchors[at] for at in chosen if at[1] != self._index]

    def _wake(self) -> None:
        with self._board.changed:
            self._board.changed.notify_all()

    def _decides(self, index: int, boundary: int) -> bool:
        """Whether a participant has nothing to run and has not chosen yet."""
        board = self._board
        if (boundary, index) in board.anchors or index not in board.sessions:
            return False
        return not board.sessions[index].is_running
