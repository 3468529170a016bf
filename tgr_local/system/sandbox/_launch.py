"""Runs inside the sandbox: limits this process, then runs a program or a command in it.

Started as a separate file without the package: ``python launch.py ORDERS``. The orders are JSON:
``user`` (the id to become, or null), ``bounds`` (by name of the resource limit), ``processes``, and
perhaps ``command`` with ``ready``, a pipe that gets a byte before the command starts; without a
command, program.py in the same folder is run. With a command alone, nothing is limited, and what it
leaves behind ends with it.
"""

import contextlib
import json
import os
import platform
import resource
import runpy
import signal
import struct
import sys
from pathlib import Path

CALLS = {
    "x86_64": (0xC000003E, {"shmget": 29, "semget": 64, "msgget": 68, "mount": 165,
                            "vmsplice": 278, "memfd_create": 319, "io_uring_setup": 425,
                            "fsopen": 430, "clone3": 435, "memfd_secret": 447}),
    "aarch64": (0xC00000B7, {"mount": 40, "vmsplice": 75, "msgget": 186, "semget": 190,
                             "shmget": 194, "memfd_create": 279, "io_uring_setup": 425,
                             "fsopen": 430, "clone3": 435, "memfd_secret": 447}),
}  # fmt: skip
"""Number of each machine in a filter, and its system calls whose memory appears in no process and
no file system, or that a filter cannot look into."""
LOOKED_INTO = {"x86_64": (41, (56, 272)), "aarch64": (198, (220, 97))}
"""Numbers of the system calls of each machine: socket; clone and unshare."""
FAMILIES = (1, 2, 10, 16)
"""Families of sockets: unix, inet, inet6, netlink. A namespace does not keep a program from the
vsock of a virtual machine, nor do the tables of sockets show every other family."""
NEW_NETWORK = 0x40000000  # a network in which nobody would see the sockets
MOST_LOCKED = 64 << 10  # bytes of memory that stays in memory
PARENT_DEATH, SUBREAPER, NO_NEW_PRIVILEGES, SECCOMP = 1, 36, 38, 22  # of prctl


def end_with_parent() -> None:
    """Has the system kill this process when its parent ends; a change of the user undoes that."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def own_tasks() -> int:
    """Visible threads and processes of this user."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                total += sum(1 for _ in folder.iterdir())
    return total


def restrict(user: int | None, bounds: dict[str, int], processes: int) -> None:
    """Becomes the user, and sets every limit that the system has, for this process and its
    children. The limit on processes counts all processes of a user."""
    with contextlib.suppress(OSError):  # the first process to be killed when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    own_bounds = {"RLIMIT_NPROC": processes + own_tasks(), "RLIMIT_MEMLOCK": MOST_LOCKED}
    for name, bound in {**bounds, **own_bounds}.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            kind = getattr(resource, name)
            hard_limit = resource.getrlimit(kind)[1]
            bound = bound if hard_limit == resource.RLIM_INFINITY else min(bound, hard_limit)
            resource.setrlimit(kind, (bound, bound))


def forbid() -> None:
    """Refuses the system calls of `CALLS` as unknown, other sockets than those of `FAMILIES` and
    new networks, for this process and its children."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    prctl = ctypes.CDLL(None).prctl
    prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if platform.machine() in CALLS:
        code = filter_of(*CALLS[platform.machine()], *LOOKED_INTO[platform.machine()])
        prctl(SECCOMP, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0)


def adopt() -> None:
    """Makes this process the parent of what its descendants leave behind."""
    import ctypes

    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def filter_of(machine: int, calls: dict[str, int], socket: int, makers: tuple[int, ...]) -> bytes:
    """A classic BPF program: allows the system calls of this machine except `calls`, sockets of the
    known families only, and `makers`, which make processes and namespaces, only without a new
    network."""
    load, equal, at_least, has_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, unknown, no_family, not_permitted = 0x7FFF0000, 0x50026, 0x50061, 0x50001
    number, first = 0, 16  # where the number of the call and its first argument are
    lines = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, unknown), (load, 0, 0, number)]
    # another numbering (x32) of the same machine
    lines += [(at_least, 0, 1, 1 << 30), (give, 0, 0, unknown)]
    for call in calls.values():
        lines += [(equal, 0, 1, call), (give, 0, 0, unknown)]
    n = len(FAMILIES)
    lines += [(equal, 0, n + 3, socket), (load, 0, 0, first)]
    lines += [(equal, n - i, 0, family) for i, family in enumerate(FAMILIES)]
    lines += [(give, 0, 0, no_family), (give, 0, 0, allow)]
    for call in makers:
        lines += [(equal, 0, 4, call), (load, 0, 0, first), (has_bit, 0, 1, NEW_NETWORK)]
        lines += [(give, 0, 0, not_permitted), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, (give, 0, 0, allow)])


def execute(command: list[str], ready: int | None) -> int:
    """Runs the command, with the signals as Python found them, and ends what it leaves behind. Its
    exit code, as shells count."""
    if ready is not None:
        os.write(ready, b"1")
        os.close(ready)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # a group of its own, which can be killed at once
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execv(command[0], command)
    ended, status = 0, 0
    while ended != child:
        ended, status = os.wait()
    while orphans := children():
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.wait()
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def children() -> list[int]:
    """The processes of which this one is the parent, by adoption too."""
    with contextlib.suppress(OSError):
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        return [int(pid) for pid in path.read_text().split()]
    return []


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    with contextlib.suppress(ImportError, OSError, AttributeError):  # not on Linux
        adopt()
    if "bounds" in orders:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            forbid()
        restrict(orders["user"], orders["bounds"], orders["processes"])
        if orders["user"] is not None and platform.system() == "Linux":
            end_with_parent()
    if "command" in orders:
        sys.exit(execute(orders["command"], orders.get("ready")))
    program = str(Path(__file__).with_name("program.py"))
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")
