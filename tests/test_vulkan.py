"""Whether Vulkan is used, with stand-ins for the drivers: no GPU and no Vulkan is needed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from surroundings import HANG, environment

from tgr_local.engine import devices, vulkan, vulkan_child
from tgr_local.engine.devices import DeviceInfo
from tgr_local.engine.native import native
from tgr_local.engine.vulkan import Answer

GPU = "Vulkan0 (Stand-in GPU)"
USED = Answer((GPU,))
SOFTWARE = Answer(reason="Vulkan has no GPU that is taken by itself (0: llvmpipe, software)")
Asked = Callable[[str], list[str]]


def not_taken(devices: str) -> Answer:
    return Answer(
        reason=f"Vulkan has no GPU that is taken by itself ({devices}); --device vulkan0 takes "
        "the first in spite of that"
    )


def saying(answer: Answer) -> str:
    """A program that gives an answer."""
    return f"print({json.dumps(dataclasses.asdict(answer))!r})"


@pytest.fixture
def asks(tmp_path, monkeypatch) -> Iterator[Asked]:
    """`asks(code)`: the backend is there, and this Python code is what asks the drivers. Returns a
    list that grows each time."""
    library = tmp_path / "libggml-vulkan.so"
    library.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(vulkan, "library", lambda: library)
    monkeypatch.setattr(vulkan, "LOADER", None)  # this program itself
    monkeypatch.setattr(native, "load_backends", lambda file: None)

    def set_up(code: str) -> list[str]:
        asked = []

        def child() -> list[str]:
            asked.append(code)
            return [sys.executable, "-c", code]

        monkeypatch.setattr(vulkan, "child", child)
        vulkan.forget()
        return asked

    yield set_up
    vulkan.forget()


@pytest.mark.parametrize("answer", [USED, SOFTWARE])
def test_an_answer_is_asked_for_once(asks: Asked, answer: Answer):
    asked = asks(saying(answer))
    assert vulkan.answer() == answer
    vulkan.forget()
    assert vulkan.answer() == answer and len(asked) == 1
    assert vulkan.answer(again=True) == answer and len(asked) == 2


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import os; os.abort()", "ended the process that asked it (exit code -6)"),
        ("import sys; sys.exit(3)", "ended the process that asked it (exit code 3)"),
        ("", "gave no answer that can be read"),
        ("print('found 1 device')", "gave no answer that can be read"),
        ("print('[' * 100000)", "gave no answer that can be read"),
        ("import sys; sys.stdout.buffer.write(b'\\xff' * 1000000)", "gave no answer that can"),
        ("print({'devices': [1], 'reason': ''})", "gave no answer that can be read"),
    ],
)
def test_a_driver_that_fails_is_not_used(asks: Asked, code: str, what: str):
    asked = asks(code)
    answer = vulkan.answer()
    assert answer.is_broken and not answer.devices
    assert answer.reason.startswith(f"Vulkan's driver {what}") and "\n" not in answer.reason
    vulkan.forget()
    assert vulkan.answer() == answer and len(asked) == 1


def test_a_driver_that_hangs_is_given_up(asks: Asked, monkeypatch):
    """A process that it has started and that holds its output keeps nobody waiting."""
    monkeypatch.setattr(vulkan, "SECONDS", 0.5)
    forks = "import subprocess, sys, time\n"
    forks += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
    asked = asks(forks + "time.sleep(3600)")
    slow = "Vulkan's driver did not answer within 0.5 seconds"
    for n in range(1, vulkan.TRIES + 2):
        reason = vulkan.answer().reason
        assert reason.startswith(slow) and len(asked) == min(n, vulkan.TRIES)
        assert ("asked again the next time" in reason) == (n < vulkan.TRIES)
        vulkan.forget()
    for n in (1, 2):  # as doctor does
        assert vulkan.answer(again=True).n_slow == vulkan.TRIES + n
        vulkan.load()
        assert vulkan.answer().is_broken and len(asked) == vulkan.TRIES + n
        vulkan.forget()


def test_a_driver_that_compiles_for_long_is_used_later(asks: Asked, tmp_path, monkeypatch):
    """What it compiled in the time that it had is there the next time."""
    monkeypatch.setattr(vulkan, "SECONDS", 2)
    done = tmp_path / "compiled"
    compiles = f"import os, time\nif not os.path.exists({str(done)!r}):\n"
    compiles += f"    open({str(done)!r}, 'w').close(); time.sleep(3600)\n"
    asks(compiles + saying(USED))
    assert vulkan.answer().n_slow == 1
    for _ in range(2):
        vulkan.forget()
        assert vulkan.answer() == USED


def test_what_could_not_be_tried_is_tried_again(asks: Asked):
    asked = asks(saying(Answer(reason="no memory", lasts=False)))
    for n in (1, 2):
        assert vulkan.answer().reason == "no memory" and len(asked) == n
        vulkan.forget()


PROGRAM = """
import json, sys
sys.frozen, sys.executable = True, {program!r}
import tgr_local
from tgr_local.engine import vulkan_child
vulkan_child.main = lambda: print({answer!r})
if {supported}:
    tgr_local.freeze_support()
from pathlib import Path
from tgr_local.engine import vulkan
from tgr_local.engine.native import native
vulkan.LOADER, native.load_backends = None, print
for start in (1, 2):
    vulkan.forget()
    vulkan.library = lambda: Path(__file__).with_name(f"unpacked{{start}}")  # as --onefile does
    vulkan.library().touch()
    print(vulkan.answer())
print(*[path.name for path in vulkan.paths.folder("cache").glob("vulkan/*")])
"""


@pytest.mark.parametrize("supported", [True, False])
def test_a_frozen_program_asks_itself(tmp_path, supported: bool):
    """It has no Python. What it is told holds for its next start, which unpacks it again."""
    program, script = tmp_path / "python-tools", tmp_path / "script.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    answer = json.dumps(dataclasses.asdict(USED))
    script.write_text(PROGRAM.format(program=str(program), answer=answer, supported=supported))
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"), XDG_DATA_HOME=str(tmp_path))
    done = subprocess.run([program], stdout=subprocess.PIPE, env=env, text=True, timeout=HANG)
    *answers, kept = done.stdout.splitlines()
    assert done.returncode == 0 and len(answers) == 2
    if supported:
        assert answers == [repr(USED)] * 2 and len(kept.split()) == 1
    else:
        assert "the program does not call tgr_local.freeze_support() first" in answers[0]
        assert not kept


def test_a_new_driver_is_asked(asks: Asked, tmp_path, monkeypatch):
    asked = asks(saying(SOFTWARE))
    folder = tmp_path / "data" / "vulkan" / "icd.d"
    folder.mkdir(parents=True)

    def n_asked() -> int:
        vulkan.forget()
        vulkan.answer()
        return len(asked)

    assert [n_asked(), n_asked()] == [1, 1]
    (folder / "intel.json").write_text("{}")
    assert [n_asked(), n_asked()] == [2, 2]
    (folder / "intel.json").write_text('{"new": 1}')
    assert [n_asked(), n_asked()] == [3, 3]
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    assert [n_asked(), n_asked()] == [4, 4]
    (tmp_path / "libggml-vulkan.so").write_text("another version")
    assert [n_asked(), n_asked()] == [5, 5]
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("damaged")
    assert [n_asked(), n_asked()] == [6, 6]


def test_without_a_loader_or_a_library_nothing_is_asked(asks: Asked, monkeypatch):
    asked = asks(saying(USED))
    monkeypatch.setattr(vulkan, "LOADER", "libtgr-no-such-loader.so.1")
    assert vulkan.answer().reason.startswith("libtgr-no-such-loader.so.1 is not installed")
    vulkan.forget()
    monkeypatch.setattr(vulkan, "library", lambda: Path("/nowhere/libggml-vulkan.so"))
    assert vulkan.answer().reason == "this build has no Vulkan backend"
    assert not asked


@pytest.mark.parametrize(("answer", "loads"), [(USED, True), (SOFTWARE, False)])
def test_only_a_gpu_has_the_backend_loaded(
    asks: Asked, monkeypatch, small: Path, answer: Answer, loads: bool
):
    from tgr_local.engine import Engine
    from tgr_local.options.config import EngineConfig

    asked, loaded = asks(saying(answer)), []
    monkeypatch.setattr(native, "load_backends", loaded.append)
    Engine(small, EngineConfig(n_gpu_layers=0)).close()
    assert not asked and not loaded
    for _ in range(2):
        Engine(small).close()
    assert len(asked) == 1 and loaded == [str(vulkan.library().parent)] * loads


@pytest.mark.parametrize(
    ("by_itself", "device", "named"),
    [
        (SOFTWARE, "Vulkan1", "1"), (SOFTWARE, "", None), (SOFTWARE, "vulkan", None),
        (SOFTWARE, "0", None), (USED, "vulkan1", None), (Answer(is_broken=True), "vulkan1", None),
    ],
)  # fmt: skip
def test_a_named_device_is_taken_where_none_is_by_itself(
    asks: Asked, monkeypatch, by_itself: Answer, device: str, named: str | None
):
    monkeypatch.setenv(vulkan.VISIBLE, "restored at the end")
    monkeypatch.delenv(vulkan.VISIBLE)
    loaded = []
    is_named = f"__import__('os').environ.get({vulkan.VISIBLE!r}) == '1'"
    asks(f"{saying(USED)} if {is_named} else {saying(by_itself)}")
    monkeypatch.setattr(native, "load_backends", loaded.append)
    vulkan.load()
    assert len(loaded) == (by_itself == USED)
    for _ in range(2):
        vulkan.load(device)
    assert os.environ.get(vulkan.VISIBLE) == named
    assert len(loaded) == (by_itself == USED or named is not None)
    assert vulkan.given_name("vulkan1") == ("vulkan0" if named else "vulkan1")


def test_a_gpu_has_a_number_and_a_name(asks: Asked, monkeypatch):
    kinds = {"CPU": "cpu", "Vulkan0": "gpu", "Vulkan1": "igpu"}
    all_devices = [DeviceInfo(name, "Stand-in", kind, 1, 1) for name, kind in kinds.items()]
    monkeypatch.setattr(devices, "backend_devices", lambda: all_devices)
    names = ("", "0", "1", "vulkan1", "VULKAN0")
    assert [devices.gpu_number(name) for name in names] == [-1, 0, 1, 1, 0]
    with pytest.raises(ValueError) as error:
        devices.gpu_number("vulkan2")
    assert str(error.value) == (
        "device is 'vulkan2', but ggml sees Vulkan0, Vulkan1; choose one of them, cpu, or leave "
        "it out"
    )
    asks(saying(SOFTWARE))
    monkeypatch.setattr(devices, "backend_devices", lambda: all_devices[:1])
    with pytest.raises(ValueError, match=r"ggml sees no GPU \(Vulkan has no GPU that is taken by"):
        devices.gpu_number("1")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (saying(USED), f"  vulkan            used: {GPU}\n"),
        (
            saying(SOFTWARE),
            "  vulkan            Vulkan has no GPU that is taken by itself (0: llvmpipe, ",
        ),
        ("import os; os.abort()", "! vulkan            WARNING: Vulkan's driver ended the process"),
    ],
)
def test_doctor_says_whether_it_is_used(asks: Asked, double: None, capsys, code: str, line: str):
    asked = asks(code)
    assert run("doctor", "--model", "f.gguf") == 0
    assert line in capsys.readouterr().out
    assert run("doctor", "--model", "f.gguf", "--n-gpu-layers", "0") == 0
    assert "  vulkan            not asked: n_gpu_layers is 0\n" in capsys.readouterr().out
    assert len(asked) == 1


@pytest.mark.parametrize(("layers", "warns"), [("auto", True), ("0", False)])
def test_a_broken_driver_is_a_warning_and_the_answer_comes(
    asks: Asked, double: None, capsys, layers: str, warns: bool
):
    asks("import os; os.abort()")
    assert run("run", "q", "--model", "f.gguf", "--n-gpu-layers", layers) == 0
    out, err = capsys.readouterr()
    assert out and err.count("warning: Vulkan's driver ended the process") == warns


def test_an_unused_gpu_names_what_vulkan_lacks(asks: Asked, double: None, capsys, monkeypatch):
    from tgr_local.engine import installation

    asks(saying(SOFTWARE))
    monkeypatch.setattr(installation, "gpu_present", lambda: "an AMD GPU")
    assert run("run", "q", "--model", "f.gguf") == 0
    err = capsys.readouterr().err
    assert "this machine has an AMD GPU, but every layer is on the CPU: Vulkan has no GPU" in err


def test_the_child_tries_the_embedded_model(monkeypatch):
    gpu = DeviceInfo("Vulkan0", "Stand-in GPU", "gpu", 1, 1)
    monkeypatch.setattr(vulkan_child, "backend_devices", lambda: [gpu])
    assert vulkan_child.found() == USED
    for wrong in (0.2, float("nan")):
        nonsense = {-1: np.array([0.5, wrong]), 0: np.array([0.5, 0.5])}
        monkeypatch.setattr(vulkan_child, "probabilities", nonsense.__getitem__)
        answer = vulkan_child.found()
        assert answer.is_broken and not answer.devices
        assert answer.reason.startswith(f"{GPU} computes something else than the CPU")


def test_a_gpu_of_the_processor_is_taken_where_it_is_named(monkeypatch):
    gpu = DeviceInfo("Vulkan0", "Stand-in GPU", "igpu", 1, 1)
    monkeypatch.setattr(vulkan_child, "backend_devices", lambda: [gpu])
    monkeypatch.setattr(vulkan_child, "all_devices", lambda: [("Part", 1)])
    assert vulkan_child.found() == not_taken("0: Part, integrated")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    assert vulkan_child.found() == USED


def test_the_child_reads_a_text_that_the_embedded_model_knows():
    """Else a GPU that computes nonsense might find it as likely."""
    likely = vulkan_child.probabilities(0)
    assert likely.max() > 0.9 and np.isfinite(likely).all() and len(likely) > 20


def test_the_child_names_software_devices(monkeypatch):
    monkeypatch.setattr(vulkan_child, "backend_devices", list)
    monkeypatch.setattr(vulkan_child, "all_devices", list)
    assert vulkan_child.found() == Answer(reason="Vulkan's drivers have no device here")
    for answer, named in [
        ([("llvmpipe", 4)], "0: llvmpipe, software"),
        ([("Old", 2), ("llvmpipe", 4)], "0: Old; 1: llvmpipe, software"),
    ]:
        monkeypatch.setattr(vulkan_child, "all_devices", lambda answer=answer: answer)
        assert vulkan_child.found() == not_taken(named)
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    assert vulkan_child.found().reason == ("Vulkan's devices are 0 to 1, and '7' is none of them")
