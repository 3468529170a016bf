"""Measures the time to the prompt of `tgr-local chat` and of `tgr-local --help`; exit code 1 where
a median misses its goal.

    python bench/startup.py --runs 15

The conversation runs in a pseudo-terminal that answers as a terminal does; the clock stops at the
prompt. Every run is a process of its own, with the files in the system's cache. On a busy
machine the CPU time, which includes the end of the process, is more reliable than the clock.
"""

from __future__ import annotations

import argparse
import os
import pty
import resource
import select
import subprocess
import sys
import time

from tgr_local.lab.bench.measure import Spread

GOALS = {"help": 0.15, "prompt": 0.5}  # seconds


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tgr_local", *arguments]


def cpu_seconds() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_to_help() -> float:
    start = time.monotonic()
    subprocess.run(command("--help"), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - start


def seconds_to_prompt() -> float:
    """RuntimeError with the output if no prompt appears."""
    start = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        words = command("chat", "--no-save")
        os.execve(words[0], words, os.environ | {"TERM": "xterm-256color"})
    screen, took = b"", 0.0
    try:
        while not took and select.select([terminal], [], [], 30)[0]:
            screen += (fresh := os.read(terminal, 65536))
            if b"\x1b[6n" in fresh:  # where is the cursor?
                os.write(terminal, b"\x1b[3;1R")
            if b">>>" in screen:
                took = time.monotonic() - start
        os.write(terminal, b"\x04")
    except OSError:  # it has ended
        pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    if not took:
        raise RuntimeError(f"no prompt came: {screen.decode('utf-8', 'replace')}")
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    passed = True
    for name, measure in (("help", seconds_to_help), ("prompt", seconds_to_prompt)):
        measure()  # fills the system's cache
        cpu = cpu_seconds()
        took = Spread.of([measure() for _ in range(runs)])
        cpu = (cpu_seconds() - cpu) / runs
        passed &= took.median <= GOALS[name]
        print(f"{name}: median {took} s of {runs} runs, goal {GOALS[name]}; processor {cpu:.3f}")
    print("passed" if passed else "FAILED")
    return not passed


if __name__ == "__main__":
    sys.exit(main())
