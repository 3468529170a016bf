"""Trained models in the engine and in the unpatched library: tokens, templates, texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from loop_texts import HONEST, LOOPS
from trained_models import TrainedModel
from trained_peer import Peer, difference, read
from trained_texts import CONVERSATIONS, ENGLISH, PROMPTS, STRINGS, question

from tgr_local import SearchConfig, generate
from tgr_local.engine import Engine, PromptText
from tgr_local.generation import chat_query, query_tokens
from tgr_local.generation.loops import is_loop
from tgr_local.options.config import EngineConfig
from tgr_local.options.resolve import FOR_PEOPLE

pytestmark = pytest.mark.trained

F32 = EngineConfig(type_k="f32", type_v="f32", flash_attn="off", prefix_cells=0)


@pytest.fixture(scope="module")
def exact(trained: TrainedModel) -> Iterator[Engine]:
    """An engine that rounds as little as it can, and remembers nothing."""
    with Engine(trained.in_folder(), F32) as engine:
        yield engine


@pytest.fixture(scope="module")
def peer(trained: TrainedModel, exact: Engine) -> Iterator[Peer]:
    """The same in llama.cpp."""
    with Peer(trained.in_folder(), exact, llama_cpp.GGML_TYPE_F32) as made:
        yield made


def assert_alike(ours: Any, theirs: Any) -> None:
    """Log-probabilities of the same tokens that differ by rounding: by 1e-3 in the mean, or by no
    more than random differences of their size have as a mean of so many."""
    apart = ours - theirs
    error = apart.std() / np.sqrt(len(apart))
    print(f"mean {ours.mean():.4f}, apart {apart.mean():.1e} ± {error:.1e} in the mean")
    assert abs(apart.mean()) <= max(1e-3, 3 * error)
    assert np.abs(apart).mean() <= 0.15


def english(engine: Engine) -> list[int]:
    tokens = engine.tokenize(ENGLISH, add_special=True)[:1000]
    assert len(tokens) > 900
    return tokens


def test_english_is_as_likely_as_in_llama_cpp(
    exact: Engine, peer: Peer, use_products: Callable[[str], None]
):
    use_products("ggml")  # ours of Q8_0 weights add up in another order
    tokens = english(exact)
    assert_alike(read(exact, tokens), peer.logprobs(tokens))


def test_so_it_is_with_the_engine_as_a_person_has_it(trained: TrainedModel, trained_engine: Engine):
    tokens = english(trained_engine)
    ours = read(trained_engine, tokens)
    with Peer(trained.in_folder(), trained_engine) as peer:
        assert_alike(ours, peer.logprobs(tokens))


@pytest.mark.parametrize("special", [False, True])
def test_tokens_are_llama_cpps(exact: Engine, peer: Peer, special: bool):
    for text in (*STRINGS, ENGLISH, "".join(STRINGS)):
        for begin in (False, True):
            ours = exact.tokenize(text, add_special=begin, parse_special=special)
            theirs = peer.llama.tokenize(text.encode(), add_bos=begin, special=special)
            assert ours == theirs, (text, begin)
        plain = exact.tokenize(text, parse_special=special)
        written = exact.detokenize(plain, special=True)
        assert written == peer.text(plain), text
        if not text.startswith(" "):  # some vocabularies add a space
            assert written.decode() == text


def test_rendered_templates_are_those_of_jinja(trained: TrainedModel, exact: Engine, peer: Peer):
    template = peer.llama.metadata.get("tokenizer.chat_template")
    assert trained.chats == (template is not None)
    if template is not None:
        assert exact.chat_template == template
    begin, end = (
        exact.detokenize([token], special=True).decode() if token is not None else ""
        for token in (exact.bos, exact.eos)
    )
    formatter = Jinja2ChatFormatter(exact.chat_template, eos_token=end, bos_token=begin)
    for messages in CONVERSATIONS:
        expected = formatter(messages=messages).prompt  # type: ignore[arg-type]
        assert exact.chat_prompt(messages) == expected
        tokens = peer.llama.tokenize(expected.encode(), add_bos=False, special=True)
        if not any(exact.control_texts.within(message["content"]) for message in messages):
            assert chat_query(exact, messages, SearchConfig()).tokens == tokens


def test_no_message_has_a_control_token_and_other_prompts_are_as_before(exact: Engine):
    """Every text of a control token that the vocabulary has, in every role; and 200 conversations
    without any, in which a cut that divides nothing changes nothing either."""
    texts = sorted(exact.control_texts.texts)
    controls = {tokens[0] for text in texts if len(tokens := exact.tokenize(text)) == 1}
    assert len(controls) > 10

    def asked(content: str) -> tuple[int, list[int]]:
        messages = [
            {"role": role, "content": content} for role in ("system", "user", "assistant", "user")
        ]
        tokens = query_tokens(exact, messages, SearchConfig())
        return sum(token in controls for token in tokens), tokens

    plain, _ = asked("x")
    some = texts[:40] + texts[-40:]
    parts = [" ".join(texts[i : i + 500]) for i in range(0, len(texts), 500)]
    for content in (*some, *(f" a{text}\n{text * 2} b" for text in some[:20]), *parts):
        assert asked(content)[0] == plain, content[:80]
    pieces = [*STRINGS, *ENGLISH.split("\n")]
    pieces = [piece for piece in pieces if not exact.control_texts.within(piece)]
    draw = random.Random(7)
    for _ in range(200):
        content = "".join(draw.choices(pieces, k=3))
        messages = [{"role": "user", "content": content}]
        text = exact.chat_prompt(messages)
        whole = exact.tokenize(text)
        assert query_tokens(exact, messages, SearchConfig()) == whole
        at = text.find(content) + len(content) // 2
        assert exact.prompt_tokens(PromptText(text, (at,))) == whole


def test_greedy_texts_are_llama_cpps(
    trained: TrainedModel, exact: Engine, peer: Peer, use_products: Callable[[str], None]
):
    use_products("ggml")
    config = SearchConfig(temperature=0, max_tokens=24)
    failed = []
    for prompt in PROMPTS:
        query = question(trained, exact, prompt)
        reply = generate(exact, query, config, method="base")
        said = difference(exact, query, reply.tokens, peer.greedy(query, 24))
        failed += [f"{prompt}: {said}"] if said else []
    assert not failed, "\n".join(failed)


def test_loops_are_told_from_texts_that_repeat_themselves(exact: Engine):
    """As the front ends look at a text, and four times as often."""

    def end(text: str, step: int) -> int | None:
        tokens = exact.tokenize(text)
        for n in range(step, len(tokens) + step, step):
            before = exact.detokenize(tokens[:n]).decode("utf-8", "replace")
            if is_loop(exact, tokens[:n], FOR_PEOPLE["loop_guard"], text_before=before):
                return n
        return None

    assert {name for name, text in HONEST.items() if end(text, 128)} == set()
    late = {
        name for name, (text, latest) in LOOPS.items() if not 0 < (end(text, 512) or 0) <= latest
    }
    assert late == set()
