"""Versions of the installed parts."""

from __future__ import annotations

import importlib.metadata
import platform

from tgr_local import __version__


def versions() -> dict[str, str]:
    """The version of each part whose change can change a result."""
    found = {"tgr-local": __version__, "python": platform.python_version()}
    for package in ("llama-cpp-python", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
