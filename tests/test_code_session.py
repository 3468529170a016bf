"""`tgr-local code`: the command line, sessions through pipes and on a terminal, exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from fake_coder import (
    CALC,
    HALF,
    RIGHT,
    WAIT,
    Coder,
    Followed,
    answer,
    install,
    installed,
    judge,
    make_verdict,
)  # fmt: skip
from screens import Screen

from tgr_local import methods
from tgr_local.code import repl
from tgr_local.code.closing import doubt_line
from tgr_local.code.edits import Change
from tgr_local.code.folder import journal
from tgr_local.code.folder.project import RefusedError
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.repl_commands import COMMANDS
from tgr_local.code.rounds import TaskOutcome
from tgr_local.code.session import CodeSession
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel
from tgr_local.options.config import ChatConfig, CodeConfig
from tgr_local.system.errors import CancelledError
from tgr_local.system.sandbox import backends, commands

WRONG = CALC.replace("a - b", "a * b")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with calc.py, which is the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.py").write_text(CALC)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def coder(monkeypatch) -> Callable[..., Coder]:
    """`coder(answers, answers)`: the model of the next command, whose rounds have these answers."""

    def made(*rounds: list[str]) -> Coder:
        model = Coder(*rounds)
        install(monkeypatch.setattr, model)
        return model

    return made


def code(*arguments: str) -> int:
    return run("code", *arguments, "--model", "coder.gguf", "--no-constrained", "-k", "2")


# ---- one task ----


def test_yes_accepts_an_edit_that_passes(project: Path, coder: Any, capsys):
    coder([answer(WRONG), answer(RIGHT)])
    assert code("Repair it.", "--test", "pytest", "--yes") == 0
    assert (project / "calc.py").read_text() == RIGHT
    out, err = capsys.readouterr()
    assert out.startswith("--- a/calc.py\n+++ b/calc.py\n") and out.count("\n+ ") == 2
    assert "tests     pytest: 0 of 2 pass in 0.2 s" in err and ">  2  2 of 2 pass" in err
    assert run("code", "--undo") == 0
    assert (project / "calc.py").read_text() == CALC


class Typed(io.StringIO):
    """Lines that a person types on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("said", "asks_more"), [("n\n", False), ("", False), ("yes\nno\n", True)])
def test_a_weaker_sandbox_needs_the_persons_consent(
    project: Path, coder: Any, monkeypatch, capsys, said: str, asks_more: bool
):
    coder([answer(RIGHT)])
    monkeypatch.setattr(commands, "defect", lambda kind: "it is gone" if kind == "bwrap" else "")
    monkeypatch.setattr(backends, "becomes_another_user", lambda: False)  # as root it does
    monkeypatch.setattr(sys, "stdin", Typed(said))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert code("Repair it.", "--test", "pytest") == (4 if asks_more else 1)
    assert (project / "calc.py").read_text() == CALC
    out, err = capsys.readouterr()
    assert "bubblewrap does not work here" in err and "read and change your files" in err
    assert ("nothing was run" not in err) == asks_more == ("+++ b/calc.py" in out)


def only_none(kind: str) -> str:
    """Why a backend does not work where no sandbox does."""
    return "" if kind == "none" else f"there is no program {kind}"


@pytest.mark.parametrize("options", [("Repair it.",), ("Repair it.", "--yes"), ()])
def test_without_any_sandbox_one_line_says_how_to_go_on(
    project: Path, coder: Any, monkeypatch, capsys, options: tuple[str, ...]
):
    model = coder([answer(RIGHT)])
    monkeypatch.setattr(commands, "defect", only_none)
    assert code(*options, "--test", "pytest") == 1
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("tgr-local: no sandbox works here (bwrap: there is no program bwrap; ")
    assert (
        "install bubblewrap" in line
        and "or name --sandbox none (TGR_SANDBOX=none) and accept the risk" in line
    )
    assert "the rights of this user, on this machine's files and network" in line
    assert out == "" and not model.prompts and (project / "calc.py").read_text() == CALC


@pytest.mark.parametrize("options", [(), ("--yes",), ("--json",)])
def test_where_nobody_is_asked_tests_that_cannot_be_started_end_the_task(
    project: Path, coder: Any, monkeypatch, capsys, options: tuple[str, ...]
):
    model = coder([answer(RIGHT)])
    absent = dataclasses.replace(
        make_verdict(False, 0, 0, 0, "sh: 1: pytset: not found\n"), ended="not found"
    )
    monkeypatch.setattr(Workplace, "judge", lambda self, changes, cancel: absent)
    assert code("Repair it.", "--test", "pytset -q", *options) == 1
    out, err = capsys.readouterr()
    assert out == "" and not model.prompts
    assert err == (
        "tgr-local: the tests cannot be started: 'pytset -q' (sh: 1: pytset: not found); install "
        "the command, or name another one with --test\n"
    )


def test_where_a_person_may_stop_it_the_task_goes_on(
    project: Path, coder: Any, monkeypatch, capsys
):
    model = coder([answer(RIGHT)])
    absent = dataclasses.replace(make_verdict(False, 0, 0, 0, ""), ended="not found")
    monkeypatch.setattr(Workplace, "judge", lambda self, changes, cancel: absent)
    monkeypatch.setattr(sys, "stdin", Typed("no\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert code("Repair it.", "--test", "pytset", "--rounds", "1") == 3
    assert model.prompts and "the command may be wrong (Ctrl-C stops)" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_the_person_may_name_none(
    project: Path, coder: Any, home: Path, monkeypatch, capsys, by: str
):
    coder([answer(RIGHT)])
    monkeypatch.setattr(commands, "defect", only_none)
    if by == "variable":
        monkeypatch.setenv("TGR_SANDBOX", "none")
    elif by == "file":
        file = home / "config" / "tgr-local" / "config.toml"
        file.parent.mkdir(parents=True)
        file.write_text('sandbox = "none"\n')
    flag = ["--sandbox", "none"] if by == "flag" else []
    assert code("Repair it.", "--test", "pytest", "--yes", *flag) == 0
    assert (project / "calc.py").read_text() == RIGHT
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "sandbox" in line)
    assert line.startswith("note: the tests, with code of the model, run without a sandbox: only ")
    assert "it has the rights of this user, on this machine's files and network" in line


def test_without_a_terminal_and_without_yes_nothing_is_changed(project: Path, coder: Any, capsys):
    coder([answer(RIGHT)])
    assert code("Repair it.", "--test", "pytest") == 4
    assert (project / "calc.py").read_text() == CALC
    out, err = capsys.readouterr()
    assert "-    return a - b\n+    return a + b\n" in out
    assert "not accepted; the folder is unchanged" in err


def test_yes_accepts_nothing_that_does_not_pass(project: Path, coder: Any):
    coder([answer(HALF)], [answer("")])
    assert code("Repair it.", "--test", "pytest", "--yes", "--rounds", "2") == 3
    assert (project / "calc.py").read_text() == CALC


def test_where_nothing_may_be_changed_the_reason_is_said(project: Path, coder: Any, capsys):
    coder([answer(RIGHT)])
    (project / "calc.py").chmod(0o444)
    assert code("Repair it.", "--test", "pytest", "--yes") == 2
    assert "no file of the project may be changed: calc.py is read-only; make it writable" in (
        capsys.readouterr().err
    )


def test_json_is_one_object_with_every_candidate(project: Path, coder: Any, capsys):
    coder(["none", answer(HALF)], [answer(WRONG), answer(RIGHT)])
    assert code("Repair it.", "--json", "calc.py", "--test", "pytest") == 4
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["exit_code"] == 4 and found["passes"] and found["accepted"] is None
    assert [len(one) for one in found["rounds"]] == [2, 2]
    assert found["ranking"][0] == found["best"] == 4
    first, half = found["rounds"][0]
    assert first["problem"] and half["verdict"]["passed"] == 1
    assert found["diff"].startswith("--- a/calc.py") and "round 2" in err
    assert found["forward_tokens"] == sum(
        one["forward_tokens"] for some in found["rounds"] for one in some
    )
    assert found["context"]["shown"][0]["path"] == "calc.py"


@pytest.mark.parametrize(
    ("answers", "accepts", "status"),
    [("yes\n", True, 0), ("no\n", False, 4), ("", False, 4), ("9\n/run\n1\ny\n", True, 0)],
)
def test_the_person_decides_on_a_terminal(
    project: Path, coder: Any, monkeypatch, capsys, answers: str, accepts: bool, status: int
):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = iter(answers.splitlines())

    def typed(question: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    coder([answer(RIGHT), WAIT])
    assert code("Repair it.", "--test", "pytest") == status
    assert (project / "calc.py").read_text() == (RIGHT if accepts else CALC)
    if answers.startswith("9"):
        out = capsys.readouterr().out
        assert "candidate 9 has no edit; those with one: 1" in out
        assert "the answer is '/run', but must be yes, no or the number of a candidate" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "no/../../out.py"], "out.py lies outside of"),
        ([" "], "the task is empty; say what to do"),
        (["--json"], "--json needs a task; give it as an argument, or - for stdin"),
        (["--yes"], "--yes needs a task; give it as an argument, or - for stdin"),
        (["x", "--force"], "--force belongs to --undo"),
        (["x", "--undo"], "--undo restores the folder and ends, but a task is given too"),
        (["--undo", "--json"], "--undo restores the folder and ends, but --json is given too"),
        (["x", "--edit-format", "patch"], "edit_format is 'patch', but must be one of auto"),
        (["x", "-k", "0"], "candidates is 0, but must be between 1 and 64"),
        (["x", "--tset", "y"], "did you mean --test"),
    ],
)
def test_bad_usage_changes_nothing_and_says_why(
    project: Path, coder: Any, capsys, arguments: list[str], message: str
):
    coder()
    assert run("code", *arguments, "--model", "coder.gguf") == 2
    assert message in capsys.readouterr().err


def test_a_file_can_be_named_by_way_of_a_link_to_the_folder(project: Path, tmp_path):
    os.symlink(project, tmp_path / "link")
    workplace = Workplace(project, CodeConfig())
    assert workplace.named_paths([f"{tmp_path}/link/calc.py", str(project / "new.py")]) == (
        "calc.py", "new.py",
    )  # fmt: skip
    os.symlink(tmp_path, project / "out")
    with pytest.raises(RefusedError, match="leaves"):
        workplace.named_paths(["out/secret.py"])


def test_an_edit_that_cannot_be_accepted_is_in_the_json_nevertheless(
    project: Path, coder: Any, monkeypatch, capsys
):
    coder([answer(RIGHT)])

    def tested(workplace: Workplace, changes: Any, cancel: Any) -> Any:
        (project / "calc.py").write_text("mine")  # the person goes on working
        return judge(changes, cancel)

    monkeypatch.setattr(Workplace, "judge", tested)
    assert code("Repair it.", "--json", "calc.py", "--test", "pytest", "--yes") == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["error"] in err and "calc.py has been changed since" in found["error"]
    assert found["accepted"] is None and found["exit_code"] == 1
    assert found["best"] in (1, 2)  # the first one to pass ends the other
    assert (project / "calc.py").read_text() == "mine"


def test_an_edit_that_never_ends_is_stopped_by_the_time_of_the_first_run(
    project: Path, monkeypatch
):
    first = dataclasses.replace(judge((), Cancel()), seconds=2.0)
    given = []

    def tested(place: Any, command: str, limits: Any, **_: Any) -> Any:
        given.append(limits.seconds)
        return first

    monkeypatch.setattr("tgr_local.code.judging.judge.judge", tested)
    workplace = Workplace(project, CodeConfig(test="pytest", test_seconds=120.0, sandbox="none"))
    with workplace.copied():
        for changes in ((), (Change("calc.py", CALC, HALF),)):
            workplace.judge(changes, Cancel())
    assert given == [120.0, 40.0]


def test_how_far_a_test_got_counts_where_its_own_file_is_as_it_was(project: Path, monkeypatch):
    """An edit of that file moves its lines."""
    failures = tuple(  # both stop in the code, which the second one's file is not
        Failure(f"{name}::test", "calc.py", 9, "", 3, name) for name in ("calc.py", "t.py")
    )
    said = dataclasses.replace(judge((), Cancel()), failures=failures)
    monkeypatch.setattr("tgr_local.code.judging.judge.judge", lambda *_, **__: said)
    workplace = Workplace(project, CodeConfig(test="pytest", sandbox="none"))
    with workplace.copied():
        for changes, reached in (((), [3, 3]), ((Change("calc.py", CALC, HALF),), [0, 3])):
            verdict = workplace.judge(changes, Cancel())
            assert [one.reached for one in verdict.failures] == reached


def test_a_file_is_not_shown_under_two_names(project: Path, coder: Any):
    os.symlink("calc.py", project / "link.py")
    (project / "c:d.py").write_text(CALC)
    workplace = Workplace(project, CodeConfig())
    assert workplace.refusal("link.py") == "link.py is a link to calc.py"
    assert workplace.refusal("calc.py") == "" and "cannot be named" in workplace.refusal("c:d.py")
    assert workplace.named_paths(["link.py", "~no-such-user/x.py"]) == (
        "link.py",
        "~no-such-user/x.py",
    )


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("sh check.sh", "check.sh"),
        ("bash -eu ./ci/all.bash -v", "ci/all.bash"),
        ("./t.sh", "t.sh"),
        ("CI=1 timeout 60 bash -o pipefail t.sh 'a b' > out 2>&1", "t.sh"),
    ],
)
def test_the_script_that_runs_the_tests_is_one_of_them(project: Path, command: str, path: str):
    workplace = Workplace(project, CodeConfig(test=command))
    assert workplace.refusal(path) == f"{path} runs the tests"
    assert workplace.refusal("calc.py") == ""
    assert workplace.named_paths([path]) == (path,)  # a person may
    others = f"test $(sh {path}) = 3", f"sh {path} | grep 3", f"sh {path} && true", "", "sh '"
    for other in others:
        assert Workplace(project, CodeConfig(test=other)).refusal(path) == ""


def test_a_named_file_that_does_not_exist_can_be_written(project: Path, coder: Any, capsys):
    coder(["new/mod.py\n```python\nX = 1\n```\n"])
    assert code("Write it.", "new/mod.py", "--test", "pytest", "--rounds", "1", "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["diff"] == ""  # it mends no test
    diff = "--- a/new/mod.py\n+++ b/new/mod.py\n@@ -0,0 +1 @@\n+X = 1\n"
    assert found["rounds"][0][0]["diff"] == diff
    assert not (project / "new").exists()


def test_undo_without_anything_to_undo_says_so(project: Path, capsys):
    assert run("code", "--undo") != 0
    assert capsys.readouterr().err.startswith("tgr-local: ")


def test_a_folder_that_was_removed_is_said_so(project: Path, capsys):
    shutil.rmtree(project)
    assert code("Repair it.") == 1
    said = "the current folder is not there any more; go to another one"
    assert capsys.readouterr().err == f"tgr-local: {said}\n"


@pytest.mark.parametrize("kind", ["state", "cache"])
def test_a_file_in_the_place_of_our_folder_is_said_so(
    project: Path, coder: Any, tmp_path, monkeypatch, capsys, kind: str
):
    coder([answer(RIGHT)])
    monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tgr-local").touch()
    assert code("Repair it.") == 1
    said = "it is not a folder; move it away, or name another"
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"tgr-local: {tmp_path}/other/tgr-local: {said}"
    )


def test_what_the_tests_print_is_shown_where_no_edit_passes(
    project: Path, coder: Any, monkeypatch, capsys
):
    """Its end, of the best edit, without control characters."""

    def tested(workplace: Workplace, changes: Any, cancel: Any) -> Any:
        output = (
            "".join(f"line {n}\n\n" for n in range(100)) + "calc.py:1: wrong\x1b[2J" + 300 * "x"
        )
        return make_verdict(True, 1 if changes else 0, 1, 0, f"{output}\n")

    coder([answer(HALF), answer(WRONG)])
    monkeypatch.setattr(Workplace, "judge", tested)
    assert code("Repair it.", "--test", "pytest", "--rounds", "1", "--yes") == 3
    err = capsys.readouterr().err.splitlines()
    at = err.index("with candidate 1 the tests print, at their end:")
    assert err[-1] == "no edit passes; the folder is unchanged"
    tried = "2 tested edits: none passes; with 2 of them more tests pass than before"
    shown = err[at + 1 : err.index(tried)]
    assert shown[0] == "  line 89" and len(shown) == 12
    assert shown[-1].startswith("  calc.py:1: wrong\ufffd[2Jx") and len(shown[-1]) < 210


def test_a_log_has_one_line_for_a_round_and_one_short_table(
    project: Path, coder: Any, monkeypatch, capsys
):
    rounds = [[answer(f"{HALF}x = {n}{i}\n") for i in range(8)] for n in range(3)]
    coder(*rounds)
    arguments = ("Repair it.", "--test", "pytest", "--rounds", "3", "-k", "8")
    assert run("code", *arguments, "--model", "coder.gguf", "--no-constrained") == 3
    err = capsys.readouterr().err.splitlines()
    assert sum("#  tests" in line for line in err) == 1
    assert sum("best:" in line for line in err) == 3
    assert "   … 21 candidates more, none of them better" in err


def test_a_pass_of_few_among_many_is_said(project: Path, coder: Any, monkeypatch, capsys):
    monkeypatch.setattr("tgr_local.code.closing._MANY", 1)
    coder([answer(RIGHT)])
    assert code("Repair it.", "--test", "pytest") == 4
    assert "tested edits pass" in capsys.readouterr().err


def test_the_doubt_counts_tested_edits():
    def outcome(n_pass: int, n_fail: int, **more: Any) -> Any:
        verdicts = [make_verdict(True, 2, 0, 0, "")] * n_pass
        verdicts += [make_verdict(True, 1, 1, 0, "")] * n_fail
        verdicts = [dataclasses.replace(one, **more) for one in verdicts]
        every = [Candidate(i, i, "done", verdict=one) for i, one in enumerate(verdicts)]
        made = TaskOutcome(None, "file", None)  # type: ignore[arg-type]
        made.ranked = [*every, Candidate(99, 99, "done")]
        return made

    assert doubt_line(outcome(1, 55)) == (
        "only 1 of 56 tested edits passes, perhaps by chance: read the diff"
    )
    assert doubt_line(outcome(2, 14)).startswith("only 2 of 16 tested edits pass,")
    for n_pass, n_fail in ((0, 56), (1, 6), (2, 13), (8, 0)):
        assert doubt_line(outcome(n_pass, n_fail)) == ""
    assert doubt_line(outcome(1, 55, framework="parsed")) == ""


# ---- a disk that is full, a home that cannot be written ----


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/x")


def test_where_only_a_diff_is_wanted_no_home_is_needed(
    project: Path, coder: Any, monkeypatch, capsys
):
    """Nothing of a journal is written; what cannot be undone is not accepted."""
    coder([answer(RIGHT)])
    monkeypatch.setattr(journal.paths, "made", no_room)
    monkeypatch.setattr(Workplace, "copied", lambda self: contextlib.nullcontext([]))
    assert code("Repair it.", "--test", "pytest") == 4
    assert "+++ b/calc.py" in capsys.readouterr().out
    coder([answer(RIGHT)])
    assert code("Repair it.", "--test", "pytest", "--yes") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "tgr-local: the edit is not accepted, as it could not be undone: /home/x: No space left on "
        "device; make room or that folder writable, or set XDG_STATE_HOME to another folder"
    )
    assert (project / "calc.py").read_text() == CALC


# ---- sessions ----


@pytest.fixture
def session(project: Path, coder: Any) -> CodeSession:
    """A session whose model has three rounds: half right, right, and no edit."""
    model = coder([answer(HALF)], [answer(RIGHT)], ["no edit"])
    options = CodeConfig(test="pytest", candidates=1, rounds=1, constrained=False)
    return CodeSession(model, {}, methods.get("base"), options, Workplace(project, options))


def lines(session: CodeSession, text: str) -> list[str]:
    name, _, argument = text.partition(" ")
    return list(COMMANDS[name].run(session, argument))


def test_a_piped_session(session: CodeSession, project: Path, monkeypatch, capsys):
    typed = "/add calc.py\nfix add\n/again\n/accept\n/bad\n/undo\n/bye\nnot read\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    assert repl.run(session, ChatConfig()) == 1  # one command was bad
    out, err = capsys.readouterr()
    assert out.count("--- a/calc.py") == 2 and "may be changed: calc.py" in out
    assert "unknown command /bad; did you mean /add?" in err
    assert (project / "calc.py").read_text() == CALC


def test_commands_of_a_session(session: CodeSession, project: Path):
    session.carry_out("fix it")
    assert lines(session, "/table")[1].startswith(">  1  1 of 2 pass")
    assert any("return a + b" in line for line in lines(session, "/show 1"))
    lines(session, "/accept 1")
    assert (project / "calc.py").read_text() == HALF
    assert lines(session, "/table")[1].startswith(">  1  1 of 2 pass")
    with pytest.raises(ValueError, match="candidate 1 was accepted; /undo takes it back first"):
        lines(session, "/accept")
    lines(session, "/undo")
    lines(session, "/accept")
    assert (project / "calc.py").read_text() == HALF
    assert lines(session, "/test off") == ["tests: none; edits are parsed and imported"]
    with pytest.raises(ValueError, match="/test COMMAND names them"):
        lines(session, "/run")
    assert lines(session, "/test make check") == ["tests: make check"]
    assert lines(session, "/run")[-1].startswith("make check: 0 of 2 pass in")
    assert lines(session, "/set rounds 5")[0].split() == ["rounds", "5"]
    assert lines(session, "/set temperature=0.9")[0].split() == ["temperature", "0.9"]
    assert session.code.rounds == 5 and session.config.temperature == 0.9
    with pytest.raises(ValueError, match="did you mean rounds"):
        lines(session, "/set round 2")
    lines(session, "/undo")
    assert (project / "calc.py").read_text() == CALC
    assert lines(session, "/method best-of-n") == ["method best-of-n"]
    with pytest.raises(ValueError, match="unknown method"):
        lines(session, "/method magic")


def test_files_are_added_and_dropped(session: CodeSession):
    assert lines(session, "/files")[0].startswith("the files that the tests")
    assert lines(session, "/add calc.py 'with space.py'") == [
        "may be changed: calc.py, with space.py (new)"
    ]
    with pytest.raises(ValueError, match=r"other\.py is not among the named files"):
        lines(session, "/drop other.py")
    assert lines(session, "/drop calc.py") == ["may be changed: with space.py (new)"]
    assert lines(session, "/drop")[0].startswith("the files that the tests")
    with pytest.raises(ValueError, match="name a file: /add FILE"):
        lines(session, "/add")


def test_help_names_every_command_and_what_is_promised(session: CodeSession):
    text = "\n".join(lines(session, "/help"))
    assert all(name in text for name in COMMANDS)
    assert {"/add", "/drop", "/test", "/diff", "/accept", "/undo", "/run", "/help"} <= set(COMMANDS)


def test_a_second_task_has_other_seeds(session: CodeSession):
    first = session.carry_out("one").rounds[0][0].seed
    assert session.carry_out("one").rounds[0][0].seed != first


def test_a_task_sees_the_files_of_its_own_moment(session: CodeSession, project: Path):
    assert session.workplace.describe().endswith("1 file")
    (project / "later.py").write_text("def later():\n    pass\n")
    shown = session.carry_out("one").context.shown
    assert {one.path for one in shown} == {"calc.py", "later.py"}


def test_what_was_found_before_a_task_is_stopped_can_be_accepted(
    session: CodeSession, coder: Any, project: Path
):
    class Stops(Followed):
        def adopts(self, candidate: Candidate) -> None:
            cancel.cancel()

    cancel = Cancel()
    session.code = dataclasses.replace(session.code, rounds=2)
    session.engine = coder([answer(HALF), answer(WRONG)], [WAIT])
    with pytest.raises(CancelledError):
        session.carry_out("Repair it.", cancel, Stops())
    assert (project / "calc.py").read_text() == CALC
    session.accept()
    assert (project / "calc.py").read_text() == HALF


# ---- on a terminal ----


@pytest.fixture
def screen(tmp_path, project: Path) -> Iterator[Callable[..., Screen]]:
    """`screen(rounds, "task")`: a terminal with the command in it."""
    opened: list[Screen] = []

    def open_one(rounds: list[list[str]], *arguments: str) -> Screen:
        before = f"import os; os.chdir({str(project)!r}); {installed(*rounds)}"
        options = ["--model", "coder.gguf", "--no-constrained", "-k", "2", "--test", "pytest"]
        opened.append(Screen(tmp_path, ["code", *arguments, *options], before))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_session_on_a_terminal(screen: Callable[..., Screen], project: Path):
    shown = screen([[answer(WRONG), WAIT], [answer(HALF)], [answer(RIGHT), answer(WRONG)]])
    shown.until("\n>>>")
    shown.type("repair it")
    shown.press("Enter")
    shown.until("2  waiting")
    shown.press("C-c")
    shown.until("stopped; the folder is unchanged\n>>>")
    shown.type("/again")
    shown.press("Enter")
    shown.until("accept candidate 3? yes, no, or another's number:")
    assert "-    return a - b" in shown.text() and "\x1b[31m-    return" in shown.text(styled=True)
    shown.type("y")
    shown.press("Enter")
    shown.until(lambda text: text.endswith("\n>>>"))
    assert (project / "calc.py").read_text() == RIGHT
    shown.type("/undo")
    shown.press("Enter")
    shown.until(lambda text: text.count("\n>>>") == 4 and text.endswith(">>>"))
    assert (project / "calc.py").read_text() == CALC
    shown.press("C-d")
    shown.until("left with 0")
