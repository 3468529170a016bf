"""From samples to numbers: what each system did on each task.

`outcomes` sorts the samples of one or more run folders; an `Outcome` answers every question that a
table or a figure asks. Samples of all seeds are pooled. A sample without a grade is left out, and a
problem with fewer graded samples than the largest k in any system is left out of all tables, so
that their numbers are about the same problems.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.errors import TgrError
from tgr_local.eval import manifest, metrics, samples, shapes
from tgr_local.eval.manifest import Manifest
from tgr_local.eval.metrics import Interval
from tgr_local.eval.samples import Draw, Key, Sample
from tgr_local.eval.shapes import Count

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    folder: Path
    manifest: Manifest
    samples: list[Sample]
    phases: list[dict[str, Any]]
    """What each phase took; see `runs.run_phase`."""
    problems: dict[tuple[str, str], str]
    """(task, problem) -> the prompt."""


@dataclass(frozen=True)
class Budget:
    """Forward tokens that may be spent on each problem, the same for every system."""

    of: dict[str, float]

    @property
    def mean(self) -> float:
        return _mean(list(self.of.values()))


@dataclass(frozen=True, eq=False)
class Outcome:
    """One system on one task."""

    label: str
    """Its name in tables."""
    task: str
    system: dict[str, Any]
    """As the manifest has it."""
    metric: str
    """Of the task: "pass", "score" or "diversity"."""
    ks: tuple[int, ...]
    """That the tables are made for."""
    n_expected: int
    """Problems that the run has."""
    n_planned: int
    """Samples that the run was to make, as far as known by now."""
    by_problem: dict[str, list[Sample]]
    """Every sample, by problem, in the order of seed and index."""
    phases: list[dict[str, Any]]
    run: Run
    """The first of the runs that it is of."""
    shared: frozenset[str] = frozenset()
    """The problems that are compared; empty where the outcome is not."""

    @functools.cached_property
    def graded(self) -> dict[str, list[Sample]]:
        """The problems that count, each with its graded samples."""
        return {p: some for p, some in self._graded.items() if p in self.shared}

    @functools.cached_property
    def _graded(self) -> dict[str, list[Sample]]:
        return {
            problem: [sample for sample in drawn if sample.correct is not None]
            for problem, drawn in self.by_problem.items()
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

    # --- one number for each problem that counts, in the order of `graded` ---

    def passed(self, k: int) -> Floats:
        """Pass@k, unbiased."""
        pairs = ((len(d), sum(bool(s.correct) for s in d)) for d in self.graded.values())
        return np.array([metrics.pass_at_k(n, c, k) for n, c in pairs])

    def passed_first(self, k: int) -> Floats:
        """Whether one of the first k of a seed is right, averaged over the seeds that have k graded
        samples; NaN where none has."""

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

    def majority(self, k: int) -> Floats:
        rng = np.random.default_rng(k)
        return self._each(
            lambda drawn: metrics.majority_at_k([s.answer for s in drawn], _correct(drawn), k, rng)
        )

    def best_of(self, k: int) -> Floats:
        """Whether the likeliest of k is right."""
        return self._each(
            lambda drawn: metrics.best_of_k(
                _correct(drawn).astype(float), _array(drawn, _likelihood), k
            )
        )

    def top_score(self, k: int) -> Floats:
        """The expected best score of k."""

        def best(drawn: list[Sample]) -> float:
            scores = _array(drawn, lambda sample: sample.score)
            return metrics.best_of_k(scores, scores, k)

        return self._each(best)

    def at_budgets(self, budgets: Sequence[Budget]) -> tuple[Floats, Floats]:
        """Pass@budget and how many samples it buys: [budgets, problems] each."""
        rng = np.random.default_rng(0)
        found = [
            metrics.at_budgets(
                _correct(drawn), _array(drawn, _cost), [b.of[problem] for b in budgets], rng
            )
            for problem, drawn in self.graded.items()
        ]
        table = np.array([[(s.passed, s.fitting) for s in row] for row in found])
        shaped = table.reshape(len(found), len(budgets), 2)
        return shaped[:, :, 0].T, shaped[:, :, 1].T

    @functools.cached_property
    def texts(self) -> dict[str, list[str]]:
        """What was written, by problem."""
        made = {p: [s for s in d if s.finish != "error"] for p, d in self.by_problem.items()}
        return {problem: [s.text for s in drawn] for problem, drawn in made.items()}

    def self_bleu(self, n: int, problems: Sequence[str]) -> Floats:
        """Self-BLEU of the first n texts of each of these problems."""
        return np.array([metrics.self_bleu(self.texts[problem][:n]) for problem in problems])

    def against_auc(self, name: str) -> Floats:
        """[n, 2] the mean of a measure of the boundaries, and the AUC, of each problem that counts
        and has both."""
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
    def kept(self) -> float:
        """Mean tokens kept of a sample."""
        return _mean([sample.tokens for sample in self._made])

    @property
    def seconds(self) -> float:
        """Mean seconds of a sample, in its batch."""
        return _mean([sample.seconds for sample in self._made])

    @property
    def rate(self) -> float:
        """Forward tokens per second of the whole batch; NaN if no phase came to its end."""
        seconds = sum(phase["seconds"] for phase in self.phases)
        return sum(phase["positions"] for phase in self.phases) / seconds if seconds else math.nan

    @property
    def was_alone(self) -> bool:
        """Whether each sample had the engine for itself, so that its seconds are its own."""
        return bool(self.phases) and all(phase.get("parallel") == 1 for phase in self.phases)

    # --- boundaries ---

    @functools.cached_property
    def boundaries(self) -> list[dict[str, Any]]:
        return [boundary for sample in self.all_samples for boundary in sample.boundaries]

    def measure(self, name: str) -> Floats:
        """A measure of every boundary that has it."""
        return np.array([b[name] for b in self.boundaries if name in b], float)

    def figure(self, name: str) -> Floats:
        """A method's own count, summed over the steps of each sample that has it."""
        steps = ([b.get("figures", {}) for b in s.boundaries] for s in self.all_samples)
        found = ([figures[name] for figures in some if name in figures] for some in steps)
        return np.array([sum(values) for values in found if values], float)

    @property
    def _made(self) -> list[Sample]:
        return [sample for sample in self.all_samples if sample.finish != "error"]

    def _each(self, measure: Callable[[list[Sample]], float]) -> Floats:
        return np.array([measure(drawn) for drawn in self.graded.values()])


def difference(a: Outcome, b: Outcome, values: Callable[[Outcome], Floats]) -> Interval:
    """The paired difference a − b over the problems that both have."""
    both = [problem for problem in a.graded if problem in b.graded]
    sides = []
    for outcome in (a, b):
        known = dict(zip(outcome.graded, values(outcome), strict=True))
        sides.append([known[problem] for problem in both])
    return metrics.paired(*sides)


def read(folder: Path) -> Run:
    """Reads a run folder, finished or not. TgrError for a folder that is none."""
    found = manifest.read(folder)
    return Run(
        folder,
        found,
        list(samples.read(folder / "samples.jsonl")),
        _lines(folder / "phases.jsonl", _PHASE),
        {
            (line["task"], line["id"]): line["prompt"]
            for line in _lines(folder / "problems.jsonl", _PROBLEM)
        },
    )


def outcomes(runs: Sequence[Run], ks: Sequence[int] = ()) -> dict[str, list[Outcome]]:
    """The outcomes by task, in the order of the manifests, for these k or those of the runs.

    A system that several runs have with the same model and options is one outcome with the samples
    of all. Where different ones share a name, the label says the model, or else the folder.
    TgrError for runs in which one problem has different prompts, which cannot be compared.
    """
    _check_prompts(runs)
    parts: dict[tuple[str, str, str], list[Run]] = {}
    drawn: dict[tuple[str, str, str], dict[Key, Sample]] = defaultdict(dict)
    for run in runs:
        keys = {
            (task["name"], system["name"]): (task["name"], system["name"], _identity(run, system))
            for task in run.manifest.tasks
            for system in run.manifest.systems
        }
        for key in keys.values():
            parts.setdefault(key, []).append(run)
        for sample in run.samples:
            if place := keys.get((sample.task, sample.system)):
                drawn[place].setdefault(sample.key, sample)
    found: dict[str, list[Outcome]] = defaultdict(list)
    for key, some in parts.items():
        alike = [others[0] for other, others in parts.items() if other[:2] == key[:2]]
        outcome = _outcome(key[0], key[1], some, drawn[key], _tail(some[0], alike))
        found[key[0]].append(dataclasses.replace(outcome, ks=tuple(ks) or outcome.ks))
    return {task: _aligned(some) for task, some in found.items()}


def _check_prompts(runs: Sequence[Run]) -> None:
    prompts: dict[tuple[str, str], str] = {}
    for run in runs:
        for place, text in run.problems.items():
            if prompts.setdefault(place, text) != text:
                raise TgrError(
                    f"{run.folder} has another prompt for {' '.join(place)} than a run before it; "
                    "report on runs of the same data"
                )


def _identity(run: Run, system: dict[str, Any]) -> str:
    """What two runs must share for their samples of a system to be samples of one thing."""
    about = run.manifest
    facts = [
        about.model["sha256"], manifest.anywhere(about.engine), manifest.anywhere(about.versions),
        about.raw, about.grading, system,
    ]  # fmt: skip
    return json.dumps(facts, sort_keys=True)


def _tail(run: Run, alike: Sequence[Run]) -> str:
    """What tells the systems of one name apart; empty where there is one such system."""
    if len(alike) == 1:
        return ""
    tails: list[Callable[[Run], str]] = [
        lambda run: str(run.manifest.model["name"]),
        lambda run: run.folder.name,
    ]
    for tail in tails:
        if len({tail(other) for other in alike}) == len(alike):
            return f" ({tail(run)})"
    return f" ({run.folder})"


def _outcome(
    task: str, name: str, runs: Sequence[Run], drawn: dict[Key, Sample], tail: str
) -> Outcome:
    about = runs[0].manifest
    by_problem: dict[str, list[Sample]] = {}
    for sample in sorted(drawn.values(), key=lambda s: (s.problem, s.seed, s.index)):
        by_problem.setdefault(sample.problem, []).append(sample)
    problems = {p for run in runs for of, p in run.problems if of == task}
    return Outcome(
        label=name + tail,
        task=task,
        system=next(system for system in about.systems if system["name"] == name),
        metric=next(entry["metric"] for entry in about.tasks if entry["name"] == task),
        ks=tuple(max((run.manifest.k for run in runs), key=max)),
        n_expected=len(problems),
        n_planned=_planned(task, runs, by_problem),
        by_problem=by_problem,
        phases=[p for r in runs for p in r.phases if (p["task"], p["system"]) == (task, name)],
        run=runs[0],
    )


def _planned(task: str, runs: Sequence[Run], by_problem: dict[str, list[Sample]]) -> int:
    """How many samples the runs were to make, as far as known by now."""
    targets: dict[tuple[str, int], int] = {}
    for run in runs:
        draw = Draw(max(run.manifest.k), tuple(run.manifest.seeds), run.manifest.budget)
        for problem in (p for of, p in run.problems if of == task):
            for seed in draw.seeds:
                known = {s.index: s for s in by_problem.get(problem, ()) if s.seed == seed}
                n = max(draw.target(known.get), targets.get((problem, seed), 0))
                targets[problem, seed] = n
    return sum(targets.values())


def _aligned(found: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes at the k, and over the problems, where they can be compared.

    The k are those that all were asked for, up to the largest that loses no more than half of the
    problems that the smallest has; the problems are those that have so many graded samples in every
    system. A system with less than half of the problems of the fullest is left out, as one that was
    interrupted at its beginning.
    """
    common = set(found[0].ks).intersection(*(outcome.ks for outcome in found))
    ks = sorted(common) or [1]  # any run has Pass@1
    if not any(outcome.with_graded(ks[0]) for outcome in found):
        ks = metrics.doublings(1, ks[0])  # interrupted before the first problem was done
    counts = [len(outcome.with_graded(ks[0])) for outcome in found]
    compared = [o for o, n in zip(found, counts, strict=True) if 2 * n >= max(counts) > 0]
    shared = {k: _in_all(compared, k) for k in ks}
    most = max(k for k in ks if 2 * len(shared[k]) >= len(shared[ks[0]]))
    return [
        dataclasses.replace(
            outcome,
            ks=tuple(k for k in ks if k <= most),
            shared=shared[most] if outcome in compared else frozenset(),
        )
        for outcome in found
    ]


def _in_all(found: Sequence[Outcome], n: int) -> frozenset[str]:
    """The problems with n graded samples in every one of these outcomes."""
    problems = [outcome.with_graded(n) for outcome in found]
    return frozenset.intersection(*problems) if problems else frozenset()


def reference(found: Sequence[Outcome], value: Callable[[Outcome], float] | None = None) -> Outcome:
    """The one that the others are compared with: that which the manifest names, else the best
    `base` by `value`, by default its headline, else the first."""
    value = value or headline
    wanted = [o for o in found if o.system["name"] == o.run.manifest.reference]
    plain = [o for o in found if o.system["method"] == "base" and o.graded]
    return (wanted or sorted(plain, key=value, reverse=True) or list(found))[0]


def headline(outcome: Outcome) -> float:
    """The number that systems are ranked by."""
    values = outcome.aucs if len(outcome.ks) > 1 else outcome.passed(max(outcome.ks))
    return float(values.mean()) if len(values) else -math.inf


def common_budgets(found: Sequence[Outcome], n: int = 5) -> list[Budget]:
    """The largest budget that every system's samples fill, and its halves down to one sample of the
    cheapest system, smallest first. It is that of the run, or what all samples of the cheapest
    system took on each problem."""
    spent: dict[str, float] = {}
    for outcome in found:
        fixed = outcome.run.manifest.budget or math.inf
        for problem, drawn in outcome.graded.items():
            all_of_it = min(fixed, sum(sample.cost for sample in drawn))
            spent[problem] = min(spent.get(problem, math.inf), all_of_it)
    halves = [
        Budget({problem: all_of_it / 2**i for problem, all_of_it in spent.items()})
        for i in reversed(range(n))
    ]
    least = min(outcome.cost for outcome in found)
    return [budget for budget in halves if budget.mean >= least] or halves[-1:]


def equal_texts(found: Sequence[Outcome], most: int = 32) -> tuple[int, list[str]]:
    """How many texts of a problem are compared with each other in every system, and the problems
    that have so many: as many as half of the problems have, `most` at most; 0 for none."""
    problems = found[0].texts
    fewest = {p: min(len(outcome.texts.get(p, ())) for outcome in found) for p in problems}
    several = sorted((n for n in fewest.values() if n > 1), reverse=True)
    if not several:
        return 0, []
    n = min(most, several[(len(several) - 1) // 2])
    return n, [problem for problem, count in fewest.items() if count >= n]


def _correct(drawn: Sequence[Sample]) -> NDArray[np.bool_]:
    return np.array([bool(sample.correct) for sample in drawn])


def _array(drawn: Sequence[Sample], value: Callable[[Sample], float]) -> Floats:
    return np.array([value(sample) for sample in drawn], float)


def _cost(sample: Sample) -> float:
    return sample.cost


def _likelihood(sample: Sample) -> float:
    return -math.inf if sample.logprob is None else sample.logprob


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _mean_by_key(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: _mean([row.get(key, 0) for row in rows]) for key in keys}


_PHASE = {
    "task": str, "system": str, "samples": Count, "counted": Count, "positions": Count,
    "seconds": Annotated[float, 0], "parallel?": Count,
}  # fmt: skip
_PROBLEM = {"task": str, "id": str, "prompt": str}


def _lines(path: Path, shape: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON lines of a file, none if it does not exist; a torn last one is left out."""
    found: list[dict[str, Any]] = []
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        try:
            found.append(shapes.loads(line))
            shapes.check(shape, found[-1])
        except ValueError as error:
            raise TgrError(
                f"{path} line {number} is damaged: {error}; restore it, or delete the line"
            ) from None
    return found
