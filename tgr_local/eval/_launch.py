"""Inside the sandbox, before the program: puts the limits on this process, then becomes it.

Started as a file of its own, without the package: ``python launch.py LIMITS`` with program.py
beside it.
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

STRANGERS = range(61184, 65520)
"""User ids that belong to nobody (systemd hands them out for a moment too). Each program gets one
of its own, since a limit on processes counts all of a user's."""
OPEN_FILES = 256
"""Of each process: sockets and pipes hold memory that counts for no process."""
CALLS = {
    "x86_64": (0xC000003E, {"shmget": 29, "msgget": 68, "mount": 165, "memfd_create": 319,
                            "fsopen": 430, "memfd_secret": 447}),
    "aarch64": (0xC00000B7, {"mount": 40, "msgget": 186, "shmget": 194, "memfd_create": 279,
                             "fsopen": 430, "memfd_secret": 447}),
}  # fmt: skip
"""By machine: its number in a filter, and the system calls that get memory which no file system
and no process shows."""
SUBREAPER, NO_NEW_PRIVILEGES, SECCOMP = 36, 38, 22  # of prctl


def own_tasks() -> int:
    """Threads and processes of this user that can be seen from here."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                total += sum(1 for _ in folder.iterdir())
    return total


def restrict(limits: dict[str, float]) -> None:
    """Put every limit on this process and its children that the system knows."""
    with contextlib.suppress(OSError):  # the first to go when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    if limits["as_stranger"]:
        stranger = random.SystemRandom().choice(STRANGERS)
        os.setgroups([])
        os.setgid(stranger)
        os.setuid(stranger)
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
    """Refuse the system calls of `CALLS` as unknown ones, for this process and its children, and
    keep its orphans below it."""
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
    """A classic BPF program: allow a system call of this machine, unless it is one of these."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    unknown, allow = 0x50026, 0x7FFF0000  # ENOSYS
    n = len(calls)
    lines = [(load, 0, 0, 4), (equal, 0, n + 3, machine), (load, 0, 0, 0)]
    lines += [(at_least, n + 1, 0, 1 << 30)]  # another numbering of the same machine
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
