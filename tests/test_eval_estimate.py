"""What a run still takes: the most by its limits, and what its samples let expect."""

from __future__ import annotations

import dataclasses

import pytest
from eval_doubles import PROBLEMS, SMALL, EvenLengths, go, toy
from run_folders import sample

from tgr_local.engine import Engine
from tgr_local.lab.eval import phases, samples
from tgr_local.lab.eval.live import FIRST, Estimate, Live, MissingWork, clock, tokens
from tgr_local.lab.eval.making import prompt_of
from tgr_local.lab.eval.samples import SamplePlan, Store

PLAN = SamplePlan(2, (42, 7))


def test_what_is_left_by_hand():
    """base may take 100 a sample and takes 30, so dear, which may take 1,000, is taken for 300."""
    one = Estimate({("toy", "base"): MissingWork(4, 400), ("toy", "dear"): MissingWork(2, 2000)})
    assert (one.most, one.expected, one.n_phases) == (2400, 2400, 2)
    assert one.announcement() == "to do: 6 samples in 2 phases, at most 2.4 k forward tokens"
    assert one.line(1.0) == ""  # no speed is known
    for i in range(2):
        one.add(sample("base", "p", i, counts={"query": 20, "chunk": 10}))
    assert (one.most, one.expected) == (2200, pytest.approx(660))
    assert one.line(0.5) == (
        "left: about 660 forward tokens (at most 2.2 k); 6 s at the 120 tokens/s of the samples so "
        "far"
    )
    one.add(sample("base", "q", 0, finish="error", counts={}))
    assert (one.most, one.expected) == (2100, pytest.approx(630))
    one.add(sample("unknown", "q", 0))
    assert one.most == 2100 and one.n_done == 3
    one.add(sample("dear", "p", 0, counts={"chunk": 1000}))
    assert (one.most, one.expected) == (1100, pytest.approx(1100 * 1060 / 1200))
    for system in ("base", "dear", "dear"):  # the last one was not missing
        one.add(sample(system, "q", 1))
    assert one.most == 0 and one.line(1.0) == ""


def test_longer_prompts_than_the_average_do_not_raise_the_estimate_above_the_most():
    one = Estimate({("toy", "base"): MissingWork(4, 400)})
    one.add(sample("base", "long", 0, counts={"query": 150}))
    assert one.most == one.expected == 300


def test_a_complete_run_has_no_estimate():
    assert Estimate({("toy", "base"): MissingWork(0, 0)}).announcement() == ""


def test_numbers_of_tokens_and_durations_are_short():
    shown = [tokens(n) for n in (950, 999.6, 12_345, 999_600, 3_249_000, 4e9)]
    assert shown == ["950", "1.0 k", "12 k", "1.0 M", "3.2 M", "4.0 G"]
    assert [clock(n) for n in (40, 720, 11_100)] == ["40 s", "12 min", "3 h 5 min"]


@pytest.mark.parametrize("system", ["base", "self-consistency:n_samples=3", "tgr-latent", "power"])
def test_no_run_takes_more_than_its_estimate(engine: Engine, tmp_path, system: str):
    phase = toy(system)
    place = ("toy", phase.system.name)
    path = tmp_path / "samples.jsonl"
    with Store(path) as store:
        before = phases.work(engine, [phase], PLAN, store)[place]
    assert before.n_samples == 12
    took, _ = go(engine, path, phase, SamplePlan(1, PLAN.seeds))
    with Store(path) as store:
        after = phases.work(engine, [phase], PLAN, store)[place]
    assert (after.n_samples, after.most) == (6, before.most / 2)
    assert 0 < took["counted"] <= before.most / 2


def test_the_most_of_plain_samples_by_hand(engine: Engine, tmp_path):
    """A prompt, every token up to the limit, and a few spare cells; or the budget of a reply."""
    phase = toy("base")
    lengths = [len(prompt_of(engine, phase, problem)) for problem in PROBLEMS]
    small = dataclasses.replace(phase, config=dataclasses.replace(SMALL, max_forward_tokens=20))
    with Store(tmp_path / "samples.jsonl") as store:
        (work,) = phases.work(engine, [phase], PLAN, store).values()
        text = sum(4 * (length + SMALL.token_limit) for length in lengths)
        assert text <= work.most <= text + 12 * 8
        (work,) = phases.work(engine, [small], PLAN, store).values()
        assert work.most == 12 * 20


def test_a_budget_for_each_problem_is_part_of_the_most(engine: Engine, tmp_path):
    phase, plan = toy("base"), SamplePlan(1, (42,), budget=300)
    path = tmp_path / "samples.jsonl"
    with Store(path) as store:
        (work,) = phases.work(engine, [phase], plan, store).values()
    took, _ = go(engine, path, phase, plan)
    assert work.n_samples == 3 and 3 * 300 <= took["counted"] <= work.most


def test_the_estimate_is_shown_before_the_start_after_the_first_samples_and_at_each_phase(
    engine: Engine, tmp_path, capsys
):
    todo = [toy("base"), toy("markov"), toy("base:top_k=5")]
    plan = SamplePlan(FIRST // len(PROBLEMS) + 1, (42,))
    path = tmp_path / "samples.jsonl"
    with Store(path) as store:
        estimate = Estimate(phases.work(engine, todo, plan, store))
        with Live(len(todo), estimate) as live:
            for phase in todo:
                phases.run_phase(engine, phase, plan, store, EvenLengths(), live, 4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"to do: {9 * plan.n} samples in 3 phases, at most ")
    shown = [line.split()[0] for line in lines[1:]]
    assert shown == ["left:", "toy", "left:", "toy", "left:", "toy"]
    assert all(" tokens/s of the samples so far" in line for line in lines if "left:" in line)
    assert estimate.most == 0 and estimate.n_done == 9 * plan.n == len(samples.read(path))
    with Store(path) as store, Live(1, Estimate(phases.work(engine, todo, plan, store))) as live:
        phases.run_phase(engine, todo[0], plan, store, EvenLengths(), live, 4)
    assert "forward tokens" not in capsys.readouterr().err


def test_a_phase_with_few_samples_still_gives_a_speed(capsys):
    estimate = Estimate(
        {("toy", "tgr-latent"): MissingWork(1, 50), ("other", "tgr-latent"): MissingWork(1, 50)}
    )
    with Live(2, estimate) as live:
        live.phase(toy("tgr-latent"), [], 1)
        live.sample(sample("tgr-latent", "p", 0))
        live.phase(dataclasses.replace(toy("tgr-latent"), task="other"), [], 1)
    assert "left: about 30 forward tokens (at most 50); " in capsys.readouterr().err
