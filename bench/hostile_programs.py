"""Runs programs that try to get out of bubblewrap, to take more than their share or to deceive
their grader, and checks from outside that none of them did.

    python bench/hostile_programs.py

Every program gets the paths of files, sockets and processes that it must not reach. A program is
contained when nothing of those was read, changed or reached, when it ended within its limits, when
none of its processes lives, and when it printed no more than it may. Where bubblewrap does not
work, nothing runs, the sentence that says so is printed, and the exit code is 2. There is no option
for the weaker sandboxes: there these programs really kill and change what they can reach.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.system.errors import InstallError
from tgr_local.system.sandbox import usage

LIMITS = ProgramLimits(seconds=5.0, memory=512 << 20, disk=8 << 20, processes=32)
SLACK = 20.0  # seconds that a busy machine may need to end a program
ROOM = 512 << 20  # bytes that other processes may take meanwhile
SECRET = "the secret of the person"
LOOT = "GOT "  # what a program prints when it reached something

PROGRAMS = {
    "read a file of the person": "say(open(secret).read())",
    "read it through a link": "os.symlink(secret, 'x')\nsay(open('x').read())",
    "read it through /proc": "for p in glob('/proc/[0-9]*'):\n"
    "    for way in ('root' + secret, 'cwd', 'environ', 'mem'):\n"
    "        attempt(lambda: say(open(p + '/' + way).read()))",
    "change a file of the person": "open(victim, 'w').write('changed')",
    "remove it": "os.remove(victim)",
    "write beside it": "open(os.path.dirname(victim) + '/new', 'w').write('x')",
    "mount the disk": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "for kind in (b'ext4', b'proc', b'overlay'):\n"
    "    libc.mount(b'/dev/vda', b'/tmp', kind, 0, None)\n"
    "attempt(lambda: say(open('/tmp' + secret).read()))\n"
    "for d in glob('/dev/[svn][dv]*'):\n    attempt(lambda: say(open(d, 'rb').read(9)))",
    "leave the namespace": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "for p in glob('/proc/[0-9]*/ns/*'):\n"
    "    attempt(lambda: libc.setns(os.open(p, os.O_RDONLY), 0))\n"
    "libc.unshare(0x10000000)\nlibc.chroot(b'.')\n"
    "for _ in range(99):\n    attempt(lambda: os.chdir('..'))\n"
    "attempt(lambda: libc.chroot(b'.'))\nsay(open(secret).read())",
    "become another user": "for call in (os.setuid, os.setgid):\n    attempt(lambda: call(0))\n"
    "for tool in ('su', 'sudo', 'mount', 'chroot'):\n"
    "    attempt(lambda: subprocess.run([tool, 'x'], timeout=1, stdin=subprocess.DEVNULL))\n"
    "say(open(secret).read())",
    "call a server here": "socket.create_connection(address, timeout=1).send(b'x')",
    "call one elsewhere": "for family in (socket.AF_INET, socket.AF_INET6):\n"
    "    s = socket.socket(family)\n    s.settimeout(1)\n"
    "    attempt(lambda: s.connect(('192.0.2.1', 80)))\n"
    "socket.getaddrinfo('example.org', 80)\nsay('x')",
    "call through a socket file": "s = socket.socket(socket.AF_UNIX)\n"
    "s.connect(local)\ns.send(b'x')",
    "kill a process": "os.kill(process, 9)",
    "kill everything": "os.kill(-1, 9)\nos.kill(os.getppid(), 9)",
    "fork without an end": "while True:\n    attempt(os.fork)",
    "live on in the background": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        time.sleep(9999)",
    "take all memory": "x = []\nwhile True:\n    x.append(bytearray(1 << 24))",
    "take all memory in many processes": "for _ in range(20):\n    if os.fork() == 0:\n"
    "        x = [bytearray(1 << 20) for _ in range(300)]\n        time.sleep(99)\ntime.sleep(99)",
    "keep memory in sockets": "for _ in range(20):\n    if os.fork() == 0:\n        held = []\n"
    "        def more():\n            held.extend(socket.socketpair())\n"
    "            for end in held[-2:]:\n                fill(end)\n"
    "        while attempt(more) is None:\n            pass\n        time.sleep(99)\n"
    "time.sleep(99)",
    "keep it in connections that nobody accepts": "s = socket.socket(socket.AF_UNIX)\n"
    "s.bind('/tmp/s')\ns.listen(4096)\nfor _ in range(6):\n    if os.fork() == 0:\n"
    "        while True:\n            with socket.socket(socket.AF_UNIX) as end:\n"
    "                end.setblocking(False)\n"
    "                attempt(lambda: end.connect('/tmp/s'))\n"
    "                fill(end)\ntime.sleep(99)",
    "keep it in sockets on their way": "for _ in range(20):\n    if os.fork() == 0:\n"
    "        ends = socket.socketpair()\n        ends[0].setblocking(False)\n"
    "        while True:\n            a, b = socket.socketpair()\n            fill(a)\n"
    "            attempt(lambda: socket.send_fds(ends[0], [b'x'], [b.fileno()]))\n"
    "            a.close()\n            b.close()\ntime.sleep(99)",
    "keep it in connections of its own network": "s = socket.create_server(('127.0.0.1', 0))\n"
    "for _ in range(10):\n    if os.fork() == 0:\n        held = []\n        def more():\n"
    "            held.append(socket.create_connection(s.getsockname(), 1))\n"
    "            fill(held[-1])\n        for _ in range(999):\n            attempt(more)\n"
    "        time.sleep(99)\ntime.sleep(99)",
    "keep it in pipes": "for _ in range(25):\n    if os.fork() == 0:\n        held = []\n"
    "        def more():\n            held.extend(os.pipe())\n"
    "            os.set_blocking(held[-1], False)\n            while True:\n"
    "                os.write(held[-1], bytes(4096))\n        for _ in range(9999):\n"
    "            attempt(more)\n        time.sleep(99)\ntime.sleep(99)",
    "call the host of a virtual machine": "s = socket.socket(40, socket.SOCK_STREAM)\n"
    "say('a socket of the host')",
    "make a network": "import ctypes\nif ctypes.CDLL(None).unshare(0x50000000) == 0:\n"
    "    say('a network')",
    "fill the disk": "for i in range(10**6):\n    for d in ('.', '/tmp', '/dev/shm'):\n"
    "        attempt(lambda: open(f'{d}/{i}', 'wb').write(bytes(1 << 22)))",
    "print without an end": "while True:\n    attempt(lambda: os.write(1, b'x' * (1 << 20)))",
}

PREAMBLE = """\
import os, signal, socket, subprocess, sys, time
from glob import glob
secret, victim, local, process, address = {things!r}
def say(text): print({loot!r} + repr(text), flush=True)
def attempt(call):
    try: return call()
    except (OSError, ValueError): return None
def fill(end):
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    while attempt(lambda: end.send(bytes(1 << 16))): pass
"""


def contained(code: str, folder: Path) -> str:
    """Runs a program; how it ended, after "contained: " where all bounds held."""
    secret, victim, local = folder / "secret", folder / "victim", folder / "socket"
    secret.write_text(SECRET)
    victim.write_text("as it was")
    called = threading.Event()
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        listeners.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
        listeners[1].bind(str(local))
        listeners[1].listen()
        for listener in listeners:
            threading.Thread(target=_accept, args=(listener, called), daemon=True).start()
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
        stack.callback(_end, sleeper)
        targets = (str(secret), str(victim), str(local), sleeper.pid, listeners[0].getsockname())
        source = PREAMBLE.format(things=targets, loot=LOOT) + code
        others_before, begun = _launched(), time.monotonic()
        ended, most = threading.Event(), [0]
        stack.callback(ended.set)
        threading.Thread(target=_watch, args=(ended, most), daemon=True).start()
        outcome = programs.run(source, "", LIMITS, "bwrap")
        ended.set()
        took = time.monotonic() - begun
        remaining, end = _launched() - others_before, time.monotonic() + SLACK
        while remaining and time.monotonic() < end:
            time.sleep(0.05)
            remaining &= _launched()
        broken = []
        if LOOT in outcome.stdout:
            broken.append("it read " + outcome.stdout[outcome.stdout.index(LOOT) :][:60])
        if victim.read_text() != "as it was" if victim.exists() else True:
            broken.append("the file of the person is changed")
        if {path.name for path in folder.iterdir()} != {"secret", "victim", "socket"}:
            broken.append("there are other files than before")
        if called.is_set():
            broken.append("it called a server")
        if sleeper.poll() is not None:
            broken.append("a process of the person is dead")
        if most[0] > LIMITS.memory + ROOM:
            broken.append(f"it took {most[0] >> 20} MiB of the machine's memory")
        if took > LIMITS.seconds + SLACK:
            broken.append(f"it ran for {took:.0f} s of {LIMITS.seconds:g}")
        if len(outcome.stdout) > programs.OUTPUT:
            broken.append(f"it printed {len(outcome.stdout)} bytes")
        if remaining:
            broken.append("a process of it lives on")
    local.unlink()
    how = f"{outcome.why or 'exit code 0'}, {took:.1f} s"
    return f"NOT CONTAINED: {'; '.join(broken)} ({how})" if broken else f"contained: {how}"


def _accept(listener: socket.socket, called: threading.Event) -> None:
    with contextlib.suppress(OSError):
        listener.accept()
        called.set()


def _watch(ended: threading.Event, most: list[int]) -> None:
    """Notes how much of the machine's memory is taken at most."""
    at_start = usage.available()
    while not ended.wait(0.02):
        most[0] = max(most[0], at_start - usage.available())


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _launched() -> set[str]:
    """The processes that run a program's launcher."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"launch.py" in (entry / "cmdline").read_bytes():
                pids.add(entry.name)
    return pids


def check_processes() -> None:
    """Raises InstallError unless a program has process ids of its own: one of them kills all that
    it sees."""
    code = "import os\nprint(os.readlink('/proc/self/ns/pid'), len(os.listdir('/proc')))"
    inside = programs.run(code, "", LIMITS, "bwrap").stdout.split()
    if len(inside) != 2 or inside[0] == os.readlink("/proc/self/ns/pid"):
        raise InstallError("bubblewrap gives programs no process ids of their own here")


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    try:
        programs.check("bwrap")
        check_processes()
    except InstallError as error:
        print(error)
        return 2
    n_contained = 0
    for name, code in PROGRAMS.items():
        with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
            outcome = contained(code, Path(folder))
        n_contained += outcome.startswith("contained")
        print(f"{name:36} {outcome}", flush=True)
    print(f"{n_contained} of {len(PROGRAMS)} programs contained")
    return int(n_contained < len(PROGRAMS))


if __name__ == "__main__":
    sys.exit(main())
