"""Two models in one server, asked in turns: every answer right and whole, and memory bounded.

A server holds one model at a time (--models-max 1). Clients ask for both models in turns, every
third request as a stream, so that each reply has requests for the other model waiting for it to
end. Every reply must be the one that its model gives alone in a server of its own, with its
finish_reason. The resident memory is read after every reply. Exit code 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from target import Target, resident, serving

from tgr_local.lab.bench import shapes
from tgr_local.models.library import embedded_model

SHAPE = shapes.Shape(8, 512, 4, 2, 1536, n_vocab=8192)  # 58 MB of random weights
FLAGS = [
    "--type-k=f32", "--type-v=f32", "--flash-attn=off", "--method=base", "--ping-seconds=0.2",
]  # fmt: skip
PROMPTS = ("1+1=", "What is 12+30?", "hello", "a b c d", "Count to ten.")
GROWTH = 1.05  # of the largest resident memory, from the first half of the requests to the second

Question = tuple[str, str, int]
"""The model, the prompt and the number of new tokens."""


@dataclass
class Observed:
    """What the clients saw."""

    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pings: int = 0
    streams: int = 0
    right: int = 0
    resident: list[int] = field(default_factory=list)


async def reply(
    http: httpx.AsyncClient, question: Question, stream: bool
) -> tuple[str, str, str, int]:
    """Model, text, finish_reason and the number of pings. ValueError for an error or a stream that
    is incomplete."""
    name, prompt, n_tokens = question
    body = {
        "model": name, "prompt": prompt, "temperature": 0, "max_tokens": n_tokens,
        "stream": stream,
    }  # fmt: skip
    if not stream:
        response = await http.post("/v1/completions", json=body)
        if response.status_code != 200:
            raise ValueError(f"{response.status_code} {response.text}")
        whole = response.json()
        choice = whole["choices"][0]
        return whole["model"], choice["text"], choice["finish_reason"], 0
    model, text, finish, pings, ended = "", "", "", 0, False
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            pings += line == ": ping"
            ended |= line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"])
                model = chunk["model"]
                text += chunk["choices"][0]["text"]
                finish = chunk["choices"][0]["finish_reason"] or finish
    if not ended:
        raise ValueError("the stream has no end")
    return model, text, finish, pings


async def alone(url: str, questions: set[Question]) -> dict[Question, tuple[str, str]]:
    """Text and finish_reason of each question, asked one after another."""
    found = {}
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        for question in sorted(questions):
            _, text, finish, _ = await reply(http, question, False)
            found[question] = (text, finish)
    return found


async def in_turns(
    n_clients: int,
    target: Target,
    questions: list[Question],
    right: dict[Question, tuple[str, str]],
) -> Observed:
    """All questions, by several clients at a time."""
    observed, numbers = Observed(), itertools.count()

    async def client() -> None:
        async with httpx.AsyncClient(base_url=target.url, timeout=600) as http:
            while (number := next(numbers)) < len(questions):
                question, stream = questions[number], number % 3 == 0
                try:
                    model, text, finish, pings = await reply(http, question, stream)
                except (httpx.HTTPError, ValueError) as error:
                    observed.errors.append(f"{number}: {type(error).__name__} {error}")
                    continue
                observed.pings += pings
                observed.streams += stream
                if (text, finish) == right[question] and model == question[0]:
                    observed.right += 1
                else:
                    observed.wrong.append(f"{number}: {question} {model} {finish} {text!r:.80}")
                observed.resident.append(resident(target.pid))

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return observed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--models", type=Path, nargs=2, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, path in enumerate(arguments.models or [embedded_model()]):
            shutil.copy(path, folder / f"{'ab'[i]}.gguf")
        if not arguments.models:
            shapes.write(folder / "b.gguf", SHAPE, "f16")
        return measure(arguments, folder)


def measure(arguments: argparse.Namespace, folder: Path) -> int:
    """Prints the counts; the exit code."""
    questions: list[Question] = [
        ("ab"[i % 2], PROMPTS[i // 2 % len(PROMPTS)], (12, 40, 160)[i // 2 % 3])
        for i in range(arguments.requests)
    ]
    right: dict[Question, tuple[str, str]] = {}
    for name in "ab":
        with serving([*FLAGS, f"--model={folder / name}.gguf"]) as target:
            right |= asyncio.run(alone(target.url, {one for one in questions if one[0] == name}))
            print(f"     model {name} alone: {resident(target.pid) / 2**20:.1f} MiB resident")
    start = time.monotonic()
    with serving([*FLAGS, f"--models-dir={folder}"]) as target:
        observed = asyncio.run(in_turns(arguments.clients, target, questions, right))
        text = httpx.get(f"{target.url}/metrics", timeout=30).text
    found = re.findall(r'model_loads_total{model="(.)"} (\S+)', text)
    loads = {name: int(float(n)) for name, n in found}
    print(
        f"     {arguments.requests} requests of {arguments.clients} clients in "
        f"{time.monotonic() - start:.1f} s, {loads['a']} loads of a, {loads['b']} of b, "
        f"{observed.streams} streams with {observed.pings} pings"
    )
    half = len(observed.resident) // 2
    first = max(observed.resident[:half], default=0)
    second = max(observed.resident[half:], default=0)
    verdicts = {
        f"{observed.right} replies as the model gives them alone, {len(observed.wrong)} wrong": (
            observed.right + len(observed.errors) == arguments.requests and not observed.wrong
        ),
        f"{len(observed.errors)} requests failed or were cut": not observed.errors,
        f"at most {first / 2**20:.1f} MiB resident in the first half, {second / 2**20:.1f} in the "
        "second": 0 < second <= GROWTH * first,
    }
    for line in (*observed.wrong[:5], *observed.errors[:5]):
        print(f"     {line}")
    for text, passed in verdicts.items():
        print(f"{'ok  ' if passed else 'FAIL'} {text}")
    return not all(verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
