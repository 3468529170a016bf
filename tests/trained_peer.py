"""A trained model in the unpatched library, and where two texts of one model differ first.

In: a model file, token ids. Out: log-probabilities and greedy texts of llama.cpp. Products of
quantised weights round in steps of a hundredth, and which steps depends on how many tokens are
multiplied at once; so two right programs may differ where two tokens are almost equally likely.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp
import numpy as np
from engines import GREEDY
from numpy.typing import NDArray

from tgr_local.engine import Engine, Task

# nats that two tokens of a near tie are apart at most: on Gemma a token's log-probability differs
# by 0.08 in the mean, and by up to 0.6, between products that add up in another order
NEAR = 0.5


class Peer:
    """llama.cpp with the batches, threads and cache types of an engine. Use it in a ``with``
    block."""

    def __init__(self, path: Path, engine: Engine, cache: int = llama_cpp.GGML_TYPE_F16) -> None:
        self._n_batch = engine.config.n_batch
        self.llama = llama_cpp.Llama(
            str(path), n_ctx=2048, n_batch=self._n_batch, n_ubatch=engine.config.n_ubatch,
            n_threads=engine.n_threads, n_threads_batch=engine.n_threads, n_gpu_layers=0,
            flash_attn=False, type_k=cache, type_v=cache, verbose=False,
        )  # fmt: skip

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.llama.close()

    def logprobs(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """[n - 1] log p of tokens[1:], each given the tokens before it."""
        self._clear()
        values: list[float] = []
        for start in range(0, len(tokens), self._n_batch):
            rows = self._decode(tokens[start : start + self._n_batch], start)
            followers = tokens[start + 1 : start + 1 + self._n_batch]
            values += [
                float(row[token]) for row, token in zip(rows, followers, strict=False)
            ]  # the last token has no follower
        return np.array(values)

    def greedy(self, query: Sequence[int], n: int) -> list[int]:
        """At most n tokens, an end token included. The last token of the query is decoded alone,
        as the engine does."""
        self._clear()
        self._decode(query[:-1], 0, last=True)
        text: list[int] = []
        token = query[-1]
        while len(text) < n:
            (row,) = self._decode([token], len(query) - 1 + len(text), last=True)
            token = int(row.argmax())
            text.append(token)
            if llama_cpp.llama_vocab_is_eog(self._vocab(), token):
                break
        return text

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of the tokens, control tokens included."""
        data = b""
        for token in tokens:  # `Llama.detokenize` has room for pieces of 32 bytes only
            piece = ctypes.create_string_buffer(512)
            n = llama_cpp.llama_token_to_piece(self._vocab(), token, piece, len(piece), 0, True)
            data += piece.raw[:n]
        return data

    def _vocab(self) -> Any:
        return llama_cpp.llama_model_get_vocab(self.llama.model)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.llama.ctx), False)

    def _decode(
        self, tokens: Sequence[int], start: int, *, last: bool = False
    ) -> list[NDArray[np.float64]]:
        """Log-probabilities after every token, or after the last one."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = not last or i == len(tokens) - 1
        code = llama_cpp.llama_decode(self.llama.ctx, batch)
        llama_cpp.llama_batch_free(batch)
        assert code == 0, f"llama_decode failed with {code}"
        rows = []
        for i in [len(tokens) - 1] if last else range(len(tokens)):
            logits = llama_cpp.llama_get_logits_ith(self.llama.ctx, i)
            row = np.ctypeslib.as_array(logits, (self.llama.n_vocab(),)).astype(np.float64)
            row -= row.max()
            rows.append(row - np.log(np.exp(row).sum()))
        return rows


def read(engine: Engine, tokens: Sequence[int]) -> NDArray[np.float64]:
    """[n - 1] the engine's log p of tokens[1:], each given the tokens before it."""
    with engine.session(len(tokens) + 1, 1) as session:
        (output,) = session.run([Task(session.sequence(), tokens, feed_logprobs=True)])
    return output.feed_logprobs.astype(np.float64)


def difference(
    engine: Engine, query: Sequence[int], mine: Sequence[int], theirs: Sequence[int]
) -> str:
    """Empty where two texts after a query are equal, or first differ in two tokens that the engine
    finds almost equally likely there; else what they differ in."""
    mine, theirs = list(mine), list(theirs)
    n = min(len(mine), len(theirs))
    at = next((i for i in range(n) if mine[i] != theirs[i]), n)
    if at == n:
        return "" if len(mine) == len(theirs) else f"{len(mine)} tokens and {len(theirs)}"
    shared = [*query, *mine[:at]]
    with engine.session(len(shared) + 2, 1) as session:
        task = Task(
            session.sequence(), shared, n_generate=1, sampling=GREEDY, n_top=64, ignore_eog=True
        )
        (output,) = session.run([task])
    top = dict(zip(output.top_ids[0].tolist(), output.top_logprobs[0].tolist(), strict=True))
    apart = abs(top.get(mine[at], -np.inf) - top.get(theirs[at], -np.inf))
    texts = [
        engine.detokenize(some, special=True).decode(errors="replace") for some in (mine, theirs)
    ]
    said = f"{apart:.3f} nats apart at token {at}: {texts[0]!r} and {texts[1]!r}"
    if apart <= NEAR:
        print(f"near tie, {said}")  # shown with -rP
        return ""
    return said
