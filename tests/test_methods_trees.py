"""Tree of Thoughts and Graph of Thoughts: what they select, the prompts they ask, their needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engines import TOKENS, is_free
from fixture_types import Load, Model
from method_runs import (
    END,
    PROMPT,
    assert_read_after_the_query,
    branches_of,
    only,
    spent,
    steps_of,
    text_of,
    with_,
)

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.lab.methods import got, tot
from tgr_local.search.branches import Branch, text_limit
from tgr_local.system.errors import CapacityError


def test_a_tree_keeps_the_likeliest_thoughts_at_every_level(engine: Engine):
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


def test_equal_thoughts_count_once_and_ended_ones_stay(engine: Engine, monkeypatch):
    only((END, TOKENS[0]), monkeypatch, temperature=5.0)
    with branches_of(engine, with_(tree_breadth=6, tree_proposals=6, chunk_len=1)) as branches:
        tree = tot.Tree(branches)
        assert tree.expand()
        assert sorted(thought.tokens for thought in tree.kept) == sorted([[END], [TOKENS[0]]])
        assert tree.expand()
        assert [END] in [thought.tokens for thought in tree.kept]
        assert len(tree.kept) == 3 and tree.best.ended


def test_a_turn_follows_the_chat_template(engine: Engine):
    turn = got.UserTurn(engine, got.merge_request(2), thinking=True)
    context = engine.tokenize("<|im_start|>assistant\nOne")
    tokens = turn.after(context, [engine.tokenize("Two"), [TOKENS[3], 200]])
    text = engine.detokenize([*context, *tokens], special=True)
    begin = b"<|im_start|>assistant\nOne<|im_end|>\n<|im_start|>user\nAnother attempt"
    assert text.startswith(begin) and text.endswith(b"<|im_end|>\n<|im_start|>assistant\n")
    assert b"question:\n\nTwo\n\n" in text and engine.detokenize([TOKENS[3], 200]) in text
    assert len(tokens) <= turn.n_tokens + len(engine.tokenize("Two")) + 2


def test_a_turn_closes_thinking_that_is_open(engine: Engine):
    turn = got.UserTurn(engine, got.REFINE, thinking=False)
    for context, closes in (("<think>hm", True), ("<think>hm</think>so", False), ("so", False)):
        text = engine.detokenize(turn.after(engine.tokenize(context)), special=True)
        assert text.startswith(b"\n</think>\n\n") == closes


def test_a_model_without_a_template_is_asked_in_plain_text(engine: Engine, monkeypatch):
    for template in ("", "{{ messages[-1].content }}"):  # the second drops what was said before
        monkeypatch.setattr(engine, "chat_template", template)
        turn = got.UserTurn(engine, got.REFINE, thinking=False)
        assert engine.detokenize(turn.after([])).decode() == f"\n\n{got.REFINE}\n\n"


def test_a_rewritten_thought_is_a_text_after_the_query(engine: Engine):
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


def test_a_merge_reads_the_best_thought_and_quotes_the_others(engine: Engine, monkeypatch):
    with branches_of(engine) as branches:
        graph = got.Graph(branches)
        assert graph.expand()
        best, other = graph.kept
        asked_for: list[tuple[list[int], list[int]]] = []
        ask = graph.ask

        def spy(text: Any, turn: Any, *more: Any, **options: Any) -> Any:
            asked_for.append((text.tokens, turn))
            return ask(text, turn, *more, **options)

        monkeypatch.setattr(graph, "ask", spy)
        graph.merge()
        ((text, turn),) = asked_for
        assert text == best.tokens
        asked = got.UserTurn(engine, got.merge_request(1), thinking=True)
        assert turn == asked.after(PROMPT + best.tokens, [other.tokens])


@pytest.mark.parametrize("method", ["tot", "got"])
@pytest.mark.parametrize(("breadth", "proposals"), [(1, 3), (3, 1), (4, 4)])
def test_trees_and_graphs_of_any_shape_stay_within_their_cells(
    engine: Engine, method: str, breadth: int, proposals: int
):
    config = with_(tree_breadth=breadth, tree_proposals=proposals)
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
        ("got", {"tree_breadth": 20}, r"needs 81 sequences .* lower tree_breadth or"),
    ],
)
def test_too_many_texts_at_a_time_are_refused_with_what_to_lower(
    model: Model, load: Load, method: str, options: dict[str, Any], message: str
):
    engine = load(model(), n_seq_max=64)
    with pytest.raises(CapacityError, match=message):
        steps_of(engine, method, with_(**options))
    assert is_free(engine)


def test_prompts_that_cannot_fit_are_refused_with_the_numbers(model: Model, load: Load):
    short = load(model(n_ctx_train=128))
    with pytest.raises(CapacityError, match=r"10 tokens and the prompts .* trained for 128"):
        steps_of(short, "got")
    steps = steps_of(short, "tot", with_(chunk_len=60, temperature=0.0))
    assert len(text_of(steps)) == 118 and steps[-1].finish == "length"
    assert text_limit(short, 10, with_(chunk_len=60), times=2) == 59
