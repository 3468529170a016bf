"""Anthropic's format of a message, whole and as a stream of events."""

from __future__ import annotations

import json
from typing import Any

from tgr_local.apis.events import (
    ApiEvent,
    CallArguments,
    CallBegun,
    ChoiceEnded,
    JsonObject,
    NewText,
    Totals,
    Usage,
)
from tgr_local.apis.requests import PreparedRequest
from tgr_local.apis.writing import Response, Translation
from tgr_local.engine import Engine

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    "server_error": "api_error",
    "too_large_error": "request_too_large",
    "service_unavailable_error": "overloaded_error",
    "not_supported_error": "invalid_request_error",
}


class MessageTranslation(Translation):
    """The format of /v1/messages."""

    prefix = "msg_"

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        super().__init__(engine, request)
        self._shows_thinking = bool(request.extra.get("thinking"))
        self._index = -1  # of the block that is open, or was the last
        self._open = ""  # its kind
        self._end: ChoiceEnded | None = None

    def opening(self) -> list[JsonObject]:
        """The start of the message; what was in the cache is not known yet."""
        usage = Usage(sum(map(len, self._request.prompts)), 0, 0, 0)
        message = self._message([]) | {"usage": usage_object(usage)}
        return [{"type": "message_start", "message": message}]

    def parts(self, event: ApiEvent) -> list[JsonObject]:
        if isinstance(event, NewText):
            return self._text(event) if event.text else []
        if isinstance(event, CallBegun):
            block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            return [*self._closed(), self._opened(block)]
        if isinstance(event, CallArguments):
            return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
        if isinstance(event, ChoiceEnded):
            self._end = event
            return self._closed()
        if isinstance(event, Totals):
            usage = {"usage": usage_object(event.usage), "tgr": event.about}
            reason = _reason(self._end)
            return [{"type": "message_delta", "delta": reason, **usage}, {"type": "message_stop"}]
        return []

    def _text(self, event: NewText) -> list[JsonObject]:
        kind = "thinking" if event.kind == "thinking" else "text"
        if kind == "thinking" and not self._shows_thinking:
            return []
        events = []
        if self._open != kind:
            block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            events = [*self._closed(), self._opened(block)]
        return [*events, self._delta({"type": f"{kind}_delta", kind: event.text})]

    def _opened(self, block: JsonObject) -> JsonObject:
        self._index, self._open = self._index + 1, block["type"]
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _closed(self) -> list[JsonObject]:
        """The end of the block that is open."""
        if not self._open:
            return []
        # nothing is signed here, but the official event order has a signature
        is_thinking = self._open == "thinking"
        signed = [self._delta({"type": "signature_delta", "signature": ""})] if is_thinking else []
        self._open = ""
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    def failed(self, error: JsonObject) -> list[JsonObject]:
        return [error_object(error)]

    def whole(self, response: Response) -> JsonObject:
        choice = response.best()[0]
        blocks: list[JsonObject] = []
        if self._shows_thinking and (thinking := choice.text("thinking")):
            blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if text := choice.text("answer"):
            blocks.append({"type": "text", "text": text})
        for call in choice.calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name}
            blocks.append(block | {"input": _input(call.arguments)})
        usage = {"usage": usage_object(response.usage()), "tgr": response.about()}
        return self._message(blocks) | _reason(response.end(choice)) | usage

    def _message(self, blocks: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": blocks,
            "stop_reason": None,
            "stop_sequence": None,
        }


def usage_object(usage: Usage) -> JsonObject:
    """``usage`` of a message: the three kinds of input tokens exclude each other."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def error_object(error: JsonObject) -> JsonObject:
    """An error in OpenAI's format as Anthropic has it."""
    kind = _ERRORS.get(error["type"], error["type"])
    return {"type": "error", "error": {"type": kind, "message": error["message"]}}


def _reason(end: ChoiceEnded | None) -> JsonObject:
    if end and end.finish == "stop" and end.stop_text:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_text}
    return {"stop_reason": _REASONS[end.finish] if end else None, "stop_sequence": None}


def _input(arguments: str) -> Any:
    """The arguments of a call as an object; those that a limit has cut off have none."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
