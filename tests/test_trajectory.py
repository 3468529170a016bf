"""The moves of a trajectory against the numpy reference, and what four methods make of them.

The laws of all methods are in test_methods.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import ENDLESS, TOKENS, is_free
from fixture_types import Load, Model
from method_runs import PROMPT, RESIDUAL, decoded, spent, steps_of, text_of
from reference import Reference

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Sampling, Task
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry, scoring
from tgr_local.search.run import Run
from tgr_local.search.seeds import derived_seed
from tgr_local.search.steps import Counts, Progress, Seconds
from tgr_local.search.trajectory import Trajectory
from tgr_local.system.errors import CancelledError, CapacityError

SMALL = SearchConfig(
    chunk_len=8, max_chunks=4, n_candidates=3, rollout_len=5, temperature=0.8, **RESIDUAL
)
TGR_LATENT = methods.get("tgr-latent")
METHODS = ["base", "markov", "random-anchor", "tgr-latent"]  # whose moves are those of this page
STEERED = ("random-anchor", "tgr-latent")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"n_candidates": 1},
    {"n_mc": 2},
    {"rank": 1},
    {"d_z": 16},
    {"d_z": 100},
    {"calibration": "absolute"},
    {"eta": 0.0},
    {"sigma": 0.0},
    {"temperature": 0.0},
    {"relative_strength": 1.0, "foresight_weight": 0.0},
    {"eoc_token": "<|im_start|>"},
    {"repeat_penalty": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
]
EXTENSIONS: list[dict[str, Any]] = [
    {"reevaluate": 2, "n_mc": 2},
    {"reuse_winner": True},
    {"reuse_winner": True, "rollout_len": 20, "reevaluate": 1},
    {"reuse_winner": True, "n_mc": 2},
]

every_method = pytest.mark.parametrize("method", METHODS)


def with_(**options: Any) -> SearchConfig:
    return dataclasses.replace(SMALL, **options)


# --- records ---


def test_counts_and_seconds_add_up():
    one = Counts(query=1, rebuild=2, rollouts=3, chunk=4, delimiter=5)
    assert one.total == 15
    assert one + Counts(rollouts=10) == Counts(1, 2, 13, 4, 5)
    assert Counts(query=3, reused=100).total == 3 and (one + Counts(reused=9)).reused == 9
    assert (Seconds(rebuild=0.5) + Seconds(chunk=1.0)).total == 1.5


def test_derived_seeds_change_with_every_part():
    parts = [(42, 0, 1, 0), (43, 0, 1, 0), (42, 1, 1, 0), (42, 0, 2, 0), (42, 0, 1, 1)]
    seeds = [derived_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert seeds == [derived_seed(*part) for part in parts]
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_cells_needed_by_hand(engine: Engine):
    def n_cells(method: str = "tgr-latent", **options: Any) -> int:
        config = SearchConfig(chunk_len=100, n_candidates=4, n_mc=2, rollout_len=10, max_chunks=3)
        config = dataclasses.replace(config, calibration="residual", **options)
        return methods.get(method).cells(engine, 50, config) - 50 - 8

    assert n_cells() == 100 + 100
    assert n_cells(rollout_len=20) == 100 + 160
    assert n_cells("markov", rollout_len=20) == 100 + 100
    assert n_cells("base") == 300
    assert n_cells(max_chunks=1) == 100
    assert n_cells(max_chunks=1, rollout_len=20) == 100  # nothing is searched before the first
    assert n_cells(max_chunks=1, rollout_len=20, search_from=0) == 160
    assert n_cells(max_tokens=130) == 100 + 80  # the rollouts, after a whole chunk
    assert n_cells("markov", max_tokens=130) == 130


# --- against the reference ---


def test_plain_chunks_are_read_in_the_right_context(engine: Engine):
    reference = Reference(engine.path)
    for method, keeps in (("base", 10**6), ("markov", SMALL.chunk_len)):
        written: list[int] = []
        for step in steps_of(engine, method, SMALL):
            tokens = step.tokens.tolist()
            logprobs, _ = decoded(reference, PROMPT + written[-keeps:], tokens)
            np.testing.assert_allclose(step.logprobs, logprobs, atol=1e-4)
            written += tokens


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", OPTIONS + EXTENSIONS, ids=str)
def test_tgr_latent_follows_the_method_step_by_step(engine: Engine, options: dict[str, Any]):
    """Every number of a run, from the reference and the equations alone, except what the samplers
    and the proposal drew."""
    config = with_(**options)
    steps = steps_of(engine, "tgr-latent", config)
    reference = Reference(engine.path)
    d_h, d_z = engine.n_embd, config.d_z or engine.n_embd
    W = geometry.projection(d_z, d_h, config.injection_seed)
    maps = geometry.InjectionMaps.draw(engine.n_layer, d_h, d_z, config.rank, config.injection_seed)
    delimiter = engine.eoc_token(config.eoc_token)

    h_eoc = reference.forward([*PROMPT, delimiter]).states[-1]
    written: list[int] = []
    assert len(steps) == 4
    for step in steps:
        found = step.candidates
        assert found is not None and step.anchor is not None and step.origin is not None
        context = PROMPT + written[-config.chunk_len :]
        z = geometry.state_anchor(h_eoc, W)
        np.testing.assert_allclose(step.origin, z, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(found.anchors, axis=1), 1)
        assert found.anchors.shape == (config.n_candidates, d_z)

        norms = reference.forward(context[:-1]).residual_norms
        norms = np.median(norms, axis=1)
        rho = geometry.injection_scale(norms, config.relative_strength, config.calibration)
        vectors = config.eta * rho[:, None] * maps.vectors(found.anchors)

        V, bumpy = [], []
        rollouts = zip(found.tokens, found.logprobs, found.owners, strict=True)
        for tokens, logprobs, owner in rollouts:
            injection = vectors[owner]
            wanted, states = decoded(reference, context, tokens.tolist(), injection)
            np.testing.assert_allclose(logprobs, wanted, atol=1e-4)
            V.append(wanted.mean())
            g = geometry.unit(states)
            second = g[2:] - 2 * g[1:-1] + g[:-2]
            bumpy.append(np.mean(np.sum(second**2, axis=1)) if len(g) > 2 else np.nan)
        known = np.array(bumpy)[np.isfinite(bumpy)]
        bumpy = np.where(np.isnan(bumpy), known.mean() if len(known) else 0.0, bumpy).tolist()
        own = [found.owners == k for k in range(config.n_candidates)]
        scores = scoring.combine(
            np.array([np.array(V)[mine].mean() for mine in own]),
            np.array([np.array(bumpy)[mine].mean() for mine in own]),
            np.maximum(0, found.anchors @ z - config.delta),
            scoring.Weights(config.foresight_weight, config.lambda_b, config.lambda_u),
        )
        for term in ("foresight", "bumpiness", "uniformity"):
            ours, theirs = getattr(found.scores, term), getattr(scores, term)
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
        np.testing.assert_allclose(found.scores.total, scores.total, atol=1e-2)
        assert found.scores.chosen == np.argmax(found.scores.total)
        np.testing.assert_array_equal(step.anchor, found.anchors[found.scores.chosen])

        chunk, injection = step.tokens.tolist(), vectors[found.scores.chosen]
        logprobs, _ = decoded(reference, context, chunk, injection)
        np.testing.assert_allclose(step.logprobs, logprobs, atol=1e-4)
        written += chunk
        if step.finish is None:
            text = [*context, *chunk, delimiter]
            everywhere = np.zeros((len(text), engine.n_layer, d_h))
            everywhere[len(context) - 1 : -1] = injection
            h_eoc = reference.forward(text, everywhere).states[-1]
            np.testing.assert_allclose(step.state, geometry.state_anchor(h_eoc, W), atol=1e-4)
        else:
            assert step is steps[-1] and step.state is None


def test_residual_norms_are_medians_over_the_tokens_of_the_prefix(engine: Engine):
    """The last layer is measured on some tokens of each part."""
    prompt = TOKENS * 6  # 143 in the query's cells: every eighth is measured in the last layer
    with Trajectory(Run(engine, prompt, SMALL), TGR_LATENT) as trajectory:
        trajectory.read_query()
        trajectory.write()
        trajectory.reset()
        found, context = trajectory.residual_norms, prompt + trajectory.generated
    norms = Reference(engine.path).forward(context[:-1]).residual_norms
    np.testing.assert_allclose(found[0], np.median(norms[0]), rtol=1e-5)
    query, rebuilt = norms[1, :143], norms[1, 143:]
    np.testing.assert_allclose(found[1], np.median([*query[::8], *rebuilt]), rtol=1e-5)


def test_reset_with_q_kept_equals_a_full_rebuild(engine: Engine):
    config = SMALL
    with Trajectory(Run(engine, PROMPT, config), TGR_LATENT) as trajectory:
        trajectory.read_query()
        injection = trajectory.injections(np.ones((3, 2, 64)))[0]
        outputs = trajectory.roll_out([injection] * 3)
        trajectory.choose(np.eye(3, 64), np.eye(64)[0], outputs)
        trajectory.write(injection)
        trajectory.read_state(injection)
        trajectory.reset()
        h, norms = trajectory.read_state(), trajectory.residual_norms
        context = PROMPT + trajectory.generated[-config.chunk_len :]
        trajectory.run.index += 1
        kept = trajectory.write()
    with Trajectory(Run(engine, context, config), TGR_LATENT) as fresh:
        fresh.read_query()
        np.testing.assert_allclose(h, fresh.read_state(), atol=1e-5)
        np.testing.assert_allclose(norms, fresh.residual_norms, rtol=1e-5)
        fresh.run.index = 1
        rebuilt = fresh.write()
    assert kept.tokens.tolist() == rebuilt.tokens.tolist()
    np.testing.assert_allclose(kept.logprobs, rebuilt.logprobs, atol=1e-5)


# --- laws ---


@every_method
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_positions_of_every_kind_are_counted(engine: Engine, method: str, options: dict[str, Any]):
    config = with_(**options)
    before = engine.stats().n_positions
    steps = steps_of(engine, method, config)
    assert engine.stats().n_positions - before == spent(steps)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert [step.finish is None for step in steps] == [True] * (len(steps) - 1) + [False]
    written = 0
    for step in steps:
        counts, last = step.counts, step.finish is not None
        kept = min(config.chunk_len, written)
        assert counts.query == (len(PROMPT) - 1 if step.index == 0 else 0)
        assert counts.rebuild == (0 if method == "base" else kept)
        assert counts.chunk == len(step.tokens) == len(step.logprobs) == len(step.entropies)
        rollouts = step.candidates.tokens if step.candidates else []
        assert counts.rollouts == sum(len(tokens) for tokens in rollouts)
        readings = (method in STEERED) * ((step.index == 0) + (not last))
        assert counts.delimiter == 2 * readings
        written += len(step.tokens)


@every_method
@pytest.mark.parametrize("n_prompt", [1, 2, 10])
def test_the_smallest_budget_suffices(engine: Engine, method: str, n_prompt: int):
    prompt = PROMPT[:n_prompt]
    with pytest.raises(ValueError, match="max_forward_tokens is 1") as refusal:
        # a lone chunk of a plain method costs one position already
        steps_of(engine, method, with_(max_forward_tokens=1), prompt * 2)
    assert is_free(engine)
    # |Q| - 1 positions, the state twice, all rollouts, one token
    extra = {"tgr-latent": 2 * 2 + 3 * 5, "random-anchor": 2 * 2}.get(method, 0)
    assert re.search(rf"takes at least {2 * n_prompt - 1 + extra + 1};", str(refusal.value))
    least = max(1, n_prompt - 1) + extra + 1
    for budget in (*range(least, least + 45), 10**4):
        before = engine.stats().n_positions
        steps = steps_of(engine, method, with_(max_forward_tokens=budget), prompt)
        assert engine.stats().n_positions - before == spent(steps) <= budget
        assert all(len(step.tokens) for step in steps)
        assert steps[-1].finish in ("budget", "length", "stop")
        if budget == least:
            assert steps[-1].finish == "budget"
    if least > 1:
        with pytest.raises(ValueError, match=f"is {least - 1}, but the first step alone"):
            steps_of(engine, method, with_(max_forward_tokens=least - 1), prompt)


@pytest.fixture
def letters(monkeypatch) -> None:
    """Lets the random model write small letters only, so that its text can be searched."""
    sampling = Sampling(0.8, grammar="root ::= [a-z]{500}")
    monkeypatch.setattr(Sampling, "of", classmethod(lambda cls, *_: sampling))


@every_method
def test_a_stop_text_ends_the_reply_wherever_it_begins(engine: Engine, method: str, letters: None):
    config = with_(n_candidates=1)  # a stop text ends rollouts too, which could change the choice
    steps = steps_of(engine, method, config)
    assert steps[-1].finish == "length"
    pieces = [engine.detokenize(step.tokens).decode() for step in steps]
    text, border = "".join(pieces), len(pieces[0])
    for stop in (text[2:4], text[border - 2 : border + 2], text[border - 1 : border + 4]):
        stopped = steps_of(engine, method, dataclasses.replace(config, stop=("?", stop)))
        short = engine.detokenize(text_of(stopped)).decode()
        assert stopped[-1].finish == "stop" and short.endswith(stop)
        assert short == text[: text.index(stop) + len(stop)]


def test_every_chunk_and_every_rollout_draws_with_a_seed_of_its_own(engine: Engine):
    texts = []
    for index in (0, 1):
        with Trajectory(Run(engine, PROMPT, SMALL), TGR_LATENT) as trajectory:
            trajectory.read_query()
            trajectory.run.index = index
            (zero, *_) = trajectory.injections(np.zeros((1, 2, 64)))
            rollouts = trajectory.roll_out([zero] * 3)
            texts += [tuple(output.tokens) for output in rollouts]
            texts.append(tuple(trajectory.write(zero).tokens[:5]))
    assert len(set(texts)) == 8


@every_method
def test_progress_reports_every_stage_and_every_token(engine: Engine, method: str):
    events: list[Progress] = []
    steps = steps_of(engine, method, SMALL, on_event=events.append)
    for step in steps:
        mine = [progress for progress in events if progress.chunk == step.index]
        stages = list(dict.fromkeys(progress.stage for progress in mine))
        rebuilt = [] if method == "base" and step.index else ["rebuild"]
        searched = ["rollouts", "scored"] if step.candidates else []
        assert stages == [*rebuilt, *searched, "tokens"]
        tokens = [token for progress in mine for token in progress.tokens]
        assert tokens == step.tokens.tolist()
        for progress in mine:
            assert (progress.candidates is not None) == (progress.stage == "scored")


# --- ends before the end ---


@pytest.mark.parametrize("stage", ["rebuild", "rollouts"])
def test_cancel_while_the_engine_decodes(model: Model, load: Load, stage: str):
    """The flag is set from outside, some milliseconds into a long prefill or long rollouts."""
    engine, cancel = load(model(n_ctx_train=30_000)), Cancel()
    prompt = [1] * ENDLESS if stage == "rebuild" else PROMPT
    config = with_(rollout_len=1 if stage == "rebuild" else ENDLESS, chunk_len=1)

    def on_event(progress: Progress) -> None:
        if progress.stage == stage:
            threading.Timer(0.01, cancel.cancel).start()

    before = engine.stats().n_positions
    with pytest.raises(CancelledError):
        steps_of(engine, "tgr-latent", config, prompt, on_event=on_event, cancel=cancel)
    assert is_free(engine)
    assert engine.stats().n_positions - before < ENDLESS


# --- what options mean ---


def test_without_injection_a_chunk_is_markovs_and_candidates_differ_by_seed_alone(engine: Engine):
    still = steps_of(engine, "tgr-latent", with_(eta=0.0))
    plain = steps_of(engine, "markov", SMALL)
    assert text_of(still) == text_of(plain)
    for mine, theirs in zip(still, plain, strict=True):
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-5)
    elsewhere = steps_of(engine, "tgr-latent", with_(eta=0.0, sigma=3.0))
    for mine, theirs in zip(still, elsewhere, strict=True):
        assert mine.candidates and theirs.candidates
        rollouts = [tuple(tokens) for tokens in mine.candidates.tokens]
        assert rollouts == [tuple(tokens) for tokens in theirs.candidates.tokens]
        assert len(set(rollouts)) == 3


def test_a_strong_injection_changes_the_chunk(engine: Engine):
    strong = steps_of(engine, "tgr-latent", with_(relative_strength=2.0))
    assert text_of(strong) != text_of(steps_of(engine, "markov", SMALL))


def test_the_injection_seed_draws_other_maps(engine: Engine):
    one, other = (
        steps_of(
            engine, "tgr-latent",
            with_(injection_seed=seed, relative_strength=2.0, temperature=0.0),
        )
        for seed in (1, 2)
    )  # fmt: skip
    assert one[0].candidates and other[0].candidates
    np.testing.assert_array_equal(one[0].candidates.anchors, other[0].candidates.anchors)
    assert text_of(one) != text_of(other)


# --- what is refused ---


@pytest.mark.parametrize(
    ("those", "options", "error", "message"),
    [
        (METHODS[1:], {"chunk_len": 4090}, CapacityError, "the model was trained for 4096"),
        (METHODS[3:], {"rollout_len": 4090}, CapacityError, "the model was trained for 4096"),
        (METHODS[3:], {"rollout_len": 2**31 - 1}, CapacityError, "the model was trained for 4096"),
        (METHODS[3:], {"n_candidates": 200, "n_mc": 2}, CapacityError, "needs 401 sequences"),
        (STEERED, {"d_z": 1}, ValueError, "d_z is 1"),
        (STEERED, {"eoc_token": "ab"}, ValueError, "eoc_token is 'ab'"),
        (STEERED, {"eta": 1e300}, ValueError, "not finite"),
    ],
)
def test_impossible_runs_are_refused_and_leave_nothing(
    engine: Engine, those: list[str], options: Any, error: Any, message: str
):
    for method in those:
        with pytest.raises(error, match=message):
            steps_of(engine, method, with_(**options))
        assert is_free(engine)


def test_base_writes_to_the_end_of_the_trained_context(model: Model, load: Load):
    engine = load(model(n_ctx_train=32))
    steps = steps_of(engine, "base", with_(temperature=0.0))
    assert len(text_of(steps)) == 22 and steps[-1].finish == "length"


# --- memory ---


@pytest.mark.parametrize(
    ("chunk", "candidates", "rollout", "n_mc"),
    [(32, 4, 8, 1), (16, 4, 8, 1), (16, 3, 4, 2), (64, 8, 4, 1), (40, 2, 4, 1)],
)
def test_cached_tokens_stay_bounded_over_24_chunks(
    engine: Engine, chunk: int, candidates: int, rollout: int, n_mc: int
):
    """|Q| + S + K·N_MC·s and a few, or where a chunk is longer than all rollouts |Q| + 2 S."""
    config = SearchConfig(
        chunk_len=chunk, n_candidates=candidates, rollout_len=rollout, n_mc=n_mc, temperature=0.0,
        **RESIDUAL,
    )  # fmt: skip
    steps = steps_of(engine, "tgr-latent", config)
    assert len(steps) == 24
    rollouts = candidates * n_mc * rollout
    assert max(step.cells for step in steps) <= len(PROMPT) + chunk + max(chunk, rollouts) + 8
    assert len({step.cells for step in steps[1:-1]}) == 1  # it does not creep


def resident_bytes() -> int:
    status = Path("/proc/self/status")
    if "ASAN_OPTIONS" in os.environ:
        pytest.skip("AddressSanitizer keeps what is freed")
    if not status.exists():
        pytest.skip("resident memory is read from /proc")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_resident_memory_does_not_grow_after_chunk_3(engine: Engine):
    """Within 2%, or 4 MiB where that is more: allocators keep arenas per thread."""
    config = SearchConfig(chunk_len=24, n_candidates=8, rollout_len=8, temperature=0.0)
    sizes = []
    for step in TGR_LATENT.run(Run(engine, PROMPT, config)):
        sizes.append(resident_bytes())
        del step
    assert len(sizes) == 24
    assert abs(sizes[-1] - sizes[3]) <= max(0.02 * sizes[3], 4 << 20)


def test_a_thousand_injections_free_their_memory(engine: Engine):
    with engine.session(64, 2) as session:
        sequence = session.sequence()
        for i in range(1000):
            injection = session.injection(np.full((2, 64), i))
            session.run([Task(sequence, [1], injection=injection)])
            injection.drop()
            sequence.truncate(0)
        assert session.peak_cells() == 1
