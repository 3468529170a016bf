"""Grammars compared with llama.cpp's: what is drawn, with which probability among what may come."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from engines import written
from fixture_types import Load, Model
from numpy.typing import NDArray
from reference import log_softmax
from surroundings import ROOT

from tgr_local.engine import Engine, GrammarTrigger, Sampling, Task

EMBEDDED = ROOT / "models" / "tgr-mini-q8_0.gguf"
JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [ !#-\[\]-~] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
GRAMMARS = [
    JSON,
    'root ::= "7" [a-c]*',
    "root ::= [ -~]*",
    'root ::= "aé" [\\u00e0-\\u00ff]{2,3} "日本"? [a-z]+',
    "root ::= [\\u00a0-\\uffff]+ [x-z]",
    'root ::= (("a" | "ab" | [bc]) ("x" | ) ){2,4} "end"',
    'root ::= list\nlist ::= item ("," list)?\nitem ::= [0-9]{1,3} | "(" list ")"',
    'root ::= "a" root "b" | ("c" # a comment\n  | [d])',
    'root ::= ("x"+ "y"?)* [-a\\]\\x41]{0,2} "\\t\\\\\\""',
    "root ::= <[65]> <[66]>{1,3} [a-z]",
    'root ::= ws item ws\nws ::= [ \\n]*\nitem ::= "1" | "12" | "123"{0}',
]


class Peer:
    """llama.cpp's grammar sampler."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)

    def allowed(self, sampler: llama_cpp.llama_sampler_p) -> NDArray[np.bool_]:
        """[n_vocab] what may come next."""
        data = (llama_cpp.llama_token_data * self.n_vocab)()
        for i in range(self.n_vocab):
            data[i].id = i
        array = llama_cpp.llama_token_data_array(data, self.n_vocab, -1, False)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        return np.array([data[i].logit > -np.inf for i in range(self.n_vocab)])


@pytest.fixture(params=["random", "embedded"])
def pair(request, model: Model, load: Load) -> Iterator[tuple[Engine, Peer]]:
    path = EMBEDDED if request.param == "embedded" else model()
    if not path.exists():
        pytest.skip(f"{path} is absent")
    peer = Peer(path)
    yield load(path), peer
    peer.close()


def assert_drawn_as_by(
    pair: tuple[Engine, Peer], sampling: Sampling, n: int,
    sampler_of: Callable[[], llama_cpp.llama_sampler_p], before: Sequence[int] = (),
) -> None:  # fmt: skip
    """Four texts of n tokens, each drawn with its probability among what the peer's sampler allows
    after the tokens before."""
    engine, peer = pair
    with engine.session(128, 4) as session:
        tasks = [
            Task(
                session.sequence(), [1, 2 + i], n_generate=n, sampling=sampling, seed=i,
                n_top=engine.n_vocab, grammar_history=before,
            )
            for i in range(4)
        ]  # fmt: skip
        outputs = session.run(tasks)
    for output in outputs:
        sampler = sampler_of()
        try:
            for token in before:
                llama_cpp.llama_sampler_accept(sampler, token)
            for i, token in enumerate(output.tokens.tolist()):
                model = np.empty(engine.n_vocab)
                model[output.top_ids[i]] = output.top_logprobs[i]
                allowed = peer.allowed(sampler)
                assert allowed[token]
                expected = log_softmax(np.where(allowed, model, -np.inf))[token]
                assert output.sampled_logprobs[i] == pytest.approx(expected, abs=1e-4)
                if token not in engine.end_tokens:
                    llama_cpp.llama_sampler_accept(sampler, token)
        finally:
            llama_cpp.llama_sampler_free(sampler)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda text: text.strip()[:30])
def test_what_may_come_next_is_what_llama_cpp_allows(pair: tuple[Engine, Peer], grammar: str):
    vocab, text = pair[1].vocab, grammar.encode()
    assert_drawn_as_by(
        pair, Sampling(1.0, grammar=grammar), 16,
        lambda: llama_cpp.llama_sampler_init_grammar(vocab, text, b"root"),
    )  # fmt: skip


# --- grammars that begin at a trigger ---

DIGITS = 'root ::= "<a" [0-9]+ ">"'
TRIGGERED: list[tuple[tuple[str, ...], tuple[str, ...], str, str]] = [
    (("<a",), (), DIGITS, "hello <a1"),
    (("<a",), (), DIGITS, "hello <"),
    (("<b", "<a"), (), DIGITS, "x<a"),
    ((), (r"^\s+to$",), 'root ::= " to" [a-c]+ "."', " to"),
    ((), (r"^\s+to$",), 'root ::= " to" [a-c]+ "."', "x to"),
    ((), (r"x(yz)",), 'root ::= "yz" [0-9]+', "aaxyz"),
    ((), (r">>>(?!all)",), 'root ::= ">>>" [0-9]+', "a>>>"),
    ((), (r"<\|s\|>a(\s+to)", r"b(c|d)e"), 'root ::= "d" "e" [x-z]+', "bde"),
]


def lazy_sampler(
    vocab: llama_cpp.llama_vocab_p, grammar: str, words: tuple[str, ...], patterns: tuple[str, ...]
) -> llama_cpp.llama_sampler_p:
    """llama.cpp's own, as its server makes it."""
    texts = [*(re.escape(word) for word in words), *patterns]
    array = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
    return llama_cpp.llama_sampler_init_grammar_lazy_patterns(
        vocab, grammar.encode(), b"root", array, len(texts), None, 0
    )


@pytest.mark.parametrize(("words", "patterns", "grammar", "text"), TRIGGERED)
def test_a_grammar_begins_at_its_trigger_as_in_llama_cpp(
    pair: tuple[Engine, Peer],
    words: tuple[str, ...],
    patterns: tuple[str, ...],
    grammar: str,
    text: str,
):
    sampling = Sampling(1.0, grammar=grammar, trigger=GrammarTrigger(words, patterns))
    assert_drawn_as_by(
        pair, sampling, 4, lambda: lazy_sampler(pair[1].vocab, grammar, words, patterns),
        before=pair[0].tokenize(text),
    )  # fmt: skip


def digits_follow(engine: Engine, before: str, trigger: GrammarTrigger, prefix: str = "") -> bool:
    """Whether the grammar holds after a text: all that comes is digits."""
    sampling = Sampling(1.0, grammar=DIGITS, grammar_prefix=prefix, trigger=trigger)
    history = engine.tokenize(before, parse_special=False)
    output = written(engine, [1], n_generate=6, sampling=sampling, grammar_history=history)
    text = engine.detokenize(output.tokens, special=True)
    return bool(re.fullmatch(rb"[0-9]+>?(<\|.*\|>)?", text))


def test_no_trigger_counts_within_the_thinking(engine: Engine):
    trigger = GrammarTrigger(("<a",), (), "<t>", ("</t>", "<end>"))
    assert digits_follow(engine, "x<a", trigger)
    assert not digits_follow(engine, "<t>x<a", trigger)
    assert not digits_follow(engine, "<t>x<a</t>", trigger)
    assert digits_follow(engine, "<t>x<a</t><a", trigger)
    assert digits_follow(engine, "<t><t><end><a", trigger)
    assert not digits_follow(engine, "<t></t><t><a", trigger)
    assert not digits_follow(engine, "x<a", trigger, "the prompt opens it: <t>")
    assert digits_follow(engine, "x</t><a", trigger, "the prompt opens it: <t>")
    assert digits_follow(engine, "<a", trigger, "it was closed: <t></t>")
    # the trigger itself may end the thinking
    ending = GrammarTrigger(("<a",), (), "<t>", ("</t>", "<a"))
    assert digits_follow(engine, "<t>x<a", ending)
    # far from the beginning of the reply, and of the tag
    assert digits_follow(engine, "<t>" + "x" * 9000 + "</t>" + "y" * 9000 + "<a", trigger)
    assert not digits_follow(engine, "<t>" + "x" * 9000 + "</" + "t" * 9000 + "<a", trigger)


def test_a_token_that_breaks_the_grammar_at_its_trigger_is_not_drawn(engine: Engine):
    (he,) = engine.tokenize("he")  # completes the trigger, and goes on as the grammar does not
    sampling = Sampling(
        1.0,
        grammar='root ::= "h" [0-9]+',
        trigger=GrammarTrigger(("h",)),
        logit_bias=((he, 100.0), *((token, 50.0) for token in engine.tokenize("h"))),
    )
    output = written(engine, [1], n_generate=8, sampling=sampling)
    assert re.fullmatch(rb"h[0-9]+.*", engine.detokenize(output.tokens))


@pytest.mark.parametrize(
    ("trigger", "why"),
    [
        (GrammarTrigger(("",)), "a trigger of a grammar has 0 bytes"),
        (GrammarTrigger(("x" * 2049,)), "has 2049 bytes, but must have between 1 and 2048"),
        (GrammarTrigger((), ("(",)), "a trigger of a grammar is no pattern"),
        (GrammarTrigger(("x",), (), "y" * 3000, ("z",)), "a thinking tag of a grammar has 3000"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused(engine: Engine, trigger: GrammarTrigger, why: str):
    with pytest.raises(ValueError, match=why):
        written(engine, [1], n_generate=1, sampling=Sampling(grammar=DIGITS, trigger=trigger))


def test_a_grammar_reads_what_comes_before_the_reply(engine: Engine):
    engine.check_grammar(DIGITS, "<a1")
    with pytest.raises(ValueError, match="does not allow grammar_prefix"):
        engine.check_grammar(DIGITS, "<ax")
    sampling = Sampling(1.0, grammar=DIGITS, grammar_prefix="<a1")
    output = written(engine, [1], n_generate=6, sampling=sampling, seed=3)
    assert re.fullmatch(rb"[0-9]*>?", engine.detokenize(output.tokens))
