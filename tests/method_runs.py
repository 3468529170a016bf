"""Short runs of any method in tests: a prompt, small options, one run, several in lockstep, and
what the numpy reference computes for the same tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from engines import TOKENS
from gguf_models import token_id
from numpy.typing import NDArray
from reference import Reference, log_softmax
from threads import in_threads

from tgr_local import methods
from tgr_local.engine import Engine, Sampling, Sequence
from tgr_local.options.config import SearchConfig
from tgr_local.search.branches import Branches
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Counts, Step

PROMPT = TOKENS[:10]
END = token_id("<|im_end|>")
PAPER: dict[str, Any] = {"search_from": 0, "calibration": "absolute", "guard": 0.0}
"""Every chunk is searched and injected, by a strength that needs no measurement."""
RESIDUAL: dict[str, Any] = {**PAPER, "calibration": "residual"}
SMALL = SearchConfig(
    chunk_len=6, max_chunks=4, n_candidates=4, rollout_len=4, temperature=0.8,
    n_samples=4, power_steps=3, tree_breadth=2, tree_proposals=3,
    **PAPER,
)  # fmt: skip


def with_(**options: Any) -> SearchConfig:
    """The small config with other options."""
    return dataclasses.replace(SMALL, **options)


def steps_of(
    engine: Engine,
    method: str,
    config: SearchConfig = SMALL,
    prompt: list[int] = PROMPT,
    **more: Any,
) -> list[Step]:
    """The steps of a method."""
    return list(methods.get(method).run(Run(engine, prompt, config, **more)))


def group_of(engine: Engine, method: str, config: SearchConfig, k: int) -> list[list[Step]]:
    """The steps of k runs in one lockstep group, as `generate_many` makes them."""
    engine.grow_cache(k * methods.get(method).cells(engine, len(PROMPT), config))
    group = engine.lockstep_group(k)

    def one(index: int) -> list[Step]:
        mine = dataclasses.replace(config, seed=config.seed + index)
        with group.participant(index) as participant:
            return steps_of(engine, method, mine, participant=participant, on_event=[].append)

    runs = in_threads(*(lambda i=i: one(i) for i in range(k)))
    assert all(isinstance(run, list) for run in runs), runs
    return runs


def branches_of(engine: Engine, config: SearchConfig = SMALL, **more: Any) -> Branches:
    """Branches of a run whose reservation fits every test."""
    method = Method("test", lambda run: iter(()), lambda *_: 3000, lambda *_: 60)
    run = Run(engine, PROMPT, config, **more)
    return Branches(run, method, limit=config.token_limit, least=1)


def only(tokens: tuple[int, ...], monkeypatch, temperature: float = 0.8) -> None:
    """Lets the model draw these tokens alone."""
    bias = tuple((token, 50.0) for token in tokens)
    sampling = Sampling(temperature, logit_bias=bias)
    monkeypatch.setattr(Sampling, "of", classmethod(lambda cls, *_: sampling))


def sequences_held(engine: Engine, monkeypatch) -> list[int]:
    """Gets the number of sequences at the birth of every one from now on."""
    counts: list[int] = []
    born = Sequence.__init__

    def init(self: Sequence, *args: Any) -> None:
        born(self, *args)
        counts.append(engine.stats().n_sequences)

    monkeypatch.setattr(Sequence, "__init__", init)
    return counts


# --- what a run has written ---


def text_of(steps: list[Step]) -> list[int]:
    """The tokens of all chunks."""
    return [int(token) for step in steps for token in step.tokens]


def spent(steps: list[Step]) -> int:
    """How many tokens passed through the model in all steps."""
    return sum((step.counts for step in steps), Counts()).total


def assert_identical(ours: list[Step], theirs: list[Step]) -> None:
    """Equal to the bit, times excepted."""

    def flat(steps: list[Step]) -> list[Any]:
        values: list[Any] = []
        for step in steps:
            values += [step.index, step.finish, step.counts, step.cells]
            values += [step.tokens, step.logprobs, step.entropies]
            values += [step.origin, step.anchor, step.state]
            if step.candidates:
                values += [step.candidates.anchors, step.candidates.scores.total]
                values += [*step.candidates.tokens, *step.candidates.logprobs]
        return values

    for a, b in zip(flat(ours), flat(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def decoded(
    reference: Reference, context: list[int], new: list[int], injection: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-probabilities [n] and states [n, d] of `new` after `context`. The injection acts on `new`
    and on the last token of `context`, the pending one, which is decoded with `new`."""
    text = context + new[:-1]
    vectors = np.zeros((len(text), reference.n_layer, reference.n_embd))
    if injection is not None:
        vectors[len(context) - 1 :] = injection
    out = reference.forward(text, vectors)
    at = slice(len(context) - 1, None)
    return log_softmax(out.logits[at])[range(len(new)), new], out.states[at]


def assert_read_after_the_query(engine: Engine, tokens: list[int], logprobs: Any) -> None:
    """The log-probabilities are the reference's for these tokens after the prompt."""
    wanted, _ = decoded(Reference(engine.path), PROMPT, tokens)
    np.testing.assert_allclose(logprobs, wanted, atol=1e-4)
