"""Many replies of the embedded model at a time: plain ones, compared with a peer that has a stream
for each; searches of one question; and the time to the first token of a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from tgr_local.engine import Participant, Task
from tgr_local.generation import load
from tgr_local.lab.bench import subject
from tgr_local.lab.bench.measure import Figure, Spread, Target, alternate, alternate_timed
from tgr_local.lab.bench.peers import ContextSettings, Raw, Subprocess
from tgr_local.lab.bench.plan import Plan
from tgr_local.options.model_files import embedded_model
from tgr_local.system.errors import TgrError

N = 64  # plain replies at a time
PREFIX = 64  # mean tokens of a prompt
SPREAD = 32  # largest difference to PREFIX
TOKENS = 96  # tokens of a reply


def plain(plan: Plan) -> Iterator[Figure]:
    """Plain replies to prompts of different lengths, each in a session of its own. For the peer all
    prompts have the mean length, and it does not sample."""
    n = N
    with load() as engine:
        prefix, longest = subject.prompt(engine, PREFIX), subject.prompt(engine, PREFIX + SPREAD)
        engine.grow_cache(len(longest) + TOKENS, n)

        def one(participant: Participant, seed: int) -> None:
            prompt = longest[: PREFIX - SPREAD + seed % (2 * SPREAD + 1)]
            with (
                participant,
                engine.session(len(prompt) + TOKENS, 1, participant=participant) as session,
            ):
                task = Task(
                    session.sequence(), prompt, n_generate=TOKENS, seed=seed,
                    sampling=subject.SAMPLING, ignore_eog=True,
                )  # fmt: skip
                session.run([task])

        def together() -> None:
            group = engine.lockstep_group(n)
            with ThreadPoolExecutor(n) as pool:
                list(pool.map(one, [group.participant(i) for i in range(n)], range(n)))

        settings = ContextSettings.of(engine)
        # the cells of a stream are a multiple of 256
        with Subprocess(Raw, engine.path, settings, n * 256, n, unified=False) as raw:
            seconds = alternate(plan.repeats, [together, partial(raw.own_steps, prefix, n, TOKENS)])
    rates = n * TOKENS / seconds
    yield Figure(
        "concurrency",
        f"{n} plain replies of the embedded model: tgr-local / raw, one stream each",
        Spread.of(rates[0] / rates[1]),
        "of its speed",
        {"tokens/s tgr-local": Spread.of(rates[0]), "tokens/s raw": Spread.of(rates[1])},
        Target(0.9, at_least=True),
    )


def searches(plan: Plan) -> Iterator[Figure]:
    """k searches of one question at a time. Every measurement has a process of its own, so that its
    memory is that of k searches only. Rates count decoded positions, since replies differ in
    length."""
    counts = (1, 8) if plan.quick else (1, 2, 4, 8, 16, 32)
    results: dict[int, list[dict[str, float]]] = {k: [] for k in counts}
    for i in range(plan.repeats):
        for k in counts if i % 2 == 0 else reversed(counts):
            results[k].append(cold_start(k, 1000 * i))

    def measured(k: int, name: str) -> np.ndarray:
        return np.array([result[name] for result in results[k]])

    for k in counts:
        yield Figure(
            "searches",
            f"{k} tgr-latent search{'es' if k > 1 else ''} of the embedded model",
            Spread.of(measured(k, "positions") / measured(k, "seconds")),
            "positions/s",
            {
                "reply tokens/s": Spread.of(measured(k, "tokens") / measured(k, "seconds")),
                "resident MB": Spread.of(measured(k, "resident") / 1e6),
                "cached tokens": Spread.of(measured(k, "cells")),
            },
        )
    single, eight = (measured(k, "positions") / measured(k, "seconds") for k in (1, 8))
    title = "8 searches at a time / one"
    yield Figure(
        "searches", title, Spread.of(eight / single), "times", target=Target(2.5, at_least=True)
    )


def startup(plan: Plan) -> Iterator[Figure]:
    """Yields the time from starting a process to an answer's first byte, interpreter included."""
    command = [
        sys.executable, "-m", "tgr_local", "run", "--model", str(embedded_model()), "--raw",
        "--method", "base", "--max-tokens", "1", "What is 2 + 2?",
    ]  # fmt: skip

    def first_byte() -> float:
        start = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout
            if not process.stdout.read(1):
                raise TgrError(f"no reply from: {' '.join(command)}")
            return time.perf_counter() - start

    (seconds,) = alternate_timed(plan.repeats, [first_byte])
    title = "from the start of a process to the first token of the embedded model"
    yield Figure("startup", title, Spread.of(seconds), "s", target=Target(0.6))


def cold_start(k: int, seed: int) -> dict[str, float]:
    """The measurements of `bench.cold_start` for k searches in a new process."""
    command = [sys.executable, "-m", "tgr_local.lab.bench.cold_start", str(k), str(seed)]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode != 0:
        last = (completed.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TgrError(f"a measurement in a separate process failed: {last}")
    figures: dict[str, float] = json.loads(completed.stdout)
    return figures
