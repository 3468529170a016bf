"""The numbers of one system on one task, and the comparison of several.

In: samples by problem. Out: one number for each problem, or means over samples. It does not know
tables, plots or files.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.run_folder import EvaluationRun
from tgr_local.lab.eval.samples import Sample

Floats = NDArray[np.float64]


_NO_COUNTS = {"zeta", "divergence", "excess"}  # among the figures of a step


@dataclass(frozen=True)
class Budget:
    """Forward tokens for each problem, the same for every system."""

    of: dict[str, float]

    @property
    def mean(self) -> float:
        return _mean(list(self.of.values()))


@dataclass(frozen=True, eq=False)
class Outcome:
    """One system on one task."""

    label: str
    """Name in tables."""
    task: str
    system: dict[str, Any]
    """Entry of the system in the manifest."""
    metric: str
    """Metric of the task: "pass", "score" or "diversity"."""
    ks: tuple[int, ...]
    """The k of the tables."""
    n_expected: int
    """Problems of the run."""
    n_planned: int
    """Samples that the run is expected to make; with a budget, as known so far."""
    by_problem: dict[str, list[Sample]]
    """Every sample, by problem, in the order of seed and index."""
    phases: list[dict[str, Any]]
    run: EvaluationRun
    """The first of its runs."""
    shared: frozenset[str] = frozenset()
    """The compared problems; empty where this outcome is left out of the comparison."""

    @functools.cached_property
    def graded(self) -> dict[str, list[Sample]]:
        """The compared problems, each with its graded samples."""
        return {p: some for p, some in self._graded.items() if p in self.shared}

    @functools.cached_property
    def _graded(self) -> dict[str, list[Sample]]:
        return {
            problem: [sample for sample in some if sample.correct is not None]
            for problem, some in self.by_problem.items()
        }

    def with_graded(self, n: int) -> frozenset[str]:
        """The problems with at least n graded samples."""
        return frozenset(problem for problem, some in self._graded.items() if len(some) >= n)

    @property
    def ungraded(self) -> list[Sample]:
        return [sample for sample in self.all_samples if sample.correct is None]

    @functools.cached_property
    def all_samples(self) -> list[Sample]:
        return [sample for drawn in self.by_problem.values() for sample in drawn]

    @property
    def finishes(self) -> Counter[str]:
        return Counter(sample.finish for sample in self.all_samples)

    # --- one number for each compared problem, in the order of `graded` ---

    def passed(self, k: int) -> Floats:
        """Pass@k, unbiased."""
        pairs = ((len(d), sum(bool(s.correct) for s in d)) for d in self.graded.values())
        return np.array([metrics.pass_at_k(n, c, k) for n, c in pairs])

    @functools.cached_property
    def costs(self) -> Floats:
        """Mean forward tokens of a graded sample."""
        return self._each(lambda drawn: _mean([sample.cost for sample in drawn]))

    def passed_first(self, k: int) -> Floats:
        """Whether one of the first k samples of a seed is correct, averaged over the seeds with k
        graded samples; NaN where there is no such seed."""

        def over_seeds(drawn: list[Sample]) -> float:
            by_seed: dict[int, list[Sample]] = defaultdict(list)
            for sample in drawn:
                by_seed[sample.seed].append(sample)
            some = [own for own in by_seed.values() if len(own) >= k]
            return _mean([metrics.any_of_first(_correct(own), k) for own in some])

        return self._each(over_seeds)

    @functools.cached_property
    def aucs(self) -> Floats:
        """AUC of each problem; its mean is the AUC of the mean curve. Empty with a single k."""
        if len(self.ks) < 2:
            return np.array([])
        curves = zip(*(self.passed(k) for k in self.ks), strict=True)
        return np.array([metrics.auc(self.ks, curve) for curve in curves])

    @functools.cached_property
    def seeds(self) -> dict[int, list[list[Sample]]]:
        """Graded samples of every compared problem, for each seed that has some of each."""
        problems = self.graded.values()
        by_seed = {
            seed: [[s for s in drawn if s.seed == seed] for drawn in problems]
            for seed in sorted({s.seed for drawn in problems for s in drawn})
        }
        return {seed: drawn for seed, drawn in by_seed.items() if all(drawn)}

    def auc_of_seed(self, seed: int, ks: Sequence[int]) -> float:
        """AUC over these k of one seed's samples alone, a mean over problems; 0 to 100."""
        curve = [
            np.mean(
                [metrics.pass_at_k(len(d), int(_correct(d).sum()), k) for d in self.seeds[seed]]
            )
            for k in ks
        ]
        return metrics.auc(ks, np.array(curve))

    def majority(self, k: int) -> Floats:
        rng = np.random.default_rng(k)
        return self._each(
            lambda drawn: metrics.majority_at_k([s.answer for s in drawn], _correct(drawn), k, rng)
        )

    def best_of(self, k: int) -> Floats:
        """The chance that the likeliest of k samples is correct."""
        return self._each(
            lambda drawn: metrics.best_of_k(
                _correct(drawn).astype(float), _array(drawn, _likelihood), k
            )
        )

    def top_score(self, k: int) -> Floats:
        """The expected best score of k samples."""

        def best(drawn: list[Sample]) -> float:
            scores = _array(drawn, lambda sample: sample.score)
            return metrics.best_of_k(scores, scores, k)

        return self._each(best)

    def at_budgets(self, budgets: Sequence[Budget]) -> tuple[Floats, Floats]:
        """Pass@budget and the number of samples that each budget buys: [budgets, problems] each."""
        rng = np.random.default_rng(0)
        spendings = [
            metrics.at_budgets(
                _correct(drawn),
                _array(drawn, lambda s: s.cost),
                [b.of[problem] for b in budgets],
                rng,
            )
            for problem, drawn in self.graded.items()
        ]
        table = np.array([[(s.passed, s.fitting) for s in row] for row in spendings])
        shaped = table.reshape(len(spendings), len(budgets), 2)
        return shaped[:, :, 0].T, shaped[:, :, 1].T

    @functools.cached_property
    def texts(self) -> dict[str, list[str]]:
        """Texts of the replies, by problem."""
        samples = {p: [s for s in d if s.finish != "error"] for p, d in self.by_problem.items()}
        return {problem: [s.text for s in drawn] for problem, drawn in samples.items()}

    def self_bleu(self, n: int, problems: Sequence[str]) -> Floats:
        """Self-BLEU of the first n texts of each of these problems."""
        return np.array([metrics.self_bleu(self.texts[problem][:n]) for problem in problems])

    def against_auc(self, name: str) -> Floats:
        """[n, 2] the mean of a measure over boundaries, and the AUC, of each compared problem that
        has both."""
        points = []
        for drawn, auc in zip(self.graded.values(), self.aucs, strict=False):
            values = [b[name] for sample in drawn for b in sample.boundaries if name in b]
            if values:
                points.append((np.mean(values), auc))
        return np.array(points, float).reshape(-1, 2)

    # --- cost ---

    @functools.cached_property
    def counts(self) -> dict[str, float]:
        """Mean forward tokens of a sample by kind."""
        return _mean_by_key([sample.counts for sample in self._made])

    @functools.cached_property
    def parts(self) -> dict[str, float]:
        """Mean seconds of a sample by part."""
        return _mean_by_key([sample.parts for sample in self._made])

    @property
    def cost(self) -> float:
        """Mean forward tokens of a sample."""
        return sum(self.counts.values())

    @property
    def reply_tokens(self) -> float:
        """Mean reply tokens of a sample."""
        return _mean([sample.tokens for sample in self._made])

    @property
    def seconds(self) -> float:
        """Mean seconds of a sample, in its batch."""
        return _mean([sample.seconds for sample in self._made])

    @property
    def rate(self) -> float:
        """Forward tokens per second of the whole batch; NaN if no phase is complete."""
        seconds = sum(phase["seconds"] for phase in self.phases)
        return sum(phase["positions"] for phase in self.phases) / seconds if seconds else math.nan

    @property
    def was_alone(self) -> bool:
        """Whether samples were made one at a time, so that their seconds are not shared."""
        return bool(self.phases) and all(phase.get("parallel") == 1 for phase in self.phases)

    # --- boundaries ---

    @functools.cached_property
    def boundaries(self) -> list[dict[str, Any]]:
        return [boundary for sample in self.all_samples for boundary in sample.boundaries]

    def measure(self, name: str) -> Floats:
        """The values of a measure at every boundary that has it."""
        return np.array([b[name] for b in self.boundaries if name in b], float)

    def several(self, name: str) -> list[Floats]:
        """The values of a measure that boundaries have several of: those of each problem with
        some."""
        lists = [
            [value for sample in drawn for b in sample.boundaries for value in b.get(name, ())]
            for drawn in self.by_problem.values()
        ]
        return [np.array(values, float) for values in lists if values]

    def method_count(self, name: str) -> Floats:
        """A count that the method itself reports, summed over the steps of each sample that has it;
        the mean where the number is no count."""
        steps = ([b.get("figures", {}) for b in s.boundaries] for s in self.all_samples)
        counts = ([figures[name] for figures in some if name in figures] for some in steps)
        combine = np.mean if name in _NO_COUNTS else sum
        return np.array([combine(values) for values in counts if values], float)

    @property
    def _made(self) -> list[Sample]:
        return [sample for sample in self.all_samples if sample.finish != "error"]

    def _each(self, measure: Callable[[list[Sample]], float]) -> Floats:
        return np.array([measure(drawn) for drawn in self.graded.values()])


def reference(
    outcomes: Sequence[Outcome], value: Callable[[Outcome], float] | None = None
) -> Outcome:
    """The outcome that the others are compared with: the one named in the manifest, else the best
    `base` by `value` (default: `headline`), else the first."""
    value = value or headline
    wanted = [o for o in outcomes if o.system["name"] == o.run.manifest.reference]
    plain = [o for o in outcomes if o.system["method"] == "base" and o.graded]
    return (wanted or sorted(plain, key=value, reverse=True) or list(outcomes))[0]


def headline(outcome: Outcome) -> float:
    """The number that ranks systems: mean AUC, or Pass@k with a single k."""
    values = outcome.aucs if len(outcome.ks) > 1 else outcome.passed(max(outcome.ks))
    return float(values.mean()) if len(values) else -math.inf


def common_budgets(outcomes: Sequence[Outcome], n: int = 5) -> list[Budget]:
    """The largest budget that the samples of every system fill, and its halves down to one sample
    of the cheapest system, smallest first. For each problem it is the run's budget, or the cost of
    all samples of the cheapest system."""
    spent: dict[str, float] = {}
    for outcome in outcomes:
        fixed = outcome.run.manifest.budget or math.inf
        for problem, drawn in outcome.graded.items():
            most = min(fixed, sum(sample.cost for sample in drawn))
            spent[problem] = min(spent.get(problem, math.inf), most)
    halves = [
        Budget({problem: most / 2**i for problem, most in spent.items()})
        for i in reversed(range(n))
    ]
    least = min(outcome.cost for outcome in outcomes)
    return [budget for budget in halves if budget.mean >= least] or halves[-1:]


def common_seeds(outcomes: Sequence[Outcome]) -> tuple[list[int], list[int]]:
    """The seeds with samples of every compared problem in every outcome, and the k that each of
    them has samples for."""
    if not outcomes:
        return [], []
    seeds = sorted(set(outcomes[0].seeds).intersection(*(o.seeds for o in outcomes)))
    sizes = [len(drawn) for o in outcomes for seed in seeds for drawn in o.seeds[seed]]
    return seeds, [k for k in outcomes[0].ks if k <= min(sizes, default=0)]


def equal_texts(outcomes: Sequence[Outcome], most: int = 32) -> tuple[int, list[str]]:
    """Returns n and the problems with n texts in every system, for comparing the texts of a
    problem: n is the largest number that half of the problems have, at most `most`; 0 without
    one."""
    problems = outcomes[0].texts
    fewest = {p: min(len(outcome.texts.get(p, ())) for outcome in outcomes) for p in problems}
    several = sorted((n for n in fewest.values() if n > 1), reverse=True)
    if not several:
        return 0, []
    n = min(most, several[(len(several) - 1) // 2])
    return n, [problem for problem, count in fewest.items() if count >= n]


def _correct(drawn: Sequence[Sample]) -> NDArray[np.bool_]:
    return np.array([bool(sample.correct) for sample in drawn])


def _array(drawn: Sequence[Sample], value: Callable[[Sample], float]) -> Floats:
    return np.array([value(sample) for sample in drawn], float)


def _likelihood(sample: Sample) -> float:
    return -math.inf if sample.logprob is None else sample.logprob


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _mean_by_key(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: _mean([row.get(key, 0) for row in rows]) for key in keys}
