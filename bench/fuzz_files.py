"""Damages every kind of file that a person can hand to tgr-local (user_files.py) in random ways,
and counts what comes of it: the file works, or it is refused in one line. Anything else is bad: a
crash, a hang, an exception that is a bug, an error of several lines.

The damage is bytes that know nothing of the format, or other values where there is JSON; the
checksum of a saved prefix is made anew in half of the cases, so that the checks behind it are
reached. Damage number i of a seed is always the same: ``--only`` repeats one.

    python bench/fuzz_files.py --n 10000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import copy
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from user_files import KINDS, Kind

from tgr_local.errors import TgrError, describe

SECONDS = 300  # also on a busy machine
CAP = 4 << 30  # bytes of address space
BATCH = 50
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 10**400, 1.5, -0.0, 1e308, 1e-320, "", "x",
    "\0", "\ud800", "ü" * 3000, "1" * 6000, [], [0], [None], ["x"], [[]], {}, {"x": None}, [{}],
]  # fmt: skip
BYTES = [b"", b"\0", b"\xff", b"\n", b"\r\n", b'"', b"{", b"}", b"[", b"]", b",", b"=", b"NaN",
         b"Infinity", b"1e999", b"-", b"\xef\xbb\xbf", b"[" * 3000, b'{"a":' * 3000, b"9" * 5000,
         b"null", b"\\u0000", b"#", b"'", b'""', b"\x1b[2J", b"\xed\xa0\x80"]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield value, key
        yield from places(value[key])


def change_json(rng: random.Random, raw: bytes) -> bytes:
    """Other values in one or two lines; the bytes themselves where they are no JSON."""
    try:
        lines = [json.loads(line) for line in raw.splitlines()]
    except ValueError:
        try:
            lines = [json.loads(raw)]
        except ValueError:
            return change_bytes(rng, raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not lines:
            break
        at = rng.randrange(len(lines))
        found = list(places(lines[at]))
        way = rng.choice(["value"] * 6 + ["drop", "drop", "add", "swap", "line", "lines"])
        if way == "lines":
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif way == "line" or not found:
            lines[at : at + 1] = rng.choice([[], [lines[at]] * 2, [rng.choice(VALUES)]])
        else:
            container, key = rng.choice(found)
            if way == "value":
                container[key] = copy.deepcopy(rng.choice(VALUES))
            elif way == "swap":
                theirs, other = rng.choice(found)
                container[key] = copy.deepcopy(theirs[other])
            elif way == "add" and isinstance(container, dict):
                container[rng.choice(["", "x", "format", "\n", "a" * 999])] = rng.choice(VALUES)
            else:
                del container[key]
    text = "\n".join(json.dumps(line) for line in lines)
    return text.encode() + b"\n" * (rng.random() < 0.9)


def change_bytes(rng: random.Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 30])):
        at = rng.randrange(len(out) + 1)
        way = rng.choice(["bit", "bit", "byte", "put", "put", "random", "out", "off", "twice"])
        if way == "bit" and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif way == "byte" and at < len(out):
            out[at] = rng.choice([0, 1, 0x0A, 0x22, 0x7F, 0x80, 0xFF])
        elif way == "put":
            out[at:at] = rng.choice(BYTES)
        elif way == "random":
            out[at : at + 8] = rng.randbytes(8)
        elif way == "out":
            del out[at : at + rng.choice([1, 2, 8, 100, 1000])]
        elif way == "off" and rng.random() < 0.3:
            del out[at:]
        elif way == "twice":
            out[at:at] = out[at : at + rng.choice([1, 10, 100])]
    return bytes(out)


def damage(rng: random.Random, kind: Kind, folder: Path) -> str:
    """Damages one of the files in the folder; what it did."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and "project" not in p.parts[-2:])
    path = rng.choice(files)
    raw = path.read_bytes()
    if rng.random() < 0.02:
        path.write_bytes(b"")
        return f"{path.name} is empty"
    changed = change_json if rng.random() < 0.6 else change_bytes
    if kind.name == "prefix":
        changed = change_bytes
    made = changed(rng, raw)
    if kind.name == "prefix" and len(made) > 32 and rng.random() < 0.5:
        made = made[:-32] + hashlib.sha256(made[:-32]).digest()
    path.write_bytes(made)
    return f"{path.name}: {changed.__name__}, {len(raw)} -> {len(made)} bytes"


def outcome(kind: Kind, folder: Path) -> str:
    try:
        kind.use(folder)
    except (TgrError, ValueError, OSError) as error:
        text = str(error) if isinstance(error, TgrError) else describe(error)
        if "this is a bug" in text or "\n" in text or not text.strip():
            return f"UNCLEAR {type(error).__name__}: {text}"
        return f"refused: {text}"
    except BaseException as error:
        return f"UNEXPECTED {type(error).__name__}: {error}"
    return "works"


def place_one(sound: Path, kind: Kind, folder: Path) -> None:
    """A sound one in a new folder."""
    if kind.stays:
        folder.mkdir()
        kind.write(folder)
    else:
        shutil.copytree(sound / kind.name, folder)


def child(sound: Path, seed: int, numbers: list[int], log: Path, keep: Path | None) -> None:
    """The forked process: never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (CAP, CAP))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for i in numbers:
        signal.alarm(SECONDS)
        rng = random.Random(seed * 1_000_003 + i)
        kind = KINDS[i % len(KINDS)]
        with tempfile.TemporaryDirectory(dir=log.parent) as place:
            folder = Path(place, "place")
            place_one(sound, kind, folder)
            note = damage(rng, kind, folder)
            if keep:
                shutil.copytree(folder, keep, dirs_exist_ok=True)
            os.write(out, json.dumps([i, kind.name, note]).encode() + b"\n")
            os.write(out, json.dumps(outcome(kind, folder).replace(place, "")).encode() + b"\n")
    os._exit(0)


def judged(sound: Path, args: argparse.Namespace, numbers: list[int]) -> Iterator[tuple[Any, str]]:
    """([number, kind, damage], outcome) of each, as the batches come."""
    batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
    running: dict[int, tuple[list[int], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while batches or running:
            while batches and len(running) < args.jobs:
                batch = batches.pop()
                log = Path(folder, f"{batch[0]}.log")
                if (pid := os.fork()) == 0:
                    child(sound, args.seed, batch, log, args.keep)
                running[pid] = batch, log
            pid, status = os.wait()
            batch, log = running.pop(pid)
            lines = [json.loads(line) for line in log.read_bytes().splitlines()]
            log.unlink()
            yield from zip(lines[::2], lines[1::2], strict=False)
            if len(lines) % 2:  # it ended in the middle of this one
                name = (
                    signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "EXIT"
                )
                yield lines[-1], "HANG" if name == "SIGALRM" else name
            left = batch[(len(lines) + 1) // 2 :]
            if left:
                batches.append(left)


def kind_of(outcome: str) -> str:
    """The outcome without names and numbers, to count alike ones together."""
    outcome = re.sub(r"/\S+", "FILE", outcome)
    outcome = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", outcome)
    return re.sub(r"-?\d[\d.e+]*", "N", outcome)[:140]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000, help="damages (10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--only", type=int, help="this damage number alone, in full")
    parser.add_argument("--keep", type=Path, help="with --only: copy the damaged files here")
    parser.add_argument("--kind", default="", help="only files of the kind with this in its name")
    parser.add_argument("--all", action="store_true", help="print refusals too, by kind")
    args = parser.parse_args()
    begun = time.monotonic()
    numbers = list(range(args.n)) if args.only is None else [args.only]
    numbers = [i for i in numbers if args.kind in KINDS[i % len(KINDS)].name]
    table: dict[str, collections.Counter[str]] = {
        kind.name: collections.Counter() for kind in KINDS
    }
    found: dict[str, list[tuple[Any, str]]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder)
        write_sound(sound)
        for note, text in judged(sound, args, numbers):
            if args.only is not None:
                print(f"{note}\n{text}")
            word = "works" if text == "works" else text.partition(":")[0]
            table[note[1]][word if word in ("works", "refused") else "BAD"] += 1
            found[f"{note[1]}: {kind_of(text)}"].append((note, text))
            if not text.startswith(("works", "refused")):  # at once: the run may be cut off
                print(f"BAD {note}: {text}"[:600], flush=True)
    for key, cases in sorted(found.items(), key=lambda item: -len(item[1])):
        bad = not cases[0][1].startswith(("works", "refused"))
        if bad or args.all:
            print(f"{len(cases):5}  {key}\n       e.g. {cases[0]}"[:600])
    for name, counts in table.items():
        if not counts:
            continue
        row = ", ".join(f"{counts[word]:5} {word}" for word in ("works", "refused", "BAD"))
        print(f"{name:22} {row}")
    n_bad = sum(counts["BAD"] for counts in table.values())
    n_done = sum(counts.total() for counts in table.values())
    print(f"{n_done} damages in {time.monotonic() - begun:.0f} s: {n_bad} BAD")
    return int(n_bad > 0 or n_done < len(numbers))


def write_sound(sound: Path) -> None:
    """A sound file of each kind, written and used once in a process of its own: this one must not
    have an engine's threads when it forks."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            for kind in KINDS:
                folder = sound / kind.name
                folder.mkdir()
                kind.write(folder)
                again = sound / f"{kind.name} used"
                place_one(sound, kind, again)
                if (text := outcome(kind, again)) != "works":
                    raise AssertionError(f"a sound {kind.name}: {text}")
                shutil.rmtree(again)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)
    if os.waitpid(pid, 0)[1]:
        sys.exit("the sound files cannot be made")


if __name__ == "__main__":
    sys.exit(main())
