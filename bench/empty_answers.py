"""Replies of the embedded model at random limits: none may be without an answer, none may break its
limits, and a stream must be the same as the whole.

Every reply has a random prompt, method and seed, and random values of some of max_tokens,
max_chunks, chunk_len, max_forward_tokens, max_seconds, thinking_budget, loop_guard,
stop and temperature; some are streamed, some written together, some asked to answer now. Prints how
often each option ended a reply or its thinking. A budget that does not pay for one token of an
answer is refused with an error, which is counted too.

    python bench/empty_answers.py [--runs 1000] [--seed 0] [--model FILE]

The exit code is 1 if a reply is empty or breaks a limit.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tgr_local import (  # fmt: skip
    Cancel,
    Engine,
    EngineConfig,
    Reply,
    SearchConfig,
    TextDelta,
    generate,
    generate_many,
    load,
    stream,
)
from tgr_local.errors import BudgetError
from tgr_local.methods import METHODS

QUESTIONS = (
    "What is 48 * 7 - 5?",
    "What is 17 + 23 * 2?",
    "Solve for x: 3x + 17 = 101",
    "Use the numbers 3, 5, 7 to make 22.",
    "Use the numbers 2, 9, 4, 25 to make 61.",
    "Hello!",
    "Thank you.",
    "?",
)
STOPS = ("4", "\n", "\n\n", " ", "The", "answer", "\\boxed", "=", ".", "<", "think", "=4", "1", "a")
SMALL: dict[str, Any] = {
    "n_candidates": 2, "rollout_len": 4, "n_samples": 2, "power_steps": 1,
    "tree_breadth": 2, "tree_proposals": 2,
}  # fmt: skip


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def options(rng: random.Random) -> dict[str, Any]:
    """Random values of some options."""
    every: dict[str, Any] = {
        "max_tokens": int(log_uniform(rng, 1, 400)),
        "max_chunks": rng.randint(1, 6),
        "chunk_len": rng.randint(1, 64),
        "max_forward_tokens": int(log_uniform(rng, 30, 3000)),
        "max_seconds": log_uniform(rng, 0.001, 1.0),
        "thinking_budget": int(log_uniform(rng, 1, 200)),
        "loop_guard": rng.randint(2, 5),
        "stop": tuple(rng.sample(STOPS, rng.randint(1, 3))),
        "thinking": False,
    }
    often = {"max_tokens": 0.5, "max_forward_tokens": 0.35, "thinking": 0.1}
    chosen = {name: v for name, v in every.items() if rng.random() < often.get(name, 0.25)}
    temperature = rng.choice((0.0, 0.6, 1.0, 1.5))
    return SMALL | {"temperature": temperature, "seed": rng.randrange(2**31)} | chosen


def written(engine: Engine, rng: random.Random, question: str, config: SearchConfig) -> list[Reply]:
    """One reply, or several together; a stream is compared with the whole."""
    method, way = rng.choice(sorted(METHODS)), rng.random()
    cancel = Cancel()
    if rng.random() < 0.1:
        cancel.answer_now()
    if way < 0.15:
        return generate_many(engine, question, config, 3, method=method, cancel=cancel)
    if way < 0.6:
        return [generate(engine, question, config, method=method, cancel=cancel)]
    *events, reply = stream(engine, question, config, method=method, cancel=cancel)
    assert isinstance(reply, Reply)
    for kind, text in (("answer", reply.text), ("thinking", reply.thinking)):
        parts = [event.text for event in events if isinstance(event, TextDelta)
                 and event.kind == kind]  # fmt: skip
        if "".join(parts).strip() != text:
            raise AssertionError(f"the stream says {''.join(parts)!r}, the reply {text!r}")
    return [reply]


def faults(reply: Reply, config: SearchConfig) -> Iterator[str]:
    """What is wrong with a reply."""
    if not reply.text.strip():
        yield "empty"
    if reply.n_tokens > config.token_limit:
        yield f"{reply.n_tokens} tokens"
    if 0 < config.max_forward_tokens < reply.counts.total:
        yield f"{reply.counts.total} forward tokens"
    if any(stop in reply.text for stop in config.stop):
        yield "a stop text in the answer"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    rng, begun = random.Random(arguments.seed), time.monotonic()
    counts: dict[str, Counter[str]] = {
        name: Counter() for name in ("finish", "limit", "closed by", "method", "runs")
    }
    n_replies = n_refused = n_bad = 0
    with load(arguments.model, EngineConfig(n_threads=1)) as engine:
        while n_replies < arguments.runs:
            question, given = rng.choice(QUESTIONS), options(rng)
            config = SearchConfig(**given)
            try:
                replies = written(engine, rng, question, config)
            except BudgetError:
                n_refused += 1
                continue
            for reply in replies:
                n_replies += 1
                counts["finish"][reply.finish] += 1
                counts["limit"][str(reply.limit)] += 1
                counts["closed by"][str(reply.closed_by)] += 1
                counts["method"][reply.method] += 1
                counts["runs"][str(len(reply.runs))] += 1
                for fault in faults(reply, config):
                    n_bad += 1
                    print(f"{fault}: {reply!r}, {question!r}, {given}", flush=True)
    for name, counter in counts.items():
        print(f"{name:10}", ", ".join(f"{key} {n}" for key, n in counter.most_common()))
    seconds = time.monotonic() - begun
    print(f"{n_replies} replies in {seconds:.0f} s, {n_refused} budgets refused, {n_bad} faults")
    return int(n_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
