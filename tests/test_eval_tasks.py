"""The benchmarks: official file formats in, prompts and grades out."""

from __future__ import annotations

import base64
import csv
import gzip
import http.server
import json
import os
import pickle
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import loaded

from tgr_local.errors import InstallError, TgrError
from tgr_local.eval import backends, sandbox, tasks
from tgr_local.eval.task import Grade, Problem
from tgr_local.eval.tasks import generated, livecodebench, writingbench
from tgr_local.eval.tasks.code import program
from tgr_local.eval.tasks.data import Row, read_file, sample
from tgr_local.eval.tasks.gsm8k import answer, number
from tgr_local.eval.tasks.ifeval import plain_punkt
from tgr_local.eval.tasks.puzzles import evaluate, expression, judge

DATA = os.environ.get("TGR_DATA")
"""Before the tests clear the environment."""
Rows = list[dict[str, Any]]

LITE = base64.b64encode(
    zlib.compress(pickle.dumps(json.dumps([{"input": "5 5", "output": "10", "testtype": "stdin"}])))
).decode()
CONTEST = {
    "question_title": "Sum",
    "question_content": "Add two numbers.",
    "platform": "atcoder",
    "question_id": "abc_a",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": '[{"input": "1 2\\n", "output": "3\\n", "testtype": "stdin"}]',
    "private_test_cases": LITE,
    "metadata": "{}",
}
METHOD = CONTEST | {
    "question_id": "3000",
    "starter_code": "class Solution:\n    def pair(self, a: int, b: List[int]) -> List[int]:\n",
    "public_test_cases": '[{"input": "1\\n[2, 3]", "output": "[1, 2, 3]"}]',
    "private_test_cases": "[]",
    "metadata": '{"func_name": "pair"}',
}
WRITING = {
    "index": 7,
    "domain1": "Literature & Arts",
    "domain2": "Poem",
    "lang": "en",
    "query": "Write a poem on rain.",
    "checklist": [{"name": "Form", "criteria_description": "It rhymes."}, {"name": "Theme"}],
}
OLYMPIAD = {
    "id": 1606,
    "context": None,
    "question": "Find all $x$.",
    "final_answer": ["$1$,$2$"],
    "is_multiple_answer": True,
    "unit": None,
    "error": None,
}

# What each file holds, replies that are right, and replies that are wrong.
CASES: dict[str, tuple[Rows, list[str], list[str]]] = {
    "math500": (
        [{"problem": "Half of 1?", "answer": "\\frac{1}{2}", "unique_id": "test/a/1.json"}],
        [r"So $\boxed{\frac{1}{2}}$.", r"\boxed{0.5}", r"no, \boxed{\dfrac12}", "It is 1/2."],
        [r"\boxed{\frac{1}{3}}", r"first \boxed{\frac12}, but \boxed{2}", r"\boxed{}", "none"],
    ),
    "aime24": (
        [{"id": 60, "problem": "Count.", "answer": "033", "url": "x", "year": "2024"}],
        [r"\boxed{33}", r"\boxed{033}"],
        [r"\boxed{34}"],
    ),
    "aime25": (
        [{"problem": "Count.", "answer": 70, "id": "0"}],
        [r"\boxed{70}", r"The answer is $\boxed{070}$."],
        [r"\boxed{7}"],
    ),
    "omnimath": (
        [{"problem": "How many?", "answer": "30(1 + \\sqrt{5})", "domain": []}],
        [r"\boxed{30 + 30\sqrt{5}}"],
        [r"\boxed{30}"],
    ),
    "olympiadbench": (
        [OLYMPIAD],
        [r"\boxed{1, 2}", r"\boxed{2,1}", r"\boxed{1} and \boxed{2}"],
        [r"\boxed{1}", r"\boxed{1, 3}"],
    ),
    "gsm8k": (
        [{"question": "Ducks?", "answer": "6*200 = <<6*200=1200>>1200\n#### 1,200"}],
        [r"\boxed{1200}", r"\boxed{\$1,200.00}", "It takes 3 days.\n#### 1200", "so 1,200 eggs."],
        [r"\boxed{1201}", "1200 or 12", "none"],
    ),
    "humaneval": (
        [
            {
                "task_id": "HumanEval/0",
                "prompt": "from typing import List\n\ndef top(x: List[int]):\n    ''' Top. '''\n",
                "entry_point": "top",
                "canonical_solution": "    return max(x)\n",
                "test": "def check(f):\n    assert f([1, 3, 2]) == 3\n",
            }
        ],
        [
            "    return max(x)\n\ndef other(): return unfinished(",
            "return max(x)",
            "Sure:\n```python\ndef top(x: List):\n    return max(x)\n```\nUse:\n```\ntop([])\n```",
        ],
        ["    return min(x)", "```python\ndef top(x): return 3/0\n```", "I cannot."],
    ),
    "mbpp": (
        [
            {
                "text": "Write a function to double.",
                "code": "def double(x):\r\n  return 2*x",
                "task_id": 11,
                "test_setup_code": "import math",
                "test_list": ["assert double(2) == 4", "assert math.isclose(double(0.5), 1)"],
            },
            {"text": "A few-shot row.", "task_id": 2, "test_list": ["assert f(1)"]},
        ],
        ["```python\ndef double(x):\n    return 2 * x\n```", "def double(x): return x + x\n[DONE]"],
        ["```python\ndef double(x):\n    return x\n```", "x plus x"],
    ),
    "bigcodebench": (
        [
            {
                "task_id": "BigCodeBench/1",
                "complete_prompt": "import math\n\ndef task_func(x):\n    '''Root.'''\n",
                "instruct_prompt": "Compute the root. Start with: import math",
                "canonical_solution": "    return math.sqrt(x)",
                "code_prompt": "import math\ndef task_func(x):\n",
                "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
                "    def test_one(self):\n        self.assertEqual(task_func(4), 2)\n",
                "entry_point": "task_func",
                "libs": "['math']",
            }
        ],
        ["```python\ndef task_func(x):\n    return math.sqrt(x)\n```", "    return x ** 0.5"],
        ["```python\ndef task_func(x):\n    return 3\n```", "```python\nraise SystemExit(0)\n```"],
    ),
    "livecodebench": (
        [CONTEST],
        ["```python\nprint(sum(map(int, input().split())))\n```"],
        [
            "```python\nprint(3)\n```",
            "```python\nprint(sum(map(int, input().split())), 'ok')\n```",
            "```python\n1 / 0\n```",
        ],
    ),
    "ifeval": (
        [
            {
                "key": 1000,
                "prompt": "Write without commas, in lower case.",
                "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"],
                "kwargs": [{}, {"relation": None}],
            }
        ],
        ["this is a plain english sentence without them"],
        ["this has, as you see, some of them in a plain english sentence", "THIS IS LOUD"],
    ),
    "countdown": (
        [{"input": "19,36,55", "output": "38"}],
        [r"\boxed{55+19-36}", "<answer>(55 - 36) + 19 = 38</answer>"],
        [r"\boxed{19+19}", r"\boxed{38}", r"\boxed{55+19-36+0}", r"\boxed{55-36}", "55+19-36"],
    ),
    "game24": (
        [{"Rank": "901", "Puzzles": "4 4 10 10"}, {"Rank": "900", "Puzzles": "1 1 1 1"}],
        [r"\boxed{(10 \times 10 - 4) \div 4}"],
        [r"\boxed{4 + 10 + 10}", r"\boxed{2 * 12}"],
    ),
}  # fmt: skip


def write(folder: Path, name: str, rows: Rows) -> Path:
    """The rows as a file in the kind that the ending of its name says."""
    file = folder / name
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".csv"):
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".json"):
        file.write_text(json.dumps(rows))
    elif name.endswith(".parquet"):
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text(lines)
    return file


Load = Callable[..., list[Problem]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load("math500")`: its problems from its sample, or from the rows given."""

    def problems(name: str, rows: Rows | None = None, **options: Any) -> list[Problem]:
        file = write(tmp_path, "game24.csv" if name == "game24" else f"{name}.jsonl",
                     rows or CASES[name][0])  # fmt: skip
        try:
            return tasks.get(name).load(file, **options)
        except InstallError as error:
            pytest.skip(str(error))

    return problems


def grade(problem: Problem, text: str) -> Grade:
    return tasks.get(problem.task).grade(problem, text)


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    """The strongest sandbox of this machine."""
    sandbox.choose(sandbox.usable()[0])
    yield
    sandbox.choose(backends.DEFAULT)


# ---- the registry


def test_every_task_keeps_its_promises() -> None:
    for name, task in tasks.TASKS.items():
        assert task.name == name and task.metric in ("pass", "score", "diversity")
        assert 10 < len(task.doc) < 100 and "\n" not in task.doc
    assert {n for n, t in tasks.TASKS.items() if t.needs_exec} == {
        "humaneval", "mbpp", "bigcodebench", "livecodebench",
    }  # fmt: skip
    assert set(CASES) <= set(tasks.TASKS)


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown task 'MATH-500'; did you mean math500"):
        tasks.get("MATH-500")


def test_naming_the_tasks_imports_none_of_their_packages() -> None:
    heavy = {"math_verify", "sympy", "lm_eval", "datasets", "pyarrow", "nltk", "numpy"}
    assert not loaded("from tgr_local.eval.tasks import TASKS; list(TASKS.values())") & heavy


# ---- files


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = [{"question": "a,\n“b”", "answer": "#### 1"}, {"question": "c", "answer": "#### 2"}]
    file = write(tmp_path, f"gsm8k.{kind}", rows)
    assert [row.fields for row in read_file(file)] == rows
    assert [p.reference for p in tasks.get("gsm8k").load(file)] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a data file ends in .jsonl, .json"),
        ("a.jsonl", b"", "holds no rows; gsm8k is published at https"),
        ("a.jsonl", b'{"question": 1}\n{"question', "line 2: damaged JSON"),
        ("a.jsonl", b"[1, 2]", "row 1 is no object: '1'"),
        ("a.json", b"[{", "damaged JSON"),
        ("a.jsonl", b"\xff\xfe\x00", "damaged, or not what its name says"),
        ("a.jsonl.gz", b"plain", "damaged, or not what its name says"),
        ("a.jsonl", b'{"problem": "x", "answer": "#### 1"}', "row 1 has no field 'question'"),
        ("a.jsonl", b'{"question": "x", "answer": "none"}', "row 1: the answer has no number"),
        ("a.csv", b"question,answer\n", "holds no rows"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        tasks.get("gsm8k").load(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="damaged, or not what its name says"):
        tasks.get("gsm8k").load(tmp_path / "a.parquet")


def test_the_data_is_found_and_its_absence_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.get("countdown")
    monkeypatch.delenv("TGR_DATA", raising=False)
    with pytest.raises(ValueError, match=r"countdown needs its data: name the file .* TGR_DATA"):
        task.load()
    monkeypatch.setenv("TGR_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"holds none of .*name the file itself"):
        task.load()
    (tmp_path / "countdown").mkdir()
    write(tmp_path, "countdown/countdown_cd3_test.jsonl", CASES["countdown"][0])
    assert len(task.load()) == len(task.load(tmp_path)) == 1
    with pytest.raises(FileNotFoundError, match="no such file, which countdown needs"):
        task.load(tmp_path / "absent.jsonl")
    assert len(task.load(tmp_path, fetch=True)) == 1  # nothing is missing
    with pytest.raises(ValueError, match="game24 is not on the Hugging Face hub"):
        tasks.get("game24").load(fetch=True)


def test_a_failed_fetch_names_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(**where: Any) -> Rows:
        asked.append(where)
        if len(asked) > 1:
            raise ConnectionError("no route\nto host")
        return [{"question": "q", "answer": "#### 5"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert tasks.get("gsm8k").load(fetch=True)[0].reference == "5"
    assert asked == [{"path": "openai/gsm8k", "name": "main", "split": "test"}]
    with pytest.raises(TgrError, match=r"could not be fetched .*no route to host.*name it as the"):
        tasks.get("gsm8k").load(fetch=True)


def test_a_limit_draws_by_the_seed_in_the_files_order(load: Load) -> None:
    rows = [{"input": f"1,{i}", "output": str(i)} for i in range(30)]
    ids = [
        [int(p.id) for p in load("countdown", rows, limit=n, seed=seed)]
        for n, seed in ((0, 5), (30, 5), (8, 0), (8, 0), (8, 1))
    ]
    assert ids[0] == ids[1] == list(range(30))
    assert ids[2] == ids[3] == sorted(ids[2]) != ids[4] and len(set(ids[2])) == 8
    with pytest.raises(ValueError, match="limit must be 0"):
        sample([1], -1, 0)


def test_ids_are_unique_even_where_the_files_are_not(load: Load) -> None:
    row = CASES["math500"][0][0]
    assert [p.id for p in load("math500", [row, row, row])] == [
        "test/a/1.json", "test/a/1.json#2", "test/a/1.json#3",
    ]  # fmt: skip


# ---- all of them


@pytest.mark.parametrize("name", sorted(CASES))
def test_right_answers_pass_and_wrong_ones_fail(load: Load, name: str) -> None:
    _, right, wrong = CASES[name]
    (problem,) = load(name)
    assert problem.task == name and json.loads(json.dumps(problem.reference)) == problem.reference
    assert problem.raw and all(m["role"] in ("system", "user") for m in problem.messages)
    for text in right:
        found = grade(problem, text)
        assert (found.correct, found.score) == (True, 1.0), (text, found)
        assert found.answer and "\n" not in found.detail
    for text in [*wrong, ""]:
        found = grade(problem, text)
        assert found.correct is False and found.score < 1, (text, found)
    assert grade(problem, "").answer is None


def test_the_prompts_are_the_benchmarks_own(load: Load) -> None:
    def asked(name: str) -> str:
        return load(name)[0].messages[-1]["content"]

    box = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert asked("math500") == "Half of 1?" + box
    assert asked("gsm8k") == "Ducks?" + box
    assert asked("countdown") == (
        "Using the numbers [19, 36, 55], create an equation that equals 38."
    )
    assert "equals 24." in asked("game24") and "[4, 4, 10, 10]" in asked("game24")
    assert asked("ifeval") == "Write without commas, in lower case."
    assert load("humaneval")[0].raw == CASES["humaneval"][0][0]["prompt"]
    assert "assert double(2) == 4" in asked("mbpp")
    assert asked("bigcodebench").startswith("Please provide a self-contained Python script that")
    assert "### Format: Read the inputs from stdin" in asked("livecodebench")


# ---- maths


@pytest.mark.parametrize(
    ("gold", "said", "is_right"),
    [
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)", True),
        (r"p - q", r"-q+p", True),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
        (r"\text{Evelyn}", r"\text{Angela}", False),
        (r"[1,2)", r"[1,2]", False),
        (r"x \in [-2,7]", r"[-2,7]", True),
        (r"10\%", r"0.1", True),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}", False),
        (r"18^\circ", "18", True),
        (r"1,2,3", "3,2,1", True),
        ("(10,100)", "(10100)", False),
        ("10, 100", "10,100", True),
        ("10, 100", "10100", False),
        ("58,500", "58500", True),
        ("58500", "58,500", True),
        ("2516_8", "2516_{9}", False),
        ("2516_8", "2516_{8}", True),
        ("2516_8", "2516", True),
        ("N", "n", False),
        (r"\text{(C)}", "C", True),
        ("90", "90°", True),
        ("90°", r"90^\circ", True),
        ("6", "6!", False),
        ("720", "6!", True),
        (r"1\frac{1}{2}", "11/2", False),
        (r"1\frac{1}{2}", "1.5", True),
        ("1", "(-1)^{10000000000}", True),
        ("5", r"9^{9^{9^9}}", False),
        ("5", r"10^{10^{10}}", False),
        ("5", r"10^{-10^{10}}", False),
        ("5", r"\sqrt{9^{9^9}} + 1", False),
        ("5", "1000000!", False),
        (r"9^{9^{9}}", r"$9^{9^{9}}$", True),
        (r"9^{9^{9}}", "5", False),
        (r"9^{9^{9}}", r"3^{2 \cdot 9^9}", None),
    ],
)
def test_answers_are_compared_by_value(
    load: Load, gold: str, said: str, is_right: bool | None
) -> None:
    (problem,) = load("math500", [{"problem": "?", "answer": gold}])
    assert grade(problem, f"So \\boxed{{{said}}}.").correct is is_right


def test_a_minus_sign_before_the_box_counts(load: Load) -> None:
    (problem,) = load("math500", [{"problem": "?", "answer": "-18"}])
    assert grade(problem, r"$-\boxed{18}$").correct is True
    assert grade(problem, r"$\boxed{18}$").correct is False


def test_equal_answers_have_one_key(load: Load) -> None:
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


@pytest.mark.parametrize(
    "said",
    ["(a+b)" * 25, "(x+1)^{1000000}", "(a+b+c)^{12}(a+b)^{12}", r"\sum_{k=1}^{10^9} k", "2^{20000}",
     r"\int_0^1 x^x dx", "9^{9^9}"],
)  # fmt: skip
def test_a_key_is_not_evaluated_for_ever(load: Load, said: str) -> None:
    load("math500")
    from tgr_local.eval.tasks import maths

    assert maths.key(maths.parsed(rf"\boxed{{{said}}}"), said)


def test_an_official_answer_that_cannot_be_read_whole_is_not_graded(load: Load) -> None:
    gold = r"\frac{1}{2} \max A + 3"
    (problem,) = load("omnimath", [{"problem": "?", "answer": gold}])
    assert grade(problem, rf"\boxed{{{gold}}}").correct is True
    assert grade(problem, r"\boxed{3}").correct is None


def test_a_tolerance_of_olympiadbench_is_kept(load: Load) -> None:
    row = OLYMPIAD | {"final_answer": ["3.14"], "error": "1e-1"}
    (problem,) = load("olympiadbench", [row])
    assert grade(problem, r"\boxed{3.2}").correct is True
    assert grade(problem, r"\boxed{3.3}").correct is False
    with pytest.raises(ValueError, match="the error 'some' is no number"):
        load("olympiadbench", [row | {"error": "some"}])


@pytest.mark.parametrize("name", ["math500", "gsm8k", "countdown"])
@pytest.mark.parametrize(
    "text",
    [r"\boxed{" * 20000, "(" * 50000, "1" * 50000, r"\frac{" * 9000, "So $1$. " * 9000, "\0\ud800"],
    ids=["boxes", "brackets", "digits", "fractions", "circles", "junk"],
)
def test_a_reply_that_lost_its_way_is_graded_all_the_same(load: Load, name: str, text: str) -> None:
    assert grade(load(name)[0], text).correct is False


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$1,234.50", "1234.5"), ("-$5", "-5"), ("16-3=13", "13"), (r"\frac{1}{2}", "1/2"),
        (r"70{,}000", "70000"), ("3.", "3"), (".5", "1/2"), ("5/0", None), ("no", None), ("", None),
        ("5 dollars", "5"), ("x = -7", "-7"), ("−18", "-18"), (r"\frac{-36}{2}", "-18"),
    ],
)  # fmt: skip
def test_numbers_are_read(text: str, value: str | None) -> None:
    assert number(text) == (Fraction(value) if value else None)


@pytest.mark.parametrize(
    ("box", "value"),
    [
        ("18", "18"), ("−18", "-18"), ("- 18", "-18"), ("(18)", "18"), ("18.0", "18"),
        (".5", "1/2"), ("007", "7"),
        ("18 m^2", "18"), (r"18 \text{ cm}^2", "18"), (r"18\text{ m/s}^{2}", "18"),
        (r"18 \text{ apples in 3 boxes}", "18"), (r"\text{18}", "18"), (r"\text{18 apples}", "18"),
        (r"2\times 9", "18"), (r"\tfrac{72}{4}", "18"), (r"\frac{-36}{2}", "-18"),
        (r"\frac12", "1/2"), (r"1\frac{1}{2}", "3/2"), (r"-1\frac12", "-3/2"), ("-1/2", "-1/2"),
        (r"1\ 800", "1800"), ("1,800", "1800"), (r"\$1,800.00", "1800"), (r"1,\!800", "1800"),
        ("x = 18", "18"), ("16 - 3 = 13", "13"), (r"18\%", "18"), (r"18^\circ", "18"),
        (r"\$18/\text{day}", "18"), ("18 dollars per day.", "18"), ("about 18", "18"),
        ("1,2,3", None), ("10-28", None), ("18 or 19", None), (r"3\text{ h }20\text{ min}", None),
        (r"\sqrt{18}", None), ("2^{18}", None), ("18!", None), ("18 + x", None), ("3*4*5", None),
        ("5/0", None), ("x", None), (r"\text{unknown}", None), ("", None), ("1" * 9000, None),
    ],
)  # fmt: skip
def test_a_box_holds_one_number_or_none(box: str, value: str | None) -> None:
    assert answer(rf"step 18. \boxed{{{box}}}") == (Fraction(value) if value else None)


def test_the_sign_of_a_boxed_number_may_stand_before_it() -> None:
    assert answer(r"so $-\boxed{18}$") == -18
    assert answer(r"- \boxed{18}") == answer(r"28-\boxed{18}") == 18


def test_an_early_box_counts_however_much_follows(load: Load) -> None:
    text = r"\boxed{\frac12}" + " and then" * 9000
    assert grade(load("math500")[0], text).correct is True
    assert grade(load("gsm8k")[0], r"\boxed{1200}" * 9000).correct is True


# ---- puzzles


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1+2} or <answer>3+4</answer>", "3+4"),
        (r"\boxed{3 \times (4 - 1) = 9}", "3 * (4 - 1)"),
        (r"\boxed{\frac{6}{2} + 1}", "6/2 + 1"),
        (r"\boxed{8 \div \frac{6}2}", "8 / (6/2)"),
        (r"\boxed{24 = 4*6}", "4*6"),
        (r"<answer>\boxed{4*6}</answer>", "4*6"),
        ("I will put it in <answer> tags. <answer>4*6</answer>", "4*6"),
        ("<answer>`4*6`</answer>", "4*6"),
        ("<answer>**4 ⋅ 6**</answer>", "4 * 6"),
        (r"\boxed{4 ∗ 6}", "4 * 6"),
        (r"\boxed{4 x 6}", "4 * 6"),
        (r"\boxed{4\,\times\,6.}", "4 * 6"),
        (r"\boxed{\text{4*6} \\}", "4*6"),
        (r"\boxed{\big(4 + [1 + 1]\big)*4}", "(4 + (1 + 1) )*4"),
        (r"\boxed{-3+5}", "-3+5"),
        ("<answer></answer>", None),
        ("1+2", None),
    ],
)
def test_the_last_expression_is_found(text: str, found: str | None) -> None:
    assert expression(text) == found


def test_expressions_are_exact() -> None:
    assert evaluate("8/(3-8/3)")[0] == 24
    assert judge([3, 3, 8, 8], 24, r"\boxed{8/(3-8/3)}").correct
    assert not judge([1, 3], 0, r"\boxed{1/3}").correct


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "1//2", "2^3", "1.0+1", "abs(1)", "__import__('os')", "(1", "1 2", "True+1", "1/0",
     "9" * 400, "-" * 299 + "1", "(" * 150, "٣+1", "1_0+1", "0x10", "x", "1 if 1 else 2"],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    found = judge([1, 1], 2, f"<answer>{text}</answer>")
    assert found.correct is False and "\n" not in found.detail


def test_countdown_reads_tinyzeros_format(load: Load) -> None:
    (problem,) = load("countdown", [{"target": 98, "nums": [44, 19, 35]}])
    assert grade(problem, r"\boxed{44+19+35}").correct
    with pytest.raises(ValueError, match="row 1 holds no whole numbers"):
        load("countdown", [{"input": "1,x", "output": "2"}])


# ---- code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\ndef f(): 1\n```\n```\nf()\n```", "def f(): 1\n"),
        ("```\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),
        ("~~~py\nx = 1\n~~~", "x = 1\n"),
        ("```python\nx = 1\n```\nprints\n```\n1\n```", "x = 1\n"),
        ("```json\n{}\n```", None),
        ("```python\nprint('''```''')\nx = 1", "print('''```''')\nx = 1"),
        ("def f(): pass", "def f(): pass"),
        ("1. So:\n\n   ```python\n   def f():\n       1\n   ```\n2. …", "def f():\n    1\n"),
        ("- ```py\n  def f():\n      1\n  ```", "def f():\n    1\n"),
        ("> ```python\n> def f():\n>     1\n>\n> ```\n> So.", "def f():\n    1\n\n"),
        ("```ipython\nx = 1\n```", "x = 1\n"),
        ("```python\n  def f():\n    1\n```", "def f():\n  1\n"),
        ("Just words here.", None),
        ("", None),
    ],
)
def test_the_program_in_a_reply_is_found(text: str, code: str | None) -> None:
    assert program(text, "f") == code


SEARCHES = {
    "its source": "open(sys.argv[0]).read()",
    "the command lines": "''.join(open(f'/proc/{i}/cmdline').read() for i in ('self', 1))",
    "the environment": "str(os.environ)",
    "its input": "sys.stdin.read()",
    "its globals": "str(globals())",
}


@pytest.mark.parametrize("place", SEARCHES)
@pytest.mark.parametrize("when", ["at once", "at its end"])
def test_the_word_of_a_passed_test_is_not_lying_about(load: Load, place: str, when: str) -> None:
    search = (
        "import atexit, os, re, sys\n"
        "def search():\n"
        f"    for word in re.findall('[0-9a-f]{{32}}', {SEARCHES[place]}):\n"
        "        os.write(1, f'\\n{word}\\n'.encode())\n"
        "    os._exit(0)\n"
    )
    call = "search()" if when == "at once" else "atexit.register(search)"
    reply = f"```python\n{search}{call}\ndef double(x): return 0\n```"
    found = grade(load("mbpp")[0], reply)
    assert (found.correct, found.detail) == (False, "ended before its tests did")


def test_a_program_may_read_its_own_source(load: Load) -> None:
    code = "import inspect\ndef double(x):\n    assert 'Odd' in inspect.getsource(double)  # Odd\n"
    assert grade(load("mbpp")[0], f"```python\n{code}    return 2 * x\n```").correct is True


def test_a_program_is_tested_as_a_module(load: Load) -> None:
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


def test_a_benchmark_whose_packages_are_missing_is_not_graded(load: Load) -> None:
    row = CASES["bigcodebench"][0][0]
    for change in (
        {"libs": "['no_such_package']"},
        {"test": "import no_such_package\n" + row["test"]},
    ):
        (problem,) = load("bigcodebench", [row | change])
        found = grade(problem, CASES["bigcodebench"][1][0])
        assert found.correct is None and "no package no_such_package" in found.detail


def test_livecodebench_calls_methods(load: Load) -> None:
    (problem,) = load("livecodebench", [METHOD])
    assert "class Solution" in problem.messages[-1]["content"]
    start = "```python\nclass Solution:\n    def pair(self, a: int, b: List[int]):\n"
    assert grade(problem, f"{start}        return (a, *b)\n```").correct is True
    assert grade(problem, f"{start}        print(1)\n        return [a]\n```").correct is False
    assert grade(problem, f"{start}        return 1j\n```").correct is False


def test_what_a_program_prints_takes_no_grader_down() -> None:
    assert not livecodebench.same_value("[" * 1_000_000, "[]")
    assert not livecodebench.same_value("9" * 10_000, "[]")
    assert not livecodebench.same_text("sNaN", "1") and not livecodebench.same_text(
        "1e9999999999999999999", "1"
    )


def test_livecodebench_compares_lines_and_decimals() -> None:
    assert livecodebench.same_text("1 2 \n 3.0\n\n", "1 2\n3")
    assert livecodebench.same_text("1e3", "1000.00")
    assert not livecodebench.same_text("1 2", "1\n2")
    assert not livecodebench.same_text("50000000000000000", "50000000000000001")
    assert not livecodebench.same_text("yes", "YES")


def test_livecodebench_without_tests_is_not_graded(load: Load) -> None:
    row = {k: v for k, v in CONTEST.items() if "test_cases" not in k}
    (problem,) = load("livecodebench", [row])
    assert grade(problem, "```python\nprint(1)\n```").correct is None


def test_livecodebench_runs_no_pickle(load: Load) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, ("never",)

    for packed in (pickle.dumps(Bomb()), b"", b"junk"):
        text = base64.b64encode(zlib.compress(packed)).decode()
        with pytest.raises(ValueError, match="field 'private_test_cases' is damaged"):
            load("livecodebench", [CONTEST | {"private_test_cases": text}])
    assert not Path("never").exists()


# ---- instructions and writing


def test_loose_checks_forgive_a_first_line(load: Load) -> None:
    reply = "Sure, here it is:\nthis is a plain english sentence without them"
    row = CASES["ifeval"][0]
    assert grade(load("ifeval", row)[0], reply).correct is False
    assert grade(load("ifeval-loose", row)[0], reply).correct is True
    half = grade(load("ifeval", row)[0], "THIS IS LOUD BUT PLAIN ENGLISH")
    assert half.score == 0.5 and half.detail.startswith("not followed: change_case")


def test_sentences_are_counted_without_a_download(load: Load) -> None:
    kwargs = [{"relation": "at least", "num_sentences": 3}]
    names = ["length_constraints:number_sentences"]
    (problem,) = load(
        "ifeval", [{"key": 1, "prompt": "?", "instruction_id_list": names, "kwargs": kwargs}]
    )
    assert grade(problem, "One came at 5 p.m. today. Two! Three?").correct is True
    assert grade(problem, "Dr. Smith came. He left.").correct is False


def test_the_plain_sentence_model_knows_abbreviations(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [plain_punkt()])
    model = nltk.tokenize.punkt.PunktTokenizer("english")
    text = "Dr. Smith paid 3.5 dollars, i.e. little. See Fig. 2! OK?"
    assert model.tokenize(text) == [
        "Dr. Smith paid 3.5 dollars, i.e. little.",
        "See Fig. 2!",
        "OK?",
    ]


@pytest.fixture
def judge_says(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A judge behind a local URL that gives these answers one after the other; questions are
    appended to it."""
    answers: list[str] = []
    asked: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self, body: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_GET(self) -> None:
            self.reply({"data": [{"id": "a-judge"}]})

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            assert asked[-1]["model"] == "a-judge"
            answer = answers.pop(0)
            if answer == "500":
                self.send_error(500)
            else:
                self.reply({"choices": [{"message": {"content": answer}}]})

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TGR_JUDGE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.delenv("TGR_JUDGE_MODEL", raising=False)
        yield answers
        server.shutdown()


def test_a_judge_scores_every_criterion(load: Load, judge_says: list[str]) -> None:
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
) -> None:
    (problem,) = load("writingbench", [WRITING])
    judge_says += says
    with pytest.raises(TgrError, match=detail):
        grade(problem, "Rain.")


def test_without_a_judge_nothing_is_graded(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("answer", "score"),
    [('{"score": 3} {"score": 10}', 10), ('{"score": "3"}', None), ('{"score": 0}', None),
     ('{"a": {"score": 4}}', 4), ("[1]", None), ("{" * 2000, None)],
)  # fmt: skip
def test_the_judges_score_is_found(answer: str, score: int | None) -> None:
    assert writingbench.score(answer) == score


# ---- generated


@pytest.mark.parametrize("name", ["arithmetic3", "arithmetic6", "arithmetic8", "equations"])
def test_generated_problems_are_true(name: str) -> None:
    task = tasks.get(name)
    problems = task.load(limit=60, seed=3)
    assert problems == task.load(limit=60, seed=3) != task.load(limit=60, seed=4)
    assert len({p.messages[0]["content"] for p in problems}) == 60 == len({p.id for p in problems})
    for problem in problems:
        question = problem.messages[0]["content"]
        if name == "equations":
            left, right = question.removeprefix("Solve ").split("=")
            for side in (left, right):
                side = re.sub(r"(\d)([x(])", r"\1*\2", side)
            written = re.sub(r"(\d)([x(])", r"\1*\2", f"{left} == {right}")
            assert eval(written, {"x": problem.reference}), question
            assert not eval(written, {"x": problem.reference + 1}), question
        else:
            said = question.removeprefix("What is ").removesuffix("?")
            assert eval(said) == problem.reference, question
            assert len(re.findall(r"\d+", said)) == int(name[-1])
            assert 0 <= problem.reference <= generated.LARGEST
        assert grade(problem, rf"\boxed{{{problem.reference}}}").correct is True
        assert grade(problem, rf"x = \boxed{{{problem.reference + 1}}}").correct is False


def test_generated_tasks_take_no_file(tmp_path: Path) -> None:
    task = tasks.get("equations")
    assert len(task.load(tmp_path, fetch=True)) == generated.N_DEFAULT
    with pytest.raises(ValueError, match="equations is generated: it takes a limit and a seed"):
        task.load(tmp_path / "equations.jsonl")
    assert len(task.load(limit=generated.N_MOST)) == generated.N_MOST
    for limit in (-1, generated.N_MOST + 1):
        with pytest.raises(ValueError, match="limit must be from 0"):
            task.load(limit=limit)


# ---- the public files


@pytest.mark.parametrize(
    ("name", "n"),
    [("math500", 500), ("aime25", 30), ("gsm8k", 1319), ("humaneval", 164), ("ifeval", 541),
     ("countdown", 256), ("game24", 100)],
)  # fmt: skip
def test_the_public_files_load_whole(name: str, n: int) -> None:
    if not DATA:
        pytest.skip("TGR_DATA names no folder of public data (bench/check_graders.py grades it)")
    assert len(tasks.get(name).load(Path(DATA))) == n


def test_a_row_without_a_list_says_so() -> None:
    row = Row("row 1", {"a": "{}", "b": "[1"})
    with pytest.raises(ValueError, match="row 1: field 'a' is no list"):
        row.list("a")
    with pytest.raises(ValueError, match="field 'b' is neither JSON nor a Python literal"):
        row.list("b")
