"""Available memory of this machine, or of the container that this process runs in."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes available without swapping; None where the system does not report it."""
    found = [n for n in (_of_machine(), _of_container()) if n is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    except OSError:  # not Linux
        pass
    return None


def _of_container() -> int | None:
    try:
        most = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        # cached file pages are freed when memory is short
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if most == "max" else max(0, int(most) - used + int(stat.get("inactive_file", 0)))
