"""Ollama's /api/chat and /api/generate: a body becomes a chat request or a text request, events
become lines.

A name of an option is that of /v1/chat/completions, where it is the same. A stream is the default.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import NotRequired

from tgr_local.apis.bodies import (
    CALLS_MAX,
    SampledRequest,
    StopText,
    StopTexts,
    ToolName,
    Tools,
)
from tgr_local.apis.client_parameters import Ignoring, Only, ignoring
from tgr_local.apis.events import (
    ApiEvent,
    CallArguments,
    CallBegun,
    ChoiceEnded,
    JsonObject,
    NewText,
    Totals,
)
from tgr_local.apis.requests import PreparedRequest, chat_request, completion_request
from tgr_local.apis.search_options import option_fields, optional
from tgr_local.apis.timings import timings
from tgr_local.apis.tools import function_call
from tgr_local.apis.validation import OpenObject, RequestError, with_fields
from tgr_local.apis.writing import Response, Translation
from tgr_local.engine import Engine
from tgr_local.options.fields import INT_MAX

_NANOSECONDS = 1_000_000_000
_OPTIONS = (
    "temperature", "top_k", "top_p", "min_p", "seed", "repeat_penalty", "frequency_penalty",
    "presence_penalty", "repeat_last_n", "typical_p",
)  # fmt: skip
_OTHERS = ("tfs_z", "mirostat", "mirostat_tau", "mirostat_eta")


@with_fields(dict.fromkeys(_OTHERS, (Any, optional("as in /v1/chat/completions"))))
@with_fields(option_fields(*_OPTIONS, top_k={"ge": -INT_MAX}))
@ignoring(
    "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap",
    "use_mlock", "numa", "low_vram", "f16_kv", "vocab_only", "logits_all", "penalize_newline",
    "draft_num_predict",
)  # fmt: skip
class OllamaOptions(Ignoring):
    """The `options` of a request; those for loading a model have no effect."""

    noun: ClassVar[str] = "option"
    num_predict: int | None = optional(
        "new tokens at most; 0 or less = as the config allows", ge=-2, le=INT_MAX
    )
    stop: StopText | StopTexts | None = optional("texts that end the reply")


class OllamaFunction(OpenObject):
    """The function that a call names, with its arguments."""

    name: ToolName
    arguments: NotRequired[dict[str, Any] | None]


class OllamaCall(OpenObject):
    """A call of a tool in an earlier message of the assistant."""

    function: OllamaFunction


class OllamaMessage(OpenObject):
    """A message; one with the role "tool" is the result of a call of the function `tool_name`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: NotRequired[str | None]
    thinking: NotRequired[str | None]
    images: NotRequired[list[Any] | None]
    tool_calls: NotRequired[
        Annotated[list[OllamaCall], Field(fail_fast=True, max_length=CALLS_MAX)] | None
    ]
    tool_name: NotRequired[str | None]


@ignoring("truncate", "shift")
class OllamaRequest(SampledRequest):
    """Fields of both requests."""

    options: OllamaOptions | None = optional("how the reply is sampled")
    format: Annotated[
        Literal["json"] | dict[str, Any] | None,
        BeforeValidator(lambda given: None if given == "" else given),
    ] = optional("json, or the JSON schema of the reply; empty = any text")
    think: bool | Literal["low", "medium", "high"] | None = optional(
        "whether the model thinks first, and how much"
    )
    logprobs: Annotated[Any, Only(False)] = None
    top_logprobs: Annotated[Any, Only(0)] = None

    @property
    def option(self) -> OllamaOptions:
        """The options, given or not."""
        return self.options or OllamaOptions.parse({})


class OllamaChatRequest(OllamaRequest):
    """The body of /api/chat."""

    resent: ClassVar = ("messages", "tools")
    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] | None = optional(
        "the conversation; without one the model is loaded"
    )
    tools: Tools | None = optional("functions that the model may call")


class OllamaGenerateRequest(OllamaRequest):
    """The body of /api/generate."""

    prompt: str | None = optional("the text; without one the model is loaded")
    system: str | None = optional("what the model is to be")
    suffix: str | None = optional("text after a gap that the reply fills")
    raw: bool | None = optional("without the chat template")
    images: list[Any] | None = optional("none: no model here sees images")
    template: Annotated[Any, Only("")] = None
    context: Annotated[Any, Only([])] = None


def ollama_chat_request(
    engine: Engine, body: Mapping[str, Any] | OllamaChatRequest, **options: Any
) -> PreparedRequest:
    """The body of an /api/chat request, checked, as `chat_request` does. Raises RequestError."""
    body = OllamaChatRequest.parse(body)
    given = _common(body)
    given["messages"] = _messages(body.messages or [])
    if body.tools:
        given["tools"] = body.tools
    if body.think is not None:
        given["think"] = body.think
    return _with_ignored(body, chat_request(engine, given, **options))


def ollama_generate_request(
    engine: Engine, body: Mapping[str, Any] | OllamaGenerateRequest, **options: Any
) -> PreparedRequest:
    """The body of an /api/generate request, checked, as `chat_request` does; with `raw` or a
    `suffix`, or for a model without a template, as `completion_request`. Raises RequestError."""
    body = OllamaGenerateRequest.parse(body)
    if body.images:
        raise _sees_no_images("images")
    given = _common(body)
    if body.raw or body.suffix or not engine.chat_template:
        text = "\n\n".join(filter(None, ("" if body.raw else body.system, body.prompt)))
        given |= {"prompt": text, "suffix": body.suffix or None}
        given.pop("chat_template_kwargs", None)
        return _with_ignored(body, completion_request(engine, given, **options))
    given["messages"] = [{"role": "system", "content": body.system}] if body.system else []
    given["messages"].append({"role": "user", "content": body.prompt})
    if body.think is not None:
        given["think"] = body.think
    return _with_ignored(body, chat_request(engine, given, **options))


def _common(body: OllamaRequest) -> dict[str, Any]:
    """The parameters of OpenAI's body that both have."""
    given = body.for_chat() | {"stream": body.stream is not False}
    for name in (*_OPTIONS, *_OTHERS, "stop"):
        if (value := getattr(body.option, name)) is not None:
            given[name] = value
    limit = body.option.num_predict
    given["max_tokens"] = limit if limit and limit > 0 else -1
    if body.format == "json":
        given["response_format"] = {"type": "json_object"}
    elif body.format:
        given["response_format"] = {"type": "json_schema", "schema": body.format}
    return given


def _with_ignored(body: OllamaRequest, request: PreparedRequest) -> PreparedRequest:
    options = (f"options.{name}" for name in body.option.ignored())
    return dataclasses.replace(request, ignored=(*body.ignored(), *options, *request.ignored))


def _sees_no_images(where: str) -> RequestError:
    return RequestError(
        f"{where} holds an image, but no model here sees images; leave it out",
        where.partition("[")[0],
    )


def _messages(messages: list[OllamaMessage]) -> list[dict[str, Any]]:
    """The messages as OpenAI has them, where each call has an id that its result names."""
    converted: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # ids and names of calls without a result
    n_calls = 0
    for i, message in enumerate(messages):
        if message.get("images"):
            raise _sees_no_images(f"messages[{i}].images")
        role = message["role"]
        entry: dict[str, Any] = {"role": role, "content": message.get("content") or ""}
        if thinking := message.get("thinking"):
            entry["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            entry["tool_calls"], open_calls = [], []
            for call in calls:
                name, arguments = call["function"]["name"], call["function"].get("arguments")
                call_id = f"call_{n_calls}"
                open_calls.append((call_id, name))
                entry["tool_calls"].append(function_call(call_id, name, arguments or {}))
                n_calls += 1
        if role == "tool":
            named = [pair for pair in open_calls if pair[1] == message.get("tool_name")]
            for pair in (named or open_calls)[:1]:
                open_calls.remove(pair)
                entry |= {"tool_call_id": pair[0], "name": pair[1]}
        converted.append(entry)
    return converted


# ---- responses ----


def loaded_response(body: OllamaRequest, model: str) -> JsonObject | None:
    """The response to a body that only asks for the model of that name to be loaded, once that is
    so; None for another body."""
    if any(getattr(body, name, None) for name in ("messages", "prompt", "suffix")):
        return None
    key, value = _content(isinstance(body, OllamaChatRequest), "")
    about = {"model": body.model or model, "created_at": _now(), key: value}
    return about | {"done": True, "done_reason": "load"}


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def _content(is_chat: bool, text: str, **more: Any) -> tuple[str, Any]:
    """The name of the text of a part, and its value; `more` belongs to a message."""
    return (
        ("message", {"role": "assistant", "content": text, **more})
        if is_chat
        else ("response", text)
    )


class OllamaTranslation(Translation):
    """The format of /api/generate."""

    is_chat = False

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        super().__init__(engine, request)
        self._call: tuple[str, list[str]] | None = None  # under way: name, parts of the arguments
        self._end: ChoiceEnded | None = None

    def parts(self, event: ApiEvent) -> list[JsonObject]:
        if isinstance(event, NewText):
            if event.kind == "thinking":
                return [self._part("", thinking=event.text)] if event.text else []
            return [self._part(event.text)] if event.text else []
        if isinstance(event, CallBegun):
            parts = self._called()
            self._call = (event.name, [])
            return parts
        if isinstance(event, CallArguments):
            assert self._call is not None
            self._call[1].append(event.text)
        elif isinstance(event, ChoiceEnded):
            self._end = event
            return self._called()
        elif isinstance(event, Totals):
            assert self._end is not None
            return [self._part("") | self._totals(self._end, event.about)]
        return []

    def _called(self) -> list[JsonObject]:
        """The call that is complete now, as a part."""
        call, self._call = self._call, None
        return [self._part("", tool_calls=[_called(call[0], "".join(call[1]))])] if call else []

    def failed(self, error: JsonObject) -> list[JsonObject]:
        return [{"error": error["message"]}]

    def whole(self, response: Response) -> JsonObject:
        choice = response.best()[0]
        more: JsonObject = {}
        if thinking := choice.text("thinking"):
            more["thinking"] = thinking
        if choice.calls:
            more["tool_calls"] = [_called(call.name, call.arguments) for call in choice.calls]
        part = self._part(choice.text("answer"), **more)
        return part | self._totals(response.end(choice), response.about())

    def _part(self, text: str, **more: Any) -> JsonObject:
        key, value = _content(self.is_chat, text, **more)
        about = {"model": self._request.model, "created_at": _now(), key: value}
        return about | ({} if self.is_chat else more) | {"done": False}

    def _totals(self, end: ChoiceEnded, about: JsonObject) -> JsonObject:
        """The end of a response; times are nanoseconds."""
        n_prompt = len(self._request.prompts[0])
        times = timings(self._engine, end.reply, n_prompt)
        return {
            "done": True,
            "done_reason": "length" if end.finish == "length" else "stop",
            "total_duration": int((time.monotonic() - self._start) * _NANOSECONDS),
            "load_duration": 0,
            "prompt_eval_count": n_prompt,
            "prompt_eval_duration": int(times["prompt_ms"] * 1_000_000),
            "eval_count": times["predicted_n"],
            "eval_duration": int(times["predicted_ms"] * 1_000_000),
            "tgr": about,
        }


class OllamaChatTranslation(OllamaTranslation):
    """The format of /api/chat."""

    is_chat = True


def _called(name: str, arguments: str) -> JsonObject:
    """A call; arguments that a limit has cut off are none."""
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        read = {}
    return {"function": {"name": name, "arguments": read}}
