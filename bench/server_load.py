"""The server under load, measured from outside; prints a verdict on each point, exit code 1 where
one of them fails.

    python bench/server_load.py --seconds 300             # 32 clients that stream without a pause
    python bench/server_load.py --seconds 0               # only the 200 clients that disconnect

1. `--clients` clients ask without a pause. A quarter streams replies of plain sampling, a quarter
   those of the search, each with a marker of its own in its prompt; every stream must come to its
   end. Afterwards an engine in this process scores `--scored` of the plainly sampled ones alone,
   and writes `--rewritten` of the searched ones alone again: a token whose log-probability differs
   by more than 1e-2 came from a mixed-up batch. Where two candidates are as good as equal, rounding
   may let a searched text part from its double; one in twenty may. The other half asks over every
   API, with all kinds of methods, for a reply that must hold a number of its own (own_numbers.py).
   After the first third the memory of the server's processes must stay within 3 %, and the numbers
   of their file descriptors and threads must not grow; the time between two events of a stream is
   reported.
2. `--leavers` clients disconnect at random moments, in the queue, in prefill or in the middle of a
   reply. Afterwards no sequence may run and no cell may be held.

Rounding alone moves the log-probabilities of a quantized model by 1e-1 nats when the batch changes,
so the model is a copy of the embedded one with F32 weights, and the cache is F32; --model takes
another as it is. Both ends share this machine's cores, so the times are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import own_numbers
from f32_weights import with_f32_weights
from target import Target, family, flags_of, resident, serving

from tgr_local.apis.completions import respond
from tgr_local.apis.requests import completion_request
from tgr_local.engine import Engine, Task
from tgr_local.options.config import EngineConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.options.resolve import resolve

TOLERANCE = 1e-2  # nats
FLAT = 0.03  # of the memory
PARTED = 0.05  # of the searched replies that are written again
EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
SEARCH: dict[str, Any] = {"chunk_len": 24, "rollout_len": 8, "n_candidates": 4}
HELD = ("cells_used", "cells_reserved", "n_sequences", "n_sessions", "n_waiting", "n_jobs")


@dataclass
class Received:
    """A reply as its client received it."""

    body: dict[str, Any]
    tokens: list[str]
    logprobs: list[float]


@dataclass
class Observed:
    """The observations of the clients of the first part."""

    gaps: list[float] = field(default_factory=list)
    """Seconds between two events of one stream."""
    first: list[float] = field(default_factory=list)
    """Seconds to the first event of each stream."""
    plain: list[Received] = field(default_factory=list)
    """Every reply with plain sampling."""
    searched: list[Received] = field(default_factory=list)
    own: dict[str, int] = field(default_factory=dict)
    """Replies with their own number, by the kind of their request."""
    errors: list[str] = field(default_factory=list)


@contextlib.contextmanager
def server(model: Path | str, n_running: int) -> Iterator[Target]:
    flags = [f"--model={model}", f"--max-running={n_running}", "--max-queue=512"]
    with serving([*flags, *flags_of(SEARCH | EXACT), "--shutdown-seconds=2"]) as target:
        yield target


@dataclass
class Held:
    """What the server's processes hold together: bytes in memory, descriptors, threads."""

    memory: int
    descriptors: int
    threads: int


def held_by(pid: int) -> Held:
    processes = family(pid)
    return Held(
        sum(map(resident, processes)),
        sum(_entries(pid, "fd") for pid in processes),
        sum(_entries(pid, "task") for pid in processes),
    )


def _entries(pid: int, folder: str) -> int:
    with contextlib.suppress(OSError):  # it has ended
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    return 0


async def ask(
    http: httpx.AsyncClient, name: str, body: dict[str, Any], observed: Observed
) -> Received | None:
    """Streams one reply; None, and an error, if the stream is incomplete."""
    received, last, n_events, ends = Received(body, [], []), time.monotonic(), 0, []
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise ValueError(f"{response.status_code} {await response.aread()!r}")
            async for line in response.aiter_lines():
                if not line:
                    continue
                now = time.monotonic()
                (observed.gaps if n_events else observed.first).append(now - last)
                last, n_events = now, n_events + 1
                if not line.startswith("data: {"):
                    ends += ["done"] * (line == "data: [DONE]")
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"])
                for choice in chunk["choices"]:
                    ends += [choice["finish_reason"]] * bool(choice["finish_reason"])
                    if scores := choice["logprobs"]:
                        received.tokens += scores["tokens"]
                        received.logprobs += scores["token_logprobs"]
        if len(ends) != 2 or ends[-1] != "done":
            raise ValueError(f"the stream ended with {ends}")
    except (httpx.HTTPError, ValueError) as error:
        observed.errors.append(f"{name}: {type(error).__name__} {error}")
        return None
    return received


async def ask_own(http: httpx.AsyncClient, wanted: own_numbers.Asked, observed: Observed) -> None:
    """Asks for a reply with a number of its own, and notes whether it is there."""
    try:
        response = await http.post(wanted.path, json=wanted.body)
        if response.status_code != 200:
            raise ValueError(f"{response.status_code} {response.text[:300]}")
        reply = response.json()
        try:
            number = wanted.number_in(reply)
        except (ValueError, LookupError) as error:
            raise ValueError(f"{error} in {json.dumps(reply)[:900]}") from error
        if number != wanted.number:
            raise ValueError(f"the reply has {number} instead of {wanted.number}")
        observed.own[wanted.name] = observed.own.get(wanted.name, 0) + 1
    except (httpx.HTTPError, ValueError) as error:
        observed.errors.append(f"{wanted.name}: {type(error).__name__} {error}")


async def client(
    number: int,
    http: httpx.AsyncClient,
    end: float,
    arguments: argparse.Namespace,
    observed: Observed,
) -> None:
    """One client of the first part."""
    draw = random.Random(number)
    turn = 0
    while time.monotonic() < end:
        turn += 1
        if number % 4 >= 2:
            await ask_own(http, own_numbers.asked(draw, 10**9 + number * 10**6 + turn), observed)
            continue
        marker = f"[client {number} turn {turn} {draw.randrange(10**6):06d}]"
        plain = number % 4 == 0
        body = {
            "model": "any:base" if plain else "any:tgr-latent",
            "prompt": f"{marker} {draw.randrange(100)}+{draw.randrange(100)}*{draw.randrange(9)}=",
            "max_tokens": arguments.tokens,
            "logprobs": 0,
            "seed": draw.randrange(2**31),
            "temperature": 1.0,
            "stream": True,
        }
        if received := await ask(http, marker, body, observed):
            (observed.plain if plain else observed.searched).append(received)


async def load(arguments: argparse.Namespace, url: str, pid: int) -> tuple[Observed, list[Held]]:
    """The first part: the observations, and what the server holds, once a second."""
    observed, samples = Observed(), []
    end = time.monotonic() + arguments.seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        clients = [
            asyncio.create_task(client(number, http, end, arguments, observed))
            for number in range(arguments.clients)
        ]
        while time.monotonic() < end:
            await asyncio.sleep(1)
            samples.append(held_by(pid))
        await asyncio.gather(*clients)
    return observed, samples


async def leave(arguments: argparse.Namespace, url: str) -> tuple[int, list[str]]:
    """The second part: how many clients disconnected before the end of their reply, and errors."""
    draw, n_left, errors = random.Random(0), 0, []

    async def leaver(number: int) -> None:
        nonlocal n_left
        body = {
            "model": draw.choice(["any:base", "any:markov", "any:tgr-latent"]),
            "prompt": f"[leaver {number}] " + "1+2=3 " * draw.choice([1, 20, 100]),
            "max_tokens": 200,
            "stream": draw.random() < 0.7,
        }
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            await asyncio.sleep(draw.random() * 2)
            try:
                request = http.post("/v1/completions", json=body)
                response = await asyncio.wait_for(request, draw.random() ** 2 * 3)
                response.raise_for_status()
            except asyncio.TimeoutError:
                n_left += 1
            except httpx.HTTPError as error:
                errors.append(f"leaver {number}: {type(error).__name__} {error}")

    await asyncio.gather(*(leaver(number) for number in range(arguments.leavers)))
    return n_left, errors


def gauges(url: str) -> dict[str, float]:
    """Running work and reservations."""
    names = ["tgr_running", "tgr_waiting", *(f"tgr_engine_{name}" for name in HELD)]
    text = httpx.get(f"{url}/metrics", timeout=30).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    values = {name.partition("{model=")[0]: value for name, value in lines}
    return {name: float(values[name]) for name in names}


def left_over(url: str) -> tuple[dict[str, float], float]:
    """The gauges above zero after 20 s at most, and the seconds until then."""
    start = time.monotonic()
    while any((gauges_now := gauges(url)).values()) and time.monotonic() - start < 20:
        time.sleep(0.05)
    return {name: value for name, value in gauges_now.items() if value}, time.monotonic() - start


def scored_alone(engine: Engine, received: list[Received]) -> float:
    """Of the log-probabilities that the server gave to plainly sampled replies, the largest
    difference, in nats, from those that each reply has when it is scored alone."""
    ids = {engine.detokenize([token], special=True): token for token in range(engine.n_vocab)}
    worst = 0.0
    for reply in received:
        query = engine.tokenize(reply.body["prompt"], add_special=True)
        tokens = query + [ids[_bytes(text)] for text in reply.tokens]
        if len(tokens) == len(query):
            continue
        with engine.session(len(tokens) + 8, 1) as session:
            task = Task(session.sequence(), tokens, feed_logprobs=True)
            (output,) = session.run([task])
        alone = output.feed_logprobs[len(query) - 1 :]
        worst = max(worst, float(np.abs(alone - np.array(reply.logprobs)).max()))
    return worst


def written_again(engine: Engine, received: list[Received]) -> tuple[float, int]:
    """The largest difference, in nats, between replies of the search and the same ones written
    alone, up to where their texts part; and how many parted."""
    config = resolve(engine.metadata, SEARCH).config
    worst, parted = 0.0, 0
    for reply in received:
        body = reply.body | {"stream": False, "method": "tgr-latent"}
        response = respond(engine, completion_request(engine, body, config=config))
        alone = response["choices"][0]["logprobs"]
        parted += alone["tokens"] != reply.tokens
        for mine, theirs, a, b in zip(
            alone["tokens"], reply.tokens, alone["token_logprobs"], reply.logprobs, strict=False
        ):
            if mine != theirs:
                break
            worst = max(worst, abs(a - b))
    return worst, parted


def _bytes(text: str) -> bytes:
    """The bytes of a token from its text in a response."""
    name = re.fullmatch(r"bytes:((\\x[0-9a-f]{2})+)", text)
    return bytes.fromhex(name.group(1).replace("\\x", "")) if name else text.encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a reply at most")
    parser.add_argument("--scored", type=int, default=5000, help="plainly sampled replies")
    parser.add_argument("--rewritten", type=int, default=200, help="searched replies")
    parser.add_argument("--leavers", type=int, default=200)
    arguments = parser.parse_args()
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            arguments.model = with_f32_weights(embedded_model(), Path(folder) / "f32.gguf")
        for holds, point in verdicts(arguments):
            passed &= holds
            print(f"{'ok  ' if holds else 'FAIL'} {point}", flush=True)
    print("passed" if passed else "FAILED")
    return not passed


Verdicts = Iterator[tuple[bool, str]]
"""Whether each point holds, and what was seen."""


def verdicts(arguments: argparse.Namespace) -> Verdicts:
    with server(arguments.model, arguments.clients) as target:
        url = target.url
        if arguments.seconds:
            observed, samples = asyncio.run(load(arguments, url, target.pid))
            yield from _under_load(arguments, observed)
            yield from _held(samples)
        if arguments.leavers:
            n_left, errors = asyncio.run(leave(arguments, url))
            remaining, seconds = left_over(url)
            yield (
                not remaining and not errors and n_left > 0,
                f"{n_left} of {arguments.leavers} clients went before the end; still held "
                f"{remaining or 'nothing'} after {seconds:.2f} s; errors {errors[:5] or 'none'}",
            )


def _under_load(arguments: argparse.Namespace, observed: Observed) -> Verdicts:
    plain, searched, own = observed.plain, observed.searched, observed.own
    yield (
        bool(plain and searched and own) and not observed.errors,
        f"{arguments.clients} clients, {arguments.seconds:g} s: {len(plain) + len(searched)} "
        f"streams, {sum(own.values())} replies with their own number {dict(sorted(own.items()))}, "
        f"{len(observed.errors)} errors {observed.errors[:5] or ''}",
    )
    scoring, chosen = _some(plain, arguments.scored), _some(searched, arguments.rewritten)
    with Engine(arguments.model, EngineConfig(**EXACT)) as engine:
        scored = scored_alone(engine, scoring)
        worst, parted = written_again(engine, chosen)
    yield (
        bool(scoring) and scored <= TOLERANCE,
        f"{len(scoring)} of {len(plain)} plain streams scored alone: at most {scored:.6f} nats off",
    )
    yield (
        bool(chosen) and worst <= TOLERANCE and parted <= PARTED * len(chosen),
        f"{len(chosen)} of {len(searched)} searched ones written alone again: {parted} parted, "
        f"the others are at most {worst:.6f} nats off",
    )
    for name, values in (("to the first event", observed.first), ("between two", observed.gaps)):
        median, p99, most = np.percentile(values or [np.nan], (50, 99, 100))
        yield True, f"seconds {name}: median {median:.4f}, p99 {p99:.4f}, largest {most:.4f}"


def _some(received: list[Received], n: int) -> list[Received]:
    return random.Random(0).sample(received, min(n, len(received)))


def _held(samples: list[Held]) -> Verdicts:
    """The first third warms up; of the rest, the second half must not hold more than the first."""
    steady = samples[len(samples) // 3 :]
    memory = np.array([sample.memory for sample in steady]) / 2**20
    spread = (memory.max() - memory.min()) / memory.min()
    yield (
        bool(spread <= FLAT),
        f"memory {memory[0]:.1f} MiB first, {memory[-1]:.1f} last, {memory.max():.1f} at most: "
        f"{spread:.1%}",
    )
    half = len(steady) // 2
    for name in ("descriptors", "threads"):
        counts = [getattr(sample, name) for sample in steady]
        early, late = float(np.median(counts[:half])), float(np.median(counts[half:]))
        yield (
            late <= early + 1 and max(counts[half:]) <= max(counts[:half]) + 2,
            f"{name}: {early:g} in the first half, {late:g} in the second, {max(counts)} at most",
        )


if __name__ == "__main__":
    sys.exit(main())
