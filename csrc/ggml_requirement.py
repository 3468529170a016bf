"""What the build and the package need for ggml: the installed llama-cpp-python, whose ggml the
engine is linked to, or nothing where ``TGR_GGML=bundled`` in the environment builds ggml too.

Called by scikit-build-core, as ``tool.dynamic-metadata`` in pyproject.toml says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def get_requires_for_dynamic_metadata(settings: Mapping[str, Any]) -> list[str]:
    """The requirement ``installed`` of the settings, or none."""
    ggml = os.environ.get("TGR_GGML", "installed")
    if ggml not in ("installed", "bundled"):
        raise SystemExit(f"TGR_GGML is {ggml!r}, but must be installed or bundled")
    return [settings["installed"]] if ggml == "installed" else []


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The same as dependencies of the package, beside those in pyproject.toml."""
    return {"dependencies": get_requires_for_dynamic_metadata(settings)}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """A wheel's dependencies may differ from those of its source package."""
    return {"dependencies": True}
