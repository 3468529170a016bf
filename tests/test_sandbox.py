"""The sandbox: what a program can do, and that it can do nothing else, in every backend here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path

import pytest
import sandboxes
from surroundings import HANG, ROOT
from threads import is_running, wait_until

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.programs import ProgramLimits, ProgramOutcome
from tgr_local.system.errors import InstallError
from tgr_local.system.sandbox import backends, commands, usage
from tgr_local.system.sandbox.backends import Backend

SHORT = ProgramLimits(seconds=HANG, memory=1 << 30, disk=1 << 20, processes=32)


@pytest.fixture(params=backends.CHOICES, scope="module")
def backend(request) -> Backend:
    """Every backend that works on this machine."""
    return sandboxes.needed(request.param)


@pytest.fixture
def closed() -> Backend:
    """The backend that isolates files and the network."""
    return sandboxes.needed("bwrap")


@pytest.fixture
def measured() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is measured on Linux only")


def attempt(
    backend: Backend, code: str, stdin: str = "", limits: ProgramLimits = SHORT
) -> ProgramOutcome:
    return programs.run(code, stdin, limits, backend)


def test_a_program_reads_prints_and_ends(backend: Backend):
    code = "import sys\nprint(input()[::-1] + '€')\nprint('no', file=sys.stderr)\nsys.exit(3)"
    outcome = attempt(backend, code, "olleh\nrest")
    assert (outcome.stopped, outcome.code, outcome.stdout) == ("", 3, "hello€\n")
    assert outcome.why == "no"


def test_it_is_a_main_program_with_this_pythons_packages(backend: Backend):
    code = "import numpy\nif __name__ == '__main__': print(numpy.zeros(3).sum())"
    outcome = attempt(backend, code)
    assert outcome.stdout == "0.0\n", outcome.why


def test_its_folder_is_empty_and_its_own(backend: Backend):
    code = "import os\nprint(os.listdir())\nopen('x', 'w').write('x')\nprint(os.listdir())"
    assert attempt(backend, code).stdout == "[]\n['x']\n"
    assert attempt(backend, code).stdout == "[]\n['x']\n"


def test_it_gets_no_secret_of_the_caller(backend: Backend, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hidden")
    outcome = attempt(backend, "import os\nprint(dict(os.environ))")
    assert "TMPDIR" in outcome.stdout and "MY_SECRET" not in outcome.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize("kind", backends.BACKENDS)
def test_a_program_of_root_becomes_another_user(kind: Backend, monkeypatch):
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs a Python that every user can read")
    monkeypatch.setattr(programs, "obstacle", programs.obstacle.__wrapped__)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    for prefix in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, prefix, "/usr")
    sandboxes.needed(kind)
    code = (
        "import ctypes, os\nprint(*os.getresuid(), *os.getresgid(), os.getgroups())\n"
        "signal = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(signal))\n"
        "print(signal.value)\n"
        "try: os.setuid(0)\nexcept PermissionError: print('no way back')"
    )
    outcome = attempt(kind, code)
    ids, signal_of_parent, last = outcome.stdout.splitlines() or [outcome.why] * 3
    user = ids.split()[0]
    assert int(user) in range(61184, 65520) and ids == " ".join([user] * 6) + " []"
    assert (signal_of_parent, last) == ("9", "no way back")  # it ends with its launcher


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_python_that_only_root_can_read_is_an_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "obstacle", programs.obstacle.__wrapped__)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(InstallError, match=f"as another user, who may not look into {tmp_path};"):
        programs.check("limits")


def test_what_does_not_end_is_stopped(backend: Backend):
    code = (
        "import signal\nfor s in range(1, 32):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass"
    )
    outcome = attempt(backend, code, limits=replace(SHORT, seconds=0.7))
    assert outcome.stopped == outcome.why == "time limit"


def test_memory_and_files_are_bounded(backend: Backend):
    assert "MemoryError" in attempt(backend, "x = bytearray(10 << 30)").why
    assert "too large" in attempt(backend, "open('x', 'wb').write(bytes(2 << 20))").why
    flood = attempt(backend, "while True: print('x' * 1000)")
    assert flood.code != 0 and len(flood.stdout) <= SHORT.disk


def test_nothing_of_it_is_left_behind(backend: Backend):
    name = f"tgr-left-{os.getpid()}-{backend}"
    code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', "
    code += f"'import time; time.sleep(600)', {name!r}])"
    assert attempt(backend, code).code == 0
    wait_until(lambda: not is_running(name))


def test_it_does_not_outlive_a_caller_that_is_killed(backend: Backend, tmp_path):
    script = (
        "from tgr_local.lab.eval.programs import ProgramLimits, run\n"
        f"run('import time; time.sleep(600)', '', ProgramLimits(seconds=600), {backend!r})\n"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    words = f"{tmp_path}/tgr-sandbox"
    wait_until(lambda: is_running(words))
    caller.kill()
    caller.wait()
    wait_until(lambda: not is_running(words))


def test_a_fork_bomb_is_stopped(closed: Backend):
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert attempt(closed, code, limits=replace(SHORT, seconds=0.7)).stopped == "time limit"
    assert attempt(closed, "print(7)").stdout == "7\n"


def test_the_number_of_processes_is_bounded(backend: Backend):
    code = "import os, time\nfor i in range(100):\n    if os.fork() == 0: time.sleep(600)\n"
    why = attempt(backend, f"{code}time.sleep(600)").why
    assert "BlockingIOError" in why or why == "limit of 32 processes"  # which the system sets root


@pytest.mark.parametrize("folder", ["here", "/usr/lib", "/", "/etc", "/dev", "/home", "/sys"])
def test_nothing_can_be_written_outside(closed: Backend, tmp_path, folder: str):
    target = (tmp_path if folder == "here" else Path(folder)) / "tgr-hostile"
    outcome = attempt(closed, f"open({str(target)!r}, 'w').write('x')")
    assert "Error" in outcome.why and not target.exists()
    assert attempt(closed, "print(1, file=open('/dev/null', 'w'))").code == 0


def test_files_outside_cannot_be_read(closed: Backend, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    assert attempt(closed, f"print(open({str(secret)!r}).read())").stdout == ""
    assert attempt(closed, f"print(open({__file__!r}).read())").stdout == ""


def test_there_is_no_network(closed: Backend):
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        for address in (("192.0.2.1", 80), here):
            code = f"import socket\nsocket.create_connection({address}, timeout=1)"
            assert "Error" in attempt(closed, code).why
        socket.create_connection(here, timeout=HANG).close()


def test_other_processes_cannot_be_seen_or_killed(closed: Backend):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)"])
    try:
        outcome = attempt(closed, f"import os\nos.kill({sleeper.pid}, 9)")
        assert "ProcessLookupError" in outcome.why
        attempt(closed, "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)")
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


# ---- which backend ----


def test_no_backend_replaces_another(monkeypatch):
    sandboxes.needed("limits")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "obstacle", programs.obstacle.__wrapped__)
    assert programs.usable() == ["limits"]
    says = (
        "sandbox bwrap does not work here: there is no program bwrap; install .*--sandbox: limits"
    )
    with pytest.raises(InstallError, match=says):
        programs.run("print(1)")
    with pytest.raises(InstallError, match="sandbox unshare does not work here"):
        programs.check("unshare")
    assert programs.run("print(1)", backend="limits").stdout == "1\n"


def test_without_a_sandbox_a_program_has_the_rights_of_its_caller():
    assert "none" not in programs.usable() and backends.DEFAULT != "none"
    assert attempt("none", "import os\nprint(os.getuid())").stdout == f"{os.getuid()}\n"


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="sandbox is 'moat', but must be one of bwrap, unsh"):
        programs.run("print(1)", backend="moat")  # type: ignore[arg-type]


def test_a_broken_backend_reports_its_error(tmp_path, monkeypatch):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    why = commands.defect.__wrapped__("bwrap")
    assert why == "bwrap: No permissions to create a namespace"


@pytest.mark.parametrize("place", ["tmp", "dev/shm"])
def test_a_python_below_its_own_file_systems_works(closed: Backend, place: str, monkeypatch):
    with tempfile.TemporaryDirectory(dir=f"/{place}") as name:
        venv.create(name, symlinks=True)
        Path(name).chmod(0o755)
        monkeypatch.setattr(sys, "executable", f"{name}/bin/python")
        monkeypatch.setattr(sys, "prefix", name)
        outcome = attempt(closed, "import sys, os\nprint(sys.prefix, os.listdir('/tmp'))")
    below = [Path(name).name] if place == "tmp" else []
    assert outcome.stdout == f"{name} {below}\n", outcome.why


# ---- what a program may do to its grader ----


@pytest.mark.parametrize(
    "what", ["os.symlink('/dev/zero', path)", "os.mkdir(path)", "os.mkfifo(path)"]
)
def test_a_replaced_file_is_not_read(backend: Backend, what: str):
    code = (
        "import os\nfor name in ('stdin', 'stdout', 'stderr', 'program.py', 'launch.py'):\n"
        "  for path in ('../' + name, 'work/' + name, name):\n"
        "    try: os.remove(path)\n    except OSError: pass\n"
        f"    try: {what}\n    except OSError: pass\n"
        "print('out')\nraise SystemExit('err')"
    )
    outcome = attempt(backend, code)
    assert (outcome.stdout, outcome.stderr, outcome.stopped) == ("out\n", "err\n", "")


def test_output_is_bounded(backend: Backend, monkeypatch):
    monkeypatch.setattr(programs, "OUTPUT", 1000)
    for number, kept in ((1, "stdout"), (2, "stderr")):
        for code in (f"os.write({number}, b'x' * 1001)", f"os.truncate({number}, 1 << 19)"):
            outcome = attempt(backend, f"import os\n{code}\nwhile True: pass")
            assert outcome.why == "output limit of 1,000 bytes"
            assert len(getattr(outcome, kept)) <= 2000
    assert attempt(backend, "print('x' * 999)").stdout == "x" * 999 + "\n"


def test_what_a_program_leaves_is_deleted(backend: Backend, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    deep = "import os\nfor i in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    shut = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)"
    loop = "import os\nos.symlink('.', 'here')\nos.symlink('/', 'root')\nos.mkfifo('pipe')"
    for code in (deep, shut, loop):
        assert attempt(backend, code).why == ""
        assert list(tmp_path.iterdir()) == []


# ---- memory ----

HOLD = """\
import os, time
for i in range(4):
    if os.fork() == 0:
        {leave}
        x = bytearray(400 << 20)
        time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("leave", ["pass", "os.setsid()", "os.setsid(); os.fork() and os._exit(0)"])
def test_memory_of_all_processes_together_is_bounded(backend: Backend, measured: None, leave: str):
    outcome = attempt(backend, HOLD.format(leave=leave))
    assert outcome.why == "memory limit of 1,073,741,824 bytes for all processes"


def test_pages_that_processes_share_count_once(backend: Backend, measured: None):
    code = "import os, time\nx = b'x' * (300 << 20)\npids = []\nfor i in range(8):\n"
    code += "    pid = os.fork()\n    if pid == 0:\n        time.sleep(0.3)\n        os._exit(0)\n"
    code += "    pids.append(pid)\nfor pid in pids: os.waitpid(pid, 0)\nprint('fine')"
    outcome = attempt(backend, code)
    assert outcome.stdout == "fine\n", outcome.why


def test_memory_without_a_process_is_refused(backend: Backend):
    if sys.platform != "linux":
        pytest.skip("system calls are filtered on Linux only")
    outcome = attempt(backend, "import os\nos.memfd_create('x')")
    assert "Function not implemented" in outcome.why
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    code += "print(libc.shmget(0, 1 << 20, 0o1600), libc.semget(0, 9, 0o1600),"
    code += " libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0),"
    outcome = attempt(backend, code + " ctypes.get_errno())")
    assert outcome.stdout == "-1 -1 -1 38\n", outcome.why


FILL = """
import os, socket, time
def fill(end):
    end.setblocking(False)
    try:
        while True: end.send(bytes(1 << 16))
    except OSError: pass
held = []
for _ in range(20):
    if os.fork() == 0:
        try:
            while True:
                {hold}
        except OSError: pass
        time.sleep(600)
time.sleep(600)
"""
PAIRS = "held += socket.socketpair(); fill(held[-1]); fill(held[-2])"
QUEUED = (  # in connections that nobody accepts
    "name = b'\\0' + os.urandom(9); held.append(socket.socket(socket.AF_UNIX))\n"
    "                held[-1].bind(name); held[-1].listen(200)\n"
    "                for _ in range(200):\n"
    "                    with socket.socket(socket.AF_UNIX) as end: end.connect(name); fill(end)"
)


@pytest.mark.parametrize("hold", [PAIRS, QUEUED])
def test_memory_in_sockets_is_bounded(backend: Backend, measured: None, hold: str):
    """It counts for no process, but where the machine's free memory shrinks. Tests beside this one
    may give back as much meanwhile, so it is tried again."""
    limits = replace(SHORT, memory=400 << 20, seconds=HANG / 2)
    for _ in range(3):
        outcome = attempt(backend, FILL.format(hold=hold), limits=limits)
        if outcome.why != "time limit":
            break
    assert outcome.why == "memory limit of 419,430,400 bytes for all processes"


def test_what_programs_need_of_sockets_and_processes_is_there(backend: Backend):
    code = "import asyncio, multiprocessing, socket, subprocess, threading\n"
    code += "asyncio.run(asyncio.sleep(0))\nr, w = multiprocessing.Pipe()\n"
    code += "p = multiprocessing.Process(target=w.send, args=('a',))\np.start()\nprint(r.recv())\n"
    code += "with socket.create_server(('127.0.0.1', 0)) as s:\n"
    code += "    print(len(socket.create_connection(s.getsockname()).getsockname()))\n"
    code += "t = threading.Thread(target=print, args=('t',))\nt.start(); t.join()\n"
    code += "print(subprocess.run(['echo', 'x'], capture_output=True).stdout)"
    assert attempt(backend, code).stdout == "a\n2\nt\nb'x\\n'\n"


def test_networks_beside_its_own_are_refused(backend: Backend):
    """Those of a virtual machine, of the kernel's ciphers, and new ones."""
    if sys.platform != "linux":
        pytest.skip("system calls are filtered on Linux only")
    code = "import ctypes, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    code += "for family in (38, 40, 29, 17):\n    try: socket.socket(family, 3); print('open')\n"
    code += "    except OSError as error: print(error.errno)\n"
    code += "print(libc.unshare(0x50000000), ctypes.get_errno())"
    assert attempt(backend, code).stdout == "97\n97\n97\n97\n-1 1\n"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_file_systems_in_memory_are_bounded(closed: Backend, folder: str):
    code = f"for i in range(9): open(f'{folder}/{{i}}', 'wb').write(bytes(1 << 19))"
    assert "No space left" in attempt(closed, code).why


def test_files_in_memory_count_as_memory(closed: Backend, measured: None):
    limits = ProgramLimits(seconds=HANG, memory=1 << 28, disk=1 << 29)
    code = (
        "for name in ('/dev/shm/x', '/tmp/x'):\n    with open(name, 'wb') as file:\n"
        "        for i in range(150): file.write(bytes(1 << 20))\nwhile True: pass"
    )
    assert "memory limit" in attempt(closed, code, limits=limits).why
    code = "i = 0\nwhile True:\n    open(f'/tmp/{i}', 'w').close()\n    i += 1"
    outcome = attempt(closed, code, limits=replace(limits, memory=100 << 20))
    assert "memory limit" in outcome.why


def test_a_tree_of_processes_is_found(measured: None):
    script = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    script += "print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        pids = usage.tree(process.pid)
        assert pids[0] == process.pid and len(pids) == 2
        assert usage.memory(pids, 0) >= usage.memory([process.pid], 0) > 1 << 20
        os.kill(pids[1], 9)
        process.communicate()
    assert usage.memory(pids, 0) == 0
