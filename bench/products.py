"""Our products of quantized weights compared with ggml's, as llama.cpp uses them: steps, prompts.

    python bench/products.py MODEL ... [--rounds 3] [--threads 2]

Each round loads a model in two processes, one after the other, with TGR_PRODUCTS=ggml and without;
ggml then has its weights as llama.cpp lays them out, repacked where it can; ours are interleaved.
Steps decode one token of each of n sequences after a prompt of ten; medians of the rounds, and
their range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.lab.bench.measure import Spread
from tgr_local.lab.bench.subject import settle
from tgr_local.options.config import EngineConfig

WIDTHS, PROMPTS = (1, 2, 4, 8, 16), (128, 512)


def seconds(engine: Engine, n: int, n_prompt: int, n_generate: int) -> float:
    """Of n texts, from their prompts to the last of their tokens."""
    with engine.session((n_prompt + n_generate + 2) * n, n) as session:
        tasks = [
            Task(
                session.sequence(), [100 + i % 400 for i in range(n_prompt)], n_generate=n_generate,
                ignore_eog=True, sampling=Sampling(temperature=0),
            )
            for _ in range(n)
        ]  # fmt: skip
        start = time.perf_counter()
        session.run(tasks)
        return time.perf_counter() - start


def measure(model: str, n_threads: int) -> dict[str, float]:
    """Milliseconds of steps, tokens a second of prompts."""
    figures = {}
    config = EngineConfig(n_ctx=4096, n_gpu_layers=0, n_threads=n_threads, prefix_cells=0)
    with Engine(model, config) as engine:
        seconds(engine, 1, 10, 1)
        settle(engine)
        for n in WIDTHS:
            n_steps = 24 if n < 8 else 12
            long, first = seconds(engine, n, 10, n_steps + 1), seconds(engine, n, 10, 1)
            figures[f"step of {n}, ms"] = 1000 * (long - first) / n_steps
        for n in PROMPTS:
            figures[f"prompt of {n}, tokens/s"] = n / seconds(engine, 1, n, 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help="measure once and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(str(options.models[0]), options.threads)))
        return
    print("| model | measured | ggml's | ours | ours / ggml's |\n|---|---|---|---|---|")
    for model in options.models:
        times = defaultdict[str, dict[str, list[float]]](lambda: {"ggml": [], "best": []})
        for _ in range(options.rounds):
            for kind in ("ggml", "best"):
                command = [sys.executable, __file__, model, "--one"]
                command += ["--threads", str(options.threads)]
                environment = {**os.environ, "TGR_PRODUCTS": kind}
                output = subprocess.run(
                    command, env=environment, check=True, stdout=subprocess.PIPE
                ).stdout
                for name, value in json.loads(output).items():
                    times[name][kind].append(value)
        for name, by_kind in times.items():
            ggml, ours = (Spread.of(values) for values in by_kind.values())
            ratio = ours.median / ggml.median
            print(f"| {model.name} | {name} | {ggml} | {ours} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
