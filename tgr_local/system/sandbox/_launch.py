"""Runs inside the sandbox: limits this process, then runs the program in it.

Started as a separate file without the package: ``python launch.py LIMITS``, with program.py in the
same folder.
"""

import contextlib
import json
import os
import platform
import random
import resource
import runpy
import struct
import sys
from pathlib import Path

UNUSED_USERS = range(61184, 65520)
"""User ids that no account has (systemd also allocates them temporarily). Each program gets its
own, since the limit on processes counts all processes of a user."""
OPEN_FILES = 256
"""Per process: the memory of sockets and pipes does not count for any process."""
CALLS = {
    "x86_64": (0xC000003E, {"shmget": 29, "msgget": 68, "mount": 165, "memfd_create": 319,
                            "fsopen": 430, "memfd_secret": 447}),
    "aarch64": (0xC00000B7, {"mount": 40, "msgget": 186, "shmget": 194, "memfd_create": 279,
                             "fsopen": 430, "memfd_secret": 447}),
}  # fmt: skip
"""By machine: its number in a filter, and the system calls whose memory appears in no process and
no file system."""
SUBREAPER, NO_NEW_PRIVILEGES, SECCOMP = 36, 38, 22  # of prctl


def own_tasks() -> int:
    """Visible threads and processes of this user."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                total += sum(1 for _ in folder.iterdir())
    return total


def restrict(limits: dict[str, float]) -> None:
    """Sets every limit that the system has, for this process and its children."""
    with contextlib.suppress(OSError):  # the first process to be killed when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    if limits["as_unused_user"]:
        user = random.SystemRandom().choice(UNUSED_USERS)
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    for name, bound in {
        "RLIMIT_CPU": int(limits["seconds"]) + 1,
        "RLIMIT_AS": int(limits["memory"]),
        "RLIMIT_FSIZE": int(limits["disk"]),
        "RLIMIT_NPROC": int(limits["processes"]) + own_tasks(),
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
    }.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            kind = getattr(resource, name)
            most = resource.getrlimit(kind)[1]
            bound = bound if most == resource.RLIM_INFINITY else min(bound, most)
            resource.setrlimit(kind, (bound, bound))


def forbid() -> None:
    """Refuses the system calls of `CALLS` as unknown, for this process and its children, and adopts
    its orphans."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    prctl = ctypes.CDLL(None).prctl
    prctl(SUBREAPER, 1, 0, 0, 0)
    prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if platform.machine() in CALLS:
        code = filter_of(*CALLS[platform.machine()])
        prctl(SECCOMP, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0)


def filter_of(machine: int, calls: dict[str, int]) -> bytes:
    """A classic BPF program: allows the system calls of this machine except these."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    unknown, allow = 0x50026, 0x7FFF0000  # ENOSYS
    n = len(calls)
    lines = [(load, 0, 0, 4), (equal, 0, n + 3, machine), (load, 0, 0, 0)]
    lines += [(at_least, n + 1, 0, 1 << 30)]  # another numbering (x32) of the same machine
    lines += [(equal, n - i, 0, number) for i, number in enumerate(calls.values())]
    lines += [(give, 0, 0, allow), (give, 0, 0, unknown)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


if __name__ == "__main__":
    with contextlib.suppress(ImportError, OSError, AttributeError):  # not on Linux
        forbid()
    restrict(json.loads(sys.argv[1]))
    program = str(Path(__file__).with_name("program.py"))
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")
