"""OpenAI's format of a response, whole and as a stream of events."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from tgr_local.apis.events import (
    ApiEvent,
    CallArguments,
    CallBegun,
    ChoiceEnded,
    Finish,
    JsonObject,
    NewText,
    Totals,
    Usage,
)
from tgr_local.apis.logprobs import chat_logprobs
from tgr_local.apis.requests import PreparedRequest
from tgr_local.apis.response_store import ResponseStore
from tgr_local.apis.writing import Response, Translation
from tgr_local.engine import Engine

_PARTS: dict[str, JsonObject] = {
    "message": {"type": "output_text", "annotations": [], "logprobs": [], "text": ""},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
"""Part of an item of each type; the events of its text have the part's name."""


@dataclass
class _OpenItem:
    """The item under way."""

    item: JsonObject
    texts: list[str] = field(default_factory=list)
    logprobs: list[JsonObject] = field(default_factory=list)


class ResponseTranslation(Translation):
    """The format of /v1/responses. What it writes is kept in `store`, if the request wants it."""

    prefix = "resp_"

    def __init__(self, engine: Engine, request: PreparedRequest, store: ResponseStore) -> None:
        super().__init__(engine, request)
        self._store = store
        self._n_events = 0
        self._output: list[JsonObject] = []
        self._open: _OpenItem | None = None
        self._finish: Finish = "stop"

    # --- the stream ---

    def opening(self) -> list[JsonObject]:
        """The response without its output."""
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def parts(self, event: ApiEvent) -> list[JsonObject]:
        if isinstance(event, NewText):
            return self._text(event)
        if isinstance(event, CallBegun):
            item = _item("function_call", "fc", call_id=event.id, name=event.name, arguments="")
            return [*self._closed(), *self._opened(item)]
        if isinstance(event, CallArguments) and self._open:
            self._open.texts.append(event.text)
            kind = "response.function_call_arguments.delta"
            return [self._at_open(kind, delta=event.text)]
        if isinstance(event, ChoiceEnded):
            self._finish = event.finish
            return self._closed("incomplete" if event.finish == "length" else "completed")
        if isinstance(event, Totals):
            response = self._ended(event.usage, event.about)
            return [self._event(f"response.{response['status']}", response=response)]
        return []

    def failed(self, error: JsonObject) -> list[JsonObject]:
        response = self._response("failed")
        code = error["code"] or error["type"]
        response["error"] = {"code": code, "message": error["message"]}
        return [self._event("response.failed", response=response)]

    def _text(self, event: NewText) -> list[JsonObject]:
        kind = "reasoning" if event.kind == "thinking" else "message"
        events: list[JsonObject] = []
        if self._open is None or self._open.item["type"] != kind:
            if kind == "reasoning":
                item = _item(kind, "rs", summary=[], content=[])
            else:
                item = _item(kind, "msg", role="assistant", content=[])
            events = [*self._closed(), *self._opened(item)]
            events.append(self._at_part("response.content_part.added", part=dict(_PARTS[kind])))
        assert self._open is not None
        self._open.texts.append(event.text)
        more = {}
        if kind == "message":
            more = {"logprobs": self._logprobs(event.tokens)}
            self._open.logprobs += more["logprobs"]
        delta = f"response.{_PARTS[kind]['type']}.delta"
        return [*events, self._at_part(delta, delta=event.text, **more)]

    def _opened(self, item: JsonObject) -> list[JsonObject]:
        self._open = _OpenItem(item)
        return [self._at_item("response.output_item.added", item=item)]

    def _closed(self, status: str = "completed") -> list[JsonObject]:
        """The end of the item under way."""
        if (opened := self._open) is None:
            return []
        text, kind = "".join(opened.texts), opened.item["type"]
        events = []
        if kind == "function_call":
            item = opened.item | {"arguments": text, "status": status}
            done = {"arguments": text, "name": item["name"]}
            events.append(self._at_open("response.function_call_arguments.done", **done))
        else:
            more = {"text": text} | ({"logprobs": opened.logprobs} if kind == "message" else {})
            part = _PARTS[kind] | more
            item = opened.item | {"content": [part], "status": status}
            events.append(self._at_part(f"response.{part['type']}.done", **more))
            events.append(self._at_part("response.content_part.done", part=part))
        events.append(self._at_item("response.output_item.done", item=item))
        self._output.append(item)
        self._open = None
        return events

    def _event(self, kind: str, **more: Any) -> JsonObject:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **more}

    def _at_item(self, kind: str, **more: Any) -> JsonObject:
        return self._event(kind, output_index=len(self._output), **more)

    def _at_open(self, kind: str, **more: Any) -> JsonObject:
        assert self._open is not None
        return self._at_item(kind, item_id=self._open.item["id"], **more)

    def _at_part(self, kind: str, **more: Any) -> JsonObject:
        return self._at_open(kind, content_index=0, **more)

    # --- the whole ---

    def whole(self, response: Response) -> JsonObject:
        """The response, when everything is written: what a stream of it ends with."""
        choice = response.best()[0]
        events: list[ApiEvent] = []
        if thinking := choice.text("thinking"):
            events.append(NewText(0, "thinking", thinking))
        if text := choice.text("answer"):
            events.append(NewText(0, "answer", text, response.answer_tokens(choice)))
        for number, call in enumerate(choice.calls):
            events.append(CallBegun(0, number, call.id, call.name))
            events.append(CallArguments(0, number, call.arguments))
        for event in (*events, response.end(choice)):
            self.parts(event)
        return self._ended(response.usage(), response.about())

    def _ended(self, usage: Usage, about: JsonObject) -> JsonObject:
        """The whole response, which is kept if that is wanted."""
        is_cut = self._finish == "length"
        response = self._response("incomplete" if is_cut else "completed")
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        response["completed_at"] = int(time.time())
        response["usage"] = _usage_object(usage)
        response["tgr"] = about
        if self._request.extra["stores"]:
            self._store.keep(response, [*self._request.extra["items"], *self._output])
        return response

    def _response(self, status: str) -> JsonObject:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": list(self._output),
            "usage": None,
            **self._request.extra["echo"],
        }

    def _logprobs(self, tokens: Any) -> list[JsonObject]:
        if tokens is None:
            return []
        logprobs: list[JsonObject] = chat_logprobs(self._engine, tokens)["content"]
        return logprobs


def failed_event(error: JsonObject) -> JsonObject:
    """The only event of a response that fails before it begins."""
    failure = {"code": error["code"] or error["type"], "message": error["message"]}
    response = {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "failed",
        "error": failure,
        "output": [],
    }
    return {"type": "response.failed", "sequence_number": 0, "response": response}


def _usage_object(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def _item(kind: str, prefix: str, **more: Any) -> JsonObject:
    """An item that is under way."""
    name = f"{prefix}_{uuid.uuid4().hex}"
    return {"id": name, "type": kind, **more, "status": "in_progress"}
