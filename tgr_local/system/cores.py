"""The cores that this process may use at a time: of its affinity, and within its CPU quota.

The control group of a container bounds the time on all cores together, whatever `os.cpu_count`
says: with more threads than that the kernel holds all of them up, and they wait for each other.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_USUAL_MOUNTS = {1: "sys/fs/cgroup/cpu", 2: "sys/fs/cgroup"}


@dataclass(frozen=True)
class Quota:
    """A limit of CPU time."""

    cores: float
    """CPU seconds in a second."""
    file: Path
    """File that holds the quota."""


def allowed() -> list[int]:
    """The numbers of the logical cores that this process may run on. There are fewer than in its
    affinity where `python -X cpu_count` or PYTHON_CPU_COUNT says so, from Python 3.13 on."""
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    most = getattr(os, "process_cpu_count", lambda: None)() or len(affinity)
    return sorted(affinity)[: max(most, 1)]


def usable() -> int:
    """Number of logical cores that this process has at a time; a part of one counts as one."""
    return within_quota(len(allowed()))


def within_quota(cores: int) -> int:
    """Returns how many of these cores the CPU quota has time for, at least one."""
    limit = quota()
    return min(cores, max(math.ceil(limit.cores), 1)) if limit else cores


def quota(root: Path = _ROOT) -> Quota | None:
    """The least CPU quota of the control groups of this process and of those above them, in the
    files below `root`; None = there is none."""
    limits = [limit for folder in _groups(root) if (limit := _quota_in(folder))]
    return min(limits, key=lambda limit: limit.cores, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the groups, and of those above, of both versions of control groups."""
    mounts = _mounts(root)
    for line in _lines(root / "proc/self/cgroup"):  # number:controllers:group
        _, _, about = line.partition(":")
        controllers, _, group = about.partition(":")
        version = 1 if "cpu" in controllers.split(",") else 2
        if version == 2 and controllers:
            continue
        begins, mount = mounts.get(version, ("/", root / _USUAL_MOUNTS[version]))
        path = PurePosixPath(group)
        inside = path.is_relative_to(begins) and ".." not in path.parts
        folder = mount / path.relative_to(begins) if inside else mount
        yield folder
        yield from (above for above in folder.parents if above.is_relative_to(mount))


def _mounts(root: Path) -> dict[int, tuple[str, Path]]:
    """Version of control groups → the group that is its file system's root here, and where that is
    mounted."""
    mounts: dict[int, tuple[str, Path]] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, about = line.partition(" - ")
        kind, _, options = about.partition(" ")
        begins, mount = (fields.split(" ") + [""] * 5)[3:5]
        is_v1 = kind == "cgroup" and "cpu" in options.rpartition(" ")[2].split(",")
        if is_v1 or kind == "cgroup2":
            place = root / mount.lstrip("/").replace("\\040", " ")
            mounts.setdefault(1 if is_v1 else 2, (begins.replace("\\040", " "), place))
    return mounts


def _quota_in(folder: Path) -> Quota | None:
    for name in ("cpu.max", "cpu.cfs_quota_us"):
        numbers = " ".join(_lines(folder / name)).split()
        if name == "cpu.cfs_quota_us":
            numbers += _lines(folder / "cpu.cfs_period_us")
        with contextlib.suppress(ValueError, ZeroDivisionError):  # "max", or nothing
            cores = int(numbers[0]) / int(numbers[1]) if len(numbers) == 2 else 0.0
            if cores > 0:  # -1 = none
                return Quota(cores, folder / name)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
