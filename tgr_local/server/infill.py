"""Fill-in-the-middle: a prompt made of the text before and after a gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgr_local.engine import Engine
from tgr_local.generation import tokens_within
from tgr_local.openai.answer import Answer
from tgr_local.openai.bodies import ExtraFile, InfillRequest
from tgr_local.openai.events import (
    ApiEvent,
    ChoiceEnded,
    JsonObject,
    TextPart,
    Totals,
    Usage,
)
from tgr_local.openai.requests import PreparedRequest, text_request
from tgr_local.openai.validation import RequestError

# the texts of the prefix, suffix and middle tokens, family by family
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder, Refact
    (
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
    ),  # DeepSeek, in this order
    ("<PRE>", "<SUF>", "<MID>"),  # CodeLlama
)
_REPOSITORY_MARKS = (("<|repo_name|>", "<|file_sep|>"),)  # Qwen
_PROJECT, _THIS_FILE, _NO_NAME = "myproject", "filename", "tmp"  # as llama.cpp has them


def infill_request(
    engine: Engine, body: Mapping[str, Any] | InfillRequest, **options: Any
) -> PreparedRequest:
    """The body of an infill request, checked, as `completion_request` does. Raises RequestError."""
    body = InfillRequest.parse(body)
    return text_request(engine, body, [query_tokens(engine, body)], **options)


def query_tokens(engine: Engine, body: InfillRequest) -> list[int]:
    """The tokens of the prompt. Raises RequestError for a model without such tokens."""
    marks = _marks(engine, ("pre", "suf", "mid"), _MARKS)
    if marks is None:
        raise RequestError(
            "the model has no fill-in-the-middle tokens; use /v1/completions, or load a code model"
        )
    pre, suf, mid = marks
    first, before = _extra(engine, body.input_extra or [])
    prompt = [
        *first,
        *[pre, *_plain(engine, before + (body.input_prefix or ""))],
        *[suf, *_plain(engine, body.input_suffix or "")],
        *[mid, *_plain(engine, body.prompt or "")],
    ]
    if engine.metadata.get("tokenizer.ggml.add_bos_token") == "true" and engine.bos is not None:
        prompt.insert(0, engine.bos)
    return prompt


class InfillTranslation:
    """llama.cpp's format of a completion."""

    def __init__(self, engine: Engine, request: PreparedRequest) -> None:
        self._model = request.model
        self._last: JsonObject = {}  # the end of the last choice, which waits for the totals

    def opening(self) -> list[JsonObject]:
        """Nothing comes before the first event."""
        return []

    def parts(self, event: ApiEvent) -> list[JsonObject]:
        """What a stream sends for an event."""
        if isinstance(event, TextPart) and event.kind != "thinking":
            return [{"content": event.text, "stop": False, "model": self._model}]
        if isinstance(event, ChoiceEnded):
            self._last = self._end("", event.finish)
        return [self._last | _costs(event.usage, event.about)] if isinstance(event, Totals) else []

    def whole(self, answer: Answer) -> JsonObject:
        """The response, when everything is written."""
        choice = answer.best()[0]
        end = self._end(choice.text("answer"), choice.finish)
        return end | _costs(answer.usage(), answer.about())

    def _end(self, content: str, finish: str) -> JsonObject:
        stop_type = "limit" if finish == "length" else "eos"
        return {"content": content, "stop": True, "model": self._model, "stop_type": stop_type}


def _costs(usage: Usage, about: JsonObject) -> JsonObject:
    return {
        "tokens_evaluated": usage.prompt,
        "tokens_cached": usage.cached,
        "tokens_predicted": usage.completion,
        "tgr": about,
    }


def _extra(engine: Engine, files: list[ExtraFile]) -> tuple[list[int], str]:
    """Other files, as tokens that come before all, or as text before the prefix."""
    marks = _marks(engine, ("rep", "sep"), _REPOSITORY_MARKS)
    if not files or marks is None:
        return [], "".join(f"{file.get('text', '')}\n" for file in files)
    repository, separator = marks
    tokens = [repository, *_plain(engine, f"{_PROJECT}\n")]
    for file in files:
        text = f"{file.get('filename', _NO_NAME)}\n{file.get('text', '')}"
        tokens += [separator, *_plain(engine, text)]
    return [*tokens, separator, *_plain(engine, f"{_THIS_FILE}\n")], ""


def _marks(
    engine: Engine, names: tuple[str, ...], families: tuple[tuple[str, ...], ...]
) -> list[int] | None:
    """The tokens of such names in the file's metadata, or of the first family that the vocabulary
    has; None = there are none."""
    named = [engine.metadata.get(f"tokenizer.ggml.fim_{name}_token_id", "") for name in names]
    if all(text.isdecimal() and int(text) < engine.n_vocab for text in named):
        return [int(text) for text in named]
    for family in families:
        tokens = [engine.tokenize(text) for text in family]
        if all(len(one) == 1 for one in tokens):
            return [token for (token,) in tokens]
    return None


def _plain(engine: Engine, text: str) -> list[int]:
    return tokens_within(engine, text, parse_special=False)
