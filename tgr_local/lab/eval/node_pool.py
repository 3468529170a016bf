"""The engines of several machines as one `making.Maker`.

In: nodes, each with an engine, ready to work. Out: samples. A sample that a lost node was making is
made again by another one; its seed decides what it is, not its place. The pool does not know how a
node is reached.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from tgr_local.engine import Cancel
from tgr_local.engine import watched as watched_by
from tgr_local.errors import CancelledError, TgrError
from tgr_local.lab.eval.making import Job, Phase, failed
from tgr_local.lab.eval.samples import ENGINE, Sample

ATTEMPTS = 3
"""Nodes that may be lost while they make the same sample, which may be the cause."""


class NodeLostError(Exception):
    """The node is gone, with what it was doing."""


class Node(Protocol):
    """An engine on a machine. Every call may raise NodeLostError."""

    name: str
    """For messages: where it is."""

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        """As `Maker.begin`; the phase comes without its problems."""

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> tuple[Sample, int]:
        """As `Maker.make`, with the positions that the engine has decoded so far."""


class NodePool:
    """A `Maker` over several nodes. A node that is lost is not asked again; `on_lost` gets one line
    that says which and why."""

    def __init__(self, nodes: Sequence[Node], on_lost: Callable[[str], None]) -> None:
        self._nodes, self._on_lost = list(nodes), on_lost
        self._slots: dict[str, int] = {}  # free ones, by the name of a node
        self._positions = dict.fromkeys((node.name for node in nodes), 0)
        self._changed = threading.Condition()
        self._lost = ""  # the last one, and why

    @property
    def positions(self) -> int:
        """Of a lost node, what it had decoded when it handed over its last sample."""
        return sum(self._positions.values())

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        """Jobs are spread evenly: no node takes more at a time than its share of `n_jobs`."""
        self._phase, self._slots = phase, {}
        light = dataclasses.replace(phase, problems=())
        for node in list(self._nodes):
            share = -(-n_jobs // max(len(self._nodes), 1))
            try:
                self._slots[node.name] = node.begin(light, n_cells, parallel, share)
            except NodeLostError as error:
                self._lose(node, error)
        if not self._nodes:
            raise self._none_left()
        return min(sum(self._slots.values()), n_jobs)

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> Sample:
        """As `Maker.make`. TgrError where no node is left."""
        for _ in range(ATTEMPTS):
            node = self._take(cancel)
            try:
                sample, positions = node.make(job, prompt, cancel)
            except NodeLostError as error:
                self._lose(node, error)
                continue
            finally:
                self._give_back(node)
            with self._changed:
                self._positions[node.name] = max(self._positions[node.name], positions)
            return sample
        return failed(self._phase, job, f"{ENGINE}{ATTEMPTS} nodes were lost while they made it")

    def _take(self, cancel: Cancel) -> Node:
        """The node with most free slots, once there is one."""
        with watched_by(cancel, self._wake), self._changed:
            while True:
                if cancel.is_set():
                    raise CancelledError("the run was cancelled")
                if not self._nodes:
                    raise self._none_left()
                node = max(self._nodes, key=lambda node: self._slots[node.name])
                if self._slots[node.name] > 0:
                    self._slots[node.name] -= 1
                    return node
                self._changed.wait()

    def _give_back(self, node: Node) -> None:
        with self._changed:
            self._slots[node.name] += 1
            self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _lose(self, node: Node, error: NodeLostError) -> None:
        with self._changed:
            is_new = node in self._nodes
            if is_new:
                self._nodes.remove(node)
                self._lost = f"{node.name} is lost ({error})"
            self._changed.notify_all()
        if is_new:
            self._on_lost(self._lost)

    def _none_left(self) -> TgrError:
        return TgrError(
            f"no node is left: {self._lost}; the samples so far are on the disk: start nodes, and "
            "the same command resumes the run"
        )
