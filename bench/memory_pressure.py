"""Runs tgr-local with less and less memory: a run gives its answer, or one line that says why not.

    python bench/memory_pressure.py

The limit is one on address space (`ulimit -v`), down to one in which Python alone hardly starts.
Three uses: a short answer; a prompt of 1,500 tokens in a large cache; a server, which must answer
every request with a status below 500, or 503, as long as it runs. Bad are a signal, a traceback, a
hang, more than one line of error.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from target import start

SECONDS = 300.0  # of a run, also on a busy machine
MIB = [2000, 1200, 900, 700, 600, 500, 450, 400, 375, 350, 325, 300, 275, 250, 225, 200]
RUN = [sys.executable, "-m", "tgr_local", "run", "--method=base", "--n-threads=1"]


def limited(mib: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))


def run(words: list[str], mib: int) -> str:
    """How a run ended; "BAD" before what must not be."""
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, preexec_fn=limited(mib), timeout=SECONDS,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "BAD: it hangs"
    lines = [line for line in ended.stderr.splitlines() if line.startswith("tgr-local: ")]
    if ended.returncode == 0:
        return "an answer"
    if ended.returncode < 0 or "Traceback" in ended.stderr:
        return f"BAD: {ended.returncode}, {lines[-1:] or 'without a word'}"
    if "this is a bug" in ended.stderr or len(lines) != 1:
        return f"BAD: {len(lines)} lines: {ended.stderr[:300]!r}"
    return f"refused: {lines[0][:150]}"


def serve(mib: int) -> str:
    """Eight clients ask for long replies, three times on average."""
    try:
        target = start(["--max-running=8"], mib << 20)
    except RuntimeError as error:
        text = str(error)
        if "Traceback" in text or "SIG" in text:
            return f"BAD: {text[-200:]}"
        return f"does not start: {text[-150:]}"
    body = b'{"prompt": "' + b"1+2=3, " * 60 + b'", "max_tokens": 200, "n": 4}'

    def ask(_: int) -> int:
        return target.ask("/v1/completions", body, SECONDS).status

    with ThreadPoolExecutor(8) as clients:
        statuses = list(clients.map(ask, range(24)))
    alive, lines = target.alive, list(target.lines)
    how = target.stop(30)[1] if alive else target.end
    wrong = {status for status in statuses if (status >= 500 and status != 503) or not status}
    if not alive or wrong or any("Traceback" in line for line in lines):
        return f"BAD: {how}, {sorted(wrong)}"
    return f"{len(statuses)} replies, {sorted(set(statuses))}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=MIB)
    arguments = parser.parse_args()
    n_bad, begun = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.txt")
        file.write_text("1+2=3, " * 250, encoding="utf-8")
        for mib in arguments.mib:
            outcomes = {
                "short": run([*RUN, "What is 12 + 30?"], mib),
                "long": run([*RUN, "--n-ctx=60000", f"--file={file}", "And now?"], mib),
                "server": serve(mib),
            }
            for name, text in outcomes.items():
                n_bad += text.startswith("BAD")
                print(f"{mib:5} MiB  {name:7} {text}", flush=True)
    print(f"{3 * len(arguments.mib)} runs in {time.monotonic() - begun:.0f} s, {n_bad} BAD")
    return int(n_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
