"""Versions of this package and of the installed parts, and the name and the instructions of the
processor.

Every process reads `__version__`; what only the functions need is imported in them.
"""

from __future__ import annotations

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """The version of each part whose change can change a result."""
    import platform

    parts = {"tgr-local": __version__, "python": platform.python_version()}
    for package in ("llama-cpp-python", "numpy"):
        if _is_needed(package):
            parts[package] = version(package)
    return parts


def version(package: str) -> str:
    """Returns the version of a package, or "not installed"."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _is_needed(package: str) -> bool:
    """Whether this installation computes with that package: a wheel that has ggml inside does not
    need llama-cpp-python."""
    import importlib.metadata

    try:
        needs = importlib.metadata.requires("tgr-local") or []
    except importlib.metadata.PackageNotFoundError:
        return True  # run from a folder
    return any(need.startswith(package) and "extra ==" not in need for need in needs)


def processor() -> str:
    """Returns the system's name of the processor, else its architecture; perhaps empty."""
    import platform

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
