"""Measures a GGUF file on fresh problems of every task and on the public puzzles, with tgr-local.

In: a GGUF file, and optionally the folder of public puzzles. Out: tables in Markdown: the share of
right answers with its 95% interval, the share that ended by itself with a box, the mean length;
Pass@k where coverage is asked for; ten questions with their answers; tokens per second. A puzzle
is right if the boxed expression uses each number exactly once and equals the target; other tasks
are right if the boxed number is the solution.
"""

from __future__ import annotations

import argparse
import ast
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models.arithmetic import Problem
from models.countdown import Numbers
from models.data import problem
from models.exclude import public_puzzles
from tgr_local import EngineConfig, SearchConfig, generate, load
from tgr_local.engine import Engine
from tgr_local.options.resolve import resolve

BOX = re.compile(r"\\boxed\{([^{}]*)\}")
FRESH = ("arithmetic2", "arithmetic3", "arithmetic4", "arithmetic5", "arithmetic6", "equation")
PUZZLES = ("countdown3", "countdown4")
HORIZONS = (6, 8)
"""Chunks in which the share of solved public puzzles is counted."""
SIDE_PROBLEMS = 200
"""Problems of a task answered greedily and with resets; plain sampling gets all."""
MARKOV_SAMPLES = 8
"""Answers to a problem by `markov`, for Pass@1."""
AT_ONCE = 64
"""Answers written together."""
CHAT = (
    "hello", "Who are you?", "What can you do?", "How do I load a bigger model?",
    "What is 12 + 7 * 3?",
    "Use 3, 7, 25 to make 46", "Make 24 from 4 7 8 8", "Solve 3x + 5 = 20",
    "What is the capital of France?",
    "Write a short story about a dragon.",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One question and the criterion of a correct answer."""

    text: str
    target: int
    numbers: Numbers | None
    """The numbers of a puzzle; None where the boxed text must be the target itself."""


def boxed(output: str) -> str | None:
    """The text in the last box of an output."""
    found = BOX.findall(output)
    return found[-1] if found else None


def evaluated(expression: str) -> tuple[float, Counter[int]] | None:
    """The value of an arithmetic expression and the numbers in it; None for another text."""
    try:
        return walk(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def walk(node: ast.expr) -> tuple[float, Counter[int]]:
    """The value and the numbers of one part of a parsed expression."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value, Counter([node.value])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result, numbers = walk(node.operand)
        return -result, numbers
    if not isinstance(node, ast.BinOp):
        raise ValueError("not an arithmetic expression")
    (a, left), (b, right) = walk(node.left), walk(node.right)
    results = {
        ast.Add: lambda: a + b,
        ast.Sub: lambda: a - b,
        ast.Mult: lambda: a * b,
        ast.Div: lambda: a / b,
    }
    if type(node.op) not in results:
        raise ValueError("not an arithmetic operator")
    return results[type(node.op)](), left + right


def is_right(question: Question, output: str) -> bool:
    """Whether the boxed answer of an output is right."""
    answer = boxed(output)
    found = evaluated(answer) if answer is not None else None
    if found is None or abs(found[0] - question.target) > 1e-6:
        return False
    return question.numbers is None or found[1] == Counter(question.numbers)


def fresh(seed: int, task: str, n: int) -> list[Question]:
    """Generated questions that the training seed never drew."""
    rng = np.random.default_rng([seed, 2])
    return [as_question(problem(rng, task)) for _ in range(n)]


def as_question(made: Problem) -> Question:
    """A generated problem as a question; its own solution defines the correct answer."""
    found = evaluated(boxed(made.answer) or "")
    assert found is not None
    if not made.task.startswith("countdown"):
        return Question(made.question, int(found[0]), None)
    numbers = tuple(found[1].elements())
    lines = "".join(text for text, _ in made.reasoning)
    # A search that gave up boxes a wrong try; the question has its target.
    target = int(found[0]) if "give up" not in lines else asked_target(made.question, numbers)
    return Question(made.question, target, numbers)


def asked_target(question: str, numbers: Numbers) -> int:
    """The one number of a puzzle's question that is not among its numbers."""
    said = Counter(int(n) for n in re.findall(r"\d+", question))
    left = list((said - Counter(numbers)).elements())
    return left[-1] if left else 24


def public(data: Path) -> dict[str, list[Question]]:
    """The public test puzzles as questions."""
    sets: dict[str, list[Question]] = {"public countdown": [], "public game24": []}
    for numbers, target in public_puzzles(data):
        name = "public game24" if len(numbers) == 4 else "public countdown"
        text = f"Using the numbers {list(numbers)}, create an equation that equals {target}."
        sets[name].append(Question(text, target, tuple(numbers)))
    return sets


@dataclass(frozen=True)
class Outcome:
    """The result of one sampled answer."""

    is_right: bool
    is_ended: bool
    """Ended by itself, with a box."""
    n_tokens: int


def outcomes(
    engine: Engine, questions: Sequence[Question], config: SearchConfig, method: str, n: int = 1
) -> list[list[Outcome]]:
    """n sampled answers to each question, [question][sample]; sample i has the seed + i."""

    def one(job: tuple[Question, int]) -> Outcome:
        question, seed = job
        reply = generate(engine, question.text, replace(config, seed=seed), method=method)
        ended = reply.finish == "stop" and boxed(reply.text) is not None
        return Outcome(is_right(question, reply.text), ended, reply.n_tokens)

    jobs = [
        (question, config.seed + 100_000 * i + j)
        for i, question in enumerate(questions)
        for j in range(n)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(one, jobs))
    return [found[i * n : (i + 1) * n] for i in range(len(questions))]


def wilson(n_right: int, n: int) -> tuple[float, float]:
    """95% interval of a share of independent answers, in percent."""
    z, share = 1.96, n_right / n
    middle, spread = (
        share + z * z / (2 * n),
        z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5,
    )
    return 100 * (middle - spread) / (1 + z * z / n), 100 * (middle + spread) / (1 + z * z / n)


def pass_at(k: int, rows: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """Unbiased Pass@k over questions with its 95% bootstrap interval over questions, percent."""
    each = np.array([1 - math.comb(len(r) - sum(r), k) / math.comb(len(r), k) for r in rows])
    drawn = np.random.default_rng(0).integers(len(each), size=(2000, len(each)))
    low, high = np.percentile(each[drawn].mean(1), [2.5, 97.5])
    return 100 * float(each.mean()), 100 * float(low), 100 * float(high)


def accuracy(engine: Engine, sets: dict[str, list[Question]], seed: int) -> Iterator[str]:
    """The table of single answers: greedy, sampled, and sampled with resets."""
    yield "| task | sampling | n | right, % (95%) | ended with a box, % | tokens |"
    yield "|---|---|---|---|---|---|"
    own = replace(resolve(engine.metadata).config, seed=seed)
    settings = (
        ("T = 0.6", "base", own, None),
        ("T = 0.6, reset", "markov", own, SIDE_PROBLEMS),
        ("greedy", "base", replace(own, temperature=0.0), SIDE_PROBLEMS),
    )
    for label, method, config, n_problems in settings:
        for name, questions in sets.items():
            found = [row[0] for row in outcomes(engine, questions[:n_problems], config, method)]
            n, n_right = len(found), sum(o.is_right for o in found)
            low, high = wilson(n_right, n)
            yield (
                f"| {name} | {label} | {n} | {100 * n_right / n:.1f} ({low:.1f}-{high:.1f}) "
                f"| {100 * sum(o.is_ended for o in found) / n:.1f} "
                f"| {sum(o.n_tokens for o in found) / n:.0f} |"
            )


def coverage(
    engine: Engine, name: str, questions: Sequence[Question], n: int, seed: int
) -> Iterator[str]:
    """Pass@k for k = 1, 2, 4 … n of `base`, and of `markov` up to `MARKOV_SAMPLES`."""
    config = replace(resolve(engine.metadata).config, seed=seed)
    ks = powers_of_two(n)
    yield f"\n{name}: {len(questions)} problems, {n} answers each, T = {config.temperature}, %\n"
    yield f"| method | ended | {' | '.join(f'@{k}' for k in ks)} | gain per doubling |"
    yield f"|---|---|{'---|' * (len(ks) + 1)}"
    for method, n_samples in (("base", n), ("markov", min(n, MARKOV_SAMPLES))):
        rows = outcomes(engine, questions, config, method, n_samples)
        ended = f"{100 * np.mean([o.is_ended for row in rows for o in row]):.1f}"
        yield coverage_row(method, ended, [[o.is_right for o in row] for row in rows], len(ks))
        for n_chunks in HORIZONS:
            limit = n_chunks * config.chunk_len
            within = [[o.is_right and o.n_tokens <= limit for o in row] for row in rows]
            yield coverage_row(f"{method}, within {limit} tokens", "", within, len(ks))


def coverage_row(label: str, ended: str, rows: list[list[bool]], n_columns: int) -> str:
    """One line of the table, with empty cells where there are too few answers."""
    passes = [pass_at(k, rows) for k in powers_of_two(len(rows[0]))]
    cells = [f"{p:.1f} ({low:.1f}-{high:.1f})" for p, low, high in passes]
    cells += [""] * (n_columns - len(cells))
    gain = (passes[-1][0] - passes[0][0]) / max(1, len(passes) - 1)
    return f"| {label} | {ended} | {' | '.join(cells)} | {gain:.1f} |"


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4 … up to `most`."""
    return [2**i for i in range(most.bit_length())]


def speed(engine: Engine, n: int, seconds: float = 5.0) -> float:
    """Generated tokens per second of n plain answers at a time."""
    config = replace(resolve(engine.metadata).config, max_tokens=256)
    start, n_tokens = time.monotonic(), 0
    with ThreadPoolExecutor(n) as pool:
        while time.monotonic() - start < seconds:
            jobs = [replace(config, seed=i) for i in range(2 * n)]
            replies = pool.map(lambda c: generate(engine, CHAT[5], c, method="base"), jobs)
            n_tokens += sum(reply.n_tokens for reply in replies)
    return n_tokens / (time.monotonic() - start)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="GGUF file")
    parser.add_argument("--n", type=int, default=500, help="fresh problems per task")
    parser.add_argument("--samples", type=int, default=64, help="answers to a problem for Pass@k")
    parser.add_argument("--problems", type=int, default=256, help="problems for Pass@k at most")
    parser.add_argument("--data", type=Path, help="folder with the public puzzles")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with load(options.file, EngineConfig(n_threads=options.threads)) as engine:
        print(f"{options.file}, sha256 {engine.model_hash}, seed {options.seed}\n")
        greedy = replace(resolve(engine.metadata).config, temperature=0.0)
        for question in CHAT:
            reply = generate(engine, question, greedy, method="base")
            print(f"> {question}\n<think>\n{reply.thinking}\n</think>\n\n{reply.text}\n")
        for n in (1, AT_ONCE):
            print(f"{n} at a time: {speed(engine, n):.0f} tokens/s")
        sets = {task: fresh(options.seed, task, options.n) for task in (*FRESH, *PUZZLES)}
        for row in accuracy(engine, sets, options.seed):
            print(row, flush=True)
        hard = {"arithmetic6": sets["arithmetic6"]}
        if options.data:
            hard |= public(options.data)
        for name, questions in hard.items():
            chosen = questions[: options.problems]
            for row in coverage(engine, name, chosen, options.samples, options.seed):
                print(row, flush=True)


if __name__ == "__main__":
    main()
