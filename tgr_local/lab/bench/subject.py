"""This engine as a contender: the same operations as `peers.Raw`, through sessions and tasks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tgr_local.engine import Engine, Injection, Output, Sampling, Sequence, Task
from tgr_local.lab.bench.peers import TEMPERATURE

SAMPLING = Sampling(temperature=TEMPERATURE)


def prompt(engine: Engine, n: int) -> list[int]:
    """n random tokens, the same in every run."""
    return [int(t) for t in np.random.default_rng(0).integers(0, engine.n_vocab // 2, n)]


def generate(engine: Engine, n_tokens: int) -> None:
    """A plain reply from one token."""
    with engine.session(n_tokens + 8, 1) as session:
        session.run([_generation(session.sequence(), n_tokens)])


def prefill(engine: Engine, tokens: list[int]) -> None:
    """Reads a prompt and samples the first new token."""
    with engine.session(len(tokens) + 8, 1) as session:
        session.run([Task(session.sequence(), tokens, n_generate=1, sampling=SAMPLING)])


def speeds(engine: Engine, n_read: int = 128, n_written: int = 16) -> tuple[float, float]:
    """Tokens per second of reading a prompt and of writing a plain reply, each measured once."""
    tokens = prompt(engine, n_read)
    generate(engine, 2)  # the first decode allocates
    start = time.perf_counter()
    prefill(engine, tokens)
    read = time.perf_counter()
    generate(engine, n_written)
    return n_read / (read - start), n_written / (time.perf_counter() - read)


def settle(engine: Engine) -> None:
    """Waits until the weights of a graph that has run are interleaved, as they stay."""
    n_bytes = -1
    while (now := engine.stats().interleaved_bytes) != n_bytes:
        n_bytes = now
        time.sleep(0.5)  # in which hundreds of MB are interleaved


class Forks:
    """Sequences that share a prefix, as at a chunk boundary. A remembered prefix is not read
    again. Use it in a ``with`` block."""

    def __init__(
        self, engine: Engine, prefix: list[int], n_seqs: int, n_steps: int = 0, *, n_cells: int = 0
    ) -> None:
        n_cells = n_cells or len(prefix) + n_seqs * n_steps + 8
        self.session = engine.session(n_cells, n_seqs + 1, prompt=prefix)
        self.prefix = self.session.sequence()
        if prefix:
            self.session.run([Task(self.prefix, prefix, reuse=True)])
        rng, shape = np.random.default_rng(1), (n_seqs, engine.n_layer, engine.n_embd)
        vectors = np.float32(0.02) * rng.standard_normal(shape, np.float32)
        self._injections = [self.session.injection(injection) for injection in vectors]

    def steps(
        self, n_seqs: int, n_steps: int, *, inject: bool = False, states: bool = False, **how: Any
    ) -> list[Output]:
        """n_steps decodes of one token for each sequence, sampled, with log-probabilities."""
        forks = [self.prefix.fork() for _ in range(n_seqs)]
        tasks = [
            _generation(
                fork, n_steps, seed=i, states=states,
                injection=self._injections[i] if inject else None,
            )
            for i, fork in enumerate(forks)
        ]  # fmt: skip
        outputs = self.session.run(tasks, **how)
        for fork in forks:
            fork.drop()
        return outputs

    def feed(self, tokens: list[int], **options: Any) -> None:
        """Appends tokens to the prefix."""
        self.session.run([Task(self.prefix, tokens, **options)])

    def injection(self, i: int) -> Injection:
        return self._injections[i]

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.session.close()


def _generation(sequence: Sequence, n: int, **options: Any) -> Task:
    return Task(sequence, [100], n_generate=n, sampling=SAMPLING, ignore_eog=True, **options)
