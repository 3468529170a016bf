"""The native extension, loaded after the libraries that it needs. InstallError when the installed
parts do not fit together.

It is linked to the ggml of the installed llama-cpp-python, or brings its own (`native.ggml` is
"installed" or "bundled") and then needs no llama-cpp-python.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from tgr_local.system.errors import InstallError
from tgr_local.system.versions import version

LLAMA_CPP_PYTHON = "0.3.36"
_SPINS = "2000"
_ASKED = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def _openmp() -> set[str]:
    """The files of GNU's OpenMP in this process; none where there is no /proc."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if "libgomp" in line}


def set_variable(name: str, value: str) -> None:
    """Sets a variable of the environment, or removes it where the value is empty. Also for the C
    library of the extension, which on Windows is not Python's."""
    if value:
        os.environ[name] = value
    else:
        os.environ.pop(name, None)
    if os.name == "nt":
        ctypes.CDLL("msvcrt")._putenv(f"{name}={value}".encode())


@contextlib.contextmanager
def _short_spins() -> Iterator[None]:
    """Makes the waiting threads of a GNU OpenMP that is loaded inside the block spin for about 20
    microseconds and then sleep. Its default is to spin for milliseconds, which takes time from
    other programs on the same cores. Does nothing where the environment sets another policy; the
    environment is restored."""
    if any(name in os.environ for name in _ASKED):
        yield
        return
    set_variable(_ASKED[0], _SPINS)
    try:
        yield
    finally:
        set_variable(_ASKED[0], "")


def waiting() -> str:
    """How a thread waits for the other threads of a step."""
    if not _openmp():
        return "as ggml does it here"
    if not _LOADED:
        return "as OpenMP was set up by the program that loaded it first"
    return " ".join(_SET) or f"{_SPINS} spins, then sleep"


def _check_version() -> None:
    installed = version("llama-cpp-python")
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


def _load() -> None:
    """Loads the extension; where it lacks ggml's libraries, loads these first."""
    try:
        import tgr_local._engine as _engine
    except ImportError as error:
        if "ggml" not in str(error) or "tgr-ggml" in str(error):  # ours is its own
            raise
        _check_version()
        _load_ggml()
    else:
        if _engine.ggml == "installed":
            _check_version()


def _load_backends(folder: Path) -> None:
    """Loads ggml's CPU backend for this processor, and its other backends, from the folder of the
    wheel. A build from source has no such folder: its backends are part of the extension."""
    native.load_backends(str(folder))
    if not native.devices():
        raise InstallError(
            f"no library in {folder} is for this processor; build tgr-local on this machine: "
            "pip install --force-reinstall --no-deps --no-binary tgr-local tgr-local"
        )


_BEFORE, _SET = _openmp(), [f"{name}={os.environ[name]}" for name in _ASKED if name in os.environ]
try:
    with _short_spins():
        _load()
        import tgr_local._engine as native
except ImportError as error:
    if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while the extension begins
        raise error.__cause__ from None
    raise InstallError(
        f"the native engine cannot be loaded ({error}); run: pip install --force-reinstall "
        "--no-deps tgr-local"
    ) from None
if native.ggml == "bundled":
    with _short_spins():
        _load_backends(Path(native.__file__).with_name("lib"))
_LOADED = _openmp() - _BEFORE

__all__ = ["LLAMA_CPP_PYTHON", "native", "waiting"]
