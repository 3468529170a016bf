"""The devices that ggml computes on, and the cores of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tgr_local.engine import vulkan
from tgr_local.engine.native import native
from tgr_local.options.model_parts import parts_of
from tgr_local.system import cores

available_memory = native.available_memory
require_address_space = native.require_address_space
_SMALL_MODEL = 64 << 20  # bytes


@dataclass(frozen=True)
class DeviceInfo:
    """A device that ggml can compute on."""

    name: str
    description: str
    kind: str
    """"cpu", "gpu", "igpu", "accelerator" or "other"."""
    memory_total: int
    """Bytes."""
    memory_free: int
    """Bytes."""


def backend_devices() -> list[DeviceInfo]:
    """The devices that ggml has; those of Vulkan only after `vulkan.load` has found some."""
    return [DeviceInfo(*device) for device in native.devices()]


def gpu_number(device: str) -> int:
    """The number of the GPU with this name or number; -1 = all GPUs. Call `vulkan.load` before.
    Raises ValueError for a GPU that ggml does not see."""
    if not device:
        return -1
    gpus = [info.name for info in backend_devices() if info.kind in ("gpu", "igpu")]
    known = {str(i): i for i in range(len(gpus))} | {gpu.lower(): i for i, gpu in enumerate(gpus)}
    wanted = vulkan.given_name(device.lower())
    if wanted in known:
        return known[wanted]
    sees = f"{', '.join(gpus)}; choose one of them, cpu, or leave it out"
    if not gpus:
        sees = f"no GPU ({vulkan.answer().reason}); choose cpu, or leave it out"
    raise ValueError(f"device is {device!r}, but ggml sees {sees}")


def serve_devices(endpoint: str, cache: str, n_threads: int) -> None:
    """Serves the GPUs of this machine over RPC, or the CPU where it has none. See
    `native.serve_devices`."""
    vulkan.load()
    native.serve_devices(endpoint, cache, n_threads)


def physical_cores() -> int:
    """Physical cores that this process may use at a time, within its CPU quota. Hyper-threads do
    not count: two of them share the arithmetic units of one core."""
    ids_seen = set()
    for cpu in cores.allowed():
        try:
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
            ids = ("physical_package_id", "core_id")
            ids_seen.add(tuple((topology / name).read_text() for name in ids))
        except OSError:
            ids_seen.add((str(cpu),))
    return cores.within_quota(len(ids_seen) or 1)


def default_threads(model: Path) -> int:
    """The default number of threads: 1 for a small model, whose layers take less time than
    synchronizing threads; else the physical cores. All parts of a model in several files count."""
    parts = parts_of(model) or [model]
    sizes = [part.stat().st_size for part in parts if part.is_file()]
    return 1 if sizes and sum(sizes) < _SMALL_MODEL else physical_cores()
