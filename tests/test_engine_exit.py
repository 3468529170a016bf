"""The end of a program, and forks of it, while threads are in the engine: no abort, no hang.

EXIT_PROGRAMS=12 pytest tests/test_engine_exit.py  # more programs at a time
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest
from engines import DEVICE
from fixture_types import Model
from rpc_servers import server
from surroundings import HANG, PACKAGE

from tgr_local.engine.installation import gpu_devices

loads_in_a_child = pytest.mark.skipif(
    DEVICE == "gpu" or not hasattr(os, "fork"),
    reason="no fork here, or a child of a process with a GPU, which cannot load",
)
N_PROGRAMS = int(os.environ.get("EXIT_PROGRAMS", "2"))
"""At a time, so that they keep each other waiting for the GIL."""
ENDLESS = """
import sys, threading, time
import numpy as np
from tgr_local import Engine, EngineConfig, SearchConfig
from tgr_local import generate, generate_many, generate_steps, stream
from tgr_local.engine import Task
threading.excepthook = lambda args: None
config = SearchConfig(max_chunks=9999, chunk_len=16, rollout_len=4, n_candidates=3)
engine = Engine({path!r}, EngineConfig(n_ctx=4096))
def feed():
    with engine.session(900, 1) as session:
        tokens = np.zeros(800, np.int32)
        session.run([Task(session.sequence(), tokens, history=tokens)])
def first():
    {first}
def second():
    {second}
def work(call=first):
    while True:
        try:
            call()
        except Exception:
            pass
for call in (first, second) * 2:
    threading.Thread(target=work, args=(call,), daemon=True).start()
time.sleep(0.2)
"""
BASE = "generate(engine, 'hi', config, method='base', raw=True)"
CALLS = {
    "tot": "generate(engine, 'hi', config, method='tot', raw=True)",
    "base": BASE,
    "stream": "list(stream(engine, 'hi', config, raw=True))",
    "search": "list(generate_steps(engine, 'hi', config, raw=True))",
    "many": "generate_many(engine, 'hi', config, 2, raw=True)",
    "text": "engine.detokenize(engine.tokenize('he said the thing ' * 50))",
    "feed": "feed()",
    "stats": "engine.stats()",
    "wait": "engine.session(4096, 1)",
    "load": "Engine({path!r}).stats()",
}
PAIRS = [*zip(list(CALLS)[::2], list(CALLS)[1::2], strict=True)]
"""Calls of one program, by two threads each."""


def start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program],
        cwd=PACKAGE.parent, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )  # fmt: skip


def ended(run: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    try:
        out, error = run.communicate(timeout=HANG)
    finally:
        run.kill()
    return run.returncode, out, error


FORGOTTEN = """
import time
from tgr_local import Engine
from tgr_local.engine import Task, start_thread
def opened():
    return Engine({path!r}).session(900, 1)  # nobody else holds the engine
def work():
    try:
        while True:
            session.run([Task(session.sequence(), [1], n_generate=800, ignore_eog=True)])
    except Exception as error:
        print(type(error).__name__, flush=True)
session = opened()
start_thread(work)  # which the end of the program waits for
time.sleep(0.05)
"""


def test_a_program_ends_while_a_session_outlives_its_engine(model: Model):
    program = FORGOTTEN.format(path=str(model()))
    code, out, error = ended(start(program))
    assert (code, out, error) == (0, b"CancelledError\n", b"")


SUSPENDED = """
from tgr_local import Engine, SearchConfig, generate_steps
def opened():
    with Engine({path!r}) as engine:
        {body}
mine = opened()
next(mine)
"""
BODIES = {
    "engine": "yield engine",
    "search": "yield from generate_steps(engine, 'hi', "
    "SearchConfig(max_tokens=99, chunk_len=8), method='tgr-latent', raw=True)",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_program_ends_while_a_generator_holds_an_engine(model: Model, body: str):
    """Its end then runs in an interpreter that starts no thread and imports nothing any more."""
    program = SUSPENDED.format(path=str(model()), body=BODIES[body])
    assert ended(start(program)) == (0, b"", b"")


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_program_ends_while_daemon_threads_call_the_engine(model: Model, first: str, second: str):
    path = str(model())
    one, other = (CALLS[name].format(path=path) for name in (first, second))
    program = ENDLESS.format(path=path, first=one, second=other)
    runs = [start(program) for _ in range(N_PROGRAMS)]
    assert [ended(run) for run in runs] == [(0, b"", b"")] * N_PROGRAMS


ENDS = {
    "sys.exit in a signal handler": """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
work()
""",
    "an engine in a cycle": """
class Node: pass
node = Node(); node.me = node; node.engine = engine; node.session = engine.session(64, 1)
del node
sys.exit(3)
""",
    "an engine made by a later atexit handler": """
import atexit, tgr_local
sys.modules["kept"] = kept = []
def late():
    kept.append(Engine({path!r}))
    threading.Thread(target=lambda: [kept[0].stats() for _ in range(10**6)], daemon=True).start()
atexit._run_exitfuncs()
late()
sys.exit(3)
""",
    "an exception in a thread that holds a session": """
def fail():
    session = engine.session(64, 1)
    raise KeyError(session)
threading.Thread(target=fail).start()
sys.exit(3)
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_in_other_ways(model: Model, end: str):
    path = str(model())
    program = ENDLESS.format(path=path, first=BASE, second=BASE)
    program += ENDS[end].replace("{path!r}", repr(path))
    assert ended(start(program)) == (3, b"", b"")


SLOW_IMPORT = """
import os, sys, threading, time
import tgr_local
begun = threading.Event()
class Slow:
    def find_spec(self, name, path, target=None):
        is_main = threading.current_thread() is threading.main_thread()
        if name == "tgr_local.search.capacity" and not is_main:
            begun.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
threading.Thread(target=lambda: tgr_local.generate).start()
begun.wait()
child = os.fork()
from tgr_local import Engine, SearchConfig, generate
with Engine({path!r}) as engine:
    n = len(generate(engine, "hi", SearchConfig(max_tokens=8), raw=True).tokens)
    os.write(1, b"%d\\n" % n)  # a line of each process, whole
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


@loads_in_a_child
def test_a_fork_waits_for_an_import_of_another_thread(model: Model):
    run = start(SLOW_IMPORT.format(path=str(model())))
    assert ended(run) == (0, b"8\n8\n", b"")


WAITING_FORK = """
import os, signal, sys, threading
from tgr_local import Engine, EngineConfig
from tgr_local.engine import Cancel, Task
from tgr_local.system.errors import TgrError
engine, cancel = Engine({path!r}, EngineConfig(n_ctx=256)), Cancel()
opened = []
opener = threading.Thread(target=lambda: opened.append(engine.session(200, 1)))
opener.start()
opener.join()
session = opened[0]  # of another thread, so that waiting for it is not a deadlock
sequence = session.sequence()
children = []
def fork(*_):
    children.append(os.fork())
    if children[0]:
        cancel.cancel()
signal.signal(signal.SIGUSR1, fork)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
try:
    {wait}
except TgrError as error:
    text = str(error)
if children[0]:
    assert "cancelled" in text, text
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
assert "load it again" in text, text
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    "wait",
    [
        "engine.session(200, 1, cancel=cancel)",
        "[session.run([Task(sequence, [1])], cancel=cancel) and sequence.truncate(0) "
        "for _ in range(10**9)]",
    ],
)
def test_a_handler_that_forks_while_its_thread_waits(model: Model, wait: str):
    program = WAITING_FORK.format(path=str(model()), wait=wait)
    assert ended(start(program)) == (0, b"", b"")


FORKED = """
import os, sys
from tgr_local import Engine, SearchConfig, generate, stream
from tgr_local.system.errors import TgrError
def load(): return Engine({path!r})
def reply(engine): return generate(engine, "hi", SearchConfig(max_tokens=8), raw=True).tokens
engine = load()
session = engine.session(64, 1)
sequence = session.sequence()
events = stream(engine, "hi", SearchConfig(max_tokens=8), raw=True)
next(events)
if child := os.fork():
    _, status = os.waitpid(child, 0)
    session.close()
    list(events)
    print(os.waitstatus_to_exitcode(status), len(reply(engine)))
else:
    def text(): return engine.tokenize("hi")
    def rest(): return list(events)
    for use in (engine.stats, sequence.fork, text, lambda: reply(engine), rest):
        try:
            use()
        except TgrError as error:
            assert "load it again" in str(error), error
        else:
            sys.exit(2)
    with load() as own:
        assert len(reply(own)) > 0
    del session, sequence
    engine.close()
"""


@loads_in_a_child
def test_a_forked_child_must_load_again(model: Model):
    assert ended(start(FORKED.format(path=str(model())))) == (0, b"0 8\n", b"")


IMPORTS = """
import sys
import time
from tgr_local import methods
from tgr_local import Engine, SearchConfig, stream
engine = Engine({path!r})
for method in {methods!r}:
    methods.loaded(method)
    before = set(sys.modules)
    list(stream(engine, "hi", SearchConfig(max_tokens=40, chunk_len=16), method=method, raw=True))
    print(method, *sorted(set(sys.modules) - before))
"""


def test_the_thread_of_a_reply_imports_nothing(model: Model):
    """A process that is forked meanwhile would wait for that import without end."""
    methods = ["base", "tgr-latent", "tgr-think", "markov", "vote", "tot"]
    done = ended(start(IMPORTS.format(path=str(model()), methods=methods)))
    assert done == (0, "".join(f"{name}\n" for name in methods).encode(), b"")


FORKED_DEVICES = """
import os, sys
from tgr_local import Engine, EngineConfig
from tgr_local.system.errors import TgrError
def load(**options): return Engine({path!r}, EngineConfig(**options))
load(rpc={name!r}).close()
if child := os.fork():
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
else:
    try:
        load(rpc={name!r})
    except TgrError as error:
        assert "this process was forked from one that used a GPU or an RPC server" in str(error)
    else:
        sys.exit(2)
    with load() as own:
        assert own.tokenize("hi")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_no_devices_but_the_cpu(model: Model):
    if gpu_devices():
        pytest.skip("a GPU is in every load here")
    with server() as (name, _):
        program = FORKED_DEVICES.format(path=str(model()), name=name)
        assert ended(start(program)) == (0, b"0\n", b"")


STUCK = """
import sys, threading
from tgr_local import _engine
from tgr_local.__main__ import main

def close(engine):
    print("closing", file=sys.stderr, flush=True)
    threading.Event().wait()

_engine.Engine.close = close
threading.Thread(target=threading.Event().wait).start()  # a reply that does not end
sys.argv = ["tgr-local", "run", "--model", {path!r}, "--raw", "--max-tokens", "3", "hi"]
sys.exit(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGQUIT"), reason="signals of another system")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_program_whose_device_hangs(number: int, model: Model):
    process = start(STUCK.format(path=str(model())))
    assert process.stderr is not None
    for line in process.stderr:
        if line == b"closing\n":
            break
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() - begun < HANG:
        process.send_signal(number)
        time.sleep(0.2)
    try:
        assert process.poll() in (128 + number, -number)  # or by the last signal itself
    finally:
        process.kill()
        process.communicate()


HANGING = """
import sys, threading
from tgr_local import Engine, EngineConfig
from tgr_local.engine import Task
from tgr_local.engine.threads import HUNG
from tgr_local.system.errors import CancelledError
engine = Engine({path!r}, EngineConfig(n_gpu_layers=-1, rpc={name!r}))
def work():
    try:
        with engine.session(900, 1) as session:
            while True:
                task = Task(session.sequence(), [1], n_generate=800, ignore_eog=True)
                session.run([task], on_tokens=lambda _: print(end=".", flush=True))
    except CancelledError:
        print("cancelled")
threading.Thread(target=work, daemon={daemon}).start()
sys.stdin.readline()
print("!", flush=True)
"""
CLOSES = """
while not HUNG:
    try:
        engine.close()
    except KeyboardInterrupt:
        pass
print("interrupted", flush=True)
sys.exit(3)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGQUIT"), reason="signals of another system")
@pytest.mark.parametrize("closes", [True, False])
def test_ctrl_c_ends_a_program_of_its_own_whose_device_hangs(closes: bool, model: Model):
    """While it closes the engine, or where it never does, at its end."""
    with server() as (name, device):
        program = HANGING.format(path=str(model()), name=name, daemon=not closes)
        process = subprocess.Popen(
            [sys.executable, "-c", program + (CLOSES if closes else "")],
            cwd=PACKAGE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        assert process.stdin and process.stdout
        try:
            said = select.poll()  # also by the end of the program
            said.register(process.stdout, select.POLLIN)
            assert os.read(process.stdout.fileno(), 1) == b"."
            device.send_signal(signal.SIGSTOP)
            while said.poll(2000):  # until a step hangs
                os.read(process.stdout.fileno(), 1000)
            process.stdin.write(b"\n")
            process.stdin.flush()
            while os.read(process.stdout.fileno(), 1) != b"\n":
                pass
            begun = time.monotonic()
            while not said.poll(2000) and time.monotonic() - begun < HANG:
                process.send_signal(signal.SIGINT)
            code = process.wait(HANG)
            out = process.stdout.read()
        finally:
            process.kill()
            process.wait()
    assert code == (3 if closes else -signal.SIGINT)
    assert sorted(out.split()) == ([b"cancelled", b"interrupted"] if closes else [])
