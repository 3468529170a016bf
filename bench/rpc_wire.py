"""What crosses the network when the layers of a model are on RPC servers, and what it costs.

    python bench/rpc_wire.py [--model FILE] [--servers 1,2,4] [--steps 64]

So many servers on this machine, each behind a proxy that counts bytes. Prompts of 128 tokens, then
steps of 1 and of 8 sequences, with and without an injection on every layer and states that are
read; and the same steps without servers. The largest difference is that of the 64 best
log-probabilities of the first step: later the texts may part where two tokens are as likely.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from rpc_servers import server

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.options import model_files
from tgr_local.options.config import EngineConfig
from tgr_local.search import geometry

PROMPT = 128


class Wire:
    """A proxy to a server that counts the bytes of both directions."""

    def __init__(self, server_port: int) -> None:
        self.sent = self.received = 0
        self._server_port = server_port
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()
        self._ready.wait()

    async def _run(self) -> None:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        await listening.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = await asyncio.open_connection("127.0.0.1", self._server_port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link[1].get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(self._copy(reader, link[1], "sent"),
                             self._copy(link[0], writer, "received"))  # fmt: skip

    async def _copy(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, name: str
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 20):
                setattr(self, name, getattr(self, name) + len(data))
                to.write(data)
                await to.drain()
        to.close()


@contextlib.contextmanager
def servers(n_servers: int) -> Iterator[list[Wire]]:
    """Servers on this machine, behind proxies."""
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(server())[0] for _ in range(n_servers)]
        yield [Wire(int(address.rpartition(":")[2])) for address in addresses]


def counted(wires: list[Wire]) -> tuple[int, int]:
    return sum(wire.sent for wire in wires), sum(wire.received for wire in wires)


def cases(engine: Engine, wires: list[Wire], n_steps: int) -> dict[str, Any]:
    """Bytes and seconds of each case, and the log-probabilities of its texts."""
    results: dict[str, Any] = {}
    draw = np.random.default_rng(1)
    tokens = draw.integers(0, engine.n_vocab - 1, PROMPT).tolist()
    maps = geometry.InjectionMaps.draw(engine.n_layer, engine.n_embd, engine.n_embd, 8, 1)
    vectors = np.float32(0.01) * maps.vectors(
        geometry.unit(draw.standard_normal((8, engine.n_embd)))
    )
    greedy = {"sampling": Sampling(temperature=0), "ignore_eog": True}
    for n, steered in ((1, False), (8, False), (8, True)):
        with engine.session(8 * (PROMPT + n_steps + 8), 9) as session:
            prefix = session.sequence()
            bytes_before, begun = counted(wires), time.monotonic()
            # a token, since without one nobody waits for what a server computes
            session.run([Task(prefix, tokens[:-1], n_generate=1, **greedy)])
            results[f"prompt of {PROMPT}"] = (*np.subtract(counted(wires), bytes_before),
                                            1000 * (time.monotonic() - begun), PROMPT)  # fmt: skip
            prefix.truncate(PROMPT - 1)
            injections = [session.injection(v) for v in vectors] if steered else []
            forks = [prefix.fork() for _ in range(n)]
            tasks = [
                Task(fork, tokens[-1:], n_generate=n_steps, states=steered, n_top=64,
                     injection=injections[i] if steered else None, **greedy)
                for i, fork in enumerate(forks)
            ]  # fmt: skip
            bytes_before, begun = counted(wires), time.monotonic()
            graphs = engine.stats().n_graphs
            outputs = session.run(tasks)
            name = f"step of {n}" + (", injections and states" if steered else "")
            results[name] = (*np.subtract(counted(wires), bytes_before) / n_steps,
                           1000 * (time.monotonic() - begun) / n_steps, n,
                           np.concatenate([output.top_logprobs[0] for output in outputs]),
                           (engine.stats().n_graphs - graphs) / n_steps)  # fmt: skip
    return results


def rows(number: str, here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    """Lines of the table for so many servers, or "none"."""
    for name, (sent, received, ms, _, *more) in there.items():
        differ, graphs = "-", "-"
        if more:
            differ = f"{np.abs(more[0] - here[name][4]).max():.1e}"
            graphs = f"{more[1]:.2f}"
        yield (
            f"| {number} | {name} | {sent / 1e3:.1f} | {received / 1e3:.1f} | {ms:.1f} | "
            f"{here[name][2] / ms:.2f} | {graphs} | {differ} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--servers", default="1,2,4")
    parser.add_argument("--steps", type=int, default=64)
    options = parser.parse_args()
    path = options.model or model_files.embedded_model()
    exact: dict[str, Any] = {"n_threads": 1, "flash_attn": "off", "prefix_cells": 0}
    with Engine(path, EngineConfig(n_gpu_layers=0, **exact)) as engine:
        print(f"{path.name}: {engine.n_layer} layers of width {engine.n_embd}")
        here = cases(engine, [], options.steps)
    table = [*rows("none", here, here)]
    for n_servers in map(int, options.servers.split(",")):
        with servers(n_servers) as wires:
            names = ",".join(f"127.0.0.1:{wire.port}" for wire in wires)
            split = (1.0,) * len(wires)
            with Engine(path, EngineConfig(rpc=names, tensor_split=split, **exact)) as engine:
                print(f"{n_servers}: on {', '.join(sorted(set(engine.devices())))}; "
                      f"loading sent {counted(wires)[0] / 1e6:.1f} MB")  # fmt: skip
                table += rows(str(n_servers), here, cases(engine, wires, options.steps))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}\n")
    print("| servers | what | sent, kB | received, kB | ms | speed | new graphs | differs by |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
