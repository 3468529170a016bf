"""``tgr-local eval`` from the outside: runs, resumed and refused ones, reports."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sandboxes
from command_line import run
from eval_doubles import timeless
from fixture_types import Model
from judge_server import judge_server
from surroundings import ROOT

from tgr_local.commands.cli import arguments
from tgr_local.lab.eval import manifest, programs, samples
from tgr_local.lab.eval.request import command_line
from tgr_local.lab.eval.samples import Sample, Store


@pytest.fixture
def data(tmp_path) -> Path:
    """A made-up file in Countdown's format."""
    rows = [{"input": "1,2,3", "output": "6"}, {"input": "4,5,6", "output": "15"}]
    path = tmp_path / "countdown.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def command(model: Model, data: Path, tmp_path) -> list[str]:
    return [
        "eval", "run", "countdown", "--data", str(data), "--model", str(model()),
        "--n-threads", "1",
        "--chunk-len", "6", "--max-chunks", "2", "--n-candidates", "2", "--rollout-len", "3",
        "--type-k", "f32", "--type-v", "f32", "--flash-attn", "off", "--k", "1..4",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip


def test_a_run_ends_in_a_report(command: list[str], tmp_path, capsys):
    assert run(*command) == 0
    out, err = capsys.readouterr()
    assert "| tgr-latent |" in out and "At equal forward tokens" in out
    assert "countdown base (1 of 2): 8/8 samples" in err
    folder = tmp_path / "run"
    about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert about["model"]["sha256"] and about["seeds"] == [42] and about["k"] == [1, 2, 4]
    assert about["systems"][1]["config"]["chunk_len"] == 6
    assert (folder / "report.md").read_text(encoding="utf-8").startswith("# Evaluation")

    before = (folder / "samples.jsonl").read_bytes()
    assert run(*command, "--k", "1..8") == 0  # more samples go on from those there are
    after = (folder / "samples.jsonl").read_bytes()
    assert after.startswith(before) and after.count(b"\n") == 2 * before.count(b"\n")


def test_another_config_does_not_resume(command: list[str], tmp_path, capsys):
    assert run(*command, "--methods", "base") == 0
    capsys.readouterr()
    for change, says in (
        (("--temperature", "0.7"), "systems.base.temperature was 0.6 and is 0.7"),
        (("--seeds", "1"), "seeds was [42] and is [1]"),
        (("--limit", "1"), "tasks.countdown.problems was 2 and is 1"),
        (("--methods", "markov"), "systems.base was"),
    ):
        assert run(*command, "--methods", "base", *change) == 1
        assert says in capsys.readouterr().err.replace("config.", "")


def test_a_run_with_former_options_resumes_where_they_changed_nothing(
    command: list[str], tmp_path, capsys
):
    command += ["--methods", "base"]
    assert run(*command) == 0
    path = tmp_path / "run" / "manifest.json"
    about = json.loads(path.read_bytes())
    about["systems"][0]["config"] |= {"min_gap": 0.0, "rollout_end": "length", "last_layer": -1}
    about["systems"][0] |= {"probe": "none"}
    about["systems"][0]["config"] |= {"probe": "", "vote_weight": "auto"}
    about["machines"][0]["settings"] |= {"draft_model": "", "draft_tokens": 0}
    path.write_text(json.dumps(about), encoding="utf-8")
    assert run("eval", "report", str(path.parent)) == 0
    page = (path.parent / "report.md").read_text(encoding="utf-8")
    assert "n_candidates 2" in page and not re.search("min_gap|rollout_end|last_layer", page)
    assert run(*command) == 0
    assert len(json.loads(path.read_bytes())["machines"]) == 1

    about["systems"][0]["config"]["min_gap"] = 0.5
    path.write_text(json.dumps(about), encoding="utf-8")
    assert run("eval", "report", str(path.parent)) == 0
    page = (path.parent / "report.md").read_text(encoding="utf-8")
    assert "min_gap 0.5" in page and "rollout_end" not in page
    capsys.readouterr()
    assert run(*command) == 1
    says = (
        "options: systems.base.config.min_gap was 0.5 and has left the search; repeat its options"
    )
    assert says in capsys.readouterr().err


def test_a_system_without_any_reply_is_named_at_the_end(command: list[str], tmp_path, capsys):
    some = ["--variant", "tgr-latent:max_forward_tokens=3", "--variant", "base:top_k=5"]
    for _ in range(2):
        assert run(*command, *some, "--k", "1,2") == 1
        out, err = capsys.readouterr()
        assert "| base:top_k=5 |" in out
        last = err.splitlines()[-1]
        assert "none of the 4 samples of tgr-latent:max_forward_tokens=3 on countdown" in last
        assert "could be made: max_forward_tokens is 3" in last and "bug" not in last
    assert run(*command, "--max-forward-tokens", "3", "--out", str(tmp_path / "all")) == 1
    assert "samples of base on countdown" in capsys.readouterr().err
    assert (tmp_path / "all" / "report.md").exists()


def test_methods_replace_the_systems_of_a_recipe(command: list[str], tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(
        "reference = 'hot'\n[[systems]]\nname = 'hot'\nmethod = 'base'\ntemperature = 2.0\n"
    )
    names = []
    for flags in (["--variant", "markov"], ["--methods", "base", "--variant", "base:top_k=5"]):
        out = tmp_path / f"run{len(names)}"
        assert run(*command, "--recipe", str(path), *flags, "--k", "1", "--out", str(out)) == 0
        about = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        names.append([about["reference"], *(system["name"] for system in about["systems"])])
    assert names == [["hot", "hot", "markov"], ["", "base", "base:top_k=5"]]
    assert run(*command, "--recipe", str(path), "--methods", "base", "--reference", "hot") == 2
    assert "reference is 'hot', but must be one of base" in capsys.readouterr().err


def test_one_answer_is_a_metric_of_runs_and_of_reports(command: list[str], tmp_path, capsys):
    position = command.index("--k")
    one = [*command[:position], *command[position + 2 :], "--metric", "one", "--seeds", "42,7"]
    assert run(*one, "--methods", "base,self-consistency", "--n-samples", "2") == 0
    out, _ = capsys.readouterr()
    assert "### One answer" in out and "| self-consistency |" in out and "Pass@" not in out
    about = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert (about["metric"], about["k"]) == ("one", [1]) and "--metric one" in about["command"]
    report = ["eval", "report", str(tmp_path / "run"), "--out", str(tmp_path / "a.md")]
    for more, says in (((), "One answer"), (("--metric", "samples"), "At equal k")):
        assert run(*report, *more) == 0
        text = (tmp_path / "a.md").read_text(encoding="utf-8")
        assert re.findall("^### (.*)$", text, flags=re.MULTILINE)[0] == says


def test_a_recipe_may_ask_for_one_answer(command: list[str], tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("metric = 'one'\n[[systems]]\nmethod = 'base'\n")
    position = command.index("--k")
    plain = [*command[:position], *command[position + 2 :], "--recipe", str(path)]
    assert run(*plain) == 0
    about = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert (about["metric"], about["k"]) == ("one", [1])


def test_injection_seeds_are_systems_of_their_own(command: list[str], tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("reference = 'tgr-latent'\n[[systems]]\nmethod = 'tgr-latent'\n")
    more = ["--recipe", str(path), "--variant", "base", "--injection-seeds", "1,2", "--k", "1,2"]
    assert run(*command, *more) == 0
    about = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    names = ["tgr-latent, injection seed 1", "tgr-latent, injection seed 2"]
    assert [system["name"] for system in about["systems"]] == [*names, "base"]
    assert [s["config"]["injection_seed"] for s in about["systems"][:2]] == [1, 2]
    assert about["reference"] == names[0] and "--injection-seeds 1,2" in about["command"]
    text = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "### AUC of each injection seed" in text
    assert "| system | injection seed 1 | injection seed 2 | mean ± SD |" in text


def test_a_report_takes_another_reference(command: list[str], tmp_path, capsys):
    assert run(*command, "--methods", "base,markov", "--k", "1,2") == 0
    capsys.readouterr()
    report = ["eval", "report", str(tmp_path / "run"), "--out", str(tmp_path / "a.md")]
    for name in ("base", "markov"):
        assert run(*report, "--reference", name) == 0
        assert f"minus {name} |" in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert run(*report, "--reference", "nobody") == 2
    assert "must be one of base, markov" in capsys.readouterr().err
    (tmp_path / "a.md").unlink()
    (tmp_path / "a.md").symlink_to("/dev/full")
    assert run(*report) == 1
    assert f"{tmp_path / 'a.md'}: No space left on device" in capsys.readouterr().err


def test_a_report_may_be_on_some_systems_of_some_runs(command: list[str], tmp_path, capsys):
    assert run(*command, "--methods", "base,markov,random-anchor", "--k", "1,2") == 0
    other = ["--out", str(tmp_path / "other"), "--methods", "random-anchor", "--k", "1,2"]
    assert run(*command, *other) == 0
    capsys.readouterr()
    folders = [str(tmp_path / name) for name in ("run", "other")]
    report = ["eval", "report", *folders, "--out", str(tmp_path / "a.md")]
    chosen = ["--system", "markov", "--system", "base"]
    assert run(*report, *chosen) == 0
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    table = text.split("### At equal k")[1].split("###")[0]
    assert re.findall(r"^\| ([a-z-]+) \|", table, re.MULTILINE) == ["system", "base", "markov"]
    assert "- run: `other" not in text and "- samples: `8, seeds" in text
    assert run(*report, *chosen, "--reference", "random-anchor") == 2
    assert "must be one of base, markov" in capsys.readouterr().err
    assert run(*report, "--system", "nobody") == 2
    assert "system is 'nobody', but must be one of base, mark" in capsys.readouterr().err


def test_the_time_for_a_grade_may_change(command: list[str], tmp_path):
    assert run(*command, "--methods", "base", "--k", "1") == 0
    assert run(*command, "--methods", "base", "--k", "1", "--grade-seconds", "20") == 0
    about = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert about["grading"] == {"seconds": 20.0, "allow_exec": False, "judge": ""}


@pytest.fixture
def judge() -> Iterator[str]:
    """The URL of a judge that gives 8 of 10."""
    with judge_server("first", lambda _: '{"score": 8}') as url:
        yield url


def test_a_judge_may_be_added_later_but_not_changed(
    command: list[str], tmp_path, judge: str, monkeypatch, capsys
):
    data = tmp_path / "writingbench.jsonl"
    row = {"index": 1, "domain1": "Education", "query": "A poem.", "checklist": ["rhymes"]}
    data.write_text(json.dumps(row) + "\n", encoding="utf-8")
    asked = [*command, "--data", str(data), "--methods", "base", "--k", "1,2"]
    asked[asked.index("countdown")] = "writingbench"
    folder = tmp_path / "run"

    def state() -> tuple[dict[str, Any], set[bool | None]]:
        about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return about["grading"], {s.correct for s in samples.read(folder / "samples.jsonl")}

    assert run(*asked) == 0
    grading, grades = state()
    assert grading["judge"] == "" and "judge_model" not in grading and grades == {None}
    monkeypatch.setenv("TGR_JUDGE_URL", judge)
    assert run(*asked) == 0
    grading, grades = state()
    assert (grading["judge"], grading["judge_model"], grades) == (judge, "first", {True})
    capsys.readouterr()
    monkeypatch.setenv("TGR_JUDGE_MODEL", "another")
    assert run(*asked) == 1
    assert "grading.judge_model was 'first' and is 'another'" in capsys.readouterr().err
    monkeypatch.delenv("TGR_JUDGE_MODEL")
    monkeypatch.delenv("TGR_JUDGE_URL")
    assert run(*asked, "--judge-url", judge) == 0
    assert run(*asked) == 1
    assert "grading.judge was 'http" in capsys.readouterr().err

    path = folder / "manifest.json"  # an older manifest
    about = json.loads(path.read_text(encoding="utf-8"))
    about["grading"] = {"seconds": 10.0, "allow_exec": False, "judge": judge}
    path.write_text(json.dumps(about), encoding="utf-8")
    assert run(*asked, "--judge-url", judge) == 0
    assert state()[0]["judge_model"] == "first"


def test_a_manifest_names_the_packages_that_grade():
    found = manifest.grading_settings(["math500", "countdown"], 10.0, False, ("", ""))
    assert found.pop("math-verify") == importlib.metadata.version("math-verify")
    assert found == {"seconds": 10.0, "allow_exec": False, "judge": ""}
    names = set(
        manifest.grading_settings(["ifeval", "writingbench"], 10.0, False, ("http://x", "m"))
    )
    assert {"lm-eval", "sacrebleu", "judge_model"} <= names

    def graded(task: str, correct: bool | None, answer: str | None = "7") -> Sample:
        return Sample(
            task, "p", "s", 1, 0, "text", "", 1, "stop", correct, 0.0, answer, "", None, {}, {}, 0.0
        )

    assert manifest.grading_in_use([graded("math500", True)]) == {"math-verify"}
    assert manifest.grading_in_use([graded("humaneval", False, None)]) == {
        "seconds",
        "allow_exec",
        "sandbox",
    }
    assert manifest.grading_in_use([graded("writingbench", True)]) == {"judge", "judge_model"}
    nothing = [graded("math500", None), graded("humaneval", None), graded("writingbench", None)]
    assert manifest.grading_in_use([*nothing, graded("writingbench", False, None)]) == set()


def humaneval(command: list[str], tmp_path) -> list[str]:
    """The command for a task whose grading runs programs."""
    row = {
        "task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f",
        "canonical_solution": "    return 7\n", "test": "def check(f):\n    assert f() == 7\n",
    }  # fmt: skip
    data = tmp_path / "humaneval.jsonl"
    data.write_text(json.dumps(row) + "\n", encoding="utf-8")
    asked = [*command, "--data", str(data), "--methods", "base", "--k", "1", "--allow-exec"]
    asked[asked.index("countdown")] = "humaneval"
    return asked


def test_the_sandbox_is_named_everywhere_and_must_not_change(command: list[str], tmp_path, capsys):
    sandboxes.needed("limits")
    asked = [*humaneval(command, tmp_path), "--sandbox", "limits"]
    assert run(*asked) == 0
    assert (
        "programs run in the sandbox limits: only resources are limited" in capsys.readouterr().err
    )
    folder = tmp_path / "run"
    about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert about["grading"]["sandbox"] == "limits" and "--sandbox limits" in about["command"]
    assert "sandbox: `limits: " in (folder / "report.md").read_text(encoding="utf-8")
    if not programs.obstacle("bwrap"):
        assert run(*asked, "--sandbox", "bwrap") == 1
        assert "grading.sandbox was 'limits' and is 'bwrap'" in capsys.readouterr().err


def test_a_missing_sandbox_backend_is_an_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "obstacle", programs.obstacle.__wrapped__)
    assert run(*humaneval(command, tmp_path)) == 1
    err = capsys.readouterr().err
    assert "bwrap does not work here: there is no program bwrap; install bubblewrap" in err
    first = "none (only resources" if programs.obstacle("limits") else "limits (only resources"
    assert f"--sandbox: {first}" in err and err.count("\n") == 1
    assert "none (only resources are limited; it has the rights of this user, on this" in err
    assert not (tmp_path / "run").exists()
    assert run(*humaneval(command, tmp_path), "--sandbox", "none") == 0
    assert "programs run without a sandbox: only resources are limited" in capsys.readouterr().err
    about = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert about["grading"]["sandbox"] == "none"
    samples = (tmp_path / "run" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert samples and all(json.loads(one)["correct"] is False for one in samples)


def test_another_machine_resumes(command: list[str], tmp_path, capsys):
    path = tmp_path / "run" / "manifest.json"
    assert run(*command, "--methods", "base", "--k", "1") == 0
    about = json.loads(path.read_text(encoding="utf-8"))
    assert "n_threads" not in about["engine"] and about["machines"][0]["threads"] == 1
    about["engine"]["n_threads"] = 7  # an older manifest
    about["versions"]["python"] = "3.99"
    model = about["model"]
    about["model"] = model | {"name": "of-another-folder", "description": "of another build"}
    del about["machines"][0]["settings"], about["command"]
    path.write_text(json.dumps(about), encoding="utf-8")
    more = [*command, "--methods", "base", "--k", "1,2", "--n-threads", "2", "--n-ubatch", "64"]
    assert run(*more, "--parallel", "3") == 0
    about = json.loads(path.read_text(encoding="utf-8"))
    assert [machine["threads"] for machine in about["machines"]] == [1, 2]
    assert about["machines"][1]["settings"]["n_ubatch"] == 64
    assert about["model"] == model
    assert about["command"].startswith("tgr-local eval run countdown --methods base --k 1,2 --data")
    assert str(tmp_path) not in about["command"] and "--n-threads 2" in about["command"]
    capsys.readouterr()
    assert run(*more, "--type-k", "f16") == 1
    assert "engine.type_k was 'f32' and is 'f16'" in capsys.readouterr().err
    path.write_text(json.dumps(about | {"model": model | {"sha256": "0" * 64}}), encoding="utf-8")
    assert run(*more) == 1
    assert "model.sha256 was '000" in capsys.readouterr().err


def test_a_folder_in_use_is_not_touched(command: list[str], tmp_path, capsys):
    folder = tmp_path / "run"
    assert run(*command, "--methods", "base", "--k", "1") == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with Store(folder / "samples.jsonl"):
        assert run(*command, "--methods", "base", "--k", "1,2") == 1
    assert "being written by another process" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "manifest.json").unlink()
    assert run(*command, "--methods", "base", "--k", "1") == 1
    assert "holds samples but no manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eval"], "arguments are required: COMMAND; see tgr-local eval --help"),
        (["eval", "run"], "name a task or a --recipe"),
        (["eval", "countdown"], "invalid choice: 'countdown' (choose from "),
        (["eval", "run", "contdown"], "did you mean countdown"),
        (["eval", "run", "nosuch"], "unknown task 'nosuch'; tgr-local eval list shows all"),
        (["eval", "run", "--recipe", "abblation"], "did you mean ablation"),
        (
            ["eval", "run", "--recipe", "README.md"],
            "recipe 'README.md'; tgr-local eval list shows all",
        ),
        (["eval", "run", "--recipe", "README.md"], "must end in .toml"),
        (["eval", "run", "countdown", "--k", "8..1"], "must increase"),
        (["eval", "run", "countdown", "--k", "few"], "the form 1..128"),
        (["eval", "run", "countdown", "--k", "0..8"], "at least 1"),
        (["eval", "run", "countdown", "--metric", "two"], "metric is 'two', but must be one of s"),
        (["eval", "report", "x", "--metric", "two"], "metric is 'two', but must be one of samples"),
        (["eval", "run", "countdown", "--seeds", "1,1"], "different"),
        (["eval", "run", "countdown", "--seed", "3"], "--seeds"),
        (["eval", "run", "countdown", "--injection-seeds", "x"], "injection_seeds is 'x', but mus"),
        (["eval", "run", "countdown", "--methods", "base", "--injection-seeds", "1"], "no system"),
        (["eval", "run", "countdown", "--limit", "-3"], "between 0"),
        (["eval", "run", "countdown", "--methods", ","], "methods is ','; name some, or leave --m"),
        (["eval", "run", "countdown", "--injection-seeds", ""], "injection_seeds is ''; name some"),
        (["eval", "run", "countdown", "--graders", "0"], "graders is 0, but must be between 1"),
        (["eval", "run", "countdown", "--grade-seconds", "0"], "grade_seconds is 0, but must be"),
        (["eval", "run", "countdown", "--methods", "magic"], "unknown method"),
        (["eval", "run", "countdown", "--variant", "base:temperature=hot"], "a number"),
        (["eval", "run", "countdown", "--reference", "nobody"], "one of base, tgr-latent"),
        (["eval", "run", "humaneval"], "--allow-exec"),
        (["eval", "run", "humaneval", "--sandbox", "limits"], "--allow-exec"),
        (
            ["eval", "run", "humaneval", "--sandbox", "moat"],
            "sandbox is 'moat', but must be one of bwrap",
        ),
        (["eval", "report"], "the following arguments are required: RUN"),
        (
            ["eval", "report", "x", "--k", "1..4", "--methods", "base"],
            "unknown argument '--methods'",
        ),
        (["eval", "report", "x", "--sigma", "1", "--no-thinking"], "unknown argument '--sigma'"),
        (["eval", "list", "--k", "3"], "unknown argument '--k'"),
        (["eval", "run", "aime25", "math500", "--data", __file__], "have a file each; name "),
        (["eval", "run", "countdown", "--judge-url", "localhost"], "must begin with http"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], says: str, capsys):
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_a_system_that_the_engine_cannot_hold_is_refused_before_the_first_sample(
    command: list[str], tmp_path, capsys
):
    assert run(*command, "--n-seq-max", "2") == 1
    assert "tgr-latent needs 3 sequences at a time, but the engine holds 2" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("below", ["", "/run"])
def test_a_file_in_the_place_of_the_folder_is_refused(
    command: list[str], tmp_path, below: str, capsys
):
    (tmp_path / "file").touch()
    assert run(*command, "--out", f"{tmp_path}/file{below}") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"tgr-local: {tmp_path}/file: it is not a folder; move it away, or name another"


def test_a_folder_that_is_not_a_run_is_refused(tmp_path, capsys):
    assert run("eval", "report", str(tmp_path)) == 1
    assert "is not a run folder of tgr-local eval" in capsys.readouterr().err


KILLED = """if True:
    import os, signal, sys, threading, time
    from tgr_local.commands.cli import main
    from tgr_local.lab.eval.samples import Store
    def kill(store):
        while not store.known:
            time.sleep(0.001)
        time.sleep(float(sys.argv[1]))
        os.kill(os.getpid(), signal.SIGKILL)
    def add(store, sample, n=[0]):
        n[0] += 1
        if n[0] == 2:
            threading.Thread(target=kill, args=[store]).start()
        if n[0] == 6:
            time.sleep(3600)
        plain(store, sample)
    plain, Store.add = Store.add, add
    main(sys.argv[2:])
"""
"""A command that kills itself a while after its first sample is on the disk, before its sixth."""


def test_kill_9_loses_nothing(command: list[str], tmp_path):
    options = [*command, "--methods", "tgr-latent", "--k", "8", "--parallel", "1"]
    assert run(*options) == 0
    whole = {sample.key: sample for sample in samples.read(tmp_path / "run" / "samples.jsonl")}
    options[options.index("--out") + 1] = str(tmp_path / "killed")
    for wait in ("0.01", "0.04"):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, wait, *options], cwd=ROOT, capture_output=True
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    path = tmp_path / "killed" / "samples.jsonl"
    assert 0 < len(samples.read(path)) < len(whole) == 16
    assert run(*options) == 0
    found = list(samples.read(path))
    assert len(found) == len(whole)
    assert timeless({sample.key: sample for sample in found}) == timeless(whole)


def test_the_command_of_a_run_has_the_options_of_files_and_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tgr-local").mkdir()
    settings = 'tensor_split = [1, 2.5]\nuse_mmap = false\nstop = ["a b", "c"]\n'
    (tmp_path / "tgr-local" / "config.toml").write_text(settings)
    monkeypatch.setenv("TGR_THINKING", "off")
    monkeypatch.setenv("TGR_REPRODUCIBLE", "yes")
    words = ["eval", "run", "countdown"]
    written = command_line(there := arguments(words))
    assert "--tensor-split 1.0,2.5" in written
    (tmp_path / "tgr-local" / "config.toml").unlink()
    monkeypatch.delenv("TGR_THINKING")
    monkeypatch.delenv("TGR_REPRODUCIBLE")
    again = arguments(shlex.split(written)[1:])
    assert (again.engine, again.user_options) == (there.engine, there.user_options)
    assert again.engine != arguments(words).engine
