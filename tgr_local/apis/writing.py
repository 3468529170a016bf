"""A response while it is written: a `PreparedRequest` in, events out, and at the end its parts.

`write` does the work. The formats of the APIs are translations: of the events for a stream, of the
`Response` for a whole response.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgr_local.apis.bodies import CHOICES_MAX
from tgr_local.apis.calls import ReplyReader
from tgr_local.apis.events import (
    ApiEvent,
    CallArguments,
    CallBegun,
    ChoiceEnded,
    Finish,
    JsonObject,
    Kind,
    NewText,
    OnApiEvent,
    Searched,
    Totals,
    Usage,
)
from tgr_local.apis.logprobs import Token, TokenText, read_prompt
from tgr_local.apis.requests import PreparedRequest
from tgr_local.engine import Cancel, Engine, Task
from tgr_local.generation import (
    Counts,
    Event,
    Progress,
    Reply,
    Step,
    TextDelta,
    in_threads,
    write_each,
)

_TOLD_SECONDS = 0.25  # between two reports of the tokens so far
OnReplyEvent = Callable[[int, Event], None]
"""Called with the number of a reply and an event of it."""


class Translation(ABC):
    """The format of one API, for one response. It is called by one thread at a time."""

    prefix = ""
    """Prefix of the response's id; empty where the API has none."""

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        self._engine, self._request = engine, request
        self._created, self._start = int(time.time()), time.monotonic()
        self.id = f"{self.prefix}{uuid.uuid4().hex}" if self.prefix else ""
        """Response's id as clients see it; empty where the API has none."""
        self._unfinished = request.n * len(request.prompts)
        self._last: JsonObject = {}  # the end of the last choice, where that waits for the totals

    def opening(self) -> list[JsonObject]:
        """Objects that a stream sends before anything is written."""
        return []

    @abstractmethod
    def parts(self, event: ApiEvent) -> list[JsonObject]:
        """Objects that a stream sends for an event; often none."""

    def failed(self, error: JsonObject) -> list[JsonObject]:
        """Objects that a stream that fails sends at its end; `error` has OpenAI's format."""
        return [{"error": error}]

    @abstractmethod
    def whole(self, response: Response) -> Any:
        """The response, when everything is written."""


def write(
    engine: Engine,
    request: PreparedRequest,
    on_event: OnApiEvent | None = None,
    *,
    on_reply_event: OnReplyEvent | None = None,
    cancel: Cancel | None = None,
) -> Response:
    """Writes all replies of a request. `on_event` gets the events of the response, one at a time,
    in the thread that made each, which goes on when it returns; with log-probabilities, text comes
    with the step that it belongs to. ``on_reply_event(i, event)`` gets those of reply i, for
    several replies from several threads; replies are numbered on from prompt to prompt.

    Raises CapacityError for a prompt that cannot fit, CancelledError when `cancel` is set, and
    ValueError for options that do not go together.
    """
    response = Response(engine, request, cancel)
    lock = threading.Lock()

    def handle(i: int, event: Event) -> None:
        choice = response.choices[i]
        if on_event is None:
            choice.handle(event)
        else:
            with lock:  # several replies share the response
                for api_event in response.report(choice, event):
                    on_event(api_event)
        if on_reply_event:
            on_reply_event(i, event)

    response.write(handle, cancel)
    if on_event:
        for choice in () if request.writes else response.choices:
            for api_event in response.ended(choice):
                on_event(api_event)
        on_event(Totals(response.usage(), response.about()))
    return response


@dataclass
class Call:
    """A call of a tool."""

    id: str
    name: str
    arguments: str = ""
    """The text of a JSON object."""


class Choice:
    """One reply while it is written."""

    def __init__(
        self,
        engine: Engine,
        request: PreparedRequest,
        number: int,
        index: int,
        cancel: Cancel | None = None,
    ) -> None:
        self.index, self.number = index, number
        self.reply: Reply | None = None
        self.calls: list[Call] = []
        self.n_chars = 0
        """Characters of the answer so far."""
        self.opened = False
        """Whether anything of it was reported."""
        self.waiting: list[ApiEvent] = []
        """Events to report with the log-probabilities of the step under way."""
        self.tokens = TokenText(
            engine,
            request.prompts[number],
            request.config.stop,
            verbatim=not request.chat,
            counts_only=request.logprobs is None,
            continued=request.continued,
            shown=request.shown,
        )
        self._n_tokens, self._told = 0, 0.0
        self._texts: dict[Kind, list[str]] = {"answer": [], "thinking": []}
        form = request.form
        self._reader = (
            ReplyReader(form, index, streams=request.stream, cancel=cancel) if form else None
        )

    def handle(self, event: Event) -> list[ApiEvent]:
        """Takes an event of the reply, and returns the text and the calls that it adds."""
        if isinstance(event, TextDelta):
            if self._reader:
                return self._added(self._reader.feed(event.text))
            kind: Kind = "thinking" if event.kind == "thinking" else "answer"
            return self._added([NewText(self.index, kind, event.text)])
        if isinstance(event, Step):
            self.tokens.feed(event)
        elif isinstance(event, Progress) and event.stage == "answer due":
            self.tokens.close_thinking()
        elif isinstance(event, Reply):
            self.reply = event
            if self._reader:
                return self._added(self._reader.end(complete=event.finish == "stop"))
        return []

    def counted(self, n_tokens: int) -> int:
        """The tokens so far with these, where it is time to report them, else 0."""
        self._n_tokens += n_tokens
        now = time.monotonic()
        if now - self._told < _TOLD_SECONDS:
            return 0
        self._told = now
        return self._n_tokens

    def _added(self, parts: list[ApiEvent]) -> list[ApiEvent]:
        for part in parts:
            if isinstance(part, NewText):
                self._texts[part.kind].append(part.text)
                self.n_chars += len(part.text) if part.kind == "answer" else 0
            elif isinstance(part, CallBegun):
                self.calls.append(Call(part.id, part.name))
            elif isinstance(part, CallArguments):
                self.calls[part.call].arguments += part.text
        return parts

    def text(self, kind: Kind) -> str:
        """The answer or the thinking so far."""
        return "".join(self._texts[kind])

    @property
    def finish(self) -> Finish:
        """Why it ended."""
        if self.reply is None or self.reply.finish != "stop":
            return "length"
        return "tool_calls" if self.calls else "stop"


class Response:
    """A response: its replies and their cost."""

    def __init__(
        self, engine: Engine, request: PreparedRequest, cancel: Cancel | None = None
    ) -> None:
        self.engine, self.request = engine, request
        self.choices = [
            Choice(engine, request, number, number * request.n + i, cancel)
            for number in range(len(request.prompts))
            for i in range(request.best_of)
        ]
        """`best_of` for every prompt."""
        self._prompts: list[list[Token]] = []
        self._counts = Counts()
        self._start = time.monotonic()

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
            elif self.request.reads:
                for number in numbers:
                    self._keep(self.request.prompts[number], cancel)

    def _read(self, numbers: range, cancel: Cancel | None) -> None:
        request, n_top = self.request, self.request.logprobs or 0

        def read(i: int, stop: Cancel) -> tuple[list[Token], int]:
            prompt, text = request.prompts[numbers[i]], request.texts[numbers[i]]
            return read_prompt(self.engine, prompt, text, n_top, stop)

        for tokens, decoded in in_threads(len(numbers), read, cancel):
            self._prompts.append(tokens)
            self._counts += Counts(query=decoded)

    def _keep(self, prompt: tuple[int, ...], cancel: Cancel | None) -> None:
        """Reads a prompt, so that requests that begin with it need not."""
        norms = self.request.method.steers and self.request.config.calibration == "residual"
        tokens = prompt[:-1] or prompt  # the last one begins the reply
        with self.engine.session(
            len(tokens), 1, prompt=tokens, norms=norms, cancel=cancel
        ) as session:
            sequence = session.sequence()
            task = Task(sequence, tokens, norms=norms, reuse=True)
            (read,) = session.run([task], cancel=cancel)
            session.remember(sequence)
        self._counts += Counts(query=read.n_decoded, reused=read.n_reused)

    def _reply(self, numbers: range, on_event: OnReplyEvent, cancel: Cancel | None) -> None:
        k = self.request.best_of
        first = numbers.start * k

        def handle(i: int, event: Event) -> None:
            on_event(first + i, event)

        requests = [self.request.of(number) for number in numbers]
        write_each(self.engine, requests, k, on_event=handle, cancel=cancel)

    # --- events ---

    def report(self, choice: Choice, event: Event) -> list[ApiEvent]:
        """Takes an event of a reply, and returns what a stream reports of it."""
        parts = choice.handle(event)
        if isinstance(event, Progress):
            if event.stage != "tokens":
                return [Searched(choice.index, event)]
            n_tokens = choice.counted(len(event.tokens)) if self.request.progress else 0
            return [Searched(choice.index, event, n_tokens)] if n_tokens else []
        if isinstance(event, Reply):
            return [*self._opening(choice), *parts, *self.ended(choice)]
        if self.request.logprobs is not None:  # they come with the step, and text waits for it
            choice.waiting += parts
            parts = self._flushed(choice) if isinstance(event, Step) else []
        if parts and not choice.opened:
            parts = self._opening(choice) + parts
        if isinstance(event, Step) and self.request.progress:
            parts = [*parts, Searched(choice.index, self._written(event))]
        return parts

    def _written(self, step: Step) -> Progress:
        """Event of a complete chunk, with its tokens."""
        tokens = step.tokens.tolist()
        text = self.engine.detokenize(tokens, shown=self.request.shown)
        return Progress(step.index, "written", tokens=tuple(tokens), text=text)

    def ended(self, choice: Choice) -> list[ApiEvent]:
        """The rest of a choice, and why it ended."""
        parts = self._opening(choice)
        if self.request.logprobs is not None:
            parts += self._flushed(choice)
        return [*parts, self.end(choice)]

    def end(self, choice: Choice) -> ChoiceEnded:
        """Why a choice ended."""
        stop = choice.reply.stop_text if choice.reply else ""
        is_own = stop not in self.request.format_stops  # which the client has not asked for
        return ChoiceEnded(choice.index, choice.finish, choice.reply, stop if is_own else "")

    def _opening(self, choice: Choice) -> list[ApiEvent]:
        if choice.opened:
            return []
        choice.opened = True
        if not self.request.echo:
            return []
        text, tokens = self.request.texts[choice.number], self.prompt_tokens(choice)
        return [NewText(choice.index, "prompt", text, tokens)]

    def _flushed(self, choice: Choice) -> list[ApiEvent]:
        """All that waits, the text of a kind as one part."""
        waiting, choice.waiting = choice.waiting, []
        texts = [part for part in waiting if isinstance(part, NewText)]
        thinking = "".join(part.text for part in texts if part.kind == "thinking")
        answer = "".join(part.text for part in texts if part.kind == "answer")
        tokens = choice.tokens.ready(choice.n_chars)
        parts: list[ApiEvent] = [NewText(choice.index, "thinking", thinking)] if thinking else []
        if answer or tokens:
            parts.append(NewText(choice.index, "answer", answer, tokens))
        return parts + [part for part in waiting if not isinstance(part, NewText)]

    # --- the whole ---

    def best(self) -> list[Choice]:
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

    def answer_tokens(self, choice: Choice) -> list[Token] | None:
        """The tokens of a whole answer; None where no log-probabilities are asked for."""
        return None if self.request.logprobs is None else choice.tokens.ready(choice.n_chars)

    def prompt_tokens(self, choice: Choice) -> list[Token] | None:
        """The tokens of the prompt that `echo` repeats; None as for `answer_tokens`."""
        return None if self.request.logprobs is None else self._prompts[choice.number]

    def usage(self) -> Usage:
        """The tokens of all prompts and replies."""
        return Usage(
            prompt=sum(len(tokens) for tokens in self.request.prompts),
            completion=sum(choice.tokens.n_tokens for choice in self.choices),
            cached=self._n_cached(),
            reasoning=sum(choice.tokens.n_thinking for choice in self.choices),
        )

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
            "refused_tokens": counts.refused,
            "replies": [
                {
                    "seed": reply.seed,
                    "finish": reply.finish,
                    "limit": reply.limit,
                    "closed": reply.closed,
                    "closed_by": reply.closed_by,
                    "chunks": len(reply.steps),
                    "forward_tokens": reply.counts.total,
                    "reused_tokens": reply.counts.reused,
                    "cells": max(step.cells for step in reply.steps),
                    **({"figures": reply.figures} if reply.figures else {}),
                    **({"note": reply.note} if reply.note else {}),
                }
                for reply in replies
            ],
        } | ({"ignored": list(self.request.ignored)} if self.request.ignored else {})


def _mean_logprob(choice: Choice) -> float:
    assert choice.reply is not None
    logprobs = np.concatenate([step.logprobs for step in choice.reply.steps])
    return float(logprobs.mean()) if len(logprobs) else float("-inf")
