"""The beginning of a run: a model, a config, and the prompt as the query's tokens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TypeGuard

import numpy as np

from tgr_local.engine import Cancel, Engine
from tgr_local.errors import ContextError
from tgr_local.generation.text import CLOSE_THINK, OPEN_THINK
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.fields import given_names
from tgr_local.options.resolve import resolve

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A question; messages, each with "role" and "content"; or token ids."""

_CHARS_OF_A_TOKEN = 8  # more than most texts have


def load(path: str | os.PathLike[str] | None = None, config: EngineConfig | None = None) -> Engine:
    """Loads a GGUF file, or without a path the embedded model. Raises ModelError, and ValueError
    for a config of another type."""
    if config is not None and not isinstance(config, EngineConfig):
        raise ValueError(
            f"config is {config!r:.80}, but must be an EngineConfig; write EngineConfig(n_ctx=4096)"
        )
    if path is None:
        from tgr_local.models.library import embedded_model

        path = embedded_model()
    return Engine(path, config)


def advised(engine: Engine, config: SearchConfig | None = None) -> SearchConfig:
    """`config`, whose fields that were not given have the value that the model file advises, or
    else the default. Raises ValueError for anything else than a config."""
    if isinstance(engine, str | os.PathLike):
        raise ValueError(f"engine is {engine!r:.80}, but must be an Engine; load(path) makes one")
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


def query_tokens(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig,
    *,
    raw: bool = False,
    cancel: Cancel | None = None,
) -> list[int]:
    """The query Q: a question or messages in the model's chat template, or with `raw` the text
    alone; token ids are Q already. Raises ModelError for a model without a template, CapacityError
    for a text that is far too long for the model, and CancelledError by `cancel`.

    Where the thinking must end before the answer begins (`thinking_budget`, `grammar`, edits),
    it is opened here for models that open it themselves.
    """
    if _is_tokens(prompt):
        return [_token(engine, token) for token in prompt]
    if raw:
        if not isinstance(prompt, str):
            raise ValueError("a raw prompt must be a text, but is a list of messages; drop raw")
        return tokens_within(engine, prompt, add_special=True)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    text = engine.chat_prompt(messages, thinking=config.thinking, cancel=cancel)  # type: ignore[arg-type]
    if config.thinking and (config.thinking_budget or config.grammar or engine.edits):
        ends = text.rstrip().endswith((OPEN_THINK, CLOSE_THINK))
        text += "" if ends or OPEN_THINK not in engine.chat_template else f"{OPEN_THINK}\n"
    return tokens_within(engine, text)


def tokens_within(
    engine: Engine, text: str, *, add_special: bool = False, parse_special: bool = True
) -> list[int]:
    """Tokens of a text that must fit into the length that the model was trained for.

    Raises ContextError for a text that is far too long, after tokenizing only its beginning.
    """
    most = engine.n_ctx_train
    some = text[: _CHARS_OF_A_TOKEN * most]
    if len(some) < len(text):
        tokens = engine.tokenize(some, add_special=add_special, parse_special=parse_special)
        if len(tokens) > most:
            about = len(tokens) * len(text) // len(some)
            raise ContextError(
                f"the prompt has {len(text)} characters, about {about} tokens, but the model was "
                f"trained for {most}; shorten it",
                about,
                most,
            )
    return engine.tokenize(text, add_special=add_special, parse_special=parse_special)


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
        if all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in prompt):
            return False
    hint = "; put the message into a list" if isinstance(prompt, Mapping) else ""
    raise ValueError(
        f"the prompt is {prompt!r:.80}, but must be a text, messages with role and content, or "
        f"token ids{hint}"
    )
