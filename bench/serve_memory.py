"""Memory of `tgr-local serve`, of `tgr-local chat`, and of llama-server beside them.

    python bench/serve_memory.py MODEL.gguf [-c N] [--llama-server FILE] [FLAG of serve and chat …]

Prints a Markdown table: MB that a process has resident (Rss), its share where several map the same
(Pss), what is its own (Private), and of that what is of no file (cache, buffers, Python); for serve
the cells of its KV cache too. Measured when the program is ready, after one request with a prompt
of about a thousand tokens, after eight clients at a time with a conversation each, and a minute
after the last of them. The clients want 32 tokens each, and say so with `max_tokens`, or with
--unlimited leave after them; `chat`, which has one client, gets the long prompt alone. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from target import Target, start, start_llama_server

N_CLIENTS, N_TOKENS, REST = 8, 32, 60.0
LONG = "Sum up: " + " ".join(f"Item {i} costs {i * 7 % 90} coins." for i in range(100))
FIELDS = ("Rss", "Pss", "Private_Clean", "Private_Dirty", "Anonymous")


def row(program: str, when: str, pid: int, cells: str = "") -> None:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    values = [int(re.search(rf"^{name}:\s+(\d+)", text, re.M)[1]) * 1024 / 1e6 for name in FIELDS]
    rss, pss, clean, dirty, anonymous = values
    numbers = " | ".join(f"{n:,.0f}" for n in (rss, pss, clean + dirty, anonymous))
    print(f"| {program} | {when} | {numbers} | {cells} |", flush=True)


def ask(url: str, text: str, limit: dict[str, int]) -> None:
    body = {"messages": [{"role": "user", "content": text}], "stream": True} | limit
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None) as response:
        response.raise_for_status()
        for n, _ in enumerate(s for s in response.iter_lines() if s.startswith("data: {")):
            if not limit and n >= N_TOKENS:
                return


def server(name: str, target: Target, limit: dict[str, int]) -> None:
    """Its rows; it is stopped at the end."""

    def noted(when: str) -> None:
        metrics = httpx.get(f"{target.url}/metrics", timeout=60).text  # llama-server has none
        match = re.search(r"^tgr_engine_n_ctx\S* (\S+)$", metrics, re.M)
        row(name, when, target.pid, f"{float(match[1]):,.0f}" if match else "")

    try:
        noted("ready")
        ask(target.url, LONG, limit)
        noted("one request")
        texts = [f"You are number {i}. " * 25 + "Count to twenty." for i in range(N_CLIENTS)]
        with ThreadPoolExecutor(N_CLIENTS) as clients:
            list(clients.map(lambda text: ask(target.url, text, limit), texts))  # or raises
        noted(f"{N_CLIENTS} clients")
        time.sleep(REST)
        noted(f"{REST:.0f} s later")
    finally:
        target.stop(30)


def chat(command: list[str]) -> None:
    command = [*command, "--no-save", "--max-tokens", str(N_TOKENS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        replies = iter(process.stdout.readline, "")

        def say(text: str, wanted: str) -> None:
            with contextlib.suppress(BrokenPipeError):
                os.write(process.stdin.fileno(), f"{text}\n/show conversation\n".encode())
            if not any(wanted in line for line in replies):
                sys.exit(f"chat has ended before it showed {wanted!r}; run it alone: {command}")

        say("Hi.", "Hi.")
        row("chat", "ready, after a greeting", process.pid)
        say(LONG, "Item 99")
        row("chat", "one request", process.pid)
        time.sleep(REST)
        row("chat", f"{REST:.0f} s later", process.pid)
        process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--llama-server", metavar="FILE")
    parser.add_argument("--unlimited", action="store_true")
    parser.add_argument("-c", dest="n_ctx")
    args, flags = parser.parse_known_args()
    print("| program | when | Rss, MB | Pss | private | of no file | cells |")
    print("|---|---|---|---|---|---|---|")
    model_flags = ["-m", args.model, *(["-c", args.n_ctx] if args.n_ctx else [])]
    limit = {} if args.unlimited else {"max_tokens": N_TOKENS}
    server("serve", start([*model_flags, *flags]), limit)
    chat([sys.executable, "-m", "tgr_local", "chat", *model_flags, *flags])
    if args.llama_server:
        server("llama-server", start_llama_server(args.llama_server, model_flags), limit)


if __name__ == "__main__":
    main()
