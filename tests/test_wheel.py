"""The wheel that `make wheel` puts into dist/: what is in it, and how it works without
llama-cpp-python."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy
import pytest
from surroundings import HANG, ROOT, environment

from tgr_local import SearchConfig, generate, load
from tgr_local.engine import LLAMA_CPP_PYTHON

if not (ROOT / "csrc").is_dir():
    pytest.skip("the sources are not next to the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT / "csrc"))

import fetch_llama_cpp
import ggml_requirement

TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
QUESTIONS = ["What is 2+3?", "What is 12 + 23 - 4 + 7?"]
PIN = {"installed": "llama-cpp-python==0.0.1"}


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The newest wheel for this Python and processor."""
    found = (ROOT / "dist").glob(f"tgr_local-*-{TAG}-*{platform.machine()}.whl")
    if not (wheels := sorted(found, key=lambda path: path.stat().st_mtime)):
        pytest.skip("dist/ has no wheel for this Python and processor; make wheel builds it")
    return wheels[-1]


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def in_wheel(site: Path, code: str) -> str:
    """What a program prints that has the wheel, this Python's other packages, and no llama_cpp."""
    packages = Path(numpy.__file__).parents[1]
    start = (
        f"import sys\nsys.path[:0] = {[str(site), str(packages)]!r}\n"
        "sys.modules['llama_cpp'] = None\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code],
        env=environment(), capture_output=True, text=True, timeout=HANG, cwd=site,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_requirement_follows_the_ggml(monkeypatch):
    for ggml, needed in [(None, []), ("installed", [PIN["installed"]]), ("bundled", [])]:
        if ggml is None:
            monkeypatch.delenv("TGR_GGML", raising=False)
        else:
            monkeypatch.setenv("TGR_GGML", ggml)
        assert ggml_requirement.get_requires_for_dynamic_metadata(PIN) == needed
        assert ggml_requirement.dynamic_metadata(PIN, {}) == {"dependencies": needed}
    monkeypatch.setenv("TGR_GGML", "other")
    with pytest.raises(SystemExit, match="TGR_GGML is 'other', but must be bundled or installed"):
        ggml_requirement.get_requires_for_dynamic_metadata(PIN)


def test_another_source_than_the_pinned_one_is_refused(tmp_path, monkeypatch):
    """Before anything in it runs."""
    name = f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
    ran = tmp_path / "ran"
    (tmp_path / name).mkdir()
    (tmp_path / name / "setup.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / name, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SystemExit, match=r"could not download .* with the sha256 [0-9a-f]{64};"):
        fetch_llama_cpp.unpack(LLAMA_CPP_PYTHON, ("",), tmp_path / "out")
    assert not (tmp_path / "out").exists() and not ran.exists()


def test_what_is_in_it(site: Path):
    (info,) = site.glob("tgr_local-*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    needs = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert "numpy" in needs and "llama-cpp-python" not in needs
    licences = {path.name for path in (info / "licenses").iterdir()}
    inside = ("ggml", "llama.cpp", "llamafile", "nlohmann-json", "pybind11")
    assert licences >= {"LICENSE", "libgomp", *(f"LICENSE.{name}" for name in inside)}
    libraries = [path.name for path in (site / "tgr_local" / "lib").iterdir()]
    assert sum(name.startswith("libggml-cpu-") for name in libraries) > 1
    assert not [name for name in libraries if "sapphirerapids" in name]  # AMX
    assert not [*site.rglob("*native_tests*")]
    for path in (site / "tgr_local").rglob("*.so"):
        for folder in (ROOT, Path.home()):
            assert str(folder).encode() not in path.read_bytes(), path


def test_the_extensions_are_named_for_the_processor_of_the_wheel():
    """Also in a wheel for another one, of csrc/wheel_arm.sh: else Python does not find them."""
    wheels = [*(ROOT / "dist").glob("tgr_local-*-manylinux_*.whl")]
    if not wheels:
        pytest.skip("dist/ has no wheel for Linux; make wheel builds it")
    for wheel in wheels:
        (processor,) = re.findall(r"manylinux_\d+_\d+_(\w+)\.whl$", wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.match(r"tgr_local/_.*\.so$", name)]
        assert len(names) == 2, names
        assert all(f"-{processor}-linux" in name for name in names), names


def test_vulkan_is_loaded_on_demand_alone(site: Path):
    """The other libraries do without libvulkan, which need not be there."""
    library = site / "tgr_local" / "lib" / "vulkan" / "libggml-vulkan.so"
    for path in (site / "tgr_local").rglob("*.so"):
        assert (b"libvulkan.so.1" in path.read_bytes()) == (path == library), path
    if not library.is_file():
        pytest.skip("the wheel was built without Vulkan")
    code = (
        "from tgr_local import load\nfrom tgr_local.engine import vulkan\n"
        "from tgr_local.options.config import EngineConfig\n"
        "vulkan.LOADER = 'libtgr-no-such-loader.so.1'\n"
        "for n in (0, -2):\n    load(config=EngineConfig(n_gpu_layers=n)).close()\n"
        "print('vulkan' in open('/proc/self/maps').read(), vulkan.answer().reason)"
    )
    assert in_wheel(site, code).startswith("False libtgr-no-such-loader.so.1 is not installed")


def test_it_answers_as_the_engine_here_does(site: Path):
    code = f"""
import json, tgr_local.engine.native as native
from tgr_local import SearchConfig, generate, load
config = SearchConfig(max_tokens=40, temperature=0.0)
with load() as engine:
    texts = [generate(engine, q, config, method="base").text for q in {QUESTIONS!r}]
print(json.dumps([native.__file__, native.native.ggml, texts]))
"""
    file, ggml, there = json.loads(in_wheel(site, code))
    assert file.startswith(str(site)) and ggml == "bundled"
    config = SearchConfig(max_tokens=40, temperature=0.0)
    with load() as engine:
        here = [generate(engine, q, config, method="base").text for q in QUESTIONS]
    assert there == here


def test_the_best_variant_for_this_processor_is_loaded(site: Path):
    cpu = Path("/proc/cpuinfo")
    flags = set(cpu.read_text(encoding="utf-8").split()) if cpu.is_file() else set()
    code = "from tgr_local.engine.installation import processor_features as f\nprint(*f())"
    found = set(in_wheel(site, code).split())
    for flag, feature in [("avx", "AVX"), ("avx2", "AVX2"), ("avx512_bf16", "AVX512_BF16")]:
        assert (feature in found) == (flag in flags), (flag, found)
    assert "AMX_INT8" not in found


def test_doctor_and_peers_without_llama_cpp_python(site: Path):
    report = in_wheel(site, "from tgr_local.commands.cli import main\nassert main(['doctor']) == 0")
    assert "ggml              built in, " in report and "llama-cpp-python" not in report
    code = (
        "from tgr_local.lab.bench.peers import library\n"
        "from tgr_local.system.errors import TgrError\n"
        "try:\n    library()\nexcept TgrError as error:\n    print(error)"
    )
    assert re.fullmatch(
        r"llama-cpp-python, which this compares with, is not installed; run: pip install "
        r"llama-cpp-python==[\d.]+\n",
        in_wheel(site, code),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="wheels for other systems have no Vulkan")
@pytest.mark.parametrize(("flags", "is_missed"), [("", True), ("-DGGML_VULKAN=OFF -DX=1", False)])
def test_the_builder_misses_vulkan_only_where_it_is_wanted(tmp_path, flags: str, is_missed: bool):
    for name, body in (
        ("csrc/wheel.sh", (ROOT / "csrc" / "wheel.sh").read_text()),
        ("bin/pip", "#!/bin/sh\nmkdir -p build/wheel && touch build/wheel/x.whl\n"),
        ("bin/python", "#!/bin/sh\necho libggml-cpu.so\n"),
        ("bin/auditwheel", "#!/bin/sh\n"),
    ):
        (path := tmp_path / name).parent.mkdir(exist_ok=True)
        path.write_text(body)
        path.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "csrc" / "wheel.sh", tmp_path / "bin"],
        env=environment() | {"CMAKE_ARGS": flags}, capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("the wheel has no Vulkan" in done.stdout) == is_missed
