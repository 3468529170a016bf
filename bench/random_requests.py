"""Compares random requests on an engine that remembers prefixes with a fresh computation.

    python bench/random_requests.py --n 10000 --threads 4

Every request reads a prompt that shares a random beginning with others, writes a few tokens
greedily, and may fork, truncate, remember, use a control vector, or be cancelled before or while
it runs; 700 cells are remembered, so prefixes come and go. The same prompt goes through an engine
with prefix_cells=0. Weights and cache are F32: the tokens must be equal, their log-probabilities
within 1e-4. Prints the number of requests, of reused tokens and of differences; exit code 1 where
there is one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from f32_weights import with_f32_weights

from tgr_local.engine import Engine, Output, Sampling, SteeredEngine, Task
from tgr_local.models import library
from tgr_local.options.config import EngineConfig

BOUND = 1e-4
GREEDY = Sampling(temperature=0)
Done = tuple[Output, Output]


@dataclass
class Counts:
    requests: int = 0
    cancelled: int = 0
    reused: int = 0
    differences: list[str] = field(default_factory=list)


class Enough(Exception):
    """Cancels a request that runs."""


def fail(_: Any) -> None:
    raise Enough


def request(engine: Any, prompt: list[int], rng: np.random.Generator | None) -> Done | None:
    """What was read and written; with `rng` in a random way, None when cancelled."""
    kind = int(rng.integers(6)) if rng else 0
    with engine.session(len(prompt) + 60, 3, prompt=prompt[:-1]) as session:
        sequence = session.sequence()
        reading = [Task(sequence, prompt[:-1], reuse=True)]
        if kind == 1:  # cancelled while it reads or writes
            task = Task(sequence, prompt, reuse=True, n_generate=50, sampling=GREEDY)
            try:
                session.run([task], on_tokens=fail)
            except Enough:
                return None
        (read,) = session.run(reading)
        target = sequence.fork() if kind == 2 else sequence
        task = Task(target, prompt[-1:], n_generate=4, sampling=GREEDY, ignore_eog=True)
        (written,) = session.run([task])
        if kind == 3 and rng:
            target.truncate(int(rng.integers(1, len(prompt))))
        if kind == 4:
            sequence.drop()
        elif kind != 5:
            session.remember(target)
    return read, written


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    exact: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1}
    counts, lock = Counts(), threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        model = with_f32_weights(library.model_file(None), Path(folder) / "f32.gguf")
        with (
            Engine(model, EngineConfig(**exact, prefix_cells=700)) as engine,
            Engine(model, EngineConfig(**exact, prefix_cells=0)) as fresh,
        ):
            engine.grow_cache(400, args.threads)
            base = np.random.default_rng(args.seed)
            texts = [base.integers(0, engine.n_vocab * 9 // 10, 150).tolist() for _ in range(4)]
            vectors = base.standard_normal((2, engine.n_layer, engine.n_embd)).astype(np.float32)
            ours = [engine, *(SteeredEngine(engine, v) for v in vectors)]
            theirs = [fresh, *(SteeredEngine(fresh, v) for v in vectors)]

            def work(thread: int) -> None:
                rng = np.random.default_rng([args.seed, thread])
                for i in range(thread, args.n, args.threads):
                    own = rng.integers(0, 50, int(rng.integers(1, 30))).tolist()
                    prompt = texts[rng.integers(4)][: rng.integers(2, 150)] + own
                    which = int(rng.integers(3)) if rng.integers(3) == 0 else 0
                    try:
                        got = request(ours[which], prompt, rng)
                        expected = request(theirs[which], prompt, None) if got else None
                    except Exception as error:
                        with lock:
                            counts.differences.append(f"request {i}: {error!r}")
                        continue
                    with lock:
                        note(i, got, expected)

            def note(i: int, got: Done | None, expected: Done | None) -> None:
                counts.requests += 1
                if got is None or expected is None:
                    counts.cancelled += 1
                    return
                counts.reused += got[0].n_reused
                one, other = got[1], expected[1]
                same = one.tokens.tolist() == other.tokens.tolist()
                off = float(np.abs(one.logprobs - other.logprobs).max()) if same else np.inf
                if off > BOUND:
                    counts.differences.append(f"request {i}: {one.tokens} {other.tokens} {off}")

            start = time.monotonic()
            threads = [threading.Thread(target=work, args=(i,)) for i in range(args.threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            stats = engine.stats()
    for line in counts.differences[:20]:
        print(line)
    print(
        f"{counts.requests} requests, {counts.cancelled} cancelled, {counts.reused} tokens reused, "
        f"{stats.n_positions} decoded, {len(counts.differences)} differences, "
        f"{time.monotonic() - start:.0f} s"
    )
    return bool(counts.differences)


if __name__ == "__main__":
    sys.exit(main())
