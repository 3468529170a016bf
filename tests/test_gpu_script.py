"""bench/gpu.sh refuses what it cannot do in one sentence, before it builds anything."""

from __future__ import annotations

import subprocess

import pytest
from surroundings import ROOT, environment


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fast"], "unknown argument --fast; see --help"),
        (["--bench"], "--bench needs a shape"),
        (["--out"], "--out needs a value"),
        (["--backend", "opencl"], "--backend is opencl, but must be cuda, vulkan or cpu"),
        (["--backend", "cpu", "--test"], "cannot import numpy"),
    ],
)
def test_it_says_what_is_missing(tmp_path, arguments: list[str], message: str):
    where = ["--out", str(tmp_path / "out")] if "--out" not in arguments else []
    found = subprocess.run(
        ["bash", str(ROOT / "bench" / "gpu.sh"), *where, *arguments],
        env=environment(PYTHON="false", OUT=""), capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 1 and found.stderr.startswith("gpu.sh: ")
    assert message in found.stderr and found.stderr.count("\n") == 1
