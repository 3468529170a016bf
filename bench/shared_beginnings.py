#!/usr/bin/env python
"""The tokens that samples of one question would save if equal beginnings were written once.

    python bench/shared_beginnings.py MODEL TASK [--data FOLDER] [--n 96] [--tokens 300] [--seed 42]

A text gives the distribution of every token. A second sample may draw from these, one after the
other, until it departs: it is an independent sample, and costs the tokens after its departure. One
sample x of each question at T = 0.6, cut at --tokens, estimates what k samples save. With P(t) the
probability of its first t tokens, the distinct beginnings of t tokens among k samples are
E[(1 − (1 − P(t))^k) / P(t)]; without sharing there are k. The probabilities are those among the 20
likeliest tokens. Prints tokens with 95% bootstrap intervals over the questions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tgr_local import EngineConfig, SearchConfig, load
from tgr_local.engine import Engine, Output, Sampling, Task
from tgr_local.generation import query_tokens
from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.metrics import bootstrap_mean

TEMPERATURE = 0.6
AT_ONCE = 16  # questions
N_TOP = 20
Floats = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path, help="the folder of the task's file")
    parser.add_argument("--n", type=int, default=96, help="questions")
    parser.add_argument("--tokens", type=int, default=300, help="of each text at most")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    problems = tasks.get(options.task).load(options.data, limit=options.n, seed=options.seed)
    config = SearchConfig(temperature=TEMPERATURE)
    with load(options.model, EngineConfig(n_seq_max=2 * AT_ONCE)) as engine:
        queries = [query_tokens(engine, problem.messages, config) for problem in problems]
        alike = [alike_after(output) for output in samples(engine, queries, options)]
    n_tokens = bootstrap_mean(np.array([len(chances) for chances in alike]))
    print(f"tokens of a text: {n_tokens[0]:.1f} [{n_tokens[1]:.1f}, {n_tokens[2]:.1f}]")
    for t in (8, 16, 32, 64, 128):
        chances = [values[t - 1] if len(values) >= t else values[-1] for values in alike]
        print(f"two samples are alike for {t} tokens: {np.mean(chances):.4f}")
    for k in (2, 4, 8, 16):
        saved = bootstrap_mean(np.array([shared(chances, k) / k for chances in alike]))
        print(f"{k} samples save, of each: {saved[0]:.1f} [{saved[1]:.1f}, {saved[2]:.1f}]")


def samples(engine: Engine, queries: list[list[int]], options: argparse.Namespace) -> list[Output]:
    """One sample of each query."""
    outputs: list[Output] = []
    sampling = Sampling(temperature=TEMPERATURE)
    for start in range(0, len(queries), AT_ONCE):
        some = queries[start : start + AT_ONCE]
        n_cells = sum(len(query) + options.tokens + 1 for query in some)
        with engine.session(n_cells, len(some)) as session:
            outputs += session.run([
                Task(
                    session.sequence(),
                    query,
                    n_generate=options.tokens,
                    sampling=sampling,
                    seed=1000 * options.seed + i,
                    n_top=N_TOP,
                )
                for i, query in enumerate(some, start)
            ])  # fmt: skip
    return outputs


def alike_after(output: Output) -> Floats:
    """[n] the probability P(t) of a text's first t tokens, t = 1 … n."""
    own = np.full(len(output.tokens), 1e-6)
    for i, (ids, logprobs) in enumerate(zip(output.top_ids, output.top_logprobs, strict=True)):
        weights = np.exp(np.asarray(logprobs, float) / TEMPERATURE)
        found = weights[np.asarray(ids) == output.tokens[i]]
        own[i] = found[0] / weights.sum() if len(found) else own[i]
    return np.maximum(np.cumprod(own), 1e-12)


def shared(chances: Floats, k: int) -> float:
    """Tokens of k samples that need not be written."""
    distinct = -np.expm1(k * np.log1p(-np.minimum(chances, 1 - 1e-12))) / chances
    return float(np.sum(k - distinct))


if __name__ == "__main__":
    main()
