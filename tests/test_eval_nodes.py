"""Samples made by several engines: equal to those of one, also where a node is lost."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import finished
from eval_doubles import EvenLengths, Recorder, go, timeless, toy

from tgr_local.engine import Cancel, Engine
from tgr_local.lab.eval import manifest, phases, ray_nodes, samples
from tgr_local.lab.eval.making import EngineMaker, Job, Phase
from tgr_local.lab.eval.ray_nodes import ATTEMPTS, NodeLostError, NodePool
from tgr_local.lab.eval.samples import ENGINE, Key, Sample, SamplePlan, Store
from tgr_local.system.errors import CancelledError, InstallError, TgrError


class Near:
    """A node in this process, which is lost after so many samples: the next one ends with it."""

    def __init__(self, engine: Engine, name: str, lost_after: int = 10**9) -> None:
        self.name, self.n_made, self._lost_after = name, 0, lost_after
        self._maker = EngineMaker(engine)
        self.problems: Sequence[object] = ["before begin"]

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        if self.n_made >= self._lost_after:
            raise NodeLostError("it is gone")
        self.problems = phase.problems
        return self._maker.begin(phase, n_cells, parallel, n_jobs)

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> tuple[Sample, int]:
        sample = self._maker.make(job, prompt, cancel)
        if self.n_made >= self._lost_after:
            raise NodeLostError("it is gone")
        self.n_made += 1
        return sample, self._maker.positions


def go_with(
    engine: Engine, path: Path, nodes: list[Near], said: list[str], phase: Phase | None = None
) -> dict[Key, Sample]:
    pool, plan = NodePool(nodes, said.append), SamplePlan(4, (42,))
    with Store(path) as store:
        phases.run_phase(engine, phase or toy(), plan, store, EvenLengths(), Recorder(), 2, pool)
    assert path.read_bytes().count(b"\n") == 12, "each sample is stored once"
    return {sample.key: sample for sample in samples.read(path)}


def test_nodes_make_the_samples_of_one_engine(engine: Engine, tmp_path):
    alone = go(engine, tmp_path / "1", toy(), SamplePlan(4, (42,)))[1]
    nodes, said = [Near(engine, "a"), Near(engine, "b")], list[str]()
    assert timeless(go_with(engine, tmp_path / "2", nodes, said)) == timeless(alone)
    assert all(node.n_made and not node.problems for node in nodes) and not said


def test_samples_of_a_lost_node_are_made_by_the_others(engine: Engine, tmp_path):
    alone = go(engine, tmp_path / "1", toy(), SamplePlan(4, (42,)))[1]
    nodes, said = [Near(engine, "a", 1), Near(engine, "b"), Near(engine, "c", 0)], list[str]()
    assert timeless(go_with(engine, tmp_path / "2", nodes, said)) == timeless(alone)
    assert sorted(said) == ["a is lost (it is gone)", "c is lost (it is gone)"]
    assert [node.n_made for node in nodes] == [1, 11, 0]


def test_without_any_node_the_run_ends_and_can_be_resumed(engine: Engine, tmp_path):
    path = tmp_path / "s"
    with pytest.raises(TgrError, match=r"no node is left: b is lost .it is gone.; the samples so"):
        go_with(engine, path, [Near(engine, "b", 3)], [])
    assert path.read_bytes().count(b"\n") == 3
    alone = go(engine, tmp_path / "1", toy(), SamplePlan(4, (42,)))[1]
    assert timeless(go_with(engine, path, [Near(engine, "c")], [])) == timeless(alone)


def test_a_sample_that_ends_every_node_is_recorded(engine: Engine):
    phase = toy()
    nodes = [Near(engine, name, 0) for name in "abcd"]
    pool = NodePool(nodes, lambda _: None)
    for node in nodes:
        node.n_made = -1  # `begin` works
    assert pool.begin(phase, 64, 1, 4) == 4
    for node in nodes:
        node.n_made = 0
    sample = pool.make((phase.problems[0], 42, 0), None, Cancel())
    assert sample.detail == f"{ENGINE}{ATTEMPTS} nodes were lost while they made it"
    assert sample.lacks_text, "the next run makes it again"


def test_who_waits_for_a_node_can_be_cancelled(engine: Engine):
    class Slow(Near):
        def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> tuple[Sample, int]:
            started.set()
            ended.wait()
            return super().make(job, prompt, cancel)

    phase, cancel, started, ended = toy(), Cancel(), threading.Event(), threading.Event()
    pool = NodePool([Slow(engine, "a")], lambda _: None)
    pool.begin(phase, 64, 1, 1)
    job: Job = (phase.problems[0], 42, 0)
    thread = threading.Thread(target=pool.make, args=(job, None, Cancel()))
    thread.start()
    started.wait()
    threading.Timer(0.1, cancel.cancel).start()
    with pytest.raises(CancelledError):
        pool.make(job, None, cancel)
    ended.set()
    thread.join()


def test_a_node_with_another_model_or_version_is_refused():
    own = {"sha256": "a" * 64, "tgr-local": "1"}
    ray_nodes.check_facts("node x", {"facts": dict(own)}, own)
    with pytest.raises(TgrError, match=r"node x has another model file .sha256 bbbbbbbbbbbb"):
        ray_nodes.check_facts("node x", {"facts": own | {"sha256": "b" * 64}}, own)
    with pytest.raises(TgrError, match=r"node x has tgr-local 2, but here is 1; install the same"):
        ray_nodes.check_facts("node x", {"facts": own | {"tgr-local": "2"}}, own)
    with pytest.raises(TgrError, match="node x: no such file"):
        ray_nodes.check_facts("node x", {"error": "no such file"}, own)


@pytest.mark.parametrize("address", ["arithmetic3", "host", "host:", ":1", "a b:1", ""])
def test_an_invalid_address_is_refused(address: str):
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        ray_nodes.check_address(address)
    for valid in ("auto", "local", "10.0.0.1:6379", "ray://head:10001", "[::1]:6379"):
        ray_nodes.check_address(valid)


def test_without_ray_there_is_a_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", None)
    with pytest.raises(InstallError, match=r"pip install 'tgr-local\[ray\]'"):
        ray_nodes.import_ray()


def test_ray_makes_the_same_samples(tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'tgr-local[ray]'")
    words = [
        "eval", "run", "arithmetic3", "--limit", "2", "--k", "1..2", "--methods", "tgr-latent,auto",
        "--max-chunks", "2", "--parallel", "1", "--n-threads", "1",
    ]  # fmt: skip
    found = []
    for name, more in (("one", []), ("ray", ["--ray"])):
        code, _, said = finished(*words, "--out", str(tmp_path / name), *more, double=False)
        assert code == 0, said
        known = samples.read(tmp_path / name / "samples.jsonl")
        found.append({s.key: dataclasses.replace(s, seconds=0.0, parts={}) for s in known})
    assert found[0] == found[1] and len(found[0]) == 8
    machines = [manifest.read(tmp_path / name).machines for name in ("one", "ray")]
    assert machines[0] == machines[1]
