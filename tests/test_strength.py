"""The strength of the injection: how it is found, what it means, where it is kept; the guard; and
the chunks before the search."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import EXACT
from families import FAMILIES, Family
from fixture_types import Load, Model
from method_runs import PROMPT, SMALL, group_of, spent, steps_of, text_of, with_
from reference import Reference, log_softmax

from tgr_local import generate, generate_many, methods
from tgr_local.engine import Engine, SteeredEngine
from tgr_local.generation import Reply
from tgr_local.generation.control_vectors import ControlVector
from tgr_local.options import strength_files
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.search import geometry, maps, strength
from tgr_local.search.run import Run
from tgr_local.system import file_hash, paths
from tgr_local.system.errors import CapacityError

STEERERS = ["tgr-latent", "random-anchor", "hard-geometry"]
MEASURED = with_(calibration="divergence", divergence=0.05)
LONG = dataclasses.replace(MEASURED, chunk_len=6, max_chunks=4, search_from=1)


@pytest.fixture(autouse=True)
def unknown() -> Iterator[None]:
    """No test knows what another one measured."""

    def forget() -> None:
        for known in (strength._known, strength._out_of_reach, file_hash._known):
            known.clear()

    forget()
    yield
    forget()


# ---- the search for it ----


@pytest.mark.parametrize("unit", [1e-3, 0.2, 1.0, 50.0, 3e4])
@pytest.mark.parametrize("wanted", [0.001, 0.05, 3.0])
def test_it_finds_the_strength_of_a_divergence(unit: float, wanted: float):
    asked = []

    def divergence(zeta: float, n: int) -> float:
        asked.append(n)
        x = (zeta / unit) ** 2
        return 8.0 * x / (8.0 + x)  # quadratic, then saturated

    zeta, reached = strength.find(divergence, wanted, 96)
    assert reached == divergence(zeta, 96) and wanted / 1.2 <= reached <= wanted * 1.2
    assert set(asked) == {24, 96}


def test_a_part_that_misleads_costs_tries_only():
    """The first quarter of the text bears a hundred times less."""
    zeta, reached = strength.find(lambda z, n: (z if n == 96 else 100 * z) ** 2, 0.05, 96)
    assert abs(math.log(reached / 0.05)) <= math.log(1.2) and zeta == pytest.approx(0.22, rel=0.1)


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        (lambda z, n: 0.0, 0.0),  # nothing has an effect
        (lambda z, n: 0.02 + z**2, 0.02),  # rounding alone has more
        (lambda z, n: math.inf if z > 1e-4 else z, 1e-4),
        (lambda z, n: math.nan if z > 0.01 else z**2, 1e-4),
    ],
)
def test_a_divergence_out_of_reach_gives_the_nearest_try(
    divergence: Callable[[float, int], float], expected: float
):
    zeta, reached = strength.find(divergence, 0.01, 96)
    assert 0 < zeta <= strength_files.HIGHEST and reached == pytest.approx(
        expected, rel=0.5, abs=1e-9
    )


def test_the_estimate_is_that_of_the_numpy_reference(engine: Engine, model: Model):
    """… for the same tokens; over all next tokens it is their divergence, which it estimates."""
    reference, config = Reference(model()), with_(calibration="divergence", divergence=0.05)
    prompts, zeta = [PROMPT, PROMPT[::-1]], 3.0
    with (
        engine.session(strength.N_CELLS, strength.N_SEQUENCES) as session,
        contextlib.closing(strength.Reading(engine, session, config, session.run)) as reading,
    ):
        reading.write(prompts, 40)
        found = reading.divergence(zeta, 40)
        texts = reading.texts
    estimates, exact = [], []
    for prompt, text in zip(prompts, texts, strict=True):
        feed, n, own = [*prompt[:-1], *text], len(prompt), ([], [])
        vectors = np.zeros((len(feed), engine.n_layer, engine.n_embd))
        p = log_softmax(reference.forward(feed, vectors).logits[n - 1 : -1])
        for vector in strength.vectors(engine, config):
            vectors[n - 1 :] = zeta * vector  # from the pending token on
            q = log_softmax(reference.forward(feed, vectors).logits[n - 1 : -1])
            d = (q - p)[np.arange(len(p)), text[1:]]
            own[0].append(np.mean(np.expm1(d) - d))
            own[1].append(np.mean(np.sum(np.exp(p) * (p - q), axis=1)))
        estimates.append(np.mean(own[0]))
        exact.append(np.mean(own[1]))
    assert found == pytest.approx(max(estimates), rel=1e-3)
    assert found == pytest.approx(max(exact), rel=0.35)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
def test_every_kind_of_model_has_a_strength(family: Family, tmp_path, load: Load):
    """Hybrids, mixtures of experts, models without a template."""
    engine = load(family.write(tmp_path / "model.gguf"))
    found = strength.prepare(engine, SearchConfig(divergence=0.05))
    assert found is not None
    assert found.divergence == pytest.approx(0.05, rel=0.25)
    assert 0 < found.n_positions <= strength.MEASUREMENT.positions


def test_a_model_that_ends_at_once_is_measured_past_its_end(engine: Engine):
    ends = engine.end_tokens
    engine.end_tokens = frozenset(range(engine.n_vocab))
    try:
        found = strength.prepare(engine, MEASURED)
    finally:
        engine.end_tokens = ends
    assert found and found.divergence == pytest.approx(0.05, rel=0.25)


# ---- where it is kept ----


def test_it_is_measured_once_and_kept(engine: Engine):
    first = strength.prepare(engine, MEASURED)
    before = engine.stats().n_positions
    assert strength.prepare(engine, MEASURED) is first
    strength._known.clear()
    file_hash._known.clear()
    assert strength.prepare(engine, MEASURED) == first
    assert engine.stats().n_positions == before
    file_hash.of(engine.path)
    ((settings, kept),) = strength_files.of_model(engine.path, divergence=0.05, rank=8).values()
    assert kept == first and settings["model"] == engine.model_hash
    assert strength_files.of_model(engine.path, rank=4) == {}


@pytest.mark.parametrize(
    "change",
    [{"divergence": 0.1}, {"rank": 4}, {"injection_seed": 7}, {"d_z": 16}],
)  # fmt: skip
def test_other_settings_have_a_strength_of_their_own(engine: Engine, change: dict[str, Any]):
    strength.prepare(engine, MEASURED)
    assert strength.known(engine, dataclasses.replace(MEASURED, **change)) is None
    for same in ({"eta": 3.0}, {"sigma": 1.0}, {"seed": 9}, {"n_candidates": 5}):
        assert strength.known(engine, dataclasses.replace(MEASURED, **same)) is not None


def test_cache_types_and_control_vectors_have_one_too(engine: Engine, load: Load):
    strength.prepare(engine, MEASURED)
    vectors = np.ones((engine.n_layer, engine.n_embd), np.float32)
    assert strength.known(SteeredEngine(engine, vectors), MEASURED) is None
    assert strength.known(load(engine.path, type_k="f16"), MEASURED) is None
    assert strength.known(load(engine.path), MEASURED) is not None


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"format": 1}', b"\xff" * 10, b" " * (1 << 17), {"format": 1},
     {"settings": {"rank": "x"}}, {"zeta": 0.0}, {"zeta": -1.0}, {"zeta": 1e30}],
)  # fmt: skip
def test_a_damaged_file_is_measured_again(engine: Engine, damage: bytes | dict[str, Any]):
    """Other bytes, or the file with another value."""
    first = strength.prepare(engine, MEASURED)
    (path,) = (paths.folder("cache") / "strengths").glob("*.json")
    if isinstance(damage, dict):
        damage = json.dumps(json.loads(path.read_bytes()) | damage).encode()
    path.write_bytes(damage)
    assert strength_files.of_model(engine.path) == {}
    strength._known.clear()
    again = strength.prepare(engine, MEASURED)
    assert again and first and again.zeta == first.zeta
    assert json.loads(path.read_bytes())["zeta"] == first.zeta


def test_a_folder_that_cannot_be_written_costs_nothing_else(engine: Engine, home: Path):
    (home / "cache").write_text("a file in the place of the folder")
    first = strength.prepare(engine, MEASURED)
    assert first is not None and strength.prepare(engine, MEASURED) is first


def test_a_changed_file_is_another_model(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"one")
    assert file_hash.known(path) is None
    first = file_hash.of(path)
    file_hash._known.clear()
    assert file_hash.known(path) == first
    path.write_bytes(b"another")
    assert file_hash.known(path) is None and file_hash.of(path) != first
    assert file_hash.known(tmp_path / "missing") is None


# ---- in a run ----


@pytest.mark.parametrize("method", STEERERS)
def test_a_run_measures_it_before_its_first_injection(engine: Engine, method: str):
    before = engine.stats().n_positions
    steps = steps_of(engine, method, LONG)
    assert engine.stats().n_positions - before == spent(steps)
    found = strength.known(engine, LONG)
    assert found is not None and len(steps) == 4
    assert [step.counts.calibration for step in steps] == [0, found.n_positions, 0, 0]
    assert steps[0].anchor is None and steps[0].figures == {}
    for step in steps[1:]:
        assert (step.figures["zeta"], step.figures["divergence"]) == (found.zeta, found.divergence)
    again = steps_of(engine, method, LONG)
    assert text_of(again) == text_of(steps)
    assert spent(again) == spent(steps) - found.n_positions


def test_the_injection_is_that_of_the_strength(engine: Engine):
    found = strength.prepare(engine, MEASURED)
    assert found is not None
    anchor = geometry.unit(np.arange(1.0, engine.n_embd + 1))
    (vectors,) = maps.of(engine, MEASURED).injection.vectors(anchor[None])
    doubled = dataclasses.replace(MEASURED, eta=2.0)
    added = ControlVector.of_anchor(engine, anchor, doubled, []).added
    np.testing.assert_allclose(added, 2 * found.zeta * vectors, rtol=1e-5)


def test_a_budget_too_small_for_it_leaves_the_boundaries_plain(engine: Engine):
    small = dataclasses.replace(LONG, max_forward_tokens=600)
    steps = steps_of(engine, "tgr-latent", small)
    assert len(steps) == 4 and strength.known(engine, LONG) is None
    assert [step.figures for step in steps] == [{}, {"plain": 1.0}, {"plain": 1.0}, {"plain": 1.0}]
    assert text_of(steps) == text_of(steps_of(engine, "markov", small))


def test_a_time_too_short_for_it_ends_the_run_as_always(engine: Engine):
    steps = steps_of(engine, "tgr-latent", dataclasses.replace(LONG, max_seconds=1e-6))
    assert steps[-1].finish == "budget" and strength.known(engine, LONG) is None


def test_a_cache_too_small_for_it_leaves_the_boundaries_plain(model: Model, load: Load):
    engine = load(model(), n_ctx=48)
    steps = steps_of(engine, "tgr-latent", LONG)
    assert text_of(steps) == text_of(steps_of(engine, "markov", LONG))
    assert all(step.figures == {"plain": 1.0} for step in steps[1:])
    assert strength.prepare(engine, LONG) is None
    with pytest.raises(CapacityError, match="no room to measure"):
        ControlVector.of_anchor(engine, np.ones(engine.n_embd), LONG, PROMPT)


def test_a_group_measures_it_beforehand(engine: Engine):
    seen = []
    replies = generate_many(
        engine, PROMPT, LONG, 3, method="tgr-latent", raw=True,
        on_event=lambda i, event: seen.append((i, event)),
    )  # fmt: skip
    assert strength.known(engine, LONG) is not None
    assert [getattr(event, "stage", "") for _, event in seen].count("calibration") == 1
    assert all("zeta" in reply.steps[1].figures for reply in replies)
    found = strength.known(engine, LONG)
    assert found is not None
    assert [reply.counts.calibration for reply in replies] == [found.n_positions, 0, 0]


def test_a_group_that_was_not_prepared_stays_plain(engine: Engine):
    for steps in group_of(engine, "tgr-latent", LONG, 2):
        assert all(step.figures == {"plain": 1.0} for step in steps[1:])


@pytest.mark.parametrize("limit", [{"max_forward_tokens": 3000}, {"max_seconds": 1e-5}])
def test_a_group_with_a_limit_measures_nothing(engine: Engine, limit: dict[str, Any]):
    config = dataclasses.replace(LONG, **limit)
    replies = generate_many(engine, PROMPT, config, 2, method="tgr-latent", raw=True)
    assert strength.known(engine, LONG) is None
    assert all(step.anchor is None for reply in replies for step in reply.steps)
    roomy = dataclasses.replace(LONG, max_forward_tokens=90_000, max_seconds=600.0)
    generate_many(engine, PROMPT, roomy, 2, method="tgr-latent", raw=True)
    assert strength.known(engine, LONG) is not None


def test_few_sequences_leave_the_boundaries_plain(model: Model, load: Load):
    engine = load(model(), n_seq_max=6)
    for method in STEERERS:
        steps = steps_of(engine, method, LONG)
        assert len(steps) == 4 and all(step.figures["plain"] == 1 for step in steps[1:])
    replies = generate_many(engine, PROMPT, LONG, 1, method="random-anchor", raw=True)
    assert [reply.n_plain for reply in replies] == [3]


def test_a_divergence_out_of_reach_is_tried_once(engine: Engine):
    low = dataclasses.replace(LONG, divergence=10.0, eta=1e-30)
    for _ in range(2):
        steps = steps_of(engine, "tgr-latent", low)
        if strength.known(engine, low) is None:
            assert all(step.figures == {"plain": 1.0} for step in steps[1:])


def test_a_file_that_was_replaced_gives_and_takes_no_strength(tmp_path, model: Model, load: Load):
    path = tmp_path / "model.gguf"
    path.write_bytes(model().read_bytes())
    engine = load(path, use_mmap=False)
    other = tmp_path / "other.gguf"
    other.write_bytes(model("llama").read_bytes())
    other.replace(path)
    assert strength.prepare(engine, MEASURED) is not None
    assert not list((paths.folder("cache") / "strengths").glob("*.json"))


def test_no_injection_needs_no_strength(engine: Engine):
    off = dataclasses.replace(LONG, eta=0.0)
    steps = steps_of(engine, "tgr-latent", off)
    assert strength.known(engine, off) is None and "zeta" not in steps[1].figures
    assert steps[1].candidates is not None


# ---- the guard ----


def test_its_excess_is_that_of_the_numpy_reference(engine: Engine, model: Model):
    config = with_(guard=100.0, eta=30.0, max_chunks=2)
    steps = steps_of(engine, "tgr-latent", config)
    context, reference = list(PROMPT), Reference(model())
    for step in steps:
        assert step.candidates is not None
        tokens = step.candidates.tokens[step.candidates.scores.chosen].tolist()
        feed, n = [*context, *tokens], len(context)
        plain = np.zeros((len(feed), engine.n_layer, engine.n_embd))
        p = log_softmax(reference.forward(feed, plain).logits[n - 1 : -1])
        wanted = step.candidates.logprobs[step.candidates.scores.chosen].mean()
        wanted -= p[np.arange(len(tokens)), tokens].mean()
        assert step.figures["excess"] == pytest.approx(wanted, abs=1e-3)
        assert step.counts.guard == 1 + len(tokens)
        context = [*PROMPT, *step.tokens.tolist()]


def test_a_strength_that_is_too_high_is_held_back(engine: Engine):
    """Ten times and more: the text is that without any injection, and it says so."""
    strong = with_(guard=0.5, eta=1e4)
    steps = steps_of(engine, "tgr-latent", strong)
    assert text_of(steps) == text_of(steps_of(engine, "markov", strong))
    for step in steps:
        assert step.figures["excess"] > 0.5 and step.figures["plain"] == 1
        assert step.anchor is None and step.candidates is not None
    unguarded = steps_of(engine, "tgr-latent", dataclasses.replace(strong, guard=0.0))
    assert text_of(unguarded) != text_of(steps)
    assert all(step.counts.guard == 0 and "plain" not in step.figures for step in unguarded)


@pytest.mark.parametrize(
    "more",
    [{"n_candidates": 1}, {"n_mc": 2}, {"reevaluate": 2}, {"reuse_winner": True},
     {"reuse_winner": True, "eta": 1e4}, {"shift_cells": True}],
)  # fmt: skip
def test_it_holds_with_every_extension(engine: Engine, more: dict[str, Any]):
    before = engine.stats().n_positions
    steps = steps_of(engine, "tgr-latent", with_(guard=0.5, **more))
    assert engine.stats().n_positions - before == spent(steps)
    assert all(step.figures["plain"] == (step.figures["excess"] > 0.5) for step in steps)


def test_a_reply_counts_what_was_held_back(engine: Engine):
    def written(config: SearchConfig) -> Reply:
        return generate(engine, PROMPT, config, method="tgr-latent", raw=True)

    reply = written(with_(guard=0.5, eta=1e4))
    assert reply.n_plain == len(reply.steps) and reply.counts.guard > 0
    assert written(SMALL).n_plain == 0


# ---- the chunks before the search ----


@pytest.mark.parametrize("method", [*STEERERS, "tgr-token"])
def test_a_reply_shorter_than_a_chunk_is_plain_sampling(engine: Engine, method: str):
    config = dataclasses.replace(LONG, max_tokens=6)
    for on_event in (None, lambda event: None):
        ours = generate(engine, PROMPT, config, method=method, raw=True, on_event=on_event)
        plain = generate(engine, PROMPT, config, method="base", raw=True, on_event=on_event)
        assert ours.tokens == plain.tokens
        assert ours.counts.total == plain.counts.total
    assert strength.known(engine, config) is None


@pytest.mark.parametrize("method", [*STEERERS, "tgr-token"])
def test_the_chunks_before_the_search_are_those_of_markov(engine: Engine, method: str):
    strength.prepare(engine, MEASURED)
    for first in (1, 2, 3, 9):
        config = dataclasses.replace(MEASURED, search_from=first)
        steps = steps_of(engine, method, config)
        markov = steps_of(engine, "markov", config)
        for ours, plain in zip(steps[:first], markov, strict=False):
            assert ours.tokens.tolist() == plain.tokens.tolist()
            assert ours.candidates is None and ours.anchor is None
        for step in steps[first:]:
            assert step.anchor is not None or step.candidates is not None


def test_the_state_before_the_first_search_is_that_of_the_context(
    engine: Engine, load: Load, model: Model
):
    config = with_(search_from=2)
    steps = steps_of(engine, "tgr-latent", config)
    assert [step.state is None for step in steps] == [True, False, False, True]
    np.testing.assert_array_equal(steps[2].origin, steps[1].state)


def test_the_text_of_the_first_chunk_is_remembered(model: Model):
    """A conversation's next turn takes the query and the reply from the cache."""
    with Engine(model(), EngineConfig(**EXACT | {"prefix_cells": 500})) as engine:
        config = dataclasses.replace(LONG, max_tokens=6)
        reply = generate(engine, PROMPT * 8, config, method="tgr-latent", raw=True)
        longer = [*PROMPT * 8, *reply.tokens, 5, 6, 7]
        again = generate(engine, longer, config, method="tgr-latent", raw=True)
        assert again.counts.reused >= len(PROMPT * 8) + len(reply.tokens) - 1


def test_a_run_that_stays_plain_reserves_nothing_to_measure(engine: Engine):
    method = methods.get("tgr-latent")
    short = dataclasses.replace(LONG, max_tokens=6)
    markov = methods.get("markov").cells(engine, len(PROMPT), short)
    assert method.cells(engine, len(PROMPT), short) <= markov + 2 * SMALL.rollout_len * 8
    assert method.cells(engine, len(PROMPT), LONG) > strength.N_CELLS
    assert method.sequences(engine, LONG) > strength.N_SEQUENCES
    run = Run(engine, PROMPT, LONG)
    assert run.spent == 0
