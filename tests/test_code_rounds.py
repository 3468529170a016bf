"""Candidates, their ranking, rounds and the table, on doubles of the model and of the tests."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from code_folders import needs_tree_sitter
from fake_coder import CALC, HALF, RIGHT, WAIT, Coder, Followed, Solve, answer, judge, make_verdict
from surroundings import HANG

from tgr_local.code import table
from tgr_local.code.edits import Change, FileText, edit_grammar
from tgr_local.code.judging import ranking
from tgr_local.code.judging.candidate import Candidate, syntax_error
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.report import Report
from tgr_local.code.writing.candidates import merge_changes
from tgr_local.engine import Cancel
from tgr_local.system.errors import CancelledError, CapacityError

WRONG = CALC.replace("a - b", "a * b")
BROKEN = CALC.replace("(a, b)", "(", 1)


def candidate(
    number: int, text: str = HALF, verdict: Verdict | None = None, **more: Any
) -> Candidate:
    changes = (Change("calc.py", CALC, text),) if text != CALC else ()
    parses = bool(changes) and not syntax_error(changes)
    return Candidate(
        number, number, "done", changes=changes, parses=parses, verdict=verdict, **more
    )


def numbers(candidates: Sequence[Candidate]) -> list[int]:
    return [one.number for one in ranking.ranked(candidates)]


# ---- ranking ----


def test_the_ranking_is_passes_all_passes_more_runs_parses_applies():
    order = [
        candidate(6, RIGHT, make_verdict(True, 2, 0, 0, "")),
        candidate(5, HALF, make_verdict(True, 5, 1, 0, "x")),
        candidate(4, HALF, make_verdict(True, 1, 1, 0, "x")),
        candidate(3, WRONG, make_verdict(False, 0, 0, 1, "x")),
        candidate(2, BROKEN, make_verdict(False, 0, 0, 1, "x")),
        candidate(1, CALC),
    ]
    for rotated in range(len(order)):
        assert numbers(order[rotated:] + order[:rotated]) == [6, 5, 4, 3, 2, 1]


def test_of_equal_edits_one_that_lays_out_the_file_anew_comes_after_others():
    old = "f(x) {\n    let y = 'a'\n    y += x\n    y += 1\n    log(y)\n    return x > y\n}\n"
    new = 'f(x) {\n  let y = "a";\n  y += x;\n  y += 1;\n  log(y);\n  return x >= y;\n}\n'
    said = make_verdict(True, 1, 1, 0, "x")

    def edit(number: int, after: str, logprob: float) -> Candidate:
        changes = (Change("a.js", old, after),)
        return candidate(number, verdict=said, logprob=logprob).but(changes=changes)

    plain, again = old.replace("x > y", "x >= y"), old.replace("x > y", "x < y")
    assert numbers([edit(1, new, -0.1), edit(2, plain, -1.0)]) == [2, 1]
    assert numbers([edit(1, again, -0.1), edit(2, plain, -1.0)]) == [1, 2]


def test_a_test_that_does_not_end_is_below_one_that_fails():
    hangs = dataclasses.replace(make_verdict(False, 0, 0, 0, ""), ended="timed out")
    assert (
        numbers([candidate(1, HALF, hangs), candidate(2, HALF, make_verdict(True, 0, 2, 0, ""))])[0]
        == 2
    )


def test_equal_candidates_are_ranked_by_how_many_behave_alike():
    def fails(number: int, output: str, logprob: float = -1.0) -> Candidate:
        return candidate(number, WRONG, make_verdict(True, 1, 1, 0, output), logprob=logprob)

    alone = fails(1, "assert 7 == 3", logprob=-0.1)
    pair = [fails(2, "assert 2 == 3 in 0.01s\n"), fails(3, "assert 2 == 3 in 0.52s\n")]
    assert numbers([alone, *pair]) == [2, 3, 1]


def test_then_by_how_many_make_the_same_change_and_then_by_likelihood():
    passes = make_verdict(True, 2, 0, 0, "")
    commented = RIGHT.replace("a + b", "a + b  # sum", 1)
    other = RIGHT.replace("a + b", "b + a", 1)
    same = [candidate(1, other, passes, logprob=-0.1), candidate(2, RIGHT, passes, logprob=-2.0),
            candidate(3, commented, passes, logprob=-1.0)]  # fmt: skip
    assert numbers(same) == [3, 2, 1]


def test_a_change_of_layout_alone_means_the_same():
    def meaning(path: str, text: str) -> object:
        return ranking.meaning((Change(path, "", text),))

    assert meaning("a.py", "f( 1,2 )") == meaning("a.py", "f(1, 2)  # x")
    assert meaning("a.py", "f(1)") != meaning("a.py", "f(2)")
    assert meaning("a.js", "f(1)\n\n") == meaning("a.js", "f(1) ")
    assert meaning("a.py", "f(") == meaning("a.py", "f( ")


# ---- effect ----


@needs_tree_sitter
@pytest.mark.parametrize(
    ("path", "old", "same"),
    [
        ("a.js", "f(1) // x\n", "// y\nf(\n  1);\n"),
        ("a.js", "f('a');\n", 'f("a")\n'),
        ("a.ts", "let a: number = 1\n", "let a: number = 1; // one\n"),
        ("a.go", "package m\n\nfunc f() int { return 1 }\n",
         "package m\n\n// f is\nfunc f() int {\n\treturn 1\n}\n"),
        ("a.c", "int a; /* x */\n", "int a;\n"),
        ("a.py", "f( 1 )\n", "f(1)  # x\n"),
    ],
)  # fmt: skip
def test_comments_and_layout_have_no_effect(path: str, old: str, same: str):
    assert ranking.effect((Change(path, old, same),)) == ()


@needs_tree_sitter
@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("a.js", "return f(1)\n", "return\nf(1)\n"),
        ("a.js", "f('a b')\n", "f('a  b')\n"),
        ("a.js", "f(/[/*]/); g(1)\n", "f(/[/*]/); g(2)\n"),
        ("a.js", "f(`// a`)\n", "f(`// b`)\n"),
        ("a.js", "f(1\n", "f(1 // x\n"),  # a syntax error: its text counts
        ("a.ts", "f(1)\n", "// @ts-ignore\nf(1)\n"),
        ("a.c", "f('a');\n", 'f("a");\n'),
        ("a.py", "f(1)\n", "f(1)  # type: ignore\n"),
        ("a.yaml", "a: 1\n", "a:  1\n"),
        ("Makefile", "a:\n\tb\n", "a:\n    b\n"),
    ],
)
def test_what_may_have_an_effect_is_known(path: str, old: str, new: str):
    assert ranking.effect((Change(path, old, new),))


# ---- candidates ----


@pytest.mark.parametrize(("framework", "n_tests"), [("pytest", 3), ("", 5)])
def test_edits_of_the_same_effect_are_tested_once(solved: Solve, framework: str, n_tests: int):
    """Where the command runs tests; a linter reads comments and layout too."""
    asked: list[Any] = []

    def counts(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        asked.append(changes)
        return dataclasses.replace(judge(changes, cancel), framework=framework)

    texts = [WRONG, HALF, CALC.replace("a - b", "a-b  # x"), WRONG.replace("a * b", "(a * b)  # 1")]
    outcome = solved(Coder(list(map(answer, texts))), by=counts, candidates=4)
    assert len(asked) == n_tests
    problems = [one.problem for one in outcome.rounds[0]]
    assert problems[2] == ("it changes comments or layout alone" if framework else "")
    by_number = outcome.rounds[0]
    assert by_number[3].verdict is not None and by_number[3].verdict.passed == 0


def test_comments_alone_are_an_edit_where_no_test_fails(solved: Solve):
    text = CALC.replace("a - b", "a - b  # the difference")
    outcome = solved(Coder([answer(text)]), "Add a comment.", tests="", candidates=1)
    assert outcome.best is not None and outcome.best.changes[0].after == text


def test_the_docstring_of_a_module_is_kept_unless_the_task_is_about_it(solved: Solve):
    text, new = f'"""Sums."""\n\nX = 1\n\n\n{CALC}', f"X = 1\n\n\n{RIGHT}"
    read = {"calc.py": FileText("calc.py", text)}.get
    for task, after in (("Repair it.", text.replace(CALC, RIGHT)), ("Drop the docstring.", new)):
        outcome = solved(Coder([answer(new)]), task, read=read, candidates=1)
        assert outcome.best is not None and outcome.best.changes[0].after == after


def test_each_candidate_has_its_seed_its_edit_and_its_verdict(solved: Solve):
    coder = Coder([answer(WRONG), answer(HALF), "no edit at all", answer(CALC), answer(BROKEN)])
    outcome = solved(coder, candidates=5)
    (batch,) = outcome.rounds
    assert [one.seed for one in batch] == [42, 43, 44, 45, 46]
    assert [one.applies for one in batch] == [True, True, False, False, False]
    assert batch[0].changes == (Change("calc.py", CALC, WRONG),)
    assert batch[2].problem == "the answer has no code"
    assert batch[3].problem == "it changes nothing"
    assert batch[4].problem == "the answer has a syntax error, in line 1: invalid syntax"
    assert batch[4].verdict is None and not batch[4].parses
    assert [one.number for one in outcome.ranked][:2] == [2, 1]
    assert all(one.state == "done" for one in batch)
    assert batch[0].n_tokens == len(answer(WRONG)) and math.isfinite(batch[0].logprob)
    assert outcome.forward_tokens == sum(one.forward_tokens for one in batch) > 0


def test_one_that_passes_stops_the_others_while_they_are_written(solved: Solve):
    listener = Followed()
    coder = Coder([WAIT, answer(RIGHT), WAIT])
    outcome = solved(coder, candidates=3, rounds=3, listener=listener)
    assert len(outcome.rounds) == 1
    assert [one.state for one in outcome.rounds[0]] == ["stopped", "done", "stopped"]
    assert outcome.best is not None and outcome.best.number == 2 and outcome.best.passes
    assert all(one.forward_tokens > 0 for one in outcome.rounds[0])  # they cost something
    assert list(dict.fromkeys(listener.states[2])) == ["waiting", "writing", "testing", "done"]
    assert listener.heard == ["before 0", "context file", "round 1: [1, 2, 3]", "best 2"]


def test_without_tests_all_are_written_and_agreement_decides(solved: Solve):
    def parses(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        assert changes  # the folder as it is needs no check
        return make_verdict(True, 0, 0, 0, "")

    coder = Coder([answer(WRONG), answer(RIGHT), answer(RIGHT)])
    outcome = solved(coder, tests="", by=parses, candidates=3)
    assert [one.state for one in outcome.rounds[0]] == ["done"] * 3
    assert outcome.best is not None and outcome.best.number == 2
    assert outcome.baseline is None and "The tests fail" not in coder.prompts[0]


def test_tests_that_pass_already_do_not_end_the_round(solved: Solve):
    def passes(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        return make_verdict(True, 2, 0, 0, "2 passed")

    coder = Coder([answer(WRONG), answer(RIGHT), answer(RIGHT)])
    outcome = solved(coder, by=passes, candidates=3)
    assert outcome.best is not None and outcome.best.number == 2
    assert "The tests fail" not in coder.prompts[0]


def test_a_cancel_ends_the_candidates_and_their_tests(solved: Solve):
    cancel, testing = Cancel(), threading.Event()

    def hangs(changes: Sequence[Change], stop: Cancel) -> Verdict:
        if not changes:
            return judge(changes, stop)
        ended = threading.Event()
        with stop.watched(ended.set):
            testing.set()
            assert ended.wait(HANG)
        raise CancelledError("cancelled")

    def interrupt() -> None:
        testing.wait(HANG)
        cancel.cancel()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(CancelledError):
        solved(Coder([answer(HALF), WAIT]), by=hangs, cancel=cancel)
    thread.join()


def test_equal_edits_are_tested_once(solved: Solve):
    asked: list[int] = []

    def counts(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        asked.append(len(changes))
        return judge(changes, cancel)

    answers = [answer(WRONG), answer(WRONG), answer(WRONG), answer(HALF + "#\n")]
    coder = Coder(answers, [answer(WRONG)])
    outcome = solved(coder, by=counts, candidates=4, rounds=1)
    assert sorted(asked) == [0, 1, 1]
    assert [one.verdict.passed for one in outcome.rounds[0] if one.verdict] == [0, 0, 0, 1]


def test_a_syntax_error_goes_into_the_next_round(solved: Solve):
    coder = Coder([answer(BROKEN)], [answer(RIGHT)])
    solved(coder, rounds=2, candidates=1)
    why = "the answer has a syntax error, in line 1: invalid syntax"
    assert f"cannot be used: {why}.\n\nThe files are again" in coder.prompts[1]


def test_a_model_that_has_learnt_a_form_is_told_of_edits_alone(solved: Solve):
    coder = Coder([answer(CALC)], [answer(RIGHT)])
    coder.metadata["tgr.edit_format"] = "file"
    solved(coder, rounds=2, candidates=1)
    assert coder.prompts[1] == coder.prompts[0]


@pytest.mark.parametrize(("form", "constrained"), [("file", True), ("file", False), ("", True)])
def test_answers_of_a_model_that_has_learnt_a_form_follow_its_grammar(
    solved: Solve, form: str, constrained: bool
):
    coder = Coder([answer(RIGHT)])
    coder.metadata["tgr.edit_format"] = form
    solved(coder, candidates=1, constrained=constrained)
    grammar = edit_grammar([FileText("calc.py", CALC)], "file") if form and constrained else ""
    assert coder.configs[0].grammar == grammar
    assert coder.verbatim == [bool(grammar)]


def test_a_file_that_had_a_syntax_error_before_may_have_one(monkeypatch):
    assert syntax_error((Change("a.py", "x = 1\n", "x =\n"),)) == "a.py:1: invalid syntax"
    assert not syntax_error((Change("a.py", "x = ?\n", "x =\n"), Change("a.js", "", "x =")))


def test_a_judge_that_fails_is_a_failure_of_the_task(solved: Solve):
    def broken(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        if changes:
            raise OSError(28, "No space left on device")
        return judge(changes, cancel)

    with pytest.raises(OSError, match="No space"):
        solved(Coder([answer(HALF), WAIT]), by=broken)


# ---- rounds ----


def test_the_failing_output_of_the_best_goes_into_the_next_round(solved: Solve):
    def says(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        found = judge(changes, cancel)
        return dataclasses.replace(found, output=f"tried {len(changes)}: {found.output}")

    coder = Coder([answer(BROKEN), answer(WRONG)], [answer(WRONG), answer(RIGHT)])
    outcome = solved(coder, by=says, rounds=3)
    first, second = coder.prompts
    assert second.startswith(first)  # so the cache has it
    rest = second[len(first) :]
    assert answer(WRONG).rstrip() in rest and "tried 1: calc.py:1: add is wrong" in rest
    assert len(outcome.rounds) == 2 and outcome.best is not None and outcome.best.passes
    assert [one.number for one in outcome.rounds[1]] == [3, 4]
    assert {one.state for some in outcome.rounds for one in some} <= {"done", "stopped"}
    assert [config.seed for config in coder.configs] == [42, 44]


def test_the_next_round_begins_with_an_edit_that_passes_more(solved: Solve):
    rest = RIGHT.replace("    return a + b", "    return a+b")
    coder = Coder([answer(WRONG), answer(HALF)], [answer(CALC), answer(HALF), answer(rest)])
    listener = Followed()
    outcome = solved(coder, rounds=3, candidates=3, listener=listener)
    assert f"```python\n{HALF}```" in coder.prompts[1] and "[assistant]" not in coder.prompts[1]
    assert "sub is wrong" in coder.prompts[1] and "add is wrong" not in coder.prompts[1]
    assert listener.heard[3:6] == ["best 2", "adopts 2", "context file"]
    back, same, whole = outcome.rounds[1]
    assert (back.problem, same.problem) == ("it restores the files", "it changes nothing")
    assert whole.changes == (Change("calc.py", CALC, rest),)  # of the file as it is
    assert outcome.best == whole and whole.passes


def test_what_the_person_changes_meanwhile_is_not_in_the_next_round(solved: Solve):
    """Edits are for the files as the copies have them."""
    listener = Followed()

    def read(path: str) -> FileText:
        late = any(heard.startswith("round 1") for heard in listener.heard)
        return FileText(path, "changed by the person" if late else f"# {path}\n{CALC}")

    paths = ("calc.py", "other.py")
    coder = Coder([answer(HALF), answer(WRONG)], [answer(RIGHT)])
    solved(coder, rounds=2, read=read, paths=paths, listener=listener)
    assert "adopts 1" in listener.heard
    assert "# other.py" in coder.prompts[1] and "changed by" not in coder.prompts[1]


def test_two_changes_one_after_the_other():
    first = (Change("a", "1", "2"), Change("b", "1", "2"))
    then = (Change("c", "1", "2"), Change("b", "2", "1"), Change("a", "2", "3"))
    assert merge_changes(first, then) == (Change("a", "1", "3"), Change("c", "1", "2"))
    assert merge_changes((), then) == then and merge_changes(first, ()) == first


def test_rounds_end_after_the_last_one(solved: Solve):
    outcome = solved(Coder(*[[answer(WRONG)]] * 3), rounds=3)
    assert len(outcome.rounds) == 3 and outcome.best is not None and not outcome.best.passes
    assert [one.number for one in outcome.ranked] == [1, 2, 3, 4, 5, 6]


def test_the_budget_bounds_all_rounds_together(solved: Solve):
    probe = Coder([answer(HALF)])
    solved(probe)
    n_query = len(probe.prompts[0].encode())
    coder = Coder(*[[answer(HALF)]] * 9)
    budget = n_query + 1200  # the code as it is is read, too
    outcome = solved(coder, candidates=8, rounds=9, budget=budget)
    assert coder.configs[0].max_forward_tokens >= n_query + coder.configs[0].max_tokens
    n_first, limit = len(outcome.rounds[0]), coder.configs[0].max_tokens
    assert 1 < n_first < 8  # as many as have room for a whole answer each
    assert n_first * limit + n_query <= budget and limit > len(answer(HALF))
    assert outcome.ended.startswith(f"the budget of {budget:,} forward tokens has no room")


def test_a_model_that_thinks_keeps_room_for_a_whole_edit(solved: Solve):
    plain, thinking = Coder([answer(RIGHT)]), Coder([answer(RIGHT)])
    thinking.chat_template = "<think>"
    for coder in (plain, thinking):
        solved(coder)
    assert plain.kept == [0] and thinking.kept[0] > len(answer(RIGHT))


def test_a_budget_below_the_prompt_writes_nothing(solved: Solve):
    outcome = solved(Coder(), budget=100)
    assert not outcome.rounds and outcome.best is None
    assert re.search(r"budget of 100 .* no room .* whose prompt has [\d,]+$", outcome.ended)


def test_an_attempt_for_which_there_is_no_room_is_left_out(solved: Solve):
    long = WRONG + "# " + "x" * 7300 + "\n"
    coder = Coder([answer(long)], [answer(RIGHT)])
    solved(coder, rounds=2, candidates=1)
    assert coder.prompts[1] == coder.prompts[0]
    assert coder.configs[1].seed == coder.configs[0].seed + 1


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(solved: Solve):
    coder = Coder([answer(RIGHT)])
    coder.n_ctx_train = 200
    with pytest.raises(CapacityError, match="lower context_tokens, or name fewer files"):
        solved(coder)


@pytest.mark.parametrize(
    ("n_lines", "text", "asked", "form"),
    [
        (1, "go", "auto", "file"),
        (300, "add is wrong", "auto", "function"),
        (300, "go", "auto", "function"),
        (300, "go", "file", "file"),
        (1, "go", "function", "function"),
    ],
)
def test_the_form_of_the_edits(
    solved: Solve, monkeypatch, n_lines: int, text: str, asked: str, form: str
):
    import fake_coder

    monkeypatch.setattr(fake_coder, "CALC", CALC + "VALUE = 12\n" * n_lines)
    outcome = solved(Coder(["nothing"]), text, tests="", edit_format=asked,
        context_tokens=6000,
    )  # fmt: skip
    assert outcome.form == form


def test_the_model_file_may_advise_a_form(solved: Solve):
    coder = Coder(["nothing"])
    coder.metadata["tgr.edit_format"] = "function"
    assert solved(coder).form == "function"


@pytest.mark.parametrize("form", ["file", "function"])
def test_no_form_of_the_answer_is_asked_for(form: str, solved: Solve):
    """Neither of a model that has learnt one nor of others."""
    coders = Coder(["nothing"]), Coder(["nothing"])
    coders[0].metadata["tgr.edit_format"] = form
    for coder in coders:
        solved(coder, "Repair it.", edit_format=form)
        assert coder.prompts == [
            f"[user]\n`calc.py`:\n```python\n{CALC}```\n\nRepair it.\n\nThe tests fail:\n```\n"
            "calc.py:1: add is wrong\ncalc.py:1: sub is wrong\n```\n"
        ]


# ---- table and diff ----


def test_the_table_shows_each_candidate_best_first():
    best = candidate(2, RIGHT, make_verdict(True, 2, 0, 0, ""), n_tokens=1234, seconds=1.26)
    none = candidate(1, CALC, problem="the answer has no edit\x1b[2J in it")
    stopped = dataclasses.replace(candidate(3, CALC), state="stopped")
    half = candidate(4, HALF, make_verdict(True, 1, 1, 0, "x"))
    assert table.table([best, half, none, stopped]) == [
        "   #  tests        lines  tokens  seconds",
        ">  2  2 of 2 pass  +2 -2   1,234      1.3",
        "   4  1 of 2 pass  +1 -1       0      0.0",
        "   1  no edit          -       0      0.0  the answer has no edit�[2J in it",
        "   3  stopped          -       0      0.0",
    ]


def test_an_output_that_counts_no_tests_is_shown_by_its_end():
    said: list[str] = []
    with Report(said.append, "pytset", is_live=False) as report:
        report.baseline(make_verdict(True, 1, 1, 0, "E  assert 1 == 2"))
        assert len(said) == 1  # the counts say it, and the prompt has the output
        output = "one\ntwo\n\nthree\nsh: 1: pytset: not found\n"
        report.baseline(
            dataclasses.replace(make_verdict(False, 0, 0, 0, output), ended="not found")
        )
    assert [line.strip() for line in said[2:]] == [
        "two", "three", "sh: 1: pytset: not found", "the command may be wrong (Ctrl-C stops)",
    ]  # fmt: skip
    with Report(said.append, "pytset", False, can_stop=False) as report:
        report.baseline(dataclasses.replace(make_verdict(True, 0, 0, 0, ""), ended="no tests"))
    assert said[-1].strip() == "the command may be wrong"


def test_after_a_round_the_best_candidates_are_shown_and_the_others_counted(solved: Solve):
    said: list[str] = []
    with Report(said.append, "pytest", is_live=False) as report:
        solved(Coder(["nothing"] * 19 + [answer(RIGHT)]), listener=report,
            candidates=20,
        )  # fmt: skip
    shown = [line for line in said if "pass  " in line or "no edit" in line]
    assert len(shown) == 16
    assert shown[0].startswith(">  20  2 of 2 pass")
    assert said[-1] == "   … 4 candidates more, none of them better"
