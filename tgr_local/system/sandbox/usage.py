"""A process and all its descendants: their memory, their disk space, their end, what they leave.

Memory is read from /proc, and is 0 on systems without it.

A program can leave its process group and its session, but not its tree: with a process namespace
orphans are adopted by its first process, otherwise by the launcher.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tgr_local.system.paths import program

_PROC = Path("/proc")
_FILE_BYTES = 1024  # of an empty file in a file system in memory
_OWN = ("tmp", "dev/shm")
_DATAGRAMS = 11  # in the queue of a socket, each with a sender of its own
_OVERHEAD = 4  # memory of the parts of a stream for each byte in them, about
_SETTING = 1 << 18  # where the system does not say how large a buffer is
_MAX_ROUNDS = 10  # of killing processes that fork meanwhile


def tree(root: int) -> list[int]:
    """The process ids of a process and of its descendants that run."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir(_PROC) if _PROC.is_dir() else ():
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # "pid (any name) state parent …"
                about = (_PROC / name / "stat").read_text(errors="replace").rpartition(")")[2]
                state, parent = about.split()[:2]
                if state != "Z":
                    children[int(parent)].append(int(name))
    pids = [root]
    for pid in pids:
        pids += children[pid]
    return pids


def end(process: subprocess.Popen[bytes], *, is_contained: bool = False) -> None:
    """Kills a process that leads a process group, with its descendants, and waits for it. Where it
    is contained in a process namespace, the system kills them, at once and however many."""
    # whole groups: processes that fork all the time are faster than a list of them
    for _ in range(0 if is_contained or process.poll() is not None else _MAX_ROUNDS):
        groups = _groups(tree(process.pid)[1:]) - {process.pid}
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if not groups:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _groups(pids: Iterable[int]) -> set[int]:
    groups = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            groups.add(os.getpgid(pid))
    return groups


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


def _sum(pid: int | str, name: str, fields: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (_PROC / str(pid) / name).read_text(errors="replace").splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(fields))
    return 0


def _files(pids: Iterable[int]) -> int:
    """Bytes in /tmp and /dev/shm, where these are not those of the machine."""
    used_by_device: dict[int, int] = {}
    machines = {os.stat(f"/{name}").st_dev for name in _OWN if os.path.exists(f"/{name}")}
    for pid in pids:
        for name in _OWN:
            with contextlib.suppress(OSError):
                path = _PROC / str(pid) / "root" / name
                device = path.stat().st_dev
                if device not in machines and device not in used_by_device:
                    usage = os.statvfs(path)
                    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
                    used_by_device[device] = used + (usage.f_files - usage.f_ffree) * _FILE_BYTES
    return sum(used_by_device.values())


def size(folder: Path, on_error: Callable[[OSError], object] | None = None) -> int:
    """Bytes on the disk of everything in a folder; each file counts something. `on_error` is called
    for a folder that cannot be read."""
    total = 0
    for place, folders, files in os.walk(folder, onerror=on_error):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512 + _FILE_BYTES
    return total


def remove(folder: Path | str) -> None:
    """Deletes a folder as far as possible, whatever a program left in it. `shutil.rmtree` fails for
    very deep trees."""
    if os.name == "nt":
        return shutil.rmtree(folder, ignore_errors=True)
    for tool in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if os.path.lexists(folder):
            command = [program(tool[0]) or tool[0], *tool[1:], "--", str(folder)]
            with contextlib.suppress(OSError):
                quiet = subprocess.DEVNULL
                subprocess.run(
                    command, stderr=quiet, stdin=quiet, check=False,
                    start_new_session=True,  # Ctrl-C does not end it halfway
                )  # fmt: skip


class ProcessMemory:
    """Memory of processes, measured while they run: their own, and what the system keeps for them
    in sockets and pipes, which counts for no process.

    Nothing says how much is in a socket or a pipe, only how much may be. So that counts only where
    the free memory of the machine, which others take and give back too, has shrunk by more than the
    limit.
    """

    def __init__(self, limit: int) -> None:
        """`limit` in bytes. The processes have held nothing so far."""
        self._limit = limit
        self._free = available()
        self._at_start = _queued(_PROC / "self" / "net")
        self._network = _network("self")

    def is_exceeded(self, pids: Sequence[int]) -> bool:
        """Whether these processes hold more than the limit."""
        used = memory(pids, self._limit)
        if used > self._limit:
            return True
        free = available()
        self._free = max(self._free, free)  # others may give back what they had at the beginning
        return self._free - free > self._limit and used + self._buffers(pids) > self._limit

    def _buffers(self, pids: Iterable[int]) -> int:
        networks = {_network(str(pid)): _PROC / str(pid) / "net" for pid in pids}
        total = _in_pipes(pids)
        for network, tables in networks.items():
            total += max(0, _queued(tables) - (self._at_start if network == self._network else 0))
        return total


def available() -> int:
    """Bytes of memory that this machine could still give to programs; 0 where it does not say."""
    return _sum("", "meminfo", ("MemAvailable:",))


def _network(pid: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(_PROC / pid / "ns" / "net")
    return ""


def _queued(tables: Path) -> int:
    """Bytes that the sockets of a network may hold."""
    total, most = 0, max(_setting("net/core/wmem_default"), 2 * _setting("net/core/wmem_max"))
    for row in _rows(tables / "unix", 7):  # "address: users protocol flags type state number"
        total += most * (_DATAGRAMS if row[4] == "0002" else 1)
    for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for row in _rows(tables / name, 5):  # "number: local remote state sent:received"
            total += _OVERHEAD * sum(int(part, 16) for part in row[4].split(":"))
    for row in _rows(tables / "netlink", 6):  # "address protocol pid groups received sent"
        total += int(row[4]) + int(row[5])
    return total


def _rows(table: Path, n: int) -> list[list[str]]:
    with contextlib.suppress(OSError):
        rows = [line.split() for line in table.read_text(errors="replace").splitlines()[1:]]
        return [row for row in rows if len(row) >= n]
    return []


def _in_pipes(pids: Iterable[int]) -> int:
    """Bytes that the pipes of processes may hold: a user's pipes have a certain number of pages
    together, then two each; where that number is 0, as many as a pipe can have. A file may be a
    pipe."""
    n_files = sum(_sum(pid, "status", ("FDSize:",)) // 1024 for pid in pids)
    page, most = os.sysconf("SC_PAGE_SIZE"), _setting("fs/pipe-user-pages-soft")
    return most * page + n_files * (2 * page if most else _setting("fs/pipe-max-size"))


def _setting(name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((_PROC / "sys" / name).read_text())
    return _SETTING


class Disk:
    """Disk space that a program adds to its folders, measured while it runs.

    The free space of the file system is cheap to read; only where it has shrunk by more than the
    limit, which others can cause too, are the folders themselves measured.
    """

    def __init__(self, folders: Sequence[Path], limit: int, size_before: int) -> None:
        """Measures folders on one file system. `limit` in bytes; an empty file counts too.
        `size_before` is what they hold, as `size` measures it."""
        self._folders, self._limit = folders, limit
        self._size_before = size_before
        self._device = os.stat(folders[0]).st_dev
        self._free = self._left()

    def is_exceeded(self, pids: Iterable[int]) -> bool:
        """Whether the folders and the deleted files that these processes hold have grown by
        more than the limit. What a folder hides in paths that are too long to read counts, too."""
        shrunk = self._free - self._left()
        if shrunk <= self._limit:
            return False
        hidden: list[OSError] = []
        used = sum(size(folder, hidden.append) for folder in self._folders)
        used += self._deleted(pids)
        return used - self._size_before > self._limit or bool(hidden and shrunk > 4 * self._limit)

    def _left(self) -> int:
        try:
            about = os.statvfs(self._folders[0])
        except FileNotFoundError:  # the program has deleted it
            return self._free
        return about.f_bfree * about.f_frsize + about.f_ffree * _FILE_BYTES

    def _deleted(self, pids: Iterable[int]) -> int:
        used = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                for name in os.listdir(_PROC / str(pid) / "fd"):
                    with contextlib.suppress(OSError):
                        about = os.stat(_PROC / str(pid) / "fd" / name)
                        if about.st_nlink == 0 and about.st_dev == self._device:
                            used += about.st_blocks * 512
        return used
