"""Groups of sessions whose batches depend on the seeds alone."""

from __future__ import annotations

from dataclasses import dataclass

from tgr_local.engine import waits
from tgr_local.engine.native import native


@dataclass(frozen=True, eq=False)
class LockstepGroup:
    """Sessions that advance in lockstep: none of their work is decoded while a participant is idle,
    so their batches, and with them the rounding, depend on the seeds alone.

    Every participant must open its session or `leave`, and must not wait for another participant
    in between.
    """

    _engine: native.Engine
    _native: native.LockstepGroup

    def participant(self, index: int) -> Participant:
        return Participant(self, index)


@dataclass(frozen=True, eq=False)
class Participant:
    """One place in a group; leaving its ``with`` block leaves the group."""

    group: LockstepGroup
    index: int

    def leave(self) -> None:
        """The group stops waiting for this participant. May be called again."""
        self.group._engine.leave(self.group._native, self.index)
        waits.search()  # requests of a group count only when all of it has asked

    def __enter__(self) -> Participant:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()
