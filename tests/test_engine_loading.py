"""Loading a model: where its layers go, why it cannot be loaded, and how a load is ended."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import EXACT, generated
from fixture_types import Model
from gguf_models import write_model
from surroundings import HANG, environment

from tgr_local.engine import Cancel, Engine, backend_devices, check_memory, devices
from tgr_local.engine.adapters import LoadedFiles
from tgr_local.engine.installation import gpu_devices, slow_cache
from tgr_local.engine.native import native
from tgr_local.options import strength_files
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError, ModelError

# --- devices ---


@pytest.mark.skipif(bool(gpu_devices()), reason="needs a machine without a GPU")
def test_a_gpu_that_does_not_exist_is_refused(model: Model):
    for device in ("0", "3", "vulkan0", "Vulkan1", "CUDA0", "toaster", "vulkan²", "-1", "none"):
        with pytest.raises(ValueError, match=f"device is {device!r}, but ggml sees no GPU \\("):
            Engine(model(), EngineConfig(device=device))
        with pytest.raises(ValueError, match=f"device is {device!r}, but ggml sees no GPU"):
            check_memory(model(), EngineConfig(device=device))
    Engine(model(), EngineConfig(device="0", n_gpu_layers=0)).close()  # asks for none


def test_the_processor_is_a_device(model: Model):
    for name in ("cpu", "CPU"):
        config = EngineConfig(device=name)
        assert config.n_gpu_layers == 0
        with Engine(model(), config) as engine:
            assert set(engine.devices()) == {"CPU"}
    assert dataclasses.replace(EngineConfig(device="cpu"), n_ctx=64).n_gpu_layers == 0
    with pytest.raises(ValueError, match="device is 'cpu', but n_gpu_layers is 5; leave one"):
        EngineConfig(device="cpu", n_gpu_layers=5)


def test_a_small_model_gets_one_thread_whatever_its_first_part_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "physical_cores", lambda: 7)
    assert devices.default_threads(tmp_path / "absent.gguf") == 7
    sizes = {"small": [1 << 20], "large": [65 << 20], "a": [1 << 20, 1 << 20], "b": [0, 65 << 20]}
    for name, parts in sizes.items():
        files = [tmp_path / f"{name}-{i:05}-of-{len(parts):05}.gguf" for i in (1, 2)]
        for file, size in zip(files, parts, strict=False):
            file.touch()
            os.truncate(file, size)
        assert devices.default_threads(files[0]) == (7 if sum(parts) > 64 << 20 else 1)


def test_a_model_in_parts_is_known_by_all_of_them(tmp_path):
    def parts(name: str, *texts: str) -> list[Path]:
        n = len(texts)
        files = [tmp_path / f"{name}-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        return files

    (alone,) = parts("alone", "a")
    assert LoadedFiles(alone, ()).sha256() == hashlib.sha256(b"a").hexdigest()
    ours, theirs = parts("ours", "a", "b"), parts("theirs", "a", "c")
    loaded = LoadedFiles(ours[0], ())
    assert loaded.sha256() not in (
        LoadedFiles(theirs[0], ()).sha256(), LoadedFiles(alone, ()).sha256()
    )  # fmt: skip
    settings = {
        "model": loaded.sha256(), "divergence": 0.01, "rank": 8, "d_z": 64, "injection_seed": 1,
        "type_k": "f16", "type_v": "f16", "control_vector": "",
    }  # fmt: skip
    strength_files.write(settings, strength_files.Strength(2.0, 0.01, 100, 1.0))
    assert [of for of, _ in strength_files.of_model(ours[0]).values()] == [settings]
    assert strength_files.of_model(theirs[0]) == {}
    assert loaded.replaced() is None
    ours[1].write_text("another")
    assert loaded.replaced() == ours[1]


@pytest.mark.gpu
def test_one_gpu_gets_all_layers(model: Model):
    gpus = [device.name for device in backend_devices() if device.kind == "gpu"]
    for number, name in enumerate(gpus):
        for device in (str(number), name, name.upper()):
            with Engine(model(), EngineConfig(device=device)) as engine:
                assert set(engine.devices()) == {name}
    with pytest.raises(ValueError, match=f"but ggml sees {gpus[0]}"):
        Engine(model(), EngineConfig(device=str(len(gpus))))


def test_one_gpu_and_a_split_exclude_each_other():
    with pytest.raises(ValueError, match="tensor_split splits the model, but device is '1'"):
        EngineConfig(device="1", tensor_split=(3.0, 1.0))
    assert EngineConfig(tensor_split=(3.0, 1.0)).device == ""


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"type_k": "q8_0", "type_v": "q4_0"}, "type_k=q8_0 and type_v=q4_0, so the CPU computes"),
        ({"type_k": "q8_0", "type_v": "f16"}, "type_v=f16, so attention without it is slower"),
        ({"type_v": "f32", "flash_attn": "on"}, "type_v=f32, so the CPU computes attention"),
    ],
)
def test_a_cache_that_no_kernel_reads_is_a_warning(options: dict[str, str], part: str):
    class Loaded:
        config = EngineConfig(**options)  # type: ignore[arg-type]

        def devices_without_attention(self) -> list[str]:
            return ["CUDA0", "CUDA1"]

    warning = slow_cache(Loaded())  # type: ignore[arg-type]
    assert warning and part in warning and warning.startswith("CUDA0 and CUDA1 cannot compute")


def test_on_the_cpu_no_cache_is_without_attention(model: Model):
    config = EngineConfig(type_k="q8_0", type_v="q4_0", n_gpu_layers=0)
    with Engine(model(n_embd=128), config) as engine:
        assert slow_cache(engine) is None


# --- memory ---

OUT_OF_MEMORY = [
    "allocating 4168.00 MiB on device 0: cudaMalloc failed: out of memory",  # CUDA
    "failed to allocate CUDA0 buffer of size 4370464768",  # ggml
    "unable to allocate CUDA0 buffer",  # llama.cpp
    "Device memory allocation of size 4370464768 failed.",  # Vulkan
    "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    "error: failed to allocate buffer, size = 4168.00 MiB",  # Metal
    "insufficient memory (attempted to allocate 4168.00 MB)",  # the CPU
    "mmap failed: Cannot allocate memory",
    "std::bad_alloc",
]
DAMAGED = [
    "key not found in model: qwen3.block_count",
    "tensor 'blk.0.attn_q.weight' has wrong shape; expected 64, 64, got 64, 32",
    "missing tensor 'blk.1.attn_norm.weight'",
    "tensor 'x' data is not within the file bounds, model is corrupted or incomplete",
]


def params(n_gpu_layers: int) -> native.EngineParams:
    made = native.EngineParams()
    made.path, made.n_gpu_layers, made.main_gpu = "m.gguf", n_gpu_layers, -1
    return made


@pytest.mark.parametrize("reason", OUT_OF_MEMORY)
def test_lack_of_memory_is_not_blamed_on_the_file(reason: str):
    with pytest.raises(ModelError) as caught:
        native.refuse_load(params(0), 4685 << 20, reason)
    message = str(caught.value)
    assert f"there is not enough memory for m.gguf ({reason}): its weights take 4685 MiB" in message
    assert "download" not in message and "smaller quantization" in message


@pytest.mark.parametrize("reason", DAMAGED)
def test_damage_is_blamed_on_the_file(reason: str):
    with pytest.raises(ModelError, match="download it again"):
        native.refuse_load(params(-1), 4685 << 20, reason)


@pytest.mark.gpu
def test_lack_of_memory_of_a_gpu_names_the_way_out():
    with pytest.raises(ModelError, match=r" has \d+ MiB free, RAM .*so lower n_gpu_layers"):
        native.refuse_load(params(-1), 4685 << 20, OUT_OF_MEMORY[0])


LIMITED = """
import resource, sys
from pathlib import Path
from tgr_local.engine import Engine
from tgr_local.system.errors import ModelError
from tgr_local.options.config import EngineConfig
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (24 << 20),) * 2)
try:
    Engine(sys.argv[1], EngineConfig(use_mmap=False, n_gpu_layers=0))
except ModelError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit of the address space")
def test_weights_that_do_not_fit_into_memory(tmp_path):
    path = write_model(tmp_path / "m.gguf", n_layer=1, n_embd=256, n_ff=16384)
    assert path.stat().st_size > 48 << 20
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True, text=True, env=environment(), timeout=HANG,
    )  # fmt: skip
    assert "there is not enough memory for" in done.stdout, done
    assert "its weights take" in done.stdout and "smaller quantization" in done.stdout


# --- the end of a load ---


class Slow(Cancel):
    """Makes the load that asks it slow, so that it is asked again, and is set after n times. The
    first time, it calls `asked_first`."""

    def __init__(self, n: int, asked_first: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.n, self.asked, self._asked_first = n, 0, asked_first

    def is_set(self) -> bool:
        self.asked += 1
        if self.asked == 1:
            self._asked_first()
        time.sleep(0.12)
        return self.asked > self.n


@pytest.mark.parametrize("use_mmap", [True, False])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_load_is_cancelled(model: Model, n: int, use_mmap: bool):
    slow = Slow(n)
    with pytest.raises(CancelledError, match=r"while .* was being loaded"):
        Engine(model(), EngineConfig(use_mmap=use_mmap), cancel=slow)
    assert slow.asked == n + 1


def test_control_c_ends_a_load_and_leaves_nothing(model: Model):
    """In the main thread, as often as one likes; the next load works."""
    path = model()
    for _ in range(3):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            try:
                Engine(path, EngineConfig(**EXACT), cancel=Slow(10**9, timer.start))
            finally:
                timer.join()
    with Engine(path, EngineConfig(**EXACT)) as engine:
        assert len(generated(engine)) == 12


SLOW = """
import sys, time
from tgr_local.engine.native import native
real = native.Engine
def slowly(params, check):
    def ask():
        print("loading", flush=True)
        time.sleep(0.2)
        check()
    return real(params, ask)
native.Engine = slowly
from tgr_local.commands.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command", [["run", "hello"], ["chat"], ["serve", "--port", "0"]], ids=lambda c: str(c[0])
)
def test_control_c_ends_a_command_that_loads(model: Model, command: list[str]):
    started = subprocess.Popen(
        [sys.executable, "-c", SLOW, *command, "--model", str(model())],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    assert started.stdout and started.stdout.readline() == "loading\n"
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=HANG)
    assert started.returncode == 130, err
    assert set(out.splitlines()) <= {"loading"}
    said = [line for line in err.splitlines() if "listening on" not in line]
    assert said == ([] if command[0] == "serve" else ["tgr-local: interrupted"])
