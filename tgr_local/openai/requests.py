"""Requests in OpenAI's words, checked: a body, as JSON has it, becomes a `Request`.

It knows what llama-cpp-python's and OpenAI's parameters mean here, and says so where one cannot be
followed. What is written, and how it is reported, is the business of `tgr_local.openai.completions`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tgr_local import methods
from tgr_local.engine import Cancel, Engine
from tgr_local.errors import CapacityError
from tgr_local.generation import advised, prompt_tokens
from tgr_local.options.config import DEFAULT_METHOD, SearchConfig
from tgr_local.options.fields import updated
from tgr_local.system import confined

CHOICES_MAX = 128
PROMPTS_MAX = 128
_NAME_MOST = 256  # characters of a model's or a parameter's name
_SCHEMA_MOST = 1 << 18  # characters of a JSON schema
_REPEATS_MOST = 2000  # of a part of a grammar, in llama.cpp
_INT_MAX = 2**31 - 1

# OpenAI's name, or llama-cpp-python's -> ours
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
# what says nothing about the text: taken and left alone
_NOTES = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "parallel_tool_calls",
}  # fmt: skip
# what cannot be followed, and the values that ask for nothing
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "modalities": (None, ["text"]),
    "suffix": (None, ""),
    "typical_p": (None, 1),
    "tfs_z": (None, 1),
    "mirostat_mode": (None, 0),
    "logits_processor": (None, []),
    "stopping_criteria": (None, []),
}
_MEANINGLESS_HERE = {"mirostat_tau", "mirostat_eta"}  # they need mirostat_mode


class RequestError(ValueError):
    """A request that is no good; `param` names the part at fault, where one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Request:
    """A checked request: all that a response needs beside the engine."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    """Tokens of each prompt; a chat has one."""
    texts: tuple[str, ...]
    """What `echo` shows of each prompt."""
    config: SearchConfig
    method: str
    model: str
    """The name that the response bears."""
    n: int = 1
    """Choices for each prompt."""
    best_of: int = 1
    """Replies that the n choices are taken from, by mean log-probability."""
    logprobs: int | None = None
    """Alternatives reported for each token; None = no log-probabilities at all."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    echo: bool = False
    writes: bool = True
    """False for ``max_tokens=0``: the prompt is read and reported, and nothing is written."""
    stream: bool = False
    include_usage: bool = False
    progress: bool = False
    """A stream also tells what the search does, in chunks without choices."""


def chat_request(
    engine: Engine,
    body: Mapping[str, Any],
    *,
    config: SearchConfig | None = None,
    method: str = DEFAULT_METHOD,
    model: str | None = None,
    cancel: Cancel | None = None,
) -> Request:
    """The body of a chat completion request, checked.

    `config` (None = the defaults with what the model file advises), `method` and `model` are what
    holds where the body says nothing; without a seed it gets a random one. Beside OpenAI's and
    llama-cpp-python's parameters the body may hold ``tgr``, a dict of `SearchConfig` fields,
    "method" and "progress". Raises RequestError, ModelError for a model without a template,
    CapacityError for a prompt longer than the model can take, and CancelledError by `cancel`.
    """
    reader = _Reader(body)
    messages = _messages(reader.take("messages", list, None))
    thinking = _thinking(reader)
    wants_logprobs = reader.take("logprobs", bool, False)
    n_top = reader.whole("top_logprobs", None, 0, 20)
    if n_top is not None and not wants_logprobs:
        raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
    alternative = reader.whole("max_completion_tokens", None, 1)
    request = _common(engine, reader, config, method, model, thinking, alternative, cancel)
    if not request.writes:
        raise RequestError("max_tokens is 0, but must be at least 1, or -1", "max_tokens")
    tokens = prompt_tokens(engine, messages, request.config, cancel=cancel)
    logprobs = (n_top or 0) if wants_logprobs else None
    return _with_logprobs(request, logprobs, chat=True, prompts=(tuple(tokens),), texts=("",))


def completion_request(
    engine: Engine,
    body: Mapping[str, Any],
    *,
    config: SearchConfig | None = None,
    method: str = DEFAULT_METHOD,
    model: str | None = None,
    cancel: Cancel | None = None,
) -> Request:
    """The body of a legacy completion request, checked, as `chat_request` does.

    A prompt is a text, token ids, or a list of either; it is taken as it stands. ``max_tokens`` is
    16 unless given, as OpenAI has it; -1 or null = as many as the config allows; 0 writes nothing,
    which with ``echo`` and ``logprobs`` scores the prompt.
    """
    reader = _Reader(body)
    prompts = _prompts(engine, reader.left.pop("prompt", None))
    logprobs = reader.whole("logprobs", None, 0, 128)
    echo = reader.take("echo", bool, False)
    reader.left.setdefault("max_tokens", 16)
    request = _common(engine, reader, config, method, model, None, None, cancel)
    texts = tuple(
        prompt if isinstance(prompt, str) else _shown(engine, prompt) for prompt in prompts
    )
    tokens = tuple(
        tuple(prompt_tokens(engine, prompt, request.config, raw=True, cancel=cancel))
        for prompt in prompts
    )
    for prompt in tokens:
        if not prompt:
            raise RequestError("prompt has no tokens; write something", "prompt")
    return _with_logprobs(request, logprobs, chat=False, prompts=tokens, texts=texts, echo=echo)


class _Reader:
    """Takes a body apart; what is left over at the end was not understood."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        if not isinstance(body, Mapping):
            raise RequestError(f"the request is {body!r:.80}, but must be an object of parameters")
        self.left = dict(body)
        self.taken: set[str] = set()

    def take(self, name: str, kind: Any, default: Any) -> Any:
        """A value of a type; null and absent are the default."""
        self.taken.add(name)
        value = self.left.pop(name, None)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_KIND_NAMES.get(one, one.__name__) for one in kinds)
            raise RequestError(f"{name} is {value!r:.80}, but must be {wanted}", name)
        return value

    def whole(self, name: str, default: int | None, low: int, high: int | None = None) -> Any:
        """A whole number within bounds, both inclusive."""
        value = self.take(name, int, default)
        if value is None or (low <= value and (high is None or value <= high)):
            return value
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} is {value}, but must be {bounds}", name)

    def finish(self, also: set[str]) -> None:
        """Refuses what was not understood."""
        for name in self.left:
            near = difflib.get_close_matches(str(name)[:_NAME_MOST], self.taken | also, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise RequestError(f"unknown parameter {str(name)!r:.80}{hint}", str(name)[:80])


_KIND_NAMES = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false",
    list: "a list", dict: "an object",
}  # fmt: skip


def _common(
    engine: Engine,
    reader: _Reader,
    config: SearchConfig | None,
    method: str,
    model: str | None,
    thinking: bool | None,
    max_tokens: int | None,
    cancel: Cancel | None,
) -> Request:
    """What chats and completions share. Prompts are still to come."""
    changes, method, progress = _tgr(reader, method)
    for name, ours in _SAMPLING.items():
        value = reader.take(name, (int,) if name == "top_k" else (int, float), None)
        if value is not None:
            changes[ours] = max(value, 0) if name == "top_k" else value  # -1 is llama.cpp's "all"
    if thinking is not None:
        changes["thinking"] = thinking
    if (stop := _stop(reader.take("stop", (str, list), None))) is not None:
        changes["stop"] = stop
    seed = reader.take("seed", int, None)
    if seed is not None and seed != -1:
        changes["seed"] = seed
    changes.setdefault("seed", secrets.randbelow(2**53))  # any JSON reader can hold it
    if grammar := _grammar(reader, cancel) or changes.get("grammar"):
        changes["grammar"] = grammar

    given = reader.take("max_tokens", int, None)
    given = max_tokens if max_tokens is not None else given
    writes = given != 0
    base = advised(engine, config)
    if isinstance(grammar, str):
        try:
            engine.check_grammar(grammar)
        except ValueError as error:
            raise RequestError(str(error), "grammar") from None
    if given is not None and given > 0:
        changes["max_tokens"] = given
        # asked for so many tokens, a method may write so many chunks
        chunk_len = changes.get("chunk_len", base.chunk_len)
        if isinstance(chunk_len, int) and chunk_len > 0:
            n_chunks = min(-(-given // chunk_len), _INT_MAX)  # the error names max_tokens
            changes.setdefault("max_chunks", max(base.max_chunks, n_chunks))
    elif given is not None and given < -1:
        raise RequestError(f"max_tokens is {given}, but must be at least 1, or -1", "max_tokens")

    n = reader.whole("n", 1, 1, CHOICES_MAX)
    best_of = reader.whole("best_of", n, 1, CHOICES_MAX)
    stream = reader.take("stream", bool, False)
    options = reader.take("stream_options", dict, {})
    if options and not stream:
        raise RequestError("stream_options needs stream=true", "stream_options")
    if best_of < n:
        raise RequestError(f"best_of is {best_of}, but must be at least n, which is {n}", "best_of")
    if stream and best_of > n:
        raise RequestError("best_of cannot be streamed; leave out stream, or best_of", "best_of")
    bias = _logit_bias(engine, reader.take("logit_bias", dict, {}))
    name = reader.take("model", str, None)
    if len(name or "") > _NAME_MOST:
        raise RequestError(f"model has {len(name)} characters, but may have {_NAME_MOST}", "model")

    for key, neutral in _UNSUPPORTED.items():
        if reader.left.pop(key, None) not in neutral:
            raise RequestError(f"{key} is not supported; leave it out", key)
    for key in _NOTES | _MEANINGLESS_HERE:
        reader.left.pop(key, None)
    reader.finish(set(_UNSUPPORTED) | _NOTES)
    return Request(
        chat=False,
        prompts=(),
        texts=(),
        config=_changed(base, changes),
        method=method,
        model=name or model or engine.path.stem,
        n=n,
        best_of=best_of,
        logit_bias=bias,
        writes=writes,
        stream=stream,
        include_usage=bool(options.get("include_usage", False)),
        progress=progress,
    )


def _with_logprobs(request: Request, logprobs: int | None, **parts: Any) -> Request:
    if request.best_of > 1 and not request.writes:
        request = dataclasses.replace(request, best_of=request.n)
    config = dataclasses.replace(request.config, top_logprobs=logprobs or 0)
    return dataclasses.replace(request, config=config, logprobs=logprobs, **parts)


def _changed(base: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    try:
        return updated(base, changes)
    except ValueError as error:
        named = re.match(r"(?:unknown option ')?(\w+)", str(error))
        raise RequestError(str(error), named.group(1) if named else None) from None


def _tgr(reader: _Reader, method: str) -> tuple[dict[str, Any], str, bool]:
    """The options in ``tgr``, the method, and whether progress is told."""
    options = dict(reader.take("tgr", dict, {}))
    method = reader.take("method", str, options.pop("method", method))
    if not isinstance(method, str):
        raise RequestError(f"tgr.method is {method!r:.80}, but must be a text", "method")
    try:
        methods.get(method)
    except ValueError as error:
        raise RequestError(str(error), "method") from None
    progress = options.pop("progress", False)
    if not isinstance(progress, bool):
        raise RequestError(f"tgr.progress is {progress!r:.80}, but must be true or false", "tgr")
    # JSON has no tuples
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return options, method, progress


def _thinking(reader: _Reader) -> bool | None:
    effort = reader.take("reasoning_effort", str, None)
    efforts = ("none", "minimal", "low", "medium", "high", "xhigh")
    if effort is not None and effort not in efforts:
        raise RequestError(
            f"reasoning_effort is {effort!r:.80}, but must be one of {', '.join(efforts)}",
            "reasoning_effort",
        )
    options = reader.take("chat_template_kwargs", dict, {})
    thinking = options.get("enable_thinking", False if effort == "none" else None)
    if thinking is not None and not isinstance(thinking, bool):
        raise RequestError(
            f"enable_thinking is {thinking!r:.80}, but must be true or false",
            "chat_template_kwargs",
        )
    for key in options:
        if key != "enable_thinking":
            raise RequestError(
                f"chat_template_kwargs holds {key!r:.80}, but only enable_thinking is known",
                "chat_template_kwargs",
            )
    return thinking


def _stop(stop: str | list[Any] | None) -> tuple[str, ...] | None:
    if stop is None:
        return None
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(f"stop holds {text!r:.80}, but must hold texts", "stop")
    return texts


def _logit_bias(engine: Engine, bias: dict[Any, Any]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, value in bias.items():
        try:
            token = int(key)
        except (TypeError, ValueError):
            token = -1
        if not 0 <= token < engine.n_vocab:
            raise RequestError(
                f"logit_bias names token {key!r:.40}, but must name one between 0 and "
                f"{engine.n_vocab - 1}",
                "logit_bias",
            )
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise RequestError(
                f"logit_bias of token {token} is {value!r:.40}, but must be between -100 and 100",
                "logit_bias",
            )
        pairs.append((token, float(value)))
    return tuple(pairs)


def _grammar(reader: _Reader, cancel: Cancel | None) -> str:
    """GBNF of ``grammar`` or ``response_format``; empty = none."""
    grammar = reader.left.pop("grammar", None)
    grammar = getattr(grammar, "_grammar", grammar)  # a llama_cpp.LlamaGrammar
    if grammar is not None and not isinstance(grammar, str):
        raise RequestError(f"grammar is {grammar!r:.80}, but must be a text in GBNF", "grammar")
    form = reader.take("response_format", dict, {})
    kind = form.get("type", "text")
    schema: Any = form.get("schema")  # llama-cpp-python's way
    if kind == "json_schema":
        wrapped = form.get("json_schema")
        schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
        if schema is None:
            raise RequestError(
                "response_format has no json_schema.schema; add one, or use json_object",
                "response_format",
            )
    elif kind not in ("text", "json_object"):
        raise RequestError(
            f"response_format.type is {kind!r:.80}, but must be text, json_object or json_schema",
            "response_format",
        )
    if kind != "text" and grammar:
        raise RequestError("grammar and response_format exclude each other", "grammar")
    return grammar or ("" if kind == "text" else json_grammar(schema, cancel))


def json_grammar(schema: Any = None, cancel: Cancel | None = None) -> str:
    """GBNF for JSON, or for JSON of a schema, which is a dict.

    Made by llama-cpp-python, in a process of its own with limits of time and memory. Raises
    RequestError for a schema that it cannot follow, and CancelledError by `cancel`.
    """
    _check_schema(schema)
    try:
        return confined.schema_grammar(schema, cancel)
    except confined.ConfinedError as error:
        raise RequestError(
            f"the JSON schema cannot be followed: {error}", "response_format"
        ) from None


def _check_schema(schema: Any) -> None:
    """Refuses a schema that is too long, or asks for more repetitions than a grammar can have."""
    length = len(json.dumps(schema))
    if length > _SCHEMA_MOST:
        raise RequestError(
            f"the JSON schema has {length} characters, but may have {_SCHEMA_MOST}; shorten it",
            "response_format",
        )
    parts = [schema]
    while parts:
        part = parts.pop()
        for key in ("minLength", "maxLength", "minItems", "maxItems"):
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, int | float) and value > _REPEATS_MOST:
                raise RequestError(
                    f"the JSON schema has {key} {value}, but a grammar can count to "
                    f"{_REPEATS_MOST}; lower it or leave it out",
                    "response_format",
                )
        if isinstance(part, dict | list):
            parts += part.values() if isinstance(part, dict) else part


def _messages(messages: list[Any] | None) -> list[dict[str, Any]]:
    if not messages:
        raise RequestError("messages is empty, but must hold at least one", "messages")
    return [_message(i, message) for i, message in enumerate(messages)]


def _message(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{i}] must be an object with a role and content", "messages")
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                kind = part.get("type") if isinstance(part, dict) else part
                raise RequestError(
                    f"messages[{i}] has a part of type {kind!r:.40}, but only text is read",
                    "messages",
                )
        content = "".join(part["text"] for part in content)
    if content is None and role == "assistant":
        content = ""
    if not isinstance(content, str):
        raise RequestError(
            f"the content of messages[{i}] is {content!r:.40}, but must be a text", "messages"
        )
    return {**message, "role": role, "content": content}


def _prompts(engine: Engine, prompt: Any) -> list[str | list[int]]:
    """One prompt or several, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], str | list) and len(prompt) > PROMPTS_MAX:
            raise RequestError(
                f"prompt holds {len(prompt)} prompts, but may hold {PROMPTS_MAX}", "prompt"
            )
        if all(isinstance(one, int) for one in prompt):
            return [_checked_tokens(engine, prompt)]
        if all(isinstance(one, str) or (isinstance(one, list) and one) for one in prompt):
            return [one if isinstance(one, str) else _checked_tokens(engine, one) for one in prompt]
    raise RequestError(
        f"prompt is {prompt!r:.80}, but must be a text, token ids, or a list of either", "prompt"
    )


def _checked_tokens(engine: Engine, tokens: Seq[Any]) -> list[int]:
    if len(tokens) > engine.n_ctx_train:
        raise CapacityError(
            f"the prompt has {len(tokens)} tokens, but the model was trained for "
            f"{engine.n_ctx_train}; shorten it"
        )
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < engine.n_vocab:
            raise RequestError(
                f"prompt holds token {token!r:.40}, but must hold numbers between 0 and "
                f"{engine.n_vocab - 1}",
                "prompt",
            )
    return list(tokens)


def _shown(engine: Engine, tokens: list[int]) -> str:
    return engine.detokenize(tokens, special=True).decode("utf-8", "replace")
