"""The person's folder under everything that can go wrong: kill -9 at random moments of accepting,
undoing and judging; hostile test commands; files that must not be changed.

    python bench/working_tree.py                     50 kills, about a minute
    unshare -rn python bench/working_tree.py         the same without a network

It prints counts, and ends with 1 where the folder was anything but exactly as before or exactly as
accepted.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import random
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tgr_local.code.copies import Copies
from tgr_local.code.edits import Change
from tgr_local.code.journal import accept, recover, undo
from tgr_local.code.judge import judge
from tgr_local.code.project import Project
from tgr_local.system import paths
from tgr_local.system.sandbox import commands, programs
from tgr_local.system.sandbox.commands import Limits

CHANGES = (
    Change("a.py", "a = 1\n", "a = 2\n"),
    Change("crlf.txt", "one\ntwo\n", "one\n2\n"),
    Change("no_newline.py", "x = 1", "x = 2"),
    Change("latin.py", "# coding: latin-1\ns = 'é'\n", "# coding: latin-1\ns = 'è'\n"),
    Change("link.py", "l = 1\n", "l = 2\n"),
    Change("new/folder/file.py", "", "n = 1\n"),
)
LIMITS = Limits(seconds=3, memory=1 << 30, disk=64 << 20, processes=64, output=8 << 20)
HOSTILE = {
    "hangs": "sleep 600",
    "ignores signals": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "forks away": "(setsid sleep 600 &) ; exit 1",
    "forks without end": "f() { f | f & }; f; sleep 600",
    "fills the disk": "i=0; while :; do i=$((i+1)); head -c 9000000 /dev/zero > f$i || exit; done",
    "one file without end": "cat /dev/zero > x",
    "fills the memory": "python3 -c 'x = [bytearray(1 << 24) for i in range(10**6)]'",
    "prints without end": "yes",
    "deletes its folder": 'rm -rf "$PWD"; rm -rf ./*; rm -rf .git',
    "deletes what is beside": "rm -rf {folder}/../* outside/*",
    "writes outside": "echo x > {folder}/../hostile; echo x > ~/hostile; echo x > /etc/hostile",
    "kills everyone": "kill -9 -1",
    "follows links out": "echo x > outside/hostile; cat outside/other/m.py",
    "is not there": "no-such-command",
}
REFUSED = ("../a.py", "/etc/passwd", ".git/config", "module/m.py", "outside/x.py",
           "binary.bin", "read_only.py", "pipe", "large.txt")  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    settings = ("user.name=a", "user.email=a@b", "protocol.file.allow=always")
    options = [word for setting in settings for word in ("-c", setting)]
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True)


def build(base: Path) -> Path:
    """A repository with everything that makes a folder difficult."""
    other = base / "other"
    other.mkdir()
    (other / "m.py").write_text("m = 1\n")
    folder = base / "project"
    folder.mkdir()
    for path in (other, folder):
        git(path, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "x")
    files = {
        "a.py": b"a = 0\n", "crlf.txt": b"one\r\ntwo\r\n", "no_newline.py": b"x = 1",
        "latin.py": b"# coding: latin-1\ns = '\xe9'\n", "target.py": b"l = 1\n",
        "read_only.py": b"r = 1\n", "binary.bin": b"\0\1", "large.txt": b"x" * (2 << 20),
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).write_bytes(data)
    git(folder, "add", ".")
    git(folder, "submodule", "-q", "add", str(other), "module")
    git(folder, "commit", "-qm", "x")
    (folder / "a.py").write_text("a = 1\n")  # uncommitted work
    (folder / "untracked.py").write_text("u = 1\n")
    (folder / "read_only.py").chmod(0o444)
    os.symlink("target.py", folder / "link.py")
    os.symlink(base, folder / "outside")
    os.symlink("nowhere", folder / "dangling")
    os.mkfifo(folder / "pipe")
    return folder


def digest(folder: Path) -> str:
    """A hash of all paths, types, modes and bytes."""
    found = hashlib.blake2b()
    for place, folders, files in sorted(os.walk(folder)):
        for name in sorted((*folders, *files)):
            path = Path(place) / name
            mode = path.lstat().st_mode
            found.update(f"{path.relative_to(folder)} {mode} ".encode())
            if stat.S_ISLNK(mode):
                found.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(mode):
                found.update(path.read_bytes())
    return found.hexdigest()


def judge_candidates(project: Project) -> None:
    with Copies(project) as copies:
        for _ in range(3):
            place = copies.make(CHANGES)
            judge(place, "cat a.py; echo x > a.py; exit 1", LIMITS, backend=commands.strongest())
            copies.remove(place)


ACTIONS: dict[str, Callable[[Project], object]] = {
    "accept": lambda project: accept(project, CHANGES),
    "undo": undo,
    "judge": judge_candidates,
}


def child(action: str, folder: str) -> None:
    """A process that is killed: it says when it begins and when it has ended."""
    project = Project(folder)
    project.listing  # noqa: B018
    print("begins", flush=True)
    ACTIONS[action](project)
    print("ended", flush=True)


def run(action: str, folder: Path, seconds: float | None) -> tuple[bool, float]:
    """Runs an action in a process that is killed after some seconds. Whether it ended before, and
    how long it took."""
    command = [sys.executable, __file__, "--child", action, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begins\n"
    start = time.monotonic()
    if seconds is not None:
        time.sleep(seconds)
        process.kill()
    ended = process.stdout.read() == b"ended\n"
    process.stdout.close()
    process.wait()
    return ended, time.monotonic() - start


def kill_at_random(folder: Path, n: int, rng: random.Random) -> int:
    """The number of times that the folder was neither as before nor as accepted."""
    project = Project(folder)
    before = digest(folder)
    took = {"judge": run("judge", folder, None)[1], "accept": run("accept", folder, None)[1]}
    after = digest(folder)
    took["undo"] = run("undo", folder, None)[1]
    assert digest(folder) == before != after
    counts: collections.Counter[str] = collections.Counter()
    n_wrong = 0
    for i in range(n):
        action = ("accept", "undo", "judge")[i % 3]
        if action == "undo":
            accept(project, CHANGES)
        ended, _ = run(action, folder, rng.uniform(0, took[action]))
        between = digest(folder) not in (before, after)
        recover(project)
        now = digest(folder)
        state = {before: "as before", after: "as accepted"}.get(now, "WRONG")
        counts[f"{action}, {'ended' if ended else 'killed'}: {state}"] += 1
        counts["several files seen between two moments, then completed"] += between
        n_wrong += state == "WRONG" or (action == "judge" and now != before)
        if now == after:
            undo(project)
        n_wrong += digest(folder) != before
    with Copies(project):
        pass
    left = list((paths.folder("cache") / "code").iterdir())
    print(f"\nkill -9 at {n} random moments:")
    for what, count in sorted(counts.items()):
        print(f"  {count:4}  {what}")
    print(f"  {len(left):4}  copies left after the next start")
    return n_wrong + len(left)


def try_commands(folder: Path) -> int:
    before = digest(folder)
    n_wrong = 0
    print("\nhostile test commands:")
    for what, command in HOSTILE.items():
        with Copies(Project(folder)) as copies:
            verdict = judge(copies.make(), command.replace("{folder}", str(folder)), LIMITS)
        same = digest(folder) == before and not (folder.parent / "hostile").exists()
        n_wrong += not same
        print(f"  {what:22} {verdict.summary:36} {verdict.seconds:5.1f} s  "
              f"{'nothing lost' if same else 'CHANGED'}")  # fmt: skip
    return n_wrong


def try_refusals(folder: Path) -> int:
    before = digest(folder)
    project = Project(folder)
    n_wrong = 0
    print("\nfiles that are not changed:")
    for path in REFUSED:
        why = project.refusal(path)
        n_wrong += not why
        print(f"  {path}: {why or 'NOT REFUSED'}".replace(str(folder), "."))
    return n_wrong + (digest(folder) != before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    with tempfile.TemporaryDirectory(prefix="tgr-tree-") as name:
        for kind in ("STATE", "CACHE"):
            os.environ[f"XDG_{kind}_HOME"] = f"{name}/{kind.lower()}"
        folder = build(Path(name))
        n_wrong = kill_at_random(folder, options.kills, random.Random(options.seed))
        if programs.obstacle("bwrap"):
            print(f"\nno bubblewrap ({programs.obstacle('bwrap')}): no hostile commands are run")
        else:
            n_wrong += try_commands(folder)
        n_wrong += try_refusals(folder)
    print(f"\n{n_wrong} wrong")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
