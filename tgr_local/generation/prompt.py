"""The beginning of a run: a model, a config, and the prompt as the query's tokens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np

from tgr_local.engine import Cancel, Engine, PromptText
from tgr_local.engine.templates.forms import applied
from tgr_local.engine.templates.messages import begun_parts, continued_part, without_empty_end
from tgr_local.generation.request import ReplyRequest
from tgr_local.generation.text import KINDS, Kind
from tgr_local.methods import Method
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.fields import given_names
from tgr_local.options.resolve import resolve
from tgr_local.system.errors import ContextError, ModelError
from tgr_local.system.think_tags import CLOSE_THINK, OPEN_THINK

_CHARS_OF_A_TOKEN = 8  # more than most texts have
_PIECE = 1 << 14  # characters


def load(path: str | os.PathLike[str] | None = None, config: EngineConfig | None = None) -> Engine:
    """Loads a GGUF file, or without a path the embedded model. Raises ModelError, and ValueError
    for a config of another type."""
    if config is not None and not isinstance(config, EngineConfig):
        raise ValueError(
            f"config is {config!r:.80}, but must be an EngineConfig; write EngineConfig(n_ctx=4096)"
        )
    if path is None:
        from tgr_local.options.model_files import embedded_model

        path = embedded_model()
    return Engine(path, config)


def check_writes(engine: Engine) -> None:
    """Raises ModelError for an embedding model or a reranker."""
    if engine.pooling:
        kind, use = "an embedding model", "/v1/embeddings or TgrLlama.create_embedding"
        if engine.pooling == "rank":
            kind, use = "a reranker", "/v1/rerank or TgrLlama.rerank"
        raise ModelError(f"{engine.path} is {kind}, which writes no text; use {use}")


def advised(engine: Engine, config: SearchConfig | None = None) -> SearchConfig:
    """`config`, whose fields that were not given have the value that the model file advises, or
    else the default. Raises ValueError for anything else than a config, and ModelError for a model
    that writes no text."""
    if isinstance(engine, str | os.PathLike):
        raise ValueError(f"engine is {engine!r:.80}, but must be an Engine; load(path) makes one")
    check_writes(engine)
    if config is None:
        return resolve(engine.metadata).config
    if not isinstance(config, SearchConfig):
        fields = "**config" if isinstance(config, Mapping) else "n_candidates=8"
        raise ValueError(
            f"config is {config!r:.80}, but must be a SearchConfig; write SearchConfig({fields})"
        )
    given = given_names(config)
    if len(given) == len(dataclasses.fields(config)):  # nothing is left for the advice
        return config
    return resolve(engine.metadata, {name: getattr(config, name) for name in given}).config


@dataclass(frozen=True)
class Query:
    """The query Q, and how the reply to it begins."""

    tokens: list[int]
    begun: str = ""
    """The text of an answer that Q ends with, and that the reply goes on with."""
    continued: Kind | None = None
    """The part of the message that Q ends within."""


def check_begun(engine: Engine, grammar: str, begun: str) -> None:
    """Raises ValueError if the grammar has no text that begins so."""
    try:
        engine.check_grammar(grammar, begun)
    except ValueError:
        engine.check_grammar(grammar)
        raise ValueError(
            f"the last message, {begun[-80:]!r}, is not the beginning of a text that the grammar "
            "allows; leave it out, or begin it as the grammar does"
        ) from None


Prompt = str | Sequence[Mapping[str, str]] | Sequence[int] | Query
"""A question; messages, each with "role" and "content"; token ids; or a query as it is. A last
message of the assistant is the beginning of the reply."""


def query_tokens(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig,
    *,
    raw: bool = False,
    anew: bool = False,
    cancel: Cancel | None = None,
) -> list[int]:
    """The query Q: a question or messages in the model's chat template, or with `raw` the text
    alone; token ids are Q already. With `anew` the reply never continues a last message of the
    assistant. Raises ModelError for a model without a template, CapacityError for a text that is
    far too long for the model, and CancelledError by `cancel`.

    If the thinking must end before the answer (`thinking_budget`, `grammar`), Q ends with the tag
    that opens it, also for a model that would write the tag itself.
    """
    return _query(engine, prompt, config, raw, anew, cancel).tokens


def request_of(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig,
    method: Method,
    *,
    raw: bool = False,
    verbatim: bool = False,
    cancel: Cancel | None = None,
) -> ReplyRequest:
    """The request for a reply to a prompt, whose query is that of `query_tokens`; `config` is one
    of `advised`. If the prompt has the beginning of the answer, the reply has no thinking, and the
    grammar holds for the beginning and the reply together. Raises as `query_tokens`, and ValueError
    for a beginning that the grammar does not allow."""
    query = _query(engine, prompt, config, raw, False, cancel)
    request = ReplyRequest(query.tokens, config, method, raw, verbatim, continued=query.continued)
    if not query.begun:
        return request
    if config.grammar:
        check_begun(engine, config.grammar, query.begun)
    return dataclasses.replace(request.with_options(thinking=False), begun=query.begun)


def _query(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig,
    raw: bool,
    anew: bool,
    cancel: Cancel | None,
) -> Query:
    """The query as `query_tokens` has it, and the text that the reply goes on with."""
    if isinstance(prompt, Query):
        return prompt
    if _is_tokens(prompt):
        return Query([_token(engine, token) for token in prompt])
    if raw:
        if not isinstance(prompt, str):
            raise ValueError("a raw prompt must be a text, but is a list of messages; drop raw")
        return Query(tokens_within(engine, prompt, add_special=True))
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = without_empty_end(given)  # type: ignore[arg-type]
    request: dict[str, Any] = {"thinking": config.thinking, "only_prompt": True}
    part = None if anew else continued_part(messages)
    thinking, begun = begun_parts(messages, part)
    if part:
        thinks = config.thinking or KINDS[part] == "thinking"
        request |= {"continued": part, "thinking": bool(thinking) and thinks}
    text: PromptText = applied(engine, messages, request, cancel)["text"]
    if part:
        return Query(tokens_within(engine, text), begun, KINDS[part])
    text += opening(engine.chat_template, text.text, config, bool(config.grammar))
    return Query(tokens_within(engine, text))


def opening(where: str, prompt: str, config: SearchConfig, is_forced: bool) -> str:
    """The tag that opens the thinking, if the thinking must end before the answer and the prompt
    has no tag yet; else empty."""
    needed = config.thinking and (config.thinking_budget or is_forced)
    ends = prompt.rstrip().endswith((OPEN_THINK, CLOSE_THINK))
    return f"{OPEN_THINK}\n" if needed and not ends and OPEN_THINK in where else ""


def tokens_within(
    engine: Engine,
    text: str | PromptText,
    *,
    add_special: bool = False,
    parse_special: bool = True,
    bounded: bool = True,
) -> list[int]:
    """The tokens of a text. A begin token that the text has already is not added again.

    If `bounded`, raises ContextError for a text that is far longer than the model was trained for,
    after tokenizing only its beginning.
    """

    def tokens_of(prompt: PromptText) -> list[int]:
        if prompt.cuts:
            return engine.prompt_tokens(prompt)
        tokens = engine.tokenize(prompt.text, add_special=add_special, parse_special=parse_special)
        twice = add_special and parse_special and engine.bos is not None
        return tokens[1:] if twice and tokens[:2] == [engine.bos] * 2 else tokens

    prompt = PromptText(text) if isinstance(text, str) else text
    most = engine.n_ctx_train
    some = prompt.beginning(_CHARS_OF_A_TOKEN * most)
    if bounded and len(some.text) < len(prompt.text):
        tokens = tokens_of(some)
        if len(tokens) > most:
            about = len(tokens) * len(prompt.text) // len(some.text)
            raise ContextError(
                f"the prompt has {len(prompt.text)} characters, about {about} tokens, but the "
                f"model was trained for {most}; shorten it",
                about,
                most,
            )
    if bounded:
        return tokens_of(prompt)
    try:
        return tokens_of(prompt)
    except ValueError:  # a word that is too long is counted in parts
        text = prompt.text
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        return [token for piece in pieces for token in engine.tokenize(piece)]


def _token(engine: Engine, token: int) -> int:
    if not 0 <= token < engine.n_vocab:
        raise ValueError(
            f"the prompt holds token {token}, but must hold numbers between 0 and "
            f"{engine.n_vocab - 1}"
        )
    return int(token)


def _is_tokens(prompt: Prompt) -> TypeGuard[Sequence[int]]:
    """Whether it is token ids. Raises ValueError for a value that is not a prompt."""
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes):
        if not len(prompt):
            raise ValueError("the prompt has no tokens; write something")
        kinds = set(map(type, prompt))  # of thousands of tokens
        if all(issubclass(kind, Integral) and not issubclass(kind, bool) for kind in kinds):
            return True
        if all(
            isinstance(message, Mapping) and {"role", "content"} <= message.keys()
            for message in prompt
        ):
            return False
    hint = "; put the message into a list" if isinstance(prompt, Mapping) else ""
    raise ValueError(
        f"the prompt is {prompt!r:.80}, but must be a text, messages with role and content, or "
        f"token ids{hint}"
    )
