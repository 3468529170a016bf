"""The name of this machine's processor, and the instructions that it has."""

from __future__ import annotations

import platform


def processor() -> str:
    """As the system names it; the architecture where it has no name; perhaps empty."""
    return _first("model name") or platform.processor() or platform.machine()


def instructions() -> frozenset[str]:
    """Linux's names of an x86 processor's instruction sets, such as ``avx2`` and ``avx512f``; empty
    elsewhere."""
    return frozenset(_first("flags").split())


def _first(field: str) -> str:
    """The value of a field of the first core; empty without one."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == field:
                    return value.strip()
    except OSError:
        pass
    return ""
