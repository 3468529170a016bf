"""bench/projects: each project's tests and hidden programs fail without its solution and pass with
it, in the sandbox of the assistant. So compilers, node and Java run there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import sandboxes
from surroundings import ROOT

from tgr_local.system.sandbox import commands

BENCH = Path(ROOT, "bench", "small_projects.py")

if not BENCH.exists():
    pytest.skip("bench is not next to the tests", allow_module_level=True)


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("small_projects", BENCH)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules["small_projects"] = made
    spec.loader.exec_module(made)
    return made


PROJECTS = module()
JOBS = {job.name: job for job in PROJECTS.read(PROJECTS.FOLDER) if job.solution}


@pytest.mark.parametrize("name", JOBS)
def test_a_solution_is_right_and_needed(name: str):
    job = JOBS[name]
    if lacking := job.lacking():
        pytest.skip(f"there is no {lacking}")
    if "cargo" in job.needs and subprocess.run(["cargo", "-V"], capture_output=True).returncode:
        pytest.skip("cargo has no toolchain")
    assert PROJECTS.faults(job, sandboxes.strongest(commands.obstacle)) == []
