"""Runs: what is drawn, what it costs, what a kill loses, what resumes and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from tgr_local import cli, methods
from tgr_local.config import SearchConfig
from tgr_local.engine import Engine
from tgr_local.errors import TgrError
from tgr_local.eval import recipe, runs, samples, systems, tasks
from tgr_local.eval.runs import Phase
from tgr_local.eval.samples import Draw, Sample, Store
from tgr_local.eval.systems import System
from tgr_local.eval.task import Grade, Problem

SMALL = SearchConfig(chunk_len=6, max_chunks=2, n_candidates=2, rollout_len=3)
PROBLEMS = [
    Problem("toy", name, ({"role": "user", "content": text},), None, raw=text)
    for name, text in (("a", "one"), ("b", "two and two"), ("c", "three"))
]


class Letters:
    """Grades at once: right if the text has an even number of letters."""

    def submit(self, problem: Problem, text: str) -> Future[Grade]:
        future: Future[Grade] = Future()
        even = len(text) % 2 == 0
        future.set_result(Grade(even, float(even), str(len(text))))
        return future


class Watcher:
    """Counts what it hears, and interrupts after so many samples."""

    def __init__(self, interrupt_after: int = 10**9) -> None:
        self.heard: list[Sample] = []
        self._after = interrupt_after

    def phase(self, phase: Phase, samples: Sequence[Sample], n_total: int) -> None:
        self.n_known, self.n_total = len(samples), n_total

    def sample(self, sample: Sample) -> None:
        self.heard.append(sample)
        if len(self.heard) >= self._after:
            raise RuntimeError("interrupted by the test")


def toy(system: str = "tgr-latent", problems: Sequence[Problem] = PROBLEMS) -> Phase:
    found = systems.from_text(system)
    return Phase("toy", found, found.resolve(SMALL, 64), problems, raw=False)


def go(
    engine: Engine, path: Path, phase: Phase, draw: Draw, watcher: Watcher | None = None,
    parallel: int = 4,
) -> tuple[dict[str, Any], dict[samples.Key, Sample]]:  # fmt: skip
    with Store(path) as store:
        watched = watcher or Watcher()
        took = runs.run_phase(engine, phase, draw, store, Letters(), watched, parallel)
    return took, {sample.key: sample for sample in samples.read(path)}


def timeless(known: dict[samples.Key, Sample]) -> dict[samples.Key, Sample]:
    """The samples without what a clock says, and without the last digits that change with the batch
    that they were computed in; texts and choices stay."""
    return {
        key: dataclasses.replace(
            sample,
            seconds=0.0,
            parts={},
            logprob=None if sample.logprob is None else round(sample.logprob, 3),
            boundaries=[{"chosen": b.get("chosen")} for b in sample.boundaries],
        )
        for key, sample in sorted(known.items())
    }


# ---- what is drawn ----


def test_a_seed_is_a_function_of_where_its_sample_stands() -> None:
    places = [(s, t, p, i) for s in (1, 2) for t in "xy" for p in ("1", "11") for i in range(9)]
    seeds = [runs.seed_of(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [runs.seed_of(*place) for place in places]


def test_every_problem_gets_its_samples_and_each_its_own_seed(
    engine: Engine, tmp_path: Path
) -> None:
    took, known = go(engine, tmp_path / "s", toy(), Draw(3, (42, 7)))
    assert took["samples"] == len(known) == 3 * 3 * 2
    assert {key[2:] for key in known} == {
        (p.id, seed, i) for p in PROBLEMS for seed in (42, 7) for i in range(3)
    }
    texts = {(sample.text, sample.thinking) for sample in known.values()}
    assert len(texts) == len(known)  # a random model does not repeat itself


def test_systems_that_differ_in_nothing_draw_the_same(engine: Engine, tmp_path: Path) -> None:
    texts = []
    for name in ("markov", "markov:lambda_b=0.9"):
        _, known = go(engine, tmp_path / name, toy(name), Draw(2, (42,)))
        texts.append([known[key].text for key in sorted(known)])
    assert texts[0] == texts[1]


def test_how_many_run_at_a_time_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    alone = go(engine, tmp_path / "1", toy(), Draw(3, (42,)), parallel=1)[1]
    together = go(engine, tmp_path / "9", toy(), Draw(3, (42,)), parallel=0)[1]
    assert timeless(alone) == timeless(together)


# ---- what it costs ----


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_tokens_by_kind_sum_to_the_engines_own_count(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    before = engine.stats().n_positions
    few = "n_samples=2,power_blocks=2,power_steps=1,tree_breadth=1,tree_proposals=2,graph_merges=0"
    took, known = go(engine, tmp_path / "s", toy(f"{name}:{few}"), Draw(2, (42,)))
    decoded = engine.stats().n_positions - before
    assert took["positions"] == took["counted"] == decoded > 0
    assert sum(sum(sample.counts.values()) for sample in known.values()) == decoded


def test_a_budget_is_filled_by_every_problem_and_by_no_more_than_it_takes(
    engine: Engine, tmp_path: Path
) -> None:
    budget = 300
    _, known = go(engine, tmp_path / "s", toy("base"), Draw(2, (42,), budget))
    for problem in PROBLEMS:
        costs = [s.cost for key, s in sorted(known.items()) if key[2] == problem.id]
        assert sum(costs) >= budget
        assert sum(costs) < 2 * budget
    _, again = go(engine, tmp_path / "t", toy("base"), Draw(2, (42,), budget), parallel=1)
    assert timeless(again) == timeless(known)


def test_a_method_that_searches_keeps_what_a_report_needs(engine: Engine, tmp_path: Path) -> None:
    _, known = go(engine, tmp_path / "s", toy("tgr-latent"), Draw(2, (42,)))
    for key, sample in known.items():
        assert sample.logprob is not None and sample.logprob < 0
        boundary = sample.boundaries[0]
        assert {"V", "P_bum", "P_uni", "S", "chosen", "apcs", "n_eff", "angle"} <= set(boundary)
        assert len(boundary["S"]) == SMALL.n_candidates
        assert boundary["chosen"] == max(range(2), key=lambda k: (boundary["S"][k], -k))
        assert ("rollouts" in boundary) == (key[-1] == 0)
    _, known = go(engine, tmp_path / "t", toy("base"), Draw(1, (42,)))
    assert all(sample.boundaries == [] for sample in known.values())


def test_a_prompt_that_cannot_fit_is_recorded_and_the_rest_goes_on(
    engine: Engine, tmp_path: Path
) -> None:
    long = Problem("toy", "long", ({"role": "user", "content": "x" * 5000},), None)
    took, known = go(engine, tmp_path / "s", toy(problems=[*PROBLEMS, long]), Draw(2, (1,), 50))
    refused = [sample for sample in known.values() if sample.finish == "error"]
    assert {sample.problem for sample in refused} == {"long"}
    assert all(s.correct is None and "trained for" in s.detail for s in refused)
    assert took["counted"] == took["positions"] > 0


# ---- what an interrupt loses ----


def test_an_interrupted_run_resumes_to_the_same_samples(engine: Engine, tmp_path: Path) -> None:
    whole = go(engine, tmp_path / "whole", toy(), Draw(4, (42,)))[1]
    path = tmp_path / "cut"
    for after in (1, 3):
        with pytest.raises(RuntimeError, match="interrupted by the test"):
            go(engine, path, toy(), Draw(4, (42,)), Watcher(after))
    n_kept = len(list(samples.read(path)))
    assert n_kept >= 4
    watcher = Watcher()
    took, resumed = go(engine, path, toy(), Draw(4, (42,)), watcher)
    assert took["samples"] == len(whole) - n_kept and watcher.n_known == n_kept
    assert timeless(resumed) == timeless(whole)
    assert len(list(samples.read(path))) == len(whole)  # none twice
    assert go(engine, path, toy(), Draw(4, (42,)))[0]["samples"] == 0


def test_a_torn_last_line_is_cut_off_and_made_again(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "s"
    whole = go(engine, path, toy(), Draw(2, (42,)))[1]
    data = path.read_bytes()
    for cut in (1, 40, len(data) - data.rindex(b"\n", 0, -1) - 2):
        path.write_bytes(data[:-cut])
        assert len(list(samples.read(path))) == len(whole) - 1
        assert timeless(go(engine, path, toy(), Draw(2, (42,)))[1]) == timeless(whole)


class Broken(Letters):
    """Has no grade for texts of which `fails` says so, and counts what it is asked."""

    def __init__(self, fails: Callable[[str], bool], why: str = "grader died (SIGSEGV)") -> None:
        self._fails, self._why, self.asked = fails, why, 0

    def submit(self, problem: Problem, text: str) -> Future[Grade]:
        self.asked += 1
        future = super().submit(problem, text)
        if self._fails(text):
            future = Future()
            future.set_result(Grade(None, 0.0, None, self._why))
        return future


def test_a_grade_that_failed_is_made_again(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "s"

    def graded_by(grades: Broken) -> tuple[int, int]:
        """How many grades were asked for, and how many lines there are then."""
        with Store(path) as store:
            runs.run_phase(engine, toy(), Draw(2, (42,)), store, grades, Watcher(), 4)
        return grades.asked, path.read_bytes().count(b"\n")

    before = engine.stats().n_positions
    assert graded_by(Broken(lambda text: True)) == (6, 6)
    made, first = engine.stats().n_positions, samples.read(path)
    assert made > before and all(s.correct is None and s.boundaries for s in first)
    asked, n_lines = graded_by(Broken(lambda text: text != first[0].text))
    assert (asked, n_lines) == (6, 7)  # what fails again has no second line
    assert graded_by(Broken(lambda text: False)) == (5, 12)
    assert graded_by(Broken(lambda text: False)) == (0, 12)
    assert engine.stats().n_positions == made
    found = samples.read(path)  # the last line of each
    assert [dataclasses.replace(s, correct=None) for s in first] == [
        dataclasses.replace(s, correct=None, score=0.0, answer=None, detail=first[0].detail)
        for s in found
    ]
    assert [s.correct for s in found] == [len(s.text) % 2 == 0 for s in first]


def test_what_was_not_graded_for_a_reason_is_left_alone(engine: Engine, tmp_path: Path) -> None:
    skips = Broken(lambda text: True, "skipped: no judge")
    for _ in range(2):
        with Store(tmp_path / "s") as store:
            runs.run_phase(engine, toy("base"), Draw(2, (42,)), store, skips, Watcher(), 4)
    assert skips.asked == 6


def test_a_torn_line_gives_way_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "phases.jsonl"
    for record in ({"a": 1}, {"b": 2}):
        samples.append(path, record)
    path.write_bytes(path.read_bytes()[:-3])
    samples.append(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_one_process_writes_a_file_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path / "s"), pytest.raises(TgrError, match="another process"):
        Store(tmp_path / "s")
    with Store(tmp_path / "s"):
        pass


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b'{"task": 1}\n')
    with pytest.raises(TgrError, match="line 1 is damaged"):
        list(samples.read(path))
    path.write_bytes(b"\xff\n")
    with pytest.raises(TgrError, match="line 1 is damaged"):
        Store(path)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    sample = Sample("t", "p", "s", 1, 0, "", "", 0, "stop", True, 1.0, None, "", None, {}, {}, 0.0)
    monkeypatch.setattr(os, "fsync", fail)
    with Store(tmp_path / "s") as store:
        store.add(sample)
        with pytest.raises(OSError, match="No space left"):
            store.flush()
        monkeypatch.undo()
        store.add(sample)  # what comes after a gap is not written either
        store.flush()
        assert store.known == {}


# ---- systems and recipes ----


def test_a_system_is_a_method_with_options() -> None:
    text = "tgr-latent:lambda_b=0,rank=4,normalize-scores=on"
    found = systems.from_text(text)
    assert (found.name, found.method) == (text, "tgr-latent")
    config = found.resolve(SearchConfig(temperature=0.9), 64)
    assert (config.lambda_b, config.rank, config.normalize_scores) == (0, 4, True)
    assert config.temperature == 0.9


def test_a_factor_scales_what_the_run_has() -> None:
    options = {"chunk_len": "0.5x", "max_chunks": "2x", "d_z": "0.5x", "eta": "0.5x"}
    config = System("half", "tgr-latent", options).resolve(SearchConfig(chunk_len=32), 192)
    assert (config.chunk_len, config.max_chunks, config.d_z, config.eta) == (16, 48, 96, 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tgr-latnet", "did you mean tgr-latent"),
        ("tgr-latent:lambda", "must be as in"),
        ("tgr-latent:lamda_b=0", "did you mean lambda_b"),
        ("tgr-latent:lambda_b=-1", "at least 0"),
        ("tgr-latent:rank=few", "whole number"),
        ("tgr-latent:rank=ax", "as in 0.5x"),
        ("base:seed=3", "--seeds"),
    ],
)
def test_a_bad_system_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        systems.from_text(text)


def test_one_name_is_one_system() -> None:
    a, b = System("x", "base"), System("x", "markov")
    assert systems.distinct([a, a]) == (a,)
    with pytest.raises(ValueError, match="'x'"):
        systems.distinct([a, b])


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_fits_what_there_is(name: str) -> None:
    found = recipe.load(name)
    assert set(found.tasks) <= set(tasks.TASKS) and found.tasks
    assert len(found.systems) > 1 and found.title != name
    assert not found.reference or found.reference in [system.name for system in found.systems]
    for system in found.systems:
        for model in (SearchConfig(), SearchConfig(chunk_len=12, rollout_len=6, max_chunks=5)):
            system.resolve(model, 192)


def test_the_recipes_are_those_that_the_documentation_names() -> None:
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in recipe.names())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("titel = 'x'", "did you mean title"),
        ("k = 3", "type str"),
        ("[[systems]]\nname = 'x'", "no method"),
        ("[options]\nlamda_b = 1", "did you mean lambda_b"),
        ("k = ", "recipe"),
    ],
)
def test_a_bad_recipe_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        recipe.load(str(path))


# ---- the command ----


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A made-up file in Countdown's format."""
    rows = [{"input": "1,2,3", "output": "6"}, {"input": "4,5,6", "output": "15"}]
    path = tmp_path / "countdown.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def command(model: Callable[..., Path], data: Path, tmp_path: Path) -> list[str]:
    return [
        "eval", "countdown", "--data", str(data), "--model", str(model()), "--n-threads", "1",
        "--chunk-len", "6", "--max-chunks", "2", "--n-candidates", "2", "--rollout-len", "3",
        "--type-k", "f32", "--type-v", "f32", "--flash-attn", "off", "--k", "1..4",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip


def run(*arguments: str) -> int:
    try:
        return cli.main(list(arguments))
    except SystemExit as exit:
        return int(exit.code or 0)


def test_a_run_ends_in_a_report(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_another_config_does_not_resume(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_another_machine_resumes(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run" / "manifest.json"
    assert run(*command, "--methods", "base", "--k", "1") == 0
    about = json.loads(path.read_text(encoding="utf-8"))
    assert "n_threads" not in about["engine"] and about["machines"][0]["threads"] == 1
    about["engine"]["n_threads"] = 7  # as manifests once had it
    about["versions"]["python"] = "3.99"
    del about["machines"][0]["settings"], about["command"]
    path.write_text(json.dumps(about), encoding="utf-8")
    more = [*command, "--methods", "base", "--k", "1,2", "--n-threads", "2", "--n-ubatch", "64"]
    assert run(*more, "--parallel", "3") == 0
    about = json.loads(path.read_text(encoding="utf-8"))
    assert [machine["threads"] for machine in about["machines"]] == [1, 2]
    assert about["machines"][1]["settings"]["n_ubatch"] == 64
    assert about["command"].startswith("tgr-local eval countdown --methods base --k 1,2 --data")
    assert str(tmp_path) not in about["command"] and "--n-threads 2" in about["command"]
    capsys.readouterr()
    assert run(*more, "--type-k", "f16") == 1
    assert "engine.type_k was 'f32' and is 'f16'" in capsys.readouterr().err


def test_a_folder_under_work_is_not_touched(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        (["eval"], "name a task or a --recipe"),
        (["eval", "contdown"], "did you mean countdown"),
        (["eval", "--recipe", "abblation"], "did you mean ablation"),
        (["eval", "countdown", "--k", "8..1"], "must increase"),
        (["eval", "countdown", "--k", "few"], "as in 1..128"),
        (["eval", "countdown", "--k", "0..8"], "at least 1"),
        (["eval", "countdown", "--seeds", "1,1"], "different"),
        (["eval", "countdown", "--seed", "3"], "--seeds"),
        (["eval", "countdown", "--limit", "-3"], "between 0"),
        (["eval", "countdown", "--graders", "0"], "graders is 0, but must be between 1"),
        (["eval", "countdown", "--grade-seconds", "0"], "grade_seconds is 0, but must be"),
        (["eval", "countdown", "--methods", "magic"], "unknown method"),
        (["eval", "countdown", "--variant", "base:temperature=hot"], "a number"),
        (["eval", "countdown", "--reference", "nobody"], "one of base, tgr-latent"),
        (["eval", "humaneval"], "--allow-exec"),
        (["eval", "report"], "no run to report on"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_a_system_that_the_engine_cannot_hold_is_refused_before_the_first_sample(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--n-seq-max", "2") == 1
    assert "tgr-latent needs 3 sequences at a time, but the engine holds 2" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("eval", "report", str(tmp_path)) == 1
    assert "is no run of tgr-local eval" in capsys.readouterr().err


def killed(command: list[str], after: Iterator[float]) -> int:
    """Runs a command again and again, each time killed a while after its first sample, until it
    comes to its end; returns how often it was killed."""
    path = Path(command[command.index("--out") + 1]) / "samples.jsonl"
    start = "import sys; from tgr_local.cli import main; sys.exit(main(sys.argv[1:]))"
    n = 0
    while True:
        had = path.stat().st_size if path.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", start, *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait = next(after, None)
        while wait is not None and process.poll() is None:
            if path.exists() and path.stat().st_size > had:
                time.sleep(wait)
                process.send_signal(signal.SIGKILL)
                n += 1
                wait = None
            time.sleep(0.002)
        if process.wait() == 0:
            return n
        assert process.returncode == -signal.SIGKILL


def test_kill_9_loses_nothing(command: list[str], tmp_path: Path) -> None:
    options = [*command, "--methods", "tgr-latent", "--k", "40", "--parallel", "1"]
    assert run(*options) == 0
    whole = {sample.key: sample for sample in samples.read(tmp_path / "run" / "samples.jsonl")}
    options[options.index("--out") + 1] = str(tmp_path / "killed")
    moments = random.Random(1)
    assert killed(options, iter([moments.random() * 0.05 for _ in range(2)])) > 0
    found = list(samples.read(tmp_path / "killed" / "samples.jsonl"))
    assert len(found) == len(whole) == 80
    assert timeless({sample.key: sample for sample in found}) == timeless(whole)
