"""Sandbox backends: how a program of a model is isolated, the command that starts it, and the tools
that it sees.

- ``bwrap``: bubblewrap; no network, no other processes, a read-only system without /home, /etc or
  this project, and its own /tmp and /dev/shm of limited size.
- ``unshare``: no network, no other processes; only file permissions protect files.
- ``limits``: limits on resources only.
- ``none``: no sandbox; the same limits on resources, as the user of the caller, even root.

A program of a model has no fallback from one to another: a user who accepts less than bubblewrap
has to choose it. The user's own tests take the strongest that works (`commands.strongest`).
``none`` is taken only where it is named. In the others a program of root becomes a user of its
own, which can end no other process, and change no file that is not for everyone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from tgr_local.system.errors import InstallError
from tgr_local.system.files import open_plain
from tgr_local.system.paths import program, program_folders
from tgr_local.system.sandbox.fetched import fetched

Backend = Literal["bwrap", "unshare", "limits", "none"]
CHOICES: tuple[Backend, ...] = get_args(Backend)
NONE: Backend = "none"
BACKENDS: tuple[Backend, ...] = tuple(kind for kind in CHOICES if kind != NONE)
"""The sandboxes, the strongest first."""
DEFAULT: Backend = "bwrap"
ISOLATION: dict[Backend, str] = {
    "bwrap": "no network, no other processes, only a read-only system and Python as files",
    "unshare": "no network and no other processes, but it can read and change your files",
    "limits": "only resources are limited; it can use the network, your files and your processes",
    "none": "only resources are limited; it has the rights of this user, on this machine's files "
    "and network",
}
"""Description of each backend for users."""
LAUNCHER = Path(__file__).with_name("_launch.py")
"""Runs inside the sandbox."""
OURS = 8
"""Processes of a sandbox itself, at most."""
EXISTS = os.name != "nt"
"""Whether this kind of system has a sandbox."""
Mount = tuple[Literal["--bind", "--ro-bind", "--ro-bind-try"], Path, Path]
"""Kind of a mount, its source, and its place in the sandbox."""
_BESIDE = {".cargo": (".rustup",), ".local": (".local/lib", ".local/pipx", ".local/share/pipx",
           ".local/share/uv", ".local/share/pnpm")}  # fmt: skip
_HOMES = ("CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "GOROOT")
"""Variables that name the folder of a tool."""
_PROGRAM = re.compile(r"""(?:^|[\s'"=(])(/[^\s'"();&|]+/bin/[^\s'"();&|/]+)""")
_STANDARD_LIBRARY, _PARTS = "lib*/*/os.py", ("bin", "include", "lib", "lib64")
"""Below the folder of a Python: a file that each has, and what is shown of it."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")


_UNUSED_USERS = range(61184, 65520)
"""User ids that no account has (systemd also allocates them temporarily). Each program gets its
own, since the limit on processes counts all processes of a user."""


def where(kind: Backend) -> str:
    """Names the place where programs run, for users: "in the sandbox limits: …"."""
    place = "without a sandbox" if kind == NONE else f"in the sandbox {kind}"
    return f"{place}: {ISOLATION[kind]}"


def check_system(part: str) -> None:
    """Raises InstallError, for what needs a sandbox, on a system that has none."""
    if not EXISTS:
        raise InstallError(
            f"{part} needs a sandbox for programs, and Windows has none; install tgr-local in WSL"
        )


def check_name(kind: str) -> None:
    """Raises ValueError for an unknown backend."""
    if kind not in CHOICES:
        raise ValueError(f"sandbox is {kind!r}, but must be one of {', '.join(CHOICES)}")


def lacking(kind: Backend) -> str:
    """Names what a backend lacks here, as far as known before it starts; empty for nothing."""
    if kind in ("bwrap", "unshare") and not program(kind):
        return f"there is no program {kind}"
    if kind in ("unshare", "limits") and (path := closed_to_programs()):
        return f"programs of root run as another user, who may not look into {path}"
    return ""


def python() -> list[str]:
    """The command that starts this Python without settings of its user."""
    return [sys.executable, "-I", "-B"]


def unused_user(kind: Backend) -> int | None:
    """The user that a program of this process becomes; None where it stays the caller."""
    if kind == NONE or not becomes_another_user():
        return None
    return random.SystemRandom().choice(_UNUSED_USERS)


def becomes_another_user() -> bool:
    """Whether programs in a sandbox run as another user: those of root do, where it can become one;
    the root of a user namespace may have no other."""
    try:
        maps = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:  # not on Linux
        maps = [["0", "0", str(1 << 32)]]
    ends = (_UNUSED_USERS[0], _UNUSED_USERS[-1])
    return os.getuid() == 0 and any(
        all(int(first) <= user < int(first) + int(n) for user in ends) for first, _, n in maps
    )


def closed_to_programs() -> Path | None:
    """A folder that hides this Python from the user that programs become, where they see all files;
    None where nothing does."""
    for place in (sys.prefix, sys.base_prefix) if becomes_another_user() else ():
        for path in (Path(place), *Path(place).parents):
            if not path.stat().st_mode & stat.S_IXOTH:
                return path
    return None


def without_mounts(kind: Backend, plain: list[str]) -> list[str]:
    """A command in a backend that shows it all files."""
    # so that nothing outlives a killed caller; bwrap does this itself
    guard = [setpriv, "--pdeathsig", "KILL"] if (setpriv := program("setpriv")) else []
    if kind == "unshare":
        user = [] if os.getuid() == 0 else ["--user", "--map-current-user"]
        spaces = ["--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*guard, program("unshare") or "unshare", *user, *spaces, *plain]
    return [*guard, *plain]


def isolate(mounts: list[Mount], more: Sequence[str], disk: int, start: str) -> list[str]:
    """The bwrap command: a file system with the system, `more` paths of it, Python, these mounts,
    and an empty /tmp and /dev/shm of `disk` bytes. A command begins in the folder `start`."""
    command = [program("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if becomes_another_user():  # the launcher becomes an unprivileged user, to whom limits apply
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user"]
    # these first: Python may be below any of them
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):
        command += ["--perms", "1777", "--size", str(disk), "--tmpfs", path]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind-try", path, path]
    command += ["--perms", "0755", "--dir", "/etc"]
    for path in more:
        command += ["--ro-bind-try", path, path]
    # a mount hides what is below its place: the outer ones first
    all_mounts: list[Mount] = [("--ro-bind", path, path) for path in _python()]
    for how, source, place in sorted([*all_mounts, *mounts], key=lambda mount: len(mount[2].parts)):
        for parent in reversed(place.parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]
        command += [how, str(source), str(place)]
    # bwrap's own file systems have no size limit, and an ordinary user may write there
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp", "--chdir", start]


def _python() -> list[Path]:
    """The folders of this Python outside of the system."""
    prefixes = dict.fromkeys([sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)])
    return [Path(path) for path in prefixes if not path.startswith("/usr/")]


def tools(command: str, environments: Sequence[Path], seen_at: Path) -> list[Path]:
    """The folders of the programs in PATH, of tools of Rust, Java and Go, of fetched packages, of
    the Pythons of these environments, and of programs in a folder ``bin`` that the command names by
    their whole paths, with what belongs to them, outside of the system and of the folder
    `seen_at`."""
    home = Path(os.path.expanduser("~"))
    folders: dict[Path, None] = {}
    programs = [Path(path).parent for path in _PROGRAM.findall(command) if os.access(path, os.X_OK)]
    wanted: list[Path] = []
    for folder in (*programs, *program_folders()):
        roomy = folder.parent == home or folder.parent == home / ".local"
        is_part = folder.name in ("bin", "sbin", "shims", "condabin") and not roomy
        beside = [home / name for name in _BESIDE.get(folder.parent.name, ())]
        wanted += [folder.parent if is_part else folder, *beside]
    wanted += [Path(os.environ[name]) for name in _HOMES if os.environ.get(name)]
    wanted += [path for tool in fetched(command, seen_at) for path in tool.folders]
    active = [Path(os.environ.get(name, "")) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    for environment in (*active, *(folder.parent for folder in programs), *environments):
        wanted += _interpreter(environment)
    for path in wanted:
        is_out = path.is_relative_to(seen_at) or home.is_relative_to(path)
        if path.is_absolute() and not is_out and not _is_system(path) and os.path.isdir(path):
            folders[path] = None
    return list(folders)


def _interpreter(environment: Path) -> Iterator[Path]:
    """The folders of the Python of a virtual environment, as it says and as it is. Whoever made the
    environment may name any folder, so it is one that has the program and the standard library of
    Python, and of this one only what every Python has."""
    folders = [os.path.dirname(os.path.realpath(environment / "bin" / "python"))]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open_plain(environment / "pyvenv.cfg") as file:
            lines = file.read(10_000).decode().splitlines()
        pairs = [line.partition("=") for line in lines]
        folders += [value.strip() for key, _, value in pairs if key.strip() == "home"]
    for folder in map(Path, folders):
        programs = [folder / name for name in ("python", "python3")]
        has_program = any(os.path.isfile(path) and os.access(path, os.X_OK) for path in programs)
        if has_program and folder.is_absolute() and any(folder.parent.glob(_STANDARD_LIBRARY)):
            yield from (folder.parent / part for part in _PARTS)


@functools.lru_cache(maxsize=256)
def _is_system(path: Path) -> bool:
    return str(path) in ("/", "/tmp", "/home") or path.parts[1] in (
        "usr", "bin", "sbin", "lib", "lib64", "opt", "etc", "nix", "gnu", "snap", "dev", "proc",
        "sys", "run", "var",
    )  # fmt: skip
