"""The probe as foresight, and rollouts that end with their line."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from method_runs import RESIDUAL, steps_of, with_
from runs import spent
from surroundings import ROOT

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.errors import ModelError
from tgr_local.generation import query_tokens
from tgr_local.generation.control_vectors import hidden_states
from tgr_local.options.config import SearchConfig
from tgr_local.probe import features, likeness, record
from tgr_local.probe.foresight import ProbeForesight
from tgr_local.probe.logistic import Logistic
from tgr_local.probe.record import Judgement, Probe
from tgr_local.search.run import Run
from tgr_local.search.steps import Step

EMBEDDED = ROOT / "models" / "tgr-mini-q8_0.gguf"
QUESTION = "What is 7 + 4 * 5 - 12 + 30 - 2 * 6 + 8?"
LINES = SearchConfig(
    chunk_len=48, max_chunks=24, n_candidates=3, rollout_end="line", max_rollout=40,
    reuse_winner=True, max_cached_tokens=1000, foresight="probe", lambda_b=0, lambda_u=0,
    **RESIDUAL,
)  # fmt: skip


@pytest.fixture(scope="module")
def embedded() -> Iterator[Engine]:
    with Engine(EMBEDDED) as engine:
        yield engine


def run_of(engine: Engine, method: str, config: SearchConfig) -> tuple[list[int], list[Step]]:
    """The query and the steps; every position is counted."""
    query, before = query_tokens(engine, QUESTION, config), engine.stats().n_positions
    steps = list(methods.get(method).run(Run(engine, query, config)))
    assert spent(steps) == engine.stats().n_positions - before
    return query, steps


# ---- by hand ----


def output(rng: np.random.Generator, n: int, finish: str = "length") -> Any:
    return SimpleNamespace(
        tokens=np.arange(n), finish=finish,
        logprobs=-rng.random(n), entropies=rng.random(n), states=rng.normal(size=(n, 3)),
    )  # fmt: skip


def plain_features(*parts: Any) -> Any:
    """Of the joined outputs, from whole arrays."""
    logprobs, entropies, states = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("logprobs", "entropies", "states")
    )
    return np.r_[features.confidences(logprobs, entropies), states.mean(axis=0), states[0]]


def small_probe(rng: np.random.Generator) -> Probe:
    """It was fitted on beginnings of 8 to 12 tokens and texts of 35 to 45, and knows all."""

    def judgement(low: int, high: int) -> Judgement:
        texts = [plain_features(output(rng, n)) for n in rng.integers(low, high, 60)]
        known = dataclasses.replace(likeness.fit(np.array(texts)), limit=np.inf)
        return Judgement(Logistic(float(rng.normal()), rng.normal(size=15)), known)

    whole, beginning = judgement(35, 46), judgement(8, 13)
    return Probe("", whole, beginning, 10, Logistic(0.0, np.zeros(5)), {})


@pytest.mark.parametrize(("n_written", "judged"), [(4, "beginning"), (26, "whole")])
def test_values_are_log_odds_of_the_text_with_each_rollout(n_written: int, judged: str) -> None:
    rng = np.random.default_rng(1)
    probe = small_probe(rng)
    judge = ProbeForesight(probe)
    first, second, empty = output(rng, 3), output(rng, n_written - 3), output(rng, 0)
    for part in (first, empty, second):
        judge.take(part)
    rollouts = [output(rng, 6), output(rng, 4), output(rng, 2, "stop")]
    values = judge.values(rollouts)
    for value, rollout, name in zip(values, rollouts, (judged, judged, "whole"), strict=True):
        right = getattr(probe, name).right
        wanted = right.bias + plain_features(first, second, rollout) @ right.weights
        assert value == pytest.approx(wanted)
    assert judge.figures == {"by probe": 1}


def test_texts_that_the_probe_does_not_know_have_no_value() -> None:
    rng = np.random.default_rng(2)
    probe = small_probe(rng)
    known = dataclasses.replace(probe.beginning.known, limit=0.0)
    probe = dataclasses.replace(probe, beginning=Judgement(probe.beginning.right, known))
    judge = ProbeForesight(probe)
    rollouts = [output(rng, 9), output(rng, 9, "stop"), output(rng, 9)]
    assert judge.values(rollouts) is None and judge.figures == {"by probe": 0}
    rollouts[0].finish = "stop"  # two of three are whole texts, which it knows
    assert judge.values(rollouts) is not None and judge.figures == {"by probe": 0.5}


# ---- in a search ----


@pytest.mark.parametrize(
    ("method", "options"),
    [("tgr-token", {}), ("tgr-latent", {"eta": 0.0}), ("tgr-latent", {"eta": 0.0, "n_mc": 2})],
)
def test_the_winner_is_the_text_that_is_likeliest_right(
    embedded: Engine, method: str, options: dict[str, Any]
) -> None:
    config = dataclasses.replace(LINES, **options)
    query, steps = run_of(embedded, method, config)
    tokens = np.concatenate([step.tokens for step in steps]).tolist()
    assert steps[-1].finish == "stop"
    # a state at a token is the one that the next token is sampled from
    states = hidden_states(embedded, query + tokens)[len(query) - 1 : -1]
    logprobs, entropies = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("logprobs", "entropies")
    )
    found = np.r_[features.confidences(logprobs, entropies), states.mean(axis=0), states[0]]
    probe = record.of(embedded)
    assert probe is not None
    (wanted,) = probe.whole.right.log_odds(found[None])
    candidates = steps[-1].candidates
    assert candidates is not None and 0 < steps[-1].figures["by probe"] <= 1
    scores = candidates.scores
    assert scores.chosen == scores.foresight.argmax()
    if "n_mc" not in options:
        assert scores.foresight[scores.chosen] == pytest.approx(wanted, abs=0.05)


def test_other_texts_go_by_likelihood(embedded: Engine) -> None:
    config = with_(foresight="probe", temperature=4.0, rollout_len=8, chunk_len=8)
    steps = steps_of(embedded, "tgr-latent", config)
    assert [step.figures for step in steps] == [{}] * (len(steps) - 1) + [{"by probe": 0}]
    for step in steps:
        assert step.candidates is not None
        means = [np.mean(logprobs) for logprobs in step.candidates.logprobs]
        np.testing.assert_allclose(step.candidates.scores.foresight, means, rtol=1e-5)


@pytest.mark.parametrize("method", ["tgr-latent", "tgr-token"])
def test_a_model_without_a_probe_is_an_error(tmp_path: Path, method: str) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(EMBEDDED, path)
    with Engine(path) as engine, pytest.raises(ModelError, match="or set foresight to value"):
        steps_of(engine, method, with_(foresight="probe"))


# ---- lines ----


def lines_of(engine: Engine, tokens: Any) -> int:
    """Line ends before the last token."""
    return engine.detokenize(np.asarray(tokens)[:-1].tolist()).count(b"\n")


@pytest.mark.parametrize("most", [40, 9])
def test_a_rollout_ends_with_its_line(embedded: Engine, most: int) -> None:
    config = dataclasses.replace(LINES, max_rollout=most, foresight="value")
    _, steps = run_of(embedded, "tgr-latent", config)
    ends = set(embedded.end_tokens)
    for step in steps:
        assert step.candidates is not None
        for tokens in step.candidates.tokens:
            text = embedded.detokenize(tokens.tolist())
            assert lines_of(embedded, tokens) == 0 and len(tokens) <= most
            assert text.endswith(b"\n") or len(tokens) == most or tokens[-1] in ends
        winner = step.candidates.tokens[step.candidates.scores.chosen]
        if embedded.detokenize(winner.tolist()).endswith(b"\n"):
            np.testing.assert_array_equal(step.tokens, winner)
            assert step.counts.chunk == 0
        else:
            np.testing.assert_array_equal(step.tokens[: len(winner)], winner)
    assert [step.finish for step in steps[:-1]] == [None] * (len(steps) - 1)


def test_without_reuse_a_chunk_goes_on_after_its_line(embedded: Engine) -> None:
    config = dataclasses.replace(LINES, reuse_winner=False)
    _, steps = run_of(embedded, "tgr-latent", config)
    assert [len(step.tokens) for step in steps[:-1]] == [48] * (len(steps) - 1)


def test_a_stop_text_ends_the_text_within_a_rollout(embedded: Engine) -> None:
    for stop in ("\n", "7+4*"):
        config = dataclasses.replace(LINES, stop=(stop,))
        _, steps = run_of(embedded, "tgr-latent", config)
        assert steps[-1].finish == "stop"
        text = embedded.detokenize([t for step in steps for t in step.tokens.tolist()])
        assert text.count(stop.encode()) == 1


def test_the_forward_tokens_pay_for_whole_lines(embedded: Engine) -> None:
    for budget in (200, 300, 400):
        config = dataclasses.replace(LINES, max_forward_tokens=budget)
        _, steps = run_of(embedded, "tgr-latent", config)
        assert spent(steps) <= budget


def test_lines_cannot_be_doubled() -> None:
    with pytest.raises(ValueError, match=r"min_gap is 0\.1, but a rollout to the end of its line"):
        SearchConfig(rollout_end="line", min_gap=0.1)


def test_every_chunk_may_be_as_short_as_a_line(embedded: Engine) -> None:
    positions = methods.get("tgr-latent").positions
    assert positions is not None
    # 24 resets of 48 tokens, 3 rollouts of 40 tokens and a state of 2
    assert positions(embedded, 30, LINES) == 30 + 24 * 48 + 24 * (48 + 3 * 40 + 2)
    two = dataclasses.replace(LINES, max_tokens=96, reuse_winner=False)
    assert positions(embedded, 30, two) == 30 + 96 + 2 * (48 + 3 * 40 + 2)
