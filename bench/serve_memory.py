"""Resident memory of `tgr-local serve`: ready, after a reply, with eight clients, and idle again.

    python bench/serve_memory.py MODEL.gguf [FLAG of serve …]

Prints a Markdown table: MB of no file (cache, buffers, Python), MB of mapped files (the weights),
and cells of the KV cache. The clients ask for 64 tokens each, first with `max_tokens` and then
without, where the server keeps room for a long reply; they leave after 64 tokens. Linux only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

N_CLIENTS, N_TOKENS = 8, 64
REST = 25.0  # seconds; the server gives back what it does not need after 20


def resident(pid: int) -> tuple[float, float]:
    """Megabytes of a process that are of no file, and of mapped files."""
    text = Path(f"/proc/{pid}/status").read_text()
    anonymous, mapped = (
        int(re.search(rf"{name}:\s+(\d+)", text)[1]) for name in ("RssAnon", "RssFile")
    )
    return anonymous * 1024 / 1e6, mapped * 1024 / 1e6


def ask(url: str, text: str, *, bounded: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "tgr": {"method": "base"},
    }
    if bounded:
        body["max_tokens"] = N_TOKENS
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        for n, _ in enumerate(line for line in response if line.startswith(b"data: {")):
            if n >= N_TOKENS:
                return


def cells(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        return int(
            float(
                re.search(r"^tgr_engine_n_ctx(?:\{.*\})? (\S+)$", response.read().decode(), re.M)[1]
            )
        )


def main(model: str, *flags: str) -> None:
    command = [sys.executable, "-m", "tgr_local", "serve", "-m", model, "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        url = ""
        for line in server.stderr:
            if "listening on" in line:
                url = line.split()[-1]
            if "is ready" in line:
                break
        threading.Thread(target=server.stderr.read, daemon=True).start()
        print("| | of no file, MB | weights, MB | cells |\n|---|---|---|---|")

        def row(name: str) -> None:
            anonymous, mapped = resident(server.pid)
            print(f"| {name} | {anonymous:,.0f} | {mapped:,.0f} | {cells(url):,} |", flush=True)

        row("ready")
        ask(url, "Name a fruit.", bounded=True)
        row("after one reply")
        for bounded in (True, False):
            clients = [
                threading.Thread(
                    target=ask, args=(url, f"Count from {i} to 40."), kwargs={"bounded": bounded}
                )
                for i in range(N_CLIENTS)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            tokens = "`max_tokens` 64" if bounded else "no `max_tokens`"
            row(f"after {N_CLIENTS} clients at a time, {tokens}")
            time.sleep(REST)
            row(f"{REST:.0f} s later")
        server.terminate()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
