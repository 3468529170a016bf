"""Phases: seeds and number of samples, their cost, interrupted runs, failed samples and grades."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from typing import Any

import pytest
from eval_doubles import PROBLEMS, SMALL, Broken, EvenLengths, Recorder, go, timeless, toy
from run_folders import sample as made_up

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.generation import generate
from tgr_local.lab.eval import evaluation, making, phases, samples, systems
from tgr_local.lab.eval.boundaries import N_JUDGED
from tgr_local.lab.eval.live import Live
from tgr_local.lab.eval.request import EvaluationRequest
from tgr_local.lab.eval.samples import Sample, SamplePlan, Store, seed_of
from tgr_local.lab.eval.task import Problem
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import TgrError


def test_a_seed_depends_on_its_place_only():
    places = [(s, t, p, i) for s in (1, 2) for t in "xy" for p in ("1", "11") for i in range(9)]
    seeds = [seed_of(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [seed_of(*place) for place in places]


def test_rollouts_are_64_tokens_where_answers_are_programs(engine: Engine):
    tasks = ("humaneval", "countdown")
    request = EvaluationRequest(
        "", tasks, tuple(map(systems.from_text, ("base", "tgr-latent"))), (1,), (42,),
        metric="samples", limit=0, budget=0, parallel=0, reference="", options={},
    )  # fmt: skip
    problems: dict[str, list[Problem]] = {name: [] for name in tasks}

    def lens(request: EvaluationRequest) -> list[int]:
        found = evaluation.phases_of(engine, request, problems, raw=True)
        return [phase.config.rollout_len for phase in found]

    about = evaluation.manifest_of(engine, request, problems, {}, raw=True, command="")
    assert lens(request) == [32, 64, 32, 32]
    assert about.tasks[0]["rollout_len"] == {"tgr-latent": 64}
    assert "rollout_len" not in about.tasks[1]
    given = dataclasses.replace(request, options={"rollout_len": 9})
    assert lens(given) == [9] * 4


def test_every_problem_gets_its_samples_and_each_its_own_seed(engine: Engine, tmp_path):
    took, known = go(engine, tmp_path / "s", toy(), SamplePlan(3, (42, 7)))
    assert took["samples"] == len(known) == 3 * 3 * 2
    assert {key[2:] for key in known} == {
        (p.id, seed, i) for p in PROBLEMS for seed in (42, 7) for i in range(3)
    }
    texts = {(sample.text, sample.thinking) for sample in known.values()}
    assert len(texts) == len(known)  # a random model does not repeat itself


def test_equal_systems_make_equal_samples(engine: Engine, tmp_path):
    texts = []
    for name in ("markov", "markov:lambda_b=0.9"):
        _, known = go(engine, tmp_path / name, toy(name), SamplePlan(2, (42,)))
        texts.append([known[key].text for key in sorted(known)])
    assert texts[0] == texts[1]


def test_the_number_at_a_time_changes_nothing(engine: Engine, tmp_path):
    alone = go(engine, tmp_path / "1", toy(), SamplePlan(3, (42,)), parallel=1)[1]
    together = go(engine, tmp_path / "9", toy(), SamplePlan(3, (42,)), parallel=0)[1]
    assert timeless(alone) == timeless(together)


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_tokens_by_kind_sum_to_the_engines_own_count(engine: Engine, tmp_path, name: str):
    before = engine.stats().n_positions
    few = "n_samples=2,power_steps=1,tree_breadth=1,tree_proposals=2"
    took, known = go(engine, tmp_path / "s", toy(f"{name}:{few}"), SamplePlan(2, (42,)))
    decoded = engine.stats().n_positions - before
    assert took["positions"] == took["counted"] == decoded > 0
    assert sum(sum(sample.counts.values()) for sample in known.values()) == decoded


def test_every_problem_fills_its_budget_and_not_much_more(engine: Engine, tmp_path):
    budget = 300
    _, known = go(engine, tmp_path / "s", toy("base"), SamplePlan(2, (42,), budget))
    for problem in PROBLEMS:
        costs = [s.cost for key, s in sorted(known.items()) if key[2] == problem.id]
        assert sum(costs) >= budget
        assert sum(costs) < 2 * budget
    _, again = go(engine, tmp_path / "t", toy("base"), SamplePlan(2, (42,), budget), parallel=1)
    assert timeless(again) == timeless(known)


def test_a_budget_is_that_of_a_problem_over_all_seeds(engine: Engine, tmp_path):
    budget = 900
    _, known = go(engine, tmp_path / "s", toy("base"), SamplePlan(1, (42, 7, 9), budget))
    for problem in PROBLEMS:
        costs = [s.cost for key, s in known.items() if key[2] == problem.id]
        assert budget <= sum(costs) < budget + 3 * max(costs)
        assert {key[3] for key in known if key[2] == problem.id} == {42, 7, 9}


def test_samples_of_a_search_have_what_a_report_needs(engine: Engine, tmp_path):
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


def test_every_searched_boundary_of_hard_geometry_has_an_acceptance_rate(engine: Engine, tmp_path):
    """The same number of proposals is judged everywhere, and they cost no forward token."""
    system = "hard-geometry:max_chunks=6,kappa_max=1.9"
    took, known = go(engine, tmp_path / "s", toy(system), SamplePlan(4, (42,)))
    assert took["counted"] == took["positions"]
    seen = set()
    for sample in known.values():
        first, *others = sample.boundaries
        assert "acceptance" not in first, "there is no turn yet"
        for boundary in others:
            share, n = boundary["acceptance"], boundary["figures"]["proposals"]
            assert (share > 0) == (n <= N_JUDGED), "the search saw the same proposals first"
            assert share * N_JUDGED == round(share * N_JUDGED)
            seen.add(share)
    assert len(seen) > 3
    _, known = go(engine, tmp_path / "t", toy("random-anchor"), SamplePlan(1, (42,)))
    assert not any("acceptance" in b for s in known.values() for b in s.boundaries)


def test_a_prompt_that_cannot_fit_is_recorded_and_the_rest_goes_on(engine: Engine, tmp_path):
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
    engine: Engine, tmp_path, monkeypatch
):
    def sometimes(engine: Engine, prompt: Any, config: SearchConfig, **how: Any) -> Any:
        if config.seed % 2:
            raise ValueError(BAD)
        return generate(engine, prompt, config, **how)

    monkeypatch.setattr(making, "generate", sometimes)
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


def test_a_budget_below_the_first_step_refuses_every_sample(engine: Engine, tmp_path):
    for name in sorted(methods.METHODS):
        phase = toy(f"{name}:max_forward_tokens=1")
        took, known = go(engine, tmp_path / name, phase, SamplePlan(2, (1,)))
        assert took["counted"] == 0 and len(known) == 6
        assert all("max_forward_tokens" in sample.detail for sample in known.values())
        with Store(tmp_path / name) as store:
            why = phases.why_empty(phase, store)
        assert f"none of the 6 samples of {phase.system.name} on toy could be made: max_" in why


def test_a_sample_at_which_the_engine_failed_is_made_again(engine: Engine, tmp_path, monkeypatch):
    def fails(*_: Any, **__: Any) -> Any:
        raise TgrError("llama_decode failed with status -3")

    path, plan = tmp_path / "s", SamplePlan(2, (1,))
    monkeypatch.setattr(making, "generate", fails)
    _, known = go(engine, path, toy(), plan)
    assert {sample.detail for sample in known.values()} == {
        "the engine failed: llama_decode failed with status -3"
    }
    monkeypatch.undo()
    took, known = go(engine, path, toy(), plan)
    assert took["samples"] == 6 == len(known)
    assert all(sample.finish != "error" for sample in known.values())


def test_an_interrupted_run_resumes_to_the_same_samples(engine: Engine, tmp_path):
    whole = go(engine, tmp_path / "whole", toy(), SamplePlan(4, (42,)))[1]
    path = tmp_path / "cut"
    for after in (1, 3):
        with pytest.raises(RuntimeError, match="interrupted by the test"):
            go(engine, path, toy(), SamplePlan(4, (42,)), Recorder(after))
    n_kept = len(list(samples.read(path)))
    assert n_kept >= 4
    watcher = Recorder()
    took, resumed = go(engine, path, toy(), SamplePlan(4, (42,)), watcher)
    assert took["samples"] == len(whole) - n_kept and watcher.n_known == n_kept
    assert timeless(resumed) == timeless(whole)
    assert len(list(samples.read(path))) == len(whole)  # none twice
    assert go(engine, path, toy(), SamplePlan(4, (42,)))[0]["samples"] == 0


def test_an_incomplete_last_line_is_cut_off_and_made_again(engine: Engine, tmp_path):
    path = tmp_path / "s"
    whole = go(engine, path, toy(), SamplePlan(2, (42,)))[1]
    data = path.read_bytes()
    for cut in (1, 40, len(data) - data.rindex(b"\n", 0, -1) - 2):
        path.write_bytes(data[:-cut])
        assert len(list(samples.read(path))) == len(whole) - 1
        assert timeless(go(engine, path, toy(), SamplePlan(2, (42,)))[1]) == timeless(whole)


def test_a_failed_grade_is_made_again(engine: Engine, tmp_path):
    path = tmp_path / "s"

    def graded_by(grades: Broken) -> tuple[int, int]:
        """How many grades were asked for, and how many lines there are then."""
        with Store(path) as store:
            phases.run_phase(engine, toy(), SamplePlan(2, (42,)), store, grades, Recorder(), 4)
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
def test_a_missing_grade_is_made_when_possible(engine: Engine, tmp_path, why: str):
    path = tmp_path / "s"
    for grades, n_missing in (
        (Broken(lambda _: True, why), 6),
        (EvenLengths(), 0),
        (EvenLengths(), 0),
    ):
        with Store(path) as store:
            took = phases.run_phase(
                engine, toy(), SamplePlan(2, (42,)), store, grades, Recorder(), 4
            )
            assert all(not sample.boundaries for sample in store.known.values())
        found = samples.read(path)
        assert sum(sample.correct is None for sample in found) == n_missing
        assert all(sample.boundaries for sample in found)
    assert took["samples"] == 0 and path.read_bytes().count(b"\n") == 12


def test_a_full_disk_ends_a_phase_at_once_and_the_run_resumes(
    engine: Engine, tmp_path, monkeypatch
):
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
    watcher = Recorder()
    with pytest.raises(TgrError, match="cannot be written"):
        go(engine, path, toy("base"), plan, watcher, parallel=1)
    assert len(watcher.samples) == 3  # of 120
    monkeypatch.undo()
    took, known = go(engine, path, toy("base"), plan)
    assert 0 < took["samples"] < 120 == len(known)


def test_the_progress_line_counts_and_shows_no_score(capsys):
    """The short samples are done first, so a score of those that are done would be biased."""
    right = made_up("base", "p", 0, correct=True)
    with Live(2) as live:
        live.phase(toy(), [right], 3)
        live.sample(made_up("base", "p", 1, correct=False))
        live.sample(made_up("base", "q", 0, finish="error"))
        live.phase(dataclasses.replace(toy(), task="other"), [], 2)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"toy tgr-latent \(1 of 2\): 3/3 samples, 1 could not be made, \d+ tokens/s", first
    )
    assert re.fullmatch(r"other tgr-latent \(2 of 2\): 0/2 samples, 0 tokens/s", second)
