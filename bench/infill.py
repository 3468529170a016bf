"""Completion in an editor: how long a person who types waits for /infill.

    python bench/infill.py --files 3                     # random weights in the shape of Qwen3-0.6B
    python bench/infill.py --peer LLAMA_SERVER --peer-args=--no-repack

A person types a line in the middle of a file of Python's standard library. The requests are those
of llama.vim: up to 256 lines before, 64 lines after, the line up to the cursor as `prompt`.

- `open`: the first request in a file, of which nothing was read before.
- `key`: after each --keys typed characters; the server has read all but these.
- `ahead`: llama.vim's request for what follows the suggestion that it shows.
- `next line`: the line is complete, the cursor is in the next one. The text before the gap got
  longer by a line, so what comes after the gap is read again; beyond --before lines the window
  moves, and all is read again.

`one`, `eight`: answers of that many tokens, streamed. `noise`: llama.vim's own request (128 tokens,
not streamed, t_max_predict_ms 250). Random weights write no line breaks, so all 128 tokens come;
with a --model that writes lines, the answer ends with the first line break after the 250 ms.
Times are in ms, to the first text and to the whole answer; `read` are the tokens of the prompt that
were decoded, `written` those of the answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import server_speed

from tgr_local.lab.bench import shapes

Json = dict[str, Any]
Figures = dict[tuple[str, str], list[Json]]
BEFORE, AFTER = 256, 64  # lines, as llama.vim has it
FIELDS = [
    "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
    "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
    "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached",
]  # fmt: skip
ANSWERS: dict[str, Json] = {
    "one": {"n_predict": 1, "stream": True},
    "eight": {"n_predict": 8, "stream": True},
    "noise": {},
}


@dataclass
class Place:
    """A cursor in a file: `typed` characters of line `at` are there, and no others of it."""

    lines: list[str]
    at: int
    typed: int

    before: int = BEFORE
    after: int = AFTER

    def body(self, seed: int, more: str = "", t_max_predict_ms: int = 250) -> Json:
        """llama.vim's request; `more` is the suggestion that it shows."""
        line = self.lines[self.at]
        before = self.lines[max(0, self.at - self.before) : self.at]
        after = self.lines[self.at + 1 : self.at + 1 + self.after]
        return {
            "id_slot": 0,
            "input_prefix": "\n".join(before) + "\n",
            "input_suffix": "\n" + "\n".join(after) + "\n",
            "input_extra": [],
            "prompt": line[: self.typed] + more,
            "n_predict": 128,
            "stop": [],
            "n_indent": len(line) - len(line.lstrip()),
            "top_k": 40,
            "top_p": 0.90,
            "samplers": ["top_k", "top_p", "infill"],
            "stream": False,
            "cache_prompt": True,
            "t_max_prompt_ms": 500,
            "t_max_predict_ms": t_max_predict_ms,
            "response_fields": FIELDS,
            "seed": seed,
        }


def places(n: int, seed: int) -> Iterator[Place]:
    """Places in files of the standard library, where a line of code begins."""
    draw = random.Random(seed)
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in draw.sample(sorted(folder.glob("*.py")), 64):
        lines = path.read_text("utf-8").splitlines()
        found = [
            at
            for at in range(AFTER, min(BEFORE, len(lines) - AFTER))
            if len(lines[at].strip()) >= 40 and lines[at].startswith("    ") and lines[at + 1]
        ]
        if found and n:
            at, n = draw.choice(found), n - 1
            yield Place(lines, at, len(lines[at]) - len(lines[at].lstrip()) + 4)


def ask(port: int, body: Json) -> Json:
    """Times and counts of an answer, over a connection of its own, as curl has it."""
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/infill", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    first, texts, end = 0.0, list[str](), dict[str, Any]()
    for line in response:
        if (text := line.removeprefix(b"data: ")).startswith(b"{"):  # no comment
            end = json.loads(text)
            texts.append(end.get("content", ""))
            first = first or (time.monotonic() - start if texts[-1] else 0.0)
    whole = time.monotonic() - start
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"the request was refused: {end}")
    timings = end.get("timings") or {name.partition("/")[2]: end[name] for name in end}
    return {
        "text": "".join(texts),
        "first ms": 1000 * (first or whole),
        "whole ms": 1000 * whole,
        "read": timings["prompt_n"],
        "written": timings["predicted_n"],
    }


def replay(port: int, place: Place, arguments: argparse.Namespace, figures: Figures) -> None:
    """A person types a line and goes on to the next one."""

    def measure(case: str, answer: str, body: Json) -> str:
        figures[case, answer].append(made := ask(port, body | ANSWERS[answer]))
        text: str = made.pop("text")
        counts = ", ".join(f"{name} {value:.0f}" for name, value in made.items())
        print(f"{case}, {answer}: {counts}", file=sys.stderr, flush=True)
        return text

    measure("open", "one", place.body(0))
    line = place.lines[place.at]

    def type_on() -> Place:
        place.typed = min(place.typed + arguments.keys, len(line))
        return place

    for turn in range(arguments.turns):
        for answer in ("one", "eight"):
            shown = measure("key", answer, type_on().body(turn))
        measure("ahead", "eight", place.body(turn, shown.partition("\n")[0], 1000))
    measure("key", "noise", type_on().body(0))
    place.at += 1
    place.typed = len(place.lines[place.at]) - len(place.lines[place.at].lstrip())
    measure("next line", "one", place.body(0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="0.6b")
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--model", type=Path, help="a file instead of random weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2, help="rounds of all answers in each file")
    parser.add_argument("--before", type=int, default=BEFORE, help="lines before the cursor")
    parser.add_argument("--after", type=int, default=AFTER, help="lines after it")
    parser.add_argument("--keys", type=int, default=3, help="characters between two requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", help="llama-server, as for server_speed.py")
    parser.add_argument("--peer-args", default="")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    arguments.model = arguments.model or shapes.model_file(arguments.shape, arguments.type)
    arguments.base, arguments.clients, arguments.slot_cells = None, [1], 16384
    figures: dict[str, Figures] = {}
    with server_speed.servers(arguments, remembers=True) as running:
        for number, place in enumerate(places(arguments.files, arguments.seed)):
            for server in running if number % 2 == 0 else reversed(running):
                figures.setdefault(server.name, defaultdict(list))
                lines = arguments.before, arguments.after
                copy = Place(place.lines, place.at, place.typed, *lines)
                replay(server.port, copy, arguments, figures[server.name])
    for name, of in figures.items():
        print(f"\n{name}: median (range)")
        for (case, answer), rows in of.items():
            cells = [
                f"{quantity} {_spread([row[quantity] for row in rows])}"
                for quantity in ("first ms", "whole ms", "read", "written")
            ]
            print(f"  {case:9} {answer:5}  " + "  |  ".join(cells))
    if arguments.json:
        found = [[name, *key, rows] for name, of in figures.items() for key, rows in of.items()]
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    sys.exit(main())
