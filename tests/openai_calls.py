"""Requests in OpenAI's format and their responses, for tests."""

from __future__ import annotations

from typing import Any

from method_runs import PAPER

from tgr_local import SearchConfig
from tgr_local.apis.completions import chunks, respond
from tgr_local.apis.requests import chat_request, completion_request
from tgr_local.engine import Engine

ASK = [{"role": "user", "content": "hé 🦙"}]
SMALL = SearchConfig(
    chunk_len=8, max_chunks=3, n_candidates=3, rollout_len=4, temperature=0.8, **PAPER
)


def chat(engine: Engine, method: str = "base", **body: Any) -> dict[str, Any]:
    request = chat_request(engine, {"messages": ASK, "seed": 5} | body, config=SMALL, method=method)
    return respond(engine, request)


def complete(engine: Engine, prompt: Any = "hé 🦙", **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "seed": 5, "method": "base"} | body
    return respond(engine, completion_request(engine, body, config=SMALL))


def streamed(engine: Engine, method: str = "base", **body: Any) -> list[dict[str, Any]]:
    body = {"messages": ASK, "seed": 5, "stream": True} | body
    return list(chunks(engine, chat_request(engine, body, config=SMALL, method=method)))


def joined(parts: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """A choice put together from its chunks."""
    choices = [c for part in parts for c in part["choices"] if c["index"] == index]
    logprobs = [c["logprobs"]["content"] for c in choices if c["logprobs"]]
    return {
        "content": "".join(c["delta"].get("content", "") for c in choices),
        "reasoning": "".join(c["delta"].get("reasoning_content", "") for c in choices),
        "logprobs": [entry for entries in logprobs for entry in entries],
        "finish_reason": choices[-1]["finish_reason"],
    }
