"""What one request may take: memory, processor time and the cache, whatever it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import START, Served, served
from surroundings import HANG
from threads import in_threads
from visitors import Visitor

from tgr_local import load, methods
from tgr_local.apis.completions import completion_request, respond
from tgr_local.engine import Cancel, Engine
from tgr_local.options.config import EngineConfig, SearchConfig, ServerConfig
from tgr_local.server.errors import ApiError
from tgr_local.server.limits import (
    RequestMemory,
    cache_line,
    limit_cache,
    memory_needed,
    within_limits,
    within_time,
)
from tgr_local.system.errors import CancelledError, CapacityError

X = "x" * 1_000_000
ALONE = f"""if True:
    import threading, time
    from pathlib import Path
    from tgr_local.apis import embeddings
    from tgr_local.server import tokens
    def watched(plain):
        alone = threading.Lock()
        def read(*given):
            if alone.locked():
                Path("together").touch()
            with alone:
                time.sleep(0.1)
                return plain(*given)
        return read
    tokens.tokenize = watched(tokens.tokenize)
    tokens.detokenize = watched(tokens.detokenize)
    embeddings.input_tokens = watched(embeddings.input_tokens)
    {START}
"""
"""A server whose folder has a file `together` once two bodies were read at a time."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    from tgr_local.options.model_files import embedded_model

    folder = tmp_path_factory.mktemp("limits")
    slow = f"from tgr_local.system import confined; confined.WALL_SECONDS = {HANG}; "
    with served(embedded_model(), folder, start=slow + START, request_seconds=100) as running:
        yield running
        running.until(running.is_free)
        assert not any("Traceback" in line for line in running.lines)
        if not Path("/proc/self/status").exists():
            return  # nothing here tells the peak
        peak = re.search(
            r"VmHWM:\s+(\d+) kB", Path(f"/proc/{running.process.pid}/status").read_text()
        )
        assert peak and int(peak[1]) < 1 << 20, "more than 1 GB was taken"


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[Served]:
    from tgr_local.options.model_files import embedded_model

    with served(embedded_model(), tmp_path_factory.mktemp("alone"), start=ALONE) as running:
        yield running


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": value}}}


def tgr(**options: Any) -> dict[str, Any]:
    return {"tgr": options}


GREEDY: list[tuple[dict[str, Any], str]] = [
    (schema({"type": "string", "minLength": 2_000_000_000}), "minLength is 2000000000, but"),
    (schema({"type": "array", "items": {}, "minItems": 2_000_000_000}), "minItems"),
    (schema({"oneOf": [{"const": i} for i in range(3000)]}), "steps to read; simplify it"),
    (schema({"allOf": [{"anyOf": [{"minimum": 1}, {"maximum": 2}]}] * 40}), "alternatives in one"),
    (schema({"properties": {"x" * 3000 + str(i): {} for i in range(1000)}}), "characters"),
    ({"grammar": 'root ::= "a"{2000000000,}'}, "does not parse"),
    ({"grammar": "root ::= " + "(" * 600 + '"a"' + ")" * 600}, "parse"),
    (tgr(method="tgr-latent", rank=4096, d_z=65536), "MiB of memory"),
    (tgr(method="hard-geometry", d_z=65536, rank=256), "MiB of memory"),
    (tgr(method="tgr-latent", n_candidates=255, n_mc=64), "sequences"),
    ({"max_tokens": 1500} | tgr(method="best-of-n", n_samples=255), "cells"),
    (tgr(method="tgr-latent", n_candidates=255, rollout_len=1900), "MiB of memory"),
    ({"prompt": [100] * 1900, "n": 32, "echo": True, "logprobs": 128}, "MiB of memory"),
    ({"n": 32, "logprobs": True, "top_logprobs": 20, "max_tokens": 60_000}, "MiB of memory"),
    ({"stop": X}, "stop has 1000000 characters"),
    ({"stop": ["a"] * 65}, "stop holds 65 values"),
    ({"model": X}, "model has 1000000 characters"),
    ({X: 1}, "unknown parameter"),
    (tgr(**{X: 1}), "unknown option"),
    (tgr(method=X), "unknown method"),
    (tgr(eoc_token=X), "eoc_token has 1000000 characters"),
    ({"messages": [{"role": "user", "content": X}]}, "tokens, but the model was trained for 2048"),
    (
        {"messages": [{"role": "user", "content": "a b " * 250_000}]},
        "tokens, but the model was trained for 2048",
    ),
]


@pytest.mark.parametrize(("body", "why"), GREEDY, ids=lambda value: repr(value)[:40])
def test_a_greedy_request_is_refused(server: Served, body: dict[str, Any], why: str):
    if "prompt" in body:
        answer = server.client.post("/v1/completions", json=body)
    else:
        answer = server.chat("hi", **({"max_tokens": 4} | body))
    assert answer.status_code == 400 and why in answer.json()["error"]["message"], answer.text[:500]
    assert len(answer.text) < 1000
    assert server.chat("1+1=", max_tokens=4).status_code == 200


@pytest.mark.parametrize(
    "options",
    [
        {"method": "power", "power_steps": 2**31 - 1},
        {"method": "power", "power_steps": 2**31 - 1, "max_forward_tokens": 60},
        {"method": "tgr-latent", "rollout_len": 200, "n_candidates": 64},
        {"method": "tgr-token", "rollout_len": 200, "n_candidates": 64},
        {"method": "hard-geometry", "kappa_max": 0.0, "d_z": 8192},
        {"method": "base", "chunk_len": 1, "max_chunks": 2**31 - 1, "loop_guard": 2},
        {"method": "tot", "tree_proposals": 8},
        {"method": "got", "tree_breadth": 4, "tree_proposals": 8},
    ],
    ids=lambda options: f"{options['method']}-{len(options)}",
)
def test_an_endless_request_ends_at_its_time_limit(server: Served, options: dict[str, Any]):
    bias = {"logit_bias": {str(token): -100 for token in ends(server)}}
    answer = server.chat("go on", tgr={"max_seconds": 2, **options}, **bias)
    assert answer.status_code == 200, answer.text[:500]
    (reply,) = answer.json()["tgr"]["replies"]
    assert reply["finish"] in ("budget", "length", "loop")


def ends(server: Served) -> list[int]:
    """The tokens that end a text: the turn's, and the document's, which also begins one here."""
    info = server.client.get("/tokenizer_info").json()
    text = info["eos_token"] + info["bos_token"]
    tokens: list[int] = server.client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert len(tokens) == 2
    return tokens


def test_an_invalid_grammar_is_refused_however_short_the_reply(server: Served):
    for stream in (False, True):
        answer = server.chat("hi", grammar="nonsense", max_tokens=1, stream=stream)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "grammar"


def test_a_grammar_that_turns_out_too_costly_is_the_requests_error(server: Served):
    costly = "root ::= [ -~] (((([ -~]?){400}){400}){400}){400}"
    answer = server.chat("hi", grammar=costly, max_tokens=8)
    assert answer.status_code == 400 and "too much work" in answer.json()["error"]["message"]


def test_a_long_text_is_tokenized_outside_the_event_loop(server: Served):
    post = server.client.post
    text = "word and word, " * 60_000
    plain = post("/tokenize", json={"content": text}).json()["tokens"]
    pieces = post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert [one["id"] for one in pieces] == plain
    assert "".join(one["piece"] for one in pieces) == text
    refused = post("/tokenize", json={"content": X + " a"})
    assert refused.status_code == 400 and "word of 1000000 bytes" in refused.text
    refused = post("/tokenize", json={"content": text * 2})
    assert refused.status_code == 400 and "shorten it" in refused.text
    refused = post("/detokenize", json={"tokens": [1] * 300_000})
    assert refused.status_code == 400 and "262144" in refused.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a " * 40_000}),
        ("/detokenize", {"tokens": [100] * 40_000}),
        ("/v1/embeddings", {"input": ["a " * 400] * 100}),
    ],
)
def test_long_bodies_become_tokens_one_at_a_time(alone: Served, path: str, body: dict[str, Any]):
    asked = [lambda: alone.client.post(path, json=body).status_code] * 2
    assert in_threads(*asked) == [200] * 2
    assert not (alone.folder / "together").exists()


def test_a_body_of_a_million_lists_is_refused(server: Served):
    body = b'{"messages":[' + b"[]," * 1_000_000 + b"[]]}"
    answer = server.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400 and "brackets" in answer.json()["error"]["message"]


def test_a_long_body_may_ask_for_a_stream(server: Served):
    metadata = {"note": "y " * 50_000}
    answer = server.chat("1+1=", stream=True, metadata=metadata, max_tokens=8)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.rstrip().endswith("data: [DONE]")


def test_many_disconnects_delay_nobody(server: Served):
    import httpx

    huge = schema({"properties": {chr(0x4E00 + i): {"type": "string"} for i in range(700)}})
    body = {"messages": [{"role": "user", "content": "hi"}]} | huge

    def ask() -> None:
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.2)

    ended = in_threads(*[ask] * 40)
    assert any(isinstance(one, httpx.TimeoutException) for one in ended)
    assert all(one is None or isinstance(one, httpx.TimeoutException) for one in ended)
    assert server.client.get("/health").status_code == 200
    server.until(server.is_free)


# --- the parts ---


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    with load() as engine:
        yield engine


def asked(engine: Engine, **body: Any) -> Any:
    config = SearchConfig(chunk_len=32, max_chunks=4)
    return completion_request(engine, {"prompt": "1+1="} | body, config=config)


def test_a_request_that_waited_has_the_rest_of_its_time(small: Engine):
    limits = ServerConfig(request_seconds=100)
    for own, waited, left in ((0, 30, 70), (90, 30, 70), (20, 30, 20), (0, 0, 100)):
        request = asked(small, tgr={"max_seconds": own})
        assert within_time(request, limits, waited).config.max_seconds == left
        unlimited = within_time(request, ServerConfig(request_seconds=0), waited)
        assert unlimited.config.max_seconds == own
    for own in (0, 0.5):  # 0 would be no limit
        late = within_time(asked(small, tgr={"max_seconds": own}), limits, 103)
        assert late.config.max_seconds == (own or 1)


def test_memory_needed_grows_with_each_option(small: Engine):
    def searched(**body: Any) -> Any:
        return asked(small, **{"method": "tgr-latent"} | body)

    least = memory_needed(small, searched())
    for more in (
        {"n": 4},
        {"logprobs": 20},
        {"max_tokens": 4000},
        {"tgr": {"rank": 64}},
        {"tgr": {"d_z": 4096}},
        {"tgr": {"n_candidates": 32}},
        {"tgr": {"rollout_len": 300}},
        {"max_tokens": 32000, "tgr": {"max_chunks": 1000}},
    ):
        assert memory_needed(small, searched(**more)) > least, more
    assert memory_needed(small, asked(small, tgr={"method": "base", "rank": 4096})) < least
    assert memory_needed(small, asked(small, tgr={"method": "tgr-think"})) == least


def test_memory_is_shared_in_the_order_of_arrival(small: Engine):
    memory = RequestMemory(small, ServerConfig(request_memory=8))
    with pytest.raises(ApiError, match="up to 9 MiB"), memory.held(9 << 20, Cancel()):
        pass
    first, gone, large, little = (
        Visitor(lambda cancel, n=n: memory.held(n << 20, cancel)) for n in (5, 5, 8, 1)
    )
    gone.cancel()
    assert isinstance(gone.error, CancelledError)
    assert first.begins() and not little.begins(0.02)  # there is room, but the large one is first
    first.leave()
    assert large.begins() and not little.has_begun
    large.leave()
    assert little.begins()
    little.leave()


def test_small_requests_go_on_when_a_large_one_no_longer_waits(small: Engine):
    memory = RequestMemory(small, ServerConfig(request_memory=8))
    first, large, little = (
        Visitor(lambda cancel, n=n: memory.held(n << 20, cancel)) for n in (5, 8, 1)
    )
    assert first.begins() and not large.has_begun and not little.has_begun
    large.cancel()
    assert little.begins()
    first.leave()
    little.leave()


def test_log_probabilities_take_no_more_memory_than_estimated(small: Engine):
    import tracemalloc

    request = asked(
        small,
        logprobs=20,
        max_tokens=400,
        logit_bias={str(small.eos): -100},
        tgr={"method": "base"},
    )
    needed = memory_needed(small, request)
    tracemalloc.start()
    respond(small, request)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < needed


def test_the_cache_grows_to_its_bound(model: Callable[..., Path]):
    with load(model()) as engine:
        engine.max_cells = 3000
        with pytest.raises(CapacityError, match=r"needs 3001 cells .* can have 3000"):
            engine.session(3001, 1)
        engine.grow_cache(1000, 8)
        assert engine.n_ctx <= 3072
        with engine.session(2500, 1):
            pass


def test_a_served_cache_begins_small_and_is_bounded_by_one_trained_context(
    model: Callable[..., Path],
):
    with load(model(n_embd=128), config=EngineConfig(prefix_cells=100)) as engine:
        engine.cell_bytes = 1 << 20  # so that the least cache is no bound
        method = methods.get("base")
        n_cells = limit_cache(engine, SearchConfig(max_tokens=1000), method)
        assert 1000 < n_cells < 1600
        assert n_cells <= engine.n_ctx < n_cells + 256
        assert engine.most_cells() == engine.n_ctx_train + n_cells + 100
        line = cache_line(engine)
        assert line.startswith(f"KV cache: {engine.n_ctx:,} cells, ")
        assert f"grows to {engine.most_cells():,} cells, " in line
    with load(model(n_embd=128), config=EngineConfig(n_ctx=2048)) as engine:
        limit_cache(engine, SearchConfig(), method)
        assert cache_line(engine).startswith("KV cache: 2,048 cells, ")
        assert "grows" not in cache_line(engine)


def test_a_request_beyond_the_cache_is_refused_before_decoding(small: Engine):
    small.max_cells = 500
    try:
        with pytest.raises(CapacityError, match="allows 500"):
            within_limits(
                small, asked(small, max_tokens=1900, tgr={"method": "base"}), ServerConfig(), 0
            )
    finally:
        small.max_cells = None
