"""Accuracy by group of problems, and the density of anchors, from hand-made samples."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import fake_step
from run_folders import both, compared, graded, sample, write

from tgr_local.lab.eval import (
    boundaries,
    manifest,
    metrics,
    plots,
    profiles,
    report,
    run_folder,
    samples,
    table_geometry,
)
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.tasks import TASKS
from tgr_local.lab.eval.tasks.data import Row
from tgr_local.options.config import SearchConfig


def with_levels(folder: Path, levels: dict[str, str]) -> Path:
    """The run folder, whose problems have these levels."""
    path = folder / "problems.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line | {"groups": {"level": levels[line["id"]]}} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def by_level(tmp_path) -> Comparison:
    """Five problems of level 2, six of level 10, and one of level 3."""
    rows = ["10"] * 5 + ["11"] * 6 + ["00"]
    better = ["11"] * 5 + ["11"] * 5 + ["00"] * 2
    folder = graded(tmp_path / "run", {"base": (10, rows), "tgr-latent": (20, better)})
    levels = {f"p{i:03}": "2" if i < 5 else "10" if i < 11 else "3" for i in range(12)}
    return compared(with_levels(folder, levels))


def test_accuracy_by_level_by_hand(tmp_path):
    found = by_level(tmp_path)
    (profile,) = found.profiles
    assert (profile.name, profile.groups, profile.sizes) == ("level", ["2", "10"], [5, 6])
    assert profile.n_left_out == 1  # the only one of level 3
    (base, cells), (tgr, others) = profile.rows
    assert [base.label, tgr.label] == ["base", "tgr-latent"]
    assert [cell.mean for cell in cells] == [0.5, 1.0]
    assert [cell.mean for cell in others] == [1.0, pytest.approx(5 / 6)]
    assert others[1] == metrics.interval([1, 1, 1, 1, 1, 0])
    table = profiles.table(profile)
    assert table.title == "By level" and table.columns == ["system", "2 (5)", "10 (6)"]
    assert table.rows[1] == ["tgr-latent", "100.0 [56.6, 100.0]", "83.3 [43.6, 97.0]"]
    assert "1 problems are in none of them" in table.note


def test_the_picture_of_a_profile_has_the_intervals_of_its_table(tmp_path):
    pytest.importorskip("matplotlib")
    found = by_level(tmp_path)
    (plot,) = (p for p in plots.of_task(found) if p.caption.startswith("Accuracy by group"))
    (svg,) = plot.panels
    assert plot.legend == [("base", 0), ("tgr-latent", 1)]
    bars = re.findall(r'd="M (\S+) \S+ \nL (\S+) \S+ \n"[^>]*stroke: var\(--s(\d)\)', svg)
    lengths = {n: [float(b) - float(a) for a, b, s in bars if s == n] for n in "01"}
    (profile,) = found.profiles
    for number, (_, cells) in zip("01", profile.rows, strict=True):
        widths = [cell.high - cell.low for cell in cells]
        assert lengths[number][0] / lengths[number][1] == pytest.approx(
            widths[0] / widths[1], rel=1e-3
        )


def test_problems_of_one_group_or_of_none_have_no_profile(tmp_path):
    rows = ["10"] * 6
    folder = graded(tmp_path / "run", {"base": (10, rows), "tgr-latent": (20, rows)})
    assert compared(folder).profiles == [] and profiles.of_task([]) == []
    with_levels(folder, {f"p{i:03}": "5" for i in range(6)})
    assert compared(folder).profiles == []


def test_groups_change_neither_the_digest_nor_a_grade():
    task = TASKS["arithmetic4"]
    problems = task.load(limit=20, seed=1)
    assert {"+", "-"} & {problem.groups["operators"] for problem in problems}
    without = [dataclasses.replace(problem, groups={}) for problem in problems]
    assert manifest.digest(without) == manifest.digest(problems)
    row = Row("row 1", {"level": 5, "difficulty": 4.5, "subject": "", "source": None})
    assert row.groups("level", "difficulty", "subject", "source", "none") == {
        "level": "5", "difficulty": "4",
    }  # fmt: skip


# ---- anchor density ----


def test_a_boundary_has_the_cosines_of_its_candidates():
    (found,) = boundaries.measured([fake_step(0, "abc", None)], SearchConfig())
    step = fake_step(0, "abc", None)
    assert step.candidates is not None and step.origin is not None
    anchors = step.candidates.anchors
    assert found["to_chain"] == pytest.approx(anchors @ step.origin, abs=1e-4)
    assert found["pairwise"] == pytest.approx([float(anchors[0] @ anchors[1])], abs=1e-4)


def test_of_many_candidates_some_pairs_are_recorded():
    rng = np.random.default_rng(0)
    anchors = rng.normal(size=(40, 6))
    anchors /= np.linalg.norm(anchors, axis=1, keepdims=True)
    step = fake_step(0, "abc", None)
    assert step.candidates is not None and step.origin is not None
    scores = dataclasses.replace(
        step.candidates.scores,
        **{name: np.zeros(40) for name in ("foresight", "bumpiness", "uniformity", "total")},
    )
    many = dataclasses.replace(step.candidates, anchors=anchors, scores=scores)
    wide = dataclasses.replace(step, candidates=many, origin=anchors[0], state=anchors[1])
    found = boundaries.measured([wide], SearchConfig())[0]["pairwise"]
    every = [float(a @ b) for i, a in enumerate(anchors) for b in anchors[i + 1 :]]
    assert len(found) == boundaries.N_PAIRS and found == sorted(found)
    assert (found[0], found[-1]) == pytest.approx((min(every), max(every)), abs=1e-4)
    assert np.mean(found) == pytest.approx(np.mean(every), abs=0.05)


def dense(tmp_path) -> Comparison:
    shown: dict[str, list[dict[str, Any]]] = {
        "p": [{"pairwise": [0.2, 0.4], "to_chain": [0.9]}, {"to_chain": [0.7]}],
        "q": [{"pairwise": [0.9], "to_chain": [0.8, 0.6]}],
    }
    made = [sample("tgr-latent", p, 0, boundaries=of) for p, of in shown.items()]
    return compared(write(tmp_path / "run", [*both()[:4], *made]))


def test_anchor_density_by_hand(tmp_path):
    found = dense(tmp_path).outcomes
    table = table_geometry.density(found)
    pairs, chain = table.rows
    # means of problems: 0.3 and 0.9; 0.8 and 0.7
    assert pairs[:2] == ["tgr-latent, between candidates", "0.600 [0.300, 0.900]"]
    assert chain[:2] == ["tgr-latent, candidate to z_t-1", "0.750 [0.700, 0.800]"]
    assert pairs[4] == "0.400" and chain[4] == "0.750" and pairs[-1] == "2"


def test_the_picture_of_density_has_both_cosines(tmp_path):
    pytest.importorskip("matplotlib")
    (plot,) = (p for p in plots.of_task(dense(tmp_path)) if p.caption.startswith("Anchor density"))
    assert len(plot.panels) == 2 and plot.legend == [("tgr-latent", 1)]


def test_cosines_that_are_not_of_every_candidate_are_refused():
    one = sample("tgr-latent", "p", 0, boundaries=[])
    terms = {name: [1.0, 2.0] for name in ("V", "P_bum", "P_uni", "S")}
    boundary = {"chosen": 0, "to_chain": [0.5], **terms}
    line = json.dumps(dataclasses.asdict(one) | {"boundaries": [boundary]}).encode()
    with pytest.raises(ValueError, match=r"lists of different lengths in .*to_chain"):
        samples.parse(line)


def test_a_report_has_the_profile_after_the_two_comparisons(tmp_path):
    by_level(tmp_path)
    (section,) = report.build([run_folder.read(tmp_path / "run")]).sections
    assert section.tables[section.n_first].title == "By level"
