"""The native extension, loaded after the libraries that it needs. InstallError when the installed
parts do not fit together."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from pathlib import Path

from tgr_local.errors import InstallError

LLAMA_CPP_PYTHON = "0.3.36"


def _check_version() -> None:
    try:
        installed = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        installed = "not installed"
    if installed != LLAMA_CPP_PYTHON:
        raise InstallError(
            f"llama-cpp-python is {installed}, but tgr-local was built for {LLAMA_CPP_PYTHON}; "
            f"run: pip install llama-cpp-python=={LLAMA_CPP_PYTHON}"
        )


def _load_ggml() -> None:
    """Loads ggml's libraries by path: the run path of an editable install does not lead to them."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is not None and spec.origin is not None:
        for library in (Path(spec.origin).parent / "lib").glob("*ggml.[sd]*"):
            if library.suffix in (".so", ".dylib"):
                ctypes.CDLL(str(library))


_check_version()
_load_ggml()
try:
    from tgr_local import _engine as native
except ImportError as error:
    raise InstallError(
        f"the native engine cannot be loaded ({error}); run: pip install --force-reinstall "
        "--no-deps tgr-local"
    ) from None

__all__ = ["LLAMA_CPP_PYTHON", "native"]
