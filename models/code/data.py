"""Training samples of the code model: tokenized conversations with a weight for each token.

In: a `random.Random`. Out: a `Sample`. What a sample is: a repair (the assistant's message with a
file and a failing test, and its answer in one of three formats), a second round (an answer that
failed, the new output, and the right answer), a text with a hole, a plain file, or a drill that
teaches copying. The answer counts fully in the loss, the prompt a little.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from models.code import answers
from models.data import Sample, turn
from models.vocab import Vocabulary
from tgr_local.lab.eval.bugs import checks, defects
from tgr_local.lab.eval.bugs.output import Test
from tgr_local.lab.eval.bugs.problem import Bug, bug, is_long, output, task, user_message

MERGES_FILE = Path(__file__).with_name("merges.txt")
N_TOKENS = 2048
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    "<|unused_0|>", "<|unused_1|>",
)  # fmt: skip
MIX = {"repair": 0.74, "second": 0.09, "hole": 0.08, "file": 0.03, "drill": 0.06}
"""Share of the samples by kind."""
FORMATS = {"function": 0.72, "replace": 0.16, "file": 0.12}
PROMPT_WEIGHT = 0.1
"""How much the tokens of a prompt count in the loss."""
MAX_TOKENS = 480
DRILL_TOKENS, DRILL_WEIGHT = 112, 0.9
N_CHECKS = 5
TWO_DEFECTS = 0.06
"""Share of the functions with two defects."""

Piece = tuple[str, float]
"""A text and the weight of its tokens."""


def repair(rng: random.Random) -> list[Piece]:
    """A conversation of one round."""
    problem = _problem(rng)
    asked = _user(problem.path, problem.file, task(rng, problem), output(rng, problem))
    return [
        (turn("user", asked) + "<|im_start|>assistant\n", PROMPT_WEIGHT),
        *_answer(rng, problem),
    ]


def second(rng: random.Random) -> list[Piece]:
    """A conversation of two rounds: the first answer changed something else, or nothing."""
    problem = _problem(rng)
    wrong = _wrong_try(rng, problem)
    if wrong is None:
        return repair(rng)
    text, function, tests = wrong
    tried = Bug(**{**problem.__dict__, "visible": tests})
    asked = _user(problem.path, problem.file, task(rng, problem), output(rng, problem))
    again = (
        f"With these edits the tests still fail:\n```\n{output(rng, tried, text)}```\n\n"
        "The files are again as I showed them first. Write all edits anew, corrected.\n"
    )
    before = (
        turn("user", asked)
        + turn("assistant", answers.function(problem, function))
        + turn("user", again)
        + "<|im_start|>assistant\n"
    )
    return [(before, PROMPT_WEIGHT), *_answer(rng, problem)]


def _problem(rng: random.Random) -> Bug:
    n_defects = 2 if rng.random() < TWO_DEFECTS else 1
    return bug(rng, "train", n_defects, N_CHECKS)


def _user(path: str, text: str, wish: str, printed: str) -> str:
    return user_message(path, text, wish, printed)


def _answer(rng: random.Random, problem: Bug) -> list[Piece]:
    form = rng.choices(list(FORMATS), list(FORMATS.values()))[0]
    made = {
        "function": answers.function, "replace": answers.replace, "file": answers.whole_file,
    }[form](problem)  # fmt: skip
    return [(made + "<|im_end|>", 1.0)]


def _wrong_try(rng: random.Random, problem: Bug) -> tuple[str, str, tuple[Test, ...]] | None:
    """A file that still fails after a try, the function of the try, the tests with its results."""
    found = defects.draw(rng, _dedented(problem.function), 1)
    if not found:
        return None
    indent = " " * (len(problem.function) - len(problem.function.lstrip()))
    lines = found[0].apply(_dedented(problem.function)).rstrip("\n").split("\n")
    function = "\n".join(indent + line if line else line for line in lines)
    text = problem.repaired.replace(problem.function, function)
    try:
        compile(text, "<generated>", "exec")
    except SyntaxError:
        return None
    tests = []
    for test in problem.visible:
        results = checks.run(text, list(test.checks))
        if results is None or any(map(is_long, results)):
            return None
        tests.append(Test(test.name, test.checks, tuple(results)))
    if all(test.failing is None for test in tests):
        return None
    return text, function, tuple(tests)


def _dedented(function: str) -> str:
    indent = len(function) - len(function.lstrip())
    return "\n".join(line[indent:] for line in function.split("\n"))


def hole(rng: random.Random) -> list[Piece]:
    """A correct file with a hole, in Qwen's form: the rest of a line, or some lines."""
    text = bug(rng, "train", 1, 3).repaired
    lines = text.split("\n")[:-1]
    places = [i for i, line in enumerate(lines) if line.startswith("    ")]
    at = rng.choice(places)
    start = sum(len(line) + 1 for line in lines[:at])
    line = lines[at]
    indent = len(line) - len(line.lstrip())
    start += rng.choice((indent, rng.randint(indent, len(line) - 1)))
    n = rng.choice((1, 1, 1, 2, 3))
    end = sum(len(line) + 1 for line in lines[: min(at + n, len(lines))]) - 1
    if rng.random() < 0.2:  # a hole within the line
        end = min(end, start + rng.randint(1, 12))
    before, middle, after = text[:start], text[start:end], text[end:]
    if rng.random() < 0.15:  # the cursor is at the end of the file
        middle, after = text[start:], ""
    prompt = f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    return [(prompt, PROMPT_WEIGHT), (middle + "<|endoftext|>", 1.0)]


def plain(rng: random.Random) -> list[Piece]:
    """A correct file."""
    return [(bug(rng, "train", 1, 3).repaired + "<|endoftext|>", 1.0)]


def drill(rng: random.Random, vocabulary: Vocabulary) -> Sample:
    """A random text again and again; each token after its first time is learnt.

    Small alphabets come first to a model: it learns which tokens are there, then which follows.
    """
    n = rng.randint(4, 40)
    every = range(256, len(vocabulary) - len(SPECIALS))
    letters = rng.sample(every, rng.choice((n, 2 * n, 64, len(every))))
    period = [rng.choice(letters) for _ in range(n)]
    ids = (period * (DRILL_TOKENS // n + 1))[:DRILL_TOKENS]
    weights = [0.0] * (n + 1) + [DRILL_WEIGHT] * (DRILL_TOKENS - n - 1)
    return Sample("drill", np.array(ids, np.int16), np.array(weights, np.float32))


def tokenized(vocabulary: Vocabulary, task_name: str, pieces: list[Piece]) -> Sample:
    """The sample of a text in pieces, each encoded alone: they meet at specials."""
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in pieces:
        part = vocabulary.encode(text)
        ids += part
        weights += [weight] * len(part)
    return Sample(task_name, np.array(ids, np.int16), np.array(weights, np.float32))


PIECES = {"repair": repair, "second": second, "hole": hole, "file": plain}


def stream(seed: int, part: int) -> Iterator[Sample]:
    """Endless samples; the same seed and part give the same ones."""
    rng = random.Random(f"train {seed} {part}")
    vocabulary = shared_vocabulary()
    while True:
        kind = rng.choices(list(MIX), list(MIX.values()))[0]
        if kind == "drill":
            made = drill(rng, vocabulary)
        else:
            made = tokenized(vocabulary, kind, PIECES[kind](rng))
        if len(made.ids) <= MAX_TOKENS:
            yield made


@lru_cache(maxsize=1)
def shared_vocabulary() -> Vocabulary:
    """The vocabulary of the code model, loaded once."""
    return Vocabulary.load(MERGES_FILE, SPECIALS)


def sample_texts(seed: int, n_samples: int) -> Iterator[str]:
    """Texts without specials, for learning the vocabulary."""
    rng = random.Random(f"merges {seed}")
    for _ in range(n_samples):
        problem = bug(rng, "train", 1, N_CHECKS)
        yield _user(problem.path, problem.file, task(rng, problem), output(rng, problem))
        for form in (answers.function, answers.replace):
            yield form(problem)
        yield "user\nassistant\n"
