"""What must survive SIGKILL, apart from an evaluation: a conversation, accepted edits.

Each part starts the real command in a folder of its own, uses it as a person or a client does,
kills its whole process group at a random moment, starts it again, and so on. It returns a line
about what it saw and the losses, each in a sentence.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tgr_local.chat import store

WAIT = 300.0  # seconds, also on a busy machine, for what takes one or two


@dataclass
class Seen:
    """What a part saw: `kills` is the number of kills, `counts` how much of each thing outlived."""

    kills: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)

    def add(self, name: str, n: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def __str__(self) -> str:
        rows = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        return f"killed {self.kills} times; {rows}; {len(self.losses)} losses"


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        **{f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CONFIG")},
        "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def kill(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def later(seconds: float, process: subprocess.Popen[Any]) -> threading.Timer:
    """Kills the process after that time."""
    timer = threading.Timer(seconds, kill, [process])
    timer.start()
    return timer


# ---- a conversation ----


PROMPT = r"\x1b\[\?2004h.*>>>"  # a resumed conversation shows its last question after >>> too


class Chat:
    """`tgr-local chat` on a terminal."""

    def __init__(self, folder: Path, resume: bool) -> None:
        self._terminal, tty = pty.openpty()
        flags = ["--method=base", "--n-threads=1", *(["--resume"] if resume else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tgr_local", "chat", *flags],
            stdin=tty, stdout=tty, stderr=tty, env=environment(folder),
            start_new_session=True,
        )  # fmt: skip
        os.close(tty)

    def type(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._terminal, line.encode() + b"\r")

    def until(self, pattern: str) -> bool:
        """Waits for a text on the screen; False if the process is gone before."""
        screen, end = b"", time.monotonic() + WAIT
        while time.monotonic() < end:
            if select.select([self._terminal], [], [], 0.1)[0]:
                try:
                    screen += os.read(self._terminal, 1 << 16)
                except OSError:
                    return False
                if re.search(pattern, screen.decode("utf-8", "replace"), re.S):
                    return True
            elif self.process.poll() is not None:
                return False
        kill(self.process)
        raise RuntimeError(f"no {pattern!r} on the screen: {screen[-500:]!r}")

    def close(self) -> None:
        kill(self.process)
        os.close(self._terminal)


def chat(folder: Path, kills: int, draw: random.Random) -> Seen:
    """A turn counts from the moment at which the prompt is there again, a question from that at
    which its reply begins."""
    seen = Seen()
    turns: list[tuple[str, bool]] = []
    """The questions of a conversation in order, and whether each has its whole answer."""
    typical, place = 0.0, folder
    while seen.kills < kills:
        if len(turns) > 12 or not seen.kills:
            turns, place = [], folder / str(seen.kills)
        start = time.monotonic()
        talk = Chat(place, resume=bool(turns))
        query = ""
        timer: threading.Timer | None = None
        if typical:
            timer = later(draw.uniform(0, 1.5 * typical), talk.process)
        alive = talk.until(PROMPT)
        for _ in range(3 if typical else 1):
            if not alive:
                break
            query = f"What is {draw.randint(1, 50)} + {draw.randint(1, 50)} - {draw.randint(1, 9)}?"
            talk.type(query)
            if alive := talk.until("boxed.*" + PROMPT):
                turns.append((query, True))
                query = ""
        typical = typical or time.monotonic() - start
        if timer:
            timer.cancel()
        seen.kills += 1
        talk.close()
        _check_chat(place, turns, query, seen)
    return seen


def _check_chat(folder: Path, turns: list[tuple[str, bool]], query: str, seen: Seen) -> None:
    """The latest saved conversation against what was on the screen."""
    files = sorted((folder / "state").rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not files:
        if turns:
            seen.losses.append(f"{len(turns)} turns: there is no file")
        return
    saved = store.load(files[-1]).turns
    pairs = [(turn.question, bool(turn.answer)) for turn in saved]
    if pairs and not pairs[-1][1]:
        seen.add("questions without an answer", pairs.pop()[0] == query)  # or of an earlier kill
    elif query and pairs[-1:] == [(query, True)]:
        turns.append((query, True))  # killed before the prompt was there again
    if pairs != turns:
        seen.losses.append(f"the file has {pairs[-3:]} instead of {turns[-3:]}")
        turns[:] = pairs
    seen.add("turns compared", len(turns))


# ---- the code assistant ----

DEFECT = "def add(a, b):\n    return a - b\n"
TEST = "from sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"


def code(folder: Path, kills: int, draw: random.Random) -> Seen:
    """After a kill the file is as it was, or has a whole edit that was accepted; what was accepted
    can be undone, exactly. Half of the kills come while an edit is being accepted."""
    seen = Seen()
    typical = 0.0
    project = folder / "project"
    project.mkdir()
    source = project / "sums.py"
    (project / "test_sums.py").write_text(TEST, encoding="utf-8")
    source.write_text(DEFECT, encoding="utf-8")
    while seen.kills < kills:
        begun = time.monotonic()
        process = _assistant(folder, "Make the failing test pass.", "--yes", "--json")
        accepting = False
        if typical and (accepting := draw.random() < 0.5):
            _until_accepting(folder, process)
            time.sleep(draw.uniform(0, 0.02))
        elif typical:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0, 1.2 * typical))
        else:
            process.wait(WAIT)
            typical = time.monotonic() - begun
        kill(process)
        seen.kills += 1
        text = process.stdout.read() if process.stdout else ""
        promised = '"accepted": ' in text and json.loads(text)["accepted"] is not None
        _check_code(folder, source, promised, accepting, seen)
    return seen


def _assistant(folder: Path, *words: str) -> subprocess.Popen[str]:
    pytest = f"{sys.executable} -B -m pytest -q -x -p no:cacheprovider"
    test = f"env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {pytest}"
    flags = [] if "--undo" in words else ["--test", test, "-k", "8", "--rounds", "3"]
    return subprocess.Popen(
        [sys.executable, "-m", "tgr_local", "code", *words, *flags], cwd=folder / "project",
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(folder),
        start_new_session=True,
    )  # fmt: skip


def _until_accepting(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the journal gets an entry, or its draft."""
    known = set(_entries(folder))
    while process.poll() is None and not set(_entries(folder)) - known:
        time.sleep(0.0005)


def _entries(folder: Path) -> Iterator[str]:
    for journal in (folder / "state" / "tgr-local" / "code").glob("*/"):
        with contextlib.suppress(OSError):
            yield from (path.name for path in journal.iterdir() if path.name != "project")


def _check_code(folder: Path, source: Path, promised: bool, accepting: bool, seen: Seen) -> None:
    """Undoes what was accepted, and compares."""
    now = source.read_text(encoding="utf-8")
    if now != DEFECT and not _is_repaired(now):
        seen.losses.append(f"the file is neither as before nor repaired: {now!r:.80}")
    if promised and now == DEFECT:
        seen.losses.append("an accepted edit is gone")
    undo = _assistant(folder, "--undo")
    undo.communicate()
    undone = undo.returncode == 0
    again = source.read_text(encoding="utf-8")
    if again != DEFECT:
        seen.losses.append(f"after undo the file is {again!r:.80}")
        source.write_text(DEFECT, encoding="utf-8")
    if now != DEFECT and not undone:
        seen.losses.append("an edit in the file cannot be undone")
    hidden = [path.name for path in source.parent.iterdir() if path.name.startswith(".")]
    if hidden:
        seen.losses.append(f"hidden files stay: {hidden}")
    seen.add("edits undone" if undone else "kills before an edit")
    if accepting:
        seen.add("kills while it was accepted")


def _is_repaired(text: str) -> bool:
    """Whether it is the function that adds. A model wrote it, so it is read and not run."""
    try:
        parts = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    function = parts[0] if len(parts) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.name != "add":
        return False
    return ast.unparse(function.body[-1]) in ("return a + b", "return b + a")


PARTS: dict[str, Callable[[Path, int, random.Random], Seen]] = {
    "chat": chat,
    "code": code,
}
