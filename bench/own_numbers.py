"""Requests whose correct reply holds a number that only this request has: over every API, by a JSON
schema, or in the text of the request itself. A reply with another number was mixed up
with that of another client."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST = 480  # tokens of a reply: the eighth that is kept for an answer holds the largest one
METHODS = ("base", "base", "markov", "random-anchor", "tgr-latent", "tgr-token", "self-consistency")


@dataclass(frozen=True)
class Asked:
    """A request; `number_in` finds the number in the body of its response."""

    name: str
    number: int
    path: str
    body: dict[str, Any]
    number_in: Callable[[Any], int]


def asked(draw: random.Random, number: int) -> Asked:
    """A random one of the requests for that number."""
    return draw.choice((_chat, _responses, _messages, _native, _echo, _tokens))(draw, number)


def _schema(draw: random.Random, number: int) -> dict[str, Any]:
    letters = draw.randint(1, 12)
    word = {"type": "string", "pattern": f"^[a-z]{{{letters}}}$"}
    return {
        "type": "object",
        "properties": {"word": word, "number": {"const": number}},
        "required": ["word", "number"],
        "additionalProperties": False,
    }


def _model(draw: random.Random) -> str:
    return f"any:{draw.choice(METHODS)}"


def _question(draw: random.Random, number: int) -> str:
    return f"[{number}] " + "1+2=3, " * draw.choice([0, 0, 5, 40]) + "what is 12 + 30?"


def _chat(draw: random.Random, number: int) -> Asked:
    form = {"type": "json_schema", "json_schema": {"name": "own", "schema": _schema(draw, number)}}
    body = {
        "model": _model(draw),
        "messages": [{"role": "user", "content": _question(draw, number)}],
        "response_format": form,
        "max_tokens": MOST,
        "seed": number,
    }
    return Asked(
        "chat", number, "/v1/chat/completions", body,
        lambda reply: json.loads(reply["choices"][0]["message"]["content"])["number"],
    )  # fmt: skip


def _responses(draw: random.Random, number: int) -> Asked:
    body = {
        "model": _model(draw),
        "input": _question(draw, number),
        "text": {"format": {"type": "json_schema", "name": "own", "schema": _schema(draw, number)}},
        "max_output_tokens": MOST,
        "store": draw.random() < 0.5,
    }

    def number_in(reply: Any) -> int:
        (message,) = [item for item in reply["output"] if item["type"] == "message"]
        value: int = json.loads(message["content"][0]["text"])["number"]
        return value

    return Asked("responses", number, "/v1/responses", body, number_in)


def _messages(draw: random.Random, number: int) -> Asked:
    body = {
        "model": _model(draw),
        "system": "Be brief.",
        "messages": [{"role": "user", "content": _question(draw, number)}],
        "output_config": {"format": {"type": "json_schema", "schema": _schema(draw, number)}},
        "max_tokens": MOST,
    }

    def number_in(reply: Any) -> int:
        (block,) = [block for block in reply["content"] if block["type"] == "text"]
        value: int = json.loads(block["text"])["number"]
        return value

    return Asked("messages", number, "/v1/messages", body, number_in)


def _native(draw: random.Random, number: int) -> Asked:
    body = {
        "prompt": _question(draw, number),
        "json_schema": _schema(draw, number),
        "n_predict": MOST,
        "temperature": draw.choice([0, 1]),
    }
    return Asked(
        "completion",
        number,
        "/completion",
        body,
        lambda reply: json.loads(reply["content"])["number"],
    )


def _echo(draw: random.Random, number: int) -> Asked:
    body = {
        "model": "any:base",
        "prompt": _question(draw, number),
        "max_tokens": draw.choice([1, 30]),
        "echo": True,
    }
    return Asked(
        "echo", number, "/v1/completions", body,
        lambda reply: int(reply["choices"][0]["text"].partition("[")[2].partition("]")[0]),
    )  # fmt: skip


def _tokens(draw: random.Random, number: int) -> Asked:
    body = {"content": f"{number}", "with_pieces": True}

    def number_in(reply: Any) -> int:
        pieces = [token["piece"] for token in reply["tokens"]]
        return int("".join(p if isinstance(p, str) else bytes(p).decode() for p in pieces))

    return Asked("tokenize", number, "/tokenize", body, number_in)
