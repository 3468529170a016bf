#!/usr/bin/env python
"""How far a model counts when its context is full on the way: with `when_full reset`, and with
llama.cpp's context shift.

    python bench/counting.py MODEL.gguf [--to 3000] [--n-ctx 4096]

The model goes on with a list of which the first ten entries are given, by its likeliest tokens
except the end of a text. The reset reads the question and the newest half again; the shift, as
llama-server does it, removes the cells of the older half after the question, and moves the newer
ones to their place. Prints for each form and way: the number up to which the list is right, the
tokens that were written, how many of them after the context was full, and the seconds.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator

from forgetting import SPARE, shifted

from tgr_local import EngineConfig, SearchConfig, load, stream
from tgr_local.engine import Engine, SteeredEngine
from tgr_local.generation import advised, query_tokens
from tgr_local.lab.bench import peers
from tgr_local.search.steps import Step

FORMS = {
    "lines": ("All numbers, one per line:\n", "{}\n"),
    "commas": ("All numbers, in order: ", "{}, "),
    "lines of code": ("total = 0\n", "total += {}\n"),
    "sentences": ("", "This is line {} of the list.\n"),
}
"""By name: what stands before the list, and an entry."""
GIVEN = 10  # entries in the question
EVERY = 128  # tokens between two looks at the list


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n    python")[0])
    parser.add_argument("model")
    parser.add_argument("--to", type=int, default=3000)
    parser.add_argument("--n-ctx", type=int, default=4096)
    args = parser.parse_args()
    with load(args.model, EngineConfig(n_ctx=args.n_ctx, prefix_cells=0)) as engine:
        print(f"{engine.path.name} sha256 {engine.model_hash}")
        for name, (head, entry) in FORMS.items():
            begun = head + "".join(entry.format(i + 1) for i in range(GIVEN))
            entries = re.compile(re.escape(entry).replace(r"\{\}", r"(\d+)"))
            query = query_tokens(engine, begun, advised(engine), raw=True)
            for way, pieces in (
                ("reset", with_reset(engine, begun)),
                ("shift", with_shift(engine, args.model, query, args.n_ctx)),
            ):
                start, text, n = time.perf_counter(), "", 0
                for piece, n_written in pieces:
                    text, n = text + piece, n_written
                    last, ended = counted(entries, text)
                    if ended or last >= args.to:
                        break
                pieces.close()
                beyond = max(0, n + len(query) - args.n_ctx)
                print(f"{name:<14} {way}: right up to {min(last, args.to):>5}, {n:>6} tokens, "
                      f"{beyond:>6} of them after the context was full, "
                      f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip


def counted(entries: re.Pattern[str], text: str) -> tuple[int, bool]:
    """The number up to which a list is right, and whether it ended there: another number or another
    text than the next entry stands behind it."""
    last, at = GIVEN, 0
    for match in entries.finditer(text):
        if int(match[1]) != last + 1 or match.start() != at:
            return last, True
        last, at = last + 1, match.end()
    return last, len(text) - at > 2 * len(entries.pattern)


def with_reset(engine: Engine, begun: str) -> Iterator[tuple[str, int]]:
    """Pieces of the likeliest text that goes on, each with the tokens written up to its end."""
    config = SearchConfig(temperature=0.0, repeat_penalty=1.0, max_tokens=100_000,
                          when_full="reset", chunk_len=EVERY, max_chunks=10_000)  # fmt: skip
    unending = SteeredEngine(engine, logit_bias=[(token, -100.0) for token in engine.end_tokens])
    n = 0
    for event in stream(unending, begun, config, raw=True):
        if isinstance(event, Step):
            n += len(event.tokens)
            yield engine.detokenize(event.tokens.tolist()).decode("utf-8", "replace"), n


def with_shift(
    engine: Engine, model: str, query: list[int], n_ctx: int
) -> Iterator[tuple[str, int]]:
    """The same by llama.cpp, which moves the cells when they are full."""
    llama_cpp = peers.library()
    llama = llama_cpp.Llama(model, n_ctx=n_ctx, n_gpu_layers=0, verbose=False)
    memory = llama_cpp.llama_get_memory(llama.ctx)
    llama.eval(query)
    bias = [llama_cpp.llama_logit_bias(token, -100.0) for token in engine.end_tokens]
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    array = (llama_cpp.llama_logit_bias * len(bias))(*bias)
    llama_cpp.llama_sampler_chain_add(
        chain, llama_cpp.llama_sampler_init_logit_bias(llama.n_vocab(), len(bias), array)
    )
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    batch = llama_cpp.llama_batch_init(1, 0, 1)
    n_past, n, newest = len(query), 0, []
    try:
        while True:
            token = llama_cpp.llama_sampler_sample(chain, llama.ctx, -1)
            newest.append(token)
            n += 1
            if len(newest) == EVERY:
                yield engine.detokenize(newest).decode("utf-8", "replace"), n
                newest = []
            if n_past >= n_ctx - SPARE:
                n_past = shifted(memory, len(query), n_past)
            batch.n_tokens, batch.token[0], batch.pos[0] = 1, token, n_past
            batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, True
            if llama_cpp.llama_decode(llama.ctx, batch):
                raise RuntimeError("llama.cpp decodes nothing")
            n_past += 1
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_sampler_free(chain)
        llama.close()


if __name__ == "__main__":
    main()
