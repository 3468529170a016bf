"""Replies of several systems to one problem: which are chosen, and how they are shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from run_folders import outcomes, sample, write

from tgr_local.lab.eval import cases, page, report, run_folder
from tgr_local.lab.eval.outcome import reference
from tgr_local.options.config import SearchConfig

SYSTEMS = {"base": "base", "hot": "base", "power": "power", "markov": "markov", "tgr": "tgr-latent"}
GRADES = {"a": "11111", "b": "01001", "c": "00000", "d": "10000", "e": "01111"}
"""Of the first sample of every system, by problem."""


def run(tmp_path) -> Path:
    config = dataclasses.asdict(SearchConfig())
    made = [
        sample(
            name, problem, i, correct=(grade == "1") == (i == 0), thinking="hm\n",
            text=f"<b>{name}</b> `{i}`" if problem != "d" else "x" * 5000,
        )
        for problem, grades in GRADES.items()
        for name, grade in zip(SYSTEMS, grades, strict=True)
        for i in range(2)
    ]  # fmt: skip
    entries = [{"name": n, "method": m, "config": config} for n, m in SYSTEMS.items()]
    return write(tmp_path / "run", made, "edcba", systems=entries, reference="base")


def test_the_first_problems_with_different_grades_are_shown(tmp_path):
    """In the order of the run, e d c b a; `hot` is a second system of one method."""
    found = outcomes(run(tmp_path))
    shown = cases.side_by_side(found, reference(found))
    assert [one.problem for one in shown] == ["e", "d"]
    assert [reply.system for reply in shown[0].replies] == ["base", "power", "markov", "tgr"]
    assert [reply.correct for reply in shown[0].replies] == [False, True, True, True]
    assert shown[0].prompt == "<what is e?>"
    first = shown[0].replies[1]
    assert first.text == "hm\n\n<b>power</b> `0`"
    assert first.result == "correct with 7 after 30 forward tokens (stop)"
    text = shown[1].replies[0].text
    assert text.startswith("hm") and text.endswith("xxx") and len(text) < 1500
    assert f"[…{5004 - 1400:,} characters…]" in text


def test_without_disagreement_or_a_second_system_nothing_is_shown(tmp_path):
    found = outcomes(run(tmp_path))
    assert not cases.side_by_side(found[:1], found[0])
    assert not cases.side_by_side([found[0], found[0]], found[0])
    assert not cases.side_by_side([], found[0])


def test_the_report_states_the_rule_and_marks_right_and_wrong(tmp_path):
    built = report.build([run_folder.read(run(tmp_path))])
    text = report.as_markdown(built)
    assert cases.RULE in text and "#### Problem e" in text
    assert "- ✗ **base**, `wrong with 7 after 30 forward tokens (stop)`: `hm ⏎  ⏎ <b>base" in text
    assert "- ✓ **tgr**, `correct" in text
    assert cases.RULE not in report.as_markdown(built, brief=True)


def test_the_page_has_a_column_for_each_system(tmp_path):
    pytest.importorskip("matplotlib")
    text = page.as_html(report.build([run_folder.read(run(tmp_path))]))
    assert text.count('<section class="right">') == 3 + 1 and text.count("<section") == 8
    assert "<h5>✗ base</h5>" in text and "<h5>✓ tgr</h5>" in text
    assert "<b>power" not in text and "&lt;b&gt;power&lt;/b&gt;" in text
