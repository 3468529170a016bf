"""Memory bandwidth, an upper limit for the speed of a step."""

from __future__ import annotations

import contextlib
import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tgr_local.errors import TgrError

SIZE = 1 << 30  # bytes


class Reader:
    """Reads an array much larger than any cache. One `read` moves `n_bytes`; 0 where the memory of
    a GPU cannot be measured. Use it in a ``with`` block."""

    def __init__(self, n_threads: int, on_cpu: bool) -> None:
        self.n_bytes, self.how = SIZE, f"summed by {n_threads} threads"
        self._pool = ThreadPoolExecutor(n_threads)
        self._gpu = None
        if on_cpu:
            self._parts = np.array_split(np.ones(SIZE // 8), n_threads)
            return
        self._parts = []
        try:
            self._gpu = _CudaCopy(SIZE)
            self.n_bytes, self.how = 2 * SIZE, "copied within the GPU"
        except (OSError, TgrError):
            self.n_bytes = 0

    def read(self) -> float:
        """Moves the bytes once; the sum of the array on a CPU, 0 on a GPU."""
        if self._gpu:
            self._gpu.run()
            return 0.0
        return float(sum(self._pool.map(np.sum, self._parts)))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()
        if self._gpu:
            self._gpu.close()


class _CudaCopy:
    """A copy within the memory of the first NVIDIA GPU, by its driver. OSError without a driver,
    TgrError when it refuses."""

    def __init__(self, size: int) -> None:
        self._cuda, self._size = ctypes.CDLL("libcuda.so.1"), size
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._buffers = [ctypes.c_uint64(), ctypes.c_uint64()]
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        try:
            for buffer in self._buffers:
                self._call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size))
        except TgrError:
            self.close()
            raise

    def run(self) -> None:
        to, source = self._buffers
        self._call("cuMemcpyDtoD_v2", to, source, ctypes.c_size_t(self._size))
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        for buffer in self._buffers:
            if buffer.value:
                with contextlib.suppress(TgrError):
                    self._call("cuMemFree_v2", buffer)

    def _call(self, name: str, *args: object) -> None:
        if (code := getattr(self._cuda, name)(*args)) != 0:
            raise TgrError(f"{name} of the NVIDIA driver failed with {code}")
