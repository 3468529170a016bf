"""Responses in OpenAI's format: a `PreparedRequest` in; a dict, or an iterator of chunk dicts, out.

`chat_request` and `completion_request` prepare the body of a request, `respond` returns the whole
response, and `chunks` yields it as a stream. Nothing here keeps state between calls: any number of
threads may call with one engine.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tgr_local.engine import Cancel, Engine, SteeredEngine
from tgr_local.generation import Event, Reply, generate_each, in_threads, streamed
from tgr_local.generation.text import TextDelta
from tgr_local.openai.bodies import CHOICES_MAX
from tgr_local.openai.logprobs import Token, TokenText, chat_logprobs, legacy_logprobs, read_prompt
from tgr_local.openai.requests import PreparedRequest as PreparedRequest
from tgr_local.openai.requests import chat_request as chat_request
from tgr_local.openai.requests import completion_request as completion_request
from tgr_local.openai.validation import RequestError as RequestError
from tgr_local.search.steps import Counts, Progress, Step
from tgr_local.trace.json_values import to_json_value

JsonObject = dict[str, Any]
OnReplyEvent = Callable[[int, Event], None]
"""Called with the number of a reply and an event of it."""


def respond(
    engine: Engine,
    request: PreparedRequest,
    *,
    cancel: Cancel | None = None,
    on_event: OnReplyEvent | None = None,
) -> JsonObject:
    """The whole response. Every event of reply i is passed to ``on_event(i, event)``, for several
    replies from several threads; replies are numbered on from prompt to prompt.

    Raises CapacityError for a prompt that cannot fit, CancelledError when `cancel` is set, and
    ValueError for options that do not go together.
    """
    answer = _Answer(engine, request)

    def handle(i: int, event: Event) -> None:
        answer.choices[i].handle(event)
        if on_event:
            on_event(i, event)

    answer.write(handle, cancel)
    return answer.whole()


def chunks(
    engine: Engine, request: PreparedRequest, *, cancel: Cancel | None = None
) -> Iterator[JsonObject]:
    """The response as a stream of chunks. Closing the iterator cancels the work.

    With log-probabilities, text comes with the step that it belongs to. Raises as `respond` does,
    at the first `next` or later.
    """

    def work(on_chunk: Callable[[JsonObject], None], stop: Cancel) -> None:
        stream(engine, request, on_chunk, cancel=stop)

    return streamed(work, cancel)


def stream(
    engine: Engine,
    request: PreparedRequest,
    on_chunk: Callable[[JsonObject], None],
    *,
    cancel: Cancel | None = None,
) -> None:
    """As `chunks`, but passes each chunk to `on_chunk`: one at a time, in the thread that made it,
    which writes on when it returns."""
    answer, lock = _Answer(engine, request), threading.Lock()

    def handle(i: int, event: Event) -> None:
        with lock:  # several replies share the answer
            answer.choices[i].handle(event)
            for chunk in answer.chunks_of(answer.choices[i], event):
                on_chunk(chunk)

    answer.write(handle, cancel)
    for choice in () if request.writes else answer.choices:
        for chunk in answer.closing(choice):
            on_chunk(chunk)
    if request.include_usage:
        on_chunk(answer.chunk([], usage=answer.usage(), tgr=answer.about()))


class _Choice:
    """One reply while it is written."""

    def __init__(self, engine: Engine, request: PreparedRequest, number: int, index: int) -> None:
        self.index, self.number = index, number
        self.reply: Reply | None = None
        self.text = {"answer": "", "thinking": ""}
        self.opened = False
        self._sent = {"answer": 0, "thinking": 0}
        self.tokens = TokenText(
            engine,
            request.prompts[number],
            request.config.stop,
            verbatim=not request.chat,
            counts_only=request.logprobs is None,
        )

    def handle(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.text[event.kind] += event.text
        elif isinstance(event, Step):
            self.tokens.feed(event)
        elif isinstance(event, Progress) and event.stage == "answer due":
            self.tokens.close_thinking()
        elif isinstance(event, Reply):
            self.reply = event

    def unsent(self, kind: str) -> str:
        """The text of a kind that is in no chunk yet."""
        text = self.text[kind][self._sent[kind] :]
        self._sent[kind] += len(text)
        return text

    @property
    def finish_reason(self) -> str:
        """Why it ended, in OpenAI's words."""
        return "stop" if self.reply and self.reply.finish == "stop" else "length"


class _Answer:
    """A response while it is written: its replies, and its formats."""

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        self.engine = (
            SteeredEngine(engine, logit_bias=request.logit_bias) if request.logit_bias else engine
        )
        self.request = request
        self.choices = [
            _Choice(self.engine, request, number, number * request.n + i)
            for number in range(len(request.prompts))
            for i in range(request.best_of)
        ]
        """`best_of` for every prompt."""
        self._prompts: list[list[Token]] = []
        self._scored: dict[int, JsonObject] = {}  # of each prompt, once for all its choices
        self._counts = Counts()
        self._start = time.monotonic()
        self._unfinished = len(self.choices)
        self._id = f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    # --- work ---

    def write(self, on_event: OnReplyEvent, cancel: Cancel | None) -> None:
        """Reads the prompts, if they are to be scored, and writes the replies to them, all in the
        same batches; `on_event` gets the events of each and last the reply."""
        prompts, k = self.request.prompts, self.request.best_of
        at_once = max(1, CHOICES_MAX // k)  # each of their replies takes a thread
        for first in range(0, len(prompts), at_once):
            numbers = range(first, min(first + at_once, len(prompts)))
            if self.request.echo and self.request.logprobs is not None:
                self._read(numbers, cancel)
            if self.request.writes:
                self._reply(numbers, on_event, cancel)

    def _read(self, numbers: range, cancel: Cancel | None) -> None:
        request, n_top = self.request, self.request.logprobs or 0

        def read(i: int, stop: Cancel) -> tuple[list[Token], int]:
            prompt, text = request.prompts[numbers[i]], request.texts[numbers[i]]
            return read_prompt(self.engine, prompt, text, n_top, stop)

        for tokens, decoded in in_threads(len(numbers), read, cancel):
            self._prompts.append(tokens)
            self._counts += Counts(query=decoded)

    def _reply(self, numbers: range, on_event: OnReplyEvent, cancel: Cancel | None) -> None:
        request, k = self.request, self.request.best_of
        prompts = [request.prompts[number] for number in numbers]
        first = numbers.start * k

        def handle(i: int, event: Event) -> None:
            on_event(first + i, event)

        generate_each(
            self.engine,
            prompts,
            request.config,
            k,
            method=request.method,
            verbatim=not request.chat,
            on_event=handle,
            cancel=cancel,
        )

    # --- the whole ---

    def whole(self) -> JsonObject:
        """The response, when everything is written."""
        kept = self._best()
        kind = "chat.completion" if self.request.chat else "text_completion"
        return self._object(
            kind, [self._choice(choice) for choice in kept], usage=self.usage(), tgr=self.about()
        )

    def _object(self, kind: str, choices: list[JsonObject], **more: Any) -> JsonObject:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.request.model,
            "choices": choices,
            **more,
        }

    def _best(self) -> list[_Choice]:
        """The n likeliest replies to each prompt, in order."""
        n, of = self.request.n, self.request.best_of
        if n == of:
            return self.choices
        kept = []
        for at in range(0, len(self.choices), of):
            ranked = sorted(self.choices[at : at + of], key=_mean_logprob, reverse=True)[:n]
            for i, choice in enumerate(ranked):
                choice.index = at // of * n + i
            kept += ranked
        return kept

    def _choice(self, choice: _Choice) -> JsonObject:
        text = choice.text["answer"]
        shape: JsonObject = {"index": choice.index, "finish_reason": choice.finish_reason}
        logprobs = self._logprobs(choice)
        if self.request.chat:
            message: JsonObject = {"role": "assistant", "content": text}
            if choice.text["thinking"]:
                message["reasoning_content"] = choice.text["thinking"]
            return shape | {"message": message, "logprobs": logprobs}
        if self.request.echo:
            text = self.request.texts[choice.number] + text
            before = self._prompt_logprobs(choice)
            if before and logprobs:
                logprobs = {k: None if v is None else v + logprobs[k] for k, v in before.items()}
        return shape | {"text": text, "logprobs": logprobs}

    def _logprobs(self, choice: _Choice) -> JsonObject | None:
        """Those of the answer so far that are in no chunk yet."""
        n_top = self.request.logprobs
        if n_top is None:
            return None
        tokens = choice.tokens.ready(len(choice.text["answer"]))
        if self.request.chat:
            return chat_logprobs(self.engine, tokens)
        start = len(self.request.texts[choice.number])
        return legacy_logprobs(self.engine, tokens, start=start, n_top=n_top)

    def _prompt_logprobs(self, choice: _Choice) -> JsonObject | None:
        n_top = self.request.logprobs
        if n_top is None:
            return None
        if choice.number not in self._scored:
            tokens = self._prompts[choice.number]
            self._scored[choice.number] = legacy_logprobs(self.engine, tokens, start=0, n_top=n_top)
        return self._scored[choice.number]

    def usage(self) -> JsonObject:
        """Tokens of the prompts, each counted once, and of all replies. Cached tokens are those of
        a prompt that were decoded for none of its replies."""
        prompt = sum(len(tokens) for tokens in self.request.prompts)
        written = sum(choice.tokens.n_tokens for choice in self.choices)
        thinking = sum(choice.tokens.n_thinking for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": self._n_cached()},
            "completion_tokens_details": {"reasoning_tokens": thinking},
        }

    def _n_cached(self) -> int:
        of, cached = self.request.best_of, 0
        for first in range(0, len(self.choices), of):
            replies = [choice.reply for choice in self.choices[first : first + of]]
            # the query of a reply's first run is the prompt
            cached += min(reply.steps[0].counts.reused if reply else 0 for reply in replies)
        return cached

    def about(self) -> JsonObject:
        """The ``tgr`` part: method, seed, seconds, counts, and the parameters that were ignored."""
        replies = [choice.reply for choice in self.choices if choice.reply]
        counts = sum((reply.counts for reply in replies), self._counts)
        return {
            "method": self.request.method.name,
            "seed": self.request.config.seed,
            "seconds": round(time.monotonic() - self._start, 6),
            "forward_tokens": counts.decoded | {"total": counts.total},
            "reused_tokens": counts.reused,
            "replies": [
                {
                    "seed": reply.seed,
                    "finish": reply.finish,
                    "closed": reply.closed,
                    "chunks": len(reply.steps),
                    "forward_tokens": reply.counts.total,
                    "reused_tokens": reply.counts.reused,
                    "cells": max(step.cells for step in reply.steps),
                }
                for reply in replies
            ],
        } | ({"ignored": list(self.request.ignored)} if self.request.ignored else {})

    # --- the stream ---

    def chunks_of(self, choice: _Choice, event: Event) -> Iterator[JsonObject]:
        """The chunks that an event makes."""
        if isinstance(event, Progress) and self.request.progress and event.stage != "tokens":
            scores = to_json_value(event.candidates.scores) if event.candidates else None
            progress = {"index": choice.index, "chunk": event.chunk, "stage": event.stage}
            yield self.chunk([], tgr={"progress": {**progress, "scores": scores}})
        # with log-probabilities, which come with the step, text waits for it
        if isinstance(event, TextDelta if self.request.logprobs is None else Step):
            yield from self._texts(choice)
        if isinstance(event, Reply):
            yield from self.closing(choice)

    def closing(self, choice: _Choice) -> Iterator[JsonObject]:
        """The rest of a choice and why it ended; the last choice also has the cost of all."""
        yield from self._texts(choice)
        self._unfinished -= 1
        ends = not (self._unfinished or self.request.include_usage)
        shape: JsonObject = {"index": choice.index, "finish_reason": choice.finish_reason}
        shape |= JsonObject(delta={}) if self.request.chat else JsonObject(text="")
        yield self.chunk([shape | {"logprobs": None}], **({"tgr": self.about()} if ends else {}))

    def _texts(self, choice: _Choice) -> Iterator[JsonObject]:
        """Chunks with all text and tokens that are ready."""
        if not choice.opened:
            choice.opened = True
            yield from self._opening(choice)
        shape: JsonObject = {"index": choice.index, "finish_reason": None, "logprobs": None}
        if self.request.chat and (thinking := choice.unsent("thinking")):
            yield self.chunk([shape | {"delta": {"reasoning_content": thinking}}])
        logprobs = self._logprobs(choice)
        text = choice.unsent("answer")
        if text or (logprobs and any(logprobs.values())):
            shape |= {"delta": {"content": text}} if self.request.chat else {"text": text}
            yield self.chunk([shape | {"logprobs": logprobs}])

    def _opening(self, choice: _Choice) -> Iterator[JsonObject]:
        shape: JsonObject = {"index": choice.index, "finish_reason": None, "logprobs": None}
        if self.request.chat:
            yield self.chunk([shape | {"delta": {"role": "assistant", "content": ""}}])
        elif self.request.echo:
            text, logprobs = self.request.texts[choice.number], self._prompt_logprobs(choice)
            yield self.chunk([shape | {"text": text, "logprobs": logprobs}])

    def chunk(self, choices: list[JsonObject], **more: Any) -> JsonObject:
        """A chunk of the stream."""
        kind = "chat.completion.chunk" if self.request.chat else "text_completion"
        usage = {"usage": None} if self.request.include_usage else {}
        return self._object(kind, choices, **usage | more)


def _mean_logprob(choice: _Choice) -> float:
    assert choice.reply is not None
    logprobs = np.concatenate([step.logprobs for step in choice.reply.steps])
    return float(logprobs.mean()) if len(logprobs) else float("-inf")
