"""The texts that fork_votes.py records of a question: the likeliest one, samples, forks, and
completions of the likeliest tokens at one place.

In: a task and a model. Out: a file with a line of graded texts for each question.
"""

from __future__ import annotations

import argparse
import ast
import doctest
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tgr_local import EngineConfig, SearchConfig, load
from tgr_local.engine import Engine, Output, Sampling
from tgr_local.engine import Task as Run
from tgr_local.generation import query_tokens
from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.task import EvalTask, Problem
from tgr_local.lab.eval.tasks.code import CodeBenchmark, passes

TEMPERATURE, LIMIT, SEED = 0.6, 512, 56
SEQUENCES = 72  # of one question
N_QUESTIONS = 3  # at a time
N_TOKENS, N_COMPLETIONS = 4, 16  # at a place of `oracle`
Write = Callable[[Engine, Problem, int], list[dict[str, Any]]]
Job = tuple[int, int, int | None, list[str]]
"""A fork: its text, its place, the other token (None = none), its kinds."""


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
