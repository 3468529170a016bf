"""Prefixes that replies reuse: what is decoded, what is reported, and that nothing else changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from engines import DEVICE, TOKENS, exact, is_free, vectors
from fixture_types import Load, Model
from method_runs import SMALL, spent, steps_of, text_of
from openai_calls import chat, complete, streamed
from threads import in_threads

from tgr_local import methods
from tgr_local.apis.llama import TgrLlama
from tgr_local.chat.conversation import Conversation
from tgr_local.engine import Cancel, Engine, SteeredEngine
from tgr_local.generation import generate, generate_each, generate_many
from tgr_local.search.run import Run
from tgr_local.search.steps import Counts, Progress, Step
from tgr_local.system.errors import CancelledError

CELLS = 4096
LONG = (TOKENS * 4)[:80]
OTHER = LONG[:50] + LONG[70:] + LONG[:20]  # begins as LONG does
RUNS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in sorted(methods.METHODS)),
    ("tgr-latent", {"calibration": "absolute", "n_mc": 2}),
    ("tgr-latent", {"repeat_penalty": 1.3, "presence_penalty": 0.5, "temperature": 0.8}),
    ("tgr-latent", {"reuse_winner": True}),
    ("base", {"grammar": "root ::= [a-z ]+", "temperature": 0.8}),
    ("base", {"stop": ("a", "e"), "temperature": 0.8}),
]
EVERY = [method for method, options in RUNS if not options]


@pytest.fixture
def pair(model: Model, load: Load) -> tuple[Engine, Engine]:
    """An engine that remembers prefixes, and one of the same model that does not."""
    return load(model(), prefix_cells=CELLS), load(model(), prefix_cells=0)


def n_common(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def first(steps: list[Step]) -> Counts:
    return steps[0].counts


def assert_same_steps(ours: list[Step], theirs: list[Step]) -> None:
    """The same texts and numbers; of the counts all but those of the query. On a device a choice
    may turn: then the tokens before it are as likely, and what follows is not compared."""
    if DEVICE == "gpu" and (n := n_common(text_of(ours), text_of(theirs))) < len(text_of(ours)):
        mine, other = (np.concatenate([s.logprobs for s in steps])[:n] for steps in (ours, theirs))
        np.testing.assert_allclose(mine, other, atol=1e-4)
        return
    assert text_of(ours) == text_of(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=1e-4)
        np.testing.assert_allclose(mine.entropies, other.entropies, atol=1e-3)
        if other.candidates and mine.candidates and DEVICE != "gpu":  # rollouts turn there, too
            total = other.candidates.scores.total
            np.testing.assert_allclose(mine.candidates.scores.total, total, atol=1e-3)
            # at temperature 0 the candidates of tgr-token are equal
            assert total[mine.candidates.scores.chosen] >= total.max() - 1e-3
        if other.state is not None:
            np.testing.assert_allclose(mine.state, other.state, atol=1e-4)
        read = dataclasses.replace(mine.counts, query=0, reused=0)
        assert read == dataclasses.replace(other.counts, query=0)
        assert mine.counts.query + mine.counts.reused == other.counts.query


@pytest.mark.parametrize(("method", "options"), RUNS, ids=str)
def test_a_run_is_the_same_with_a_remembered_prefix(
    pair: tuple[Engine, Engine], method: str, options: dict[str, Any]
):
    remembering, fresh = pair
    config = dataclasses.replace(SMALL, **{"temperature": 0.0} | options)
    for prompt, known in ((LONG, 0), (OTHER, 50), (LONG, 79), (LONG[:70], 69)):
        before = remembering.stats().n_positions
        steps = steps_of(remembering, method, config, prompt)
        assert remembering.stats().n_positions - before == spent(steps)
        assert first(steps).reused == known
        assert_same_steps(steps, steps_of(fresh, method, config, prompt))
    assert is_free(remembering)


@pytest.mark.parametrize("options", [{}, {"repeat_penalty": 1.3, "temperature": 0.8}], ids=str)
def test_a_text_that_is_watched_is_the_same_after_one_decode_less(
    pair: tuple[Engine, Engine], options: dict[str, Any]
):
    config = dataclasses.replace(SMALL, **{"temperature": 0.0} | options)
    for prompt, known in ((LONG, 0), (OTHER, 50), (LONG, 79)):
        before = [engine.stats() for engine in pair]
        watched = steps_of(pair[0], "base", config, prompt, on_event=lambda progress: None)
        alone = steps_of(pair[1], "base", config, prompt)
        after = [engine.stats() for engine in pair]
        assert first(watched).reused == known
        assert_same_steps(watched, alone)
        assert after[0].n_positions - before[0].n_positions == spent(watched)
        n_watched, n_alone = (b.n_decodes - a.n_decodes for a, b in zip(before, after, strict=True))
        # what is known already needs no decode of its own either way
        assert n_watched == n_alone - 1
        assert all(step.seconds.chunk >= 0.0 for step in watched)
        assert is_free(pair[0])


def test_what_a_text_that_is_watched_had_read_counts_as_read_when_it_is_cancelled(
    pair: tuple[Engine, Engine],
):
    engine = pair[0]
    config = dataclasses.replace(SMALL, chunk_len=2000)
    for known in (0, 79):
        cancel, before = Cancel(), engine.stats().n_positions

        def on_event(progress: Progress, cancel: Cancel = cancel) -> None:
            if progress.stage == "tokens":
                cancel.cancel()

        with pytest.raises(CancelledError) as caught:
            steps_of(engine, "base", config, LONG, on_event=on_event, cancel=cancel)
        counts = caught.value.counts
        assert counts == Counts(query=79 - known, reused=known, discarded=counts.discarded)
        assert engine.stats().n_positions - before == counts.total
        assert is_free(engine)


def test_a_whole_text_is_remembered_unless_its_context_is_reset(pair: tuple[Engine, Engine]):
    engine, _ = pair
    for method in EVERY:
        prompt = [EVERY.index(method) + 1, *LONG]
        text = text_of(steps_of(engine, method, SMALL, prompt))
        again = first(steps_of(engine, method, SMALL, [*prompt, *text, 5]))
        kept = 0 if methods.get(method).resets else len(text) - 1
        assert again.reused == len(prompt) - (kept == 0) + kept, method
        assert again.reused + again.query == len(prompt) + len(text)


def test_a_run_that_is_cancelled_leaves_its_query(pair: tuple[Engine, Engine]):
    engine, _ = pair
    for method in EVERY:
        prompt, cancel = [EVERY.index(method) + 1, *LONG], Cancel()

        def on_event(progress: Progress, cancel: Cancel = cancel) -> None:
            if progress.stage != "rebuild":
                cancel.cancel()

        with pytest.raises(CancelledError):
            run = Run(engine, prompt, SMALL, on_event=on_event, cancel=cancel)
            list(methods.get(method).run(run))
        assert first(steps_of(engine, method, SMALL, prompt)).reused == len(prompt) - 1, method


@exact
def test_replies_to_one_prompt_read_it_once(pair: tuple[Engine, Engine]):
    engine, fresh = pair
    for method in ("base", "tgr-latent", "best-of-n"):
        prompt = [EVERY.index(method) + 1, *LONG]
        before = engine.stats().n_positions
        replies = generate_many(engine, prompt, SMALL, 4, method=method)
        counts = sum((reply.counts for reply in replies), Counts())
        assert engine.stats().n_positions - before == counts.total
        assert (counts.query, counts.reused) == (len(prompt) - 1, 3 * (len(prompt) - 1)), method
        for ours, theirs in zip(
            replies, generate_many(fresh, prompt, SMALL, 4, method=method), strict=True
        ):
            assert_same_steps(ours.steps, theirs.steps)


@exact
def test_requests_that_arrive_together_read_their_common_prefix_once(pair: tuple[Engine, Engine]):
    engine, fresh = pair
    config = dataclasses.replace(SMALL, temperature=0.0)
    prompts = [[*LONG, i, i + 1, i + 2] for i in range(8)]
    replies = in_threads(*(lambda p=p: generate(engine, p, config, method="base") for p in prompts))
    for prompt, reply in zip(prompts, replies, strict=True):
        theirs = generate(fresh, prompt, config, method="base")
        assert reply.tokens == theirs.tokens
        assert_same_steps(reply.steps, theirs.steps)
    assert sum(reply.counts.query for reply in replies) <= 80 + 8 * 3
    together = generate_each(engine, [[9, *p] for p in prompts], config, 2, method="base")
    assert sum(reply.counts.query for reply in together) <= 81 + 8 * 3


@pytest.mark.parametrize("method", ["base", "tgr-latent"])
def test_an_answer_reuses_what_its_thinking_read(pair: tuple[Engine, Engine], method: str):
    engine, fresh = pair
    prompt = [*LONG, *engine.tokenize("<think>\n")]
    config = dataclasses.replace(SMALL, thinking_budget=11, temperature=0.0)
    reply, theirs = (generate(one, prompt, config, method=method) for one in (engine, fresh))
    assert reply.tokens == theirs.tokens and len(reply.runs) == 2
    assert_same_steps(reply.steps, theirs.steps)
    thought = 0 if method == "tgr-latent" else 11
    counts = reply.steps[reply.runs[1].first].counts
    assert len(prompt) - 1 <= counts.reused <= len(prompt) + thought
    assert counts.reused >= len(prompt) - 1 + max(0, thought - 1)


def test_a_control_vector_has_prefixes_of_its_own(pair: tuple[Engine, Engine]):
    engine, fresh = pair
    one, two = vectors(2)
    config = dataclasses.replace(SMALL, temperature=0.0)
    for method in ("base", "tgr-latent"):
        prompt = [EVERY.index(method) + 1, *LONG]
        for added, known in ((None, 0), (one, 0), (two, 0), (one, 80), (None, 80), (two, 80)):
            ours, theirs = (
                base if added is None else SteeredEngine(base, added) for base in (engine, fresh)
            )
            steps = steps_of(ours, method, config, prompt)
            assert first(steps).reused == known
            assert_same_steps(steps, steps_of(theirs, method, config, prompt))


@pytest.mark.parametrize("method", ["base", "markov", "tgr-latent"])
def test_turns_of_a_conversation_decode_what_is_new(model: Model, load: Load, method: str):
    engine = load(model(), prefix_cells=CELLS)
    options = {"chunk_len": 8, "max_chunks": 3, "n_candidates": 2, "rollout_len": 4}
    conversation = Conversation(engine, options, method)
    cached: list[int] = []
    for question in ("What is the first thing?", "And the second one?", "And then?", "Why?"):
        list(conversation.ask(question))
        reply = conversation.replies[-1]
        query = reply.runs[0].query
        counts = first(reply.steps)
        assert counts.reused == n_common(cached, query[:-1])
        assert counts.query + counts.reused == len(query) - 1
        if cached:
            assert counts.reused >= 16
        text = reply.tokens[:-1] if method == "base" else []
        cached = [*query, *text] if text else query[:-1]


# --- OpenAI's format ---


def cached(made: dict[str, Any]) -> int:
    n = made["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= n < made["usage"]["prompt_tokens"]
    return int(n)


ASKED = [{"role": "user", "content": "a question that is long enough to be remembered"}]


@pytest.mark.parametrize("method", ["base", "tgr-latent"])
def test_usage_says_what_was_cached(pair: tuple[Engine, Engine], method: str):
    engine, fresh = pair
    made = chat(engine, method, messages=ASKED)
    n_prompt = made["usage"]["prompt_tokens"]
    assert cached(made) == made["tgr"]["reused_tokens"] == 0
    assert made["tgr"]["forward_tokens"]["query"] == n_prompt - 1
    again = chat(engine, method, messages=ASKED)
    assert cached(again) == again["tgr"]["reused_tokens"] == n_prompt - 1
    assert again["tgr"]["forward_tokens"]["query"] == 0
    if DEVICE != "gpu":  # where a text turns at a tie
        assert again["choices"] == made["choices"] == chat(fresh, method, messages=ASKED)["choices"]
    last = streamed(engine, method, messages=ASKED, stream_options={"include_usage": True})[-1]
    assert cached(last) == n_prompt - 1
    for _ in range(2):
        assert cached(chat(fresh, method, messages=ASKED)) == 0


def test_cached_tokens_of_several_replies_are_those_that_none_has_read(pair: tuple[Engine, Engine]):
    engine, _ = pair
    made = chat(engine, "base", messages=ASKED, n=3)
    n_prompt = made["usage"]["prompt_tokens"]
    assert cached(made) == 0 and made["tgr"]["reused_tokens"] == 2 * (n_prompt - 1)
    assert sum(one["reused_tokens"] for one in made["tgr"]["replies"]) == 2 * (n_prompt - 1)
    again = chat(engine, "base", messages=ASKED, n=3)
    assert cached(again) == n_prompt - 1 and again["tgr"]["reused_tokens"] == 3 * (n_prompt - 1)
    two = [LONG, [7, *LONG]]
    assert cached(complete(engine, two, max_tokens=4)) == 0
    assert cached(complete(engine, [*two, [8, *LONG]], max_tokens=4)) == 79 + 80


def test_llama_reports_what_was_cached(model: Model):
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0}
    with TgrLlama(model(), method="base", n_threads=1, n_gpu_layers=0) as llama:
        first = llama.create_chat_completion(ASKED, **options)
        again = llama.create_chat_completion(ASKED, **options)
    assert (cached(first), cached(again)) == (0, first["usage"]["prompt_tokens"] - 1)
    assert first["choices"] == again["choices"]
