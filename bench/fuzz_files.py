"""Damages every kind of file that a person can hand to tgr-local (user_files.py) in random ways,
and counts what comes of it: the file works, or it is refused in one line; forks.py has the rest.

The damage is bytes that know nothing of the format, or other values where there is JSON; the
checksum of a saved prefix is made anew in half of the cases, so that the checks behind it are
reached.

    python bench/fuzz_files.py --n 10000 --seed 0
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import forks
from forks import Fuzzer
from user_files import KINDS, Kind

from tgr_local.system.errors import TgrError

BATCH = 50  # uses of a process
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
        found_places = list(places(lines[at]))
        way = rng.choice(["value"] * 6 + ["drop", "drop", "add", "swap", "line", "lines"])
        if way == "lines":
            their_key = rng.randrange(len(lines))
            lines[at], lines[their_key] = lines[their_key], lines[at]
        elif way == "line" or not found_places:
            lines[at : at + 1] = rng.choice([[], [lines[at]] * 2, [rng.choice(VALUES)]])
        else:
            container, key = rng.choice(found_places)
            if way == "value":
                container[key] = copy.deepcopy(rng.choice(VALUES))
            elif way == "swap":
                theirs, their_key = rng.choice(found_places)
                container[key] = copy.deepcopy(theirs[their_key])
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


def kind_of(i: int) -> Kind:
    return KINDS[i % len(KINDS)]


def damage(sound: Path, seed: int, i: int, folder: Path) -> str:
    """Damages one of the files of a sound one."""
    rng, kind = random.Random(seed * 1_000_003 + i), kind_of(i)
    place_one(sound, kind, folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and "project" not in p.parts[-2:])
    path = rng.choice(files)
    raw = path.read_bytes()
    if rng.random() < 0.02:
        path.write_bytes(b"")
        return f"{path.name} is empty"
    changed = change_json if rng.random() < 0.6 else change_bytes
    if kind.name == "prefix":
        changed = change_bytes
    damaged = changed(rng, raw)
    if kind.name == "prefix" and len(damaged) > 32 and rng.random() < 0.5:
        damaged = damaged[:-32] + hashlib.sha256(damaged[:-32]).digest()
    path.write_bytes(damaged)
    return f"{path.name}: {changed.__name__}, {len(raw)} -> {len(damaged)} bytes"


def place_one(sound: Path, kind: Kind, folder: Path) -> None:
    """A sound one in an empty folder."""
    if kind.stays:
        kind.write(folder)
    else:
        shutil.copytree(sound / kind.name, folder, dirs_exist_ok=True)


def use(i: int, folder: Path) -> str:
    kind_of(i).use(folder)
    return "works"


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
                again.mkdir()
                place_one(sound, kind, again)
                kind.use(again)
                shutil.rmtree(again)
            code = 0
        except BaseException as error:
            said = f"a sound {kind.name}: {type(error).__name__}: {error}"
            print(said, file=sys.stderr, flush=True)
        os._exit(code)
    if os.waitpid(pid, 0)[1]:
        sys.exit("the sound files cannot be made")


def main() -> int:
    parser = forks.parser(__doc__)
    parser.add_argument("--kind", default="", help="only files of the kind with this in its name")
    options = parser.parse_args()
    numbers = list(range(options.n)) if options.only is None else [options.only]
    numbers = [i for i in numbers if options.kind in kind_of(i).name]
    with tempfile.TemporaryDirectory() as folder:
        write_sound(Path(folder))
        fuzzer = Fuzzer(
            functools.partial(damage, Path(folder)), use, lambda i: kind_of(i).name,
            (TgrError, ValueError, OSError), batch=BATCH,
        )  # fmt: skip
        return forks.run(fuzzer, options, numbers)


if __name__ == "__main__":
    sys.exit(main())
