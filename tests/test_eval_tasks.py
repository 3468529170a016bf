"""The benchmarks: official file formats in, prompts out; generated problems."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import loaded
from grader_cases import BAD_FILES, CASES, Rows
from task_files import Load, grade, loader, write

from tgr_local.commands import cli
from tgr_local.lab.eval import request, tasks
from tgr_local.lab.eval.tasks import generated
from tgr_local.lab.eval.tasks.benchmark import Benchmark
from tgr_local.lab.eval.tasks.data import Row, only_file, read_file, sample
from tgr_local.system.errors import TgrError

DATA = os.environ.get("TGR_DATA")
"""Before the tests clear the environment."""


pytestmark = pytest.mark.usefixtures("sandboxed")


@pytest.fixture
def load(tmp_path) -> Load:
    return loader(tmp_path)


def test_every_task_keeps_its_promises():
    for name, task in tasks.TASKS.items():
        assert task.name == name and task.metric in ("pass", "score", "diversity")
        assert 10 < len(task.doc) < 100 and "\n" not in task.doc
    assert {n for n, t in tasks.TASKS.items() if t.needs_exec} == {
        "humaneval", "humaneval-code", "mbpp", "bigcodebench", "livecodebench", "humanevalfix",
        "aider-edit", "bugs", "bugs-families",
    }  # fmt: skip
    assert set(CASES) <= set(tasks.TASKS)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="unknown task 'MATH-500'; did you mean math500"):
        tasks.get("MATH-500")
    with pytest.raises(
        ValueError, match=r"unknown task 'm\.gguf'; a model is named with -m m\.gguf"
    ):
        tasks.get("m.gguf")


def test_naming_the_tasks_imports_none_of_their_packages():
    heavy = {"math_verify", "sympy", "lm_eval", "datasets", "pyarrow", "nltk", "numpy"}
    assert not loaded("from tgr_local.lab.eval.tasks import TASKS; list(TASKS.values())") & heavy


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind: str):
    rows = [{"question": "a,\n“b”", "answer": "#### 1"}, {"question": "c", "answer": "#### 2"}]
    file = write(tmp_path, f"gsm8k.{kind}", rows)
    assert [row.fields for row in read_file(file)] == rows
    assert [p.reference for p in tasks.get("gsm8k").load(file)] == ["1", "2"]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_bad_file_is_named(tmp_path, name: str, content: bytes, message: str):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        tasks.get("gsm8k").load(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="damaged, or not what its name says"):
        tasks.get("gsm8k").load(tmp_path / "a.parquet")


def test_the_data_is_found_and_its_absence_explained(tmp_path, monkeypatch):
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


def test_a_task_that_is_alone_finds_its_file_in_its_own_folder(tmp_path):
    folder = tmp_path / "anything"
    folder.mkdir()
    source = benchmark("gsm8k").source
    assert only_file(source, None) is None and only_file(source, folder) == folder
    file = write(folder, "test.jsonl", [{"question": "a", "answer": "#### 1"}])
    write(folder, "train.jsonl", [{"question": "b", "answer": "#### 2"}])
    assert only_file(source, folder) == file and only_file(source, file) == file
    with pytest.raises(ValueError, match=r"holds none of gsm8k/test\.jsonl"):
        tasks.get("gsm8k").load(folder)  # with other tasks it may be anyone's
    (folder / "gsm8k").mkdir()
    write(folder, "gsm8k/test.jsonl", [{"question": "c", "answer": "#### 3"}])
    assert only_file(source, folder) == folder
    olympiad = benchmark("olympiadbench").source  # whose pattern *.jsonl would match any file
    assert only_file(olympiad, tmp_path / "anything") == folder


def benchmark(name: str) -> Benchmark:
    found = tasks.get(name)
    assert isinstance(found, Benchmark)
    return found


def test_the_command_takes_the_folder_of_one_task_only(tmp_path):
    write(tmp_path, "test.jsonl", [{"problem": "1+1", "question": "1+1", "answer": "#### 2"}])

    def problems(*names: str) -> Any:
        line = ["eval", "run", *names, "--data", str(tmp_path), "--limit", "1"]
        args = cli.build_parser().parse_args(line)
        args.sources, args.user_options = {}, {}
        return request.load_problems(args, request.from_arguments(args))

    assert [one.reference for one in problems("gsm8k")["gsm8k"]] == ["2"]
    with pytest.raises(ValueError, match="holds none of"):
        problems("gsm8k", "math500")


def test_a_failed_fetch_names_the_other_way(monkeypatch):
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


def test_a_limit_draws_by_the_seed_in_the_files_order(load: Load):
    rows = [{"input": f"1,{i}", "output": str(i)} for i in range(30)]
    ids = [
        [int(p.id) for p in load("countdown", rows, limit=n, seed=seed)]
        for n, seed in ((0, 5), (30, 5), (8, 0), (8, 0), (8, 1))
    ]
    assert ids[0] == ids[1] == list(range(30))
    assert ids[2] == ids[3] == sorted(ids[2]) != ids[4] and len(set(ids[2])) == 8
    with pytest.raises(ValueError, match="limit must be 0"):
        sample([1], -1, 0)


def test_ids_are_unique_even_where_the_files_are_not(load: Load):
    row = CASES["math500"][0][0]
    assert [p.id for p in load("math500", [row, row, row])] == [
        "test/a/1.json", "test/a/1.json#2", "test/a/1.json#3",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_right_answers_pass_and_wrong_ones_fail(load: Load, name: str):
    _, right, wrong = CASES[name]
    (problem,) = load(name)
    assert problem.task == name and json.loads(json.dumps(problem.reference)) == problem.reference
    assert problem.raw and problem.messages[0]["role"] in ("system", "user")
    assert all(m["role"] in ("system", "user") for m in problem.messages[1:]) or (
        name == "humaneval-code" and problem.messages[-1]["content"].endswith("```python\n")
    )
    for text in right:
        found = grade(problem, text)
        assert (found.correct, found.score) == (True, 1.0), (text, found)
        assert found.answer and "\n" not in found.detail
    for text in [*wrong, ""]:
        found = grade(problem, text)
        assert found.correct is False and found.score < 1, (text, found)
    assert grade(problem, "").answer is None


def test_the_prompts_are_the_benchmarks_own(load: Load):
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


@pytest.mark.parametrize("name", ["arithmetic3", "arithmetic6", "arithmetic8", "equations"])
def test_generated_problems_are_true(name: str):
    task = tasks.get(name)
    problems = task.load(limit=60, seed=3)
    assert problems == task.load(limit=60, seed=3) != task.load(limit=60, seed=4)
    assert len({p.messages[0]["content"] for p in problems}) == 60 == len({p.id for p in problems})
    for problem in problems:
        question = problem.messages[0]["content"]
        if name == "equations":
            left, right = question.removeprefix("Solve ").split("=")
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


def test_generated_tasks_take_no_file(tmp_path):
    task = tasks.get("equations")
    assert len(task.load(tmp_path, fetch=True)) == generated.N_DEFAULT
    with pytest.raises(ValueError, match="equations is generated: it takes a limit and a seed"):
        task.load(tmp_path / "equations.jsonl")
    assert len(task.load(limit=generated.N_MOST)) == generated.N_MOST
    for limit in (-1, generated.N_MOST + 1):
        with pytest.raises(ValueError, match="limit must be from 0"):
            task.load(limit=limit)


@pytest.mark.parametrize(
    ("name", "n"),
    [("math500", 500), ("aime25", 30), ("gsm8k", 1319), ("humaneval", 164), ("ifeval", 541),
     ("countdown", 256), ("game24", 100)],
)  # fmt: skip
def test_the_public_files_load_whole(name: str, n: int):
    if not DATA:
        pytest.skip("TGR_DATA names no folder of public data (bench/check_graders.py grades it)")
    assert len(tasks.get(name).load(Path(DATA))) == n


def test_a_row_without_a_list_says_so():
    row = Row("row 1", {"a": "{}", "b": "[1"})
    with pytest.raises(ValueError, match="row 1: field 'a' is not a list"):
        row.list("a")
    with pytest.raises(ValueError, match="field 'b' is neither JSON nor a Python literal"):
        row.list("b")
