"""Responses in OpenAI's format: a `PreparedRequest` in; a dict, or an iterator of chunk dicts, out.

`chat_request` and `completion_request` prepare the body of a request, `respond` returns the whole
response, and `chunks` yields it as a stream. `ChatTranslation` and `TextTranslation` are the two
formats. Nothing here keeps state between calls: any number of threads may call with one engine.
"""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from tgr_local.apis.events import (
    ApiEvent,
    CallArguments,
    CallBegun,
    ChoiceEnded,
    JsonObject,
    NewText,
    Searched,
    Totals,
    Usage,
)
from tgr_local.apis.logprobs import Token, chat_logprobs, legacy_logprobs
from tgr_local.apis.requests import PreparedRequest as PreparedRequest
from tgr_local.apis.requests import chat_request as chat_request
from tgr_local.apis.requests import completion_request as completion_request
from tgr_local.apis.timings import prompt_progress, timings
from tgr_local.apis.tools import function_call
from tgr_local.apis.validation import RequestError as RequestError
from tgr_local.apis.writing import Choice, OnReplyEvent, Response, Translation, write
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Candidates, Reply, streamed
from tgr_local.system.json_values import to_json_value

# what a report of the search holds at most
_ROLLOUTS, _ROLLOUT_TOKENS, _CHUNK_CHARS = 256, 48, 4096


def respond(
    engine: Engine,
    request: PreparedRequest,
    *,
    cancel: Cancel | None = None,
    on_event: OnReplyEvent | None = None,
) -> JsonObject:
    """The whole response. Calls `on_event` and raises as `writing.write` does with
    `on_reply_event`."""
    response = write(engine, request, on_reply_event=on_event, cancel=cancel)
    return translation(engine, request).whole(response)


def chunks(
    engine: Engine, request: PreparedRequest, *, cancel: Cancel | None = None
) -> Iterator[JsonObject]:
    """The response as a stream of chunks. Closing the iterator cancels the work.

    With log-probabilities, text comes with the step that it belongs to. Raises as `respond` does,
    at the first `next` or later.
    """

    def work(on_chunk: Callable[[JsonObject], None], stop: Cancel) -> None:
        format = translation(engine, request)

        def pass_on(event: ApiEvent) -> None:
            for chunk in format.parts(event):
                on_chunk(chunk)

        write(engine, request, pass_on, cancel=stop)

    return streamed(work, cancel)


def translation(engine: Engine, request: PreparedRequest) -> ChatTranslation | TextTranslation:
    """The format that OpenAI has for the request."""
    return (ChatTranslation if request.chat else TextTranslation)(engine, request)


def usage_object(usage: Usage) -> JsonObject:
    """``usage`` of a completion."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def progress_object(event: Searched, engine: Engine | None = None) -> JsonObject:
    """Object of a stream for the search's progress; with an engine also the beginnings of rollouts
    that were scored, and the text of a chunk that is complete."""
    progress = event.progress
    scores = to_json_value(progress.candidates.scores) if progress.candidates else None
    shown: JsonObject = {
        "index": event.index,
        "chunk": progress.chunk,
        "stage": progress.stage,
        "scores": scores,
    }
    if engine and progress.candidates:
        shown["rollouts"] = _rollouts(engine, progress.candidates)
    if progress.n_query:
        shown |= {"read": progress.n_read, "of": progress.n_query}
    if progress.stage == "tokens":
        shown["tokens"] = event.n_tokens
    if progress.stage == "written":
        text = progress.text.decode("utf-8", "replace")
        shown |= {"text": text[:_CHUNK_CHARS], "tokens": len(progress.tokens)}
    return shown


def _rollouts(engine: Engine, candidates: Candidates) -> list[JsonObject]:
    """The beginning of each rollout with its candidate; of many the first."""
    pairs = zip(candidates.owners.tolist(), candidates.tokens, strict=True)
    return [
        {
            "candidate": owner,
            "text": engine.detokenize(tokens[:_ROLLOUT_TOKENS].tolist()).decode("utf-8", "replace"),
        }
        for owner, tokens in itertools.islice(pairs, _ROLLOUTS)
    ]


class _CompletionsTranslation(Translation):
    """Common part of both formats."""

    kind: str
    chunk_kind: str
    new: tuple[str, type]
    """Field that a choice of a chunk adds: its name, and the type whose empty value is nothing."""

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        super().__init__(engine, request)
        self._times: JsonObject = {}  # of the first choice that ended

    def parts(self, event: ApiEvent) -> list[JsonObject]:
        if isinstance(event, Totals):
            return self._totals(event)
        if isinstance(event, Searched):
            reads = self._request.reports_reading(event.progress)
            chunks = [self._reading(event)] if reads else []
            if self._request.progress:
                told = progress_object(event, self._engine)
                chunks.append(self._chunk([], tgr={"progress": told}))
            return chunks
        return [self._chunk([choice]) for choice in self._choices(event) if choice]

    def _reading(self, event: Searched) -> JsonObject:
        """A chunk that adds nothing but how much of the prompt is read."""
        progress = prompt_progress(event.progress, time.monotonic() - self._start)
        return self._chunk([self._choice(event.index)], prompt_progress=progress)

    def _choice(self, index: int, logprobs: JsonObject | None = None, **more: Any) -> JsonObject:
        """A choice of a chunk."""
        name, kind = self.new
        shape: JsonObject = {"index": index, "finish_reason": None, "logprobs": logprobs}
        return shape | {name: kind()} | more

    def _timings(self, number: int, reply: Reply | None) -> JsonObject:
        return timings(self._engine, reply, len(self._request.prompts[number]))

    def _totals(self, event: Totals) -> list[JsonObject]:
        more = {"tgr": event.about, "timings": self._times}
        if not self._request.include_usage:
            return [self._last | more]
        return [self._chunk([], usage=usage_object(event.usage), **more)]

    @abstractmethod
    def _choices(self, event: ApiEvent) -> list[JsonObject]:
        """Choices that an event adds to a chunk."""

    def _ended(self, event: ChoiceEnded, choice: JsonObject) -> list[JsonObject]:
        """The end of a choice: the last one has the cost of all, unless that is a chunk of its
        own."""
        self._unfinished -= 1
        number = event.index // self._request.n
        self._times = self._times or self._timings(number, event.reply)
        if self._unfinished or self._request.include_usage:
            return [choice]
        self._last = self._chunk([choice])
        return []

    def whole(self, response: Response) -> JsonObject:
        choices = [self._whole_choice(response, choice) for choice in response.best()]
        usage = usage_object(response.usage())
        first = response.best()[0]
        times = self._timings(first.number, first.reply)
        return self._object(self.kind, choices, usage=usage, timings=times, tgr=response.about())

    @abstractmethod
    def _whole_choice(self, response: Response, choice: Choice) -> JsonObject:
        """A choice of the whole response."""

    def _chunk(self, choices: list[JsonObject], **more: Any) -> JsonObject:
        usage = {"usage": None} if self._request.include_usage else {}
        return self._object(self.chunk_kind, choices, **usage | more)

    def _object(self, kind: str, choices: list[JsonObject], **more: Any) -> JsonObject:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
            **more,
        }


class ChatTranslation(_CompletionsTranslation):
    """The format of /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"
    new = ("delta", dict)

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        super().__init__(engine, request)
        self._opened: set[int] = set()
        self._shows_thinking = bool(request.extra.get("thinking", True))

    def _choices(self, event: ApiEvent) -> list[JsonObject]:
        assert not isinstance(event, Searched | Totals)
        index, choices = event.index, []
        if index not in self._opened:
            self._opened.add(index)
            choices.append(self._choice(index, delta={"role": "assistant", "content": ""}))
        if isinstance(event, NewText):
            if event.kind == "thinking" and not self._shows_thinking:
                return choices
            name = "reasoning_content" if event.kind == "thinking" else "content"
            logprobs = self._logprobs(event.tokens)
            choices.append(self._choice(index, logprobs, delta={name: event.text}))
        elif isinstance(event, ChoiceEnded):
            choices += self._ended(event, self._choice(index, finish_reason=event.finish))
        elif isinstance(event, CallBegun):
            call = {"index": event.call} | function_call(event.id, event.name, "")
            choices.append(self._choice(index, delta={"tool_calls": [call]}))
        elif isinstance(event, CallArguments):
            call = {"index": event.call, "function": {"arguments": event.text}}
            choices.append(self._choice(index, delta={"tool_calls": [call]}))
        return choices

    def _whole_choice(self, response: Response, choice: Choice) -> JsonObject:
        content = choice.text("answer")
        message: JsonObject = {"role": "assistant", "content": content}
        if self._shows_thinking and (thinking := choice.text("thinking")):
            message["reasoning_content"] = thinking
        if choice.calls:
            message["content"] = content or None
            message["tool_calls"] = [
                function_call(call.id, call.name, call.arguments) for call in choice.calls
            ]
        logprobs = self._logprobs(response.answer_tokens(choice))
        shape: JsonObject = {"index": choice.index, "finish_reason": choice.finish}
        return shape | {"message": message, "logprobs": logprobs}

    def _logprobs(self, tokens: Any) -> JsonObject | None:
        return None if tokens is None else chat_logprobs(self._engine, tokens)


class TextTranslation(_CompletionsTranslation):
    """The format of /v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl-"
    new = ("text", str)

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        super().__init__(engine, request)
        self._scored: dict[int, JsonObject] = {}  # of each prompt, once for all its choices

    def _choices(self, event: ApiEvent) -> list[JsonObject]:
        if isinstance(event, NewText):
            number = event.index // self._request.n
            logprobs = self._logprobs(number, event.tokens, is_prompt=event.kind == "prompt")
            return [self._choice(event.index, logprobs, text=event.text)]
        if isinstance(event, ChoiceEnded):
            return self._ended(event, self._choice(event.index, finish_reason=event.finish))
        return []

    def _whole_choice(self, response: Response, choice: Choice) -> JsonObject:
        text, number = choice.text("answer"), choice.number
        logprobs = self._logprobs(number, response.answer_tokens(choice), is_prompt=False)
        if self._request.echo:
            text = self._request.texts[number] + text
            of_prompt = self._logprobs(number, response.prompt_tokens(choice), is_prompt=True)
            if of_prompt and logprobs:
                logprobs = {k: None if v is None else v + logprobs[k] for k, v in of_prompt.items()}
        shape: JsonObject = {"index": choice.index, "finish_reason": choice.finish}
        return shape | {"text": text, "logprobs": logprobs}

    def _logprobs(
        self, number: int, tokens: list[Token] | Any, *, is_prompt: bool
    ) -> JsonObject | None:
        n_top = self._request.logprobs
        if n_top is None or tokens is None:
            return None
        if not is_prompt:
            start = len(self._request.texts[number])
            return legacy_logprobs(self._engine, tokens, start=start, n_top=n_top)
        if number not in self._scored:
            self._scored[number] = legacy_logprobs(self._engine, tokens, start=0, n_top=n_top)
        return self._scored[number]
