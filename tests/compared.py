"""Runs of the compared methods in tests: a prompt, small options, branches, a choice of tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gguf_models import token_id
from method_runs import PAPER, PROMPT
from reference import Reference
from runs import decoded

from tgr_local import methods
from tgr_local.engine import Engine, Sampling
from tgr_local.options.config import SearchConfig
from tgr_local.search.branches import Branches
from tgr_local.search.run import Method, Request, Run
from tgr_local.search.steps import Step

END = token_id("<|im_end|>")
SMALL = SearchConfig(
    chunk_len=6, max_chunks=4, n_candidates=4, rollout_len=4, temperature=0.8,
    n_samples=4, power_steps=3, tree_breadth=2, tree_proposals=3,
    **PAPER,
)  # fmt: skip


def with_(**options: Any) -> SearchConfig:
    """The small config with other options."""
    return dataclasses.replace(SMALL, **options)


def steps_of(engine: Engine, method: str, config: SearchConfig = SMALL, **more: Any) -> list[Step]:
    """The steps of a method on the same prompt."""
    request = Request(PROMPT, config, methods.get(method))
    return list(request.method.run(Run(engine, request, **more)))


def branches_of(engine: Engine, config: SearchConfig = SMALL, **more: Any) -> Branches:
    """Branches of a run whose reservation fits every test."""
    method = Method("test", lambda run: iter(()), lambda *_: 3000, lambda *_: 60)
    run = Run(engine, Request(PROMPT, config, method), **more)
    return Branches(run, method, limit=config.token_limit, least=1)


def assert_read_after_the_query(engine: Engine, tokens: list[int], logprobs: Any) -> None:
    """The log-probabilities are the reference's for these tokens after the prompt."""
    assert_read_after(engine, PROMPT, tokens, logprobs)


def assert_read_after(engine: Engine, context: list[int], tokens: list[int], logprobs: Any) -> None:
    """The log-probabilities are the reference's for these tokens after the context."""
    wanted, _ = decoded(Reference(engine.path), context, tokens)
    np.testing.assert_allclose(logprobs, wanted, atol=1e-4)


def only(
    tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, temperature: float = 0.8
) -> None:
    """Lets the model draw these tokens alone."""
    bias = tuple((token, 50.0) for token in tokens)
    sampling = Sampling(temperature, logit_bias=bias)
    monkeypatch.setattr(Sampling, "of", classmethod(lambda cls, *_: sampling))
