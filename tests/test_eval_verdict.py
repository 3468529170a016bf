"""The verdict: one sentence that says no more than the samples show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_folders import compared, graded, write

from tgr_local.lab.eval import tables, verdict

Systems = Mapping[str, tuple[int, Sequence[str]]]


def said(folder: Path, systems: Systems, **changes: Any) -> str:
    sentence = verdict.of_task(compared(graded(folder, systems, **changes)))
    assert sentence[0].isupper() and sentence.endswith(".")
    assert not re.search(r"\w\w[.?!] ", sentence), f"more than one sentence: {sentence}"
    return sentence


def test_a_clear_lead(tmp_path):
    base, other = (10, ["00"] * 12), (10, ["11"] * 8 + ["00"] * 4)
    sentence = said(tmp_path / "run", {"base": base, "better": other})
    assert sentence.startswith(
        "At equal cost (20 forward tokens a problem), better solves 66.7 percentage points more of "
        "12 problems than base (95% interval "
    )
    assert sentence.endswith(
        "more): better is ahead, with this model and these problems; about others nothing can be "
        "concluded."
    )
    worse = said(tmp_path / "worse", {"base": other, "worse": base})
    assert "worse solves 66.7 percentage points fewer of 12 problems than base" in worse
    assert "base is ahead, with this model" in worse


def test_overlapping_intervals_conclude_nothing(tmp_path):
    base, other = ["1", "0"] * 10, ["0", "1"] * 9 + ["1", "1"]
    sentence = said(tmp_path / "run", {"base": (10, base), "other": (10, other)})
    assert (
        "other solves 5.0 percentage points more of 20 problems than base (95% interval "
        in sentence
    )
    assert re.search(r"interval [0-9.]+ fewer to [0-9.]+ more\)", sentence)
    assert re.search(
        r"which of them is better cannot be concluded, because with 20 problems a difference "
        r"below about \d+ points is not seen\.$",
        sentence,
    )


def test_as_many_is_said_where_the_means_are_equal(tmp_path):
    base, other = ["1", "0"] * 5, ["0", "1"] * 5
    sentence = said(tmp_path / "run", {"base": (10, base), "other": (10, other)})
    assert "other solves as many of 10 problems as base (95% interval " in sentence
    assert "cannot be concluded" in sentence


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("1" * 9, "both solve all of 9 problems, which are too easy to tell them apart."),
        ("0" * 9, "both solve none of 9 problems, which are too hard to tell them apart."),
        ("110", "solve the same share of each of 3 problems: no difference can be concluded."),
    ],
)
def test_ties(tmp_path, rows: str, why: str):
    sentence = said(tmp_path / "run", {"base": (10, list(rows)), "other": (10, list(rows))})
    assert sentence == f"At equal cost (10 forward tokens a problem), base and other {why}"


def test_few_problems_conclude_nothing_even_where_their_interval_excludes_zero(tmp_path):
    systems = {"base": (10, ["0"] * 5), "other": (10, ["1"] * 5)}
    sentence = said(tmp_path / "run", systems)
    assert "100.0 percentage points more of 5 problems" in sentence and "ahead" not in sentence
    assert "5 problems that differ between them are too few to conclude which is better" in sentence
    assert "is ahead" in said(tmp_path / "six", {name: (10, [rows[0]] * 6) for name, (_, rows)
                                                 in systems.items()})  # fmt: skip


def test_one_system_is_compared_with_nothing(tmp_path):
    assert said(tmp_path / "run", {"base": (10, ["1", "0"])}) == (
        "With one try, base solves 50.0% of 2 problems (95% interval 9.5 to 90.5); it is the only "
        "system, so nothing is compared."
    )


def test_a_budget_that_buys_no_sample_is_said(tmp_path):
    systems = {"base": (10, ["0"] * 8), "dear": (40, ["1"] * 8)}
    sentence = said(tmp_path / "run", systems)
    assert sentence.startswith(
        "With one try, dear solves 100.0 percentage points more of 8 problems than base"
    )
    assert sentence.endswith(
        "; at equal cost nothing can be concluded about dear: one sample of it takes more than "
        "the 10 forward tokens that every system spent on a problem (set a larger --budget)."
    )
    more = said(tmp_path / "more", {"base": (10, ["0000"] * 8), "dear": (40, ["1"] * 8)}, k=[1])
    assert more.startswith(
        "At equal cost (40 forward tokens a problem), dear solves 100.0 percentage points"
    )
    assert "nothing can be concluded about dear" not in more


def test_several_systems(tmp_path):
    rows = {
        "base": ["1", "1", "1", "1", "1", "1", "0", "0", "0", "0", "0", "0"] * 2,
        "up": ["1"] * 24,
        "down": ["0"] * 24,
        "open": ["0", "1", "1", "1", "1", "1", "1", "0", "0", "0", "0", "0"] * 2,
    }
    sentence = said(tmp_path / "run", {name: (10, row) for name, row in rows.items()})
    pattern = (
        r"At equal cost \(10 forward tokens a problem\), on 24 problems, up \(by 50\.0 points, 95% "
        r"interval [0-9.]+ to [0-9.]+\) is ahead of base; down \(by 50\.0 points, 95% interval "
        r"[0-9.]+ to [0-9.]+\) is behind base; whether open \(95% interval -[0-9.]+ to "
        r"\+[0-9.]+ points\) is ahead of base cannot be concluded; of 3 comparisons with 95% "
        r"intervals one in twenty is clear by chance\."
    )
    assert re.fullmatch(pattern, sentence), sentence


def test_the_numbers_of_the_sentence_are_those_of_the_table(tmp_path):
    systems = {"base": (10, ["1100", "1000"] * 6), "other": (25, ["1110", "0100"] * 6)}
    found = compared(graded(tmp_path / "run", systems))
    _, table, *_ = tables.of_task(found, [])
    mean, *edges = (abs(float(n)) for n in re.findall(r"[-+][\d.]+", table.rows[1][-2]))
    sentence = verdict.of_task(found)
    shown = re.search(
        r"solves ([\d.]+) percentage points .* interval ([\d.]+) .*?to ([\d.]+) ", sentence
    )
    assert shown and [float(n) for n in shown.groups()] == [mean, *sorted(edges)]
    assert table.columns[-3].removesuffix(" tokens") in sentence


def test_an_unfinished_run_speaks_of_so_far(tmp_path):
    systems = {"base": (10, ["1"] * 8), "other": (10, ["0"] * 8)}
    assert said(tmp_path / "run", systems, k=[1, 2]).startswith("So far, at equal cost (10 ")
    nothing = verdict.of_task(compared(write(tmp_path / "none", [])))
    assert nothing.startswith("Nothing can be concluded yet: no problem has a graded sample")


def test_a_task_without_wrong_answers_has_no_winner(tmp_path):
    task = [{"name": "toy", "metric": "diversity", "problems": 8, "sha256": ""}]
    sentence = said(tmp_path / "run", {"base": (10, ["1"] * 8), "other": (10, ["1"] * 8)},
                    tasks=task)  # fmt: skip
    assert sentence == "This task has no wrong answers, so it cannot tell which system is better."
