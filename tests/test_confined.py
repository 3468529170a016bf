"""Foreign code in a process of its own: what it makes, and that it can neither hang nor eat up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_edit import STRING, Gguf
from surroundings import HANG, environment
from threads import in_threads
from tool_models import TOOL_TEMPLATE, WEATHER, tool

from tgr_local import load
from tgr_local.engine import Cancel
from tgr_local.options.model_files import embedded_model
from tgr_local.system import confined
from tgr_local.system.confined import ConfinedError, apply_template, parse
from tgr_local.system.errors import CancelledError, ModelError

ASK = [{"role": "user", "content": "hi"}]
LIMITED = Path("/proc/self/status").exists()  # macOS bounds no memory
LARGE = "{% for i in range(30000000) %}x{% endfor %}"
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x }}"
)


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch) -> None:
    """However busy the machine is, the CPU time is over first."""
    monkeypatch.setattr(confined, "WALL_SECONDS", HANG)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Callable[[str], Path]:
    """The embedded model with another chat template."""
    folder = tmp_path_factory.mktemp("hostile")

    def make(template: str) -> Path:
        path = folder / f"{abs(hash(template))}.gguf"
        file = Gguf.parse(embedded_model().read_bytes())
        file.set("tokenizer.chat_template", template.encode(), STRING)
        path.write_bytes(file.to_bytes())
        return path

    return make


def render(template: str, cancel: Cancel | None = None, **variables: Any) -> str:
    """The text that a template makes of one message."""
    messages = [{"role": "user", "content": " ½ \n"}]
    request = {"messages": messages, "variables": variables, "only_prompt": True}
    return str(apply_template(template, "<s>", "</s>", request, cancel)["prompt"])


def test_a_template_makes_its_text():
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %}"
    )
    assert render(template + "{{ end }}", end="🦙.") == "<s>[user] ½🦙."
    assert render("{{ strftime_now('%Y') | length }}") == "4"
    assert render("{{ given.deep[1] }}", given={"deep": [1, "é"]}) == "é"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (FOREVER, "CPU time"),
        (DOUBLING, "CPU time|memory"),
        (LARGE, "memory"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        ("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "nested too deeply"),
        ("{{ raise_exception('system messages are not supported') }}", "are not supported"),
        ("{{ messages[0]", "[Uu]nexpected|[Ee]xpected"),
    ],
)
def test_a_bad_template_is_an_error_and_the_next_one_works(template: str, why: str):
    if why == "memory" and not LIMITED:
        pytest.skip("this system bounds no memory")
    with pytest.raises(ConfinedError, match=why):
        render(template)
    assert render("fine") == "fine"


def test_a_reply_is_read_by_its_parser():
    made = apply_template(TOOL_TEMPLATE, "", "", {"messages": ASK, "tools": [tool(WEATHER)]})
    parser = (made["format"], made["parser"], made["generation_prompt"])
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"'
    message = parse(parser, text, partial=True)
    (call,) = message["calls"]
    assert call["name"] == "weather" and call["arguments"].startswith('{"city"')
    assert parse(parser, "42 ½", partial=False)["content"] == "42 ½"
    with pytest.raises(ConfinedError):
        parse((0, "no parser", ""), "x", partial=True)
    assert parse(parser, "42", partial=False)["content"] == "42"


def test_a_template_of_a_model_is_confined(hostile: Callable[[str], Path]):
    with load(hostile(FOREVER)) as engine, pytest.raises(ModelError, match=r"fails: .*CPU time"):
        engine.chat_prompt([{"role": "user", "content": "hi"}])
    with load(hostile("x" * (1 << 20) + "x")) as engine, pytest.raises(ModelError, match="1048577"):
        engine.chat_prompt([{"role": "user", "content": "hi"}])


def test_a_cancel_ends_a_template_and_those_that_wait():
    cancel = Cancel()
    ended = in_threads(*[lambda: render(FOREVER, cancel)] * 6, cancel.cancel)
    assert [type(one) for one in ended] == [CancelledError] * 6 + [type(None)]
    assert render("fine") == "fine"


def test_a_worker_that_died_is_replaced(monkeypatch):
    assert render("one") == "one"
    for worker in confined._idle:
        worker._process.kill()
        worker._process.wait()
    assert render("two") == "two"


def test_an_answer_without_end_is_not_kept(tmp_path):
    module = tmp_path / "endless.py"
    module.write_text(
        'import os\ndef render():\n    while True:\n        os.write(1, b"x" * (1 << 20))\n'
    )
    with pytest.raises(ConfinedError, match="answers with more than 16 MiB"):
        confined.call(module, {})
    assert render("fine") == "fine"


def stop_the_worker() -> None:
    """Leaves one idle worker, which no longer reads."""
    while len(confined._idle) > 1:
        confined._idle.pop().end()
    os.kill(confined._idle[0]._process.pid, signal.SIGSTOP)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a signal stops no process of Windows")
def test_a_worker_that_does_not_read_is_given_up(monkeypatch):
    def cancel_once_it_is_asked() -> None:
        while confined._idle:  # a request that is cancelled before takes no worker
            time.sleep(0.001)
        cancel.cancel()

    assert render("one") == "one"
    stop_the_worker()
    monkeypatch.setattr(confined, "WALL_SECONDS", 0.2)
    with pytest.raises(ConfinedError, match=r"takes more than 0\.2 s"):
        render("x" * (1 << 20))
    cancel = Cancel()
    monkeypatch.setattr(confined, "WALL_SECONDS", HANG)
    assert render("two") == "two"
    stop_the_worker()
    ended = in_threads(lambda: render("x" * (1 << 20), cancel), cancel_once_it_is_asked)
    assert isinstance(ended[0], CancelledError)
    assert render("three") == "three"


def test_a_worker_that_answers_no_more_is_given_up(tmp_path, monkeypatch):
    module = tmp_path / "silent.py"
    module.write_text("import os, time\ndef render():\n    os.close(1)\n    time.sleep(600)\n")
    monkeypatch.setattr(confined, "WALL_SECONDS", 2.0)
    with pytest.raises(ConfinedError, match="takes more than 2 s"):
        confined.call(module, {})


def test_a_forked_child_has_workers_of_its_own():
    assert render("parent") == "parent"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if not confined._idle and render("child") == "child" else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert render("parent") == "parent"


def test_variables_must_be_json():
    with pytest.raises(ValueError, match="must be JSON"):
        render("", x=object())
    with pytest.raises(ValueError, match=r"not valid Unicode: it holds '\\ud800'; remove it"):
        render("", x="a\ud800")


FROZEN = """
import mmap, sys
large = mmap.mmap(-1, 300 << 20)  # stands for what a program imports before the call
sys.frozen, sys.executable = True, {program!r}
import tgr_local
if {supported}:
    tgr_local.freeze_support()
from tgr_local.system import confined
confined.WALL_SECONDS = {hang}
def render(template):
    return confined.apply_template(
        template, "", "", {{"messages": [], "variables": {{"x": 1}}, "only_prompt": True}}
    )["prompt"]
print(render("{{{{ x }}}}"), len(confined._idle))
for template in {hostile!r}:
    try:
        render(template)
    except confined.ConfinedError as error:
        print(error)
"""


@pytest.mark.parametrize("supported", [True, False])
def test_a_frozen_program_starts_itself_for_the_work(tmp_path, supported: bool):
    program, script = tmp_path / "program", tmp_path / "script.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    hostile = [FOREVER, LARGE][: 1 + LIMITED] if supported else []
    script.write_text(
        FROZEN.format(program=str(program), supported=supported, hang=HANG, hostile=hostile)
    )
    done = subprocess.run([program], stdout=subprocess.PIPE, env=environment(), timeout=HANG)
    errors = [b"takes more than 2 s of CPU time", b"takes more than 256 MiB of memory"]
    expected = [b"1 1", *errors[: len(hostile)]] if supported else [b"1 0"]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)
