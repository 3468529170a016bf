"""Loads a model with a progress line, and warns where the installed parts do not use the GPU of
this machine, or use it badly."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from tgr_local.engine import vulkan
from tgr_local.engine.devices import backend_devices
from tgr_local.engine.engine import Engine
from tgr_local.engine.native import LLAMA_CPP_PYTHON, native
from tgr_local.options.config import PLAIN_CACHE_TYPES, EngineConfig
from tgr_local.options.resolve import former_advice
from tgr_local.system.cancel import Cancel
from tgr_local.system.progress import ProgressLine
from tgr_local.system.sanitize import printable_line

INSTRUCTIONS = {
    "avx512": "AVX-512 VNNI",
    "avxvnni": "AVX-VNNI",
    "avx2": "AVX2",
    "neon": "NEON's dot products",
}
"""The engine's name of an instruction set for products of quantized weights → its usual name."""


def load_with_progress(
    path: Path, config: EngineConfig, *, chats: bool = True, cancel: Cancel | None = None
) -> Engine:
    """Loads a model with a progress line on stderr. A further line says if a part of the model is
    in RAM instead of on the GPU. Warns if the model has no chat template but needs one (`chats`),
    if the GPU of this machine is not used, if attention is slow with the types of the cache, or if
    the file recommends options that no longer exist. Raises ModelError, and CancelledError by
    `cancel`."""
    with ProgressLine(f"loading {path}"):
        engine = Engine(path, config, cancel=cancel)
    if note := layers_in_ram(engine):
        print(f"tgr-local: {note}", file=sys.stderr)
    warnings = (engine.template_warning if chats else "", unused_gpu(engine), slow_cache(engine))
    for warning in filter(None, (*warnings, *former_advice(engine.metadata))):
        print(f"tgr-local: warning: {printable_line(warning)}", file=sys.stderr)
    return engine


def unused_gpu(engine: Engine) -> str | None:
    """Why the engine does not use the GPU of this machine; None if it does, if there is none, or if
    the user asked for the CPU."""
    if engine.config.n_gpu_layers == 0 or gpu_devices() & set(engine.devices()):
        return None
    if vulkan.answer().is_broken:
        return vulkan.answer().reason
    if (kind := gpu_present()) is None:
        return None
    if gpu_devices():
        return (
            f"this machine has {kind} and ggml is built with GPU support, but no layer is on it: "
            "check the driver and whether its memory is free"
        )
    if vulkan.library().is_file():
        return f"this machine has {kind}, but every layer is on the CPU: {vulkan.answer().reason}"
    backend = {"an NVIDIA GPU": "CUDA", "an AMD GPU": "HIP", "an Apple GPU": "METAL"}[kind]
    return (
        f"this machine has {kind}, but the installed {ggml_package()} is built without GPU "
        f"support, so every layer is on the CPU: {rebuild(f'GGML_{backend}')}"
    )


def layers_in_ram(engine: Engine) -> str | None:
    """A sentence on the part of the model that the engine left in RAM; None if all of it is on the
    GPU, or if there is no GPU."""
    fit = engine.layer_fit
    if fit is None or (fit.n_on_gpu == fit.n_layers and not fit.n_cpu_moe):
        return None
    experts = f", the experts of {fit.n_cpu_moe} of them in RAM" if fit.n_cpu_moe else ""
    why = (
        "its memory ran out when more was loaded"
        if fit.lowered
        else f"as many as fit beside a cache of {fit.n_cells} cells"
    )
    return f"{fit.n_on_gpu} of {fit.n_layers} layers are on the GPU{experts}: {why}"


def ggml_package() -> str:
    """The package that contains the engine's ggml."""
    return {"bundled": "tgr-local", "installed": "llama-cpp-python"}[native.ggml]


def rebuild(option: str) -> str:
    """The command that builds that package here with an option of CMake."""
    package = {
        "bundled": "--no-deps --no-binary tgr-local tgr-local",
        "installed": f"llama-cpp-python=={LLAMA_CPP_PYTHON}",
    }[native.ggml]
    return f"CMAKE_ARGS=-D{option}=on pip install --force-reinstall --no-cache-dir {package}"


def fits_every_processor() -> bool:
    """Whether ggml's CPU code is there for every kind of processor, as in the wheels."""
    return Path(native.__file__).with_name("lib").is_dir()


def ggml_build() -> str:
    """Origin of ggml, and whether it can compute on a GPU here."""
    origins = {"bundled": "built in", "installed": f"of llama-cpp-python {LLAMA_CPP_PYTHON}"}
    return f"{origins[native.ggml]}, {'with' if gpu_devices() else 'without'} GPU support"


def products() -> str:
    """Returns the code and the instructions that multiply quantized weights on the CPU."""
    name = native.products_name()
    if name == "ggml":
        return "ggml's: this processor lacks the instructions for ours, or TGR_PRODUCTS is ggml"
    return f"our own, with {INSTRUCTIONS[name]}, for quantized weights on the CPU"


def processor_features() -> list[str]:
    """CPU features that ggml's CPU code was built for, by its names, such as AVX2."""
    parts = native.system_info().replace("CPU :", "").split("|")
    return [part.split("=")[0].strip() for part in parts if part.strip().endswith("= 1")]


def slow_cache(engine: Engine) -> str | None:
    """Why attention is slow with the cache's types; None if it is not."""
    if not (devices := engine.devices_without_attention()):
        return None
    config = engine.config
    # llama.cpp keeps flash attention where it was asked for, and wants it for quantized values
    on_cpu = config.flash_attn == "on" or config.type_v not in PLAIN_CACHE_TYPES
    instead = (
        "the CPU computes attention instead, which is many times slower"
        if on_cpu
        else "attention without it is slower and takes larger buffers"
    )
    if config.type_k == config.type_v == "f16":  # nothing else helps either
        return f"{' and '.join(devices)} cannot compute this model's flash attention, so {instead}"
    return (
        f"{' and '.join(devices)} cannot compute flash attention with type_k={config.type_k} and "
        f"type_v={config.type_v}, so {instead}: set both to the same type, f16, q8_0 or q4_0"
    )


def peer_library() -> Path:
    """The folder of a libllama on the engine's ggml, which is there if it was built (TGR_PEER)."""
    return Path(native.__file__).with_name("peer")


def gpu_devices() -> set[str]:
    """Names of the GPUs that ggml can compute on."""
    return {device.name for device in backend_devices() if device.kind in ("gpu", "igpu")}


def gpu_present() -> str | None:
    """The kind of GPU that this machine has, whether or not ggml can use it; None without one."""
    if os.path.exists("/proc/driver/nvidia") or shutil.which("nvidia-smi"):
        return "an NVIDIA GPU"
    if os.path.exists("/dev/kfd"):
        return "an AMD GPU"
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return "an Apple GPU" if apple else None
