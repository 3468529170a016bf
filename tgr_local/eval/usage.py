"""What a process and all its descendants use, as /proc tells it; on other systems, nothing.

A program may leave its process group and its session, but not the tree of its ancestors: where it
has its own process ids its orphans stay below their first process, elsewhere below the launcher.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_FILE_BYTES = 1024  # what an empty file takes in a file system in memory
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
    """Bytes that processes and the file systems of their own hold in memory. Pages that several
    share count once, unless the sum is below `enough` however they count."""
    pids = list(pids)
    files = _files(pids)
    most = files + sum(map(_resident, pids))
    return most if most <= enough else files + sum(map(_proportional, pids))


def _resident(pid: int) -> int:
    return _sum(pid, "status", ("VmRSS:", "VmSwap:", "VmPTE:"))


def _proportional(pid: int) -> int:
    # a process may forbid to look at its maps, but not at its status
    return _sum(pid, "smaps_rollup", ("Pss:", "SwapPss:")) or _resident(pid)


def _sum(pid: int, name: str, fields: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (_PROC / str(pid) / name).read_text(errors="replace").splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))
    return 0


def _files(pids: Iterable[int]) -> int:
    """Bytes in /tmp and /dev/shm, where these are not the machine's."""
    found: dict[int, int] = {}
    ours = {os.stat(f"/{name}").st_dev for name in _OWN if os.path.exists(f"/{name}")}
    for pid in pids:
        for name in _OWN:
            with contextlib.suppress(OSError):
                path = _PROC / str(pid) / "root" / name
                device = path.stat().st_dev
                if device not in ours and device not in found:
                    room = os.statvfs(path)
                    used = (room.f_blocks - room.f_bfree) * room.f_frsize
                    found[device] = used + (room.f_files - room.f_ffree) * _FILE_BYTES
    return sum(found.values())
