"""A whole text as one vector, and how relevant documents are to a query, by a model's states.

In: token ids, or a query and documents. Out: a vector [n_embd] by the pooling that the model file
names, or scores. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, PromptText, Task
from tgr_local.errors import ContextError, ModelError
from tgr_local.generation.prompt import tokens_within

_AT_ONCE = 512  # tokens whose states are read together
_TEMPLATE = "tokenizer.chat_template.rerank"
_FIELDS = ("{query}", "{document}")
_SOFTMAX = ("qwen3", "qwen3vl")  # architectures whose classes llama.cpp makes to probabilities


def pooling_of(engine: Engine) -> str:
    """ "mean", "cls" or "last": which state stands for a text; the mean where the file names none.
    Raises ModelError for a reranker."""
    if engine.pooling == "rank":
        raise ModelError(
            f"{engine.path.name} is a reranker, which makes no embeddings; ask /v1/rerank, or use "
            "TgrLlama.rerank"
        )
    return engine.pooling or "mean"


def embedding(
    engine: Engine, tokens: Sequence[int], pooling: str, cancel: Cancel | None = None
) -> NDArray[np.float32]:
    """The state of a text [n_embd], not normalized."""
    with engine.session(len(tokens) + 1, 1, cancel=cancel) as session:
        sequence = session.sequence()
        if pooling == "last":
            task = Task(sequence, tokens, feed_states="last")
            return _last(session.run([task], cancel=cancel)[0].feed_states)
        if pooling == "cls":
            task = Task(sequence, tokens[:1], feed_states="last")
            return _last(session.run([task], cancel=cancel)[0].feed_states)
        total = np.zeros(engine.n_embd)
        for first in range(0, len(tokens), _AT_ONCE):  # the states of all would take much memory
            task = Task(sequence, tokens[first : first + _AT_ONCE], feed_states="all")
            (output,) = session.run([task], cancel=cancel)
            total += output.feed_states.sum(axis=0, dtype=np.float64)
        return (total / len(tokens)).astype(np.float32)


@dataclass(frozen=True)
class Relevance:
    """What a reranker says of a document."""

    score: float
    """The higher, the more relevant; of a Qwen3-Reranker the probability of "yes"."""
    n_tokens: int
    """Of the prompt with query and document."""


def check_reranks(engine: Engine) -> None:
    """Raises ModelError for a model that is no reranker, or whose file lacks what one needs."""
    name = engine.path.name
    if engine.pooling != "rank":
        raise ModelError(
            f"{name} is no reranker: its file does not name the pooling type rank; use one such as "
            "Qwen3-Reranker"
        )
    missing = [] if len(engine.classifier) else ["cls.output.weight"]
    template = engine.metadata.get(_TEMPLATE, "")
    missing += [] if all(field in template for field in _FIELDS) else [_TEMPLATE]
    if missing:
        raise ModelError(
            f"{name} has no {' and no '.join(missing)}, which a reranker needs; convert the model "
            "again with a current convert_hf_to_gguf.py"
        )


def rerank_tokens(engine: Engine, query: str, documents: Sequence[str]) -> list[list[int]]:
    """The tokens of each document with the query, in the model's prompt. What they hold is text,
    never a control token. Raises ModelError as `check_reranks`, and ContextError, with the number
    of the document, for one that is longer than the model was trained for."""
    check_reranks(engine)
    prompts = []
    for i, document in enumerate(documents):
        prompt = _prompt(engine, query, document)
        try:
            tokens = tokens_within(engine, prompt)
            n_tokens = len(tokens)
        except ContextError as error:
            n_tokens = error.n_tokens
        if n_tokens > engine.n_ctx_train:
            raise ContextError(
                f"document {i} has {n_tokens} tokens with the query, but the model was trained for "
                f"{engine.n_ctx_train}; shorten it",
                n_tokens,
                engine.n_ctx_train,
            )
        prompts.append(tokens)
    return prompts


def relevances(
    engine: Engine, prompts: Sequence[Sequence[int]], cancel: Cancel | None = None
) -> Iterator[Relevance]:
    """The relevance of each of `rerank_tokens`. What all of them begin with is read once."""
    n_same = _n_same(prompts)
    longest = max(map(len, prompts))
    with engine.session(longest + 1, 2, cancel=cancel) as session:
        start = session.sequence()
        if n_same:
            session.run([Task(start, prompts[0][:n_same])], cancel=cancel)
        for prompt in prompts:
            sequence = start.fork()
            task = Task(sequence, prompt[n_same:], feed_states="last")
            (output,) = session.run([task], cancel=cancel)
            sequence.drop()
            yield Relevance(_score(engine, _last(output.feed_states)), len(prompt))


def _prompt(engine: Engine, query: str, document: str) -> PromptText:
    """The prompt of the model's template; the texts that it puts in get cuts where they look like
    control tokens."""
    made, rest = PromptText(""), engine.metadata[_TEMPLATE]
    while rest:
        found = [(rest.find(field), field) for field in _FIELDS if field in rest]
        at, field = min(found, default=(len(rest), ""))
        text = (query if field == "{query}" else document) if field else ""
        begin = len(made.text) + at
        cuts = tuple(begin + place + 1 for place, _ in engine.control_texts.within(text))
        made = PromptText(made.text + rest[:at] + text, (*made.cuts, *cuts))
        rest = rest[at + len(field) :]
    return made


def _n_same(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all begin with; one less than the shortest has, whose last one is read alone."""
    n = min(map(len, prompts)) - 1
    return next((i for i in range(n) if len({prompt[i] for prompt in prompts}) > 1), n)


def _score(engine: Engine, state: NDArray[np.float32]) -> float:
    values = engine.classifier.astype(np.float64) @ state.astype(np.float64)
    if engine.metadata.get("general.architecture") in _SOFTMAX:
        values = np.exp(values - values.max())
        values /= values.sum()
    return float(values[0])


def _last(states: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.array(states[-1], np.float32)
