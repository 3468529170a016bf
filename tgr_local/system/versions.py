"""Versions of the installed parts."""

from __future__ import annotations

import importlib.metadata
import platform

from tgr_local import __version__


def versions() -> dict[str, str]:
    """The version of each part whose change can change a result."""
    found = {"tgr-local": __version__, "python": platform.python_version()}
    for package in ("llama-cpp-python", "numpy"):
        if not _is_needed(package):
            continue
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _is_needed(package: str) -> bool:
    """Whether this installation computes with that package: a wheel that has ggml inside does not
    need llama-cpp-python."""
    try:
        needs = importlib.metadata.requires("tgr-local") or []
    except importlib.metadata.PackageNotFoundError:
        return True  # run from a folder
    return any(need.startswith(package) and "extra ==" not in need for need in needs)
