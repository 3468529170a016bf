#!/usr/bin/env python
"""What a text loses by the parts of its context that a method leaves out.

    python bench/forgetting.py MODEL.gguf FILE… [--tokens 2560] [--n-ctx 4096] [--full]

Each FILE is a text that a person wrote; it stands for a reply to one short question. Its mean
log-likelihood, nats a token, is measured where the contexts differ: given everything before it, and
given what a method keeps. Without --full that is the question and the newest chunk of 512 tokens,
as at the resets of tgr-latent and markov, from the third chunk on. With --full it is what is kept
where a context of --n-ctx is full: the question and the newest half (`when_full reset`), and what
llama.cpp's context shift keeps, whose cells move instead of being read again. Prints a line for
each file, and the mean of the differences with a 95% bootstrap interval over the files.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local import EngineConfig, load
from tgr_local.engine import Engine, Task
from tgr_local.generation import advised, query_tokens
from tgr_local.lab.bench import peers

CHUNK = 512
SPARE = 8  # cells that stay free
Logprobs = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=2560, help="of each text at most")
    parser.add_argument("--n-ctx", type=int, default=4096)
    parser.add_argument(
        "--full", action="store_true", help="measure what is kept of a full context"
    )
    args = parser.parse_args()
    rows = []
    with load(args.model, EngineConfig(prefix_cells=0)) as engine:
        print(f"{engine.path.name} sha256 {engine.model_hash}")
        for file in args.files:
            query = query_tokens(
                engine, f"Write {file.name}.", advised(engine), raw=not engine.chat_template
            )
            text = engine.tokenize(file.read_text(errors="replace"), parse_special=False)
            text = text[: args.tokens]
            windows = dict(kinds(args, len(query), len(text)))
            first = min(begin for _, begin, _ in windows["kept"])
            last = max(end for *_, end in windows["kept"])
            in_full = likelihoods(engine, query, text, [(0, 0, len(text))])[first:last]
            in_windows = likelihoods(engine, query, text, windows["kept"])[first:last]
            row = [in_full.mean(), in_windows.mean() - in_full.mean()]
            if args.full:
                by_shift = shifted_by_llama_cpp(args.model, [*query, *text], len(query), args.n_ctx)
                row.append(by_shift[first:last].mean() - in_full.mean())
            rows.append(row)
            print(
                f"{file.name:<24} {last - first:>6} tokens  {row[0]:.3f}  "
                + "  ".join(f"{loss:+.4f}" for loss in row[1:]),
                flush=True,
            )
    for name, values in zip(("kept", "shifted"), np.array(rows).T[1:], strict=False):
        low, high = interval(values)
        print(f"{name}: mean {values.mean():+.4f} [{low:+.4f}, {high:+.4f}]")


def kinds(
    args: argparse.Namespace, n_query: int, n_text: int
) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
    """The windows in which a text is read: tokens from `start` on as context of those from `begin`
    to `end`."""
    if not args.full:
        ends = range(2 * CHUNK, n_text, CHUNK)
        yield "kept", [(at - CHUNK, at, min(at + CHUNK, n_text)) for at in ends]
        return
    room = args.n_ctx - SPARE - n_query
    n_kept = room // 2
    at, windows = room, []
    while at < n_text:
        end = min(at + room - n_kept, n_text)
        windows.append((at - n_kept, at, end))
        at = end
    yield "kept", windows


def likelihoods(
    engine: Engine, query: list[int], text: list[int], windows: list[tuple[int, int, int]]
) -> Logprobs:
    """[n] log p of the tokens of a text after a query, each in its window; NaN where there is
    none."""
    logprobs = np.full(len(text), np.nan)
    for start, begin, end in windows:
        feed = [*query, *text[start:end]]
        with engine.session(len(feed), 1) as session:
            (output,) = session.run([Task(session.sequence(), feed, feed_logprobs=True)])
        logprobs[begin:end] = output.feed_logprobs[len(query) - 1 + begin - start :]
    return logprobs


def shifted_by_llama_cpp(model: str, tokens: list[int], n_query: int, n_ctx: int) -> Logprobs:
    """[n - n_query] log p of the tokens after a query by llama.cpp. Whenever n_ctx is full, the
    older half of the cells after the query is removed, and the newer ones move to their place."""
    llama_cpp = peers.library()
    llama = llama_cpp.Llama(model, n_ctx=n_ctx, n_gpu_layers=0, logits_all=True, verbose=False)
    memory, batch = llama_cpp.llama_get_memory(llama.ctx), llama_cpp.llama_batch_init(CHUNK, 0, 1)
    n_past, logprobs = 0, np.full(len(tokens) - 1, np.nan)
    at = 0
    while at < len(tokens):
        n = min(CHUNK, len(tokens) - at, n_ctx - SPARE - n_past)
        if n < 1:
            n_past = shifted(memory, n_query, n_past)
            continue
        batch.n_tokens = n
        for i in range(n):
            batch.token[i], batch.pos[i] = tokens[at + i], n_past + i
            batch.n_seq_id[i], batch.logits[i] = 1, True
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(llama.ctx, batch):
            raise RuntimeError("llama.cpp decodes nothing")
        n_vocab = llama.n_vocab()
        for i in range(min(n, len(tokens) - at - 1)):
            row = llama_cpp.llama_get_logits_ith(llama.ctx, i)
            logits = np.ctypeslib.as_array(
                ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), (n_vocab,)
            )
            top = float(logits.max())
            total = float(np.log(np.exp(logits - top).sum(dtype=float))) + top
            logprobs[at + i] = float(logits[tokens[at + i + 1]]) - total
        n_past, at = n_past + n, at + n
    llama_cpp.llama_batch_free(batch)
    llama.close()
    return logprobs[n_query - 1 :]


def shifted(memory: Any, n_query: int, n_past: int) -> int:
    """Removes the older half of the cells after the query, and moves the newer ones there, as
    llama-server does; the cells that are left."""
    llama_cpp = peers.library()
    n_discard = (n_past - n_query) // 2
    begin, end = n_query, n_query + n_discard
    llama_cpp.llama_memory_seq_rm(memory, 0, begin, end)
    llama_cpp.llama_memory_seq_add(memory, 0, end, n_past, -n_discard)
    return n_past - n_discard


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """95% by bootstrap."""
    draws = np.random.default_rng(0).choice(values, (2000, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
