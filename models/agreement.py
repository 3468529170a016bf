"""Compares an exported file with the PyTorch model that it was made from.

In: a checkpoint of `train.py` and its export. Out: the largest difference of the centred logits
over all positions and tokens of fresh transcripts (the engine gives log-probabilities, which are
logits up to a constant), and how many greedy continuations are equal. Cache in F32 and no flash
attention, so that what differs is the weights' type and the order of additions. Run as a module it
takes the texts of tgr-mini; `models.code.agreement` those of tgr-mini-code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from models.data import any_problem, sample, shared_vocabulary, turn
from models.model import Model, Shape
from tgr_local import EngineConfig, load
from tgr_local.engine import Engine, Sampling, Task

EXACT = EngineConfig(type_k="f32", type_v="f32", flash_attn="off")


def transcripts(seed: int, n: int) -> list[list[int]]:
    """Token ids of n fresh transcripts."""
    rng, vocabulary = np.random.default_rng([seed, 2]), shared_vocabulary()
    return [sample(rng, vocabulary, any_problem(rng)).ids.tolist() for _ in range(n)]


def questions(seed: int, n: int) -> list[list[int]]:
    """Token ids of n fresh questions, open for the answer."""
    rng, vocabulary = np.random.default_rng([seed, 3]), shared_vocabulary()
    made = [any_problem(rng).question for _ in range(n)]
    return [vocabulary.encode(turn("user", q) + "<|im_start|>assistant\n") for q in made]


def theirs(model: Model, ids: list[int]) -> np.ndarray:
    """Log-probabilities of PyTorch, [T, n_vocab]."""
    with torch.no_grad():
        return model(torch.tensor([ids]))[0].log_softmax(-1).numpy()


def ours(engine: Engine, ids: list[int]) -> np.ndarray:
    """Log-probabilities of the engine after each token, [T, n_vocab]."""
    rows = np.empty((len(ids), engine.n_vocab), np.float32)
    with engine.session(len(ids) + 8, 1) as session:
        sequence = session.sequence()
        for i, token in enumerate(ids):
            (out,) = session.run([Task(sequence, [token], n_generate=1, n_top=engine.n_vocab)])
            rows[i, out.top_ids[0]] = out.top_logprobs[0]
    return rows


def greedy(model: Model, query: list[int], end: int, n: int) -> list[int]:
    """PyTorch's likeliest continuation, at most n tokens, the end token included."""
    ids = list(query)
    while len(ids) < len(query) + n and (ids[-1] != end or len(ids) == len(query)):
        ids.append(int(theirs(model, ids)[-1].argmax()))
    return ids[len(query) :]


def greedy_of_engine(engine: Engine, query: list[int], n: int) -> list[int]:
    """The engine's likeliest continuation."""
    with engine.session(len(query) + n + 8, 1) as session:
        task = Task(session.sequence(), query, n, sampling=Sampling(temperature=0.0))
        return [int(t) for t in session.run([task])[0].tokens]


Texts = Callable[[int, int], list[list[int]]]
"""Token ids of texts from a seed and their number."""


def run(doc: str | None, transcripts: Texts, questions: Texts, end: int) -> None:
    """Read the command line and compare; `end` is the token that ends an answer."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path, help="its GGUF export")
    parser.add_argument("--n", type=int, default=100, help="greedy continuations")
    parser.add_argument("--seed", type=int, default=1234)
    options = parser.parse_args()
    state = torch.load(options.checkpoint, weights_only=True)
    model = Model(Shape(**state["shape"])).eval()
    model.load_state_dict(state["model"])
    with load(options.file, EXACT) as engine:
        worst = 0.0
        for ids in transcripts(options.seed, 10):
            a, b = theirs(model, ids), ours(engine, ids)
            a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
            worst = max(worst, float(np.abs(a - b).max()))
        n_equal = sum(
            greedy(model, query, end, 200) == greedy_of_engine(engine, query, 200)
            for query in questions(options.seed, options.n)
        )
    print(f"{options.file}: logits within {worst:.2g}, {n_equal} of {options.n} greedy texts equal")


def main() -> None:
    """Compare tgr-mini."""
    run(__doc__, transcripts, questions, shared_vocabulary().special("<|im_end|>"))


if __name__ == "__main__":
    main()
