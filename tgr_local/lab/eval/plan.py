"""How many samples of a problem an evaluation run makes, and with which seeds."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from tgr_local.lab.eval.samples import Sample
from tgr_local.search.seeds import derived_seed


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
            found = itertools.takewhile(lambda s: s is not None, map(at, range(n)))
            costs = [s.cost for s in found if s is not None and s.finish != "error"]
            if len(costs) < n or not sum(costs) or sum(costs) >= share:
                return n
            n += math.ceil((share - sum(costs)) * n / sum(costs))
        return n


def seed_of(seed: int, task: str, problem: str, index: int) -> int:
    """The seed of a sample, below 2^63; a function of these four values only."""
    name = hashlib.sha256(json.dumps([task, problem]).encode()).digest()
    return derived_seed(seed, int.from_bytes(name[:8], "big"), index) >> 1
