"""What each compared method is, beyond the laws of test_methods.py, which it keeps like all."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import TOKENS, is_free
from gguf_models import token_id
from reference import Reference
from runs import assert_identical, decoded, spent, text_of

from tgr_local import methods
from tgr_local.answers import answer_key
from tgr_local.engine import Cancel, Engine, Sampling
from tgr_local.errors import CapacityError
from tgr_local.generation import generate
from tgr_local.methods import best_of_n, got, hard_geometry, power, self_consistency, tot
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry, prompts, scoring
from tgr_local.search.branches import Branch, Branches, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Progress, Step
from tgr_local.trace import record, render

PROMPT = TOKENS[:10]
END = token_id("<|im_end|>")
SMALL = SearchConfig(
    chunk_len=6, max_chunks=4, n_candidates=4, rollout_len=4, temperature=0.8,
    n_samples=4, power_blocks=3, power_steps=3, tree_breadth=2, tree_proposals=3,
    max_proposals=20,
)  # fmt: skip
OURS = [
    "tgr-token", "hard-geometry", "best-of-n", "self-consistency", "power", "tot", "got",
]  # fmt: skip
WHOLE = ["best-of-n", "self-consistency", "power", "tot", "got"]
ASKING = {"tree_value": "prompt", "tree_value_samples": 2, "tree_proposals": 2, "max_chunks": 3}


def with_(**options: Any) -> SearchConfig:
    return dataclasses.replace(SMALL, **options)


def steps_of(engine: Engine, method: str, config: SearchConfig = SMALL, **more: Any) -> list[Step]:
    return list(methods.get(method).run(Run(engine, PROMPT, config, **more)))


def branches_of(engine: Engine, config: SearchConfig = SMALL, **more: Any) -> Branches:
    method = Method("test", lambda run: iter(()), lambda *_: 3000, lambda _: 60)
    return Branches(Run(engine, PROMPT, config, **more), method, limit=config.token_limit, least=1)


def assert_read_after_the_query(engine: Engine, tokens: list[int], logprobs: Any) -> None:
    wanted, _ = decoded(Reference(engine.path), PROMPT, tokens)
    np.testing.assert_allclose(logprobs, wanted, atol=1e-4)


def only(
    tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, temperature: float = 0.8
) -> None:
    """Lets the model draw these tokens alone."""
    bias = tuple((token, 50.0) for token in tokens)
    sampling = Sampling(temperature, logit_bias=bias)
    monkeypatch.setattr(Sampling, "of", classmethod(lambda cls, config: sampling))


# --- what all of them share ---


@pytest.mark.parametrize("method", WHOLE)
def test_the_kept_text_stands_after_the_query_as_a_whole(engine: Engine, method: str) -> None:
    steps = steps_of(engine, method)
    assert [len(step.tokens) for step in steps] == [6, 6, 6, 6]
    logprobs = np.concatenate([step.logprobs for step in steps])
    assert_read_after_the_query(engine, text_of(steps), logprobs)
    first, *later = steps
    assert first.counts.query == len(PROMPT) - 1 and first.counts.discarded > 0
    assert all(step.counts.total == step.counts.chunk == 6 for step in later)
    assert [bool(step.figures) for step in steps] == [False, False, False, True]


@pytest.mark.parametrize("method", WHOLE)
def test_a_text_that_ends_is_kept_to_its_end(
    engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only((END,), monkeypatch)
    (step,) = steps_of(engine, method)
    assert step.tokens.tolist() == [END] and step.finish == "stop"


@pytest.mark.parametrize("method", WHOLE)
def test_a_stop_text_ends_a_text_where_it_stands(
    engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tuple(engine.tokenize("x") + engine.tokenize("y")), monkeypatch, temperature=4.0)
    steps = steps_of(engine, method, with_(stop=("xy",), chunk_len=3, max_chunks=10))
    text = engine.detokenize(text_of(steps)).decode()
    assert set(text) <= {"x", "y"} and "xy" not in text[:-1]
    assert (steps[-1].finish == "stop") == text.endswith("xy")


@pytest.mark.parametrize("method", WHOLE)
def test_a_grammar_holds_over_chunks_and_rewriting(engine: Engine, method: str) -> None:
    config = with_(grammar='root ::= "abc" [xy]{14} "done"', chunk_len=5, max_chunks=6)
    text = engine.detokenize(text_of(steps_of(engine, method, config))).decode()
    assert re.fullmatch("abc[xy]{14}done", text)


@pytest.mark.parametrize("method", WHOLE)
@pytest.mark.parametrize("limit", [1, 6, 7, 1000])
def test_new_tokens_are_limited(engine: Engine, method: str, limit: int) -> None:
    steps = steps_of(engine, method, with_(max_tokens=limit, power_steps=1))
    assert len(text_of(steps)) == min(limit, 24) and steps[-1].finish == "length"


@pytest.mark.parametrize("method", OURS)
def test_a_deadline_ends_the_reply(engine: Engine, method: str) -> None:
    config = with_(max_seconds=1e-6, chunk_len=900, rollout_len=2, power_blocks=1)
    steps = steps_of(engine, method, config)
    assert steps[-1].finish == "budget" and len(text_of(steps)) < 900
    assert is_free(engine)


@pytest.mark.parametrize("method", WHOLE)
def test_asked_to_answer_now_they_yield_what_they_have(
    engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tuple(TOKENS[:4]), monkeypatch)  # no end token
    cancel = Cancel()

    def hear(progress: Progress) -> None:
        if progress.stage == "rollouts":
            cancel.answer_now()

    config = with_(chunk_len=900, power_blocks=1)
    steps = steps_of(engine, method, config, on_event=hear, cancel=cancel)
    assert steps[-1].finish == "budget" and 1 <= len(text_of(steps)) < 900


@pytest.mark.parametrize("method", OURS)
def test_a_run_fits_into_the_room_that_it_asks_for(
    model: Callable[..., Path], load: Callable[..., Engine], engine: Engine, method: str
) -> None:
    room = methods.get(method).cells(engine, len(PROMPT), SMALL)
    tight = load(model(), n_ctx=256 * math.ceil(room / 256))
    assert text_of(steps_of(tight, method)) == text_of(steps_of(engine, method))


@pytest.mark.parametrize("method", ["best-of-n", "self-consistency"])
@pytest.mark.parametrize("limit", [{"max_tokens": 4}, {"max_forward_tokens": 60}])
def test_texts_that_are_limited_ask_for_no_more_room_than_they_can_fill(
    engine: Engine, method: str, limit: dict[str, int]
) -> None:
    config = with_(n_samples=5, chunk_len=200, max_chunks=10, **limit)
    room = methods.get(method).cells(engine, len(PROMPT), config)
    assert room <= len(PROMPT) + max(5 * 4, 60) + 8
    steps = steps_of(engine, method, config)
    assert max(step.cells for step in steps) <= room and spent(steps) <= room * 5


@pytest.mark.parametrize("method", OURS)
def test_alternatives_are_told_for_every_token(engine: Engine, method: str) -> None:
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
def test_a_trace_holds_what_they_report(engine: Engine, method: str, tmp_path: Path) -> None:
    reply = generate(engine, "2 + 2 = ?", SMALL, method=method, raw=True)
    prompt = engine.tokenize("2 + 2 = ?")
    written = record.make_trace(engine, record.make_header(engine, prompt, SMALL, method), reply)
    file = io.StringIO()
    record.write(file, written)
    (tmp_path / "t.jsonl").write_text(file.getvalue(), encoding="utf-8")
    (run,) = record.read(tmp_path / "t.jsonl")
    assert [b.step.figures for b in run.boundaries] == [step.figures for step in reply.steps]
    shown = "\n".join(render.table(run))
    for name in reply.steps[-1].figures:
        assert name in shown
    assert reply.counts.total == sum(step.counts.total for step in reply.steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 0}, "n_samples is 0, but must be between 1 and 255"),
        ({"power_alpha": 0.5}, "power_alpha is 0.5, but must be between 1 and 100"),
        ({"power_alpha": math.inf}, "power_alpha is inf, but must be a finite number"),
        ({"power_blocks": 0}, "power_blocks is 0, but must be between 1 and"),
        ({"power_steps": -1}, "power_steps is -1, but must be between 0 and"),
        ({"tree_breadth": 65}, "tree_breadth is 65, but must be between 1 and 64"),
        ({"tree_value": "vote"}, "tree_value is 'vote', but must be one of likelihood, prompt"),
        ({"graph_merges": 2.0}, "graph_merges is 2.0, but must be of type int"),
        ({"kappa_max": -1.0}, "kappa_max is -1.0, but must be at least 0"),
        ({"step_max": 4.0}, "step_max is 4.0, but must be between 0 and 3.14"),
        ({"step_min": 1.0, "step_max": 0.5}, "step_min is 1.0, but cannot exceed step_max"),
        ({"max_proposals": 0}, "max_proposals is 0, but must be between 1 and"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_(**options)


# --- tgr-token ---


def test_token_rollouts_are_scored_without_anchors_and_the_winner_begins_the_chunk(
    engine: Engine,
) -> None:
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


def test_what_concerns_anchors_does_not_touch_tokens(engine: Engine) -> None:
    anchored = with_(
        lambda_u=3.0, delta=-1.0, n_mc=3, reevaluate=2, min_gap=9.0, min_n_eff=1.0, max_apcs=-1.0,
        share_repulsion=True, sigma=2.0, eta=9.0,
    )  # fmt: skip
    assert_identical(steps_of(engine, "tgr-token", anchored), steps_of(engine, "tgr-token"))
    assert methods.get("tgr-token").sequences(anchored) == 1 + 4


# --- hard-geometry ---


def test_a_rule_that_all_follow_leaves_random_anchors(engine: Engine) -> None:
    loose = with_(kappa_max=1e9, step_max=math.pi)
    hard, free = (steps_of(engine, name, loose) for name in ("hard-geometry", "random-anchor"))
    assert text_of(hard) == text_of(free)
    for step, other in zip(hard, free, strict=True):
        np.testing.assert_allclose(step.anchor, other.anchor, rtol=1e-9)
        assert step.figures == ({"proposals": 1, "accepted": 1} if step.index else {})


def follows(before: Step | None, step: Step, config: SearchConfig) -> bool:
    assert step.origin is not None and step.anchor is not None
    length = geometry.angle(step.origin, step.anchor)
    if not config.step_min <= length <= config.step_max:
        return False
    if before is None or before.origin is None:
        return True
    kappa = geometry.geodesic_curvature(before.origin, step.origin, step.anchor)
    return kappa <= config.kappa_max


def test_an_accepted_anchor_follows_the_rule_and_proposals_are_counted(engine: Engine) -> None:
    tried = set()
    for config in (with_(kappa_max=2.1), with_(kappa_max=1.9), with_(step_min=0.38, kappa_max=9.0)):
        first, *others = steps_of(engine, "hard-geometry", config)
        assert not first.figures, "there is no turn yet"
        before = first
        for step in others:
            figures = step.figures
            assert bool(figures["accepted"]) == follows(before, step, config)
            assert 1 <= figures["proposals"] <= 20
            tried.add((figures["proposals"] > 1, figures["accepted"]))
            before = step
    assert tried >= {(False, 1), (True, 1)}


def test_after_the_last_proposal_the_one_nearest_the_rule_is_taken() -> None:
    rng = np.random.default_rng(5)
    before, z = geometry.unit(rng.standard_normal((2, 30)))
    config = with_(kappa_max=0.1, step_min=0.5, step_max=0.6, sigma=0.1, max_proposals=50)
    anchor, n, passed = hard_geometry.propose(before, z, config, np.random.default_rng(3))
    assert (n, passed) == (50, False)
    all_of_them = geometry.propose(z, 50, config.sigma, np.random.default_rng(3))
    breaches = hard_geometry.breaches(before, z, all_of_them, config)
    np.testing.assert_allclose(anchor, all_of_them[np.argmin(breaches)])
    arc, kappa = geometry.angle(z, anchor), geometry.geodesic_curvature(before, z, anchor)
    missed = max(0.5 - arc, arc - 0.6, 0.0)
    np.testing.assert_allclose(min(breaches), missed + kappa - 0.1)


def test_the_first_boundary_has_no_turn() -> None:
    z = np.eye(30)[0]
    config = with_(kappa_max=0.0, sigma=0.1)
    _, n, passed = hard_geometry.propose(None, z, config, np.random.default_rng(0))
    assert (n, passed) == (1, True)


# --- best-of-n, self-consistency ---


def test_one_sample_is_base(engine: Engine) -> None:
    for method in ("best-of-n", "self-consistency"):
        steps = steps_of(engine, method, with_(n_samples=1))
        base = steps_of(engine, "base")
        assert text_of(steps) == text_of(base) and spent(steps) == spent(base)


def test_the_likeliest_of_n_samples_is_kept(engine: Engine) -> None:
    with branches_of(engine) as branches:
        samples = branches.sample(4)
        assert len({tuple(sample.tokens) for sample in samples}) == 4
        for sample in samples:
            assert_read_after_the_query(engine, sample.tokens, sample.logprobs)
        means = [np.mean(sample.logprobs) for sample in samples]
    steps = steps_of(engine, "best-of-n")
    assert text_of(steps) == samples[int(np.argmax(means))].tokens
    assert steps[-1].figures == {"samples": 4, "ended": 0}
    counts = [step.counts for step in steps]
    assert counts[0].discarded == 3 * 24 and sum(one.chunk for one in counts) == 24


def test_a_sample_that_ended_goes_before_a_likelier_one_that_was_cut() -> None:
    def sample(logprob: float, ended: bool) -> Branch:
        return Branch(None, [1], [logprob], [0.0], ended=ended)  # type: ignore[arg-type]

    cut, ended, better = sample(-0.1, False), sample(-2.0, True), sample(-1.0, True)
    assert best_of_n.best([cut, ended, better]) is better
    assert best_of_n.best([cut, sample(-0.2, False)]) is cut


def test_samples_share_what_is_left_of_a_budget(engine: Engine) -> None:
    for budget in (9 + 4, 9 + 7, 9 + 8, 9 + 50, 9 + 4 * 24 - 1, 9 + 4 * 24):
        steps = steps_of(engine, "best-of-n", with_(max_forward_tokens=budget))
        assert len(text_of(steps)) == (budget - 9) // 4
        assert budget - 4 < spent(steps) <= budget


@pytest.mark.parametrize(
    ("keys", "likelihoods", "kept"),
    [
        (["1", "2", "2"], [-0.1, -3.0, -2.0], 2),
        (["1", "2"], [-2.0, -1.0], 1),
        (["1", "2", "1", "2"], [-4.0, -3.0, -1.0, -2.0], 2),
        ([None, None, "3"], [-0.1, -0.2, -9.0], 2),
        ([None, None], [-0.3, -0.2], 1),
        ([None], [-1.0], 0),
    ],
)
def test_the_most_frequent_answer_wins_and_ties_go_to_the_likeliest(
    keys: list[str | None], likelihoods: list[float], kept: int
) -> None:
    assert self_consistency.elect(keys, likelihoods) == kept


def test_self_consistency_keeps_a_sample_of_the_majority(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = tuple(engine.tokenize(digit)[0] for digit in "12")
    only((*digits, END), monkeypatch)
    config = with_(n_samples=24)
    with branches_of(engine, config) as branches:
        ended = [sample for sample in branches.sample(24) if sample.ended]
        keys = [answer_key(branches.text(sample.tokens)) for sample in ended]
    steps = steps_of(engine, "self-consistency", config)
    votes = Counter(key for key in keys if key is not None)
    assert len(votes) > 1
    kept = answer_key(engine.detokenize(text_of(steps)).decode())
    assert kept is not None and votes[kept] == max(votes.values())
    figures = {"samples": 24, "votes": votes[kept], "answers": len(votes)}
    assert steps[-1].figures == figures and steps[-1].finish == "stop"


# --- power ---


def test_the_ratio_is_that_of_metropolis_and_hastings() -> None:
    new, old = [math.log(0.5), math.log(0.25)], [math.log(0.5), math.log(0.1)]
    ratio = power.log_ratio(new, old, [math.log(0.8)], [math.log(0.2)], 3.0)
    np.testing.assert_allclose(math.exp(ratio), (0.25 / 0.1) ** 3 * 0.2 / 0.8)
    # from two tokens to one: the position was one of two, and would be one of one on the way back
    ratio = power.log_ratio(new[:1], old, [0.0], [0.0, 0.0], 1.0)
    np.testing.assert_allclose(math.exp(ratio), 0.5 / 0.05 * 2)


@pytest.mark.parametrize("alpha", [1.0, 2.5, 4.0])
def test_the_chain_leaves_the_power_of_p_as_it_is(alpha: float) -> None:
    """The whole transition matrix over all texts of a toy model of two tokens and an end token, of
    at most three tokens: its stationary law is p^α, and in detail."""
    rng = np.random.default_rng(1)
    p: dict[tuple[int, ...], Any] = {}
    texts: list[tuple[int, ...]] = []
    for length in range(4):
        for text in itertools.product((0, 1, 2), repeat=length):
            if 2 in text[:-1]:
                continue
            p[text] = np.log(rng.dirichlet([1, 1, 0.6]))
            if length == 3 or (text and text[-1] == 2):
                texts.append(text)

    def logprobs(text: tuple[int, ...]) -> list[float]:
        return [p[text[:i]][token] for i, token in enumerate(text)]

    def drawn(text: tuple[int, ...]) -> list[float]:
        rows = [alpha * p[text[:i]] for i in range(len(text))]
        return [row[t] - np.log(np.exp(row).sum()) for row, t in zip(rows, text, strict=True)]

    moves = np.zeros((len(texts), len(texts)))
    for (i, old), (j, new) in itertools.product(enumerate(texts), repeat=2):
        for at in range(len(old)):
            if i == j or old[:at] != new[:at] or len(new) <= at:
                continue
            ratio = power.log_ratio(
                logprobs(new), logprobs(old), drawn(new)[at:], drawn(old)[at:], alpha
            )
            proposed = math.exp(sum(drawn(new)[at:])) / len(old)
            moves[i, j] += proposed * min(1.0, math.exp(ratio))
    target = np.exp([alpha * sum(logprobs(text)) for text in texts])
    target /= target.sum()
    flow = target[:, None] * moves
    np.testing.assert_allclose(flow, flow.T, atol=1e-14)


def test_a_chain_on_the_engine_visits_texts_as_often_as_p_to_the_alpha_says(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nine texts of two out of three tokens, for which cold sampling is far from p^α."""
    letters = (0, 25, 248)
    only(letters, monkeypatch)
    with branches_of(engine, with_(power_alpha=1.5)) as branches:
        chain = power.Chain(branches)
        assert chain.extend(2)
        visits: Counter[tuple[int, ...]] = Counter()
        for _ in range(1200):
            assert chain.improve()
            visits[tuple(chain.text.tokens)] += 1
        assert_read_after_the_query(engine, chain.text.tokens, chain.text.logprobs)
    texts = [*itertools.product(letters, letters)]
    reference = Reference(engine.path)
    p = np.array([decoded(reference, PROMPT, list(text))[0] for text in texts])
    target = np.exp(1.5 * p.sum(axis=1))
    first, second = (np.exp(1.5 * p[:, i]).reshape(3, 3) for i in (0, 1))
    cold = (first / first[:, 0].sum() * second / second.sum(axis=1, keepdims=True)).ravel()
    found = np.array([visits[text] for text in texts])

    def distance(one: Any, other: Any) -> float:
        return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)

    assert visits.total() == found.sum()
    assert distance(found, target) < 0.1 < 0.5 < distance(cold, target)


def test_at_alpha_one_proposals_are_the_model_and_always_accepted(engine: Engine) -> None:
    steps = steps_of(engine, "power", with_(power_alpha=1.0))
    assert steps[-1].figures == {"proposals": 9, "accepted": 9}


@pytest.mark.parametrize(("blocks", "n_proposals"), [(1, 3), (3, 9), (5, 15), (24, 72), (99, 72)])
def test_every_block_is_improved_before_the_next(
    engine: Engine, blocks: int, n_proposals: int
) -> None:
    """A block has at least one token."""
    steps = steps_of(engine, "power", with_(power_blocks=blocks))
    assert len(text_of(steps)) == 24 and steps[-1].figures["proposals"] == n_proposals


def test_without_steps_power_is_cold_sampling(engine: Engine) -> None:
    steps = steps_of(engine, "power", with_(power_steps=0, power_blocks=4))
    base = steps_of(engine, "base", with_(temperature=0.25))
    assert text_of(steps) == text_of(base) and spent(steps) == spent(base)


# --- tot, got ---


def test_a_tree_without_branches_is_base(engine: Engine) -> None:
    base = steps_of(engine, "base")
    steps = steps_of(engine, "tot", with_(tree_breadth=1, tree_proposals=1))
    assert text_of(steps) == text_of(base) and spent(steps) == spent(base)


def test_a_tree_keeps_the_likeliest_thoughts_at_every_level(engine: Engine) -> None:
    with branches_of(engine) as branches:
        tree = tot.Tree(branches)
        grown: list[list[Branch]] = []
        select = tree.select

        def watch(thoughts: list[Branch]) -> None:
            grown.append(list(thoughts))
            select(thoughts)

        tree.select = watch  # type: ignore[method-assign, assignment]
        kept: list[list[int]] = []
        while tree.expand():
            ranked = sorted(grown[-1], key=lambda one: -float(np.mean(one.logprobs)))
            assert tree.kept == ranked[:2]
            assert engine.stats().n_sequences == 2
            for thought in tree.kept:
                assert_read_after_the_query(engine, thought.tokens, thought.logprobs)
                assert not kept or thought.tokens[:-6] in kept
            kept = [thought.tokens for thought in tree.kept]
        assert [len(level) for level in grown] == [3, 6, 6, 6]
        assert tree.best is tree.kept[0]
    assert text_of(steps_of(engine, "tot")) == kept[0]


def test_equal_thoughts_count_once_and_ended_ones_stay(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    only((END, TOKENS[0]), monkeypatch, temperature=5.0)
    with branches_of(engine, with_(tree_breadth=6, tree_proposals=6, chunk_len=1)) as branches:
        tree = tot.Tree(branches)
        assert tree.expand()
        assert sorted(thought.tokens for thought in tree.kept) == sorted([[END], [TOKENS[0]]])
        assert tree.expand()
        assert [END] in [thought.tokens for thought in tree.kept]
        assert len(tree.kept) == 3 and tree.best.ended


def test_thoughts_may_be_valued_by_what_the_model_says(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def value_of(reply: str) -> float:
        asked.append(reply)
        return float(len(asked) % 5)

    monkeypatch.setattr(prompts, "value_of", value_of)
    config = with_(**ASKING)
    with branches_of(engine, config) as branches:
        tree = tot.Tree(branches)
        lengths = []
        while tree.expand():
            values = [tree.rank(thought)[0] for thought in tree.kept]
            assert values == sorted(values, reverse=True) and min(values) > 0
            lengths.append([len(thought.sequence) for thought in tree.kept])
            for thought in tree.kept:
                assert_read_after_the_query(engine, thought.tokens, thought.logprobs)
        assert lengths == [[9 + n] * 2 for n in (6, 12, 18)]
    assert len(asked) == 2 * (2 + 4 + 4)


@pytest.mark.parametrize("method", ["tot", "got"])
def test_asking_is_counted_and_paid_from_the_budget(engine: Engine, method: str) -> None:
    config = with_(**ASKING)
    before = engine.stats().n_positions
    whole = steps_of(engine, method, config)
    assert engine.stats().n_positions - before == spent(whole)
    room = methods.get(method).cells(engine, len(PROMPT), config)
    assert max(step.cells for step in whole) <= room
    least = 9 + tot.least(engine, config)
    for budget in (least, least + 300, spent(whole) - 1):
        steps = steps_of(engine, method, dataclasses.replace(config, max_forward_tokens=budget))
        assert spent(steps) <= budget and text_of(steps)
    with pytest.raises(ValueError, match=f"takes at least {least}"):
        steps_of(engine, method, dataclasses.replace(config, max_forward_tokens=least - 1))


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("sure", 20.0),
        ("Likely.", 1.0),
        ("It is impossible, surely", 0.001),
        ("unlikely", 0.0),
        ("likely, not sure", 1.0),
        ("", 0.0),
    ],
)
def test_a_value_is_read_from_the_first_word_that_names_one(reply: str, value: float) -> None:
    assert prompts.value_of(reply) == value


def test_a_turn_follows_the_chat_template(engine: Engine) -> None:
    turn = prompts.Turn(engine, prompts.merge_request(2), thinking=True)
    context = engine.tokenize("<|im_start|>assistant\nOne")
    tokens = turn.after(context, [engine.tokenize("Two"), [TOKENS[3], 200]])
    text = engine.detokenize([*context, *tokens], special=True)
    begin = b"<|im_start|>assistant\nOne<|im_end|>\n<|im_start|>user\nAnother attempt"
    assert text.startswith(begin) and text.endswith(b"<|im_end|>\n<|im_start|>assistant\n")
    assert b"question:\n\nTwo\n\n" in text and engine.detokenize([TOKENS[3], 200]) in text
    assert len(tokens) <= turn.n_tokens + len(engine.tokenize("Two")) + 2


def test_a_turn_closes_thinking_that_is_open(engine: Engine) -> None:
    turn = prompts.Turn(engine, prompts.REFINE, thinking=False)
    for context, closes in (("<think>hm", True), ("<think>hm</think>so", False), ("so", False)):
        text = engine.detokenize(turn.after(engine.tokenize(context)), special=True)
        assert text.startswith(b"\n</think>\n\n") == closes


def test_a_model_without_a_template_is_asked_in_plain_text(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for template in ("", "{{ messages[-1].content }}"):  # the second drops what was said before
        monkeypatch.setattr(engine, "chat_template", template)
        turn = prompts.Turn(engine, prompts.VALUE, thinking=False)
        assert engine.detokenize(turn.after([])).decode() == f"\n\n{prompts.VALUE}\n\n"


def test_a_graph_without_merging_and_refining_is_a_tree(engine: Engine) -> None:
    plain = steps_of(engine, "got", with_(graph_merges=0, graph_refines=0))
    tree = steps_of(engine, "tot")
    assert text_of(plain) == text_of(tree) and spent(plain) == spent(tree)


def test_a_rewritten_thought_is_a_text_after_the_query(engine: Engine) -> None:
    with branches_of(engine) as branches:
        graph = got.Graph(branches)
        assert graph.expand()
        before = [list(thought.tokens) for thought in graph.kept]
        kept: list[Branch] = []
        select = graph.select

        def watch(thoughts: list[Branch]) -> None:
            kept[:] = thoughts
            select([thoughts[-1]])  # the new one alone

        graph.select = watch  # type: ignore[method-assign, assignment]
        graph.merge()
        (merged,) = graph.kept
        assert [thought.tokens for thought in kept[:-1]] == before
        assert merged.tokens not in before and len(merged.tokens) == 6
        assert_read_after_the_query(engine, merged.tokens, merged.logprobs)
        graph.refine()
        (refined,) = graph.kept
        assert refined.tokens != merged.tokens
        branches.grow([refined], 5)  # its cells are in order
        assert_read_after_the_query(engine, refined.tokens, refined.logprobs)
        figures = graph.figures
    assert (figures["merges"], figures["refinements"], figures["thoughts"]) == (1, 1, 5)


def test_a_merger_reads_the_best_thought_and_quotes_the_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with branches_of(engine) as branches:
        graph = got.Graph(branches)
        assert graph.expand()
        best, other = graph.kept
        heard: list[tuple[list[int], list[int]]] = []
        ask = branches.ask

        def listen(texts: Any, turns: Any, *more: Any, **options: Any) -> Any:
            heard.extend((text.tokens, turn) for text, turn in zip(texts, turns, strict=True))
            return ask(texts, turns, *more, **options)

        monkeypatch.setattr(branches, "ask", listen)
        graph.merge()
        ((text, turn),) = heard
        assert text == best.tokens
        asked = prompts.Turn(engine, prompts.merge_request(1), thinking=True)
        assert turn == asked.after(PROMPT + best.tokens, [other.tokens])


@pytest.mark.parametrize("method", ["tot", "got"])
@pytest.mark.parametrize(("breadth", "proposals"), [(1, 3), (3, 1), (4, 4)])
def test_trees_and_graphs_of_any_shape_keep_to_their_room(
    engine: Engine, method: str, breadth: int, proposals: int
) -> None:
    config = with_(tree_breadth=breadth, tree_proposals=proposals, graph_merges=3)
    needs = methods.get(method)
    before = engine.stats().n_positions
    steps = steps_of(engine, method, config)
    assert engine.stats().n_positions - before == spent(steps)
    assert max(step.cells for step in steps) <= needs.cells(engine, len(PROMPT), config)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("best-of-n", {"n_samples": 255}, r"needs 255 sequences .* holds 64; .* lower n_samples"),
        ("tot", {"tree_breadth": 20}, r"needs 80 sequences .* lower tree_breadth or"),
        (
            "got",
            {"graph_merges": 64},
            r"needs 67 sequences .* .*graph_merges or",
        ),
    ],
)
def test_too_many_texts_at_a_time_are_refused_with_what_to_lower(
    model: Callable[..., Path],
    load: Callable[..., Engine],
    method: str,
    options: dict[str, Any],
    message: str,
) -> None:
    engine = load(model(), n_seq_max=64)
    with pytest.raises(CapacityError, match=message):
        steps_of(engine, method, with_(**options))
    assert is_free(engine)


def test_prompts_that_cannot_fit_are_refused_with_the_numbers(
    model: Callable[..., Path], load: Callable[..., Engine]
) -> None:
    short = load(model(n_ctx_train=128))
    with pytest.raises(CapacityError, match=r"10 tokens and the prompts .* trained for 128"):
        steps_of(short, "got")
    steps = steps_of(short, "tot", with_(chunk_len=60, temperature=0.0))
    assert len(text_of(steps)) == 118 and steps[-1].finish == "length"
    assert text_limit(short, 10, with_(chunk_len=60), times=2) == 59
