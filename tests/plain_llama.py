"""The unpatched library on one sequence alone: what every fast path must compute too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from reference import log_softmax


def llama_cpp_output(
    path: Path, tokens: list[int], n: int,
    *, cache: int, flash: bool, n_batch: int, n_ctx: int = 256, values: int | None = None,
    swa_full: bool | None = None,
) -> tuple[list[int], NDArray[Any]]:  # fmt: skip
    """llama_cpp's own greedy text and the log-probabilities of every position. `cache` is the type
    of the keys and, unless `values` is given, of the values."""
    llm = llama_cpp.Llama(
        str(path), n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_threads=1, n_threads_batch=1,
        n_gpu_layers=0, flash_attn=flash, type_k=cache,
        type_v=cache if values is None else values, swa_full=swa_full, verbose=False,
    )  # fmt: skip
    try:
        text, rows = [], []
        llm.eval(tokens)
        for _ in range(n):
            logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
            rows.append(np.ctypeslib.as_array(logits, (llm.n_vocab(),)).copy())
            text.append(int(rows[-1].argmax()))
            llm.eval(text[-1:])
        return text, log_softmax(np.array(rows, np.float64))
    finally:
        llm.close()
