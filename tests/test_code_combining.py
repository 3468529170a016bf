"""The edits of several candidates in one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from fake_coder import CALC, HALF, RIGHT, Climber, Coder, Followed, Solve, answer, make_verdict

from tgr_local.code.edits import Change
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import failing, furthest, sideways
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.writing.combining import combine, merge_edits
from tgr_local.engine import Cancel

OTHER = CALC.replace("a + b", "a - b")
"""Only `sub` is mended."""


def change(after: str, before: str = "1\n2\n3\n4\n", path: str = "a.py") -> tuple[Change, ...]:
    return (Change(path, before, after),)


# ---- two edits ----


def test_edits_of_other_lines_are_one_edit():
    for one, other, together in [
        ("one\n2\n3\n4\n", "1\n2\n3\nfour\n", "one\n2\n3\nfour\n"),
        ("one\n2\n3\n4\n", "1\ntwo\n3\n4\n", "one\ntwo\n3\n4\n"),
        ("0\n1\n2\n3\n4\n", "1\n2\n4\n", "0\n1\n2\n4\n"),
        ("1\n2\nnew\n3\n4\n", "1\n2\nthree\n4\n", "1\n2\nnew\nthree\n4\n"),
        ("1\n2\n3\nnew\n4\n", "1\n2\nthree\n4\n", "1\n2\nthree\nnew\n4\n"),
        ("1\ntwo\n3\n4\n", "1\n2\nthree\n4\n", "1\ntwo\nthree\n4\n"),
    ]:
        assert merge_edits((), change(one), change(other)) == change(together)
        assert merge_edits((), change(other), change(one)) == change(together)


def test_edits_of_other_files_are_one_edit():
    one, other = change("one\n"), change("two\n", path="b.py")
    assert merge_edits((), one, other) == one + other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("one\n2\n3\n4\n", "eins\n2\n3\n4\n"),  # the same line
        ("1\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n"),  # text at the same place
        ("1\n4\n", "1\n2\nthree\n4\n"),  # a line that the other removes
        ("1\n2\nnew\n3\n4\n", "1\n2\nneu\n3\n4\n"),  # lines between the same two
    ],
)
def test_edits_of_the_same_lines_are_not(one: str, other: str):
    assert merge_edits((), change(one), change(other)) is None
    assert merge_edits((), change(other), change(one)) is None


def test_an_edit_that_both_make_is_made_once():
    one, other = change("one\n2\n3\n4\n"), change("one\n2\n3\n4\n5\n")
    assert merge_edits((), one, other) == merge_edits((), other, one) == other


def test_edits_of_a_later_round_are_compared_with_the_files_that_it_began_with():
    base = change("one\n2\n3\n4\n")
    first, second = change("one\ntwo\n3\n4\n"), change("one\n2\n3\nfour\n")
    assert merge_edits(base, first, second) == change("one\ntwo\n3\nfour\n")
    back = change("1\n2\n3\n4\n")  # restores the file
    expected = change("1\n2\n3\nfour\n")
    assert merge_edits(base, (), second) == merge_edits(base, back, second) == expected
    assert merge_edits(base, (), ()) == ()


# ---- which ones ----


def verdict(*failures: tuple[str, int], passed: int = 1) -> Verdict:
    made = make_verdict(True, passed, len(failures), 0, "")
    return Verdict(**{**vars(made), "failures": tuple(Failure(a, reached=b) for a, b in failures)})


def candidate(number: int, text: str, said: Verdict) -> Candidate:
    return Candidate(number, number, "done", changes=change(text), parses=True, verdict=said)


def test_more_tests_or_the_same_ones_further():
    before = verdict(("t", 5), ("u", 9))
    assert verdict(("u", 9), passed=2).is_beyond(before)
    assert verdict(("t", 6), ("u", 9)).is_beyond(before)
    assert not before.is_beyond(before)
    assert not verdict(("t", 6), ("u", 8)).is_beyond(before)  # one less far
    assert not verdict(("t", 6), ("v", 90)).is_beyond(before)  # another one fails
    assert not verdict(("t", 4), ("u", 9)).is_beyond(before)
    unknown = verdict(("t", 0), ("u", 9))  # 0: where it stopped is not known
    assert not before.is_beyond(unknown) and not unknown.is_beyond(before)
    assert verdict(("t", 0), ("u", 10)).is_beyond(before)
    hangs = Verdict(**{**vars(before), "ran": False, "passed": 0, "failures": ()})
    assert not Verdict(**{**vars(hangs), "passed": 9}).is_beyond(before)
    assert before.is_beyond(hangs) and not hangs.is_beyond(before) and not hangs.is_beyond(hangs)


def test_only_what_adds_something_is_tried():
    before = verdict(("t", 5), ("u", 9), ("v", 3))
    mends_t = verdict(("u", 9), ("v", 3), passed=2)
    mends_u = verdict(("t", 5), ("v", 3), passed=2)
    breaks = verdict(("t", 5), ("u", 9), ("v", 3), ("w", 1), passed=0)
    candidates = [
        candidate(1, "one\n2\n3\n4\n", mends_t),
        candidate(2, "1\ntwo\n3\n4\n", mends_t),  # mends what the first one mends
        candidate(3, "1\n2\nthree\n4\n", breaks),
        candidate(4, "eins\n2\n3\n4\n", mends_u),  # the same line as the first one
        candidate(5, "1\n2\n3\nfour\n", mends_u),
        Candidate(6, 6, "done", problem="it changes nothing"),
    ]
    judged: list[str] = []

    def judge(one: Candidate) -> Verdict:
        assert one.state == "testing" and one.parts == (1, 5)
        judged.append(one.changes[0].after)
        return verdict(("v", 3), passed=3)

    made = list(combine(candidates, (), before, judge, 7))
    assert judged == ["one\n2\n3\nfour\n"]
    assert [(one.number, one.parts, one.n_tokens) for one in made] == [(7, (1, 5), 0)]


def test_what_shows_nothing_alone_may_show_something_with_another():
    """A test that fails at its first line says nothing of the second."""
    before = verdict(("t", 1))
    candidates = [
        candidate(1, "1\n2\n3\nfour\n", before),
        candidate(2, "1\n2\nthree\n4\n", before),
        candidate(3, "one\n2\n3\n4\n", verdict(("t", 2))),
    ]
    judged: list[str] = []

    def judge(one: Candidate) -> Verdict:
        judged.append(one.changes[0].after.replace("\n", " "))
        if "three" not in judged[-1]:
            return verdict(("t", 2))
        return verdict(("t", 3)) if "four" not in judged[-1] else verdict(passed=2)

    made = list(combine(candidates, (), before, judge, 4))
    assert judged == ["one 2 3 four ", "one 2 three 4 ", "one 2 three four "]
    assert [one.parts for one in made] == [(2, 3), (1, 2, 3)] and made[-1].passes


def test_tests_are_run_for_a_minute_at_most(monkeypatch):
    before, slow = verdict(("t", 1)), verdict(("t", 2))
    now = itertools.count(0.0, 31.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    some = [candidate(i, f"1\n2\n3\n4\n{i}\n", before) for i in range(2, 9)]
    candidates = [candidate(1, "one\n2\n3\n4\n", slow), *some]
    judged: list[object] = []

    def judge(one: Candidate) -> Verdict:
        judged.append(one)
        return slow

    assert not list(combine(candidates, (), before, judge, 9)) and len(judged) == 1


def test_equal_edits_are_tried_once():
    before = verdict(("t", 1))
    same = [candidate(i, "1\n2\n3\nfour\n", before) for i in range(2, 6)]
    candidates = [candidate(1, "one\n2\n3\n4\n", verdict(("t", 2))), *same]
    judged: list[object] = []

    def judge(one: Candidate) -> Verdict:
        judged.append(one)
        return before

    assert not list(combine(candidates, (), before, judge, 9)) and len(judged) == 1


def test_nothing_is_combined_where_one_passes():
    """A command may have more than tests, so that one that passes more may not pass."""
    before = verdict(("t", 5), ("u", 9))
    candidates = [
        candidate(1, "one\n2\n3\n4\n", verdict(("lint", 1), passed=9)),
        candidate(2, "1\n2\n3\nfour\n", verdict(passed=3)),
    ]
    assert not list(combine(candidates, (), before, lambda _: before, 3))


def test_imports_at_one_place_stand_together():
    text = "import os\n\n\ndef f():\n    1\n\n\ndef g():\n    2\n"
    one = text.replace("import os\n", "import os\nimport re\n").replace("1", "re")
    other = text.replace("import os\n", "import os\nimport json\n").replace("2", "json")
    (made,) = merge_edits((), change(one, text), change(other, text)) or ()
    expected = text.replace("1", "re").replace("2", "json")
    assert made.after == expected.replace("import os", "import os\nimport json\nimport re")
    both_need = other.replace("import json\n", "import json\nimport re\n")
    (made,) = merge_edits((), change(one, text), change(both_need, text)) or ()
    assert made.after.count("import re") == 1 and "import json\n" in made.after


# ---- in a task ----


def test_a_round_ends_with_the_edits_of_two(solved: Solve):
    listener = Followed()
    coder = Coder([answer(HALF), answer(OTHER)])
    outcome = solved(coder, rounds=2, listener=listener)
    *written, made = outcome.rounds[0]
    assert [one.passes for one in written] == [False, False]
    assert made.passes and made.parts == (1, 2)
    assert made.changes == (Change("calc.py", CALC, RIGHT),)
    assert len(outcome.rounds) == 1 and outcome.best == made
    assert (made.number, made.forward_tokens) == (3, 0)
    assert listener.states[3] == ["testing", "done", "done"]


def test_tests_that_pass_already_combine_nothing(solved: Solve):
    passed = make_verdict(True, 2, 0, 0, "")
    coder = Coder([answer(HALF), answer(OTHER)])
    outcome = solved(coder, by=lambda changes, cancel: passed)
    assert [one.number for one in outcome.rounds[0]] == [1, 2]


# ---- what the next candidates begin with ----


def judged(number: int, said: Verdict | None) -> Candidate:
    return Candidate(number, number, "done", changes=change(f"{number}\n"), verdict=said)


def test_the_next_begin_with_what_gets_further():
    before = verdict(("t", 5), ("u", 8))
    worse, later = judged(1, verdict(("t", 4), ("u", 9))), judged(2, verdict(("t", 6), ("u", 8)))
    more = judged(3, verdict(("v", 1), passed=2))
    assert furthest([worse, later], before) == later
    assert furthest([worse, later, more], before) == more
    assert furthest([worse, judged(4, None)], before) is None and furthest([more], None) is None


def test_or_with_what_mends_another_test():
    before = verdict(("t", 5), ("u", 8))
    same, other = judged(1, verdict(("t", 6), ("u", 7))), judged(2, verdict(("t", 5), ("v", 1)))
    later, both_ = judged(3, verdict(("t", 7), ("v", 1))), judged(4, verdict(("v", 1), ("w", 1)))
    less = judged(5, verdict(("w", 9), passed=0))
    assert sideways([same, less, judged(6, None)], before, ()) is None
    assert sideways([same, other, later, less], before, ()) == later
    assert sideways([other, later, both_], before, ()) == both_
    assert sideways([other, later, both_], before, {failing(both_.verdict)}) == later
    assert sideways([other], None, ()) is None
    assert sideways([other], before, ()) == other
    unknown = verdict(passed=1)  # the output names no test
    assert sideways([other], unknown, ()) is None


def test_a_test_that_is_gone_is_not_mended():
    """As where the edit breaks the import of what is tested."""
    before = verdict(("t", 5), ("u", 8))
    gone = {
        "fewer tests": verdict(("v", 1)),
        "no names": Verdict(**{**vars(before), "failures": ()}),
        "an error": Verdict(**{**vars(verdict(("t", 5), ("v", 1))), "failed": 1, "errors": 1}),
        "not all": Verdict(**{**vars(verdict(("t", 5), ("v", 1))), "failed": 3}),
        "none ran": Verdict(**{**vars(verdict(("t", 5), ("v", 1))), "ran": False}),
    }
    stops = Verdict(**{**vars(verdict(("t.c", 5))), "failed": 0, "errors": 1, "framework": "stop"})
    broken = Verdict(**{**vars(stops), "failures": (Failure("a.c: x"),), "framework": "errors"})
    assert sideways([judged(1, broken)], stops, ()) is None
    for said in gone.values():
        assert sideways([judged(1, said)], before, ()) is None
    assert sideways([judged(1, verdict(("t", 0), ("v", 1)))], before, ()) is not None
    far, near = judged(1, verdict(("t", 900), ("v", 1))), judged(2, verdict(("v", 1), ("w", 1)))
    assert sideways([far, near], before, ()) == near
    lost, kept = judged(3, verdict(("t", 0), ("v", 1))), judged(4, verdict(("t", 4), ("v", 1)))
    assert sideways([lost, kept], before, ()) == lost  # a line that is not known is no step back


def by_name(changes: Sequence[Change], cancel: Cancel) -> Verdict:
    """Of three tests the files as they are pass one; mending `sub` breaks it, until `add` is
    mended as well."""
    text = changes[0].after if changes else CALC
    mended, broken = "return a - b\n" in text.split("def sub")[1], "a + b\n\n\n" not in text
    if mended and not broken:
        return make_verdict(True, 3, 0, 0, "")
    names = ("keeps", "adds") if mended else ("subtracts", "adds")
    return verdict(*((name, 5) for name in names))


def test_where_nothing_gets_further_the_next_begin_with_what_mends_another_test(solved: Solve):
    head = CALC.rstrip().removesuffix(" + b")
    first, free = [" b\n```\n"], [answer(CALC)]
    coder = Coder(first, free, [" b\n\n\ndef sub(a, b):\n    return a - b\n"])
    coder.departures = [f"{head} -", f"{head} *"]
    start = "def add(a, b):\n    return a +"
    climber = Climber(coder, {1: start})
    outcome = solved(coder, by=by_name, listener=climber, candidates=4)
    assert "adopts 1" in climber.heard and len(outcome.rounds) == 1
    assert outcome.best is not None and outcome.best.passes
    assert outcome.best.changes == (Change("calc.py", CALC, RIGHT),)


def test_what_mends_another_test_and_leads_nowhere_is_left_in_the_next_round(solved: Solve):
    head = CALC.rstrip().removesuffix(" + b")
    first, free = [" b\n```\n"], [answer(CALC)]
    coder = Coder(first, free, [" 0\n```\n"], free, free)
    coder.departures = [f"{head} -", f"{head} *"]
    climber = Climber(coder, {1: f"{head} - b -"})
    outcome = solved(coder, by=by_name, listener=climber, candidates=4, rounds=2)
    assert climber.heard.count("adopts 1") == 1 and len(outcome.rounds) == 2
    assert coder.begun[2] == [f"```python\n{head} - b -"] * 2
    again = [f"```python\n{CALC}```" in prompt for prompt in coder.prompts[4:] if prompt]
    assert again == sorted(again) and any(again)  # at last the files as they were


def test_files_that_have_no_place_in_a_prompt_any_more_end_a_task(solved: Solve):
    """What was found until then stays."""
    long = HALF.replace("    return", "    # " + "long " * 100 + "\n    return")
    coder = Coder([answer(long)], [answer(RIGHT)])
    listener = Followed()
    outcome = solved(coder, rounds=2, context_tokens=330, listener=listener)
    assert outcome.best is not None and outcome.best.verdict is not None
    assert outcome.best.verdict.passed == 1 and outcome.ended
    assert not any(heard.startswith("adopts") for heard in listener.heard)
