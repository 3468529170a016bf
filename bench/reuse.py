"""Measures what the engine remembers and shares, and how it reads prompts while it writes texts.

    python bench/reuse.py --rounds 3
    python bench/reuse.py --shape 0.6b --only turn,reread,beside,forks

turn     turn 10 of a chat with 4,000 tokens before it: tokens decoded for the prompt, time to the
         first token; remembered, and read anew
reread   first and second reading of a prompt of 2,000 tokens
beside   one text is written while a prompt of 4,096 tokens is read: the writer's longest gap, and
         the time of the prompt alone / beside the writer
forks    8 forks with 8 injections beside a text that is written: its decodes that pass meanwhile

Medians of the rounds, with the lowest and the highest. --shape makes random weights in a shape of
Qwen3. "anew" is an engine with prefix_cells=0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tgr_local.engine import Engine, Output, Sampling, Session, Task
from tgr_local.lab.bench import shapes
from tgr_local.lab.bench.measure import Spread
from tgr_local.options import model_files
from tgr_local.options.config import EngineConfig

Numbers = dict[str, float]
GREEDY = Sampling(temperature=0)
N_TURNS, BEFORE, TURN = 10, 4000, 40
COMMON = 2000
LONG = 4096


class Bench:
    """The engines of one model, and texts that no two measurements share."""

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        self._model, self._options = model, options
        self._rng = np.random.default_rng(1)

    def engine(self, **options: Any) -> Engine:
        return Engine(self._model, EngineConfig(**self._options | options))

    def tokens(self, engine: Engine, n: int) -> list[int]:
        return [int(t) for t in self._rng.integers(0, engine.n_vocab * 9 // 10, n)]


def read(engine: Engine, session: Session, prompt: list[int]) -> tuple[Any, Output]:
    sequence = session.sequence()
    return sequence, session.run([Task(sequence, prompt, reuse=True)])[0]


def write(session: Session, sequence: Any, token: int, n: int, **options: Any) -> Output:
    task = Task(sequence, [token], n_generate=n, sampling=GREEDY, ignore_eog=True)
    return session.run([task], **options)[0]


def reply(engine: Engine, prompt: list[int], n: int = 16) -> tuple[Output, Output, float]:
    """The outputs of reading and of writing, and the seconds to the first token."""
    start, first = time.monotonic(), [0.0]

    def on_tokens(_: Any) -> None:
        first[0] = first[0] or time.monotonic() - start

    with engine.session(len(prompt) + n, 1, prompt=prompt[:-1]) as session:
        sequence, reading = read(engine, session, prompt[:-1])
        writing = write(session, sequence, prompt[-1], n, on_tokens=on_tokens)
        session.remember(sequence)
    return reading, writing, first[0]


def seconds(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def turn(bench: Bench) -> Numbers:
    numbers: Numbers = {}
    with bench.engine() as engine:
        chat = bench.tokens(engine, BEFORE - (N_TURNS - 1) * (TURN + 16))
        for _ in range(N_TURNS - 1):
            chat += bench.tokens(engine, TURN)
            chat += reply(engine, chat)[1].tokens.tolist()
        chat += bench.tokens(engine, TURN)
        reading, remembered, first = reply(engine, chat)
        numbers["prompt tokens"] = len(chat)
        numbers["decoded"] = reading.n_decoded + 1  # the last one begins the reply
        numbers["first token s"] = first
    with bench.engine(prefix_cells=0) as engine:
        reading, anew, first = reply(engine, chat)
    numbers["anew: decoded"] = reading.n_decoded + 1
    numbers["anew: first token s"] = first
    numbers["ratio"] = numbers["first token s"] / first
    numbers["same text"] = float(remembered.tokens.tolist() == anew.tokens.tolist())
    return numbers


def reread(bench: Bench) -> Numbers:
    with bench.engine() as engine:
        prompt = bench.tokens(engine, COMMON)
        engine.grow_cache(COMMON + 64)
        first, again = (seconds(lambda: reply(engine, prompt, 1)) for _ in range(2))
    return {"first s": first, "second s": again}


class Stopped(Exception):
    """The writer has written enough."""


@contextmanager
def writer(engine: Engine, times: list[float]) -> Iterator[None]:
    """A text that is written meanwhile; the times of its tokens."""
    stop = threading.Event()

    def on_tokens(_: Any) -> None:
        times.append(time.monotonic())
        if stop.is_set():
            raise Stopped

    def work() -> None:
        with engine.session(6000, 1) as session, suppress(Stopped):
            write(session, session.sequence(), 5, 5900, on_tokens=on_tokens)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while len(times) < 8:
            time.sleep(0.005)
        yield
    finally:
        stop.set()
        thread.join()


def beside(bench: Bench) -> Numbers:
    numbers: Numbers = {}
    with bench.engine(prefix_cells=0) as engine:
        engine.grow_cache(6000 + LONG + 64)
        prompt = bench.tokens(engine, LONG)
        times: list[float] = []

        def whole(n: int = LONG) -> None:
            with engine.session(n, 1) as session:
                read(engine, session, prompt[:n])

        whole(LONG // 8)  # from here on the engine knows the time of a step
        alone = [seconds(whole)]
        with writer(engine, times):
            start = time.monotonic()
            numbers["beside s"] = seconds(whole)
            end = time.monotonic()
        alone.append(seconds(whole))
        during = [t for t in times if start <= t <= end]
        last_before = max((t for t in times if t < start), default=start)
        gaps = np.diff([last_before, *during, end])
    numbers["alone s"] = statistics.mean(alone)
    numbers["alone / beside"] = numbers["alone s"] / numbers["beside s"]
    numbers["longest gap s"] = float(gaps.max())
    numbers["writer's tokens"] = len(during)
    return numbers


def forks(bench: Bench) -> Numbers:
    with bench.engine() as engine:
        engine.grow_cache(6600)
        vectors = np.zeros((engine.n_layer, engine.n_embd), np.float32)
        times: list[float] = []
        with engine.session(500, 9) as session, writer(engine, times):
            sequence = session.sequence()
            session.run([Task(sequence, bench.tokens(engine, 64))])
            n_before, start = engine.stats().n_decodes, time.monotonic()
            held_forks = [(sequence.fork(), session.injection(vectors)) for _ in range(8)]
            took = time.monotonic() - start
            passed = engine.stats().n_decodes - n_before
            del held_forks
    return {"decodes that pass": passed, "ms": 1000 * took}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file; default: the embedded model")
    parser.add_argument("--shape", help=f"random weights: {', '.join(shapes.SHAPES)}")
    parser.add_argument("--type", default="q8_0", help="of the random weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--only", default="", help="groups, with commas between them")
    args = parser.parse_args()
    if args.shape:
        path = shapes.model_file(args.shape.lower(), args.type)
    else:
        path = model_files.model_file(args.model)
    bench = Bench(path, {"n_threads": args.threads})
    groups = {"turn": turn, "reread": reread, "beside": beside, "forks": forks}
    chosen = args.only.split(",") if args.only else list(groups)
    if unknown := set(chosen) - set(groups):
        parser.error(
            f"there is no group {', '.join(sorted(unknown))}; choose of {', '.join(groups)}"
        )
    print(f"{path.name}, load {os.getloadavg()[0]:.1f}")
    for name in chosen:
        rounds = [groups[name](bench) for _ in range(args.rounds)]
        print(name)
        for quantity in rounds[0]:
            spread = Spread.of([numbers[quantity] for numbers in rounds])
            print(f"  {quantity:22} {spread}", flush=True)


if __name__ == "__main__":
    main()
