"""This server and llama-server side by side: tokens per second, gaps between events, first tokens.

    python bench/server_speed.py --peer LLAMA_SERVER                     # 1, 8 and 32 clients
    python bench/server_speed.py --peer LLAMA_SERVER --only prompt,chat --model FILE
    python bench/server_speed.py --base OTHER/python                     # two versions of this one

`--peer` is a llama-server made from the source of the installed llama-cpp-python, with the same
options of ggml; it has its own defaults. Where gcc before 14 built it on a machine with AMX, it
needs `--peer-args=--no-repack`, without which it ends in a wrong instruction. `--base` is a Python
in whose environment another version of this package is installed. All servers load the same file
(by default the embedded model) with the same number of threads and get the same requests, and are
loaded in turns, every second round backwards; a ratio compares two measurements of the same round.

- `load`: clients that stream chats of `--tokens` tokens, `--replies` each, without a pause. Every
  reply has its full length: a logit bias forbids the end tokens. With `--unlimited` no request
  names `max_tokens`, and a reply ends where its model ends it. No prompt is remembered. A gap
  is the time between two events of a stream that carry text; first is the time from the request
  to the first of them.
- `prompt`: the time to the first text after a prompt of `--prompt-tokens` tokens that nobody has
  read, then after the same prompt. Prompts are remembered.
- `chat`: the same at turn `--turns` of a chat that has some `--prompt-tokens` tokens by then, and
  how many tokens of the prompt were decoded for it, as the server reports it: the median of
  `--last` different questions.

The clients are coroutines of one process, which parses no JSON while a reply comes. `client` is
its share of a core: above one half, it may be the bottleneck. `cpu` is the processor time of the
server for a token, which a busy machine changes less than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from target import Target, cpu_seconds, start, start_llama_server

from tgr_local.engine import Engine
from tgr_local.lab.bench.measure import Spread
from tgr_local.options.config import EngineConfig
from tgr_local.options.model_files import embedded_model

Json = dict[str, Any]
REPLY_SECONDS = 3600.0
WORDS = ("add", "carry", "digit", "even", "factor", "half", "less", "more", "odd", "root", "sum")


# --- the clients: a process of their own ---


class Stream(asyncio.Protocol):
    """One streamed reply, sent off when the connection is made."""

    def __init__(self, body: Json, future: asyncio.Future[Stream]) -> None:
        content = json.dumps(body).encode()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content)
        ) + content
        self._done, self._rest = future, b""
        self.times: list[float] = []
        """Of the events with text."""
        self.text: list[bytes] = []
        """These events."""
        self.usage = b""
        """The event with the counts."""
        self.other: list[bytes] = []
        """All other lines, for errors."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.start = time.monotonic()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if b'content":"' in line and b'content":""' not in line:
                self.times.append(now)
                self.text.append(line)
            elif b'"usage":{' in line:
                self.usage = line
            elif b"[DONE]" in line or (len(line) > 8 and len(self.other) < 32):
                self.other.append(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end = time.monotonic()
        if not self._done.done():
            self._done.set_result(self)

    def result(self) -> Json:
        """What is reported of this reply. RuntimeError for one that did not come to its end."""
        if not self.times or not self.usage or not any(b"[DONE]" in line for line in self.other):
            raise RuntimeError(f"a reply did not come: {b' '.join(self.other)[:600]!r}")
        counts = json.loads(self.usage.removeprefix(b"data: "))
        usage = counts["usage"]
        details = usage.get("prompt_tokens_details") or {}
        decoded = usage["prompt_tokens"] - details.get("cached_tokens", 0)
        if "timings" in counts:  # llama-server's
            decoded = counts["timings"]["prompt_n"]
        return {
            "start": self.start,
            "end": self.end,
            "first": self.times[0] - self.start,
            "gaps": [b - a for a, b in zip(self.times, self.times[1:], strict=False)],
            "tokens": usage["completion_tokens"],
            "prompt_tokens": usage["prompt_tokens"],
            "decoded": decoded,
            "text": "".join(_content(line) for line in self.text),
        }


def _content(line: bytes) -> str:
    choice = json.loads(line.removeprefix(b"data: "))["choices"][0]
    return choice["delta"].get("content") or ""


async def _ask(port: int, body: Json) -> Stream:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Stream] = loop.create_future()
    await loop.create_connection(lambda: Stream(body, future), "127.0.0.1", port)
    return await asyncio.wait_for(future, REPLY_SECONDS)


async def _clients(port: int, bodies: list[list[Json]]) -> Json:
    """Every client sends its bodies one after the other."""

    async def client(own: list[Json]) -> list[Stream]:
        return [await _ask(port, body) for body in own]

    cpu_before, start = time.process_time(), time.monotonic()
    streams = await asyncio.gather(*(client(own) for own in bodies))
    wall = time.monotonic() - start
    share = (time.process_time() - cpu_before) / wall
    return {"share": share, "replies": [stream.result() for own in streams for stream in own]}


def run_clients() -> None:
    """The main function of the process: a port and bodies in, replies out, in JSON."""
    request = json.load(sys.stdin)
    json.dump(asyncio.run(_clients(request["port"], request["bodies"])), sys.stdout)


# --- the servers ---


@dataclass
class Server:
    """A server under measurement."""

    name: str
    target: Target

    def ask(self, bodies: list[list[Json]]) -> Json:
        """The replies to the clients' bodies, with the server's processor time."""
        cpu_before = cpu_seconds(self.target.pid)
        ended = subprocess.run(
            [sys.executable, __file__, "--clients-only"],
            input=json.dumps({"port": self.target.address[1], "bodies": bodies}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        report: Json = json.loads(ended.stdout)
        return report | {"cpu": cpu_seconds(self.target.pid) - cpu_before}


def start_ours(name: str, python: str, arguments: argparse.Namespace, remembers: bool) -> Server:
    """A server of this package, as installed for `python`."""
    flags = [
        f"--model={arguments.model}", "--method=base", f"--n-threads={arguments.threads}",
        f"--max-running={max(arguments.clients)}", "--shutdown-seconds=1",
    ]  # fmt: skip
    flags += [] if remembers else ["--prefix-cells=0"]
    flags += [f"--n-ctx={arguments.cells}"] if arguments.cells else []
    return Server(name, start(flags, python=python))


def start_peer(arguments: argparse.Namespace, remembers: bool) -> Server:
    """llama-server, with a slot for each client."""
    slots = max(arguments.clients)
    flags = [
        *("-m", str(arguments.model), "-np", str(slots)),
        *("-t", str(arguments.threads), "-tb", str(arguments.threads)),
        *("-c", str(arguments.cells or slots * arguments.slot_cells)),
        *("--reasoning-format", "none"),
        *(() if remembers else ("--no-cache-prompt", "--cache-ram", "0")),
        *arguments.peer_args.split(),
    ]
    return Server("llama-server", start_llama_server(arguments.peer, flags))


@contextlib.contextmanager
def servers(arguments: argparse.Namespace, *, remembers: bool) -> Iterator[list[Server]]:
    """All contenders, ours first. `remembers`: they may reuse what they have read."""
    running = [start_ours("tgr-local", sys.executable, arguments, remembers)]
    try:
        if arguments.base:
            running.append(start_ours("base", arguments.base, arguments, remembers))
        if arguments.peer:
            running.append(start_peer(arguments, remembers))
        yield running
    finally:
        for server in running:
            server.target.stop(30)


# --- what is measured ---


def _user(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


@dataclass
class Work:
    """What is asked; each kind gives the figures of a server in a round."""

    options: argparse.Namespace
    engine: Engine

    def body(self, messages: list[Json], n_tokens: int, seed: int) -> Json:
        whole = {"max_tokens": n_tokens} | {
            "logit_bias": {str(token): -100 for token in self.engine.end_tokens}
        }
        return ({} if self.options.unlimited else whole) | {
            "messages": messages, "seed": seed, "temperature": 1.0,
            "top_k": 0, "top_p": 1.0, "min_p": 0.0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip

    def words(self, draw: random.Random, n_tokens: int) -> str:
        """A text of about so many tokens."""
        each = len(self.engine.tokenize(" ".join(WORDS))) / len(WORDS)
        return " ".join(draw.choice(WORDS) for _ in range(max(1, int(n_tokens / each))))

    def load(self, server: Server, turn: int, n_clients: int) -> Json:
        draw, n_tokens = random.Random(turn * 1000 + n_clients), self.options.tokens

        def question() -> Json:
            text = f"[{draw.randrange(10**6)}] What is {draw.randrange(99)} * 7 + 12?"
            return self.body(_user(text), n_tokens, draw.randrange(2**31))

        n_replies = self.options.replies
        report = server.ask([[question() for _ in range(n_replies)] for _ in range(n_clients)])
        replies = report["replies"]
        lengths = [reply["tokens"] for reply in replies]
        if not self.options.unlimited and set(lengths) != {n_tokens}:
            raise RuntimeError(f"{server.name} wrote a reply of another length")
        wall = max(reply["end"] for reply in replies) - min(reply["start"] for reply in replies)
        gaps = sorted(1000 * gap for reply in replies for gap in reply["gaps"])
        return {
            "tokens/s": sum(lengths) / wall,
            "p50 gap ms": gaps[len(gaps) // 2],
            "p99 gap ms": gaps[int(len(gaps) * 0.99)],
            "largest gap ms": gaps[-1],
            "first ms": 1000 * statistics.median(reply["first"] for reply in replies),
            "text events": (len(gaps) + len(replies)) / sum(lengths),
            "cpu ms": 1000 * report["cpu"] / sum(lengths),
            "client": report["share"],
        }

    def prompt(self, server: Server, turn: int) -> Json:
        """The first and the second reading of a prompt."""
        text = self.words(random.Random(turn), self.options.prompt_tokens)
        body = self.body(_user(text), 4, 1)
        first, second = (server.ask([[body]])["replies"][0] for _ in range(2))
        return {
            "prompt tokens": first["prompt_tokens"],
            "first reading s": first["first"],
            "second reading s": second["first"],
            "decoded again": second["decoded"],
        }

    def chat(self, server: Server, turn: int) -> Json:
        """The last turn of a chat."""
        draw, messages, n_reply = random.Random(turn), list[Json](), 16
        n_turns = self.options.turns
        each = max(1, self.options.prompt_tokens // (n_turns - 1) - n_reply - 12)
        for number in range(n_turns - 1):
            messages += _user(self.words(draw, each))
            reply = server.ask([[self.body(messages, n_reply, number)]])["replies"][0]
            messages.append({"role": "assistant", "content": reply["text"]})
        questions = [_user(self.words(draw, 24)) for _ in range(self.options.last)]
        last = [
            server.ask([[self.body([*messages, *question], n_reply, n_turns)]])
            for question in questions
        ]
        replies = [report["replies"][0] for report in last]
        return {
            "prompt tokens": statistics.median(reply["prompt_tokens"] for reply in replies),
            "decoded": statistics.median(reply["decoded"] for reply in replies),
            "first s": statistics.median(reply["first"] for reply in replies),
            "cpu s": statistics.median(report["cpu"] for report in last),
        }


# --- the report ---


def compare(
    title: str, running: list[Server], measure: Callable[[Server, int], Json], n_rounds: int
) -> None:
    """Rounds in which every server is measured once; prints the table."""
    rounds: list[dict[str, Json]] = []
    for turn in range(n_rounds + 1):
        order = running if turn % 2 else running[::-1]
        figures = {server.name: measure(server, turn) for server in order}
        if turn:  # the first one warms up
            rounds.append(figures)
        print(f"{title}: round {turn} of {n_rounds}", end="\r", file=sys.stderr)
    print(f"\n{title}: median (range) of {n_rounds} rounds, load {os.getloadavg()[0]:.1f}")
    ours = running[0].name
    for quantity in rounds[0][ours]:
        cells = [f"{name} {Spread.of([figures[name][quantity] for figures in rounds])}"
                 for name in rounds[0]]  # fmt: skip
        for name in (server.name for server in running[1:]):
            if all(figures[name][quantity] for figures in rounds):
                ratios = [figures[ours][quantity] / figures[name][quantity] for figures in rounds]
                cells.append(f"ratio to {name} {Spread.of(ratios)}")
        print(f"  {quantity:16}  " + "  |  ".join(sorted(cells)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="llama-server")
    parser.add_argument("--peer-args", default="", help="more of its arguments, with spaces")
    parser.add_argument("--base", help="Python of another version of this package")
    parser.add_argument("--model", type=Path, default=embedded_model())
    parser.add_argument("--only", default="load", help="load, prompt, chat; with commas")
    parser.add_argument(
        "--clients", type=lambda t: [int(n) for n in t.split(",")], default="1,8,32"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replies", type=int, default=2, help="of each client in a round")
    parser.add_argument("--tokens", type=int, default=256, help="of a reply")
    parser.add_argument("--cells", type=int, default=0, help="of each server's cache (-c)")
    parser.add_argument("--unlimited", action="store_true", help="without max_tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--last", type=int, default=5, help="versions of the last turn in a round")
    parser.add_argument("--clients-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.clients_only:
        run_clients()
        return 0
    kinds = arguments.only.split(",")
    if unknown := set(kinds) - {"load", "prompt", "chat"}:
        parser.error(f"--only names {sorted(unknown)}, but has load, prompt and chat")
    with Engine(arguments.model, EngineConfig(n_ctx=64, n_gpu_layers=0)) as engine:
        work, most = Work(arguments, engine), engine.n_ctx_train
        arguments.slot_cells = min(most, arguments.tokens + 256)
        if "load" in kinds:
            with servers(arguments, remembers=False) as running:
                for n in arguments.clients:
                    load = functools.partial(work.load, n_clients=n)
                    compare(f"{n} clients", running, load, arguments.rounds)
        arguments.clients, arguments.slot_cells = [2], min(most, arguments.prompt_tokens + 1024)
        for kind, measure in (("prompt", work.prompt), ("chat", work.chat)):
            if kind in kinds:
                with servers(arguments, remembers=True) as running:
                    compare(kind, running, measure, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
