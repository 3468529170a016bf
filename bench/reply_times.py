#!/usr/bin/env python
"""What a search costs a person who waits: times of replies of some lengths, plain and searched.

    python bench/reply_times.py MODEL.gguf… [--lengths 40,400,2500] [--pairs 3]

The methods take turns, the first of a pair too, with the same seed, and nothing is remembered
between two replies. The model may not end its text. Prints for each model and length the median
seconds to the first text and to the whole, the tokens a second, and the median and the range of the
ratios of the pairs, tgr-latent to base.
"""

from __future__ import annotations

import argparse
import statistics
import time

from tgr_local import EngineConfig, SearchConfig, TextDelta, load, stream
from tgr_local.engine import Engine, SteeredEngine

QUESTION = "Write a long story about a lighthouse keeper and a storm."
METHODS = ("base", "tgr-latent")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n    python")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--lengths", default="40,400,2500", help="tokens of the replies")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--raw", action="store_true", help="do not use the chat template")
    args = parser.parse_args()
    for model in args.models:
        with load(model, EngineConfig(prefix_cells=0)) as loaded:
            print(f"{loaded.path.name} sha256 {loaded.model_hash}")
            engine = SteeredEngine(loaded, logit_bias=[(t, -100.0) for t in loaded.end_tokens])
            for method in METHODS:  # measures the strength of the injection, and warms up
                timed(engine, method, 40, args.raw)
            for n_tokens in map(int, args.lengths.split(",")):
                row(engine, n_tokens, args.pairs, args.raw)


def row(engine: Engine, n_tokens: int, n_pairs: int, raw: bool) -> None:
    """Measures and prints one length."""
    times: dict[str, list[tuple[float, float, int]]] = {method: [] for method in METHODS}
    for pair in range(n_pairs):
        for method in METHODS if pair % 2 else METHODS[::-1]:
            times[method].append(timed(engine, method, n_tokens, raw))
    for method in METHODS:
        first, total, n = (statistics.median(column) for column in zip(*times[method], strict=True))
        print(f"  {n_tokens:>5} tokens  {method:<10} first text {first:6.3f} s, "
              f"whole {total:7.2f} s, {n / total:6.1f} tokens/s")  # fmt: skip
    plain, searched = ([total / n for _, total, n in times[method]] for method in METHODS)
    ratios = sorted(b / a for a, b in zip(plain, searched, strict=True))
    middle = statistics.median(ratios)
    print(f"         a token takes {middle:.3f} times as long [{ratios[0]:.3f}, {ratios[-1]:.3f}]",
          flush=True)  # fmt: skip


def timed(engine: Engine, method: str, n_tokens: int, raw: bool) -> tuple[float, float, int]:
    """Seconds to the first text and to the end of a reply, and its tokens."""
    config = SearchConfig(max_tokens=n_tokens, seed=1)
    start, first = time.perf_counter(), 0.0
    raw = raw or not engine.chat_template
    for event in stream(engine, QUESTION, config, method=method, raw=raw):
        if isinstance(event, TextDelta):
            first = first or time.perf_counter() - start
    return first, time.perf_counter() - start, event.n_tokens


if __name__ == "__main__":
    main()
