"""Training samples: tokenized chat transcripts of the tasks, with a mask of the learnt tokens.

In: a `numpy.random.Generator`. Out: a `Sample` of token ids and a mask. Three shapes: the whole
answer; the answer with its head cut away at an arbitrary token (what a model sees whose context
was reset to the question and the newest text); and a conversation with an earlier turn. Only the
assistant's newest text is learnt, never the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from models import arithmetic, countdown, equations, talk
from models.arithmetic import Piece, Problem
from models.vocab import Vocabulary

MIX = {
    "arithmetic2": 0.16, "arithmetic3": 0.15, "arithmetic4": 0.15, "arithmetic5": 0.06,
    "arithmetic6": 0.05, "countdown3": 0.18, "countdown4": 0.06, "equation": 0.09, "talk": 0.10,
}  # fmt: skip
"""Share of the samples by task."""
CUT_RATE = 0.3
"""Share of the longer answers whose head is cut away."""
UNLEARNT_AFTER_CUT = 12
"""Tokens after a cut that are context only."""
MIN_AFTER_CUT = 24
"""Tokens that a cut leaves at least."""
DRILL_RATE = 0.15
"""Share of the samples that are bare calculations; they teach the tables fastest."""
DRILL_LINES = 12
TURN_RATE = 0.08
SYSTEM_RATE = 0.05
NO_THINK_RATE = 0.08
MAX_TOKENS = 512
SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful assistant",
    "You are a careful mathematician.",
    "Answer the question. Put the final answer in \\boxed{}.", "Be brief.", "Think step by step.",
)  # fmt: skip
SUFFIX_RATE = 0.06
SUFFIXES = (
    " Put the final answer in \\boxed{}.",
    " Please reason step by step, and put your final answer within \\boxed{}.",
    " Think step by step.", " Give the answer in \\boxed{}.",
    "\nPut your final answer within \\boxed{}.", " please", " thanks",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One tokenized transcript. `ids` and `learnt` have the same length, (T,)."""

    task: str
    ids: np.ndarray
    """int16; token ids."""
    learnt: np.ndarray
    """bool, or float: how much the prediction of this token counts in the loss."""


def problem(rng: np.random.Generator, task: str) -> Problem:
    """A problem of one task."""
    if task.startswith("arithmetic"):
        return arithmetic.problem(rng, int(task[-1]))
    if task.startswith("countdown"):
        return countdown.problem(rng, int(task[-1]))
    return equations.problem(rng) if task == "equation" else talk.problem(rng)


def any_problem(rng: np.random.Generator) -> Problem:
    """A problem of a task drawn from the mix."""
    return problem(rng, str(rng.choice(list(MIX), p=list(MIX.values()))))


def turn(role: str, content: str) -> str:
    """One message in the chat format."""
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def prompt(rng: np.random.Generator, question: str) -> str:
    """The text before the answer, sometimes with a system line, an earlier turn or a request."""
    head = ""
    if rng.random() < SYSTEM_RATE:
        head += turn("system", SYSTEMS[int(rng.integers(len(SYSTEMS)))])
    if rng.random() < TURN_RATE:
        earlier = any_problem(rng)
        head += turn("user", earlier.question) + turn("assistant", earlier.answer)
    if rng.random() < SUFFIX_RATE:
        question += SUFFIXES[int(rng.integers(len(SUFFIXES)))]
    return head + turn("user", question) + "<|im_start|>assistant\n"


def body(rng: np.random.Generator, goal: Problem) -> tuple[str, list[Piece]]:
    """The addition of this answer to the prompt, and the answer in pieces with its end token."""
    end = (goal.answer + "<|im_end|>", True)
    if rng.random() >= NO_THINK_RATE:
        return "", [("<think>\n", True), *goal.reasoning, ("</think>\n\n", True), end]
    shown = [] if goal.task == "talk" else [*goal.reasoning, ("\n", True)]
    return "<think>\n\n</think>\n\n", [*shown, end]


def tokenized(vocabulary: Vocabulary, pieces: list[Piece]) -> tuple[list[int], list[bool]]:
    """Ids and mask of text pieces, encoded as their concatenation."""
    ids: list[int] = []
    learnt: list[bool] = []
    # The mask changes only at digits, which no merge crosses.
    for learn, run in groupby(pieces, key=lambda piece: piece[1]):
        part = vocabulary.encode("".join(text for text, _ in run))
        ids += part
        learnt += [learn] * len(part)
    return ids, learnt


def cut(
    rng: np.random.Generator, ids: list[int], learnt: list[bool]
) -> tuple[list[int], list[bool]]:
    """The answer without its head."""
    start = int(rng.integers(4, len(ids) - MIN_AFTER_CUT + 1))
    kept = learnt[start:]
    return ids[start:], [False] * UNLEARNT_AFTER_CUT + kept[UNLEARNT_AFTER_CUT:]


def sample(rng: np.random.Generator, vocabulary: Vocabulary, goal: Problem) -> Sample:
    """One transcript of a problem."""
    before = prompt(rng, goal.question)
    opening, pieces = body(rng, goal)
    ids, learnt = tokenized(vocabulary, pieces)
    if not opening and len(ids) > MIN_AFTER_CUT + 10 and rng.random() < CUT_RATE:
        ids, learnt = cut(rng, ids, learnt)
        opening = "<think>\n" if rng.random() < 0.5 else ""
    head = vocabulary.encode(before + opening)
    mask = [False] * len(head) + learnt
    return Sample(goal.task, np.array(head + ids, np.int16), np.array(mask, bool))


def drill(rng: np.random.Generator, vocabulary: Vocabulary) -> Sample:
    """Calculations without a question; only their results are learnt."""
    ids, learnt = tokenized(vocabulary, [("<think>\n", False), *arithmetic.drill(rng, DRILL_LINES)])
    return Sample("drill", np.array(ids, np.int16), np.array(learnt, bool))


def stream(seed: int, part: int) -> Iterator[Sample]:
    """Endless samples; the same seed and part give the same ones."""
    rng = np.random.default_rng([seed, part])
    vocabulary = shared_vocabulary()
    while True:
        if rng.random() < DRILL_RATE:
            made = drill(rng, vocabulary)
        else:
            made = sample(rng, vocabulary, any_problem(rng))
        if len(made.ids) <= MAX_TOKENS:
            yield made


@lru_cache(maxsize=1)
def shared_vocabulary() -> Vocabulary:
    """The vocabulary of the shipped model, loaded once."""
    return Vocabulary.load()


def sample_texts(seed: int, n_samples: int) -> Iterator[str]:
    """Plain transcripts without specials, for learning the vocabulary."""
    rng = np.random.default_rng([seed, 1])
    for _ in range(n_samples):
        goal = any_problem(rng)
        yield from ("user\n", goal.question, "assistant\n", "\n\n", goal.answer)
        yield from ("".join(text for text, _ in goal.reasoning), "system\n")
