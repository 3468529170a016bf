"""From steps to text: thinking and answer, one reply, several together, and the stream."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from engines import EXACT, held, is_free
from fixture_types import Load, Model
from gguf_models import token_id
from method_runs import PAPER
from openai_calls import ASK
from surroundings import HANG
from threads import in_threads, wait_until

import tgr_local
from tgr_local import methods
from tgr_local.apis.requests import chat_request
from tgr_local.engine import Cancel, Engine
from tgr_local.engine.engine import described
from tgr_local.generation import (
    Event,
    Reply,
    TextDelta,
    TextSplitter,
    advised,
    generate,
    generate_each,
    generate_many,
    generate_steps,
    query_tokens,
    stream,
    write_each,
)
from tgr_local.generation.request import ReplyRequest
from tgr_local.generation.runs import write_reply
from tgr_local.generation.text import LineLimits
from tgr_local.methods import METHODS
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.search.steps import Counts, Progress, Step
from tgr_local.system.errors import CancelledError, CapacityError, ModelError

SMALL = SearchConfig(
    chunk_len=8, max_chunks=3, n_candidates=3, rollout_len=4, temperature=0.8, **PAPER
)
GREEDY = dataclasses.replace(SMALL, temperature=0.0)
ENDLESS = SearchConfig(chunk_len=100, max_chunks=100_000, n_candidates=2, rollout_len=4)

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
every_method = pytest.mark.parametrize("method", sorted(METHODS))


# --- thinking, answer, stop texts ---


class Bytes:
    """An engine whose tokens are bytes."""

    def detokenize(self, tokens: Sequence[int], **_: Any) -> bytes:
        return bytes(tokens)


def split(*pieces: str | bytes, prompt: str = "", stop: tuple[str, ...] = ()) -> list[Any]:
    """What the splitter says after each piece, and at the end; its parts must be what it said."""
    splitter = TextSplitter(Bytes(), prompt.encode(), stop)  # type: ignore[arg-type]
    said = []
    for piece in pieces:
        said.append(splitter.feed(piece.encode() if isinstance(piece, str) else piece))
    said.append(splitter.end())
    deltas = [delta for deltas in said for delta in deltas]
    for kind, whole in (("thinking", splitter.thinking), ("answer", splitter.text)):
        assert "".join(delta.text for delta in deltas if delta.kind == kind).strip() == whole
    return [[(delta.text, delta.kind) for delta in deltas] for deltas in said]


def parts(text: str, **options: Any) -> tuple[str, str]:
    splitter = TextSplitter(Bytes(), options.pop("prompt", "").encode(), **options)  # type: ignore[arg-type]
    splitter.feed(text.encode())
    splitter.end()
    return splitter.thinking, splitter.text


def test_text_without_tags_is_the_answer():
    assert split("he", "llo") == [[("he", "answer")], [("llo", "answer")], []]


def test_thinking_ends_where_the_answer_begins():
    assert split("<think>\nhm\n</think>\n\n42") == [[("hm\n", "thinking"), ("42", "answer")], []]
    assert parts("<think>\nhm\n</think>\n\n42\n") == ("hm", "42")
    assert parts("a<think>b</think>c<think>d</think>e") == ("bd", "ace")
    assert parts("<think>never closed") == ("never closed", "")


def test_a_prompt_may_open_the_thinking():
    assert parts("hm</think>42", prompt="x<think>\n") == ("hm", "42")
    assert parts("hm</think>42", prompt="<think></think>") == ("", "hm42")


def test_an_incomplete_tag_is_not_streamed():
    thinking, answer = [("x", "thinking")], [("y", "answer")]
    assert split("<th", "ink>x</", "think", ">y") == [[], thinking, [], answer, []]
    assert split("a <", "b") == [[("a ", "answer")], [("<b", "answer")], []]
    assert split("a <thin") == [[("a ", "answer")], [("<thin", "answer")]]


def test_a_character_over_several_tokens_comes_as_one():
    llama = "🦙".encode()
    assert split(llama[:1], llama[1:3], llama[3:]) == [[], [], [("🦙", "answer")], []]
    assert split(b"a\xf0\x9f") == [[("a", "answer")], [("\ufffd", "answer")]]
    assert split(b"\xffa") == [[("\ufffda", "answer")], []]


def test_a_stop_text_is_cut_with_all_that_follows():
    assert parts("one. two. three", stop=(". t",)) == ("", "one")
    assert parts("one END two", stop=("END", "zzz")) == ("", "one")
    assert split("one E", "N", "D two", stop=("END",)) == [[("one ", "answer")], [], [], []]
    assert split("one E", "x", stop=("END",))[1] == [("Ex", "answer")]
    assert parts("<think>a END b</think>c", stop=("END",)) == ("a", "")
    assert parts("<think>a</think>c", stop=("</think>",)) == ("a", "")


def test_pieces_do_not_change_the_parts():
    text = "\n<think>\nhé 🦙 <\n</think>\n\nfür <thinkx STO P <b> 42 STOP more <think>x"
    whole = parts(text, stop=("STOP",))
    assert whole == ("hé 🦙 <", "für <thinkx STO P <b> 42")
    rng, data = random.Random(0), text.encode()
    for _ in range(50):
        cuts = sorted(rng.sample(range(1, len(data)), rng.randint(1, 30)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        said = [delta for deltas in split(*pieces, stop=("STOP",)) for delta in deltas]
        for kind, wanted in zip(("thinking", "answer"), whole, strict=True):
            assert "".join(text for text, of in said if of == kind).strip() == wanted


def test_a_stop_text_is_found_before_a_tag_that_it_overlaps():
    """However the text comes: a stream follows it token by token, another reply step by step."""
    assert parts("a<think>b", stop=("ink>b",)) == ("", "a<th")
    assert parts("abcd", stop=("bc", "abcd")) == parts("abcd", stop=("abcd", "bc")) == ("", "")
    assert split("a<think>", "b", stop=("ink>b",)) == [[("a", "answer")], [("<th", "answer")], []]
    assert split("a<think>", "c", stop=("ink>b",)) == [[("a", "answer")], [("c", "thinking")], []]
    for text, stop in (("x</think>\n\ny", "</think>\n\n"), ("x</think>y<think>z", "k>z")):
        whole = parts(text, prompt="<think>", stop=(stop,))
        deltas = [delta for said in split(*text, prompt="<think>", stop=(stop,)) for delta in said]
        for kind, wanted in zip(("thinking", "answer"), whole, strict=True):
            assert "".join(text for text, of in deltas if of == kind).strip() == wanted
    assert split("ab", "c", "d", stop=("bc", "abcd")) == [[], [("a", "answer")], [], []]


def test_the_stop_text_of_an_answer_is_none_that_ended_its_thinking():
    splitter = TextSplitter(Bytes(), b"<think>", ("END", "STOP"))  # type: ignore[arg-type]
    splitter.feed(b"a END")
    assert splitter.stopped == "END"
    splitter.begin_answer(b"</think>")
    assert splitter.stopped == ""
    splitter.feed(b"b STOP END")
    assert (splitter.thinking, splitter.text, splitter.stopped) == ("a", "b", "STOP")


class Counted(str):
    """A stop text that counts how often it is compared."""

    n = 0

    def startswith(self, *args: Any) -> bool:
        Counted.n += 1
        return super().startswith(*args)


def test_the_work_for_hostile_stop_texts_is_a_few_looks_for_each_character():
    """As many and as long as the options allow. Of a text that one of them holds back, each token
    has one look at every stop text, not one for each character that is held."""
    stop = (*(Counted("ab" + "a" * (1021 - i)) for i in range(63)), Counted("c" + "a" * 1023))
    for text, answer in (
        ("c" + "a" * 300, None),
        ("c" + "a" * 300 + "d", None),
        ("c" + "a" * 1023, ""),
    ):
        Counted.n = 0
        *said, _ = split(*text, stop=stop)
        assert [deltas for deltas in said[:-1] if deltas] == []
        assert Counted.n <= 2 * len(stop) * len(text)
        assert parts(text, stop=stop)[1] == (text if answer is None else answer)


def test_closers_end_the_thinking_and_belong_to_the_answer():
    def said(*pieces: str, **options: Any) -> list[tuple[str, str]]:
        splitter = TextSplitter(Bytes(), b"<think>", keep_tags=True, **options)  # type: ignore[arg-type]
        deltas = [delta for piece in pieces for delta in splitter.feed(piece.encode())]
        return [(delta.text, delta.kind) for delta in [*deltas, *splitter.end()]]

    closers = ("<tool>", "<too", "[call")
    assert said("hm <to", "ol>x", closers=closers) == [("hm ", "thinking"), ("<tool>x", "answer")]
    assert said("hm[call]</think>y", closers=closers) == [
        ("hm", "thinking"), ("[call]</think>", "answer"), ("y", "answer"),
    ]  # fmt: skip
    assert said("a<think>b</think>c<tool>", closers=closers) == [
        ("a<think>", "thinking"), ("b</think>", "thinking"), ("c<tool>", "answer"),
    ]  # fmt: skip


def lines_of(text: str, n_indent: int, *cuts: int, **options: Any) -> tuple[list[str], str]:
    """The pieces of a verbatim text that is cut at some places, and why it ended."""
    lines = LineLimits(n_indent=n_indent)
    splitter = TextSplitter(Bytes(), b"", verbatim=True, lines=lines, **options)  # type: ignore[arg-type]
    pieces = [text[a:b].encode() for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    said = [splitter.feed(piece) for piece in pieces] + [splitter.end()]
    assert splitter.text == "".join(delta.text for deltas in said for delta in deltas)
    ended = "line" if splitter.line_limit else "stop" if splitter.stopped else ""
    return ["".join(delta.text for delta in deltas) for deltas in said], ended


def test_a_line_with_too_little_indentation_is_cut_with_all_that_follows():
    assert lines_of("x:\n    a\n\tb\nc", 1) == (["x:\n    a\n\tb", ""], "line")
    assert lines_of("x:\n    a\n  b", 4) == (["x:\n    a", ""], "line")
    assert lines_of("x\n\n    a", 1) == (["x", ""], "line")  # an empty line has none
    assert lines_of("x\n  ", 4) == (["x", "\n  "], "")  # how far it is indented stays open
    assert lines_of("x\n  y", 4, 1, 2, 4) == (["x", "", "", "", ""], "line")
    assert lines_of("x\n    y", 4, 2, 5, 6) == (["x", "", "\n    ", "y", ""], "")
    assert lines_of("x\ny END", 1, stop=("END",)) == (["x", ""], "line")
    assert lines_of("x END\ny", 1, stop=("END",)) == (["x ", ""], "stop")
    assert lines_of("x\ny", 1, stop=("\n",)) == (["x", ""], "stop")
    assert lines_of("x\ny", 0) == (["x\ny", ""], "")


def test_prompts_that_are_apart_have_seeds_of_their_own(engine: Engine):
    prompt = engine.tokenize("abc")
    config = SearchConfig(max_tokens=12, chunk_len=12, seed=5)
    apart = generate_each(engine, [prompt] * 3, config, method="base", apart=True)
    together = generate_many(engine, prompt, config, 3, method="base")
    assert [one.seed for one in apart] == [one.seed for one in together] == [5, 6, 7]
    assert [one.tokens for one in apart] == [one.tokens for one in together]
    assert {one.seed for one in generate_each(engine, [prompt] * 2, config, method="base")} == {5}


@every_method
def test_the_indentation_of_a_text_ends_it_under_every_method(engine: Engine, method: str):
    wanted = "if x:\n    y"
    config = dataclasses.replace(
        SMALL, grammar=r'root ::= "if x:\n    y\n  z\n    z" [a-z]*', n_samples=2
    )
    prompt, lines = engine.tokenize("he"), LineLimits(n_indent=4)
    events: list[Event] = []
    for follow in (None, lambda _, event: events.append(event)):
        request = ReplyRequest(prompt, config, methods.get(method), verbatim=True, lines=lines)
        (reply,) = write_each(engine, [request], on_event=follow)
        assert (reply.text, reply.finish, reply.limit) == (wanted, "length", "n_indent")
        assert engine.detokenize(reply.tokens) == f"{wanted}\n  z".encode()
        assert reply.tokens == [token for step in reply.steps for token in step.tokens.tolist()]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == wanted


def test_a_reply_that_is_cancelled_where_its_lines_end_names_them(engine: Engine):
    config = dataclasses.replace(SMALL, grammar=r'root ::= "if x:\n    y\n  z" [a-z]*')
    request = ReplyRequest(
        engine.tokenize("he"), config, methods.get("base"), verbatim=True,
        lines=LineLimits(n_indent=4),
    )  # fmt: skip
    cancel = Cancel()

    def on_event(event: object) -> None:
        if isinstance(event, Progress) and event.text.endswith(b"z"):
            cancel.cancel()

    try:
        reply = write_reply(engine, request, on_event=on_event, cancel=cancel)
    except CancelledError as error:  # unless its task was done before
        assert error.reply is not None
        reply = error.reply
    assert reply.limit == "n_indent"


# --- prompts and configs ---


def test_prompts_are_raw_text_a_question_or_a_conversation(engine: Engine):
    assert query_tokens(engine, "he", SMALL, raw=True) == engine.tokenize("he")
    asked = query_tokens(engine, "he", SMALL)
    assert asked == query_tokens(engine, [{"role": "user", "content": "he"}], SMALL)
    assert engine.detokenize(asked, special=True).endswith(b"<|im_start|>assistant\n")
    assert asked[0] == token_id("<|im_start|>")
    with pytest.raises(ValueError, match="a raw prompt must be a text"):
        query_tokens(engine, [{"role": "user", "content": "he"}], SMALL, raw=True)


def test_the_advice_of_a_model_applies_without_a_config(engine: Engine):
    assert advised(engine) == SearchConfig()
    assert advised(engine, SMALL) == SMALL
    engine.metadata["tgr.chunk_len"] = "77"
    try:
        assert advised(engine) == SearchConfig(chunk_len=77)
        assert advised(engine, SMALL) == SMALL
        own = SearchConfig(temperature=0.6)  # the default, but given
        engine.metadata["tgr.temperature"] = "0.1"
        kept = advised(engine, own)
        assert kept == SearchConfig(chunk_len=77)
        changed = dataclasses.replace(own, n_candidates=5)
        assert advised(engine, changed) == SearchConfig(chunk_len=77, n_candidates=5)
        assert advised(engine, dataclasses.replace(kept, chunk_len=512)).chunk_len == 512
        llama = chat_request(engine, {"messages": ASK}, config=own)
        assert (llama.config.chunk_len, llama.config.temperature) == (77, 0.6)
        del engine.metadata["tgr.temperature"]
        engine.metadata["tgr.chunk_len"] = "many"
        with pytest.raises(ModelError, match=r"tgr\.\* metadata: chunk_len is 'many'"):
            generate(engine, "he", raw=True)
    finally:
        del engine.metadata["tgr.chunk_len"]


# --- one reply ---


def test_an_error_of_a_callback_is_the_error_of_the_call(engine: Engine):
    def on_event(event: object) -> None:
        if isinstance(event, Step):
            raise StopIteration("no more")  # which a generator would take as its own end

    with pytest.raises(StopIteration, match="no more"):
        generate(engine, "hello", SMALL, raw=True, on_event=on_event)


@every_method
def test_a_reply_is_its_steps(engine: Engine, method: str):
    reply = generate(engine, "hello", SMALL, method=method, raw=True)
    steps = list(generate_steps(engine, "hello", SMALL, method=method, raw=True))
    assert reply.tokens == [int(token) for step in steps for token in step.tokens]
    assert reply.n_tokens == len(reply.tokens)
    assert reply.counts == sum((step.counts for step in steps), Counts())
    assert reply.finish == steps[-1].finish and len(reply.steps) == len(steps)
    assert (reply.method, reply.seed) == (method, SMALL.seed)
    text = engine.detokenize(reply.tokens).decode("utf-8", "replace")
    assert reply.text == text.strip() and reply.thinking == ""


def test_a_verbatim_reply_keeps_its_outer_space(engine: Engine, monkeypatch):
    monkeypatch.setattr(engine, "detokenize", lambda tokens, **_: b" x\n" * len(tokens))
    config = dataclasses.replace(SMALL, max_tokens=2)
    options: dict[str, Any] = {"method": "base", "raw": True}
    assert generate(engine, "hello", config, **options).text == "x\n x"
    assert generate(engine, "hello", config, verbatim=True, **options).text == " x\n x\n"


def test_the_default_method_is_plain_sampling(engine: Engine):
    assert generate(engine, "hello", SMALL, raw=True).method == "base"
    assert next(generate_steps(engine, "hello", SMALL, raw=True)).candidates is None


@every_method
def test_on_event_and_a_stream_get_everything_in_order(engine: Engine, method: str):
    heard: list[Event] = []
    reply = generate(engine, "hello", SMALL, method=method, raw=True, on_event=heard.append)
    *streamed, last = stream(engine, "hello", SMALL, method=method, raw=True)
    assert isinstance(last, Reply) and last.tokens == reply.tokens
    for events, made in ((heard, reply), (streamed, last)):
        assert not any(isinstance(event, Reply) for event in events)
        assert [event for event in events if isinstance(event, Step)] == made.steps
        tokens = [t for event in events if isinstance(event, Progress) for t in event.tokens]
        assert tokens == made.tokens
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert text.strip() == made.text != ""
        chunk = 0
        for event in events:
            if isinstance(event, Progress):
                assert event.chunk == chunk
            if isinstance(event, Step):
                assert event.index == chunk
                chunk += 1


@every_method
def test_a_stop_text_is_not_part_of_the_reply(engine: Engine, method: str):
    config = SearchConfig(chunk_len=8, max_chunks=3, n_candidates=1, rollout_len=4, temperature=0.8)
    whole = generate(engine, "hello", config, method=method, raw=True).text
    stop = next(letter for letter in whole[1:] if "!" <= letter <= "~")
    stopped = dataclasses.replace(config, stop=(stop,))
    cut = generate(engine, "hello", stopped, method=method, raw=True)
    assert (cut.finish, cut.stop_text) == ("stop", stop) and stop not in cut.text
    if method == "base" or METHODS[method].resets:  # others choose a text, maybe another one now
        assert cut.text == whole[: whole.index(stop)].strip()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "tgr-latin"}, ValueError, "'tgr-latin'; did you mean tgr-latent"),
        ({"prompt": ""}, ValueError, "the prompt has no tokens"),
        ({"prompt": "a" * 5000}, CapacityError, "the query has 5000 tokens"),
        ({"prompt": "\ud800"}, ValueError, "not valid Unicode"),
        ({"prompt": []}, ValueError, "the prompt has no tokens"),
        ({"prompt": 5}, ValueError, "the prompt is 5, but must be a text, messages with role and"),
        ({"prompt": b"hello"}, ValueError, "the prompt is b'hello', but must be a text"),
        ({"prompt": ["a", "b"]}, ValueError, "but must be a text"),
        ({"prompt": [1.5]}, ValueError, "but must be a text"),
        ({"prompt": [{"role": "user"}]}, ValueError, "messages with role and content"),
        ({"prompt": {"role": "user", "content": "a"}}, ValueError, "put the message into a list"),
        ({"prompt": [0, 10**6]}, ValueError, "the prompt holds token 1000000, but must hold"),
        ({"config": {"n_candidates": 4}}, ValueError, r"write SearchConfig\(\*\*config\)"),
        ({"config": 5}, ValueError, "config is 5, but must be a SearchConfig"),
        ({"method": 5}, ValueError, "method is 5, but must be a name"),
        ({"method": ["base"]}, ValueError, "but must be a name"),
    ],
)
def test_bad_arguments_leave_nothing(
    engine: Engine, options: dict[str, Any], error: type[Exception], message: str
):
    arguments = {"prompt": "hello", "config": SMALL, "raw": True} | options
    for call in (generate, lambda engine, **more: list(stream(engine, **more)), generate_many):
        with pytest.raises(error, match=message):
            call(engine, **arguments)
        assert is_free(engine)


# --- several together ---


@pytest.mark.parametrize("method", ["base", "tgr-latent"])
def test_a_reply_may_end_where_the_caller_has_enough(engine: Engine, method: str):
    whole = generate_many(engine, "hello", SMALL, 3, method=method, raw=True)
    heard: dict[int, str] = {}

    def until(number: int, text: str) -> bool:
        heard[number] = heard.get(number, "") + text
        return number == 1 and len(heard[1]) >= 3

    replies = generate_many(engine, "hello", SMALL, 3, method=method, raw=True, until=until)
    assert [reply.text for reply in (replies[0], replies[2])] == [whole[0].text, whole[2].text]
    short = replies[1]
    assert 3 <= len(short.text) < len(whole[1].text) and whole[1].text.startswith(short.text)
    assert (short.finish, short.limit) == ("stop", None)
    assert short.steps[-1].finish == "stop" and short.n_tokens < whole[1].n_tokens
    assert all(reply.text.startswith(heard[i].strip()) for i, reply in enumerate(replies))


@every_method
def test_replies_together_equal_each_alone(engine: Engine, method: str):
    """Greedy on an F32 file, where rounding changes no choice; otherwise only repeating is
    promised."""
    replies = generate_many(engine, "hello", GREEDY, 5, method=method, raw=True)
    assert [reply.seed for reply in replies] == [42, 43, 44, 45, 46]
    for reply in replies:
        config = dataclasses.replace(GREEDY, seed=reply.seed)
        assert reply.tokens == generate(engine, "hello", config, method=method, raw=True).tokens


@every_method
def test_replies_together_repeat_to_the_bit_and_differ(engine: Engine, method: str):
    def run() -> list[list[Any]]:
        replies = generate_many(engine, "hello", SMALL, 6, method=method, raw=True)
        return [[step.logprobs.tolist() for step in reply.steps] for reply in replies]

    first = run()
    assert [run() for _ in range(3)] == [first] * 3
    assert len({str(reply) for reply in first}) > 2, "two may be the same text, to the bit"


def test_more_than_fit_take_turns_and_still_repeat(model: Model, load: Load):
    engine = load(model(), n_ctx=256, n_seq_max=10)

    def run() -> list[list[int]]:
        return [reply.tokens for reply in generate_many(engine, "hello", SMALL, 9, raw=True)]

    assert run() == run()
    assert engine.n_ctx == 256 and is_free(engine)


def test_two_groups_share_an_engine(engine: Engine):
    def run() -> list[list[int]]:
        return [reply.tokens for reply in generate_many(engine, "hello", GREEDY, 3, raw=True)]

    alone = run()
    assert in_threads(run, run, run) == [alone] * 3


def test_on_event_gets_the_number_of_the_reply(engine: Engine):
    events: list[tuple[int, Event]] = []
    replies = generate_many(
        engine, "hello", SMALL, 3, raw=True, on_event=lambda i, event: events.append((i, event))
    )
    for i, reply in enumerate(replies):
        assert [e for j, e in events if i == j and isinstance(e, Step)] == reply.steps


def test_what_is_no_engine_and_no_engine_config_is_refused(small: Path):
    with pytest.raises(ValueError, match=r"engine is 'model\.gguf', but must be an Engine"):
        generate("model.gguf", "hello")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be an EngineConfig"):
        tgr_local.load(small, {"n_ctx": 64})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "n_params", "size"),
    [
        ("llama 256M Q4_1", 134_515_008, "llama 134.5M Q4_1"),
        ("qwen3 ?B Q4_K - Medium", 596_049_920, "qwen3 596.0M Q4_K - Medium"),
        ("qwen2 0.5B Q8_0", 630_167_424, "qwen2 0.5B Q8_0"),
        ("llama 8x7B Q4_0", 46_702_792_704, "llama 8x7B Q4_0"),
    ],
)
def test_the_size_of_a_model_is_that_of_its_file(text: str, n_params: int, size: str):
    assert described(text, n_params) == size


def test_engines_and_replies_say_what_they_are(engine: Engine):
    assert repr(engine) == (
        f"<Engine {engine.path.name}: {engine.description}, 2 layers, trained for "
        f"{engine.n_ctx_train} tokens, on CPU>"
    )
    reply = dataclasses.replace(generate(engine, "hello", SMALL, raw=True), text="a" * 50)
    line = repr(reply)
    assert line.startswith(f"<Reply '{'a' * 40}…': length by max_chunks, 24 tokens, ")
    assert line.endswith(" s, base>")


def test_k_must_be_positive(engine: Engine):
    for k, says in (("3", "a whole number"), (0, "at least 1")):
        with pytest.raises(ValueError, match=f"k is {k!r}, but must be {says}"):
            generate_many(engine, "hello", SMALL, k, raw=True)  # type: ignore[arg-type]


def test_one_that_fails_ends_the_others(engine: Engine):
    def fail(index: int, event: Event) -> None:
        if index == 1 and isinstance(event, Step):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate_many(engine, "hello", SMALL, 3, raw=True, on_event=fail)
    assert is_free(engine)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("method", ["base", "markov"])
def test_a_cancel_loses_no_tokens_that_nobody_listens_to(engine: Engine, method: str, k: int):
    cancel, n = Cancel(), engine.stats().n_positions
    one_chunk = SearchConfig(chunk_len=3000, max_tokens=3000, temperature=0.0, loop_guard=0)

    def write() -> Reply | list[Reply]:
        if k == 1:
            return generate(engine, "hello", one_chunk, method=method, raw=True, cancel=cancel)
        return generate_many(engine, "hello", one_chunk, k, method=method, raw=True, cancel=cancel)

    def end() -> None:
        wait_until(lambda: engine.stats().n_positions > n + 40 * k)
        cancel.cancel()

    error, _ = in_threads(write, end)
    assert isinstance(error, CancelledError)
    replies = error.replies or [error.reply]
    assert len(replies) == k
    for reply in replies:
        assert (reply.finish, reply.steps) == ("cancelled", [])
        assert reply.n_tokens > 20
        assert reply.text


def test_closing_the_engine_ends_them_all(model: Model, load: Load):
    engine = load(model())
    started = threading.Event()

    def close() -> None:
        started.wait(HANG)
        engine.close()

    result, _ = in_threads(
        lambda: generate_many(
            engine, "hello", ENDLESS, 4, raw=True, on_event=lambda i, event: started.set()
        ),
        close,
    )
    assert isinstance(result, CancelledError)


# --- the stream ---


def test_text_is_streamed_while_the_reply_is_generated(engine: Engine):
    events: Iterator[Event] = stream(engine, "hello", ENDLESS, method="markov", raw=True)
    for event in events:
        if isinstance(event, TextDelta):
            assert held(engine.stats())["n_sessions"] == 1
            break
    events.close()  # type: ignore[attr-defined]
    assert is_free(engine)


def test_a_stream_that_is_dropped_or_fails_frees_everything(engine: Engine):
    events = stream(engine, "hello", ENDLESS, raw=True)
    assert is_free(engine)
    next(events)
    del events
    assert is_free(engine)
    with pytest.raises(ZeroDivisionError):
        for _ in stream(engine, "hello", ENDLESS, raw=True):
            raise ZeroDivisionError
    assert is_free(engine)


def plainly(write: Callable[..., Any], engine: Engine, **options: Any) -> None:
    write(engine, "hello", SMALL, raw=True, **options)


def cancelled_stream(engine: Engine) -> None:
    cancel = Cancel()
    for _ in stream(engine, "hello", SMALL, raw=True, cancel=cancel):
        cancel.cancel()


def abandoned_stream(engine: Engine) -> None:
    next(stream(engine, "hello", SMALL, raw=True))


def failing_event(engine: Engine) -> None:
    generate_many(engine, "hello", SMALL, 2, raw=True, on_event=lambda i, event: [][i])


@pytest.mark.parametrize(
    "use",
    [
        *(functools.partial(plainly, generate, method=method) for method in METHODS),
        functools.partial(plainly, generate_many, k=2),
        cancelled_stream,
        abandoned_stream,
        failing_event,
    ],
)
def test_an_engine_is_freed_with_its_last_reference(model: Model, use: Callable[..., Any]):
    gc.collect()
    gc.disable()  # which counts objects, not the memory of a model
    try:
        engine = Engine(model(), EngineConfig(**EXACT))
        seen = weakref.ref(engine)
        with contextlib.suppress(CancelledError, IndexError):
            use(engine)
        del engine
        assert seen() is None
    finally:
        gc.enable()


def test_load_takes_a_path(model: Model):
    with tgr_local.load(model()) as engine:
        assert engine.path == model()
    with pytest.raises(ModelError, match="there is no file"):
        tgr_local.load("/nowhere.gguf")
