"""One answer: the frontier of accuracy against forward tokens, from hand-made samples."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_folders import compared, graded, sample, write

from tgr_local.lab.eval import frontier, metrics, report, run_folder, verdict
from tgr_local.lab.eval.frontier import Frontier
from tgr_local.options.config import SearchConfig

Systems = Mapping[str, tuple[int, Sequence[str]]]


def one_of(folder: Path, rows: Systems, **changes: Any) -> Frontier:
    found = compared(graded(folder, rows, **{"metric": "one", "k": [1], **changes})).frontier
    assert found is not None
    return found


def labels(found: Sequence[frontier.Point]) -> list[str]:
    return [point.outcome.label for point in found]


@pytest.mark.parametrize(
    ("tokens", "accuracies", "expected"),
    [
        ([10, 20, 30], [0.3, 0.5, 0.7], [True, True, True]),
        ([10, 20, 30], [0.5, 0.4, 0.6], [True, False, True]),  # dearer and worse
        ([20, 10], [0.5, 0.5], [False, True]),  # as accurate for more tokens
        ([10, 10], [0.4, 0.5], [False, True]),  # less accurate for as many
        ([10, 10, 10], [0.5, 0.5, 0.4], [True, True, False]),  # equal in both
        ([10, 10], [0.1 + 0.2, 0.3], [True, True]),  # equal but for rounding
        ([10], [0.0], [True]),
    ],
)
def test_a_system_is_dominated_by_one_that_is_cheaper_and_at_least_as_accurate(
    tokens: list[float], accuracies: list[float], expected: list[bool]
):
    assert frontier.undominated(tokens, accuracies) == expected
    for order in itertools.permutations(range(len(tokens))):
        found = frontier.undominated([tokens[i] for i in order], [accuracies[i] for i in order])
        assert found == [expected[i] for i in order]


def test_accuracy_tokens_and_differences_by_hand(tmp_path):
    """The samples of a problem are averaged first: base has 1, 1/2 and 0, few 1, 1 and 0."""
    systems = {"base": (40, ["11", "10", "00"]), "few": (10, ["11", "11", "00"])}
    found = one_of(tmp_path / "run", systems | {"dear": (80, ["11", "00", "00"])})
    assert labels(found.points) == ["few", "base", "dear"] and found.base.outcome.label == "base"
    assert [point.tokens for point in found.points] == [10, 40, 80]
    assert [point.share for point in found.points] == [0.25, 1, 2]
    assert [point.accuracy.mean for point in found.points] == pytest.approx([2 / 3, 1 / 2, 1 / 3])
    few, base, dear = (point.gain for point in found.points)
    assert few and dear and base is None
    ahead, behind = metrics.paired([1, 1, 0], [1, 0.5, 0]), metrics.paired([1, 0, 0], [1, 0.5, 0])
    assert (few.mean, dear.mean) == pytest.approx((50 / 3, -50 / 3))
    assert (few.low, few.high) == pytest.approx((100 * ahead.low, 100 * ahead.high))
    assert (dear.low, dear.high) == pytest.approx((100 * behind.low, 100 * behind.high))
    assert labels(found.best) == ["few"] and found.n_problems == 3


def test_tokens_are_a_mean_over_problems_and_all_kinds(tmp_path):
    """Also where a problem has more graded samples than another one."""
    costs = {"p": [{"query": 10, "discarded": 20}, {"query": 10, "rollouts": 50}], "q": [{"q": 5}]}
    samples = [
        sample("base", problem, i, correct=True, counts=counts)
        for problem, some in costs.items()
        for i, counts in enumerate(some)
    ]
    config = dataclasses.asdict(SearchConfig())
    systems = [{"name": "base", "method": "base", "config": config}]
    found = compared(
        write(tmp_path / "run", samples, systems=systems, k=[1], metric="one")
    ).frontier
    assert found and found.points[0].tokens == ((30 + 60) / 2 + 5) / 2


def test_the_reference_is_the_one_that_is_named_else_the_most_accurate_base(tmp_path):
    config = dataclasses.asdict(SearchConfig())
    methods = {"cold": "base", "warm": "base", "search": "tgr-latent"}
    entries = [{"name": n, "method": method, "config": config} for n, method in methods.items()]
    rows = {"cold": (10, ["1", "0", "0"]), "warm": (10, ["1", "1", "0"]), "search": (9, ["1"] * 3)}
    assert one_of(tmp_path / "a", rows, systems=entries).base.outcome.label == "warm"
    named = one_of(tmp_path / "b", rows, systems=entries, reference="search")
    assert named.base.outcome.label == "search" and named.points[0].share == 1
    searches = [entry | {"method": "tgr-latent"} for entry in entries]
    assert one_of(tmp_path / "c", rows, systems=searches).base.outcome.label == "cold"


def test_the_cheapest_system_that_keeps_up_has_an_interval_above_minus_one_point(tmp_path):
    """Ahead by 16 of 20 problems; behind; and equal in 20 problems, which shows little."""
    systems: Systems = {
        "base": (100, ["0"] * 16 + ["1"] * 4),
        "ahead": (50, ["1"] * 20),
        "equal": (20, ["0"] * 16 + ["1"] * 4),
        "behind": (10, ["0"] * 20),
    }
    found = one_of(tmp_path / "run", systems, reference="base")
    assert labels(found.points) == ["behind", "equal", "ahead", "base"]
    assert [found.keeps_up(point) for point in found.points] == [False, False, True, True]
    assert found.cheapest.outcome.label == "ahead"
    alone = one_of(tmp_path / "two", {name: systems[name] for name in ("base", "behind")})
    assert alone.cheapest is alone.base


@pytest.mark.parametrize(("n", "keeps_up"), [(300, False), (900, True)])
def test_problems_without_a_difference_show_something_where_there_are_many(
    tmp_path, n: int, keeps_up: bool
):
    rows = ["1", "0", "1"] * 300
    systems = {"base": (20, rows[:n]), "equal": (10, rows[:n])}
    found = one_of(tmp_path / "run", systems)
    assert found.keeps_up(found.points[0]) is keeps_up


def test_the_verdict_speaks_of_one_answer(tmp_path):
    systems: Systems = {
        "base": (1000, ["0"] * 16 + ["1"] * 4),
        "ahead": (250, ["1"] * 20),
        "cheap": (10, ["1"] * 5 + ["0"] * 15),
    }

    def said(name: str, *names: str, **changes: Any) -> str:
        some = {n: systems[n] for n in names}
        folder = graded(tmp_path / name, some, **{"metric": "one", "k": [1], **changes})
        return verdict.of_task(compared(folder))

    assert said("all", "base", "ahead", "cheap") == (
        "With one answer to each of 20 problems, cheap (25.0%, 10 tokens) and ahead (100.0%, 250 "
        "tokens), fewest tokens first, are on the frontier of accuracy against forward tokens; the "
        "cheapest one that loses at most 1 point to base is ahead (+80.0 points, 95% interval "
        "+53.1 to +91.9), with 25% of its tokens."
    )
    assert said("two", "base", "cheap").endswith(
        "cheap (25.0%, 10 tokens) is on the frontier of accuracy against forward tokens; that a "
        "cheaper system loses at most 1 point to base cannot be concluded."
    )
    assert said("first", "base", "ahead", "cheap", reference="cheap").endswith(
        "; no system is cheaper than cheap."
    )
    assert re.fullmatch(
        r"With one answer to each of 20 problems, base is right in 20.0% \(95% interval .* to .*\) "
        r"for 1,000 forward tokens; it is the only system, so nothing is compared\.",
        said("alone", "base"),
    )


def test_a_report_begins_with_one_answer_and_leaves_out_what_k_1_repeats(tmp_path):
    systems: Systems = {"base": (40, ["11", "10", "00"]), "few": (10, ["11", "11", "00"])}
    folder = graded(tmp_path / "run", systems, metric="one", k=[1])
    (section,) = report.build([run_folder.read(folder)]).sections
    assert [table.title for table in section.tables] == ["One answer", "Cost of a sample"]
    table = section.tables[0]
    assert table.columns == [
        "system", "forward tokens", "accuracy (%)", "minus base", "tokens / base", "frontier",
    ]  # fmt: skip
    assert table.rows == [
        ["few", "10", "66.7 [20.8, 93.9]", "+16.7 [-41.2, +58.1]", "25%", "✓"],
        ["base", "40", "50.0 [13.6, 86.4]", "-", "100%", ""],
    ]
    (section,) = report.build([run_folder.read(folder)], [1, 2]).sections
    assert [table.title for table in section.tables][:3] == [
        "One answer",
        "At equal k",
        "At equal forward tokens",
    ]


def test_the_metric_of_samples_is_the_default_and_wins_where_runs_differ(tmp_path):
    systems: Systems = {"base": (40, ["11", "10"]), "few": (10, ["11", "11"])}
    plain, one = graded(tmp_path / "a", systems), graded(tmp_path / "b", systems, metric="one")
    assert run_folder.read(plain).manifest.metric == "samples" and compared(plain).frontier is None
    for folders, title in (([one], "One answer"), ([one, plain], "At equal k")):
        read = [run_folder.read(folder) for folder in folders]
        about = [dataclasses.replace(r.manifest, raw=r.folder == plain) for r in read]
        read = [dataclasses.replace(r, manifest=m) for r, m in zip(read, about, strict=True)]
        (section,) = report.build(read).sections
        assert section.tables[0].title == title


def test_nothing_is_compared_before_the_first_grade(tmp_path):
    folder = write(tmp_path / "run", [], metric="one", k=[1])
    assert compared(folder).frontier is None
    assert "Nothing can be concluded yet" in verdict.of_task(compared(folder))
