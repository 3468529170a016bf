"""The programs of docs/embedding.md answer, stop, and are closed while replies are written."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from surroundings import HANG, ROOT, environment

import tgr_local

FOLDER = ROOT / "examples"
if not FOLDER.exists():
    pytest.skip("the examples are not next to the tests", allow_module_level=True)

# of a reply that does not end by itself: a letter always follows. `markov` needs few cells for it,
# so that several can be written at a time
ENDLESS = {
    "grammar": "root ::= [a-z ] root", "thinking": False, "loop_guard": 0, "chunk_len": 64,
    "max_chunks": 1_000_000,
}  # fmt: skip
VARIABLES = {f"TGR_{name.upper()}": str(value) for name, value in ENDLESS.items()}
VARIABLES["TGR_METHOD"] = "markov"

CONVERSATIONS = f"""
import dataclasses, os, sys, traceback
sys.argv[1:], sys.path[:0] = [], [{str(FOLDER)!r}]
from tgr_local import SearchConfig, stream

def written(engine, question, config, cancel):
    if question == "endless":
        return stream(
            engine, question, SearchConfig(**{ENDLESS!r}), method="markov", cancel=cancel)
    return stream(engine, question, dataclasses.replace(config, seed=1), cancel=cancel)

def steps(program, ask, text, status, again, close):
    program.stream = written
    first = program.windows[0]
    ask(first, "What is 12 + 30?")
    while "tokens in" not in status(first):
        yield
    assert "42" in text(first)
    ask(first, "endless")
    while len(text(first)) < 200:
        yield
    ask(first, "a question that comes too early")
    assert not first.reply.done()
    first.stop()
    while "cancelled" not in status(first):
        yield
    assert "too early" not in text(first)
    again()
    second, before = program.windows[-1], len(text(first))
    ask(first, "endless")
    ask(second, "endless")
    while min(len(text(first)) - before, len(text(second))) < 200:
        yield
    assert second is not first and not first.reply.done() and not second.reply.done()
    close(second)
    before = len(text(first))
    while not second.reply.done() or len(text(first)) == before:
        yield  # the other window goes on
    close(first)
    print("closed while a reply was written", flush=True)

def step(script):
    try:
        next(script, None)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
"""

QT = """
import embed_qt as program
class Driven(program.Window):
    def look(self):
        super().look()
        step(script)
program.Window = Driven
def ask(window, text):
    window.input.setText(text)
    window.ask()
script = steps(
    program, ask, lambda window: window.text.toPlainText(), lambda window: window.status.text(),
    lambda: program.open_window(program.windows[0].engine), lambda window: window.close(),
)
program.main()
"""

TK = """
import embed_tk as program
plain = program.look
def look(root):
    plain(root)
    step(script)
program.look = look
def ask(window, text):
    window.input.delete(0, "end")
    window.input.insert(0, text)
    window.ask()
script = steps(
    program, ask,
    lambda window: window.text.get("1.0", "end"), lambda window: window.status["text"],
    lambda: program.open_window(program.windows[0].master, program.windows[0].engine),
    lambda window: window.close(),
)
program.main()
"""

WEB = f"""
import os, sys, time, traceback
sys.argv[1:], sys.path[:0] = [], [{str(FOLDER)!r}]
import embed_web as program, webview
ASK = '''(() => {{
  const field = document.querySelector("#question");
  field.value = "endless";
  field.dispatchEvent(new Event("input"));
  field.dispatchEvent(new KeyboardEvent("keydown", {{ key: "Enter", bubbles: true }}));
}})()'''
TEXT = '[...document.querySelectorAll(".message.assistant .text")].map((e) => e.innerText).join()'
METHODS = 'document.querySelectorAll("#method option").length'
def until(window, code, holds):
    while not holds(value := window.run_js(code)):
        time.sleep(0.05)
    return value
def ask(window):
    until(window, METHODS, lambda n: n)  # it has the key
    window.run_js(ASK)
    until(window, TEXT, lambda text: len(text or "") > 100)
def drive():
    first = webview.windows[0]
    ask(first)
    first.run_js('document.querySelector("#stop").click()')
    until(first, 'document.querySelectorAll(".message.assistant .again").length', lambda n: n)
    program.open_window(first.original_url)
    second = webview.windows[-1]
    ask(second)
    second.destroy()
    first.run_js('document.querySelector("#new").click()')
    ask(first)
    print("closed while a reply was written", flush=True)
    first.destroy()
def driven():
    try:
        drive()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
start = webview.start
webview.start = lambda **options: start(driven, **options)
program.main()
"""


@pytest.fixture
def display(tmp_path) -> Iterator[str]:
    """The name of a screen that nobody sees."""
    if not (program := shutil.which("Xvfb")):
        pytest.skip("Xvfb is absent")
    command = [program, "-displayfd", "1", "-screen", "0", "900x700x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout
        number = server.stdout.readline().decode().strip()
        if not number:
            pytest.skip("Xvfb does not start here")
        yield f":{number}"
        server.terminate()


def command(folder: Path) -> Path:
    """tgr-local as a program in a folder."""
    from serving import START  # skips where the server's packages are absent

    program = folder / "tgr-local"
    program.write_text(f"#!{sys.executable}\n{START}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def ran(code: str, **variables: str) -> str:
    """What a program writes to stderr that ends with 0 after it was closed."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(**variables), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "closed while a reply was written\n", done.stderr
    assert not re.search("Traceback|QObject|QThread|invalid command name|TclError", done.stderr)
    return done.stderr


def test_conversations_in_qt():
    pytest.importorskip(
        "PySide6.QtWidgets",
        reason="PySide6 is absent: pip install 'tgr-local[desktop]'",
        exc_type=ImportError,
    )
    ran(CONVERSATIONS + QT, QT_QPA_PLATFORM="offscreen")


def test_conversations_in_tk(display: str):
    pytest.importorskip("tkinter", reason="tkinter is absent", exc_type=ImportError)
    assert not ran(CONVERSATIONS + TK, DISPLAY=display)


def test_the_page_in_a_web_view(display: str, tmp_path):
    pytest.importorskip("fastapi", reason="the server's packages are absent")
    pytest.importorskip("webview", reason="pywebview is absent: pip install 'pywebview[pyside6]'")
    pytest.importorskip("qtpy", reason="QtPy is absent: pip install 'pywebview[pyside6]'")
    pytest.importorskip(
        "PySide6.QtWebEngineWidgets",
        reason="Qt WebEngine is absent: pip install 'pywebview[pyside6]'",
        exc_type=ImportError,
    )
    # Chromium's sandbox refuses root
    more = {"QTWEBENGINE_DISABLE_SANDBOX": "1"} if os.getuid() == 0 else {}
    ran(WEB, **VARIABLES, **more, DISPLAY=display, HOME=str(tmp_path), PYWEBVIEW_GUI="qt")


@pytest.mark.parametrize("is_stopped", [False, True], ids=["answered", "stopped"])
def test_the_server_as_a_child_of_node(is_stopped: bool, tmp_path):
    if not (node := shutil.which("node")):
        pytest.skip("node is absent")
    program = command(tmp_path)
    with subprocess.Popen(
        [node, str(FOLDER / "embed_child.mjs")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(TGR_LOCAL=str(program), HOME=str(tmp_path), TGR_SEED="1",
                        **(VARIABLES if is_stopped else {})),
    ) as child:  # fmt: skip
        assert child.stdout and child.stderr
        if is_stopped:
            assert child.stdout.read(100)
            child.send_signal(signal.SIGINT)
        text, errors = child.communicate(timeout=HANG)
        assert (child.returncode, errors) == (0, b"")
        assert is_stopped or text == b"The answer is \\boxed{42}.\n"


@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="needs bash, curl")
def test_the_commands_of_the_page(tmp_path):
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = f"{command(tmp_path).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=tmp_path,
        env=environment(PATH=path, HOME=str(tmp_path)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0 and "boxed{42}" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("program", "module", "package", "install"),
    [
        ("embed_qt.py", "PySide6", "PySide6", "pip install 'tgr-local[desktop]'"),
        ("embed_tk.py", "tkinter", "tkinter", "apt install python3-tk"),
        ("embed_web.py", "webview", "pywebview", "pip install 'pywebview[pyside6]'"),
    ],
)
def test_a_program_names_the_package_that_it_misses(
    program: str, module: str, package: str, install: str
):
    code = (
        f"import runpy, sys; sys.modules[{module!r}] = None; "
        f"runpy.run_path({str(FOLDER / program)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True,
        timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"; this program needs {package}; run: {install}\n")


def test_the_programs_use_public_names_alone():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^::: (tgr_local\.[\w.]+)$", page, re.MULTILINE))
    public |= {f"tgr_local.{name}" for name in tgr_local.__all__}
    for path in FOLDER.glob("embed_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tgr_local"):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
                assert used <= public, (path, used - public)
            assert not isinstance(node, ast.Import) or "tgr_local" not in ast.unparse(node)


def test_the_page_names_every_program():
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    assert set(re.findall(r"examples/(embed_\w+\.\w+)\)", page)) == {
        path.name for path in FOLDER.glob("embed_*.*")
    }
