"""Work of `TgrLlama` with single tokens: a text token by token, criteria that end one, the
tokenizer as an object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from tgr_local.apis.llama_types import StoppingCriteria, StoppingCriterion
from tgr_local.apis.requests import PreparedRequest
from tgr_local.engine import Engine, Sampling, Task
from tgr_local.generation import longest_text
from tgr_local.options.config import SearchConfig

_BLOCK = 64  # tokens that are asked for at a time


def continued(
    engine: Engine, tokens: Seq[int], config: SearchConfig, criteria: Seq[StoppingCriterion]
) -> Iterator[int]:
    """The tokens that continue a text, until the context is full, a grammar is complete or a
    criterion says so. Each block of them has a session of its own, which takes the text before it
    from the cache: what is reserved grows with the text. Raises ValueError for an empty text, and
    for what is no list of tokens."""
    try:
        text = [operator.index(token) for token in tokens]
    except TypeError:
        raise ValueError(f"tokens is {tokens!r:.80}, but must be a list of token numbers") from None
    if not text:
        raise ValueError("tokens is empty, but must have one at least")
    n_prompt, sampling = len(text), Sampling.of(config)
    while (n := min(_BLOCK, longest_text(engine) - len(text))) > 0:
        with engine.session(len(text) + n + 1, 1, prompt=text) as session:
            sequence = session.sequence()
            task = Task(
                sequence,
                text,
                n_generate=n,
                reuse=True,
                sampling=sampling,
                seed=(config.seed + len(text) - n_prompt) % 2**63,
                grammar_history=text[n_prompt:],
                ignore_eog=not config.grammar,
            )
            (output,) = session.run([task])
            session.remember(sequence)
        for token in output.tokens.tolist():
            text.append(token)
            yield token
            if _is_met(criteria, text):
                return
        if output.finish == "stop":
            return


class Stopper:
    """Criteria that end the texts of a request. They are asked about the tokens of the prompt and
    of the text so far, after each token once, in the order of the tokens; a text ends with the
    token after which one of them is met."""

    def __init__(
        self, engine: Engine, request: PreparedRequest, criteria: Seq[StoppingCriterion]
    ) -> None:
        self._engine, self._request, self._criteria = engine, request, criteria
        self._texts: dict[int, str] = {}
        self._asked: dict[int, int] = {}  # tokens of each text
        self._ends: dict[int, int] = {}  # characters of each text that has ended

    def until(self, number: int, piece: str) -> bool:
        """Whether a reply has ended; a stream asks the criteria itself, in `shortened`."""
        if not self._request.stream:
            self._feed(number, piece)
        return number in self._ends

    def shortened(self, response: Any) -> Any:
        """The response, or its stream, without what was written after an end."""
        if self._request.stream:
            return self._stream(response)
        for number, end in self._ends.items():
            if number < len(response["choices"]):
                choice = response["choices"][number]
                begun = len(self._request.texts[number // self._request.n])
                choice["text"] = choice["text"][: end + (begun if self._request.echo else 0)]
        return response

    def _stream(self, chunks: Iterator[Any]) -> Iterator[Any]:
        echoed: set[int] = set()
        for chunk in chunks:
            for choice in chunk["choices"]:
                number = choice["index"]
                if self._request.echo and number not in echoed:
                    echoed.add(number)
                elif number in self._ends:
                    choice["text"] = ""
                elif choice["text"]:
                    n_before = len(self._texts.get(number, ""))
                    self._feed(number, choice["text"])
                    end = self._ends.get(number, n_before + len(choice["text"]))
                    choice["text"] = choice["text"][: end - n_before]
            yield chunk

    def _feed(self, number: int, piece: str) -> None:
        """Asks the criteria about the tokens that a piece adds to a text."""
        if number in self._ends:
            return
        self._texts[number] = text = self._texts.get(number, "") + piece
        tokens = self._engine.tokenize(text, add_special=False, parse_special=True)
        prompt = self._request.prompts[number // self._request.best_of]
        for n in range(self._asked.get(number, 0) + 1, len(tokens) + 1):
            self._asked[number] = n
            if _is_met(self._criteria, [*prompt, *tokens[:n]]):
                data = self._engine.detokenize(tokens[:n], special=True)
                self._ends[number] = len(data.decode("utf-8", "ignore"))
                return


class Tokenizer:
    """The tokens of a model, as ``llama_cpp.LlamaTokenizer`` has them."""

    def __init__(
        self, tokenize: Callable[..., list[int]], detokenize: Callable[..., bytes]
    ) -> None:
        self._tokenize, self._detokenize = tokenize, detokenize

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Tokenizes as `TgrLlama.tokenize` does, but reads control tokens."""
        return self._tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Seq[int], prev_tokens: Seq[int] | None = None, special: bool = False
    ) -> bytes:
        """Detokenizes as `TgrLlama.detokenize` does."""
        return self._detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text."""
        return self.tokenize(text.encode(), add_bos, special)

    def decode(self, tokens: Seq[int]) -> str:
        """The text of tokens, without what is not UTF-8."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


def criteria_of(given: StoppingCriteria | None) -> Seq[StoppingCriterion]:
    """The criteria as a list. Raises ValueError for what is no function."""
    several: Any = given if isinstance(given, list | tuple) else [] if given is None else [given]
    for criterion in several:
        if not callable(criterion):
            raise ValueError(f"stopping_criteria holds {criterion!r:.80}, but must hold functions")
    criteria: Seq[StoppingCriterion] = several
    return criteria


def _is_met(criteria: Seq[StoppingCriterion], tokens: Seq[int]) -> bool:
    if not criteria:
        return False
    ids, logits = np.array(tokens, np.intc), np.empty(0, np.single)
    return any(criterion(ids, logits) for criterion in criteria)
