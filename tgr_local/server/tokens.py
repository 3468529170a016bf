"""Text to tokens and back, in llama.cpp's words and in vLLM's."""

from __future__ import annotations

from typing import Any

from tgr_local.engine import Engine
from tgr_local.server.problems import Problem
from tgr_local.server.wire import encoded

_TEXT_MOST = 1 << 20  # characters of a text to tokenize, which takes a second at most
_TOKENS_MOST = 1 << 18  # tokens to turn into text


def tokenized(engine: Engine, body: dict[str, Any]) -> bytes:
    """The one response to /tokenize, as JSON. Raises Problem."""
    text = body.get("content", body.get("prompt"))
    if not isinstance(text, str):
        raise Problem(400, "content must be a text", param="content")
    if len(text) > _TEXT_MOST:
        raise Problem(
            400,
            f"content has {len(text)} characters, but may have {_TEXT_MOST}; divide it",
            param="content",
        )
    flags = {name: body.get(name, False) for name in ("add_special", "with_pieces")}
    flags["add_special"] = body.get("add_special_tokens", flags["add_special"])
    flags["parse_special"] = body.get("parse_special", True)
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise Problem(400, f"{name} must be true or false", param=name)
    pieces = flags.pop("with_pieces")
    tokens = engine.tokenize(text, **flags)
    if pieces:
        return _with_pieces(engine, tokens)
    length = engine.n_ctx_train
    return encoded({"tokens": tokens, "count": len(tokens), "max_model_len": length})


def _with_pieces(engine: Engine, tokens: list[int]) -> bytes:
    parts = {
        token: encoded({"id": token, "piece": _piece(engine.detokenize([token], special=True))})
        for token in set(tokens)
    }
    return b'{"tokens":[' + b",".join([parts[token] for token in tokens]) + b"]}"


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where these are no text by themselves."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def detokenized(engine: Engine, body: dict[str, Any]) -> bytes:
    """The one response to /detokenize, as JSON. Raises Problem."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or len(tokens) > _TOKENS_MOST:
        raise Problem(400, f"tokens must be a list of up to {_TOKENS_MOST} ids", param="tokens")
    for token in tokens:
        if type(token) is not int or not 0 <= token < engine.n_vocab:
            raise Problem(
                400,
                f"tokens holds {token!r:.40}, but must hold ids from 0 to {engine.n_vocab - 1}",
                param="tokens",
            )
    text = engine.detokenize(tokens, special=True).decode("utf-8", "replace")
    return encoded({"content": text, "prompt": text})  # llama.cpp's name for it, and vLLM's
