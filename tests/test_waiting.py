"""How threads of a step wait for each other, and that a host program's environment stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tgr_local.engine import native

CODE = """
import ctypes, os, sys
for library in sys.argv[1:]: ctypes.CDLL(library)
before = dict(os.environ)
from tgr_local.engine.native import waiting
print(waiting(), dict(os.environ) == before)
"""

pytestmark = pytest.mark.skipif(
    native.waiting() == "as ggml does it here", reason="ggml here does not use GNU's OpenMP"
)


def said(*libraries: str, **environment: str) -> str:
    clean = {
        name: text for name, text in os.environ.items() if not name.startswith(("GOMP", "OMP"))
    }
    return subprocess.run(
        [sys.executable, "-c", CODE, *libraries], env={**clean, **environment}, check=True,
        stdout=subprocess.PIPE, text=True,
    ).stdout.strip()  # fmt: skip


def test_a_waiting_thread_soon_sleeps():
    assert said() == "2000 spins, then sleep True"


def test_what_the_person_asks_for_holds():
    assert said(OMP_WAIT_POLICY="passive") == "OMP_WAIT_POLICY=passive True"
    assert said(GOMP_SPINCOUNT="7") == "GOMP_SPINCOUNT=7 True"


def test_a_program_that_has_openmp_already_keeps_its_own():
    with open("/proc/self/maps") as maps:
        library = next(line.split()[-1] for line in maps if "libgomp" in line)
    assert said(library) == "as OpenMP was set up by the program that loaded it first True"
