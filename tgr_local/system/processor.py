"""The name of this machine's processor."""

from __future__ import annotations

import platform


def processor() -> str:
    """As the system names it; the architecture where it has no name; perhaps empty."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
