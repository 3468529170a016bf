"""The sandboxes of this machine, for tests that run programs: whether one works is asked here only.

A test of what a sandbox keeps away calls `needed`, and is skipped where that sandbox does not work.
A test that runs harmless programs of its own for another reason takes `strongest`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tgr_local.lab.eval import programs
from tgr_local.system.sandbox import backends
from tgr_local.system.sandbox.backends import Backend


def needed(kind: Backend, obstacle: Callable[[Backend], str] = programs.obstacle) -> Backend:
    """This backend; skips the test, with the reason, where it does not work. `obstacle` is that of
    `programs` or of `commands`."""
    if why := obstacle(kind):
        pytest.skip(f"the sandbox {kind} does not work here: {why}")
    return kind


def strongest(obstacle: Callable[[Backend], str] = programs.obstacle) -> Backend:
    """The strongest backend that works here; where no sandbox does, none: the limits alone."""
    return next(kind for kind in backends.CHOICES if not obstacle(kind))
