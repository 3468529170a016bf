"""early-exit: trial answers after the lines of a text, on a random and on the embedded model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines import EXACT, GREEDY
from method_runs import (
    PROMPT,
    assert_read_after_the_query,
    group_of,
    only,
    sequences_held,
    spent,
    steps_of,
    text_of,
    with_,
)

from tgr_local import SearchConfig, generate, methods
from tgr_local.engine import Cancel, Engine, Task
from tgr_local.generation import Reply, query_tokens
from tgr_local.methods import early_exit
from tgr_local.options.config import EngineConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.search.steps import Progress
from tgr_local.system.errors import CancelledError

QUESTION = [{"role": "user", "content": "What is 3*(4+5)-6+7*2-(8-3)?"}]
LINES = SearchConfig(chunk_len=32, max_chunks=16, temperature=0.0, exit_threshold=2.0)
PREFIX = early_exit.BEGINNING


def lines(**options: Any) -> SearchConfig:
    return dataclasses.replace(LINES, **options)


@pytest.fixture(scope="module")
def mini() -> Iterator[Engine]:
    """The embedded model, which thinks in lines."""
    with Engine(embedded_model(), EngineConfig(**EXACT)) as engine:
        yield engine


@pytest.fixture
def with_lines(engine: Engine, monkeypatch) -> Engine:
    """The random model, which writes nothing but lines of four letters here, and ends no text."""
    only((*engine.tokenize("abcd"), *engine.tokenize("\n")), monkeypatch, temperature=4.0)
    return engine


def reply_of(engine: Engine, method: str = "early-exit", **options: Any) -> Reply:
    """A reply whose counts are those of the engine."""
    before = engine.stats().n_positions
    reply = generate(engine, QUESTION, lines(**options), method=method, verbatim=True)
    assert engine.stats().n_positions - before == reply.counts.total
    return reply


def test_confidence_is_the_geometric_mean_of_probabilities():
    found = early_exit.confidence([math.log(0.5), math.log(0.8), math.log(0.625)])
    np.testing.assert_allclose(found**3, 0.25)
    assert early_exit.confidence([]) == 0.0


@pytest.mark.parametrize(
    ("beginning", "answer", "ended", "whole"),
    [
        (b"\\boxed{", b"30", False, False),
        (b"\\boxed{", b"30}.", False, True),
        (b"\\boxed{", b"\\frac{1}", False, False),
        (b"\\boxed{", b"\\frac{1}{2}}", False, True),
        (b"\\boxed{", b"30", True, False),
        (b"\\boxed{", b"30\n", False, False),
        (b"= ", b"30\n", False, True),
        (b"= ", b"30}", False, False),
        (b"= ", b"30", True, True),
    ],
)
def test_a_trial_answer_is_whole_where_its_braces_or_its_line_end(
    beginning: bytes, answer: bytes, ended: bool, whole: bool
):
    assert early_exit.is_whole(beginning, answer, ended) == whole


# --- a threshold that is never reached ---


def test_it_is_greedy_base_and_the_trials_are_extra(mini: Engine):
    ours, base = reply_of(mini), reply_of(mini, "base")
    assert ours.tokens == base.tokens and ours.text == base.text and ours.finish == "stop"
    assert [len(step.tokens) for step in ours.steps] == [len(step.tokens) for step in base.steps]
    assert ours.counts.total == base.counts.total + ours.counts.discarded
    n_lines = base.text.partition("</think>")[0].count("\n")
    assert ours.steps[-1].figures["trials"] == n_lines > 5, "none after the thinking"


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": "root ::= [^@]*"},
        {"stop": ("answer is",)},
        {"max_tokens": 24},  # fewer than a trial may take
    ],
)
def test_no_answer_is_tried_where_it_cannot_be_one(mini: Engine, options: dict[str, Any]):
    ours, base = (reply_of(mini, name, **options) for name in ("early-exit", "base"))
    assert ours.steps[-1].figures["trials"] == 0 and ours.tokens == base.tokens
    assert ours.counts == base.counts


# --- an exit ---


def test_threshold_0_exits_at_the_first_boundary(mini: Engine):
    reply = reply_of(mini, exit_threshold=0.0)
    base = reply_of(mini, "base")
    line = base.text.partition("\n")[0]
    assert reply.text.startswith(f"{line}\n</think>\n\n{PREFIX}") and reply.text.endswith("}.")
    assert reply.steps[-1].figures["trials"] == reply.steps[-1].figures["exited"] == 1
    assert reply.finish == "stop" and reply.closed is None
    # nothing is decoded twice
    assert (
        reply.counts.total == len(query(mini)) - 1 + reply.n_tokens and not reply.counts.discarded
    )


def query(engine: Engine) -> list[int]:
    return query_tokens(engine, QUESTION, LINES)


def test_the_confidence_is_that_of_the_greedy_answer(mini: Engine):
    """As a session of its own computes it, after the text that the reply has before the answer. It
    reads the text token by token, as the reply wrote it: with Q8_0 weights a matrix product of many
    columns rounds in another way than one of one column, on some processors."""
    reply = reply_of(mini, exit_threshold=0.5)
    thinking, answer = reply.text.split(PREFIX)
    given = mini.tokenize(f"\n\n{PREFIX}")
    before = [*query(mini), *reply.tokens]
    while not mini.detokenize(before).endswith(PREFIX.encode()):
        before.pop()
    assert before[-len(given) :] == given and thinking.endswith("</think>\n\n")
    n_query = len(query(mini))
    with mini.session(400, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, before[: n_query - 1])])
        for token in before[n_query - 1 : -len(given)]:
            session.run([Task(sequence, [token])])
        task = Task(sequence, given, n_generate=20, sampling=GREEDY, stop=("}",))
        (output,) = session.run([task])
    assert mini.detokenize(output.tokens).decode() == answer
    wanted = np.exp(output.logprobs.astype(float)).prod() ** (1 / len(output.tokens))
    figures = reply.steps[-1].figures
    np.testing.assert_allclose(figures["confidence"], wanted, rtol=1e-4)
    assert figures["exited"] and figures["confidence"] >= 0.5


def test_all_tokens_of_an_exit_are_read_after_the_query(with_lines: Engine):
    config = with_(max_chunks=20, exit_threshold=0.0, top_logprobs=3)
    steps = steps_of(with_lines, "early-exit", config)
    text, n_given = text_of(steps), len(with_lines.tokenize(PREFIX))
    n_line = text.index(*with_lines.tokenize("\n")) + 1
    assert text[n_line:][:n_given] == with_lines.tokenize(PREFIX) and len(text) == 120
    assert steps[-1].figures["trials"] == steps[-1].figures["exited"] == 1
    logprobs = np.concatenate([step.logprobs for step in steps])
    assert_read_after_the_query(with_lines, text, logprobs)
    assert {len(step.tokens) for step in steps} == {6}
    given = [len(ids) for step in steps for ids in step.top_ids or []]
    assert given == [3] * n_line + [0] * n_given + [3] * (120 - n_line - n_given)


def test_a_trial_goes_on_until_all_of_its_braces_are_closed(mini: Engine, monkeypatch):
    monkeypatch.setattr(early_exit, "BEGINNING", PREFIX + "{")
    reply = reply_of(mini, exit_threshold=0.0)
    trial = reply.text.split(PREFIX + "{")[1]
    assert trial.index("}") < len(trial) - 1
    assert reply.steps[-1].figures["trials"] == 1


def test_a_stop_text_within_a_trial_ends_the_reply(mini: Engine):
    reply = generate(mini, QUESTION, lines(exit_threshold=0.0, stop=("}",)), method="early-exit")
    assert reply.finish == "stop" and reply.text.startswith(PREFIX) and "}" not in reply.text


def test_a_text_without_thinking_is_tried_itself(mini: Engine):
    options = lines(thinking=False, exit_threshold=0.0)
    reply = generate(mini, QUESTION, options, method="early-exit")
    first, second = reply.text.split("\n")[:2]
    assert first and second.startswith(PREFIX) and not reply.thinking


def test_a_run_of_thinking_alone_ends_with_its_tag(mini: Engine):
    """A grammar holds for the answer alone, which a second run writes."""
    config = lines(exit_threshold=0.0, thinking_budget=200, grammar='root ::= "So " [0-9]+')
    before = mini.stats().n_positions
    reply = generate(mini, QUESTION, config, method="early-exit")
    assert mini.stats().n_positions - before == reply.counts.total
    assert reply.thinking.count("\n") == 0 < len(reply.thinking) and reply.closed_by is None
    assert reply.text.startswith("So ") and len(reply.runs) == 2


# --- limits ---


def test_a_budget_is_never_exceeded_and_pays_no_trial_that_it_cannot_end(mini: Engine):
    trials = set()
    for budget in range(60, 400, 17):
        for threshold in (0.99, 2.0):
            reply = reply_of(mini, max_forward_tokens=budget, exit_threshold=threshold)
            assert reply.counts.total <= budget and reply.text
            trials.add(max(step.figures.get("trials", 0) for step in reply.steps))
    assert len(trials) > 4


def test_new_tokens_hold_for_the_trials_too(mini: Engine):
    for limit in range(20, 90, 7):
        reply = reply_of(mini, max_tokens=limit, exit_threshold=0.0)
        assert reply.n_tokens <= limit and reply.text


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_its_cells_sequences_and_positions_are_bounds(
    with_lines: Engine, threshold: float, monkeypatch
):
    config, needs = with_(max_chunks=20, exit_threshold=threshold), methods.get("early-exit")
    held = sequences_held(with_lines, monkeypatch)
    before = with_lines.stats().n_positions
    steps = steps_of(with_lines, "early-exit", config)
    assert with_lines.stats().n_positions - before == spent(steps)
    assert max(held) == needs.sequences(with_lines, config) == 2
    assert max(step.cells for step in steps) <= needs.cells(with_lines, len(PROMPT), config)
    assert needs.positions and spent(steps) <= needs.positions(with_lines, len(PROMPT), config)
    assert steps[-1].figures["trials"] >= 1


@pytest.mark.parametrize("end", ["answer now", "cancel"])
def test_a_trial_under_way_is_dropped(engine: Engine, end: str, monkeypatch):
    """The random model writes no line within its first trial, which is not done when the end
    comes."""
    monkeypatch.setattr(early_exit, "MOST_TOKENS", 900)
    cancel = Cancel()
    tried: list[str] = []

    def on_event(progress: Progress) -> None:
        if progress.stage == "rollouts":
            tried.append(progress.stage)
            (cancel.answer_now if end == "answer now" else cancel.cancel)()

    config = with_(chunk_len=24, max_chunks=60, exit_threshold=0.0, seed=44)
    before = engine.stats().n_positions
    try:
        steps = steps_of(engine, "early-exit", config, on_event=on_event, cancel=cancel)
    except CancelledError:
        assert end == "cancel"
    else:
        assert end == "answer now" and steps[-1].finish == "budget"
        assert engine.detokenize(text_of(steps)).count(b"\n") == 1
        assert steps[-1].figures["trials"] == 0
        assert engine.stats().n_positions - before == spent(steps)
    assert len(tried) == 1


def test_runs_side_by_side_are_those_alone(with_lines: Engine):
    config = with_(max_chunks=20, exit_threshold=0.0)
    for i, steps in enumerate(group_of(with_lines, "early-exit", config, 3)):
        mine = dataclasses.replace(config, seed=config.seed + i)
        alone = steps_of(with_lines, "early-exit", mine)
        assert text_of(steps) == text_of(alone) and spent(steps) == spent(alone)
        assert steps[-1].figures["exited"] == 1
