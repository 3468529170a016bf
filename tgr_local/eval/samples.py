"""Samples on disk: one JSON line for each, on the disk for good before it counts as done.

A file may end in a torn line, where a run was killed in the middle of a write; it is cut off and
its sample is made again. Anything else that is no sample is an error with its line number. A sample
that was made or graded again has a second line: the last one holds.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import math
import os
import queue
import threading
import typing
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tgr_local.errors import TgrError
from tgr_local.eval import shapes
from tgr_local.eval.shapes import Count
from tgr_local.trace.json_values import to_json_value

Key = tuple[str, str, str, int, int]
ENGINE = "the engine failed: "
"""How `Sample.detail` begins where the engine made nothing, though it may another time."""


@dataclass(frozen=True)
class Sample:
    """One reply of one system to one problem, and its grade."""

    task: str
    problem: str
    system: str
    seed: int
    """Of the repeated run; the seed of the reply is derived from it."""
    index: int
    """Number of the sample within its problem and seed, from 0."""
    text: str
    thinking: str
    tokens: int
    """Tokens kept."""
    finish: str
    """As `Reply.finish`; "error" = nothing could be made, `detail` says why."""
    correct: bool | None
    """None: not graded; never counted as wrong."""
    score: float
    answer: str | None
    detail: str
    logprob: float | None
    """Mean log-probability of the kept tokens, nats; None without tokens."""
    counts: dict[str, int]
    """Forward tokens by kind."""
    parts: dict[str, float]
    """Seconds by part."""
    seconds: float
    """From begin to end, in a batch that it shared with others."""
    boundaries: list[dict[str, Any]] = field(default_factory=list)
    """What `boundaries.measured` says of each step; empty for a method without anchors."""

    @property
    def key(self) -> Key:
        return self.task, self.system, self.problem, self.seed, self.index

    @property
    def cost(self) -> int:
        """Forward tokens."""
        return sum(self.counts.values())

    @property
    def lacks_grade(self) -> bool:
        """Whether it has a text but no grade: no judge, no package, or the grader failed. It may be
        graded again."""
        return self.correct is None and self.finish != "error"

    @property
    def lacks_text(self) -> bool:
        """Whether the engine failed at it, so that it may be made again."""
        return self.finish == "error" and self.detail.startswith(ENGINE)


@dataclass(frozen=True)
class Draw:
    """How many samples: `n` for each problem and seed, and more until those of a problem cost
    `budget` forward tokens (0 = no more), to which every seed gives the same share."""

    n: int
    seeds: tuple[int, ...]
    budget: int = 0

    def target(self, at: Callable[[int], Sample | None]) -> int:
        """How many samples a problem must have for one seed, as far as those known by now tell;
        ``at(i)`` is sample i.

        A budget is filled in waves, each sized by the mean cost of all before it, so that the
        number depends on the samples alone.
        """
        n, share = self.n, self.budget / len(self.seeds)
        while share:
            found = itertools.takewhile(lambda s: s is not None, map(at, range(n)))
            costs = [s.cost for s in found if s is not None and s.finish != "error"]
            if len(costs) < n or not sum(costs) or sum(costs) >= share:
                return n
            n += math.ceil((share - sum(costs)) * n / sum(costs))
        return n


_TERMS = ("V", "P_bum", "P_uni", "S")
_BOUNDARY = {
    "chunk?": Count, "tokens?": Count, "chosen?": Count, "figures?": dict[str, float], "text?": str,
    "rollouts?": list[str], **{f"{name}?": list[float] for name in _TERMS},
}  # fmt: skip
_SAMPLE: dict[str, Any] = {
    **typing.get_type_hints(Sample),
    **dict.fromkeys(("seed", "index", "tokens"), Count),
    "counts": dict[str, Count],
    "boundaries?": [_BOUNDARY],
}
del _SAMPLE["boundaries"]


def parse(line: bytes) -> Sample:
    """The sample of a line. ValueError, naming the key and the value, for anything else."""
    data = shapes.loads(line)
    shapes.check(_SAMPLE, data)
    if unknown := [key for key in data if key not in _FIELDS]:
        raise ValueError(f"it has the unknown key {unknown[0]!r:.60}")
    for i, boundary in enumerate(data.get("boundaries", ())):
        _check_boundary(boundary, f"boundaries[{i}]")
    return Sample(**data)


_FIELDS = {spec.name for spec in dataclasses.fields(Sample)}


def _check_boundary(boundary: dict[str, Any], key: str) -> None:
    """ValueError where a boundary has no measures, or some but not all of its candidates."""
    of_others = {name.removesuffix("?") for name in _BOUNDARY}
    measures = {name: value for name, value in boundary.items() if name not in of_others}
    shapes.check(dict[str, float], measures, key)
    if not {*_TERMS, "chosen", "rollouts"} & boundary.keys():
        return
    needed = [*_TERMS, "chosen", *(["chunk", "text"] if "rollouts" in boundary else [])]
    shapes.check(dict.fromkeys(needed, Any), boundary, key)
    lists = [name for name in (*_TERMS, "rollouts") if name in boundary]
    n = len(boundary["S"])
    if any(len(boundary[name]) != n for name in lists):
        raise ValueError(f"{key} has lists of different lengths in {', '.join(lists)}")
    if boundary["chosen"] >= n:
        raise ValueError(f"{key}.chosen is {boundary['chosen']}, but must be below {n}")


def read(path: Path) -> list[Sample]:
    """The samples of a file, none if it does not exist. TgrError names a damaged line; a torn last
    one is left out."""
    return list({sample.key: sample for _, sample in _lines(path)}.values())


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds a JSON line to a file; a torn last one, of a run that was killed, gives way to it."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(record).encode() + b"\n")


def _lines(path: Path) -> Iterator[tuple[int, Sample]]:
    """Each sample with the offset of the byte after its line."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                sample = parse(line)
            except ValueError as error:
                raise TgrError(
                    f"{path} line {number} is damaged: {error}; delete the line, and the command "
                    "of the run makes its sample again"
                ) from None
            yield end, sample


class Store:
    """Appends samples to a file from any thread. Use it in a ``with`` block.

    `known` are the samples that are on the disk, without their boundaries, which take most of the
    memory. Lines that come together are synced together. One process at a time may have a file
    open: TgrError for the second. After an error nothing more is written.
    """

    def __init__(self, path: Path) -> None:
        self.known: dict[Key, Sample] = {}
        self._path = path
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two would make all twice
        except BlockingIOError:
            self._file.close()
            raise TgrError(f"{path} is being written by another process; wait for it") from None
        whole = 0
        for end, sample in _lines(path):
            self.known[sample.key] = _light(sample)
            whole = end
        self._file.truncate(whole)  # a torn last line
        self._queue: queue.Queue[Sample | threading.Event | None] = queue.Queue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, sample: Sample) -> None:
        """Puts a sample in line to be written; returns at once. Raises the error that kept an
        earlier one off the disk."""
        self._check()
        self._queue.put(sample)

    def flush(self) -> None:
        """Waits until all that was added is on the disk. Raises the error that kept it off."""
        done = threading.Event()
        self._queue.put(done)
        done.wait()
        self._check()

    def whole(self, keys: Set[Key]) -> Iterator[Sample]:
        """Those of the known samples as they stand on the disk, with their boundaries; each once,
        whatever is added while they are read."""
        wanted = {key: self.known[key] for key in keys}
        for _, sample in _lines(self._path):
            if wanted.get(sample.key) == _light(sample):
                del wanted[sample.key]
                yield sample

    def _check(self) -> None:
        if isinstance(self._error, OSError):
            raise TgrError(
                f"{self._path} cannot be written ({self._error.strerror}); make room, then the "
                "same command goes on from there"
            ) from self._error
        if self._error:
            raise self._error

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        try:
            self._file.close()
        except OSError as failure:
            self._error = self._error or failure
        if error is None:
            self._check()

    def _write(self) -> None:
        closing = False
        while not closing:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            fresh = [item for item in batch if isinstance(item, Sample)]
            try:
                if fresh and not self._error:
                    self._file.write(b"".join(map(_line, fresh)))
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self.known |= {sample.key: _light(sample) for sample in fresh}
            except Exception as error:  # whoever waits has to hear of it
                self._error = error
            for item in batch:
                if isinstance(item, threading.Event):
                    item.set()
            closing = None in batch


def _light(sample: Sample) -> Sample:
    return dataclasses.replace(sample, boundaries=[])


def _line(sample: Sample) -> bytes:
    return json.dumps(to_json_value(sample), ensure_ascii=False, allow_nan=False).encode() + b"\n"
