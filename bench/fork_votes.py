#!/usr/bin/env python
"""Votes of texts that begin where another text hesitated, against votes of samples.

    python bench/fork_votes.py record TASK OUT.jsonl [--model MODEL] [--data FOLDER] [--n 100]
    python bench/fork_votes.py replay OUT.jsonl
    python bench/fork_votes.py oracle TASK OUT.jsonl [--model MODEL] [--data FOLDER] [--n 100]

`record` writes of each question the likeliest text, samples at T = 0.6, and forks: a text up
to a place, there its likeliest other token, and from there on a sample. The places are those with
the likeliest other tokens: of the whole likeliest text (`mass`), of its first third (`early`), of
the beginnings of its lines (`line`), of the first half of the first sample (`sampled`); `free` are
samples that follow the likeliest text for a quarter, with no other token. One line of OUT is one
question. The same command goes on where it was interrupted. Of a task with programs it takes the
functions whose docstrings have examples, and notes which texts pass these; a text ends with its
code block.

`replay` draws 200 times from the recorded texts of each question, by each rule, with its stops and
tokens. It prints shares of right answers, and their differences to votes of samples at equal
tokens, with and without `auto`'s weights and stops. Of programs it takes the first text that
passes the examples. Intervals are 95%, by bootstrap over questions.

`oracle` completes the four likeliest tokens of the place that hesitates most, 16 times each. It
prints the share of the variance of success that the token explains, as oracle.py for anchors.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle_statistics
from fork_record import N_COMPLETIONS, N_TOKENS, completed, each, written
from numpy.typing import NDArray

from tgr_local.engine import Engine
from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.metrics import bootstrap_mean
from tgr_local.lab.eval.task import Problem
from tgr_local.lab.eval.tasks.code import CodeBenchmark
from tgr_local.methods.vote import ahead, tally, votes_of
from tgr_local.system.answers import answer_key

REPLAYS, BAR = 200, 0.75
Floats = NDArray[np.float64]


def record(options: argparse.Namespace) -> None:
    def texts(engine: Engine, problem: Problem, seed: int) -> list[dict[str, Any]]:
        stop = ("\n```",) if isinstance(tasks.get(options.task), CodeBenchmark) else ()
        return written(
            engine, problem, seed, options.samples, stop, with_forks=not options.without_forks
        )

    each(options, "texts", texts)


def oracle(options: argparse.Namespace) -> None:
    each(options, "completions", completed)
    records = [json.loads(line)["completions"] for line in options.out.read_text().splitlines()]
    for k in (2, N_TOKENS):
        parts, gains = [], []
        for record in records:
            texts = record[: k * N_COMPLETIONS]
            x = np.array([text["right"] for text in texts], float).reshape(k, N_COMPLETIONS)
            starts = [text["logprobs"][text["at"] :] for text in texts]
            scores = [np.reshape([np.mean(s[:n]) for s in starts], x.shape) for n in (1, 17, 65)]
            parts.append(oracle_statistics.variances(x, shared=True))
            best = oracle_statistics.best_of_half(x, np.random.default_rng(0))
            gains.append([best, *(oracle_statistics.gain_of_choice(score, x) for score in scores)])
        share = oracle_statistics.bootstrap(np.array(parts), oracle_statistics.share)
        explained = f"{100 * share.mean:.1f}% [{100 * share.low:.1f}, {100 * share.high:.1f}]"
        print(f"{len(parts)} places, {k} tokens: the token explains {explained} of success")
        names = ("by success", "by its likelihood", "with 16 tokens more", "with 64 tokens more")
        for name, gain in zip(names, np.array(gains).T, strict=True):
            print(f"the token chosen {name}, minus any: {percent(gain, '+')} points")


# ---- replay ----


@dataclass(frozen=True, eq=False)
class Text:
    """A recorded text."""

    key: str | None
    """Its answer; None where it has none, or did not come to its end."""
    right: bool
    likelihood: float
    cost: int
    """Tokens that were written for it, without those that it shares."""
    passes: bool = False
    """Whether it passes the examples of its question."""


@dataclass(frozen=True)
class Question:
    texts: list[Text]
    """The likeliest one, then the samples."""
    forks: dict[str, list[Text]]
    """Of each kind, those with the likeliest other tokens first."""
    logprobs: list[list[float]]
    """Of the samples."""


Rule = Callable[[Question, np.random.Generator], tuple[bool, int]]
"""Whether the answer is right, and its forward tokens."""


def question(line: str) -> Question:
    texts: list[Text] = []
    kinds: dict[str, list[Text]] = {}
    records = json.loads(line)["texts"]
    for record in records:
        key = answer_key(record["text"]) if record["ended"] else None
        likelihood = float(np.mean(record["logprobs"]))
        passed = record.get("passes", False)
        text = Text(key, record["right"], likelihood, record["cost"], passed)
        for kind in record.get("kinds", ()):
            kinds.setdefault(kind, []).append(text)
        if "kinds" not in record:
            texts.append(text)
    return Question(texts, kinds, [record["logprobs"] for record in records[1 : len(texts)]])


def elected(texts: Sequence[Text], weight: str = "count") -> bool:
    """Whether the vote of these texts is right: the likeliest text of the leading answer."""
    voters = [text for text in texts if text.key is not None]
    if not voters:
        return False
    leader = next(iter(tally([t.key for t in voters], _votes(voters, weight))))
    return max((t for t in voters if t.key == leader), key=lambda t: t.likelihood).right


def stopped(texts: Sequence[Text], bar: float = BAR) -> tuple[bool, int]:
    """A vote with `auto`'s weights and stops: one text, another, then two at a time."""
    voters: list[Text] = []
    cost = begun = 0
    while begun < len(texts):
        wave = sorted(texts[begun : begun + (1 if begun < 2 else 2)], key=lambda text: text.cost)
        begun, written = begun + len(wave), 0
        for i, text in enumerate(wave):  # side by side, the shortest ends first
            cost += (text.cost - written) * (len(wave) - i)
            written = text.cost
            if text.key is not None:
                voters.append(text)
                sums = [*tally([t.key for t in voters], _votes(voters, "likelihood")).values(), 0.0]
                if len(voters) > 1 and ahead(sums[0], sums[1]) >= bar:
                    return elected(voters, "likelihood"), cost
    return elected(voters, "likelihood"), cost


def _votes(texts: Sequence[Text], weight: str) -> Floats:
    return votes_of([text.likelihood for text in texts], weight)


def samples(q: Question, rng: np.random.Generator) -> list[Text]:
    """The samples in a random order."""
    return [q.texts[i] for i in 1 + rng.permutation(len(q.texts) - 1)]


def voted(first: str, k: int, more: str = "samples", weight: str = "count") -> Rule:
    """The vote of a first text (`sample`, `greedy`), and of others up to k, or with `auto` as many
    as its stops allow: samples, or forks of a kind."""

    def rule(q: Question, rng: np.random.Generator) -> tuple[bool, int]:
        drawn = samples(q, rng)
        rest = drawn if more == "samples" else q.forks.get(more, [])
        if first == "greedy":
            rest = [q.texts[0], *rest]
        elif more != "samples":  # they are forks of the first sample
            rest = [q.texts[1], *rest]
        texts = rest[:k]
        if weight == "auto":
            return stopped(texts)
        return elected(texts, weight), sum(text.cost for text in texts)

    return rule


def checked(k: int, order: Callable[[Question, np.random.Generator], list[Text]]) -> Rule:
    """The first of k texts that passes the examples, one after the other; else the first of all."""

    def rule(q: Question, rng: np.random.Generator) -> tuple[bool, int]:
        cost = 0
        texts = order(q, rng)[:k]
        for text in texts:
            cost += text.cost
            if text.passes:
                return text.right, cost
        return texts[0].right, cost

    return rule


def begun(k: int, n: int) -> Rule:
    """The likeliest of k beginnings of n tokens is written on."""

    def rule(q: Question, rng: np.random.Generator) -> tuple[bool, int]:
        some = rng.permutation(len(q.logprobs))[:k]
        best = max(some, key=lambda i: float(np.mean(q.logprobs[i][:n])))
        beginnings = sum(min(n, len(q.logprobs[i])) for i in some if i != best)
        return q.texts[1 + best].right, beginnings + q.texts[1 + best].cost

    return rule


@dataclass(frozen=True)
class Curve:
    """Rules of one kind: of each, by question, the share of right answers and the tokens."""

    points: list[tuple[Floats, Floats]]

    def at(self, cost: float) -> Floats:
        """[questions] the share at a mean cost: of two rules, drawn by lot, that cost as much."""
        costs = [float(c.mean()) for _, c in self.points]
        j = int(np.clip(np.searchsorted(costs, cost), 1, len(costs) - 1))
        part = float(np.clip((cost - costs[j - 1]) / (costs[j] - costs[j - 1]), 0, 1))
        share: Floats = (1 - part) * self.points[j - 1][0] + part * self.points[j][0]
        return share


def replayed(rule: Rule, questions: Sequence[Question]) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    results = [[rule(q, rng) for _ in range(REPLAYS)] for q in questions]
    mean = np.mean(np.array(results, float), axis=1)
    return mean[:, 0], mean[:, 1]


def rules(n: int, kinds: Collection[str]) -> Iterator[tuple[str, Rule]]:
    """The rules beside the votes of up to n samples, with forks of these kinds."""
    for k in (1, 2, 4, n):
        yield f"greedy, {k - 1} samples", voted("greedy", k)
        if k > 1:
            yield f"greedy, {k - 1} samples, auto", voted("greedy", k, weight="auto")
    for bar in (0.7, 0.85):
        yield f"auto, its stop at {bar:.0%}", lambda q, rng, bar=bar: stopped(samples(q, rng), bar)
    for kind, most in (("mass", 5), ("early", 3), ("line", 1), ("free", 2)):
        if kind not in kinds:
            continue
        for k in range(1, most + 1):
            yield f"greedy, {k} {kind}", voted("greedy", k + 1, kind)
        for weight in ("likelihood", "auto"):
            yield f"greedy, {most} {kind}, {weight}", voted("greedy", most + 1, kind, weight)
    for k in (1, 2, 3) if "sampled" in kinds else ():
        yield f"a sample, {k} sampled", voted("sample", k + 1, "sampled")
    for k, length in itertools.product((2, 4, 8), (32, 64, 128)):
        yield f"likeliest of {k} beginnings of {length} tokens", begun(k, length)


def by_examples(questions: Sequence[Question]) -> None:
    """Prints a table of rules that stop at the first text that passes the examples."""
    orders: dict[str, Callable[[Question, np.random.Generator], list[Text]]] = {
        "samples": samples,
        "greedy, then samples": lambda q, rng: [q.texts[0], *samples(q, rng)],
        "greedy, then forks of it": lambda q, _: [q.texts[0], *q.forks.get("mass", [])],
        "greedy, a fork, a sample, and so on": lambda q, rng: [
            q.texts[0],
            *itertools.chain(*zip(q.forks.get("mass", []), samples(q, rng), strict=False)),
        ],
    }
    points = {
        (name, k): replayed(checked(k, order), questions)
        for name, order in orders.items()
        for k in (1, 2, 4, 6, 9, 16)
    }
    plain = Curve([points["samples", k] for k in (1, 2, 4, 6, 9, 16)])
    print(f"{len(questions)} questions with examples\n")
    print(
        "| texts until one passes | at most | right, % | tokens | minus samples, as many tokens |"
    )
    print("|---|---|---|---|---|")
    for (name, k), (right, cost) in points.items():
        less = percent(right - plain.at(cost.mean()), "+")
        print(f"| {name} | {k} | {percent(right)} | {cost.mean():,.0f} | {less} |")


def replay(options: argparse.Namespace) -> None:
    questions = [question(line) for line in options.out.read_text().splitlines()]
    if any(text.passes for q in questions for text in q.texts):
        by_examples(questions)
        return
    n = min(len(q.texts) for q in questions) - 1
    counts = [k for k in (1, 2, 3, 4, 5, 6, 8, 12, 16) if k <= n]
    every = {f"majority of {k}": voted("sample", k) for k in counts}
    autos = {f"auto, at most {k}": voted("sample", k, weight="auto") for k in counts}
    points = {name: replayed(rule, questions) for name, rule in (every | autos).items()}
    plain = Curve([points[name] for name in every])
    auto = Curve([points[name] for name in autos])
    forked = sorted({kind for q in questions for kind in q.forks})
    for name, rule in rules(n, forked):
        points[name] = replayed(rule, questions)
    single = points["majority of 1"][0]
    print(f"{len(questions)} questions\n")
    print("| one fork | right, % | minus a sample | has its text's answer, % | tokens |")
    print("|---|---|---|---|---|")
    for kind in forked:
        some = [i for i, q in enumerate(questions) if kind in q.forks]
        right, same, cost = np.array([alone(questions[i], kind) for i in some]).T
        less = percent(right - single[some], "+")
        cells = percent(right), less, percent(same), f"{cost.mean():,.0f}"
        print(f"| {kind} | {' | '.join(cells)} |")
    print(f"\n| rule | right, % | minus a majority of {n} | tokens | minus a majority of as many |"
          " minus `auto` of as many |\n|---|---|---|---|---|---|")  # fmt: skip
    for name, (right, cost) in points.items():
        others = (plain.points[-1][0], plain.at(cost.mean()), auto.at(cost.mean()))
        most, as_many, as_auto = (percent(right - other, "+") for other in others)
        cells = percent(right), most, f"{cost.mean():,.0f}", as_many, as_auto
        print(f"| {name} | {' | '.join(cells)} |")


def alone(q: Question, kind: str) -> tuple[float, float, float]:
    """Of the forks of a kind the share of right ones, the share with the answer of the text that
    they fork, and the mean tokens."""
    root = q.texts[kind == "sampled"]
    values = [(t.right, t.key is not None and t.key == root.key, t.cost) for t in q.forks[kind]]
    right, same, cost = np.mean(np.array(values, float), axis=0)
    return float(right), float(same), float(cost)


def percent(values: Floats, sign: str = "") -> str:
    mean, low, high = 100 * bootstrap_mean(values)
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for work in (record, oracle, replay):
        command = commands.add_parser(work.__name__)
        if work is not replay:
            command.add_argument("task")
            command.add_argument("--model", type=Path, help="by default the embedded one")
            command.add_argument("--data", type=Path, help="the folder of the task's file")
            command.add_argument("--n", type=int, default=100, help="questions")
        if work is record:
            command.add_argument("--samples", type=int, default=8)
            command.add_argument("--without-forks", action="store_true")
        command.add_argument("out", type=Path)
        command.set_defaults(work=work)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
