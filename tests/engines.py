"""Small engines in tests: their options, whether they are free, tasks and how outputs compare."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
from gguf_models import N_PLAIN
from numpy.typing import NDArray

from tgr_local.engine import Engine, EngineStats, Output, Sampling, Sequence, Task
from tgr_local.search import geometry

DEVICE = os.environ.get("TGR_TEST_DEVICE", "")
"""Where the tests of the engine compute: "" = on the CPU, as exactly as llama.cpp can; "gpu" = all
layers on the GPU, with flash attention and an F16 cache; "cpu" = on the CPU with these, to try out
what "gpu" does."""
EXACT: dict[str, Any] = {
    "type_k": "f32",
    "type_v": "f32",
    "flash_attn": "off",
    "n_threads": 1,
    "n_gpu_layers": 0,
    "prefix_cells": 0,  # what a run decodes does not depend on the runs before
}
"""Engine options for results as exact as llama.cpp's can be, on a GPU as it is used there."""
if DEVICE:
    EXACT |= {"type_k": "f16", "type_v": "f16", "flash_attn": "on"}
if DEVICE == "gpu":
    EXACT |= {"n_gpu_layers": -1, "flash_attn": "auto"}  # on, but for heads that it is not made for
KEEPING = EXACT | {"prefix_cells": 16384}
"""The same, for an engine that remembers prefixes."""
exact = pytest.mark.skipif(DEVICE != "", reason="needs the precision of F32")
one_device = pytest.mark.skipif(DEVICE == "gpu", reason="adds up the memory of one device")
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, N_PLAIN, 24)]
GREEDY = Sampling(temperature=0)
ENDLESS = 20_000  # tokens that take long enough to be interrupted on any machine

# Rounding depends on how many tokens a matrix multiplies at once. On an F32 file with an F32 cache
# this moves log-probabilities by 4e-6 and states by 2e-6 (1 to 200 other sequences, measured).
# Half precision in the cache, in flash attention and in a GPU's products of F32 moves them by up to
# 1e-2, with MXFP4 weights by 8e-2; other tokens before would move them by more than 1.
ROUNDING = 0.1 if DEVICE else 2e-5


def text(seed: int, n: int) -> list[int]:
    """n plain tokens, always the same for a seed."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_PLAIN, n)]


def held(stats: EngineStats) -> dict[str, int]:
    """What the engine's users still hold; all zero when everything was freed."""
    names = ("cells_used", "cells_reserved", "n_sequences", "n_sessions", "n_waiting", "n_jobs")
    return {name: getattr(stats, name) for name in names}


def is_free(engine: Engine) -> bool:
    """Whether nobody holds anything in the engine, once garbage is collected."""
    gc.collect()
    return not any(held(engine.stats()).values())


def vectors(n: int = 1, *, n_layer: int = 2, d: int = 64, strength: float = 5.0) -> NDArray[Any]:
    """The injections η B_l A_l a of n random anchors [n, n_layer, d], of a visible strength."""
    anchors = geometry.unit(np.random.default_rng(3).standard_normal((n, d)))
    maps = geometry.InjectionMaps.draw(n_layer, d, d, rank=8, seed=1)
    return np.float32(strength) * maps.vectors(anchors)


def written(engine: Engine, feed: list[int], **options: Any) -> Output:
    """The output of one task, in a session of its own."""
    with engine.session(len(feed) + options.get("n_generate", 0), 1) as session:
        return session.run([Task(session.sequence(), feed, **options)])[0]


def generated(engine: Engine, **options: Any) -> list[int]:
    """The tokens that one task writes, greedily unless `options` change that."""
    options = {"n_generate": 12, "sampling": GREEDY, "ignore_eog": True} | options
    return written(engine, TOKENS[:4], **options).tokens.tolist()


def greedy_task(engine: Engine, sequence: Sequence, feed: list[int], **options: Any) -> Task:
    """A greedy task whose output has all states and whole distributions."""
    fixed: dict[str, Any] = {"n_generate": 8, "sampling": GREEDY, "ignore_eog": True}
    return Task(sequence, feed, states=True, n_top=engine.n_vocab, **fixed | options)


def distributions(output: Output) -> NDArray[np.float64]:
    """[n, n_vocab] log-probabilities at temperature 1, of an output with `n_top` = n_vocab."""
    every = np.empty(output.top_logprobs.shape)
    np.put_along_axis(every, output.top_ids, output.top_logprobs.astype(np.float64), axis=1)
    return every


def rows_to_compare(tokens: NDArray[np.integer[Any]], theirs: Any) -> int:
    """Those of equal tokens, and that of the first token that differs: it has the same context."""
    return int(np.argmin([*(tokens == theirs), False])) + 1


def assert_same(ours: Output, theirs: Output, bound: float = ROUNDING) -> None:
    """Equal tokens; distributions and states that differ by no more than the bound. With
    TGR_TEST_DEVICE greedy texts may part where two tokens are as likely, within the bound; what
    follows is not compared."""
    p, q = distributions(ours), distributions(theirs)
    n = len(ours.tokens)
    assert len(theirs.tokens) == n
    if (differ := np.flatnonzero(ours.tokens != theirs.tokens)).size:
        n = int(differ[0]) + 1
        mine, other = ours.tokens[n - 1], theirs.tokens[n - 1]
        gap = max(p[n - 1, mine] - p[n - 1, other], q[n - 1, other] - q[n - 1, mine])
        assert DEVICE and gap <= 2 * bound, f"token {n} is {mine}, not {other}, by {gap}"
    np.testing.assert_allclose(p[:n], q[:n], atol=bound, rtol=0)
    np.testing.assert_allclose(ours.states[:n], theirs.states[:n], atol=bound, rtol=0)
