"""The geometry of a run: steps whose anchors can be checked by hand, then those of a real one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fake_engine import fake_step
from method_runs import RESIDUAL

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry
from tgr_local.search.diagnostics import Geometry, measure, summary
from tgr_local.search.run import Run
from tgr_local.search.steps import Step

X, Y, Z, _ = np.eye(4)


def step(index: int, origin: Any, state: Any, **more: Any) -> Step:
    plain: Step = fake_step(index, "abc", None)
    return dataclasses.replace(plain, origin=origin, state=state, **more)


def measured(steps: list[Step]) -> list[Geometry]:
    return [measure(step, before) for step, before in zip(steps, [None, *steps], strict=False)]


def test_movement_of_hand_checked_anchors():
    """Around an octant: arcs of π/2, a right-angled turn at Y and at Z."""
    boundaries = measured([step(0, X, Y), step(1, Y, Z), step(2, Z, Z), step(3, Z, None)])
    angles = [boundary.angle for boundary in boundaries]
    assert angles == [pytest.approx(np.pi / 2), pytest.approx(np.pi / 2), 0.0, None]
    similarities = [boundary.similarity for boundary in boundaries]
    assert similarities == [pytest.approx(0), pytest.approx(0), pytest.approx(1), None]
    curvatures = [boundary.curvature for boundary in boundaries]
    assert curvatures == [None, pytest.approx(1), 0.0, None]
    found = summary(boundaries)
    assert found.cycling == pytest.approx(1 / 3)
    assert found.means["curvature"] == pytest.approx(0.5)
    assert found.means["angle"] == pytest.approx(np.pi / 3)


def test_all_candidates_are_measured():
    plain = step(0, X, Y)
    assert plain.candidates is not None
    found = dataclasses.replace(plain.candidates, anchors=np.array([X, Y, Z]))
    three = measure(dataclasses.replace(plain, candidates=found), None)
    assert three.n_measured == 3 and three.n_eff == pytest.approx(2)
    assert three.apcs == pytest.approx(0) and three.min_cosine == pytest.approx(0)


def test_a_step_without_candidates_is_not_measured():
    bare = dataclasses.replace(step(0, None, None), candidates=None, anchor=None)
    boundaries = measured([bare, bare])
    found = summary(boundaries)
    assert found.means == {} and found.cycling is None
    assert not any(dataclasses.asdict(boundaries[1]).values())


def test_there_is_no_turn_where_a_new_run_begins():
    ends = step(0, [1.0, 0, 0], None)  # the last step of the thinking
    first = step(1, [0, 1.0, 0], np.array([0, 0, 1.0]))
    assert measured([ends, first])[1].curvature is None


def test_antipodes_have_no_curvature():
    first, second = measured([step(0, X, -X), step(1, -X, Y)])
    assert second.curvature is None
    assert first.angle == pytest.approx(np.pi)


def test_a_real_run_is_measured_by_its_own_anchors(engine: Engine):
    config = SearchConfig(chunk_len=6, max_chunks=3, n_candidates=4, rollout_len=3, **RESIDUAL)
    method = methods.get("tgr-latent")
    steps = list(method.run(Run(engine, [1, 2, 3], config)))
    first, second, last = measured(steps)
    assert steps[1].origin is not None and steps[0].state is not None
    np.testing.assert_array_equal(steps[0].state, steps[1].origin)
    assert steps[0].origin is not None and steps[1].state is not None
    assert steps[1].candidates is not None
    assert second.apcs == pytest.approx(geometry.apcs(steps[1].candidates.anchors))
    assert second.curvature == geometry.geodesic_curvature(
        steps[0].origin, steps[1].origin, steps[1].state
    )
    assert first.curvature is None and last.similarity is None and last.n_eff is not None
