"""The graders: replies in, grades out; their cases are in grader_cases.py."""

from __future__ import annotations

import base64
import os
import pickle
import zlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from grader_cases import (
    BOXES,
    CASES,
    CONTEST,
    EXPRESSIONS,
    JUDGE_SCORES,
    LONG_ANSWERS,
    MATHS,
    METHOD,
    NOT_EXPRESSIONS,
    NUMBERS,
    OLYMPIAD,
    PROGRAMS,
    SEARCHES,
    WRITING,
)
from judge_server import judge_server
from task_files import Load, grade, loader

from tgr_local.lab.eval.task import Grade
from tgr_local.lab.eval.tasks import livecodebench, writingbench
from tgr_local.lab.eval.tasks.code import definitions, program
from tgr_local.lab.eval.tasks.gsm8k import answer, number, shown
from tgr_local.lab.eval.tasks.ifeval import plain_punkt
from tgr_local.lab.eval.tasks.puzzles import evaluate, expression, judge
from tgr_local.system.errors import TgrError

pytestmark = pytest.mark.usefixtures("sandboxed")


@pytest.fixture
def load(tmp_path) -> Load:
    return loader(tmp_path)


@pytest.fixture
def judge_says(monkeypatch) -> Iterator[list[str]]:
    """The answers that a judge behind a local URL will give, one after the other."""
    answers: list[str] = []

    def answer(asked: dict[str, Any]) -> str:
        assert asked["model"] == "a-judge"
        return answers.pop(0)

    with judge_server("a-judge", answer) as url:
        monkeypatch.setenv("TGR_JUDGE_URL", url)
        monkeypatch.delenv("TGR_JUDGE_MODEL", raising=False)
        yield answers


@pytest.mark.parametrize(("gold", "said", "is_right"), MATHS)
def test_answers_are_compared_by_value(load: Load, gold: str, said: str, is_right: bool | None):
    (problem,) = load("math500", [{"problem": "?", "answer": gold}])
    assert grade(problem, f"So \\boxed{{{said}}}.").correct is is_right


def test_a_minus_sign_before_the_box_counts(load: Load):
    (problem,) = load("math500", [{"problem": "?", "answer": "-18"}])
    assert grade(problem, r"$-\boxed{18}$").correct is True
    assert grade(problem, r"$\boxed{18}$").correct is False


def test_equal_answers_have_one_key(load: Load):
    (problem,) = load("math500")
    for same in (
        (r"\boxed{\frac{1}{4}}", r"\boxed{0.25}", r"\boxed{1/4}", "It is $0.250$."),
        (r"\boxed{x+1}", r"\boxed{1 + x}"),
        (r"\boxed{\text{Evelyn}}", r"\boxed{ \text{Evelyn} }"),
        (r"\boxed{\sqrt{8}}", r"\boxed{2\sqrt{2}}"),
        (r"\boxed{2^{10}}", r"\boxed{1024}", r"\boxed{x = 1024}"),
        (r"\boxed{6!}", r"\boxed{720}"),
        (r"\boxed{50\%}", r"\boxed{\frac12}"),
        (r"\boxed{x(x+1)}", r"\boxed{x^2 + x}"),
    ):
        assert len({grade(problem, text).answer for text in same}) == 1, same


@pytest.mark.parametrize("said", LONG_ANSWERS)
def test_a_key_is_not_evaluated_for_ever(load: Load, said: str):
    load("math500")
    from tgr_local.lab.eval.tasks import maths

    assert maths.key(maths.parsed(rf"\boxed{{{said}}}"), said)


def test_an_official_answer_that_cannot_be_read_whole_is_not_graded(load: Load):
    gold = r"\frac{1}{2} \max A + 3"
    (problem,) = load("omnimath", [{"problem": "?", "answer": gold}])
    assert grade(problem, rf"\boxed{{{gold}}}").correct is True
    assert grade(problem, r"\boxed{3}").correct is None


def test_a_tolerance_of_olympiadbench_is_kept(load: Load):
    row = OLYMPIAD | {"final_answer": ["3.14"], "error": "1e-1"}
    (problem,) = load("olympiadbench", [row])
    assert grade(problem, r"\boxed{3.2}").correct is True
    assert grade(problem, r"\boxed{3.3}").correct is False
    with pytest.raises(ValueError, match="the error 'some' is not a number"):
        load("olympiadbench", [row | {"error": "some"}])


@pytest.mark.parametrize("name", ["math500", "gsm8k", "countdown"])
@pytest.mark.parametrize(
    "text",
    [r"\boxed{" * 20000, "(" * 50000, "1" * 50000, r"\frac{" * 9000, "So $1$. " * 9000, "\0\ud800"],
    ids=["boxes", "brackets", "digits", "fractions", "circles", "junk"],
)
def test_a_reply_that_lost_its_way_is_graded_all_the_same(load: Load, name: str, text: str):
    assert grade(load(name)[0], text).correct is False


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_numbers_are_read(text: str, value: str | None):
    assert number(text) == (Fraction(value) if value else None)


@pytest.mark.parametrize(("box", "value"), BOXES)
def test_a_box_holds_one_number_or_none(box: str, value: str | None):
    assert answer(rf"step 18. \boxed{{{box}}}") == (Fraction(value) if value else None)


def test_the_sign_of_a_boxed_number_may_stand_before_it():
    assert answer(r"so $-\boxed{18}$") == -18
    assert answer(r"- \boxed{18}") == answer(r"28-\boxed{18}") == 18


def test_a_number_is_shown_as_people_write_it(load: Load):
    values = {"6.67": "6.67", "3/4": "0.75", "1/3": "1/3", "-1200": "-1200", "1e30": "1" + "0" * 30}
    assert {text: shown(Fraction(text)) for text in values} == values
    made = grade(load("gsm8k")[0], r"\boxed{6.67}")
    assert made.correct is False and made.answer == "6.67"


def test_an_early_box_counts_however_much_follows(load: Load):
    text = r"\boxed{\frac12}" + " and then" * 9000
    assert grade(load("math500")[0], text).correct is True
    assert grade(load("gsm8k")[0], r"\boxed{1200}" * 9000).correct is True


@pytest.mark.parametrize(("text", "found"), EXPRESSIONS)
def test_the_last_expression_is_found(text: str, found: str | None):
    assert expression(text) == found


def test_expressions_are_exact():
    assert evaluate("8/(3-8/3)")[0] == 24
    assert judge([3, 3, 8, 8], 24, r"\boxed{8/(3-8/3)}").correct
    assert not judge([1, 3], 0, r"\boxed{1/3}").correct


@pytest.mark.parametrize("text", NOT_EXPRESSIONS)
def test_what_is_no_expression_is_refused(text: str):
    found = judge([1, 1], 2, f"<answer>{text}</answer>")
    assert found.correct is False and "\n" not in found.detail


def test_countdown_reads_tinyzeros_format(load: Load):
    (problem,) = load("countdown", [{"target": 98, "nums": [44, 19, 35]}])
    assert grade(problem, r"\boxed{44+19+35}").correct
    with pytest.raises(ValueError, match="row 1 holds no whole numbers"):
        load("countdown", [{"input": "1,x", "output": "2"}])


@pytest.mark.parametrize(("text", "code"), PROGRAMS)
def test_the_program_in_a_reply_is_found(text: str, code: str | None):
    assert program(text, "f") == code


@pytest.mark.parametrize("place", SEARCHES)
@pytest.mark.parametrize("when", ["at once", "at its end"])
def test_the_word_of_a_passed_test_is_not_lying_about(load: Load, place: str, when: str):
    search = (
        "import atexit, os, re, sys\n"
        "def search():\n"
        f"    for word in re.findall('[0-9a-f]{{32}}', {SEARCHES[place]}):\n"
        "        os.write(1, f'\\n{word}\\n'.encode())\n"
        "    os._exit(0)\n"
    )
    call = "_ = search()" if when == "at once" else "_ = atexit.register(search)"
    reply = f"```python\n{search}{call}\ndef double(x): return 0\n```"
    found = grade(load("mbpp")[0], reply)
    assert (found.correct, found.detail) == (False, "ended before its tests did")


def test_a_program_may_read_its_own_source(load: Load):
    code = "import inspect\ndef double(x):\n    assert 'Odd' in inspect.getsource(double)  # Odd\n"
    assert grade(load("mbpp")[0], f"```python\n{code}    return 2 * x\n```").correct is True


def test_a_program_is_tested_as_a_module(load: Load):
    body = "from __future__ import annotations\nimport pickle\n\ndef {}(x: Unknown):\n    {}\n\n"
    end = "if __name__ == '__main__':\n    input()\n"
    for name, called, code in (
        ("humaneval", "top", "return max(x)"),
        ("mbpp", "double", "pickle.dumps(double); return 2 * x"),
    ):
        reply = f"```python\n{body.format(called, code)}{end}```"
        found = grade(load(name)[0], reply)
        assert found.correct is True, found
    reply = "```python\nfrom __future__ import annotations\nif __name__ == '__main__':\n    "
    assert grade(
        load("livecodebench")[0], f"{reply}print(eval(input().replace(' ', '+')))\n```"
    ).correct


def test_a_benchmark_whose_packages_are_missing_is_not_graded(load: Load):
    row = CASES["bigcodebench"][0][0]
    for change in (
        {"libs": "['no_such_package']"},
        {"test": "import no_such_package\n" + row["test"]},
    ):
        (problem,) = load("bigcodebench", [row | change])
        found = grade(problem, CASES["bigcodebench"][1][0])
        assert found.correct is None and "no package no_such_package" in found.detail


def test_livecodebench_calls_methods(load: Load):
    (problem,) = load("livecodebench", [METHOD])
    assert "class Solution" in problem.messages[-1]["content"]
    start = "```python\nclass Solution:\n    def pair(self, a: int, b: List[int]):\n"
    assert grade(problem, f"{start}        return (a, *b)\n```").correct is True
    assert grade(problem, f"{start}        print(1)\n        return [a]\n```").correct is False
    assert grade(problem, f"{start}        return 1j\n```").correct is False


def test_what_a_program_prints_takes_no_grader_down():
    assert not livecodebench.same_value("[" * 1_000_000, "[]")
    assert not livecodebench.same_value("9" * 10_000, "[]")
    assert not livecodebench.same_text("sNaN", "1") and not livecodebench.same_text(
        "1e9999999999999999999", "1"
    )


def test_livecodebench_compares_lines_and_decimals():
    assert livecodebench.same_text("1 2 \n 3.0\n\n", "1 2\n3")
    assert livecodebench.same_text("1e3", "1000.00")
    assert not livecodebench.same_text("1 2", "1\n2")
    assert not livecodebench.same_text("50000000000000000", "50000000000000001")
    assert not livecodebench.same_text("yes", "YES")


def test_livecodebench_without_tests_is_not_graded(load: Load):
    row = {k: v for k, v in CONTEST.items() if "test_cases" not in k}
    (problem,) = load("livecodebench", [row])
    assert grade(problem, "```python\nprint(1)\n```").correct is None


def test_livecodebench_runs_no_pickle(load: Load):
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, ("never",)

    for packed in (pickle.dumps(Bomb()), b"", b"junk"):
        text = base64.b64encode(zlib.compress(packed)).decode()
        with pytest.raises(ValueError, match="field 'private_test_cases' is damaged"):
            load("livecodebench", [CONTEST | {"private_test_cases": text}])
    assert not Path("never").exists()


def test_loose_checks_forgive_a_first_line(load: Load):
    reply = "Sure, here it is:\nthis is a plain english sentence without them"
    row = CASES["ifeval"][0]
    assert grade(load("ifeval", row)[0], reply).correct is False
    assert grade(load("ifeval-loose", row)[0], reply).correct is True
    half = grade(load("ifeval", row)[0], "THIS IS LOUD BUT PLAIN ENGLISH")
    assert half.score == 0.5 and half.detail.startswith("not followed: change_case")


def test_sentences_are_counted_without_a_download(load: Load):
    kwargs = [{"relation": "at least", "num_sentences": 3}]
    names = ["length_constraints:number_sentences"]
    (problem,) = load(
        "ifeval", [{"key": 1, "prompt": "?", "instruction_id_list": names, "kwargs": kwargs}]
    )
    assert grade(problem, "One came at 5 p.m. today. Two! Three?").correct is True
    assert grade(problem, "Dr. Smith came. He left.").correct is False


def test_the_plain_sentence_model_knows_abbreviations(monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [plain_punkt()])
    model = nltk.tokenize.punkt.PunktTokenizer("english")
    text = "Dr. Smith paid 3.5 dollars, i.e. little. See Fig. 2! OK?"
    assert model.tokenize(text) == [
        "Dr. Smith paid 3.5 dollars, i.e. little.",
        "See Fig. 2!",
        "OK?",
    ]


def test_a_judge_scores_every_criterion(load: Load, judge_says: list[str]):
    (problem,) = load("writingbench", [WRITING])
    judge_says += ['```json\n{"reason": "rhymes", "score": 9}\n```', "hm", '{"score": 6}']
    assert grade(problem, "Rain, rain.") == Grade(True, 0.75, "Rain, rain.", "scores [9, 6]")
    judge_says += ['{"score": 6}', '{"score": 6}']
    assert grade(problem, "Rain.").correct is False


@pytest.mark.parametrize(
    ("says", "detail"),
    [(["no", "{", '{"score": 11}'], "gave no score from 1 to 10"), (["500"], "500")],
)
def test_a_judge_that_fails_grades_nothing(
    load: Load, judge_says: list[str], says: list[str], detail: str
):
    (problem,) = load("writingbench", [WRITING])
    judge_says += says
    with pytest.raises(TgrError, match=detail):
        grade(problem, "Rain.")


def test_without_a_judge_nothing_is_graded(load: Load, monkeypatch):
    monkeypatch.delenv("TGR_JUDGE_URL", raising=False)
    rows = [WRITING, WRITING | {"index": 8, "domain1": "Education"}]
    assert len(load("writingbench", rows)) == 2
    (problem,) = load("writingbench-arts", rows)
    found = grade(problem, "Rain.")
    assert found.correct is None and "no judge" in found.detail
    monkeypatch.setenv("TGR_JUDGE_URL", "http://127.0.0.1:9")
    with pytest.raises(TgrError, match="cannot be asked"):
        grade(problem, "Rain.")
    (problem,) = load("writingbench-diversity", rows)
    assert grade(problem, "Rain.").correct is True


@pytest.mark.parametrize(("answer", "score"), JUDGE_SCORES)
def test_the_judges_score_is_found(answer: str, score: int | None):
    assert writingbench.score(answer) == score


F = "def f(x):\n    return 1\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"import math\n\n@cache\n{F}\nN = 2\n", "whole"),
        (f"{F}\nprint(f(1))\nfor i in [1]:\n    f(i)\n", F),
        (f"{F}\nif __name__ == '__main__':\n    f(0)\n", F),
        (f"{F}\ndef g(x):\n    return '", F),  # a limit cut it off
        ("def f(x):\n    return (", "whole"),  # nothing of it can be saved
        ("x = 1\nprint(x)", "whole"),  # it does not define the function
        (f"try:\n    import re\nexcept ImportError:\n    re = None\n\n{F}", "whole"),
    ],
)
def test_of_a_program_the_definitions_count(code: str, expected: str):
    found = definitions(code, "f")
    wanted = code if expected == "whole" else expected
    assert found.split() == wanted.split()
