"""Limits of this process on Windows, which the system enforces by a Job Object. The file is also
loaded alone, by `confined_worker.py`."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

_PROCESS_TIME, _PROCESS_MEMORY, _NO_ERROR_WINDOW = 0x2, 0x100, 0x400
_EXTENDED_LIMITS = 9
_memory = 0


class JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", ctypes.c_int64),  # of its own code, units of 100 ns
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("sizes", ctypes.c_size_t * 2),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("classes", ctypes.c_uint32 * 2),
        ("counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),  # committed bytes
        ("others", ctypes.c_size_t * 3),
    )


def limit(*, memory: int = 0, seconds: float = 0.0) -> None:
    """Limits the memory that this process commits from now on, in bytes, or its CPU time, to so
    many seconds from now; 0 leaves a limit as it is. Raises OSError."""
    if sys.platform != "win32":
        raise NotImplementedError
    global _memory
    _memory = memory or _memory
    flags = (_PROCESS_MEMORY if _memory else 0) | (_PROCESS_TIME if seconds else 0)
    ticks = int(1e7 * (os.times().user + seconds)) if seconds else 0
    limits = JobLimits(process_time=ticks, flags=flags | _NO_ERROR_WINDOW, process_memory=_memory)
    job, size = _job(), ctypes.sizeof(limits)
    if not _kernel().SetInformationJobObject(job, _EXTENDED_LIMITS, ctypes.byref(limits), size):
        raise ctypes.WinError(ctypes.get_last_error())


@functools.cache
def _job() -> ctypes.c_void_p:
    """A job that has this process; it ends with the process."""
    if sys.platform != "win32":
        raise NotImplementedError
    kernel = _kernel()
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    this = ctypes.c_void_p(kernel.GetCurrentProcess())
    if not job or not kernel.AssignProcessToJobObject(job, this):
        raise ctypes.WinError(ctypes.get_last_error())
    return job


@functools.cache
def _kernel() -> ctypes.CDLL:
    if sys.platform != "win32":
        raise NotImplementedError
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    for name in ("CreateJobObjectW", "GetCurrentProcess"):
        getattr(kernel, name).restype = ctypes.c_void_p
    return kernel
