"""How many users a server serves: computed from the model of cost, and checked against a server.

    python bench/users.py table [--model-gb 5.0 --weights 8.2e9 --think 60 --speed 10]
    python bench/users.py check [--users 2,4,8,16] [--think 2]

A user asks, reads for `think` seconds on average, and asks again. With n replies under way a reply
takes T(n); `docs/scale.md` has its formula. The number under way is then a birth-death process: at
n, users ask at rate (N - n) / think, and replies end at rate m / T(m), m = min(n, n_max). Its
solution does not depend on how reply and think times are spread, but for their means.

`table` prints the largest N with a mean time for a reply that gives `speed` tokens a second, and
the limit of replies at a time with which it is largest.
`check` starts `tgr-local serve` with the embedded model, measures T(1) and T(8) with users who do
not think, predicts all other numbers of users from these two, and measures them too, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
from server_load import server

from tgr_local.lab.bench.measure import Spread

PROMPT, CHUNK, ROLLOUT, K = 1000, 512, 32, 8  # tokens, tokens, tokens, candidates
LENGTHS = (512, 2048, 8192)  # of a reply, tokens
LAYERS, HEADS, KV_HEADS, WIDTH = 36, 32, 8, 128  # Qwen3 4B and 8B
CELL_BYTES = LAYERS * KV_HEADS * 2 * WIDTH * 2  # F16
CELL_PRODUCTS = LAYERS * HEADS * 2 * WIDTH
MEMORY_SHARE, BANDWIDTH_SHARE, RATE_SHARE = 0.9, 0.8, 0.4  # of a card's data sheet that are reached
SEQUENCES = 96  # n_seq_max with a large vocabulary
ROUNDS = 4
CALIBRATED = (1, 8)  # users without thinking, from which everything else is predicted
RUNNING = 8  # --max-running


@dataclass(frozen=True)
class Card:
    """A GPU, by its data sheet."""

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second."""
    rate: float
    """Multiply-adds a second: half of the dense F16 operations with F32 sums."""


CARDS = (
    Card("RTX 3060", 12e9, 360e9, 12.7e12),
    Card("RTX 3090", 24e9, 936e9, 35.6e12),
    Card("RTX 4090", 24e9, 1008e9, 82.6e12),
)


@dataclass(frozen=True)
class Load:
    """A model on a card, with one method and one length of reply."""

    card: Card
    weight_bytes: float
    weights: float
    searches: bool
    length: int

    @property
    def cells(self) -> int:
        """Of a reply at most."""
        if self.searches:
            return PROMPT + CHUNK + max(CHUNK, K * ROLLOUT)
        return PROMPT + self.length

    @property
    def n_max(self) -> int:
        """Replies at a time that memory and sequences allow."""
        room = MEMORY_SHARE * self.card.memory - self.weight_bytes
        most = SEQUENCES // K if self.searches else SEQUENCES
        return max(0, min(most, int(room // (self.cells * CELL_BYTES))))

    def step(self, n_texts: int, n_cells: float) -> float:
        """Seconds of a step of n texts that all attend, masked, to all cells of the cache."""
        read = self.weight_bytes + n_cells * CELL_BYTES
        products = n_texts * (self.weights + n_cells * CELL_PRODUCTS)
        return max(
            read / (BANDWIDTH_SHARE * self.card.bandwidth), products / (RATE_SHARE * self.card.rate)
        )

    def reply(self, n: int) -> float:
        """T(n): seconds of a reply while n are under way."""
        prefill = self.weights / (RATE_SHARE * self.card.rate)  # of a token
        if not self.searches:
            n_cells = n * (PROMPT + self.length / 2)
            return self.length * self.step(n, n_cells) + n * PROMPT * prefill
        n_cells = n * (PROMPT + 1.5 * CHUNK)
        token = (1 + 2 / CHUNK) * self.step(n, n_cells) + n * prefill
        token += ROLLOUT / CHUNK * self.step(n * K, n_cells)
        return self.length * token + n * PROMPT * prefill


def closed(n_users: int, think: float, n_max: int, reply: Callable[[int], float]) -> float:
    """Mean seconds from a question to the end of its reply, the queue included."""
    if not think:
        return n_users / (min(n_users, n_max) / reply(min(n_users, n_max)))
    logs = [0.0]
    for n in range(1, n_users + 1):
        m = min(n, n_max)
        logs.append(logs[-1] + math.log((n_users - n + 1) / think * reply(m) / m))
    chances = [math.exp(log - max(logs)) for log in logs]
    total = sum(chances)
    under_way = sum(n * chance for n, chance in enumerate(chances)) / total
    rate = (n_users - under_way) / think  # a second
    return under_way / rate


def most_users(load: Load, n_max: int, think: float, speed: float) -> int:
    """The largest number of users whose replies come at that speed on average, where at most n_max
    are under way."""
    low, high = 0, 1
    while closed(high, think, n_max, load.reply) <= load.length / speed:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = closed(middle, think, n_max, load.reply) <= load.length / speed
        low, high = (middle, high) if fits else (low, middle)
    return low


def table(options: argparse.Namespace) -> None:
    print(
        "| card | method | reply, tokens | fit at a time | tokens/s of one alone | users | "
        "with --max-running |"
    )
    print("|---|---|---|---|---|---|---|")
    for card in CARDS:
        for searches in (False, True):
            for length in LENGTHS:
                load = Load(card, options.model_gb * 1e9, options.weights, searches, length)
                alone = f"{length / load.reply(1):.0f}" if load.n_max else "-"
                users, running = max(
                    (
                        (most_users(load, n, options.think, options.speed), -n)
                        for n in range(1, load.n_max + 1)
                    ),
                    default=(0, 0),
                )
                name = "tgr-latent" if searches else "base"
                print(
                    f"| {card.name} | {name} | {length:,} | {load.n_max} | {alone} | {users} | "
                    f"{-running} |"
                )


async def measured(url: str, n_users: int, think: float, seconds: float) -> tuple[float, int]:
    """Mean seconds of a reply for users who do nothing else, and the number of replies."""
    took: list[float] = []
    start = time.monotonic()
    end = start + seconds
    limits = httpx.Limits(max_connections=None)

    async def user(number: int, http: httpx.AsyncClient) -> None:
        draw = random.Random(number)
        await asyncio.sleep(draw.expovariate(1 / think) if think else 0)
        while time.monotonic() < end:
            numbers = [draw.randint(2, 99) for _ in range(4)]
            begun = time.monotonic()
            answer = await http.post(
                f"{url}/v1/chat/completions",
                json={
                    "messages": [
                        {"role": "user", "content": f"What is {' + '.join(map(str, numbers))}?"}
                    ],
                    "seed": draw.getrandbits(31),
                    "tgr": {"method": "base"},
                },
            )
            answer.raise_for_status()
            if begun > start + seconds / 3:  # the queue has its usual length
                took.append(time.monotonic() - begun)
            await asyncio.sleep(draw.expovariate(1 / think) if think else 0)

    async with httpx.AsyncClient(timeout=600, limits=limits) as http:
        await asyncio.gather(*(user(i, http) for i in range(n_users)))
    return statistics.mean(took), len(took)


def check(options: argparse.Namespace) -> None:
    numbers = [int(part) for part in options.users.split(",")]
    cases = [(n, 0.0) for n in CALIBRATED] + [(n, options.think) for n in numbers]
    times_of: dict[tuple[int, float], list[float]] = {case: [] for case in cases}
    n_replies = dict.fromkeys(cases, 0)
    with server(options.model, RUNNING) as target:
        url = target.url
        asyncio.run(measured(url, RUNNING, 0.0, 3))  # does not count
        for round in range(ROUNDS):
            for case in cases if round % 2 == 0 else reversed(cases):
                mean, n = asyncio.run(measured(url, *case, options.seconds))
                times_of[case].append(mean)
                n_replies[case] += n
    single, several = (Spread.of(times_of[n, 0.0]).median for n in CALIBRATED)
    each = (several - single) / (CALIBRATED[1] - CALIBRATED[0])

    def reply(n: int) -> float:
        return single + (n - 1) * each

    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; T(n) = "
          f"{1000 * (single - each):.0f} + {1000 * each:.0f} n ms\n")  # fmt: skip
    print("| users | think, s | replies | ms of a reply, computed | measured, median (range) |")
    print("|---|---|---|---|---|")
    for (n, think), times in times_of.items():
        computed = 1000 * closed(n, think, RUNNING, reply)
        note = " (by definition)" if not think else ""
        print(f"| {n} | {think:g} | {n_replies[n, think]} | {computed:.0f}{note} | "
              f"{Spread.of(times).scaled(1000)} |")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    card = parts.add_parser("table", help="users of a card, computed")
    card.add_argument("--model-gb", type=float, default=5.0, help="bytes of the weights, in 1e9")
    card.add_argument("--weights", type=float, default=8.2e9, help="numbers in the weights")
    card.add_argument("--think", type=float, default=60, help="seconds between reply and question")
    card.add_argument(
        "--speed", type=float, default=10, help="tokens a second of a reply, at least"
    )
    live = parts.add_parser("check", help="computed and measured, on a server that it starts")
    live.add_argument("--users", default="2,4,8,16")
    live.add_argument("--think", type=float, default=2)
    live.add_argument("--seconds", type=float, default=30, help="of each measurement")
    live.add_argument("--model", default="tgr-mini")
    options = parser.parse_args(argv)
    {"table": table, "check": check}[options.part](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
