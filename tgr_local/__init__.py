"""tgr-local: test-time reasoning on quantized GGUF models, on your own machine.

    from tgr_local import SearchConfig, generate, load

    with load("model.gguf") as engine:
        reply = generate(engine, "What is 17 * 23?", SearchConfig(n_candidates=8))
        print(reply.text, reply.counts.total)

The names below are the public ones; each is imported when it is first used.

README.md has a tree of the folders, and the `__init__` of a folder lists its files. Here:

    __main__.py     the program: tgr-local, python -m tgr_local
    _engine.pyi     types of the engine's extension
    _chat.pyi       types of the extension with llama.cpp's chat code
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from tgr_local.system.versions import __version__ as __version__

if TYPE_CHECKING:
    from tgr_local.apis.llama import TgrLlama as TgrLlama
    from tgr_local.engine import Cancel as Cancel
    from tgr_local.engine import Engine as Engine
    from tgr_local.generation import Event as Event
    from tgr_local.generation import Reply as Reply
    from tgr_local.generation import TextDelta as TextDelta
    from tgr_local.generation import generate as generate
    from tgr_local.generation import generate_many as generate_many
    from tgr_local.generation import generate_steps as generate_steps
    from tgr_local.generation import load as load
    from tgr_local.generation import stream as stream
    from tgr_local.generation.control_vectors import ControlVector as ControlVector
    from tgr_local.options.config import EngineConfig as EngineConfig
    from tgr_local.options.config import SearchConfig as SearchConfig
    from tgr_local.search.steps import Counts as Counts
    from tgr_local.search.steps import Progress as Progress
    from tgr_local.search.steps import Step as Step
    from tgr_local.system.errors import CancelledError as CancelledError
    from tgr_local.system.errors import CapacityError as CapacityError
    from tgr_local.system.errors import InstallError as InstallError
    from tgr_local.system.errors import ModelError as ModelError
    from tgr_local.system.errors import TgrError as TgrError
    from tgr_local.system.frozen import freeze_support as freeze_support

_NAMES = {
    "options.config": "EngineConfig SearchConfig",
    "engine": "Cancel Engine",
    "system.errors": "CancelledError CapacityError InstallError ModelError TgrError",
    "generation": "Event Reply TextDelta generate generate_many generate_steps load stream",
    "generation.control_vectors": "ControlVector",
    "search.steps": "Counts Progress Step",
    "apis.llama": "TgrLlama",
    "system.frozen": "freeze_support",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tgr_local' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tgr_local.{_HOME[name]}"), name)


def _finish_imports() -> None:
    # of another thread: a forked child does not have it, and would wait forever to import the same
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None) if name.startswith("tgr_local.") else None
        if getattr(spec, "_initializing", False):
            importlib.import_module(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_imports)
