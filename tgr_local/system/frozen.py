"""Child processes of a frozen program (PyInstaller), which starts itself: it has no Python."""

from __future__ import annotations

import importlib
import sys

_MARK = "--tgr-local-child"
_CHILDREN = {"confined": "tgr_local.system.confined", "vulkan": "tgr_local.engine.vulkan_child"}
_starts_itself = False


def freeze_support() -> None:
    """Lets a frozen program (PyInstaller) read chat templates, JSON schemas and replies in a
    process with limits, and ask Vulkan's drivers in a process of its own, as other programs do.

    It has no interpreter to start, so it starts itself for that work, and this call does not return
    in the process that is started so. Call it first in the main module: before
    ``multiprocessing.freeze_support()``, before anything is printed, and before large imports,
    which would only take time there.
    Where the program is not frozen, the call does nothing. A frozen program without the call does
    not use Vulkan, and reads templates in its own process, without limits.
    """
    global _starts_itself
    if not is_frozen():
        return
    match sys.argv[1:]:
        case [mark, child] if mark == _MARK and child in _CHILDREN:
            importlib.import_module(_CHILDREN[child]).main()
            sys.exit()
    _starts_itself = True


def is_frozen() -> bool:
    """Whether this program has no interpreter beside it. py2app's programs have one, and a text in
    ``sys.frozen``."""
    return getattr(sys, "frozen", False) is True


def command(child: str) -> list[str]:
    """The command that runs ``confined`` or ``vulkan`` as a child of a frozen program; empty where
    the program did not call `freeze_support`."""
    return [sys.executable, _MARK, child] if _starts_itself else []
