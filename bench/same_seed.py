"""Counts how often the same request with the same seed gets another text.

    python bench/same_seed.py SmolLM2-135M-Instruct.Q4_1.gguf
    python bench/same_seed.py MODEL --reproducible --prompts 8 --tokens 40 --json rows.json

Each reply is compared with that of an engine that remembers nothing and writes for nobody else:

alone      the same request to that engine once more
repeated   the second request for it to an engine that remembers the first one
longer     a request that goes on where a remembered one ends
next turn  a conversation whose last prompt and reply are remembered
beside     repeated, while the engine writes other texts and reads other prompts
k          four replies in one call of an engine that remembers their prompt, once more

Prints, for each temperature: the requests, those that got another text, the largest difference of
a log-probability up to the first token that differs, and the tokens of the prompts that were taken
from the cache.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tgr_local import Reply, SearchConfig, generate, generate_many
from tgr_local.engine import Engine
from tgr_local.errors import CancelledError
from tgr_local.models import library
from tgr_local.options.config import EngineConfig

Messages = list[dict[str, str]]
K = 4
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers.",
    "Write a line about rain.",
    "How do I boil an egg?",
    "What is a prime number?",
    "Tell me about tea.",
    "Describe a lighthouse.",
    "Who was Ada Lovelace?",
)
SYSTEM = (
    "You are a helpful assistant on a small island. Speak plainly and kindly, name what you do not "
    "know, and never invent a number. Somebody who asks about the sea, the weather or the ferry is "
    "in a hurry: begin with the answer. Everybody else has time for a reason or an example. Do not "
    "repeat the question, and do not speak about yourself unless you are asked to."
)
MORE = "Answer in plain words, in at most three sentences, and give one example of your own."


@dataclass
class Row:
    """One situation at one temperature."""

    situation: str
    temperature: float
    requests: int = 0
    different: int = 0
    difference: float = 0.0
    reused: int = 0

    def compare(self, reply: Reply, expected: Reply) -> None:
        self.requests += 1
        self.different += reply.tokens != expected.tokens
        ours, theirs = logprobs(reply), logprobs(expected)
        n = min(len(ours), len(theirs))
        unequal = np.flatnonzero(np.array(reply.tokens[:n]) != np.array(expected.tokens[:n]))
        n = int(unequal[0]) if len(unequal) else n
        if n:
            self.difference = max(self.difference, float(np.abs(ours[:n] - theirs[:n]).max()))
        self.reused += reply.counts.reused


def logprobs(reply: Reply) -> Any:
    return np.concatenate([step.logprobs for step in reply.steps])


def asked(text: str) -> Messages:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


@contextmanager
def busy(engine: Engine, config: SearchConfig) -> Iterator[None]:
    """Other texts are written, and other prompts are read, one after the other."""
    ended = threading.Event()

    def work(number: int) -> None:
        turn = 0
        while not ended.is_set():
            words = " ".join(f"{number + 7 * turn + 3 * i}" for i in range(10 + 13 * (turn % 5)))
            turn += 1
            try:
                generate(engine, asked(f"Add {words}."), config, method="base", raw=False)
            except CancelledError:
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def measure(model: Path, options: dict[str, Any], args: argparse.Namespace) -> list[Row]:
    rows = []
    for temperature in args.temperatures:
        names = ("alone", "repeated", "longer", "next turn", "beside", "k")
        found = {name: Row(name, temperature) for name in names}
        config = SearchConfig(temperature=temperature, seed=5, max_tokens=args.tokens)

        def write(engine: Engine, prompt: Messages, config: SearchConfig = config) -> Reply:
            return generate(engine, prompt, config, method=args.method)

        with (
            Engine(model, EngineConfig(**options | {"prefix_cells": 0})) as plain,
            Engine(model, EngineConfig(**options)) as engine,
            Engine(model, EngineConfig(**options)) as shared,
        ):
            many = [
                generate_many(shared, asked(QUESTIONS[0]), config, K, method=args.method)
                for _ in range(2)
            ]
            for reply, expected in zip(*reversed(many), strict=True):
                found["k"].compare(reply, expected)
            with busy(shared, config):
                for question in QUESTIONS[: args.prompts]:
                    prompt = asked(f"{question} (variant {temperature})")
                    expected = write(plain, prompt)
                    found["alone"].compare(write(plain, prompt), expected)
                    write(engine, prompt)
                    found["repeated"].compare(write(engine, prompt), expected)
                    answer = {"role": "assistant", "content": expected.text}
                    turn = [*prompt, answer, asked(MORE)[-1]]
                    found["next turn"].compare(write(engine, turn), write(plain, turn))
                    longer = asked(f"{question} (variant {temperature}) {MORE}")
                    found["longer"].compare(write(engine, longer), write(plain, longer))
                    write(shared, prompt)
                    found["beside"].compare(write(shared, prompt), expected)
        rows += found.values()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file; default: the embedded model")
    parser.add_argument("--prompts", type=int, default=len(QUESTIONS))
    parser.add_argument("--tokens", type=int, default=40, help="of a reply")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--method", default="base")
    parser.add_argument("--reproducible", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", help="a file for the rows")
    args = parser.parse_args()
    model = library.model_file(args.model)
    options: dict[str, Any] = {"n_threads": args.threads}
    if args.reproducible:
        options["reproducible"] = True
    rows = measure(model, options, args)
    print(f"{model.name}, {'reproducible' if args.reproducible else 'as by default'}")
    print(
        "| situation | temperature | requests | other text | largest difference | reused tokens |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.situation} | {row.temperature:g} | {row.requests} | {row.different} | "
            f"{row.difference:.2g} | {row.reused} |"
        )
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
