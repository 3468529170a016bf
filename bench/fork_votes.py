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
import ast
import doctest
import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle_statistics
from numpy.typing import NDArray

from tgr_local import EngineConfig, SearchConfig, load
from tgr_local.engine import Engine, Output, Sampling
from tgr_local.engine import Task as Run
from tgr_local.generation import query_tokens
from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.metrics import bootstrap_mean
from tgr_local.lab.eval.task import EvalTask, Problem
from tgr_local.lab.eval.tasks.code import CodeBenchmark, passes
from tgr_local.methods.vote import ahead, tally, votes_of
from tgr_local.system.answers import answer_key

TEMPERATURE, LIMIT, SEED, REPLAYS, BAR = 0.6, 512, 56, 200, 0.75
SEQUENCES = 72  # of one question
N_QUESTIONS = 3  # at a time
N_TOKENS, N_COMPLETIONS = 4, 16  # at a place of `oracle`
Floats = NDArray[np.float64]
Write = Callable[[Engine, Problem, int], list[dict[str, Any]]]
Job = tuple[int, int, int | None, list[str]]
"""A fork: its text, its place, the other token (None = none), its kinds."""


# ---- record ----


def record(options: argparse.Namespace) -> None:
    def texts(engine: Engine, problem: Problem, seed: int) -> list[dict[str, Any]]:
        stop = ("\n```",) if isinstance(tasks.get(options.task), CodeBenchmark) else ()
        return written(
            engine, problem, seed, options.samples, stop, with_forks=not options.without_forks
        )

    each(options, "texts", texts)


def each(options: argparse.Namespace, name: str, write: Write) -> None:
    """Appends a line of graded texts for each question that has none yet, three at a time."""
    task = tasks.get(options.task)
    problems = task.load(options.data, limit=options.n, seed=SEED)
    if isinstance(task, CodeBenchmark):
        problems = [problem for problem in problems if _examples(problem)]
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    known = {json.loads(line)["id"] for line in lines}
    left = iter([(i, p) for i, p in enumerate(problems) if p.id not in known])
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                pair = next(left, None)
            if pair is None:
                return
            texts = write(engine, pair[1], 1000 * pair[0])
            grades: dict[tuple[str, bool], dict[str, bool]] = {}
            for text in texts:
                key = text["text"], text["ended"]
                if key not in grades:
                    grades[key] = graded(task, pair[1], text)
                text |= grades[key]
            with lock, options.out.open("a") as file:
                print(json.dumps({"id": pair[1].id, name: texts}), file=file)

    n_ctx = N_QUESTIONS * SEQUENCES * (LIMIT + 16)
    config = EngineConfig(n_seq_max=N_QUESTIONS * SEQUENCES, n_ctx=n_ctx)
    with load(options.model, config) as engine:
        threads = [threading.Thread(target=work) for _ in range(N_QUESTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def graded(task: EvalTask, problem: Problem, text: dict[str, Any]) -> dict[str, bool]:
    """Whether a text is right and, for a function with examples, whether it passes these."""
    grade = {"right": bool(text["ended"] and task.grade(problem, text["text"]).correct)}
    examples = _examples(problem) if isinstance(task, CodeBenchmark) else ""
    if examples:
        code = task.code(problem, text["text"]) if text["ended"] else None
        grade["passes"] = bool(code and passes(code, examples, task.limits).correct)
    return grade


def _examples(problem: Problem) -> str:
    """A program that fails where an example of the docstring does; empty = it has none."""
    name = problem.reference["entry_point"]
    functions = ast.walk(ast.parse(f"{problem.reference['prompt']}\n    pass"))
    text = next(
        ast.get_docstring(node) or ""
        for node in functions if isinstance(node, ast.FunctionDef) and node.name == name
    )  # fmt: skip
    try:
        if not doctest.DocTestParser().get_examples(text):
            return ""
    except ValueError:
        return ""
    return (
        f"import doctest\ntext = {text!r}\n"
        "test = doctest.DocTestParser().get_doctest(text, globals(), 'f', None, 0)\n"
        "result = doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None)\n"
        "assert not result.failed\n"
    )


def written(
    engine: Engine,
    problem: Problem,
    seed: int,
    n_samples: int,
    stop: tuple[str, ...] = (),
    *,
    with_forks: bool = True,
) -> list[dict[str, Any]]:
    """The texts of a question: the likeliest one, the samples, the forks."""
    query = query_tokens(engine, problem.messages, SearchConfig(temperature=TEMPERATURE))
    sampling = Sampling(temperature=TEMPERATURE)
    with engine.session(len(query) + SEQUENCES * (LIMIT + 2), SEQUENCES) as session:
        root = session.sequence()
        session.run([Run(root, query[:-1])])
        cells = [root.fork() for _ in range(n_samples + 1)]
        outputs = session.run([
            Run(own, query[-1:], n_generate=LIMIT, n_top=2 if i < 2 else 0, seed=seed + i,
                stop=stop, sampling=Sampling(temperature=0) if i == 0 else sampling)
            for i, own in enumerate(cells)
        ])  # fmt: skip
        texts = [shown(engine, output) for output in outputs]
        jobs = forks(engine, outputs[0], outputs[1]) if with_forks else []
        runs = []
        for j, (i, at, token, _) in enumerate(jobs):
            own, tokens = cells[i].fork(), outputs[i].tokens.tolist()
            own.truncate(len(query) + at - (token is None))
            feed = tokens[at - 1] if token is None else token
            n = max(1, LIMIT - at - (token is not None))
            runs.append(
                Run(own, [feed], n_generate=n, seed=seed + 500 + j, sampling=sampling, stop=stop)
            )
        for (i, at, token, kinds), output in zip(
            jobs, session.run(runs) if runs else [], strict=True
        ):
            head, logprobs = outputs[i].tokens.tolist()[:at], outputs[i].logprobs.tolist()[:at]
            if token is not None:
                head, logprobs = [*head, token], [*logprobs, float(other(outputs[i], at)[1])]
            texts.append(
                shown(engine, output, head, logprobs) | {"root": i, "at": at, "kinds": kinds}
            )
    return texts


def shown(
    engine: Engine, output: Output, head: Sequence[int] = (), logprobs: Sequence[float] = ()
) -> dict[str, Any]:
    """A text as a record: whole, with the tokens that it cost."""
    text = engine.detokenize([*head, *output.tokens.tolist()]).decode("utf-8", "replace")
    every = [round(value, 3) for value in (*logprobs, *output.logprobs.tolist())]
    ended = output.finish == "stop"
    return {"text": text, "logprobs": every, "cost": len(output.tokens), "ended": ended}


def other(output: Output, at: int) -> tuple[int, float]:
    """The likeliest token of a place that was not taken, with its log-probability."""
    pairs = zip(output.top_ids[at], output.top_logprobs[at], strict=True)
    return next((int(a), float(b)) for a, b in pairs if a != output.tokens[at])


def forks(engine: Engine, greedy: Output, sample: Output) -> list[Job]:
    """The forks of a question."""
    n, ends = len(greedy.tokens), set(engine.end_tokens)

    def places(output: Output, end: int) -> list[int]:
        """Places before `end`, those with the likeliest other tokens first."""
        some = [at for at in range(1, end) if other(output, at)[0] not in ends]
        return sorted(some, key=lambda at: -other(output, at)[1])

    every = places(greedy, n)
    tokens = greedy.tokens.tolist()
    lines = [at for at in every if b"\n" in engine.detokenize(tokens[at - 1 : at])]
    kinds: dict[int, list[str]] = {}
    for kind, some in {
        "mass": every[:5], "early": [at for at in every if at < n / 3][:3], "line": lines[:1],
    }.items():  # fmt: skip
        for at in some:
            kinds.setdefault(at, []).append(kind)
    sampled = places(sample, len(sample.tokens) // 2)[:3]
    return [
        *((0, at, other(greedy, at)[0], own) for at, own in kinds.items()),
        *((0, max(1, n // 4), None, ["free"]) for _ in range(2)),
        *((1, at, other(sample, at)[0], ["sampled"]) for at in sampled),
    ]


# ---- oracle ----


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


def completed(engine: Engine, problem: Problem, seed: int) -> list[dict[str, Any]]:
    """Completions of the likeliest tokens at the place, in the first two thirds of the likeliest
    text, where the second one is likeliest. Those of one number have one seed."""
    query = query_tokens(engine, problem.messages, SearchConfig(temperature=TEMPERATURE))
    with engine.session(len(query) + SEQUENCES * (LIMIT + 2), SEQUENCES) as session:
        own, sampling = session.sequence(), Sampling(temperature=0)
        greedy = session.run([
            Run(own, query, n_generate=LIMIT, n_top=N_TOKENS, seed=seed, sampling=sampling)
        ])[0]  # fmt: skip
        n, ends = len(greedy.tokens), set(engine.end_tokens)
        some = [at for at in range(1, max(2, n * 2 // 3)) if other(greedy, at)[0] not in ends]
        at = max(some, key=lambda at: other(greedy, at)[1])
        runs, heads = [], []
        tops = zip(greedy.top_ids[at].tolist(), greedy.top_logprobs[at].tolist(), strict=True)
        for (token, logprob), j in itertools.product(tops, range(N_COMPLETIONS)):
            fork = own.fork()
            fork.truncate(len(query) + at)
            runs.append(Run(fork, [token], n_generate=LIMIT - at - 1, seed=seed + 1 + j,
                             sampling=Sampling(temperature=TEMPERATURE)))  # fmt: skip
            heads.append((token, logprob))
        head, logprobs = greedy.tokens.tolist()[:at], greedy.logprobs.tolist()[:at]
        return [
            shown(engine, output, [*head, token], [*logprobs, logprob]) | {"at": at}
            for output, (token, logprob) in zip(session.run(runs), heads, strict=True)
        ]


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
