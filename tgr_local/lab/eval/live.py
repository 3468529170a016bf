"""The progress of a run on stderr: on a terminal a bar with the remaining time, elsewhere a plain
line from time to time. Both have lines with an `Estimate` of the whole run: the most that it can
take before it starts, what is left after its first samples and before each phase.

It shows no score: samples are made side by side, and the short ones, which are right more often
than the others, are done first. So the share of right ones among those done so far would be biased.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tgr_local.lab.eval.making import Phase
from tgr_local.lab.eval.samples import Sample
from tgr_local.system.progress import LOG_INTERVAL
from tgr_local.system.sanitize import printable_line

FIRST = 16
"""Samples, at most, before the first estimate from samples."""
Place = tuple[str, str]  # task, system


@dataclass(frozen=True)
class MissingWork:
    """Work that a phase lacks before the run starts."""

    n_samples: int
    """Missing samples; with a budget at least that many."""
    most: int
    """Forward tokens that they take at most."""


class Estimate:
    """Remaining work of a run, from `work` and from the samples that were made since.

    The texts of all systems are taken to be as far from their limits as those of the samples so
    far. The first samples of a batch to be done are the short ones, so a first estimate may be low.
    """

    def __init__(self, work: Mapping[Place, MissingWork]) -> None:
        self._missing = dict(work)
        self.n_samples = sum(missing.n_samples for missing in work.values())
        self.n_phases = sum(missing.n_samples > 0 for missing in work.values())
        """Phases with missing samples."""
        self.n_done = 0
        """Samples that were made since the start."""
        self._spent = self._allowed = 0.0  # forward tokens of those: taken, and at most

    @property
    def most(self) -> int:
        """Forward tokens that the missing samples take at most."""
        return sum(missing.most for missing in self._missing.values())

    @property
    def expected(self) -> float:
        """Forward tokens that the missing samples are expected to take, at most `most`, as before
        the first sample."""
        # the first samples may have longer prompts than the average that `_allowed` counts
        return self.most * (min(1.0, self._spent / self._allowed) if self._allowed else 1.0)

    def add(self, sample: Sample) -> None:
        """Counts a new sample. A sample that could not be made says nothing about the cost of the
        others; one of a complete phase does not count."""
        place = sample.task, sample.system
        work = self._missing.get(place)
        if work is None or not work.n_samples:
            return
        share = work.most / work.n_samples
        self._missing[place] = MissingWork(work.n_samples - 1, round(work.most - share))
        self.n_done += 1
        if sample.finish != "error":
            self._spent += sample.cost
            self._allowed += share

    def announcement(self) -> str:
        """The line before the start; empty where nothing is missing."""
        if not self.n_samples:
            return ""
        phases = "1 phase" if self.n_phases == 1 else f"{self.n_phases} phases"
        samples = "1 sample" if self.n_samples == 1 else f"{self.n_samples:,} samples"
        return f"to do: {samples} in {phases}, at most {tokens(self.most)} forward tokens"

    def line(self, seconds: float) -> str:
        """States the remaining work, at the speed of the samples made in `seconds`; empty where
        nothing is left or no speed is known."""
        if not self._spent or seconds <= 0 or not self.most:
            return ""
        speed = self._spent / seconds
        return (
            f"left: about {tokens(self.expected)} forward tokens (at most {tokens(self.most)}); "
            f"{clock(self.expected / speed)} at the {speed:,.0f} tokens/s of the samples so far"
        )


def tokens(n: float) -> str:
    """A number of tokens with two digits: 950, 12 k, 3.2 M, 4.0 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= 0.9995 * size:
            return f"{n / size:.1f} {unit}" if n < 9.95 * size else f"{n / size:,.0f} {unit}"
    return f"{n:.0f}"


def clock(seconds: float) -> str:
    """A duration: 40 s, 12 min, 3 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"


class Live:
    """The progress of a run with `n_phases` phases to come; use it in a ``with`` block."""

    def __init__(self, n_phases: int, estimate: Estimate | None = None) -> None:
        self._estimate = estimate or Estimate({})
        self._start: float | None = None  # of the first sample, by time.monotonic
        self._is_first = True  # no estimate from samples was shown
        self._n_phases, self._phase = n_phases, 0
        self._title = ""
        self._lock = threading.Lock()
        self._done = self._total = self._failed = self._tokens = 0
        self._begun = self._shown = time.monotonic()
        self._n_before = 0
        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar, self._task = _bar()

    def __enter__(self) -> Live:
        if self._bar:
            self._bar.start()
        self._say(self._estimate.announcement())
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar:
            self._bar.stop()
        elif self._title:
            self._print()

    def phase(self, phase: Phase, samples: Sequence[Sample], n_total: int) -> None:
        """A phase begins, or needs more samples than known so far."""
        with self._lock:
            title = printable_line(f"{phase.task} {phase.system.name}")
            if title != self._title:
                if self._title and not self._bar:
                    self._print()
                if self._title:
                    self._show_estimate()
                self._title, self._phase = title, self._phase + 1
            self._done = self._failed = self._tokens = 0
            self._total = n_total
            for sample in samples:
                self._add(sample)
            self._begun, self._n_before, self._tokens = time.monotonic(), self._done, 0
            self._start = self._start or self._begun
            if self._bar:
                words = f"{self._title} ({self._phase} of {self._n_phases})"
                self._bar.reset(
                    self._task, total=n_total, completed=self._done, description=words, state=""
                )

    def sample(self, sample: Sample) -> None:
        with self._lock:
            self._add(sample)
            self._estimate.add(sample)
            if self._is_first and self._estimate.n_done >= FIRST:
                self._show_estimate()
            if self._bar:
                self._bar.update(self._task, completed=self._done, state=self._state())
            elif time.monotonic() - self._shown > LOG_INTERVAL:
                self._print()

    def _add(self, sample: Sample) -> None:
        self._done += 1
        self._failed += sample.finish == "error"
        self._tokens += sample.cost

    def _state(self) -> str:
        seconds = time.monotonic() - self._begun
        failed = f"{self._failed} could not be made, " if self._failed else ""
        return f"{failed}{self._tokens / seconds if seconds else 0:.0f} tokens/s"

    def _show_estimate(self) -> None:
        """Shows what is left of the run."""
        line = self._estimate.line(time.monotonic() - (self._start or time.monotonic()))
        self._is_first = self._is_first and not line
        self._say(line)

    def _say(self, line: str) -> None:
        if line and self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        elif line:
            print(line, file=sys.stderr, flush=True)

    def _print(self) -> None:
        self._shown = time.monotonic()
        n_made, seconds = self._done - self._n_before, self._shown - self._begun
        seconds_left = (self._total - self._done) * seconds / n_made if n_made else 0.0
        more = f", {clock(seconds_left)} left" if seconds_left >= 1 else ""
        place = f"{self._phase} of {self._n_phases}"
        print(
            f"{self._title} ({place}): {self._done}/{self._total} samples{more}, {self._state()}",
            file=sys.stderr,
            flush=True,
        )


def _bar() -> tuple[Any, Any]:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[state]}", markup=False),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    return bar, bar.add_task("", total=None, state="")
