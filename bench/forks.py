"""What fuzz_files.py and fuzz_gguf.py share: damaged files are used in forked processes, so that an
abort, a crash, a hang or a huge allocation is seen, and alike outcomes are counted together.

What must come of damage is a file that works, or an error of one line that is meant for it. Damage
number i of a seed is always the same: ``--only`` repeats one.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tgr_local.system.errors import TgrError, describe

SECONDS = 300  # of one use, also on a busy machine
CAP = 5 << 30  # bytes of address space
GOOD = ("works", "refused")


@dataclass(frozen=True)
class Fuzzer:
    """Files of some kinds, and what damages and uses them. All of it runs in a forked process."""

    damage: Callable[[int, int, Path], str]
    """Puts the damaged file of a seed and number into an empty folder; says what it did."""
    use: Callable[[int, Path], str]
    """Uses it as the commands do; says how, beginning with "works" where that is as it must be."""
    kind: Callable[[int], str]
    """The kind of file of a number."""
    refusals: tuple[type[Exception], ...]
    """The errors with which a file may be refused."""
    batch: int = 1
    """The uses of one process."""
    mib: int = 0
    """What a process may have resident; 0 = no bound."""

    def outcome(self, i: int, folder: Path) -> str:
        try:
            outcome = self.use(i, folder)
        except self.refusals as error:
            text = str(error) if isinstance(error, TgrError) else describe(error)
            unclear = "this is a bug" in text or "\n" in text or not text.strip()
            outcome = f"UNCLEAR {type(error).__name__}: {text}" if unclear else f"refused: {text}"
        except BaseException as error:
            outcome = f"UNEXPECTED {type(error).__name__}: {error}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        return f"MEMORY {peak} MiB: {outcome}" if 0 < self.mib < peak else outcome


def parser(doc: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    options.add_argument("--n", type=int, default=10_000, help="damages (10000)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    options.add_argument("--only", type=int, help="this damage number alone, in full")
    options.add_argument("--keep", type=Path, help="with --only: copy the damaged files here")
    options.add_argument("--all", action="store_true", help="print refusals too, by kind")
    return options


def child(fuzzer: Fuzzer, options: argparse.Namespace, numbers: Sequence[int], log: Path) -> None:
    """The forked process: never returns, nor does it leave the folders of the process above."""
    try:
        _uses(fuzzer, options, numbers, log)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _uses(fuzzer: Fuzzer, options: argparse.Namespace, numbers: Sequence[int], log: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (CAP, CAP))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    out, words = os.open(log, flags), os.open(log.with_suffix(".err"), flags)
    os.dup2(words, 1)
    os.dup2(words, 2)
    for i in numbers:
        signal.alarm(SECONDS)
        with tempfile.TemporaryDirectory(dir=log.parent) as place:
            folder = Path(place, "place")
            folder.mkdir()
            note = fuzzer.damage(options.seed, i, folder)
            if options.keep:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
            os.write(out, json.dumps([i, note]).encode() + b"\n")
            outcome = fuzzer.outcome(i, folder).replace(place, "")
            os.write(out, json.dumps(outcome).encode() + b"\n")


def judged(
    fuzzer: Fuzzer, options: argparse.Namespace, numbers: Sequence[int]
) -> Iterator[tuple[int, str, str]]:
    """(number, damage, outcome) of each, as they come."""
    n = fuzzer.batch
    batches = collections.deque(numbers[at : at + n] for at in range(0, len(numbers), n))
    running: dict[int, tuple[Sequence[int], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while batches or running:
            while batches and len(running) < options.jobs:
                batch = batches.popleft()
                log = Path(folder, f"{batch[0]}.log")
                if (pid := os.fork()) == 0:
                    child(fuzzer, options, batch, log)
                running[pid] = batch, log
            pid, status = os.wait()
            batch, log = running.pop(pid)
            lines = [json.loads(line) for line in log.read_bytes().splitlines()]
            yield from (
                (*note, outcome) for note, outcome in zip(lines[::2], lines[1::2], strict=False)
            )
            if len(lines) % 2:  # it ended in the middle of this one
                said = log.with_suffix(".err").read_text("utf-8", "replace")
                yield *lines[-1], _end(status, said)
            elif status:  # it made no damage
                said = log.with_suffix(".err").read_text("utf-8", "replace")
                yield batch[len(lines) // 2], "the fuzzer itself", _end(status, said)
                lines += ["", ""]
            for path in (log, log.with_suffix(".err")):
                path.unlink(missing_ok=True)
            if rest := batch[(len(lines) + 1) // 2 :]:
                batches.append(rest)


def _end(status: int, said: str) -> str:
    """How a process ended in the middle of a use, and what it said of that."""
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "EXIT"
    marks = r"^.*(?:GGML_ASSERT|fatal error|GGML_ABORT|terminate|what\(\)).*$"
    marked = re.findall(marks, said, re.M)
    why = re.sub(r"^.*/", "", marked[-1]) if marked else said.strip()[-100:]
    return f"{'HANG' if name == 'SIGALRM' else name} {why}"


def alike(outcome: str) -> str:
    """The outcome without names and numbers, to count alike ones together."""
    outcome = re.sub(r"/\S+", "FILE", outcome)
    outcome = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", outcome)
    return re.sub(r"-?\d[\d.e+]*", "N", outcome)[:150]


def run(fuzzer: Fuzzer, options: argparse.Namespace, numbers: Sequence[int]) -> int:
    """Prints what came of each number; the exit code."""
    begun = time.monotonic()
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    cases_of: dict[str, list[str]] = collections.defaultdict(list)
    for i, note, outcome in judged(fuzzer, options, numbers):
        kind = fuzzer.kind(i)
        is_good = outcome.startswith(GOOD)
        table[kind][next((word for word in GOOD if outcome.startswith(word)), "BAD")] += 1
        case = f"{i}, {note}: {outcome}"
        cases_of[f"{kind}: {alike(outcome)}"].append(case)
        if options.only is not None or not is_good:  # at once: the run may be cut off
            print(f"{'' if is_good else 'BAD '}{case}"[:2000], flush=True)
    for name, cases in sorted(cases_of.items(), key=lambda item: -len(item[1])):
        if options.all or not name.partition(": ")[2].startswith(GOOD):
            print(f"{len(cases):5}  {name}\n       e.g. {cases[0]}"[:600])
    for name, counts in sorted(table.items()):
        row = ", ".join(f"{counts[word]:5} {word}" for word in (*GOOD, "BAD"))
        print(f"{name:22} {row}")
    n_bad = sum(counts["BAD"] for counts in table.values())
    n_done = sum(counts.total() for counts in table.values())
    print(f"{n_done} damages in {time.monotonic() - begun:.0f} s: {n_bad} BAD")
    return int(n_bad > 0 or n_done < len(numbers))
