"""The laws that every method keeps. They run over the registry, so a new method in it is tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines import TOKENS, held, is_free
from fixture_types import Load, Model
from method_runs import (
    END,
    PROMPT,
    SMALL,
    assert_identical,
    group_of,
    only,
    sequences_held,
    spent,
    steps_of,
    text_of,
    with_,
)

from tgr_local import methods
from tgr_local.engine import Cancel, Engine
from tgr_local.methods import METHODS
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Run
from tgr_local.search.steps import Progress, Step
from tgr_local.system.errors import CancelledError, CapacityError

EXTENSIONS: list[dict[str, Any]] = [
    {"chunk_len": 3},
    {"reevaluate": 9, "n_mc": 2},
    {"reuse_winner": True, "rollout_len": 9},
    {"n_mc": 2, "reevaluate": 2, "reuse_winner": True},
]

every_method = pytest.mark.parametrize("method", sorted(methods.METHODS))
every_run = pytest.mark.parametrize(
    ("method", "options"),
    [(method, {}) for method in sorted(methods.METHODS)]
    + [("markov", options) for options in EXTENSIONS[:2]]
    + [("tgr-latent", options) for options in EXTENSIONS[1:]],
    ids=str,
)


@every_run
def test_every_decoded_position_is_counted(engine: Engine, method: str, options: dict[str, Any]):
    before = engine.stats().n_positions
    steps = steps_of(engine, method, with_(**options))
    assert engine.stats().n_positions - before == spent(steps)


@every_method
def test_steps_are_numbered_and_only_the_last_has_a_finish(engine: Engine, method: str):
    steps = steps_of(engine, method)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert [step.finish is None for step in steps] == [True] * (len(steps) - 1) + [False]
    assert 1 <= len(text_of(steps)) <= SMALL.token_limit
    for step in steps:
        assert len(step.tokens) == len(step.logprobs) == len(step.entropies) <= SMALL.chunk_len


@every_run
def test_a_budget_is_kept_or_refused(engine: Engine, method: str, options: dict[str, Any]):
    config = with_(**options)
    whole = spent(steps_of(engine, method, config))
    refused: list[int] = []
    tried = 0
    for budget in (1, *np.linspace(9, whole, 7).astype(int).tolist()):
        before = engine.stats().n_positions
        try:
            steps = steps_of(engine, method, dataclasses.replace(config, max_forward_tokens=budget))
        except ValueError as error:
            assert len(refused) == tried  # what refuses a budget refuses all below it
            refused.append(budget)
            assert f"max_forward_tokens is {budget}, but" in str(error)
            assert engine.stats().n_positions == before
        else:
            assert engine.stats().n_positions - before == spent(steps) <= budget
            assert text_of(steps) and steps[-1].finish in ("budget", "length", "stop")
        tried += 1
    assert 1 <= len(refused) < tried


@every_run
def test_cells_and_sequences_are_bounds_that_no_run_exceeds(
    engine: Engine, method: str, options: dict[str, Any], monkeypatch
):
    config = with_(temperature=0.0, **options)
    held_at_once = sequences_held(engine, monkeypatch)
    steps = steps_of(engine, method, config)
    needs = methods.get(method)
    assert 1 <= max(held_at_once) <= needs.sequences(engine, config)
    cells = max(step.cells for step in steps)
    assert len(PROMPT) <= cells <= needs.cells(engine, len(PROMPT), config)


@every_run
def test_no_run_decodes_more_positions_than_the_method_says(
    engine: Engine, method: str, options: dict[str, Any]
):
    config, needs = with_(**options), methods.get(method)
    most = (needs.positions or needs.cells)(engine, len(PROMPT), config)
    assert most / 40 < spent(steps_of(engine, method, config)) <= most


@every_method
@pytest.mark.parametrize(
    ("chunk_len", "limit"), [(8, 1), (8, 8), (8, 9), (40, 39), (40, 80), (40, 1000)]
)
def test_new_tokens_are_limited(engine: Engine, method: str, limit: int, chunk_len: int):
    config = with_(max_tokens=limit, chunk_len=chunk_len, temperature=0.0, power_steps=1)
    steps = steps_of(engine, method, config)
    assert len(text_of(steps)) == min(limit, 4 * chunk_len)
    assert steps[-1].finish == "length"
    assert all(len(step.tokens) <= chunk_len for step in steps)


@every_method
def test_a_deadline_ends_the_reply(engine: Engine, method: str):
    config = with_(max_seconds=1e-6, chunk_len=900, rollout_len=2)
    (step,) = steps_of(engine, method, config)
    assert step.finish == "budget" and len(step.tokens) < 900
    assert is_free(engine)


@every_method
def test_an_end_token_ends_the_reply(engine: Engine, method: str, monkeypatch):
    only((END,), monkeypatch)
    before = engine.stats().n_positions
    (step,) = steps_of(engine, method)
    assert engine.stats().n_positions - before == step.counts.total
    assert step.tokens.tolist() == [END] and step.finish == "stop"
    if step.candidates:  # rollouts of one token have no curvature
        assert all(tokens.tolist() == [END] for tokens in step.candidates.tokens)
        assert not step.candidates.scores.bumpiness.any()


@every_run
def test_the_same_seed_repeats_and_another_differs(
    engine: Engine, method: str, options: dict[str, Any]
):
    config = with_(**options)
    first, again = (steps_of(engine, method, config) for _ in range(2))
    assert_identical(first, again)
    other = steps_of(engine, method, dataclasses.replace(config, seed=7))
    assert text_of(other) != text_of(first)


@every_run
def test_cancel_at_any_stage_leaves_nothing(engine: Engine, method: str, options: dict[str, Any]):
    config, seen = with_(**options), []
    steps_of(engine, method, config, on_event=lambda progress: seen.append(progress.stage))
    assert set(seen) >= {"rebuild", "tokens"}
    for stage in sorted(set(seen)):
        cancel = Cancel()

        decoded = []

        def on_event(progress: Progress, stage: str = stage, cancel: Cancel = cancel) -> None:
            if progress.stage == stage:
                cancel.cancel()
                decoded.append(engine.stats().n_positions)  # noqa: B023

        long = dataclasses.replace(config, chunk_len=24)
        try:
            steps_of(engine, method, long, on_event=on_event, cancel=cancel)
        except CancelledError:
            pass
        else:  # it had nothing left to decode
            assert engine.stats().n_positions == decoded[0]
        assert not any(held(engine.stats()).values())


@every_method
def test_a_run_that_is_dropped_or_fails_leaves_nothing(engine: Engine, method: str):
    stream: Iterator[Step] = methods.get(method).run(Run(engine, PROMPT, SMALL))
    assert not any(held(engine.stats()).values())  # nothing before the first step is asked for
    next(stream)
    del stream
    assert not any(held(engine.stats()).values())

    def fail(progress: Progress) -> None:
        if progress.stage == "tokens":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        steps_of(engine, method, on_event=fail)
    assert is_free(engine)


@every_method
def test_a_trajectory_does_not_depend_on_those_beside_it(engine: Engine, method: str):
    """As a group on an F32 file without flash attention, where a batch's size is no more than
    rounding in the last digits."""
    (alone,) = group_of(engine, method, SMALL, 1)
    together = group_of(engine, method, SMALL, 4)
    assert text_of(together[0]) == text_of(alone)
    assert [step.counts for step in together[0]] == [step.counts for step in alone]
    other = dataclasses.replace(SMALL, seed=SMALL.seed + 3)
    assert text_of(together[3]) == text_of(steps_of(engine, method, other))
    assert len({tuple(text_of(run)) for run in together}) == 4


@every_method
def test_a_query_that_cannot_fit_is_refused_with_the_numbers(
    model: Model, load: Load, engine: Engine, method: str
):
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        steps_of(engine, method, prompt=[])
    with pytest.raises(CapacityError, match=r"4104 tokens.* trained for 4096"):
        steps_of(engine, method, prompt=TOKENS * 171)
    small = load(model(), n_ctx=256)
    with pytest.raises(CapacityError, match=r"264 tokens.* n_ctx is 256.*raise n_ctx \(-c\)"):
        steps_of(small, method, prompt=TOKENS * 11)
    assert is_free(engine) and is_free(small)


def changed(config: SearchConfig, name: str) -> Any:
    """Another value of an option, in its bounds; the same where there is none to try."""
    spec = next(one for one in dataclasses.fields(SearchConfig) if one.name == name)
    value, choices = getattr(config, name), spec.metadata["choices"]
    if isinstance(value, bool):
        return not value
    if choices:
        return next(one for one in choices if one != value)
    if isinstance(value, int | float):
        high = spec.metadata["high"]
        return value + 1 if high is None or value + 1 <= high else value / 2
    return value


@every_method
def test_options_that_a_method_does_not_use_change_nothing(engine: Engine, method: str):
    """So they may be hidden from whoever uses it."""
    config = dataclasses.replace(SMALL, search_from=0 if METHODS[method].searches else 1)
    others = {
        spec.name: changed(config, spec.name)
        for spec in dataclasses.fields(SearchConfig)
        if not METHODS[method].uses(spec.name)
    }
    before = steps_of(engine, method, config)
    after = steps_of(engine, method, dataclasses.replace(config, **others))
    assert text_of(after) == text_of(before) and spent(after) == spent(before)
    assert others or method == "tgr-latent"


@every_method
def test_every_method_says_what_it_does(method: str):
    about = METHODS[method].about
    assert 20 < len(about) <= 80 and about[-1] != "."
