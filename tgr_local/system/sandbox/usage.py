"""Memory of a process and all its descendants, read from /proc; empty on systems without it.

A program can leave its process group and its session, but not its tree: with a process namespace
orphans are adopted by its first process, otherwise by the launcher.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_FILE_BYTES = 1024  # of an empty file in a file system in memory
_OWN = ("tmp", "dev/shm")


def tree(root: int) -> list[int]:
    """The process ids of a process and its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir(_PROC) if _PROC.is_dir() else ():
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # "pid (any name) state parent …"
                rest = (_PROC / name / "stat").read_text(errors="replace").rpartition(")")[2]
                children[int(rest.split()[1])].append(int(name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def memory(pids: Iterable[int], enough: int) -> int:
    """Bytes of processes and of their own file systems in memory. Shared pages count once, unless
    the sum that counts them several times is at most `enough`."""
    pids = list(pids)
    files = _files(pids)
    most = files + sum(map(_resident, pids))
    return most if most <= enough else files + sum(map(_proportional, pids))


def _resident(pid: int) -> int:
    return _sum(pid, "status", ("VmRSS:", "VmSwap:", "VmPTE:"))


def _proportional(pid: int) -> int:
    # a process can hide its maps, but not its status
    return _sum(pid, "smaps_rollup", ("Pss:", "SwapPss:")) or _resident(pid)


def _sum(pid: int, name: str, fields: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (_PROC / str(pid) / name).read_text(errors="replace").splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))
    return 0


def _files(pids: Iterable[int]) -> int:
    """Bytes in /tmp and /dev/shm, where these are not those of the machine."""
    found: dict[int, int] = {}
    machines = {os.stat(f"/{name}").st_dev for name in _OWN if os.path.exists(f"/{name}")}
    for pid in pids:
        for name in _OWN:
            with contextlib.suppress(OSError):
                path = _PROC / str(pid) / "root" / name
                device = path.stat().st_dev
                if device not in machines and device not in found:
                    usage = os.statvfs(path)
                    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
                    found[device] = used + (usage.f_files - usage.f_ffree) * _FILE_BYTES
    return sum(found.values())
