"""``logit_bias``, in the forms of OpenAI and of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

from tgr_local.apis.validation import RequestError, shown
from tgr_local.engine import Engine

TokenBiases = tuple[tuple[int, float], ...]
"""Token ids, each with what is added to its logit."""
_TEXT_MOST = 256  # characters of a text that names tokens
_DIGITS_MOST = 10  # of an id


def token_biases(engine: Engine, bias: Mapping[Any, Any] | list[Any]) -> TokenBiases:
    """Biases that are added to the logits of tokens. Raises RequestError."""
    pairs = []
    for key, value in bias.items() if isinstance(bias, Mapping) else _listed(engine, bias):
        token = _id(key)
        if not 0 <= token < engine.n_vocab:
            raise RequestError(
                f"logit_bias names token {shown(key, 40)}, but must name one between 0 and "
                f"{engine.n_vocab - 1}",
                "logit_bias",
            )
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise RequestError(
                f"logit_bias of token {token} is {shown(value, 40)}, but must be between -100 and "
                "100",
                "logit_bias",
            )
        pairs.append((token, float(value)))
        if len(pairs) > engine.n_vocab:
            raise RequestError("logit_bias names more tokens than the vocabulary has", "logit_bias")
    return tuple(pairs)


def _id(key: Any) -> int:
    """The token id that a number or a text of digits is; -1 for anything else."""
    if isinstance(key, str):
        return int(key) if _is_number(key) and len(key) <= _DIGITS_MOST else -1
    return int(key) if isinstance(key, Integral) and not isinstance(key, bool) else -1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _listed(engine: Engine, pairs: list[Any]) -> Iterator[tuple[Any, Any]]:
    """llama.cpp's pairs of a token, or a text of several, and a number, or false for never."""
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RequestError(
                f"logit_bias holds {shown(pair, 40)}, but must hold pairs of a token and a number",
                "logit_bias",
            )
        key, value = pair
        value = -100 if value is False else value
        is_text = isinstance(key, str) and not _is_number(key)
        if is_text and len(key) > _TEXT_MOST:
            raise RequestError(
                f"logit_bias names a text of {len(key)} characters, but it may have {_TEXT_MOST}",
                "logit_bias",
            )
        for token in engine.tokenize(key) if is_text else [key]:
            yield token, value
