"""Makes tests independent of the shell that starts them, and of how busy the machine is."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import tgr_local

ROOT = Path(__file__).parents[1]
PACKAGE = Path(tgr_local.__file__).parent

# seconds after which a waiting test fails, below the limit of a test in pyproject.toml; no result
# depends on them
HANG = float(os.environ.get("TGR_TEST_HANG", "50"))

# paths that some tests need and are skipped without; where the engine's tests compute; HANG
KEPT = {
    "TGR_LLAMA_CPP_SOURCE", "TGR_DATA", "TGR_TEST_DEVICE", "TGR_TEST_HANG", "TGR_TRAINED_MODELS",
    "TGR_WINDOWS_PYTHON",
}  # fmt: skip
FAMILIES = ("TGR_", "XDG_", "LC_", "HF_", "OPENAI_", "MPL", "TTY_", "TMUX", "CLICOLOR")
NAMES = {"NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES", "LANGUAGE", "XTERM_VERSION"}


def clear() -> None:
    """Removes the variables about terminal, language, network, services and our own options from
    the environment of the tests and of every process they start, and lets Ctrl-C reach these."""
    for name in set(os.environ) - KEPT:
        if name.startswith(FAMILIES) or name in NAMES or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ.update(TERM="xterm", LANG="C.UTF-8", LC_ALL="C.UTF-8")
    # a shell starts background jobs with SIGINT ignored, which processes of the tests would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that imports what this one can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def sleep_until_signal() -> None:
    """Sleeps for HANG seconds, or until the handler of a signal raises an exception.

    The sleeps are short: a system call that begins just after the signal is not interrupted, and
    Python runs the handler when it has ended.
    """
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        time.sleep(0.05)
