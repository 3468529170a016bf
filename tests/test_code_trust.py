"""What is offered, how sure a pass is, and what is said where nothing passes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fake_coder import CALC, HALF, RIGHT, WAIT, Coder, answer, carry_out, install, make_verdict
from surroundings import HANG

from tgr_local import methods
from tgr_local.code.closing import cost_line, failure_lines, second_line
from tgr_local.code.edits import Change, FileText
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import is_small
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.reading.context import Wish, make_context
from tgr_local.code.rounds import TaskOutcome
from tgr_local.code.session import CodeSession
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel
from tgr_local.options.config import CodeConfig
from tgr_local.system.errors import CancelledError

WRONG = CALC.replace("a - b", "a * b")
OTHER = CALC.replace("a - b", "b + a")
EDIT = (Change("calc.py", CALC, HALF),)


def verdict(passed: int, *failing: str) -> Verdict:
    made = make_verdict(True, passed, len(failing), 0, "")
    return dataclasses.replace(made, failures=tuple(map(Failure, failing)))


def outcome(baseline: Verdict | None, *verdicts: Verdict | None) -> TaskOutcome:
    made = TaskOutcome(None, "file", baseline)  # type: ignore[arg-type]
    made.ranked = [
        Candidate(i, i, "done", verdict=one, changes=EDIT, parses=True)
        for i, one in enumerate(verdicts, 1)
    ]
    made.rounds = [made.ranked]
    return made


def test_only_an_edit_that_gains_something_is_offered():
    before = verdict(1, "a", "b")
    assert outcome(before, verdict(2, "b")).offered is not None
    for nothing in (verdict(1, "a", "b"), verdict(0, "a", "b", "c"), None):
        assert outcome(before, nothing).offered is None
    flaky = dataclasses.replace(verdict(3), ended="flaky")
    assert outcome(before, flaky).offered is None
    passing = verdict(3)
    assert outcome(passing, passing).offered is not None
    assert outcome(passing, verdict(2, "a")).offered is None
    made = outcome(None, None)  # without tests: code that can be read
    assert made.offered is not None
    made.ranked = [made.ranked[0].but(parses=False)]
    assert made.offered is None


def test_the_last_lines_say_what_was_tried_and_what_may_help():
    before = verdict(1, "a", "b", "c", "d")
    made = outcome(before, verdict(3, "c", "d"), verdict(2, "b", "c", "d"), verdict(2, "b", "c",
        "d"), verdict(2, "a", "b", "d", "e"), verdict(1, "a", "b", "c", "d"), None)  # fmt: skip
    code = CodeConfig(test="pytest", rounds=3)
    assert list(failure_lines(made, code, flags=True)) == [
        "5 tested edits: none passes; with 4 of them more tests pass than before",
        "candidate 1: 3 of 5 pass; fixed: a, b",
        "candidate 2: 2 of 5 pass; fixed: a",
        "candidate 4: 2 of 6 pass; fixed: c; broken: e",
        "no edit fixes d",
        "what may help: another --seed, --rounds 6, a larger model (--model), or the faulty file, "
        "named after the task",
    ]
    nothing = list(failure_lines(outcome(before, before), code, flags=False))
    assert nothing[0] == (
        "1 tested edit: none passes; with none of them more tests pass than before"
    )
    assert nothing[1] == "no edit fixes a, b, c and 1 more"
    assert nothing[2].startswith("what may help: /again, /set rounds 6, ")
    untested = list(failure_lines(outcome(before, None), code, flags=True))
    assert untested[0] == "no edit could be tested; the last column of the table has the reasons"
    assert untested[1].startswith("what may help: ") and len(untested) == 2
    assert not list(failure_lines(outcome(before, verdict(5)), code, flags=True))
    assert cost_line(outcome(before, verdict(5))).endswith("; 1 of them passes 5 of 5 tests")


def test_an_edit_with_which_no_test_runs_fixes_none():
    """Their names are not in the output then, and yet no edit fixes them."""
    before = verdict(1, "a", "b")
    unloaded = dataclasses.replace(
        verdict(0, "test_a.py"), output="ImportError: cannot import name 'show'",
        failures=(Failure("test_a.py", "test_a.py", 1),),
    )  # fmt: skip
    hangs = dataclasses.replace(make_verdict(False, 0, 0, 0, ""), ended="timed out")
    made = outcome(before, unloaded, hangs, verdict(2, "b"))
    lines = list(failure_lines(made, CodeConfig(test="pytest"), flags=True))
    assert "no edit fixes b" in lines
    lines = list(failure_lines(outcome(before, unloaded), CodeConfig(test="x"), flags=True))
    assert lines[1] == "no edit fixes a, b"


def test_a_program_that_ends_at_an_assert_has_a_line_that_no_edit_gets_beyond():
    def stops(line: int) -> Verdict:
        made = make_verdict(True, 0, 0, 1, "")
        stop = Failure("t.c", "t.c", line, "Assertion", line, "t.c")
        return dataclasses.replace(made, failures=(stop,), framework="stop")

    made = outcome(stops(7), stops(7), stops(9))
    lines = list(failure_lines(made, CodeConfig(test="make"), flags=True))
    assert lines[1] == "no edit gets beyond t.c:9"


def test_files_that_had_no_room_are_named():
    text = "".join(f"def function_{n}():\n    return {n}\n" for n in range(10))
    files = {path: FileText(path, text) for path in ("calc.py", "rest.py")}
    wish = Wish("Repair calc.py and rest.py.", "")
    context = make_context(list(files), files.get, wish, 500, len)
    made = dataclasses.replace(outcome(verdict(1, "a"), verdict(1, "a")), context=context)
    shown = {file.path for file in context.shown}
    (unseen,) = files.keys() - shown
    *_, last = failure_lines(made, CodeConfig(test="pytest"), flags=True)
    assert last.endswith(f"named after the task (the model does not see {unseen})")


@pytest.mark.parametrize(
    ("before", "after", "small"),
    [
        ("if x < y:\n", "if x <= y:\n", True),
        ("a[0]\n", "a[-1]\n", True),
        ("x = d.popitem()\n", "x = d.popitem(last=False)\n", True),
        ("a = 1\n", "a = 1\n", False),
        ("a = 1\n", "a  =  1\n", False),
        ("n += a\nm = 1\n", "n -= b\nm = 2\n", False),
        ("return 1\n", "return total(x)\n", False),
    ],
)
def test_a_change_of_a_word_or_two_is_small(before: str, after: str, small: bool):
    assert is_small([Change("a.py", before, after)]) == small


class TwoPass:
    """Tests that both edits pass; that of `OTHER` is under way when `HALF` has passed."""

    def __init__(self) -> None:
        self.begun, self.stopped = threading.Event(), threading.Event()

    def __call__(self, changes: Sequence[Change], cancel: Cancel) -> Verdict:
        texts = [change.after for change in changes]
        if texts == [OTHER] and not self.begun.is_set():
            with cancel.watched(self.stopped.set):
                self.begun.set()
                assert self.stopped.wait(HANG)
            raise CancelledError("stopped")
        assert texts != [HALF] or self.begun.wait(HANG)
        n_failed = int(texts not in ([HALF], [OTHER]))
        return make_verdict(True, 1 - n_failed, n_failed, 0, "")


def test_another_edit_that_passes_is_shown_beside_a_small_one(monkeypatch):
    tests, coder = TwoPass(), Coder([answer(OTHER), answer(HALF), WAIT])
    made = carry_out(monkeypatch.setattr, coder, by=tests, candidates=3)
    assert made.best is not None and made.second is not None
    assert {made.best.number, made.second.number} == {1, 2} and tests.stopped.is_set()
    assert f"candidate {made.second.number}, another edit, passes too" in second_line(made)
    large = Coder([answer(OTHER), answer(HALF + "\nx = [1, 2, 3]\n")])
    made = carry_out(monkeypatch.setattr, large, candidates=2)
    assert made.second is None and second_line(made) == ""


# ---- flaky tests ----


@pytest.mark.parametrize(
    ("passes", "ended"),
    [
        ([False, True, True, False], "passed"),
        ([False, True, False], "flaky"),
        ([False, True, True, True], "flaky"),  # also without the edit
    ],
)
def test_tests_run_again_before_an_edit_is_said_to_pass(
    tmp_path, monkeypatch, passes: list[bool], ended: str
):
    results = iter(passes)

    def tested(*_: Any, **__: Any) -> Verdict:
        is_good = next(results)
        return make_verdict(True, int(is_good), int(not is_good), 0, "")

    (tmp_path / "calc.py").write_text(CALC)
    monkeypatch.setattr("tgr_local.code.judging.judge.judge", tested)
    workplace = Workplace(tmp_path, CodeConfig(test="pytest", sandbox="none"))
    with workplace.copied():
        assert not workplace.judge((), Cancel()).passes
        found = workplace.judge(EDIT, Cancel())
    assert (found.ended, list(results)) == (ended, [])
    if ended == "flaky":
        assert found.summary == "passed, but not each time" and "the tests" in found.remark


# ---- a session without a test command ----


@pytest.fixture
def session(tmp_path, monkeypatch) -> Iterator[Callable[..., Any]]:
    """`session(answers, typed=…)`: a session in a folder with a Makefile; the person types that."""
    (tmp_path / "calc.py").write_text(CALC)
    (tmp_path / "Makefile").write_text("test:\n\ttrue\n")

    def made(*answers: str, typed: str = "", **options: Any) -> CodeSession:
        coder = Coder([answer(text) for text in answers])
        install(monkeypatch.setattr, coder)
        code = CodeConfig(rounds=1, candidates=len(answers), constrained=False, **options)
        monkeypatch.setattr("builtins.input", lambda question: typed)
        return CodeSession(coder, {}, methods.get("base"), code, Workplace(tmp_path, code))

    return made


def test_a_task_about_tests_needs_a_command_for_them(session: Callable[..., CodeSession]):
    one = session(RIGHT)
    for text in ("Fix the failing tests.", "Make all tests pass.", "The test of add fails."):
        with pytest.raises(ValueError, match="no command runs them; name it: /test make test; "):
            one.carry_out(text)
    assert not one.engine.prompts  # type: ignore[attr-defined]
    one.does_without_tests = True
    assert one.carry_out("Fix the failing tests.").best is not None


def test_other_tasks_go_on_without_tests(session: Callable[..., CodeSession], capsys):
    assert session(RIGHT).carry_out("Add a test of add.").best is not None
    assert "there are tests; --test 'make test', or /test," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "command"), [("", "make test"), ("y", "make test"), ("no", ""), ("make a", "make a")]
)
def test_the_person_is_asked_for_the_tests(
    session: Callable[..., CodeSession], typed: str, command: str
):
    one = session(RIGHT, typed=typed)
    one.ask_for_tests()
    assert one.code.test == command and one.does_without_tests == (not command)


def test_accept_without_a_number_takes_no_edit_that_gains_nothing(
    session: Callable[..., CodeSession],
):
    one = session(WRONG, test="pytest")
    one.carry_out("Repair it.")
    with pytest.raises(ValueError, match="no edit gains anything; /accept 1 takes the best one"):
        one.accept()
    assert one.accept(1) == "changed calc.py"
