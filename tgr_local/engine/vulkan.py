"""ggml's Vulkan backend, a library of its own in a wheel, loaded where a GPU computes with it.

A driver can crash or hang the process that calls it. So a child process (`vulkan_child.py`) asks
the drivers once. Its answer is stored, and holds until a driver, a device or the library changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tgr_local.engine.native import native, set_variable
from tgr_local.system import confined, frozen, json_checks, paths

SECONDS = 30.0
"""Time that the child has."""
TRIES = 4
"""How often a driver that takes longer is asked again: it may have compiled shaders, which it
stores, so that it is faster the next time."""
VISIBLE = "GGML_VK_VISIBLE_DEVICES"
"""ggml's environment variable with the numbers of the devices that it may use."""
LOADER = "vulkan-1.dll" if os.name == "nt" else "libvulkan.so.1"
_CHILD = """
import sys
sys.path[:] = sys.argv[1:]
from tgr_local.engine import vulkan_child
vulkan_child.main()
"""
_MOST_BYTES = 1 << 16
_SHAPE: dict[str, Any] = {"devices": [str], "reason": str, "is_broken": bool, "lasts": bool,
                          "n_slow": json_checks.Count}  # fmt: skip
_lock = threading.Lock()
_asked: dict[Path, Answer] = {}  # what a child of this process said, by the file that keeps it
is_child = False
"""Whether this is the process that asks, which has loaded the backend."""


@dataclass(frozen=True)
class Answer:
    """Answer of the drivers of this machine."""

    devices: tuple[str, ...] = ()
    """The GPUs that compute correctly; empty = the backend is not loaded."""
    reason: str = ""
    """Why there are no such GPUs."""
    is_broken: bool = False
    """Whether a driver failed."""
    lasts: bool = True
    """Whether the answer is stored for later processes."""
    n_slow: int = 0
    """Number of successive times that the drivers did not answer in time."""


def library() -> Path:
    """The file of the backend; a build from source need not have it."""
    name = "ggml-vulkan.dll" if os.name == "nt" else "libggml-vulkan.so"
    return Path(native.__file__).with_name("lib") / "vulkan" / name


def load(device: str = "") -> None:
    """Loads the backend if a GPU computes correctly with it. `device` is the device that the user
    names, if any."""
    if not is_child:
        name(device)
        _load()


@functools.cache
def _load() -> None:
    if answer().devices:
        native.load_backends(str(library().parent))


def name(device: str) -> None:
    """Sets ggml's variable so that ``vulkanN`` means device N of the drivers, where no GPU is taken
    automatically. Holds for this process and its children."""
    number = device.lower().removeprefix("vulkan")
    is_named = number != device.lower() and number.isascii() and number.isdigit()
    if not is_named or VISIBLE in os.environ or not library().is_file():
        return
    if answer().devices or answer().is_broken:
        return
    set_variable(VISIBLE, number)
    forget()


def forget() -> None:
    """Forgets what a child of this process said: the drivers have other devices now."""
    _asked.clear()
    _load.cache_clear()


def given_name(device: str) -> str:
    """Returns ggml's name of a device: ``vulkan0`` for ``vulkanN`` where the variable selects
    device N alone, since ggml numbers only the selected devices."""
    is_only = device.startswith("vulkan") and device.removeprefix("vulkan") == os.getenv(VISIBLE)
    return "vulkan0" if is_only else device


def answer(again: bool = False) -> Answer:
    """The stored answer; else a child process asks the drivers now. `again`: it asks in any
    case."""
    if not library().is_file():
        return Answer(reason="this build has no Vulkan backend")
    try:
        ctypes.CDLL(LOADER)
    except OSError:
        return Answer(
            reason=f"{LOADER} is not installed; with it and the GPU's driver the GPU is used "
            "(Debian: libvulkan1)"
        )
    file = paths.folder("cache") / "vulkan" / f"{_key()}.json"
    with _lock:
        if file in _asked:
            return _asked[file]
        kept = _read(file)
        if kept is not None and not again and not 0 < kept.n_slow < TRIES:
            return kept
        new = _asked[file] = _ask(kept.n_slow if kept else 0)
        with contextlib.suppress(OSError):
            if new.lasts:
                paths.write_whole(file, json.dumps(dataclasses.asdict(new)).encode())
            else:
                file.unlink(missing_ok=True)
        return new


def _read(file: Path) -> Answer | None:
    """A kept answer; None where there is none, or it is damaged."""
    try:
        with file.open("rb") as data:
            return _parsed(data)
    except (OSError, ValueError):
        return None


def _parsed(data: IO[bytes]) -> Answer:
    """Raises ValueError for anything but an answer."""
    value = json_checks.loads(data.read(_MOST_BYTES))
    json_checks.check(_SHAPE, value)
    devices = tuple(value["devices"])
    return Answer(devices, value["reason"], value["is_broken"], value["lasts"], value["n_slow"])


def _ask(n_slow: int) -> Answer:
    """Asks in a child process, which writes its answer to a file: a pipe would stay open while a
    process that the driver started goes on. `n_slow`: see `Answer`."""
    if not (command := child()):
        return Answer(
            reason="no process of its own can ask Vulkan's drivers: "
            + ("the program does not call tgr_local.freeze_support() first" if frozen.is_frozen()
               else "there is no Python to start"),
            lasts=False,
        )  # fmt: skip
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which ends it
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return _slow(n_slow + 1)
        finally:
            _kill(process)
        if code:
            return _broken(f"ended the process that asked it (exit code {code})")
        file.seek(0)
        try:
            return _parsed(file)
        except ValueError:
            return _broken("gave no answer that can be read")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its group, and does not wait for a process that hangs in the kernel."""
    if os.name == "nt":  # it has no groups
        return process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def child() -> list[str]:
    """The command that asks; empty where there is no program to start."""
    if frozen.is_frozen():
        return frozen.command("vulkan")
    if not (python := confined.interpreter()):
        return []
    return [python, "-c", _CHILD, *(entry for entry in sys.path if os.path.isabs(entry))]


def _broken(what: str) -> Answer:
    return Answer(
        reason=f"Vulkan's driver {what}, so the CPU computes; update the driver, then "
        "tgr-local doctor asks it again",
        is_broken=True,
    )


def _slow(n: int) -> Answer:
    what = f"did not answer within {SECONDS:g} seconds"
    if n >= TRIES:
        return dataclasses.replace(_broken(f"{what}, {n} times in turn"), n_slow=n)
    reason = f"Vulkan's driver {what}, so the CPU computes; it is asked again the next time"
    return Answer(reason=reason, is_broken=True, n_slow=n)


def _key() -> str:
    """Digest of what an answer depends on: the library, or the frozen program, which may unpack it
    into another folder at each start; the drivers' files, the kernel and its devices, the variables
    that choose among them."""
    own = Path(sys.executable) if frozen.is_frozen() else library()
    facts = [platform.release(), *(_state(path) for path in (own, *_driver_files()))]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/driver/nvidia/version").read_text(errors="replace"))
    for device in sorted([*Path("/dev/dri").glob("*"), *Path("/dev").glob("nvidia*")]):
        facts.append(f"{device} {os.access(device, os.R_OK | os.W_OK)}")
    facts += sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(("VK_", "GGML_VK_")))
    return hashlib.sha256("\0".join(facts).encode(errors="replace")).hexdigest()[:32]


def _driver_files() -> Iterator[Path]:
    """The files in which drivers say where they are, in the folders of Vulkan's loader, and those
    that its variables name. See LoaderDriverInterface.md of Vulkan-Loader."""
    home, env = os.path.expanduser("~"), os.environ
    folders = [
        env.get("XDG_CONFIG_HOME") or f"{home}/.config", "/etc/xdg", "/usr/local/etc", "/etc",
        env.get("XDG_DATA_HOME") or f"{home}/.local/share", "/usr/local/share", "/usr/share",
        *env.get("XDG_CONFIG_DIRS", "").split(":"), *env.get("XDG_DATA_DIRS", "").split(":"),
    ]  # fmt: skip
    for folder in filter(None, folders):
        yield from sorted(Path(folder, "vulkan", "icd.d").glob("*.json"))
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        yield from map(Path, filter(None, os.environ.get(name, "").split(os.pathsep)))


def _state(path: Path) -> str:
    with contextlib.suppress(OSError):
        status = path.stat()
        return f"{path} {status.st_size} {status.st_mtime_ns}"
    return f"{path} missing"
