"""Grading in worker processes: right, wrong, hanging, dying and forbidden answers."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest
import sandboxes
from surroundings import HANG, ROOT
from threads import wait_until

from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.task import FAILED, Grade, Problem

SEVEN = Problem(
    "humaneval",
    "seven",
    (),
    {
        "prompt": "def f():\n    ''' Seven. '''\n",
        "test": "def check(f):\n    assert f() == 7\n",
        "entry_point": "f",
    },
)


@pytest.fixture(scope="module")
def puzzle(tmp_path_factory) -> Problem:
    file = tmp_path_factory.mktemp("data") / "puzzle.jsonl"
    file.write_text('{"input": "2,3,4", "output": "14"}\n')
    return tasks.get("countdown").load(file)[0]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(2, timeout=HANG, allow_exec=True, backend=sandboxes.strongest()) as open_grader:
        yield open_grader


def grade(grader: Grader, problem: Problem, text: str) -> Grade:
    return grader.submit(problem, text).result(timeout=HANG)


def test_answers_come_back_as_the_task_grades_them(grader: Grader, puzzle: Problem):
    for text in (r"\boxed{2+3*4}", r"\boxed{2+3+4}", "nothing", "\ud800 \boxed{1}\n" * 1000):
        assert grade(grader, puzzle, text) == tasks.get("countdown").grade(puzzle, text)


def test_a_judge_that_is_down_is_a_grader_that_failed():
    reference = {"query": "Write.", "criteria": ["It rhymes."]}
    problem = Problem("writingbench", "1", (), reference)
    with Grader(1, judge_url="http://127.0.0.1:9") as open_grader:
        found = grade(open_grader, problem, "Rain.")
    assert found.correct is None and found.detail.startswith(f"{FAILED}failed: the judge at http")


def test_many_answers_keep_their_futures(grader: Grader, puzzle: Problem):
    futures = [grader.submit(puzzle, rf"\boxed{{2+3*{n}}}") for n in range(40)]
    wait(futures, timeout=HANG)
    assert [f.result().correct for f in futures] == [n == 4 for n in range(40)]


def test_programs_run_only_when_allowed(puzzle: Problem):
    with Grader() as grader:
        with pytest.raises(ValueError, match=r"humaneval runs programs .* allow_exec"):
            grader.submit(SEVEN, "    return 7")
        assert grade(grader, puzzle, r"\boxed{2+3*4}").correct


def test_programs_are_judged(grader: Grader):
    assert grade(grader, SEVEN, "    return 7").correct is True
    wrong = grade(grader, SEVEN, "    return 8")
    assert (wrong.correct, wrong.detail) == (False, "AssertionError")
    gone = grade(grader, SEVEN, "    import os\n    os._exit(0)")
    assert (gone.correct, gone.detail) == (False, "ended before its tests did")


def test_a_sandbox_that_does_not_work_gives_no_grade(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with Grader(1, allow_exec=True) as open_grader:
        found = grade(open_grader, SEVEN, "    return 7")
    assert found.correct is None
    assert found.detail.startswith(
        f"{FAILED}failed: the sandbox bwrap does not work here: there is"
    )


def test_a_tree_of_folders_does_not_end_the_run(trouble: Problem):
    deep = "import os\nfor i in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    deep = f"import os\nos.chdir(os.environ['TMPDIR'])\n{deep}os._exit(3)"
    with Grader(1, timeout=HANG) as open_grader:
        assert grade(open_grader, trouble, deep).detail == "grader died (3)"
        assert grade(open_grader, trouble, FINE).correct is True


@pytest.fixture
def trouble(tmp_path, monkeypatch) -> Problem:
    """A problem whose grading does whatever the text says, in Python: workers start with the
    caller's `sys.path`, where a benchmark of this name stands in for countdown's module."""
    (tmp_path / "sitecustomize.py").write_text(
        "import dataclasses\n"
        "from tgr_local.lab.eval.tasks import puzzles\n"
        "class Trouble(puzzles.Countdown):\n"
        "    def grade(self, problem, text):\n"
        "        exec(text)\n"
        "        return super().grade(problem, text)\n"
        "    def prepare(self):\n"
        "        import time\n"
        "        time.sleep(0.2)\n"
        "old = puzzles.COUNTDOWN\n"
        "puzzles.COUNTDOWN = Trouble(old.name, old.doc, old.source)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    return Problem("countdown", "trouble", (), {"numbers": [1], "target": 1})


FINE = r"'\boxed{1}'"


def test_a_grader_that_hangs_is_replaced(trouble: Problem, monkeypatch):
    with Grader(1, timeout=0.3) as grader:
        late = grade(grader, trouble, "while True: pass")
        assert late == Grade(None, 0.0, None, "grader timed out after 0.3 s")
        # a good answer may take its time on a busy machine
        monkeypatch.setattr(type(tasks.get("countdown")), "seconds", lambda self, problem: HANG)
        assert grade(grader, trouble, FINE).correct is True


FAILURES = [
    ("import os; os.kill(os.getpid(), 9)", "grader died (SIGKILL)"),
    ("import os; os._exit(3)", "grader died (3)"),
    ("raise KeyError('x')", "grader failed: KeyError('x')"),
    ("raise ValueError('bad row')", "grader failed: bad row"),
    ("raise SystemExit(1)", "grader failed: SystemExit(1)"),
    ("x = bytearray(1 << 40)", "grader failed: MemoryError()"),
    ("raise RecursionError", "grader failed: RecursionError()"),
]


def test_a_grader_that_fails_grades_nothing(trouble: Problem):
    with Grader(1, timeout=HANG) as grader:
        for text, detail in FAILURES:
            assert grade(grader, trouble, text) == Grade(None, 0.0, None, detail)
            assert grade(grader, trouble, FINE).correct is True


def test_output_of_a_grader_does_not_mix_with_answers(trouble: Problem):
    with Grader(1) as grader:
        text = f"import os\nprint('noise')\nos.write(1, b'noise')\n{FINE}"
        assert grade(grader, trouble, text).correct is True


def test_a_worker_that_died_between_two_answers_costs_none(trouble: Problem):
    with Grader(1) as grader:
        assert grade(grader, trouble, FINE).correct is True
        pid = grader.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while is_alive(pid):
            time.sleep(0.01)
        assert grade(grader, trouble, FINE).correct is True


def test_closing_ends_everything_at_once(trouble: Problem):
    with Grader(1, timeout=HANG) as grader:
        running = grader.submit(trouble, "while True: pass")
        waiting = grader.submit(trouble, FINE)
        while not running.running() or grader.workers[0].pid is None:
            time.sleep(0.01)
        pid, folder = grader.workers[0].pid, Path(grader.workers[0].folder)
        assert folder.is_dir()
    assert pid is not None and not is_alive(pid)
    assert not folder.exists()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        running.result(timeout=HANG)
    with pytest.raises(RuntimeError, match="closed"):
        grader.submit(trouble, FINE)
    grader.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_workers": 0}, "n_workers must be at least 1, got 0"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": float("nan")}, "timeout must be above 0"),
        ({"judge_url": "localhost:8080"}, "must begin with http"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Grader(**options)  # type: ignore[arg-type]


def test_an_unknown_task_is_refused(grader: Grader, puzzle: Problem):
    with pytest.raises(ValueError, match="unknown task 'countdwn'; did you mean countdown"):
        grader.submit(dataclasses.replace(puzzle, task="countdwn"), "")


def test_a_killed_run_leaves_no_worker_and_no_files(tmp_path):
    script = (
        "import os, signal\n"
        "from tgr_local.lab.eval.grader import Grader\n"
        "from tgr_local.lab.eval.task import Problem\n"
        "problem = Problem('game24', '1', (), {'numbers': [4, 6], 'target': 24})\n"
        "grader = Grader(1)\n"
        "grader.submit(problem, '').result()\n"
        "print(grader.workers[0].pid, grader.workers[0].folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=HANG
    )
    pid, folder = run.stdout.split()
    wait_until(lambda: not Path(folder).exists())
    wait_until(lambda: not is_alive(int(pid)))


def test_a_killed_run_leaves_no_worker_that_hangs(trouble: Problem, tmp_path):
    """The worker kills its run, and goes on until the processor time for an answer is over."""
    note = tmp_path / "pid"
    text = (
        f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), 9)\nwhile True: pass"
    )
    script = (
        "import threading\n"
        "from tgr_local.lab.eval.grader import Grader\n"
        "from tgr_local.lab.eval.task import Problem\n"
        "problem = Problem('countdown', 'trouble', (), {'numbers': [1], 'target': 1})\n"
        "threading.Timer.start = lambda timer: None  # the run itself would end it\n"
        f"Grader(1, timeout=0.1).submit(problem, {text!r}).result()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=HANG,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == -signal.SIGKILL, run.stderr
    pid = int(note.read_text())
    wait_until(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:  # a system without /proc, or one that has ended since
        return not Path("/proc").exists()
    except ProcessLookupError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_it_works_from_a_script_without_a_main_guard(tmp_path):
    script = (
        "from tgr_local.lab.eval.grader import Grader\n"
        "from tgr_local.lab.eval.task import Problem\n"
        "problem = Problem('game24', '1', (), {'numbers': [4, 6], 'target': 24})\n"
        "with Grader(1) as grader:\n"
        "    print(grader.submit(problem, r'\\boxed{4*6}').result().correct)\n"
    )
    run = subprocess.run(
        [sys.executable, "-"],
        input=script,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANG,
        check=True,
    )
    assert run.stdout == "True\n"
