"""The engine on a GPU: run by bench/gpu.sh, skipped on a machine without one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tgr_local.commands import cli
from tgr_local.engine import Engine, Task
from tgr_local.lab.bench import shapes
from tgr_local.options.config import EngineConfig

pytestmark = pytest.mark.gpu


def test_a_text_has_the_same_numbers_as_on_the_cpu(tmp_path):
    """With an injection on every layer, in a batch with a sequence that has none."""
    path = tmp_path / "model.gguf"
    shapes.write(path, shapes.SHAPES["tiny"], "f16")
    text = np.random.default_rng(0).integers(0, 4000, 40).tolist()
    found = []
    for n_gpu_layers in (0, -1):
        config = EngineConfig(n_gpu_layers=n_gpu_layers, flash_attn="off")
        with Engine(path, config) as engine, engine.session(100, 2) as session:
            assert ("CPU" in engine.devices()[0].upper()) == (n_gpu_layers == 0)
            rng = np.random.default_rng(1)
            injection = session.injection(rng.normal(size=(2, 256)).astype(np.float32))
            tasks = [
                Task(session.sequence(), text, injection=injection, feed_logprobs=True, norms=True)
                for injection in (injection, None)
            ]
            outputs = session.run(tasks)
        found.append([(o.feed_logprobs, o.norms) for o in outputs])
    for on_cpu, on_gpu in zip(*found, strict=True):
        np.testing.assert_allclose(on_gpu[0], on_cpu[0], atol=0.02)
        np.testing.assert_allclose(on_gpu[1], on_cpu[1], rtol=0.01)
    assert np.abs(found[1][0][0] - found[1][1][0]).max() > 0.1  # the injection does something


def test_the_benchmark_runs_on_it(capsys):
    arguments = ["--shape", "tiny", "--type", "q4_k", "--quick", "--repeats", "1", "--json"]
    only = "decode,prefill,plain,capture,sampling,roofline,runs"
    assert cli.main(["bench", *arguments, "--only", only]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "layers on CPU" not in found["machine"]["model"]
    assert any(row["what"].startswith("memory, copied") for row in found["rows"])
