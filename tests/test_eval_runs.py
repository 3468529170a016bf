"""Runs: what is drawn, what it costs, what a kill loses, what resumes and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from surroundings import ROOT

from tgr_local import cli, methods
from tgr_local.engine import Engine
from tgr_local.errors import TgrError
from tgr_local.eval import grading, phases, recipe, samples, sampling, sandbox, systems, tasks
from tgr_local.eval.plan import SamplePlan, seed_of
from tgr_local.eval.samples import Sample
from tgr_local.eval.sampling import Phase
from tgr_local.eval.store import Store
from tgr_local.eval.systems import System
from tgr_local.eval.task import Grade, Problem
from tgr_local.generation import generate
from tgr_local.options.config import SearchConfig

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
    engine: Engine, path: Path, phase: Phase, plan: SamplePlan, watcher: Watcher | None = None,
    parallel: int = 4,
) -> tuple[dict[str, Any], dict[samples.Key, Sample]]:  # fmt: skip
    with Store(path) as store:
        watched = watcher or Watcher()
        took = phases.run_phase(engine, phase, plan, store, Letters(), watched, parallel)
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
    seeds = [seed_of(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [seed_of(*place) for place in places]


def test_every_problem_gets_its_samples_and_each_its_own_seed(
    engine: Engine, tmp_path: Path
) -> None:
    took, known = go(engine, tmp_path / "s", toy(), SamplePlan(3, (42, 7)))
    assert took["samples"] == len(known) == 3 * 3 * 2
    assert {key[2:] for key in known} == {
        (p.id, seed, i) for p in PROBLEMS for seed in (42, 7) for i in range(3)
    }
    texts = {(sample.text, sample.thinking) for sample in known.values()}
    assert len(texts) == len(known)  # a random model does not repeat itself


def test_systems_that_differ_in_nothing_draw_the_same(engine: Engine, tmp_path: Path) -> None:
    texts = []
    for name in ("markov", "markov:lambda_b=0.9"):
        _, known = go(engine, tmp_path / name, toy(name), SamplePlan(2, (42,)))
        texts.append([known[key].text for key in sorted(known)])
    assert texts[0] == texts[1]


def test_how_many_run_at_a_time_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    alone = go(engine, tmp_path / "1", toy(), SamplePlan(3, (42,)), parallel=1)[1]
    together = go(engine, tmp_path / "9", toy(), SamplePlan(3, (42,)), parallel=0)[1]
    assert timeless(alone) == timeless(together)


# ---- what it costs ----


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_tokens_by_kind_sum_to_the_engines_own_count(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    before = engine.stats().n_positions
    few = "n_samples=2,power_blocks=2,power_steps=1,tree_breadth=1,tree_proposals=2,graph_merges=0"
    took, known = go(engine, tmp_path / "s", toy(f"{name}:{few}"), SamplePlan(2, (42,)))
    decoded = engine.stats().n_positions - before
    assert took["positions"] == took["counted"] == decoded > 0
    assert sum(sum(sample.counts.values()) for sample in known.values()) == decoded


def test_a_budget_is_filled_by_every_problem_and_by_no_more_than_it_takes(
    engine: Engine, tmp_path: Path
) -> None:
    budget = 300
    _, known = go(engine, tmp_path / "s", toy("base"), SamplePlan(2, (42,), budget))
    for problem in PROBLEMS:
        costs = [s.cost for key, s in sorted(known.items()) if key[2] == problem.id]
        assert sum(costs) >= budget
        assert sum(costs) < 2 * budget
    _, again = go(engine, tmp_path / "t", toy("base"), SamplePlan(2, (42,), budget), parallel=1)
    assert timeless(again) == timeless(known)


def test_a_budget_is_that_of_a_problem_over_all_seeds(engine: Engine, tmp_path: Path) -> None:
    budget = 900
    _, known = go(engine, tmp_path / "s", toy("base"), SamplePlan(1, (42, 7, 9), budget))
    for problem in PROBLEMS:
        costs = [s.cost for key, s in known.items() if key[2] == problem.id]
        assert budget <= sum(costs) < budget + 3 * max(costs)
        assert {key[3] for key in known if key[2] == problem.id} == {42, 7, 9}


def test_a_method_that_searches_keeps_what_a_report_needs(engine: Engine, tmp_path: Path) -> None:
    _, known = go(engine, tmp_path / "s", toy("tgr-latent"), SamplePlan(2, (42,)))
    for key, sample in known.items():
        assert sample.logprob is not None and sample.logprob < 0
        boundary = sample.boundaries[0]
        assert {"V", "P_bum", "P_uni", "S", "chosen", "apcs", "n_eff", "angle"} <= set(boundary)
        assert len(boundary["S"]) == SMALL.n_candidates
        assert boundary["chosen"] == max(range(2), key=lambda k: (boundary["S"][k], -k))
        assert ("rollouts" in boundary) == (key[-1] == 0)
    _, known = go(engine, tmp_path / "t", toy("base"), SamplePlan(1, (42,)))
    assert all(sample.boundaries == [] for sample in known.values())


def test_a_prompt_that_cannot_fit_is_recorded_and_the_rest_goes_on(
    engine: Engine, tmp_path: Path
) -> None:
    long = Problem("toy", "long", ({"role": "user", "content": "x" * 5000},), None)
    took, known = go(
        engine, tmp_path / "s", toy(problems=[*PROBLEMS, long]), SamplePlan(2, (1,), 50)
    )
    refused = [sample for sample in known.values() if sample.finish == "error"]
    assert {sample.problem for sample in refused} == {"long"}
    assert all(s.correct is None and "trained for" in s.detail for s in refused)
    assert took["counted"] == took["positions"] > 0


BAD = "a vector to normalise has norm 0, inf or nan"


def test_a_sample_that_fails_is_recorded_and_the_rest_goes_on(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(engine: Engine, prompt: Any, config: SearchConfig, **how: Any) -> Any:
        if config.seed % 2:
            raise ValueError(BAD)
        return generate(engine, prompt, config, **how)

    monkeypatch.setattr(sampling, "generate", sometimes)
    path, plan = tmp_path / "s", SamplePlan(4, (1,))
    _, known = go(engine, path, toy(), plan)
    assert len(known) == 12 and {s.finish == "error" for s in known.values()} == {True, False}
    for sample in known.values():
        odd = seed_of(1, "toy", sample.problem, sample.index) % 2
        assert (sample.finish == "error") == bool(odd)
        assert (sample.correct is None) == bool(odd) == (sample.detail == BAD)
    assert go(engine, path, toy(), plan)[0]["samples"] == 0  # fixed by its seed: not tried again
    with Store(path) as store:
        assert not phases.why_empty(toy(), store)


def test_a_budget_below_the_first_step_refuses_every_sample(engine: Engine, tmp_path: Path) -> None:
    for name in sorted(methods.METHODS):
        phase = toy(f"{name}:max_forward_tokens=1")
        took, known = go(engine, tmp_path / name, phase, SamplePlan(2, (1,)))
        assert took["counted"] == 0 and len(known) == 6
        assert all("max_forward_tokens" in sample.detail for sample in known.values())
        with Store(tmp_path / name) as store:
            why = phases.why_empty(phase, store)
        assert f"none of the 6 samples of {phase.system.name} on toy could be made: max_" in why


def test_what_the_engine_failed_at_is_made_again(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise TgrError("llama_decode failed with status -3")

    path, plan = tmp_path / "s", SamplePlan(2, (1,))
    monkeypatch.setattr(sampling, "generate", fails)
    _, known = go(engine, path, toy(), plan)
    assert {sample.detail for sample in known.values()} == {
        "the engine failed: llama_decode failed with status -3"
    }
    monkeypatch.undo()
    took, known = go(engine, path, toy(), plan)
    assert took["samples"] == 6 == len(known)
    assert all(sample.finish != "error" for sample in known.values())


# ---- what an interrupt loses ----


def test_an_interrupted_run_resumes_to_the_same_samples(engine: Engine, tmp_path: Path) -> None:
    whole = go(engine, tmp_path / "whole", toy(), SamplePlan(4, (42,)))[1]
    path = tmp_path / "cut"
    for after in (1, 3):
        with pytest.raises(RuntimeError, match="interrupted by the test"):
            go(engine, path, toy(), SamplePlan(4, (42,)), Watcher(after))
    n_kept = len(list(samples.read(path)))
    assert n_kept >= 4
    watcher = Watcher()
    took, resumed = go(engine, path, toy(), SamplePlan(4, (42,)), watcher)
    assert took["samples"] == len(whole) - n_kept and watcher.n_known == n_kept
    assert timeless(resumed) == timeless(whole)
    assert len(list(samples.read(path))) == len(whole)  # none twice
    assert go(engine, path, toy(), SamplePlan(4, (42,)))[0]["samples"] == 0


def test_a_torn_last_line_is_cut_off_and_made_again(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "s"
    whole = go(engine, path, toy(), SamplePlan(2, (42,)))[1]
    data = path.read_bytes()
    for cut in (1, 40, len(data) - data.rindex(b"\n", 0, -1) - 2):
        path.write_bytes(data[:-cut])
        assert len(list(samples.read(path))) == len(whole) - 1
        assert timeless(go(engine, path, toy(), SamplePlan(2, (42,)))[1]) == timeless(whole)


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
            phases.run_phase(engine, toy(), SamplePlan(2, (42,)), store, grades, Watcher(), 4)
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


@pytest.mark.parametrize("why", ["skipped: no judge", "cannot be graded here: no package x"])
def test_a_grade_that_was_missing_is_made_once_it_can_be(
    engine: Engine, tmp_path: Path, why: str
) -> None:
    path = tmp_path / "s"
    for grades, n_missing in ((Broken(lambda _: True, why), 6), (Letters(), 0), (Letters(), 0)):
        with Store(path) as store:
            took = phases.run_phase(
                engine, toy(), SamplePlan(2, (42,)), store, grades, Watcher(), 4
            )
            assert all(not sample.boundaries for sample in store.known.values())
        found = samples.read(path)
        assert sum(sample.correct is None for sample in found) == n_missing
        assert all(sample.boundaries for sample in found)
    assert took["samples"] == 0 and path.read_bytes().count(b"\n") == 12


def test_what_is_added_meanwhile_is_not_read_again(tmp_path: Path) -> None:
    old = [
        Sample(
            "t", "p", "s", 1, i, "x" * 10_000, "", 1, "stop", None, 0.0, None, "", None, {}, {}, 0.0
        )
        for i in range(3)
    ]
    with Store(tmp_path / "s") as store:
        for sample in old:
            store.add(sample)
        store.flush()
        read = []
        for sample in store.whole({sample.key for sample in old}):
            read.append(sample.index)
            assert len(read) <= 3
            store.add(dataclasses.replace(sample, correct=True))
            store.flush()  # before the next one is read, as on a busy machine
    assert read == [0, 1, 2]


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
    says = "cannot be written .*No space left on device.* free space"
    with pytest.raises(TgrError, match=says), Store(tmp_path / "s") as store:
        store.add(sample)
        with pytest.raises(TgrError, match=says):
            store.flush()
        monkeypatch.undo()
        with pytest.raises(TgrError, match=says):
            store.add(sample)  # what comes after a gap is not written either
        assert store.known == {}


def test_a_full_disk_ends_a_phase_at_once_and_the_run_resumes(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = tmp_path / "s", SamplePlan(40, (42,))
    written = 0

    def full(_: int) -> None:
        nonlocal written
        written += 1
        if written > 2:
            raise OSError(28, "No space left on device")

    def patient(store: Store, sample: Sample) -> None:
        add(store, sample)
        with contextlib.suppress(TgrError):
            store.flush()  # however busy the machine is

    add = Store.add
    monkeypatch.setattr(Store, "add", patient)
    monkeypatch.setattr(os, "fsync", full)
    watcher = Watcher()
    with pytest.raises(TgrError, match="cannot be written"):
        go(engine, path, toy("base"), plan, watcher, parallel=1)
    assert len(watcher.heard) == 3  # of 120
    monkeypatch.undo()
    took, known = go(engine, path, toy("base"), plan)
    assert 0 < took["samples"] < 120 == len(known)


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
        ("base:stop=a,b", "'b' has no =; a comma ends a value"),
        ("base:temp=1", r"did you mean temperature\?$"),
        ("base:zzzz=1", r"unknown option 'zzzz'; tgr-local run --help"),
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
        "eval", "run", "countdown", "--data", str(data), "--model", str(model()),
        "--n-threads", "1",
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


def test_a_system_that_can_make_nothing_is_said_at_the_end(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_methods_stand_in_for_the_systems_of_a_recipe(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_report_takes_another_reference(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--methods", "base,markov", "--k", "1,2") == 0
    capsys.readouterr()
    report = ["eval", "report", str(tmp_path / "run"), "--out", str(tmp_path / "a.md")]
    for name in ("base", "markov"):
        assert run(*report, "--reference", name) == 0
        assert f"minus {name} |" in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert run(*report, "--reference", "nobody") == 2
    assert "must be one of base, markov" in capsys.readouterr().err


def test_the_time_for_a_grade_may_change(command: list[str], tmp_path: Path) -> None:
    assert run(*command, "--methods", "base", "--k", "1") == 0
    assert run(*command, "--methods", "base", "--k", "1", "--grade-seconds", "20") == 0
    about = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert about["grading"] == {"seconds": 20.0, "allow_exec": False, "judge": ""}


@pytest.fixture
def judge() -> Iterator[str]:
    """The URL of a judge that gives 8 of 10."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self, body: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_GET(self) -> None:
            self.reply({"data": [{"id": "first"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply({"choices": [{"message": {"content": '{"score": 8}'}}]})

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_judge_may_come_later_and_then_stays(
    command: list[str],
    tmp_path: Path,
    judge: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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

    path = folder / "manifest.json"  # as manifests once were
    about = json.loads(path.read_text(encoding="utf-8"))
    about["grading"] = {"seconds": 10.0, "allow_exec": False, "judge": judge}
    path.write_text(json.dumps(about), encoding="utf-8")
    assert run(*asked, "--judge-url", judge) == 0
    assert state()[0]["judge_model"] == "first"


def test_a_manifest_names_the_packages_that_grade() -> None:
    found = grading.settings(["math500", "countdown"], 10.0, False, ("", ""))
    assert found.pop("math-verify") == importlib.metadata.version("math-verify")
    assert found == {"seconds": 10.0, "allow_exec": False, "judge": ""}
    names = set(grading.settings(["ifeval", "writingbench"], 10.0, False, ("http://x", "m")))
    assert {"lm-eval", "sacrebleu", "judge_model"} <= names

    def graded(task: str, correct: bool | None, answer: str | None = "7") -> Sample:
        return Sample(
            task, "p", "s", 1, 0, "text", "", 1, "stop", correct, 0.0, answer, "", None, {}, {}, 0.0
        )

    assert grading.in_use([graded("math500", True)]) == {"math-verify"}
    assert grading.in_use([graded("humaneval", False, None)]) == {
        "seconds",
        "allow_exec",
        "sandbox",
    }
    assert grading.in_use([graded("writingbench", True)]) == {"judge", "judge_model"}
    nothing = [graded("math500", None), graded("humaneval", None), graded("writingbench", None)]
    assert grading.in_use([*nothing, graded("writingbench", False, None)]) == set()


def humaneval(command: list[str], tmp_path: Path) -> list[str]:
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


def test_the_sandbox_is_named_everywhere_and_must_not_change(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*humaneval(command, tmp_path), "--sandbox", "limits"]
    assert run(*asked) == 0
    assert (
        "programs run in the sandbox limits: only resources are limited" in capsys.readouterr().err
    )
    folder = tmp_path / "run"
    about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert about["grading"]["sandbox"] == "limits" and "--sandbox limits" in about["command"]
    assert "sandbox: `limits: " in (folder / "report.md").read_text(encoding="utf-8")
    if not sandbox.obstacle("bwrap"):
        assert run(*asked, "--sandbox", "bwrap") == 1
        assert "grading.sandbox was 'limits' and is 'bwrap'" in capsys.readouterr().err


def test_a_missing_sandbox_backend_is_an_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sandbox, "obstacle", sandbox.obstacle.__wrapped__)
    assert run(*humaneval(command, tmp_path)) == 1
    err = capsys.readouterr().err
    assert "bwrap does not work here: there is no program bwrap; install bubblewrap" in err
    assert "--sandbox: limits (only resources" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


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
    assert about["command"].startswith("tgr-local eval run countdown --methods base --k 1,2 --data")
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
        (["eval", "run", "countdown", "--seeds", "1,1"], "different"),
        (["eval", "run", "countdown", "--seed", "3"], "--seeds"),
        (["eval", "run", "countdown", "--limit", "-3"], "between 0"),
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
        (
            ["eval", "run", "aime25", "math500", "--data", __file__],
            "have a file each; name the folder",
        ),
        (["eval", "run", "countdown", "--judge-url", "localhost"], "must begin with http"),
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
    assert "is not a run folder of tgr-local eval" in capsys.readouterr().err


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
