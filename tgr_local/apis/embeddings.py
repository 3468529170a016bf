"""/v1/embeddings: a unit vector for each text, of the model's final-norm states the one that its
file names, or their mean. The body and the response, without a network."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tgr_local.apis.bodies import Tokens
from tgr_local.apis.client_parameters import Ignoring, ignoring
from tgr_local.apis.search_options import optional
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import tokens_within
from tgr_local.generation.pooling import embedding, pooling_of
from tgr_local.system.errors import ContextError, too_long


@ignoring(
    "user", "truncate", "input_type", "truncate_prompt_tokens", "embd_normalize", "keep_alive",
    "options",
)  # fmt: skip
class EmbeddingsRequest(Ignoring):
    """The body of /v1/embeddings."""

    wanted: ClassVar[Mapping[str, str]] = {"input": "a text, token ids, or a list of these"}
    input: str | Tokens | Annotated[list[str | Tokens], Field(fail_fast=True)] = Field(
        union_mode="left_to_right"
    )
    encoding_format: Literal["float", "base64"] | None = optional(
        "base64 = of little-endian float32"
    )
    dimensions: int | None = optional("the width of the model, or absent")
    model: str | None = optional("the model, where there are several")


INPUTS_MAX = 2048
"""Texts of one request, as OpenAI has it: clients send hundreds at once."""
_NUMBERS_MOST, _TOKENS_MOST = 1 << 22, 1 << 20  # of the vectors, and of the texts, together


def input_tokens(engine: Engine, body: EmbeddingsRequest) -> list[list[int]]:
    """The tokens of each input. Raises RequestError, ContextError, and ModelError for a
    reranker."""
    pooling_of(engine)
    most = min(INPUTS_MAX, max(1, _NUMBERS_MOST // engine.n_embd))
    if body.dimensions not in (None, engine.n_embd):
        raise RequestError(
            f"dimensions is {body.dimensions}, but must be {engine.n_embd}, as the model has",
            "dimensions",
        )
    given: Any = body.input
    several = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    if not 1 <= len(several) <= most:
        raise RequestError(
            f"input holds {len(several)} texts, but must hold between 1 and {most}", "input"
        )
    texts = [_tokens(engine, text) for text in several]
    if (total := sum(map(len, texts))) > _TOKENS_MOST:
        raise RequestError(
            f"input has {total} tokens together, but may have {_TOKENS_MOST}; send fewer texts",
            "input",
        )
    return texts


def respond(
    engine: Engine, body: EmbeddingsRequest, texts: list[list[int]], model: str, cancel: Cancel
) -> dict[str, Any]:
    """The response, in OpenAI's format, to the tokens of each text."""
    packed, pooling = body.encoding_format == "base64", pooling_of(engine)
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(vector, packed)}
        for i, vector in enumerate(_vector(engine, tokens, pooling, cancel) for tokens in texts)
    ]
    total = sum(map(len, texts))
    return {
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    } | ({"tgr": {"ignored": list(ignored)}} if (ignored := body.ignored()) else {})


def _tokens(engine: Engine, text: str | list[int]) -> list[int]:
    tokens = tokens_within(engine, text, add_special=True) if isinstance(text, str) else text
    if not tokens:
        raise RequestError("input holds a text without tokens; remove it", "input")
    if not all(0 <= token < engine.n_vocab for token in tokens):
        raise RequestError(
            f"input must hold texts, or token ids between 0 and {engine.n_vocab - 1}", "input"
        )
    if len(tokens) > engine.n_ctx_train:
        raise too_long("an input", len(tokens), engine.n_ctx_train)
    if (n_ctx := engine.config.n_ctx) and len(tokens) >= n_ctx:
        text = f"an input has {len(tokens)} tokens, but n_ctx is {n_ctx}; raise it, or shorten it"
        raise ContextError(text, len(tokens), n_ctx)
    return tokens


def _vector(engine: Engine, tokens: list[int], pooling: str, cancel: Cancel) -> NDArray[np.float32]:
    """[n_embd]"""
    vector = embedding(engine, tokens, pooling, cancel)
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _encoded(vector: NDArray[np.float32], packed: bool) -> Any:
    if packed:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(str(number)) for number in vector]
