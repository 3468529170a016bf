"""Measures the time to the prompt of `tgr-local chat` and of `tgr-local --help`; prints medians and
imported modules, with exit code 1 where a goal is missed.

    python bench/startup.py --runs 15

The conversation runs in a pseudo-terminal that answers as a terminal does; the clock stops at the
prompt. Every run is a process of its own, with the files in the system's cache. On a busy
machine the CPU time, which includes the end of the process, is more reliable than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import resource
import select
import statistics
import subprocess
import sys
import time

HELP, CHAT = ["--help"], ["chat", "--no-save"]
GOALS = {"help": 0.15, "prompt": 0.5}  # seconds
HEAVY = (
    "numpy", "llama_cpp", "prompt_toolkit", "rich", "fastapi", "pydantic", "matplotlib",
    "torch",
)  # fmt: skip
LATE = {
    "help": HEAVY,
    "prompt": ("llama_cpp", "rich", "fastapi", "pydantic", "matplotlib", "torch"),
}
_CLOCK = """
import json, sys
{before}
from tgr_local.cli import main
try:
    main({arguments!r})
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "tgr_local", *arguments]


def cpu_seconds() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_to_help() -> float:
    start = time.monotonic()
    subprocess.run(command(HELP), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - start


def seconds_to_prompt() -> float:
    """RuntimeError with the output if no prompt appears."""
    start = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command(CHAT), os.environ | {"TERM": "xterm-256color"})
    shown, took = b"", 0.0
    try:
        while not took and select.select([terminal], [], [], 30)[0]:
            shown += (fresh := os.read(terminal, 65536))
            if b"\x1b[6n" in fresh:  # where is the cursor?
                os.write(terminal, b"\x1b[3;1R")
            if b">>>" in shown:
                took = time.monotonic() - start
        os.write(terminal, b"\x04")
    except OSError:  # it has ended
        pass
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    if not took:
        raise RuntimeError(f"no prompt came: {shown.decode('utf-8', 'replace')}")
    return took


def imported(arguments: list[str], before: str = "") -> set[str]:
    """The modules that a command loads."""
    script = _CLOCK.format(arguments=arguments, before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def at_the_prompt() -> set[str]:
    """The modules that are loaded when the conversation asks for the first line."""
    ends = "import tgr_local.chat.terminal as t\ndef ask(*_): raise EOFError\nt.Terminal.ask = ask"
    tty = "for file in (sys.stdin, sys.stdout): file.isatty = lambda: True"
    return imported(CHAT, f"{tty}\n{ends}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    passed = True
    for name, measure, modules in (
        ("help", seconds_to_help, imported(HELP)),
        ("prompt", seconds_to_prompt, at_the_prompt()),
    ):
        measure()  # fills the system's cache
        cpu = cpu_seconds()
        took = sorted(measure() for _ in range(runs))
        cpu = (cpu_seconds() - cpu) / runs
        early = [module for module in LATE[name] if module in modules]
        median = statistics.median(took)
        passed &= median <= GOALS[name] and not early
        print(
            f"{name}: median {median:.3f} s of {runs} runs, {took[0]:.3f} to {took[-1]:.3f}, "
            f"goal {GOALS[name]}; processor {cpu:.3f}; {len(modules)} modules, "
            f"too early: {', '.join(early) or 'none'}"
        )
    print("passed" if passed else "FAILED")
    return not passed


if __name__ == "__main__":
    sys.exit(main())
