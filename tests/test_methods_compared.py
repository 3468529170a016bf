"""What the compared methods share, then tgr-token and hard-geometry; all keep the laws of
test_methods.py too."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pytest
from engines import TOKENS
from method_runs import (
    PROMPT,
    SMALL,
    assert_identical,
    assert_read_after_the_query,
    decoded,
    only,
    spent,
    steps_of,
    text_of,
    with_,
)
from reference import Reference

from tgr_local import methods
from tgr_local.console import render
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import generate, trace_file
from tgr_local.lab.eval.boundaries import acceptance
from tgr_local.lab.methods import hard_geometry
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry, scoring
from tgr_local.search.steps import Progress, Step

OURS = [
    "tgr-token", "hard-geometry", "best-of-n", "self-consistency", "power", "tot", "got",
    "vote", "auto",
]  # fmt: skip
WHOLE = ["best-of-n", "self-consistency", "vote", "auto", "power", "tot", "got"]


# --- what all of them share ---


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("best-of-n", {"n_samples": 1}),
        ("self-consistency", {"n_samples": 1}),
        ("vote", {"n_samples": 1}),
        ("tot", {"tree_breadth": 1, "tree_proposals": 1}),
    ],
)
def test_a_choice_of_one_text_is_base(engine: Engine, method: str, options: dict[str, int]):
    steps, base = steps_of(engine, method, with_(**options)), steps_of(engine, "base")
    assert text_of(steps) == text_of(base) and spent(steps) == spent(base)


@pytest.mark.parametrize("method", WHOLE)
def test_the_chosen_text_is_read_after_the_whole_query(engine: Engine, method: str):
    steps = steps_of(engine, method)
    assert [len(step.tokens) for step in steps] == [6, 6, 6, 6]
    logprobs = np.concatenate([step.logprobs for step in steps])
    assert_read_after_the_query(engine, text_of(steps), logprobs)
    first, *later = steps
    assert first.counts.query == len(PROMPT) - 1 and first.counts.discarded > 0
    assert all(step.counts.total == step.counts.chunk == 6 for step in later)
    assert [bool(step.figures) for step in steps] == [False, False, False, True]


@pytest.mark.parametrize("method", WHOLE)
def test_a_stop_text_ends_the_reply(engine: Engine, method: str, monkeypatch):
    only(tuple(engine.tokenize("x") + engine.tokenize("y")), monkeypatch, temperature=4.0)
    steps = steps_of(engine, method, with_(stop=("xy",), chunk_len=3, max_chunks=10))
    text = engine.detokenize(text_of(steps)).decode()
    assert set(text) <= {"x", "y"} and "xy" not in text[:-1]
    assert (steps[-1].finish == "stop") == text.endswith("xy")


@pytest.mark.parametrize("method", WHOLE)
def test_a_grammar_binds_the_whole_text(engine: Engine, method: str):
    config = with_(grammar='root ::= "abc" [xy]{14} "done"', chunk_len=5, max_chunks=6)
    text = engine.detokenize(text_of(steps_of(engine, method, config))).decode()
    assert re.fullmatch("abc[xy]{14}done", text)


@pytest.mark.parametrize("method", WHOLE)
def test_answer_now_ends_the_run_with_the_text_so_far(engine: Engine, method: str, monkeypatch):
    only(tuple(TOKENS[:4]), monkeypatch)  # no end token
    cancel = Cancel()

    def stop(progress: Progress) -> None:
        if progress.stage == "texts":
            cancel.answer_now()

    config = with_(chunk_len=3000)
    steps = steps_of(engine, method, config, on_event=stop, cancel=cancel)
    assert steps[-1].finish == "budget" and 1 <= len(text_of(steps)) < 3000


@pytest.mark.parametrize("method", ["best-of-n", "self-consistency"])
@pytest.mark.parametrize("limit", [{"max_tokens": 4}, {"max_forward_tokens": 60}])
def test_limited_samples_declare_fewer_cells(engine: Engine, method: str, limit: dict[str, int]):
    config = with_(n_samples=5, chunk_len=200, max_chunks=10, **limit)
    n_cells = methods.get(method).cells(engine, len(PROMPT), config)
    assert n_cells <= len(PROMPT) + max(5 * 4, 60) + 8
    steps = steps_of(engine, method, config)
    assert max(step.cells for step in steps) <= n_cells and spent(steps) <= n_cells * 5


@pytest.mark.parametrize("method", OURS)
def test_every_token_has_its_alternatives(engine: Engine, method: str):
    for step in steps_of(engine, method, with_(top_logprobs=3)):
        assert step.top_ids is not None and step.top_logprobs is not None
        assert [ids.shape for ids in step.top_ids] == [(3,)] * len(step.tokens)
        for token, logprob, ids, likeliest in zip(
            step.tokens, step.logprobs, step.top_ids, step.top_logprobs, strict=True
        ):
            assert likeliest[0] >= logprob - 1e-4
            if token in ids and method != "got":  # a rewritten text was drawn in another context
                np.testing.assert_allclose(likeliest[ids == token], logprob, atol=1e-4)


@pytest.mark.parametrize("method", OURS)
def test_a_trace_has_the_figures_of_a_run(engine: Engine, method: str, tmp_path):
    reply = generate(engine, "2 + 2 = ?", SMALL, method=method, raw=True)
    prompt = engine.tokenize("2 + 2 = ?")
    written = trace_file.make_trace(
        engine, trace_file.make_header(engine, prompt, SMALL, method), reply
    )
    file = io.StringIO()
    trace_file.write(file, written)
    (tmp_path / "t.jsonl").write_text(file.getvalue(), encoding="utf-8")
    (run,), _ = trace_file.read(tmp_path / "t.jsonl")
    assert [b.step.figures for b in run.boundaries] == [step.figures for step in reply.steps]
    shown = "\n".join(render.table(run))
    for name in reply.steps[-1].figures:
        assert name in shown
    assert reply.counts.total == sum(step.counts.total for step in reply.steps)


# --- tgr-token ---


def test_token_rollouts_are_scored_without_anchors_and_the_winner_begins_the_chunk(engine: Engine):
    reference = Reference(engine.path)
    written: list[int] = []
    for step in steps_of(engine, "tgr-token"):
        context, found = PROMPT + written[-6:], step.candidates
        assert found is not None and step.origin is None and step.anchor is None
        V, bumpy = [], []
        for tokens, logprobs in zip(found.tokens, found.logprobs, strict=True):
            wanted, states = decoded(reference, context, tokens.tolist())
            np.testing.assert_allclose(logprobs, wanted, atol=1e-4)
            V.append(wanted.mean())
            bumpy.append(scoring.bumpiness(states[None], np.array([len(tokens)]))[0])
        total = np.array(V) - 0.5 * np.array(bumpy)
        np.testing.assert_allclose(found.scores.total, total, atol=1e-4)
        assert not found.scores.uniformity.any()
        chosen = found.scores.chosen
        assert chosen == found.scores.total.argmax()
        np.testing.assert_array_equal(step.tokens[:4], found.tokens[chosen])
        wanted, _ = decoded(reference, context, step.tokens.tolist())
        np.testing.assert_allclose(step.logprobs, wanted, atol=1e-4)
        assert step.counts.rollouts == 4 * 4 and step.counts.chunk == 2
        written += step.tokens.tolist()


def test_options_of_anchors_do_not_change_tgr_token(engine: Engine):
    anchored = with_(
        lambda_u=3.0, delta=-1.0, n_mc=3, reevaluate=2,
        sigma=2.0, eta=9.0,
    )  # fmt: skip
    assert_identical(steps_of(engine, "tgr-token", anchored), steps_of(engine, "tgr-token"))
    assert methods.get("tgr-token").sequences(engine, anchored) == 1 + 4


# --- hard-geometry ---


def test_a_rule_that_accepts_every_anchor_is_random_anchor(engine: Engine):
    loose = with_(kappa_max=1e9)
    hard, free = (steps_of(engine, name, loose) for name in ("hard-geometry", "random-anchor"))
    assert text_of(hard) == text_of(free)
    for step, other in zip(hard, free, strict=True):
        np.testing.assert_allclose(step.anchor, other.anchor, rtol=1e-9)
        assert step.figures == ({"proposals": 1, "accepted": 1} if step.index else {})


def follows(before: Step | None, step: Step, config: SearchConfig) -> bool:
    assert step.origin is not None and step.anchor is not None
    length = geometry.angle(step.origin, step.anchor)
    if length > math.pi / 2:
        return False
    if before is None or before.origin is None:
        return True
    kappa = geometry.geodesic_curvature(before.origin, step.origin, step.anchor)
    return kappa <= config.kappa_max


def test_an_accepted_anchor_follows_the_rule_and_proposals_are_counted(engine: Engine):
    tried = set()
    for config in (with_(kappa_max=2.1), with_(kappa_max=1.9), with_(sigma=5.0, kappa_max=9.0)):
        first, *others = steps_of(engine, "hard-geometry", config)
        assert not first.figures, "there is no turn yet"
        before = first
        for step in others:
            figures = step.figures
            assert bool(figures["accepted"]) == follows(before, step, config)
            assert 1 <= figures["proposals"] <= 1000
            tried.add((figures["proposals"] > 1, figures["accepted"]))
            before = step
    assert tried >= {(False, 1), (True, 1)}


def test_after_the_last_proposal_the_one_nearest_the_rule_is_taken():
    rng = np.random.default_rng(5)
    before, z = geometry.unit(rng.standard_normal((2, 30)))
    for sigma in (0.1, 5.0):
        config = with_(kappa_max=0.1, sigma=sigma)
        anchor, n, passed = hard_geometry.propose(before, z, config, np.random.default_rng(3))
        assert (n, passed) == (1000, False)
        proposed = geometry.propose(z, 1000, sigma, np.random.default_rng(3))
        breaches = hard_geometry.breaches(before, z, proposed, config)
        np.testing.assert_allclose(anchor, proposed[np.argmin(breaches)])
        for one, breach in zip(proposed[:50], breaches, strict=False):
            arc, kappa = geometry.angle(z, one), geometry.geodesic_curvature(before, z, one)
            np.testing.assert_allclose(breach, max(arc - math.pi / 2, 0) + kappa - 0.1)


def test_acceptance_is_the_share_of_all_proposals_that_follow_the_rule():
    rng = np.random.default_rng(5)
    before, z = geometry.unit(rng.standard_normal((2, 30)))
    config = with_(kappa_max=1.55, sigma=0.1)
    share = acceptance(before, z, config, np.random.default_rng(3), 40)
    proposed = geometry.propose(z, 40, config.sigma, np.random.default_rng(3))
    kappas = [geometry.geodesic_curvature(before, z, anchor) for anchor in proposed]
    assert 0 < share < 1 and share == np.mean(np.array(kappas) <= config.kappa_max)


def test_acceptance_rises_with_the_width_of_anchors_and_a_bound_on_the_turn_falls():
    """What docs/methods.md says of κ ≤ 1.6 and of a turn ≤ 1.55; the last step has 1.29 radians."""
    rng, shares, turns = np.random.default_rng(0), [], []
    for d in (192, 1024, 2048, 4096):
        before, z = np.eye(d)[0], np.zeros(d)
        z[:2] = math.cos(1.29), math.sin(1.29)
        shares.append(acceptance(before, z, with_(), rng, 300))
        anchors = geometry.propose(z, 300, 0.05, rng)
        means = (1.29 + geometry.angles(z, anchors)) / 2
        turns.append(np.mean(geometry.geodesic_curvatures(before, z, anchors) * means <= 1.55))
    np.testing.assert_allclose(shares, [0.23, 1, 1, 1], atol=0.08)
    np.testing.assert_allclose(turns, [0.39, 0.25, 0.18, 0.09], atol=0.08)


def test_the_first_boundary_has_no_turn():
    z = np.eye(30)[0]
    config = with_(kappa_max=0.0, sigma=0.1)
    _, n, passed = hard_geometry.propose(None, z, config, np.random.default_rng(0))
    assert (n, passed) == (1, True)
