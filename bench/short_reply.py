#!/usr/bin/env python
"""What the default costs compared with plain sampling in replies of one chunk: the time to the
first text and the whole time, in pairs that take turns.

    python bench/short_reply.py MODEL.gguf [--pairs 7] [--threads N]

Prints the median seconds of both, and the median and the range of the ratios of the pairs. Both
have the same seed, so a pair writes the same text, and each reply begins with nothing remembered.
"""

from __future__ import annotations

import argparse
import time

from tgr_local import EngineConfig, SearchConfig, TextDelta, load, stream
from tgr_local.lab.bench.measure import Spread

CASES = (
    ("Name the capital of France.", 0),
    ("Write a long story about a lighthouse keeper and a storm.", 300),
)
METHODS = ("tgr-latent", "base")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    with load(args.model, EngineConfig(n_threads=args.threads, prefix_cells=0)) as engine:
        for question, n_tokens in CASES:
            config = SearchConfig(max_tokens=n_tokens, seed=1)
            found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
            texts = set()
            for pair in range(args.pairs + 1):  # the first one warms up
                for method in METHODS if pair % 2 else METHODS[::-1]:
                    start, first = time.perf_counter(), 0.0
                    for event in stream(
                        engine, question, config, method=method, raw=not engine.chat_template
                    ):
                        if isinstance(event, TextDelta):
                            first = first or time.perf_counter() - start
                    whole = time.perf_counter() - start
                    texts.add(event.text)
                    if pair:
                        found[method].append((first, whole))
            print(f"{question} {event.n_tokens} tokens, {len(texts)} text(s)")
            for i, what in enumerate(("first text", "whole reply")):
                ours, plain = ([times[i] for times in found[method]] for method in METHODS)
                ratios = [a / b for a, b in zip(ours, plain, strict=True)]
                seconds = f"{Spread.of(ours).median:.3f} s, base {Spread.of(plain).median:.3f} s"
                print(f"  {what}: {seconds}, ratio {Spread.of(ratios)}")


if __name__ == "__main__":
    main()
