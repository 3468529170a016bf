"""llama.cpp's own API: /completion and /infill, which share the format of their responses."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tgr_local.apis.bodies import (
    PROMPTS_MAX,
    SAMPLERS,
    SAMPLING,
    InfillRequest,
    NativeCompletionRequest,
    NativeRequest,
)
from tgr_local.apis.events import ApiEvent, ChoiceEnded, JsonObject, NewText, Searched, Totals
from tgr_local.apis.infill import fill_in_tokens
from tgr_local.apis.inputs import given_prompts
from tgr_local.apis.logprobs import chat_logprobs
from tgr_local.apis.requests import PreparedRequest, text_request
from tgr_local.apis.timings import prompt_progress, timings
from tgr_local.apis.validation import RequestError
from tgr_local.apis.writing import Response, Translation
from tgr_local.engine import Engine
from tgr_local.generation import tokens_within

_PARTS_MOST = 1024  # texts between the token ids of a prompt


def native_request(
    engine: Engine, body: Mapping[str, Any] | NativeCompletionRequest, **options: Any
) -> PreparedRequest:
    """The body of a /completion request, checked, as `completion_request` does; without
    ``n_predict`` it writes as many tokens as the config allows. Raises RequestError."""
    body = NativeCompletionRequest.parse(body)
    given: Any = body.prompt
    if isinstance(given, list) and any(isinstance(token, int) for token in given):
        given = [given]
    if isinstance(given, list):
        if len(given) > PROMPTS_MAX:
            raise RequestError(
                f"prompt holds {len(given)} prompts, but may hold {PROMPTS_MAX}; leave some out",
                "prompt",
            )
        given = [_tokens(engine, text) if isinstance(text, list) else text for text in given]
    prompts = given_prompts(engine, given)
    return _request(engine, body, prompts, default_limit=None, **options)


def infill_request(
    engine: Engine, body: Mapping[str, Any] | InfillRequest, **options: Any
) -> PreparedRequest:
    """The body of an /infill request, checked, as `completion_request` does. Raises RequestError
    for a model without tokens for it."""
    body = InfillRequest.parse(body)
    prompt = fill_in_tokens(
        engine,
        (body.input_prefix or "") + (body.prompt or ""),
        body.input_suffix or "",
        files=body.input_extra or (),
    )
    return _request(engine, body, [prompt], **options)


def _tokens(engine: Engine, parts: list[Any]) -> list[int]:
    """Texts and token ids in turn, as token ids."""
    tokens: list[int] = []
    if sum(isinstance(part, str) for part in parts) > _PARTS_MOST:
        raise RequestError(
            f"prompt mixes ids with more than {_PARTS_MOST} texts; join some of them", "prompt"
        )
    for part in parts:
        if not isinstance(part, int | str):
            raise RequestError("prompt holds a list within a mixed prompt; flatten it", "prompt")
        is_first = not tokens
        tokens += (
            [part] if isinstance(part, int) else tokens_within(engine, part, add_special=is_first)
        )
    return tokens


def _request(
    engine: Engine, body: NativeRequest, prompts: Sequence[str | list[int]], **options: Any
) -> PreparedRequest:
    if body.n_probs:
        body = body.model_copy(update={"logprobs": body.n_probs})
    extra = {"fields": body.response_fields or [], "tokens": bool(body.return_tokens)}
    request = text_request(engine, body, prompts, **options)
    return dataclasses.replace(request, extra=extra, reads=not request.writes)


class NativeTranslation(Translation):
    """llama.cpp's format of a completion."""

    def parts(self, event: ApiEvent) -> list[JsonObject]:
        if isinstance(event, NewText):
            part = {"index": event.index, "content": event.text, "stop": False}
            return [part | self._about(event.index) | self._probabilities(event.tokens)]
        if isinstance(event, ChoiceEnded):
            self._unfinished -= 1
            self._last = self._end(event, "")
            return [self._last] if self._unfinished else []
        if isinstance(event, Searched):
            return [self._reading(event)] if self._request.reports_reading(event.progress) else []
        return [self._last | {"tgr": event.about}] if isinstance(event, Totals) else []

    def _reading(self, event: Searched) -> JsonObject:
        seconds = time.monotonic() - self._start
        part = {"index": event.index, "content": "", "stop": False}
        progress = prompt_progress(event.progress, seconds)
        return part | self._about(event.index) | {"prompt_progress": progress}

    def whole(self, response: Response) -> Any:
        """The response, when everything is written; a list for several choices."""
        ends = []
        for choice in response.best():
            text = choice.text("answer")
            if self._request.echo:
                text = self._request.texts[choice.number] + text
            end = self._end(response.end(choice), text)
            end |= self._probabilities(response.answer_tokens(choice))
            if self._request.extra["tokens"] and choice.reply:
                end["tokens"] = choice.reply.tokens
            ends.append(self._wanted(end | {"tgr": response.about()}))
        return ends[0] if len(ends) == 1 else ends

    def _wanted(self, end: JsonObject) -> JsonObject:
        """Only what the client wants: each part by its path."""
        if not (paths := self._request.extra["fields"]):
            return end
        wanted: JsonObject = {}
        for path in paths:
            value: Any = end
            for key in path.split("/"):
                value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
            if value is not _ABSENT:
                wanted[path] = value
        return wanted | ({"tgr": end["tgr"]} if self._request.ignored else {})

    def _about(self, index: int) -> JsonObject:
        prompt = self._request.prompts[index // self._request.n]
        return {
            "model": self._request.model,
            "tokens": [],
            "id_slot": -1,
            "tokens_evaluated": len(prompt),
        }

    def _probabilities(self, tokens: Any) -> JsonObject:
        if tokens is None:
            return {}
        scored = [token for token in tokens if token.logprob is not None]
        return {"completion_probabilities": chat_logprobs(self._engine, scored)["content"]}

    def _end(self, event: ChoiceEnded, content: str) -> JsonObject:
        """The last part of a choice."""
        reply, number = event.reply, event.index // self._request.n
        times = timings(self._engine, reply, len(self._request.prompts[number]))
        stop_type = "word" if event.stop_text else "limit" if event.finish == "length" else "eos"
        return {
            "index": event.index,
            "content": content,
            "stop": True,
            **self._about(event.index),
            "tokens_predicted": times["predicted_n"],
            "tokens_cached": times["cache_n"],
            "generation_settings": self._settings(),
            "prompt": self._request.texts[number],
            "has_new_line": b"\n" in self._engine.detokenize(reply.tokens if reply else []),
            "truncated": False,
            "stop_type": stop_type,
            "stopping_word": event.stop_text,
            "timings": times,
        }

    def _settings(self) -> JsonObject:
        """The settings that have an effect, in llama.cpp's words."""
        config = self._request.config
        return {
            **{name: getattr(config, name) for name in ("seed", *SAMPLING, *SAMPLERS)},
            "dry_sequence_breakers": list(config.dry_sequence_breakers),
            "stop": list(config.stop),
            "max_tokens": config.token_limit,
            "n_predict": config.token_limit,
            "stream": self._request.stream,
            "logit_bias": [{"token": t, "bias": b} for t, b in self._request.logit_bias],
            "n_probs": self._request.logprobs or 0,
            "grammar": config.grammar,
        }


_ABSENT = object()
