"""``when_full``: a plain text ends where its context is full, or goes on after a reset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from engines import is_free
from families import FAMILIES
from fixture_types import Load, Model

from tgr_local import SearchConfig, generate
from tgr_local.engine import Engine, SteeredEngine
from tgr_local.generation import generate_many
from tgr_local.search.capacity import SPARE_CELLS

CELLS, QUERY = 256, [5] * 20
ROOM = CELLS - SPARE_CELLS - len(QUERY)
CONFIG = SearchConfig(chunk_len=32, max_chunks=24, when_full="reset", temperature=0.8)


@pytest.fixture
def small(model: Model, load: Load) -> Iterator[Engine]:
    engine = load(model(), n_ctx=CELLS)
    yield SteeredEngine(engine, logit_bias=[(token, -100.0) for token in engine.end_tokens])


def test_it_stops_by_default(small: Engine):
    reply = generate(small, QUERY, dataclasses.replace(CONFIG, when_full="stop"))
    assert (reply.n_tokens, reply.finish, reply.limit) == (ROOM, "length", "n_ctx")


def test_a_reset_goes_on_with_the_prompt_and_the_newest_half(small: Engine):
    reply = generate(small, QUERY, CONFIG)
    assert (reply.n_tokens, reply.finish, reply.limit) == (768, "length", "max_chunks")
    assert max(step.cells for step in reply.steps) <= CELLS
    rebuilt = [step.counts.rebuild for step in reply.steps if step.counts.rebuild]
    kept = ROOM // 2
    assert rebuilt == [kept] * -(-(768 - ROOM) // (ROOM - kept))
    assert generate(small, QUERY, CONFIG).tokens == reply.tokens
    plain = generate(small, QUERY, dataclasses.replace(CONFIG, when_full="stop"))
    assert reply.tokens[:ROOM] == plain.tokens


def test_after_a_reset_the_text_is_that_of_the_context_that_it_says(small: Engine):
    """Greedily: the next tokens are those of a new text after Q and the newest half."""
    greedy = dataclasses.replace(CONFIG, temperature=0.0)
    reply = generate(small, QUERY, greedy)
    kept = reply.tokens[ROOM - ROOM // 2 : ROOM]
    n = ROOM - ROOM // 2
    again = generate(small, [*QUERY, *kept], dataclasses.replace(greedy, max_tokens=n))
    assert reply.tokens[ROOM : ROOM + n] == again.tokens


def test_a_text_that_fits_is_not_changed(small: Engine):
    fits = dataclasses.replace(CONFIG, max_tokens=100)
    stops = dataclasses.replace(fits, when_full="stop")
    assert generate(small, QUERY, fits).tokens == generate(small, QUERY, stops).tokens


def test_several_texts_go_on_and_a_budget_ends_them(small: Engine):
    replies = generate_many(small, QUERY, CONFIG, 2)
    assert [reply.n_tokens for reply in replies] == [768] * 2
    whole = generate(small, QUERY, CONFIG).counts.total
    for budget in (ROOM + 10, ROOM + 25, ROOM + 200, whole - 1, whole):
        reply = generate(small, QUERY, dataclasses.replace(CONFIG, max_forward_tokens=budget))
        assert reply.counts.total <= budget
        assert reply.finish == ("length" if budget == whole else "budget")
    assert is_free(small)


def test_a_model_that_cannot_roll_back_goes_on_too(load: Load, tmp_path):
    family = next(family for family in FAMILIES if family.name == "lfm2")
    engine = load(family.write(tmp_path / "model.gguf"), n_ctx=CELLS)
    endless = SteeredEngine(engine, logit_bias=[(token, -100.0) for token in engine.end_tokens])
    assert not engine.rolls_back
    assert generate(endless, QUERY, CONFIG).n_tokens == 768
    assert is_free(engine)


def test_stop_and_reset_are_all_that_there_is():
    with pytest.raises(ValueError, match="when_full"):
        SearchConfig(when_full="shift")
