"""Two models in one server, asked in turns: every answer right and whole, and memory bounded.

A server holds one model at a time (--models-max 1). Clients ask for both models in turns, every
third request as a stream, so that each reply has requests for the other model waiting for it to
end. Every reply must be the one that its model gives alone in a server of its own, with its
finish_reason. The resident memory is read after every reply. Exit code 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from target import resident, serving

from tgr_local.lab.bench import shapes
from tgr_local.options.model_files import embedded_model

SHAPE = shapes.Shape(8, 512, 4, 2, 1536, n_vocab=8192)  # 58 MB of random weights
FLAGS = [
    "--type-k=f32", "--type-v=f32", "--flash-attn=off", "--method=base", "--ping-seconds=0.2",
]  # fmt: skip
PROMPTS = ("1+1=", "What is 12+30?", "hello", "a b c d", "Count to ten.")
GROWTH = 1.05  # of the largest resident memory, from the third quarter of the requests to the last

Question = tuple[str, str, int]
"""The model, the prompt and the number of new tokens."""
Reply = tuple[str, str, str]
"""The model, the text and the finish_reason."""


def asked(url: str, question: Question, stream: bool = False) -> tuple[Reply, int]:
    """A reply, and the number of pings before its end. ValueError for an error or a stream that is
    incomplete."""
    model, prompt, n_tokens = question
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": n_tokens}
    path = f"{url}/v1/completions"
    text, finish, pings, ended = "", "", 0, False
    if not stream:
        response = httpx.post(path, json=body, timeout=600)
        if response.status_code != 200:
            raise ValueError(f"{response.status_code} {response.text}")
        reply = response.json()
        choice = reply["choices"][0]
        return (reply["model"], choice["text"], choice["finish_reason"]), 0
    with httpx.stream("POST", path, json=body | {"stream": True}, timeout=600) as response:
        for line in response.iter_lines():
            pings += line == ": ping"
            ended |= line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"])
                model, choice = chunk["model"], chunk["choices"][0]
                text += choice["text"]
                finish = choice["finish_reason"] or finish
    if not ended:
        raise ValueError("the stream has no end")
    return (model, text, finish), pings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.requests < 8:
        parser.error(f"requests is {arguments.requests}, but quarters of at least 8 are compared")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(embedded_model(), folder / "a.gguf")
        shapes.write(folder / "b.gguf", SHAPE, "f16")
        return measure(arguments, folder)


def measure(arguments: argparse.Namespace, folder: Path) -> int:
    """Prints the counts; the exit code."""
    questions: list[Question] = [
        ("ab"[i % 2], PROMPTS[i // 2 % len(PROMPTS)], (12, 40, 160)[i // 2 % 3])
        for i in range(arguments.requests)
    ]
    right: dict[Question, Reply] = {}
    for name in "ab":
        with serving([*FLAGS, f"--model={folder / name}.gguf"]) as target:
            for question in sorted({question for question in questions if question[0] == name}):
                right[question] = asked(target.url, question)[0]
            print(f"     model {name} alone: {resident(target.pid) / 2**20:.1f} MiB resident")
    start = time.monotonic()
    with serving([*FLAGS, f"--models-dir={folder}"]) as target:

        def ask_one(number: int) -> tuple[str, int, int]:
            """What is wrong with a reply, the pings, and the resident bytes after it."""
            wrong, pings, question = "", 0, questions[number]
            try:
                reply, pings = asked(target.url, question, stream=number % 3 == 0)
                if reply != right[question]:
                    wrong = f"{number}: {question} became {reply!r:.80}"
            except (httpx.HTTPError, ValueError) as error:
                wrong = f"{number}: {type(error).__name__} {error}"
            return wrong, pings, resident(target.pid)

        with ThreadPoolExecutor(arguments.clients) as clients:
            results = list(clients.map(ask_one, range(arguments.requests)))
        metrics = httpx.get(f"{target.url}/metrics", timeout=30).text
    loads = dict(re.findall(r'model_loads_total{model="(.)"} (\S+)', metrics))
    print(
        f"     {arguments.requests} requests of {arguments.clients} clients in "
        f"{time.monotonic() - start:.1f} s, loads {loads}, {sum(s[1] for s in results)} pings"
    )
    wrong = [result[0] for result in results if result[0]]
    memory, n = [result[2] for result in results], max(1, len(results) // 4)
    third, last = max(memory[-2 * n : -n]), max(memory[-n:])  # the first half warms up
    for line in wrong[:10]:
        print(f"     {line}")
    points = {
        f"{len(wrong)} replies wrong, cut or refused": not wrong,
        f"at most {third / 2**20:.1f} MiB resident in the third quarter of the requests, "
        f"{last / 2**20:.1f} in the last": 0 < last <= GROWTH * third,
    }
    for text, holds in points.items():
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    return not all(points.values())


if __name__ == "__main__":
    sys.exit(main())
