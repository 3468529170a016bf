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
from collections.abc import Sequence
from typing import Any

from tgr_local.lab.eval.estimate import FIRST, Estimate, clock
from tgr_local.lab.eval.making import Phase
from tgr_local.lab.eval.samples import Sample
from tgr_local.system.progress import LOG_INTERVAL
from tgr_local.system.sanitize import printable_line


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
