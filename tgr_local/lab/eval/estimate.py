"""The forward tokens that a run still takes: at most, from the limits of its systems before it
starts; and about as many as its samples so far let expect.

In: the missing samples of each phase with the most that they can cost. Out: numbers and one line.
It does not know engines or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tgr_local.lab.eval.samples import Sample

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
