"""Fill-in-the-middle: what stands before and after a gap becomes a prompt for what fills it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgr_local.engine import Engine
from tgr_local.generation import tokens_within
from tgr_local.openai import requests
from tgr_local.server.problems import Problem

# the texts of the prefix, suffix and middle tokens, family by family
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder, Refact
    (
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
    ),  # DeepSeek, which has them in this order
    ("<PRE>", "<SUF>", "<MID>"),  # CodeLlama
)
_METADATA = tuple(f"tokenizer.ggml.fim_{part}_token_id" for part in ("pre", "suf", "mid"))
_OWN = ("input_prefix", "input_suffix", "input_extra", "prompt", "n_predict")


def marks(engine: Engine) -> tuple[int, int, int]:
    """The tokens that come before the prefix, the suffix and the middle. Raises Problem for a
    model without them."""
    named = [engine.metadata.get(key, "") for key in _METADATA]
    if all(text.isdecimal() and int(text) < engine.n_vocab for text in named):
        pre, suf, mid = map(int, named)
        return pre, suf, mid
    for family in _MARKS:
        tokens = [engine.tokenize(text) for text in family]
        if all(len(one) == 1 for one in tokens):
            (pre,), (suf,), (mid,) = tokens
            return pre, suf, mid
    raise Problem(
        400,
        "the model has no fill-in-the-middle tokens; use /v1/completions, or load a code model",
    )


def completion_request(engine: Engine, body: Mapping[str, Any], **options: Any) -> requests.Request:
    """What `requests.completion_request` makes of a body in llama.cpp's words. Raises Problem."""
    return requests.completion_request(engine, completion_body(engine, body), **options)


def completion_body(engine: Engine, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a completion request that fills the gap. Raises Problem."""
    pre, suf, mid = marks(engine)
    before = _extra(body.get("input_extra", [])) + _text(body, "input_prefix")
    after, begun = _text(body, "input_suffix"), _text(body, "prompt")

    def plain(text: str) -> list[int]:
        return tokens_within(engine, text, parse_special=False)

    rest = {name: value for name, value in body.items() if name not in _OWN}
    prompt = [pre, *plain(before), suf, *plain(after), mid, *plain(begun)]
    if engine.metadata.get("tokenizer.ggml.add_bos_token") == "true" and engine.bos is not None:
        prompt.insert(0, engine.bos)
    if "n_predict" in body and body["n_predict"] != -1:
        rest.setdefault("max_tokens", body["n_predict"])
    return rest | {"prompt": prompt}


def part(response: Mapping[str, Any]) -> dict[str, Any]:
    """A completion, or a chunk of one, in the words that llama.cpp's editors read."""
    choice = (response.get("choices") or [{}])[0]
    finish = choice.get("finish_reason")
    usage = response.get("usage") or {}
    ends: dict[str, Any] = {"stop_type": "limit" if finish == "length" else "eos"} if finish else {}
    if usage:
        ends["tokens_evaluated"] = usage["prompt_tokens"]
        ends["tokens_predicted"] = usage["completion_tokens"]
    return {
        "content": choice.get("text", ""),
        "stop": finish is not None,
        "model": response.get("model"),
        **ends,
    }


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise Problem(400, f"{name} must be a text", param=name)
    return value


def _extra(files: Any) -> str:
    """Other files that the model may look at, before the one with the gap."""
    if not isinstance(files, list) or not all(isinstance(one, dict) for one in files):
        raise Problem(
            400, "input_extra must be a list of objects with text and filename", param="input_extra"
        )
    return "".join(f"{_text(one, 'text')}\n" for one in files)
