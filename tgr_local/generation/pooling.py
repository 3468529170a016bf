"""A whole text as one vector, and how relevant documents are to a query, by a model's states.

In: token ids, or a query and documents. Out: a vector [n_embd] by the pooling that the model file
names, or scores. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, PromptText, Task, check_cancelled
from tgr_local.generation.prompt import tokens_within
from tgr_local.system.errors import CapacityError, ContextError, ModelError

_AT_ONCE = 512  # tokens whose states are read together
RERANK_TOKENS = 1 << 20
"""Largest number of tokens in all prompts of one request; the query counts once for each
document."""
_TEMPLATE = "tokenizer.chat_template.rerank"
_FIELDS = ("{query}", "{document}")
_BYTE_PAIRS = "gpt2"  # the kind of vocabulary whose tokens do not depend on a cut that none crosses
_SOFTMAX = ("qwen3", "qwen3vl")  # architectures whose classes llama.cpp makes to probabilities

Tokens = NDArray[np.int32]


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
        if pooling in ("last", "cls"):
            fed = tokens if pooling == "last" else tokens[:1]
            task = Task(sequence, fed, feed_states="last")
            return _last(session.run([task], cancel=cancel)[0].feed_states)
        total = np.zeros(engine.n_embd)
        for first in range(0, len(tokens), _AT_ONCE):  # the states of all would take much memory
            task = Task(sequence, tokens[first : first + _AT_ONCE], feed_states="all")
            (output,) = session.run([task], cancel=cancel)
            total += output.feed_states.sum(axis=0, dtype=np.float64)
        return (total / len(tokens)).astype(np.float32)


@dataclass(frozen=True)
class Relevance:
    """A reranker's result for a document."""

    score: float
    """The higher, the more relevant; of a Qwen3-Reranker the probability of "yes"."""
    n_tokens: int
    """Number of tokens of the prompt with query and document."""


def check_reranks(engine: Engine) -> None:
    """Raises ModelError for a model that is not a reranker, or whose file lacks what one needs."""
    name = engine.path.name
    if engine.pooling != "rank":
        raise ModelError(
            f"{name} is not a reranker: its file does not name the pooling type rank; use one "
            "such as Qwen3-Reranker"
        )
    missing = [] if len(engine.classifier) else ["cls.output.weight"]
    template = engine.metadata.get(_TEMPLATE, "")
    missing += [] if all(field in template for field in _FIELDS) else [_TEMPLATE]
    if missing:
        raise ModelError(
            f"{name} has no {' and no '.join(missing)}, which a reranker needs; convert the model "
            "again with a current convert_hf_to_gguf.py"
        )


def rerank_tokens(
    engine: Engine, query: str, documents: Sequence[str], cancel: Cancel | None = None
) -> list[Tokens]:
    """The tokens of each document with the query, in the model's prompt. What they hold is text,
    never a control token. Raises ModelError as `check_reranks`, ContextError, with the number of
    the document, for one that is longer than the model was trained for, CapacityError for more than
    `RERANK_TOKENS` together, and CancelledError by `cancel`."""
    check_reranks(engine)
    least = len(_tokens(engine, query, "the query has {} tokens")) * len(documents)
    if least > RERANK_TOKENS:  # before anything is done with each document
        raise CapacityError(_too_many(f"the query alone, once for each of {len(documents)}", least))
    marked = _as_text(engine, query)
    begun, rest = _beginning(engine, marked)
    prompts: list[Tokens] = []
    total = 0
    for i, document in enumerate(documents):
        check_cancelled(cancel, "cancelled while documents were tokenized")
        prompt = _prompt(rest, marked, _as_text(engine, document))
        subject = f"document {i} has {{}} tokens with the query"
        tokens = _tokens(engine, prompt, subject, begun)
        total += len(tokens)
        if total > RERANK_TOKENS:
            raise CapacityError(_too_many(f"documents 0 to {i}, each with the query", total))
        prompts.append(tokens)
    return prompts


def relevances(
    engine: Engine, prompts: Sequence[Tokens], cancel: Cancel | None = None
) -> Iterator[Relevance]:
    """The relevance of each of `rerank_tokens`. What all of them begin with is read once."""
    n_same = _n_same(prompts)
    longest = max(map(len, prompts))
    with engine.session(longest + 1, 2, cancel=cancel) as session:
        start = session.sequence()
        if n_same:
            session.run([Task(start, prompts[0][:n_same].tolist())], cancel=cancel)
        for prompt in prompts:
            sequence = start.fork()
            task = Task(sequence, prompt[n_same:].tolist(), feed_states="last")
            (output,) = session.run([task], cancel=cancel)
            sequence.drop()
            yield Relevance(_score(engine, _last(output.feed_states)), len(prompt))


def _beginning(engine: Engine, query: PromptText) -> tuple[Tokens, str]:
    """The tokens of all prompts as far as the line that the document is in, and the rest of the
    template. No tokens, and the whole template, where a token might reach into that line, or what
    comes before it might depend on the line."""
    template = engine.metadata[_TEMPLATE]
    nothing = np.array([], np.int32), template
    head, _, rest = template.partition("{document}")
    line = head.rpartition("\n")[2]
    query_part = head.removesuffix(line)
    if (
        "{query}" not in query_part
        or not line[:1].strip()
        or line[0] == "/"  # which some vocabularies join to the end of the line before
        or engine.metadata.get("tokenizer.ggml.model") != _BYTE_PAIRS
        or engine.control_texts.is_within_one("\n" + line[0])
    ):
        return nothing
    whole = _tokens(engine, _prompt(head, query, PromptText("")), "the query has {} tokens")
    own = _tokens(engine, line, "the prompt has {} tokens")
    if whole[len(whole) - len(own) :].tolist() != own.tolist():
        return nothing
    return whole[: len(whole) - len(own)], f"{line}{{document}}{rest}"


def _tokens(
    engine: Engine, text: str | PromptText, subject: str, earlier: Tokens | None = None
) -> Tokens:
    """The tokens of a text behind those before it. Raises ContextError for more than the model was
    trained for, or `n_ctx` has room for; `subject` says it of a number of tokens."""
    most, n_before = engine.n_ctx_train, 0 if earlier is None else len(earlier)
    n_ctx = engine.config.n_ctx
    try:
        tokens = np.array(tokens_within(engine, text), np.int32)
        n_tokens = n_before + len(tokens)
    except ContextError as error:
        n_tokens = n_before + error.n_tokens
    if n_tokens > most:
        raise ContextError(
            f"{subject.format(n_tokens)}, but the model was trained for {most}; shorten it",
            n_tokens,
            most,
        )
    if n_ctx and n_tokens >= n_ctx:
        why = f"{subject.format(n_tokens)}, but n_ctx is {n_ctx}; raise it, or shorten it"
        raise ContextError(why, n_tokens, n_ctx)
    return tokens if earlier is None else np.concatenate([earlier, tokens])


def _too_many(subject: str, n_tokens: int) -> str:
    return (
        f"{subject}, have {n_tokens} tokens, but those of a request may have {RERANK_TOKENS} "
        "together; name fewer documents at a time, or shorten them or the query"
    )


def _as_text(engine: Engine, text: str) -> PromptText:
    """A text with cuts where it looks like control tokens."""
    return PromptText(text, tuple(at + 1 for at, _ in engine.control_texts.within(text)))


def _prompt(template: str, query: PromptText, document: PromptText) -> PromptText:
    """The prompt of a template, or of a part of one."""
    prompt, rest = PromptText(""), template
    while rest:
        places = [(rest.find(field), field) for field in _FIELDS if field in rest]
        at, field = min(places, default=(len(rest), ""))
        part = {"{query}": query, "{document}": document}.get(field, PromptText(""))
        begin = len(prompt.text) + at
        cuts = (*prompt.cuts, *(begin + cut for cut in part.cuts))
        prompt = PromptText(prompt.text + rest[:at] + part.text, cuts)
        rest = rest[at + len(field) :]
    return prompt


def _n_same(prompts: Sequence[Tokens]) -> int:
    """Tokens that all begin with; one less than the shortest has, whose last one is read alone."""
    n = min(map(len, prompts)) - 1
    for prompt in prompts[1:]:
        differs = np.flatnonzero(prompt[:n] != prompts[0][:n])
        n = int(differs[0]) if len(differs) else n
    return n


def _score(engine: Engine, state: NDArray[np.float32]) -> float:
    values = engine.classifier.astype(np.float64) @ state.astype(np.float64)
    if engine.metadata.get("general.architecture") in _SOFTMAX:
        values = np.exp(values - values.max())
        values /= values.sum()
    return float(values[0])


def _last(states: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.array(states[-1], np.float32)
