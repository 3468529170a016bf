"""What the build and the package need for ggml: nothing, since it is built too; or, where the
environment has ``TGR_GGML=installed``, the llama-cpp-python whose ggml the engine is linked to.

Called by scikit-build-core, as ``tool.dynamic-metadata`` in pyproject.toml says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def get_requires_for_dynamic_metadata(settings: Mapping[str, Any]) -> list[str]:
    """The requirement ``installed`` of the settings, or none."""
    ggml = os.environ.get("TGR_GGML", "bundled")
    if ggml not in ("bundled", "installed"):
        raise SystemExit(f"TGR_GGML is {ggml!r}, but must be bundled or installed")
    return [settings["installed"]] if ggml == "installed" else []


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The same as dependencies of the package, in addition to those in pyproject.toml."""
    return {"dependencies": get_requires_for_dynamic_metadata(settings)}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """A wheel's dependencies may differ from those of its source package."""
    return {"dependencies": True}
