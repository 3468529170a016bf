"""Grammars beside those of llama.cpp: what is drawn, with which probability among what may come."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray
from reference import log_softmax
from surroundings import ROOT

from tgr_local.engine import Engine, Sampling, Task

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
def pair(
    request: pytest.FixtureRequest, model: Callable[..., Path], load: Callable[..., Engine]
) -> Iterator[tuple[Engine, Peer]]:
    path = EMBEDDED if request.param == "embedded" else model()
    if not path.exists():
        pytest.skip(f"{path} is absent")
    peer = Peer(path)
    yield load(path), peer
    peer.close()


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda text: text.strip()[:30])
def test_what_may_come_next_is_what_llama_cpp_allows(
    pair: tuple[Engine, Peer], grammar: str
) -> None:
    engine, peer = pair
    with engine.session(128, 4) as session:
        sampling = Sampling(1.0, grammar=grammar)
        outputs = session.run(
            [
                Task(
                    session.sequence(), [1, 2 + i], n_generate=16, sampling=sampling, seed=i,
                    n_top=engine.n_vocab,
                )
                for i in range(4)
            ]
        )  # fmt: skip
    for output in outputs:
        sampler = llama_cpp.llama_sampler_init_grammar(peer.vocab, grammar.encode(), b"root")
        try:
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
