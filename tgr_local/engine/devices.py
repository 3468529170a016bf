"""The devices that ggml computes on, and the cores of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tgr_local.engine.native import native

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
    """The devices of the installed llama-cpp-python."""
    return [DeviceInfo(*device) for device in native.devices()]


def serve_devices(endpoint: str, cache: str, n_threads: int) -> None:
    """Lends the GPUs of this machine, or without any its processor, to one program after the other,
    at HOST:PORT. `cache` is a folder that keeps large tensors, or empty. Returns only where it
    cannot go on; ggml prints why."""
    native.serve_devices(endpoint, cache, n_threads)


def available_memory() -> int | None:
    """Bytes of RAM that are available without swapping, to this machine and to every control group
    (container) above this process, and within its limit on address space, less a reserve; None
    where the system does not say."""
    return native.available_memory()


def require_address_space() -> None:
    """To be called before a thread starts or a request begins. MemoryError where a limit on address
    space (`ulimit -v`) leaves less than the reserve: the C library ends a process that has no
    memory for the variables of a thread."""
    native.require_address_space()


def physical_cores() -> int:
    """Physical cores that this process may use: hyper-threads share the units that matter here."""
    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    cores = set()
    for cpu in allowed:
        try:
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
            ids = ("physical_package_id", "core_id")
            cores.add(tuple((topology / name).read_text() for name in ids))
        except OSError:
            cores.add((str(cpu),))
    return len(cores) or 1


def default_threads(model: Path) -> int:
    """1 for a small model, whose layers take less time than the synchronization of threads does;
    otherwise the physical cores."""
    small = model.is_file() and model.stat().st_size < _SMALL_MODEL
    return 1 if small else physical_cores()
