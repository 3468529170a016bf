"""Text to tokens and back, with llama.cpp's parameters and with vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tgr_local.apis.inputs import text_of
from tgr_local.apis.search_options import optional
from tgr_local.apis.validation import RequestBody, RequestError, shown
from tgr_local.engine import Engine
from tgr_local.server.wire import encoded

_TEXT_MOST = 1 << 20  # characters of a text to tokenize, which takes a second at most
_TOKENS_MOST = 1 << 18  # tokens to turn into text


class TokenizeRequest(RequestBody):
    """The body of /tokenize."""

    content: str | None = optional("the text", max_length=_TEXT_MOST)
    prompt: str | None = optional("vLLM's name for content", max_length=_TEXT_MOST)
    add_special: bool | None = optional("with the begin token")
    add_special_tokens: bool | None = optional("vLLM's name for add_special")
    parse_special: bool | None = optional("read control tokens; true if absent")
    with_pieces: bool | None = optional("the text of each token too")
    model: str | None = optional("the model, where there are several")


class DetokenizeRequest(RequestBody):
    """The body of /detokenize."""

    tokens: Annotated[
        list[Annotated[int, Field(json_schema_extra={"minimum": 0})]],
        Field(max_length=_TOKENS_MOST, fail_fast=True),
    ]
    model: str | None = optional("the model, where there are several")


def tokenize(engine: Engine, body: TokenizeRequest) -> bytes:
    """The response to /tokenize, as JSON. Raises RequestError."""
    text = body.prompt if body.content is None else body.content
    if text is None:
        raise RequestError("content is missing; add it", "content")
    add_special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    tokens = engine.tokenize(
        text, add_special=bool(add_special), parse_special=body.parse_special is not False
    )
    if body.with_pieces:
        return _with_pieces(engine, tokens)
    length = engine.n_ctx_train
    return encoded({"tokens": tokens, "count": len(tokens), "max_model_len": length})


def detokenize(engine: Engine, body: DetokenizeRequest) -> bytes:
    """The response to /detokenize, as JSON. Raises RequestError."""
    for token in body.tokens:
        if not 0 <= token < engine.n_vocab:
            raise RequestError(
                f"tokens holds {shown(token, 40)}, but must hold ids from 0 to "
                f"{engine.n_vocab - 1}",
                "tokens",
            )
    text = text_of(engine, body.tokens)
    return encoded({"content": text, "prompt": text})  # llama.cpp's name for it, and vLLM's


def tokenizer_info(engine: Engine) -> dict[str, Any]:
    """The response to /tokenizer_info."""
    return {
        "eos_token": None if engine.eos is None else text_of(engine, [engine.eos]),
        "bos_token": None if engine.bos is None else text_of(engine, [engine.bos]),
        "pad_token": None,
        "chat_template": engine.chat_template,
    }


def _with_pieces(engine: Engine, tokens: list[int]) -> bytes:
    parts = {
        token: encoded({"id": token, "piece": _piece(engine.detokenize([token], special=True))})
        for token in set(tokens)
    }
    return b'{"tokens":[' + b",".join([parts[token] for token in tokens]) + b"]}"


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where these are not text by themselves."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
