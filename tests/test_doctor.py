"""`tgr-local doctor`, warnings about the installation, and the embedded model."""

from __future__ import annotations

import importlib.machinery
import json
import platform
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from command_line import finished, run
from fake_engine import FakeEngine
from surroundings import HANG, environment

from tgr_local.commands import doctor
from tgr_local.engine import LayerFit
from tgr_local.engine.native import native
from tgr_local.system import versions
from tgr_local.system.errors import TgrError


def test_doctor_on_the_double(double: None, capsys):
    assert run("doctor", "--model", "f.gguf") == 0
    out = capsys.readouterr().out
    assert "2 on CPU; output on CPU" in out
    assert run("doctor", "--model", "f.gguf", "--json") == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"name": "tokenizer", "status": "ok"}.items() <= findings[-2].items()


@pytest.mark.parametrize(
    ("has", "uses", "warning"),
    [
        ("fma avx2 avx512f", "CPU : SSE3 = 1 | LLAMAFILE = 1 | ", "AVX2 and AVX512, but"),
        ("fma avx2 avx512f", "CPU : AVX = 1 | AVX2 = 1 | OPENMP = 1 | ", "has AVX512, but"),
        ("fma avx2", "CPU : AVX2 = 0 | OPENMP = 1 | ", "has AVX2, but"),
        ("avx2 avx512f", "CPU : AVX2 = 1 | AVX512 = 1 | OPENMP = 1 | ", ""),
        ("", "CPU : NEON = 1 | ", ""),
        ("avx2", "CUDA : ARCHS = 890 | CPU : AVX2 = 1 | OPENMP = 1 | ", ""),
    ],
)
def test_doctor_warns_of_instructions_that_ggml_does_not_use(
    double: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    has: str, uses: str, warning: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(doctor, "instructions", lambda: frozenset(has.split()))
    monkeypatch.setattr(native, "system_info", lambda: uses)
    assert run("doctor", "--model", "f.gguf") == 0
    lines = [line for line in capsys.readouterr().out.split("\n") if line[2:].startswith("cpu ")]
    assert len(lines) == (2 if warning else 1)
    if warning:
        assert lines[1].startswith("! cpu") and warning in lines[1]
        assert "CMAKE_ARGS=-DGGML_NATIVE=on pip install" in lines[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("avx512", "our own, with AVX-512 VNNI, "),
        ("avxvnni", "our own, with AVX-VNNI, "),
        ("avx2", "our own, with AVX2, "),
        ("neon", "our own, with NEON's dot products, "),
        ("ggml", "ggml's: "),
    ],
)
def test_doctor_names_the_instructions_of_the_products(
    double: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    name: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(native, "products_name", lambda: name)
    assert run("doctor", "--model", "f.gguf") == 0
    assert f"  products          {said}" in capsys.readouterr().out


def test_the_instructions_are_those_that_linux_names():
    x86_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    assert ("sse2" in versions.instructions()) == x86_linux
    assert versions.processor()


@pytest.mark.parametrize("why", ["", "there is no program bwrap"])
def test_doctor_names_the_sandbox(double: None, capsys, monkeypatch, why: str):
    from tgr_local.system.sandbox import commands

    monkeypatch.setattr(commands, "defect", lambda kind: why if kind == "bwrap" else "")
    assert run("doctor", "--model", "f.gguf") == 0
    line = next(
        line for line in capsys.readouterr().out.split("\n") if line[2:].startswith("sandbox ")
    )
    if why:
        assert line.startswith("! sandbox           WARNING: eval --allow-exec needs bwrap")
        assert f"({why})" in line and "--sandbox limits: only resources are limited" in line
    else:
        assert line.startswith(
            "  sandbox           code and eval --allow-exec use bwrap: no network"
        )


def test_doctor_reports_a_broken_part(double: None, capsys, monkeypatch):
    from tgr_local import engine

    monkeypatch.setattr(engine, "Engine", Mock(side_effect=TgrError("the file is damaged")))
    assert run("doctor", "--model", "f.gguf") == 1
    assert "X model             BROKEN: the file is damaged\n" in capsys.readouterr().out


@pytest.mark.skipif(native.ggml == "bundled", reason="the engine has a ggml of its own")
def test_incompatible_parts_are_one_line_and_doctor_still_reports_versions():
    code = (
        "import importlib.metadata as m, sys; true = m.version\n"
        "m.version = lambda name: '0.1.2' if name == 'llama-cpp-python' else true(name)\n"
        "from tgr_local.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=HANG
        )

    refused = run("run", "q", "--model", "f.gguf")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        "tgr-local: llama-cpp-python is 0.1.2, but tgr-local was built"
    )
    assert refused.stderr.count("\n") == 1
    examined = run("doctor")
    assert examined.returncode == 1 and examined.stderr == ""
    assert "llama-cpp-python  0.1.2\n" in examined.stdout
    assert "X devices           BROKEN: llama-cpp-python is 0.1.2, but" in examined.stdout


@pytest.mark.parametrize(("layers", "loud"), [(-1, True), (0, False)])
def test_an_unused_gpu_is_a_warning(double: None, capsys, monkeypatch, layers: int, loud: bool):
    from tgr_local.engine import installation

    monkeypatch.setattr(installation, "gpu_present", lambda: "an NVIDIA GPU")
    assert run("run", "q", "--model", "f.gguf", "--n-gpu-layers", str(layers)) == 0
    err = capsys.readouterr().err
    assert ("tgr-local: warning: this machine has an NVIDIA GPU, but" in err) == loud


@pytest.mark.parametrize(
    ("fit", "note"),
    [
        (LayerFit(3, 3, 0, 4096, lowered=False), ""),
        (LayerFit(2, 3, 0, 4096, lowered=False), "2 of 3 layers are on the GPU: as many as fit"),
        (
            LayerFit(3, 3, 1, 512, lowered=False),
            "3 of 3 layers are on the GPU, the experts of 1 of them in RAM: as many as fit beside "
            "a cache of 512 cells",
        ),
        (LayerFit(2, 3, 0, 512, lowered=True), "2 of 3 layers are on the GPU: its memory ran out"),
    ],
)
def test_a_part_of_the_model_in_ram_is_said_once(
    double: None, capsys, monkeypatch, fit: LayerFit, note: str
):
    monkeypatch.setattr(FakeEngine, "layer_fit", fit)
    assert run("run", "q", "--model", "f.gguf") == 0
    err = capsys.readouterr().err
    assert err.count("layers are on the GPU") == (note != "") and note in err
    assert run("doctor", "--model", "f.gguf") == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "layers  " in one]
    assert line.count("layers are on the GPU") == (note != "") and note in line


def test_the_embedded_model_beside_the_extension_comes_first(tmp_path, monkeypatch):
    from tgr_local.options.model_files import embedded_model

    origin = str(tmp_path / "_engine.so")
    spec = importlib.machinery.ModuleSpec("tgr_local._engine", None, origin=origin)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    (tmp_path / "embedded.gguf").touch()
    assert embedded_model() == tmp_path / "embedded.gguf"


def test_without_an_embedded_model_the_way_out_is_named(capsys, monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    assert run("run", "q") == 1
    assert capsys.readouterr().err.endswith("name one with --model FILE\n")


def test_doctor_examines_a_model(small: Path):
    code, out, err = finished("doctor", "--model", str(small), "--json", double=False)
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert (code, err) == (0, "")
    assert findings["generation"]["status"] == findings["tokenizer"]["status"] == "ok"


WITHOUT_ENGINE = """
import sys
sys.modules["tgr_local._engine"] = None
from tgr_local.commands.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["models"], 0, "tgr-mini-q8_0"),
        (["doctor"], 1, "BROKEN: the native engine cannot be loaded"),
        (["models", "show", "tgr-mini"], 0, "tgr-mini-q8_0.gguf"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_without_the_engine_the_rest_works(arguments: list[str], code: int, line: str):
    start = [sys.executable, "-c", WITHOUT_ENGINE, *arguments]
    done = subprocess.run(start, env=environment(), capture_output=True, text=True, timeout=HANG)
    assert done.returncode == code and line in done.stdout, done.stderr
