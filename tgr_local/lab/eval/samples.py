"""Samples: how many a run makes and with which seeds; as JSON lines, one for each.

A file may end in an incomplete line, where a run was killed in the middle of a write; readers leave
it out, and `Store` cuts it off, so that its sample is made again. Any other line that is not
a sample is an error with its line number. A sample that was made or graded again has a second line:
the last one counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
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
from typing import Any

from tgr_local.console.dialog import print_note
from tgr_local.search.seeds import derived_seed
from tgr_local.system import files, json_checks
from tgr_local.system.errors import TgrError
from tgr_local.system.files import WITHOUT_LOCKS, naming
from tgr_local.system.json_checks import Count
from tgr_local.system.json_values import to_json_value

Key = tuple[str, str, str, int, int]
ENGINE = "the engine failed: "
"""Prefix of `Sample.detail` where the engine failed; another attempt may succeed."""


@dataclass(frozen=True)
class Sample:
    """One reply of one system to one problem, with its grade."""

    task: str
    problem: str
    system: str
    seed: int
    """One of the seeds of the run; the seed of the reply is derived from it."""
    index: int
    """Number of the sample within its problem and seed, from 0."""
    text: str
    thinking: str
    tokens: int
    """Tokens of the reply."""
    finish: str
    """Value of `Reply.finish`; "error" = there is no reply, for the reason in `detail`."""
    correct: bool | None
    """None: not graded; never counted as wrong."""
    score: float
    answer: str | None
    detail: str
    logprob: float | None
    """Mean log-probability of the reply's tokens, nats; None without tokens."""
    counts: dict[str, int]
    """Forward tokens by kind."""
    parts: dict[str, float]
    """Seconds by part."""
    seconds: float
    """Seconds from start to end, in a batch shared with other samples."""
    boundaries: list[dict[str, Any]] = field(default_factory=list)
    """The records of `boundaries.measured`; empty for a method without anchors."""

    @property
    def key(self) -> Key:
        return self.task, self.system, self.problem, self.seed, self.index

    @property
    def cost(self) -> int:
        """Forward tokens."""
        return sum(self.counts.values())

    @property
    def lacks_grade(self) -> bool:
        """Whether it has a reply but no grade, since a judge or a package is missing or the grader
        failed. It may be graded again."""
        return self.correct is None and self.finish != "error"

    @property
    def lacks_text(self) -> bool:
        """Whether the engine failed, so that it may be made again."""
        return self.finish == "error" and self.detail.startswith(ENGINE)


_TERMS = ("V", "P_bum", "P_uni", "S")
_BOUNDARY = {
    "chunk?": Count, "tokens?": Count, "chosen?": Count, "figures?": dict[str, float], "text?": str,
    "rollouts?": list[str], "pairwise?": list[float], "to_chain?": list[float],
    **{f"{name}?": list[float] for name in _TERMS},
}  # fmt: skip
_SAMPLE: dict[str, Any] = {
    **typing.get_type_hints(Sample),
    **dict.fromkeys(("seed", "index", "tokens"), Count),
    "counts": dict[str, Count],
    "boundaries?": [_BOUNDARY],
}
del _SAMPLE["boundaries"]


def parse(line: bytes) -> Sample:
    """The sample of a line. ValueError with the key and the value for an invalid line."""
    data = json_checks.loads(line)
    json_checks.check(_SAMPLE, data)
    if unknown := [key for key in data if key not in _FIELDS]:
        raise ValueError(f"it has the unknown key {unknown[0]!r:.60}")
    for i, boundary in enumerate(data.get("boundaries", ())):
        _check_boundary(boundary, f"boundaries[{i}]")
    return Sample(**data)


_FIELDS = {spec.name for spec in dataclasses.fields(Sample)}


def _check_boundary(boundary: dict[str, Any], key: str) -> None:
    """ValueError where a boundary lacks measures, or has them for only some of its candidates."""
    of_others = {name.removesuffix("?") for name in _BOUNDARY}
    measures = {name: value for name, value in boundary.items() if name not in of_others}
    json_checks.check(dict[str, float], measures, key)
    if not {*_TERMS, "chosen", "rollouts"} & boundary.keys():
        return
    needed = [*_TERMS, "chosen", *(["chunk", "text"] if "rollouts" in boundary else [])]
    json_checks.check(dict.fromkeys(needed, Any), boundary, key)
    lists = [name for name in (*_TERMS, "rollouts", "to_chain") if name in boundary]
    n = len(boundary["S"])
    if any(len(boundary[name]) != n for name in lists):
        raise ValueError(f"{key} has lists of different lengths in {', '.join(lists)}")
    if boundary["chosen"] >= n:
        raise ValueError(f"{key}.chosen is {boundary['chosen']}, but must be below {n}")


def read(path: Path) -> list[Sample]:
    """The samples of a file, none if it does not exist. An incomplete last line is left out;
    TgrError names any other invalid line."""
    return list({sample.key: sample for _, sample in read_lines(path)}.values())


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds a JSON line to a file; an incomplete last line, of a killed run, is removed first."""
    with naming(path), path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(record).encode() + b"\n")


def read_lines(path: Path) -> Iterator[tuple[int, Sample]]:
    """Each sample with the offset of the byte after its line. TgrError as `read`."""
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


# ---- their number and seeds ----


@dataclass(frozen=True)
class SamplePlan:
    """`n` samples for each problem and seed, and more until the samples of a problem cost `budget`
    forward tokens (0 = no more). Every seed contributes an equal share of the budget."""

    n: int
    seeds: tuple[int, ...]
    budget: int = 0

    def target(self, at: Callable[[int], Sample | None]) -> int:
        """Number of samples that a problem needs for one seed, given the samples so far; ``at(i)``
        is sample i.

        A budget is filled in waves. The mean cost of all samples before a wave determines its size,
        so the number depends on the samples only.
        """
        n, share = self.n, self.budget / len(self.seeds)
        while share:
            drawn = itertools.takewhile(lambda s: s is not None, map(at, range(n)))
            costs = [s.cost for s in drawn if s is not None and s.finish != "error"]
            if len(costs) < n or not sum(costs) or sum(costs) >= share:
                return n
            n += math.ceil((share - sum(costs)) * n / sum(costs))
        return n


def seed_of(seed: int, task: str, problem: str, index: int) -> int:
    """The seed of a sample, below 2^63; a function of these four values only."""
    name = hashlib.sha256(json.dumps([task, problem]).encode()).digest()
    return derived_seed(seed, int.from_bytes(name[:8], "big"), index) >> 1


class Store:
    """Appends samples to a file from any thread. Use it in a ``with`` block.

    `known` holds the samples on the disk, without their boundaries, which need most of the memory.
    Lines that arrive together are synced together. One process at a time may have a file open:
    TgrError for the second. After an error nothing more is written.
    """

    def __init__(self, path: Path) -> None:
        self.known: dict[Key, Sample] = {}
        self._path = path
        self._file = path.open("ab")
        try:
            # a second process would make every sample twice
            files.lock(self._file.fileno())
        except BlockingIOError:
            self._file.close()
            raise TgrError(f"{path} is being written by another process; wait for it") from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                self._file.close()
                raise
            print_note(
                f"warning: the file system of {path} has no locks; run this command once at a time"
            )
        n_bytes = 0
        for end, sample in read_lines(path):
            self.known[sample.key] = _light(sample)
            n_bytes = end
        if n_bytes < self._path.stat().st_size:
            self._file.truncate(n_bytes)  # an incomplete last line
        # of samples, of queues that get an answer (`flush`), and None at the end; Ctrl-C cannot
        # leave a SimpleQueue locked
        self._queue: queue.SimpleQueue[Sample | queue.SimpleQueue[None] | None]
        self._queue = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, sample: Sample) -> None:
        """Queues a sample for writing; returns at once. Raises the error of an earlier write."""
        self._check()
        self._queue.put(sample)

    def flush(self) -> None:
        """Waits until every added sample is on the disk. Raises the error of a failed write."""
        answer: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._queue.put(answer)
        answer.get()
        self._check()

    def whole(self, keys: Set[Key]) -> Iterator[Sample]:
        """These samples as they are on the disk, with their boundaries; each once, also while
        others are added."""
        wanted = {key: self.known[key] for key in keys}
        for _, sample in read_lines(self._path):
            if wanted.get(sample.key) == _light(sample):
                del wanted[sample.key]
                yield sample

    def _check(self) -> None:
        if isinstance(self._error, OSError):
            raise TgrError(
                f"{self._path} cannot be written ({self._error.strerror}); free space, then the "
                "same command resumes the run"
            ) from self._error
        if self._error:
            raise self._error

    def __enter__(self) -> Store:
        return self

    def __exit__(self, _: object, error: BaseException | None, *trace: object) -> None:
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
            new = [item for item in batch if isinstance(item, Sample)]
            try:
                if new and not self._error:
                    self._file.write(b"".join(map(_line, new)))
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self.known |= {sample.key: _light(sample) for sample in new}
            except Exception as error:  # `flush` and `add` raise it
                self._error = error
            for item in batch:
                if isinstance(item, queue.SimpleQueue):
                    item.put(None)
            closing = None in batch


def _light(sample: Sample) -> Sample:
    return dataclasses.replace(sample, boundaries=[])


def _line(sample: Sample) -> bytes:
    return json.dumps(to_json_value(sample), ensure_ascii=False, allow_nan=False).encode() + b"\n"
