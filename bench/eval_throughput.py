"""Compares the speed of `tgr-local eval run` with that of the engine alone with as many sequences.

    python bench/eval_throughput.py --data DATA [--k 128] [--parallel 128] [--limit 4] [--rounds 3]

Both run `base` on Countdown with the embedded model, each in a process of its own, in turn. The
engine alone gets the same prompts and generates as many tokens for each, with a session for every
sequence, but without template, grading and files. It prints the forward tokens per second of both,
and the median and range of their ratio over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.generation import advised, load, query_tokens
from tgr_local.lab.eval import samples, tasks
from tgr_local.options.config import EngineConfig

TASK = "countdown"
TARGET = 0.85


def evaluation(options: argparse.Namespace, folder: Path) -> float:
    """Forward tokens per second of the real command."""
    command = [
        sys.executable, "-m", "tgr_local", "eval", "run", TASK, "--methods", "base",
        "--data", str(options.data), "--limit", str(options.limit), "--k", str(options.k),
        "--parallel", str(options.parallel), "--n-threads", str(options.n_threads),
        "--out", str(folder),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = json.loads((folder / "phases.jsonl").read_text(encoding="utf-8"))
    return float(took["positions"] / took["seconds"])


def engine_alone(options: argparse.Namespace, folder: Path) -> float:
    """Forward tokens per second of this script in a process of its own; see `generate_again`."""
    command = [sys.executable, __file__, *sys.argv[1:], "--again", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def generate_again(options: argparse.Namespace) -> float:
    """Generates replies as long as those of a run folder, from the same prompts, in its order."""
    problems = tasks.get(TASK).load(options.data, limit=options.limit)
    with load(config=EngineConfig(n_threads=options.n_threads)) as engine:
        config = advised(engine)
        prompts = {p.id: query_tokens(engine, p.messages, config) for p in problems}
        found = {s.key: s for s in samples.read(options.again / "samples.jsonl")}
        jobs = [
            (prompts[problem], found[key].tokens)
            for problem in prompts
            for key in sorted(found)
            if key[2] == problem
        ]
        longest = max(map(len, prompts.values())) + config.token_limit
        engine.grow_cache(min(longest, engine.n_ctx_train), options.parallel)
        return _rate(engine, jobs, Sampling.of(config), options.parallel)


def _rate(
    engine: Engine, jobs: Sequence[tuple[list[int], int]], sampling: Sampling, parallel: int
) -> float:
    before, begun = engine.stats().n_positions, time.monotonic()
    todo = iter(enumerate(jobs))
    lock = threading.Lock()
    threads = [
        threading.Thread(target=_write, args=(engine, todo, lock, sampling))
        for _ in range(parallel)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (engine.stats().n_positions - before) / (time.monotonic() - begun)


def _write(
    engine: Engine,
    todo: Iterator[tuple[int, tuple[list[int], int]]],
    lock: threading.Lock,
    sampling: Sampling,
) -> None:
    while True:
        with lock:
            seed, (prompt, n) = next(todo, (-1, ([], 0)))
        if seed < 0:
            return
        with engine.session(len(prompt) + n + 8, 1) as session:
            task = Task(
                session.sequence(), prompt, n_generate=n, sampling=sampling, seed=seed,
                ignore_eog=True,
            )  # fmt: skip
            session.run([task])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the tasks' files")
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--parallel", type=int, default=128)
    parser.add_argument("--limit", type=int, default=4, help="problems")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n-threads", type=int, default=1)
    parser.add_argument("--again", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.again:
        print(generate_again(options))
        return 0
    rates = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            rates.append((evaluation(options, folder), engine_alone(options, folder)))
            print(f"eval {rates[-1][0]:,.0f} tokens/s, engine alone {rates[-1][1]:,.0f} tokens/s")
    ratios = [evaluated / alone for evaluated, alone in rates]
    median = statistics.median(ratios)
    print(
        f"base on {TASK}, k = {options.k}, {options.parallel} at a time: eval / engine alone "
        f"{median:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), at least {TARGET}: "
        f"{'met' if median >= TARGET else 'MISSED'}"
    )
    return int(median < TARGET)


if __name__ == "__main__":
    sys.exit(main())
