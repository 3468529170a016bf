"""The process that asks Vulkan's drivers, for `vulkan.py`: it may crash or hang.

It loads the backend and compares the GPUs with the CPU: the embedded model must give the tokens of
a text the same probabilities.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import vulkan
from tgr_local.engine.devices import backend_devices
from tgr_local.engine.engine import Engine
from tgr_local.engine.native import native
from tgr_local.engine.session import Task
from tgr_local.engine.vulkan import Answer
from tgr_local.options.config import EngineConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.system.errors import TgrError, describe

_TEXT = "What is 12+30-5?\n12+30=42\n42-5=37\nThe answer is 37.\n"
_BOUND = 0.1  # between probabilities; a GPU rounds otherwise
_UNASKED = {1: ", integrated", 4: ", software"}  # VkPhysicalDeviceType
_INSTANCE_INFO = 1  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO


def main() -> None:
    """Prints an `Answer` as JSON on stdout, where drivers print nothing."""
    vulkan.is_child = True
    native.load_backends(str(vulkan.library().parent))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    json.dump(dataclasses.asdict(found()), out)
    out.flush()
    os._exit(0)  # without a driver's code at the end of a process, which may crash


def found() -> Answer:
    """Loads the backend and returns the answer. An integrated GPU is used only where the user names
    it: it shares the processor's memory, and the engine's own kernels do not run on it."""
    kinds = ("gpu", "igpu") if vulkan.VISIBLE in os.environ else ("gpu",)
    gpus = [device for device in backend_devices() if device.kind in kinds]
    if not gpus:
        return Answer(reason=_why_none())
    names = tuple(f"{device.name} ({device.description})" for device in gpus)
    try:
        most = float(np.abs(probabilities(-1) - probabilities(0)).max())
    except TgrError as error:
        return Answer(
            reason=f"{' and '.join(names)} could not be tried: {describe(error)}", lasts=False
        )
    if most < _BOUND:  # not where it is no number
        return Answer(names)
    return Answer(
        reason=f"{' and '.join(names)} computes something else than the CPU; update the driver, "
        "then tgr-local doctor tries it again",
        is_broken=True,
    )


def probabilities(n_gpu_layers: int) -> NDArray[np.float32]:
    """The probabilities that the embedded model gives the tokens of a text, which is read in one
    batch, and again in batches of two, as small as those of writing."""
    config = EngineConfig(n_gpu_layers=n_gpu_layers, n_ctx=256)
    with Engine(embedded_model(), config) as engine, engine.session(128, 1) as session:
        tokens = engine.tokenize(_TEXT)
        half = len(tokens) // 2
        parts = [tokens[:half], *(tokens[i : i + 2] for i in range(half, len(tokens) - 1, 2))]
        sequence = session.sequence()
        tasks = [Task(sequence, part, feed_logprobs=True) for part in parts]
        logprobs = [session.run([task])[0].feed_logprobs for task in tasks]
        likely: NDArray[np.float32] = np.exp(np.concatenate(logprobs))
        return likely


def _why_none() -> str:
    """The reason why no device is used: there is none, or only devices that must be named."""
    devices = all_devices()
    if not devices:
        return "Vulkan's drivers have no device here"
    if vulkan.VISIBLE in os.environ:
        named = repr(os.environ[vulkan.VISIBLE])[:40]
        return f"Vulkan's devices are 0 to {len(devices) - 1}, and {named} is none of them"
    kinds = [f"{i}: {name}{_UNASKED.get(kind, '')}" for i, (name, kind) in enumerate(devices)]
    return (
        f"Vulkan has no GPU that is taken by itself ({'; '.join(kinds)}); --device vulkan0 takes "
        "the first in spite of that"
    )


def all_devices() -> list[tuple[str, int]]:
    """Name and type of every device of Vulkan, in its order."""
    vk = ctypes.CDLL(vulkan.LOADER)
    info, instance = (ctypes.c_uint32 * 16)(_INSTANCE_INFO), ctypes.c_void_p()
    if vk.vkCreateInstance(info, None, ctypes.byref(instance)):
        return []
    n = ctypes.c_uint32()
    vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(n), None)
    handles = (ctypes.c_void_p * n.value)()
    vk.vkEnumeratePhysicalDevices(instance, ctypes.byref(n), handles)
    devices = []
    for handle in handles[: n.value]:
        # VkPhysicalDeviceProperties: five numbers, the last one the type; 256 bytes of the name; …
        properties = ctypes.create_string_buffer(4096)
        vk.vkGetPhysicalDeviceProperties(ctypes.c_void_p(handle), properties)
        kind = int.from_bytes(properties.raw[16:20], sys.byteorder)
        devices.append(
            (ctypes.string_at(ctypes.byref(properties, 20)).decode(errors="replace"), kind)
        )
    return devices
