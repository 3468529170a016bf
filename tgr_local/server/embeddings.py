"""A unit vector for each text: the mean of the model's final-norm states over its tokens."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, Task
from tgr_local.errors import CapacityError
from tgr_local.generation import tokens_within
from tgr_local.server.problems import Problem

_AT_ONCE = 512  # tokens that are read together


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    texts: list[list[int]]
    """The tokens of each."""
    packed: bool
    """As base64 of little-endian float32, not as numbers."""


def asked(engine: Engine, body: Mapping[str, Any], most: int) -> Asked:
    """What a body with up to `most` texts asks for. Raises Problem."""
    return Asked(_inputs(engine, body, most), body.get("encoding_format") == "base64")


def respond(engine: Engine, asked: Asked, model: str, cancel: Cancel) -> dict[str, Any]:
    """The response, as OpenAI has it."""
    data = [
        {"object": "embedding", "index": i, "embedding": _shown(vector, asked.packed)}
        for i, vector in enumerate(_vector(engine, tokens, cancel) for tokens in asked.texts)
    ]
    total = sum(map(len, asked.texts))
    return {
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }


def _inputs(engine: Engine, body: Mapping[str, Any], most: int) -> list[list[int]]:
    """The tokens of each input."""
    given = body.get("input")
    if body.get("encoding_format", "float") not in ("float", "base64"):
        raise Problem(400, "encoding_format must be float or base64", param="encoding_format")
    if body.get("dimensions", engine.n_embd) not in (None, engine.n_embd):
        raise Problem(
            400, f"dimensions must be {engine.n_embd}, as the model has", param="dimensions"
        )
    if isinstance(given, str) or _is_tokens(given, engine):
        given = [given]
    if not isinstance(given, list) or not given or len(given) > most:
        raise Problem(
            400,
            f"input must be a text, token ids, or a list of 1 to {most} of these",
            param="input",
        )
    found = []
    for one in given:
        if not (isinstance(one, str) or _is_tokens(one, engine)):
            raise Problem(
                400, "input must hold texts, or token ids of the vocabulary", param="input"
            )
        tokens = tokens_within(engine, one, add_special=True) if isinstance(one, str) else one
        if not tokens:
            raise Problem(400, "input holds a text without tokens", param="input")
        if len(tokens) > engine.n_ctx_train:
            raise CapacityError(
                f"an input has {len(tokens)} tokens, but the model was trained for "
                f"{engine.n_ctx_train}; shorten it"
            )
        found.append(tokens)
    return found


def _vector(engine: Engine, tokens: list[int], cancel: Cancel) -> NDArray[np.float32]:
    """[n_embd]"""
    total = np.zeros(engine.n_embd)
    with engine.session(len(tokens) + 1, 1, cancel=cancel) as session:
        sequence = session.sequence()
        for first in range(0, len(tokens), _AT_ONCE):  # the states of all would take much memory
            task = Task(sequence, tokens[first : first + _AT_ONCE], feed_states="all")
            (output,) = session.run([task], cancel=cancel)
            total += output.feed_states.sum(axis=0, dtype=np.float64)
    mean = (total / len(tokens)).astype(np.float32)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def _shown(vector: NDArray[np.float32], packed: bool) -> Any:
    if packed:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(str(number)) for number in vector]


def _is_tokens(value: Any, engine: Engine) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(one) is int and 0 <= one < engine.n_vocab for one in value)
    )
