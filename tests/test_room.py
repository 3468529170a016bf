"""A small context: replies are written until it is full, and only a prompt that does not fit is
refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import run
from engines import is_free
from fixture_types import Load, Model
from gguf_models import token_id
from serving import served_here

from tgr_local import SearchConfig, TgrLlama, generate, generate_many, generate_steps
from tgr_local.engine import Engine, SteeredEngine
from tgr_local.generation import query_tokens
from tgr_local.methods import METHODS
from tgr_local.options.model_files import embedded_model
from tgr_local.search.capacity import SPARE_CELLS, difference, longest_text, most_tokens
from tgr_local.system.errors import CapacityError, ContextError

every_method = pytest.mark.parametrize("method", sorted(METHODS))
QUICK: dict[str, Any] = {
    "n_samples": 2, "vote_wave": 2, "tree_breadth": 1, "tree_proposals": 2,
    "power_steps": 1, "calibration": "absolute", "temperature": 0.8,
}  # fmt: skip
CELLS = 256


@pytest.fixture
def small(model: Model, load: Load) -> Iterator[SteeredEngine]:
    """An engine with few cells that never ends a text."""
    engine = load(model(), n_ctx=CELLS)
    yield SteeredEngine(engine, logit_bias=[(token, -100.0) for token in engine.end_tokens])
    assert is_free(engine)


@every_method
def test_every_method_writes_until_the_context_is_full(small: Engine, method: str):
    """With the default lengths of chunks, rollouts and texts, which are far longer. What resets its
    context goes on."""
    prompt = small.tokenize("a" * 40)
    reply = generate(small, prompt, SearchConfig(**QUICK, max_tokens=1000), method=method)
    assert reply.text and reply.finish == "length"
    if METHODS[method].resets:
        assert reply.n_tokens == 1000 and reply.limit == "max_tokens"
        return
    assert reply.limit == "n_ctx" and len(prompt) + reply.n_tokens <= longest_text(small)
    if method == "base":
        assert len(prompt) + reply.n_tokens == longest_text(small)


@every_method
def test_a_limit_that_fits_is_that_of_a_large_context(
    model: Model, load: Load, small: Engine, method: str
):
    """The context changes nothing of a reply that it has room for."""
    config = SearchConfig(**QUICK, max_tokens=24)
    large = load(model())
    bias = [(token, -100.0) for token in large.end_tokens]
    texts = [
        generate(engine, [5] * 20, config, method=method).tokens
        for engine in (small, SteeredEngine(large, logit_bias=bias))
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 24


def test_several_replies_share_a_small_context(small: Engine):
    replies = generate_many(small, [5] * 20, SearchConfig(**QUICK), 2, method="base")
    assert [reply.finish for reply in replies] == ["length"] * 2
    assert all(reply.limit == "n_ctx" for reply in replies)


def test_steps_fit_too(small: Engine):
    steps = list(generate_steps(small, [5] * 20, SearchConfig(**QUICK), method="markov"))
    assert steps[-1].finish == "length"


def test_a_prompt_that_does_not_fit_names_the_option(small: Engine):
    longest = CELLS - SPARE_CELLS
    assert generate(small, [5] * (longest - 1), method="base").n_tokens == 1
    with pytest.raises(ContextError, match=r"248 tokens, but n_ctx is 256, .* raise n_ctx \(-c\)"):
        generate(small, [5] * longest, method="base")


# --- chunks and rollouts that fit ---

LATENT = METHODS["tgr-latent"]


def test_a_search_gets_shorter_chunks_and_rollouts_beside_a_long_prompt(small: Engine):
    config = SearchConfig()  # chunks of 512
    used = LATENT.fitted(small, 20, config)
    # a chunk is retained while the next one is written
    assert 64 <= used.chunk_len <= (CELLS - 28) // 2 < config.chunk_len
    assert used.token_limit == config.token_limit and 8 <= used.rollout_len < config.rollout_len
    assert LATENT.cells(small, 20, used) <= CELLS
    assert difference(config, used) == (
        f"the context is small for this prompt: chunks have {used.chunk_len} tokens instead of "
        f"512, rollouts have {used.rollout_len} tokens instead of 32"
    )


def test_a_search_that_fits_is_not_changed(small: Engine):
    config = SearchConfig(chunk_len=32, rollout_len=4)
    assert LATENT.fitted(small, 20, config) is config
    assert difference(config, config) == ""


def test_too_little_room_for_chunks_is_one_plain_chunk(small: Engine):
    config = SearchConfig(search_from=0)
    used = LATENT.fitted(small, 200, config)
    assert (used.chunk_len, used.max_chunks, used.token_limit) == (48, 1, 48)
    assert used.search_from == 1  # nothing is searched
    assert difference(config, used).endswith(
        "48 tokens, too few for chunks and resets: the reply was written plainly"
    )
    reply = generate(small, [5] * 200, config, method="tgr-latent")
    assert reply.n_tokens == 48 and reply.note == difference(config, used)
    assert all(step.candidates is None for step in reply.steps)


@pytest.mark.parametrize("room", range(1, 6))
@pytest.mark.parametrize("method", ["base", "tgr-think", "tgr-latent"])
def test_a_thinking_that_fills_the_context_says_so(load: Load, method: str, room: int):
    """The room is too small for the end of the thinking and an answer, or just large enough."""
    question = "What is 12 + 23 - 4 + 7?"
    n_query = len(query_tokens(load(embedded_model()), question, SearchConfig()))
    engine = load(embedded_model(), n_ctx=n_query + SPARE_CELLS + room)
    for on_event in (None, lambda event: None):  # read a chunk or a token at a time
        reply = generate(engine, question, SearchConfig(seed=7), method=method, on_event=on_event)
        assert (reply.finish, reply.limit, reply.closed_by) == ("length", "n_ctx", "n_ctx")
        assert 1 <= reply.n_tokens <= room + 1


def test_the_note_is_of_the_thinking_where_that_alone_is_searched(load: Load):
    engine, config = load(embedded_model(), n_ctx=128), SearchConfig(seed=7, search_from=0)
    reply = generate(engine, "What is 12 + 23 - 4 + 7?", config, method="tgr-think")
    assert reply.thinking and reply.note.endswith("resets: the thinking was written plainly")
    config = dataclasses.replace(config, thinking_budget=9)  # for which there is room
    reply = generate(engine, "What is 12 + 23 - 4 + 7?", config, method="tgr-think")
    assert reply.closed == 9 and reply.note == (
        "the context has no room for rollouts beside this prompt: the thinking was written plainly"
    )
    config = dataclasses.replace(config, search_from=1)  # nothing was to be searched
    reply = generate(engine, "What is 12 + 23 - 4 + 7?", config, method="tgr-think")
    assert reply.closed == 9 and reply.note == ""


def test_a_short_reply_says_nothing_of_the_search(small: Engine):
    reply = generate(small, [5] * 20, SearchConfig(**QUICK, max_tokens=5), method="tgr-latent")
    assert reply.note == ""


def test_rollouts_that_are_never_written_are_not_reserved(engine: Engine):
    """A reply of a single chunk is not searched by default."""
    short = SearchConfig(max_tokens=50, rollout_len=100)
    assert LATENT.cells(engine, 20, short) == 20 + 50 + SPARE_CELLS
    searched = dataclasses.replace(short, search_from=0, guard=0.0)
    assert LATENT.cells(engine, 20, searched) > 800


def test_the_longest_text_is_found_by_its_cells():
    assert most_tokens(100, lambda n: 3 * n, 299) == 99
    assert most_tokens(100, lambda n: 3 * n, 300) == 100
    assert most_tokens(100, lambda n: 3 * n + 7, 9) == 0


# --- the front ends ---


@pytest.mark.parametrize("cells", ["64", "512", "4096", "8192"])
@pytest.mark.parametrize("method", ["base", "tgr-latent", "auto"])
def test_run_answers_in_a_context_of_any_size(capsys, cells: str, method: str):
    assert run("run", "-c", cells, "--method", method, "--seed", "1", "What is 2+3?") == 0
    assert "5" in capsys.readouterr().out


def test_the_error_for_a_long_question_names_the_flag(capsys):
    assert run("run", "-c", "64", "--method", "base", "1+1=" * 60) == 1
    error = capsys.readouterr().err
    assert "n_ctx is 64" in error and "raise n_ctx (-c)" in error


def test_a_server_writes_until_its_context_is_full(model: Model):
    messages = [{"role": "user", "content": "hello"}]
    never = {str(token_id(end)): -100 for end in ("<|im_end|>", "<|endoftext|>")}
    with served_here(model(), n_ctx=200) as server:
        for options in (
            {"method": "base", "chunk_len": 64, "max_chunks": 9},
            {"method": "tgr-latent", "chunk_len": 512},
        ):
            body = {"messages": messages, "tgr": options, "logit_bias": never, "seed": 1}
            answer = server.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            if options["method"] == "base":
                assert answer.json()["usage"]["total_tokens"] == 200 - SPARE_CELLS
                assert answer.json()["choices"][0]["finish_reason"] == "length"
                assert answer.json()["tgr"]["replies"][0]["limit"] == "n_ctx"
        long = {"messages": [{"role": "user", "content": "a" * 300}]}
        refused = server.client.post("/v1/chat/completions", json=long)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"


# --- the examples of llama-cpp-python's README, on the embedded model ---


SYSTEM = {"role": "system", "content": "You are a helpful assistant that outputs in JSON."}
WORLD_SERIES = {"role": "user", "content": "Who won the world series in 2020"}


@pytest.mark.parametrize("chat_format", [None, "chatml"])
def test_readme_json(chat_format: str | None):
    with TgrLlama(model_path=embedded_model(), chat_format=chat_format, n_ctx=2048) as llm:
        output = llm.create_chat_completion(
            messages=[SYSTEM, WORLD_SERIES],
            response_format={
                "type": "json_object",
                "schema": {
                    "type": "object",
                    "properties": {"team_name": {"type": "string", "maxLength": 20}},
                    "required": ["team_name"],
                },
            },
            temperature=0.7,
        )
        assert isinstance(json.loads(output["choices"][0]["message"]["content"])["team_name"], str)
        output = llm.create_chat_completion(
            messages=[SYSTEM, WORLD_SERIES],
            response_format={"type": "json_object"},
            temperature=0.7, max_tokens=64,
        )  # fmt: skip
        assert output["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_readme_functions():
    with TgrLlama(embedded_model(), chat_format="chatml-function-calling", n_ctx=2048) as llm:
        output = llm.create_chat_completion(
            messages=[
                {
                    "role": "system",
                    "content": "A chat between a curious user and an artificial intelligence "
                    "assistant. The assistant calls functions with appropriate input when "
                    "necessary",
                },
                {"role": "user", "content": "Extract Jason is 25 years old"},
            ],
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": "UserDetail",
                        "parameters": {
                            "type": "object",
                            "title": "UserDetail",
                            "properties": {
                                "name": {"title": "Name", "type": "string", "maxLength": 20},
                                "age": {"title": "Age", "type": "integer"},
                            },
                            "required": ["name", "age"],
                        },
                    },
                }
            ],
            tool_choice={"type": "function", "function": {"name": "UserDetail"}},
        )
    call, *_ = output["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "UserDetail"
    assert json.loads(call["function"]["arguments"]).keys() == {"name", "age"}


def test_readme_embeddings():
    with TgrLlama(embedded_model(), embedding=True, n_ctx=64) as llm:
        one = llm.create_embedding("Hello, world!")
        two = llm.create_embedding(["Hello, world!", "Goodbye, world!"])
        assert len(one["data"]) == 1 and len(two["data"]) == 2
        assert two["data"][0]["embedding"] == pytest.approx(one["data"][0]["embedding"], abs=1e-3)
        longest = longest_text(llm.engine)
        assert len(llm.embed("a b c " * 100)) == longest  # truncated to the context


def test_a_format_that_we_lack_is_refused():
    with pytest.raises(ValueError, match="chat_format is 'llama-2', but must be chatml or"):
        TgrLlama(embedded_model(), chat_format="llama-2")


def test_a_method_whose_texts_do_not_fit_is_refused(small: Engine):
    with pytest.raises(CapacityError, match="leaves no room for the texts of this method"):
        generate(small, [5] * 246, SearchConfig(n_samples=8), method="best-of-n")
