"""The report: every number from hand-made samples."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import both, outcomes, sample, write

from tgr_local.commands import cli
from tgr_local.lab.eval import (
    average,
    comparison,
    manifest,
    outcome,
    paper,
    report,
    run_folder,
    summary,
    table_accuracy,
    table_geometry,
    tables,
)
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.samples import Sample
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import TgrError

DATA = os.environ.get("TGR_DATA")


def test_an_outcome_by_hand(tmp_path):
    base, tgr = outcomes(write(tmp_path / "run", both()))
    assert base.passed(1).tolist() == [0.5, 0] and base.passed(2).tolist() == [1, 0]
    assert base.passed_first(1).tolist() == [0, 0] and tgr.passed_first(1).tolist() == [1, 1]
    assert base.aucs.tolist() == [75, 0] and tgr.aucs.tolist() == [100, 75]
    assert base.best_of(2).tolist() == [0, 0]  # the likelier one, index 0, is wrong
    assert tgr.majority(2).tolist() == [1, pytest.approx(0.5, abs=0.1)]  # a tie: the first wins
    assert (base.cost, tgr.cost, tgr.reply_tokens, tgr.seconds) == (30, 60, 10, pytest.approx(0.3))
    assert base.rate == 60 and tgr.parts == {"chunk": 0.2, "rollouts": pytest.approx(0.1)}
    assert tgr.measure("n_eff").tolist() == [1.5] * 4
    at_k = comparison.of([base, tgr]).at_k
    assert at_k and (gain := at_k.gain(tgr)) and at_k.gain(base) is None
    assert (gain.mean, round(gain.low, 1), round(gain.high, 1)) == (50, -22.8, 81.2)
    assert at_k.n_differing(tgr) == 2
    assert outcome.reference([base, tgr]) is base


def with_two_seeds(folder: Path) -> Path:
    """`both` with the seeds 42 and 7; with 7 only the second sample of base is right."""
    again = [
        dataclasses.replace(one, seed=7, correct=one.system == "base" and one.index == 1)
        for one in both()
    ]
    return write(folder, both() + again, seeds=[42, 7])


def test_any_of_the_first_k_is_computed_seed_by_seed(tmp_path):
    base, tgr = outcomes(with_two_seeds(tmp_path / "run"))
    assert base.passed_first(1).tolist() == [0, 0] and base.passed_first(2).tolist() == [1, 0.5]
    assert tgr.passed_first(1).tolist() == [0.5, 0.5]
    assert np.isnan(base.passed_first(3)).all()
    table = table_accuracy.first_k([base, tgr])
    assert table.columns == ["system", "k=1", "k=2"]
    assert table.rows[0] == ["base", "0.0 [0.0, 65.8]", "75.0 [23.7, 96.7]"]


def test_each_seed_has_an_auc_of_its_own(tmp_path):
    base, tgr = outcomes(with_two_seeds(tmp_path / "run"))
    assert base.auc_of_seed(42, [1, 2]) == pytest.approx((75 + 0) / 2)
    assert base.auc_of_seed(7, [1, 2]) == pytest.approx(75)
    table = table_accuracy.by_seed([base, tgr])
    assert table.columns == ["system", "seed 7", "seed 42", "mean ± SD"]
    assert table.rows == [
        ["base", "75.0", "37.5", "56.2 ± 27"],
        ["tgr-latent", "0.0", "87.5", "43.8 ± 62"],
    ]
    (section,) = report.build([run_folder.read(tmp_path / "run")]).sections
    assert "AUC of each seed" in [table.title for table in section.tables]


def test_one_seed_has_no_table_of_seeds(tmp_path):
    assert not table_accuracy.by_seed(outcomes(write(tmp_path / "run", both()))).rows


def test_latent_statistics_have_a_standard_deviation_over_boundaries(tmp_path):
    shown = [{"apcs": 0.5, "n_eff": 2.0}, {"apcs": 0.7}]
    made = [sample("tgr-latent", p, 0, boundaries=shown) for p in "pq"]
    (row,) = table_geometry.latent(outcomes(write(tmp_path / "run", [*both()[:4], *made]))).rows
    assert row[1] == "0.6 ± 0.12" and row[3] == "2 ± 0" and row[2] == "-"


def test_a_report_may_ask_for_a_k_that_all_seeds_together_have(tmp_path):
    again = [dataclasses.replace(one, seed=7) for one in both()]
    run = run_folder.read(write(tmp_path / "run", both() + again, seeds=[42, 7]))
    base, _ = summary.outcomes([run], [1, 4])["toy"]
    assert base.ks == (1, 4) and base.passed(4).tolist() == [1, 0]
    base, _ = summary.outcomes([run], [1, 16])["toy"]
    assert base.ks == (1,), "there are no 16 samples"


def test_accepted_over_proposed_is_that_of_all_proposals(tmp_path):
    """Not the mean of the samples' rates: a sample with few proposals would count too much."""
    steps = [
        [{}, {"proposals": 1, "accepted": 1}],
        [{}, {"proposals": 900, "accepted": 1}, {"proposals": 99, "accepted": 0}],
    ]
    made = [
        sample("tgr-latent", p, 0, boundaries=[{"figures": figures} for figures in some])
        for p, some in zip("pq", steps, strict=True)
    ]
    base, tgr = outcomes(write(tmp_path / "run", [*both()[:4], *made]))
    assert tgr.method_count("proposals").tolist() == [1, 999]
    table = table_geometry.method_counts([base, tgr])
    assert table.columns == ["system", "accepted", "proposals", "accepted / proposals"]
    assert table.rows == [["tgr-latent", "1", "500", "0.002"]]


def test_an_acceptance_rate_is_a_mean_over_boundaries(tmp_path):
    """However many proposals the search made at each: one boundary here has 999 of 1,002."""
    found = [(0.75, 1, 1), (0.5, 2, 1), (0.25, 0, 0), (0.0, 999, 0)]
    steps = [
        {"figures": {"proposals": n, "accepted": accepted}, "acceptance": alpha}
        for alpha, n, accepted in found
    ]
    made = [sample("tgr-latent", p, 0, boundaries=[{"figures": {}}, *steps]) for p in "pq"]
    table = table_geometry.method_counts(outcomes(write(tmp_path / "run", [*both()[:4], *made])))
    assert table.columns[-4:] == ["accepted / proposals", "none accepted", "α", "1/α"]
    assert table.rows == [["tgr-latent", "2", "1e+03", "0.002", "0.5", "0.375", "2.67"]]


def test_budgets_are_filled_by_every_system(tmp_path):
    base, tgr = outcomes(write(tmp_path / "run", both()))
    budgets = outcome.common_budgets([base, tgr])
    assert [budget.mean for budget in budgets][-2:] == [30, 60]
    passed, fitting = base.at_budgets(budgets)
    assert passed[-1].tolist() == [1, 0] and fitting[-1].tolist() == [2, 2]
    passed, fitting = tgr.at_budgets(budgets)
    assert passed[-1][0] == 1 and passed[-2][0] == 0.5
    assert fitting[-1].tolist() == [1, 1] and fitting[-2].tolist() == [0.5, 0.5]

    fixed = outcomes(write(tmp_path / "fixed", both(), budget=40))
    assert outcome.common_budgets(fixed)[-1].of == {"p": 40, "q": 40}


def test_ungraded_samples_are_left_out_with_a_note(tmp_path):
    samples = both()
    samples[2] = dataclasses.replace(samples[2], correct=None, detail="grader died")
    base, tgr = outcomes(write(tmp_path / "run", samples[:-1]))
    assert list(base.graded) == list(tgr.graded) == ["p"] and base.passed(2).tolist() == [1]
    (section,) = report.build([run_folder.read(tmp_path / "run")]).sections
    assert section.notes == [
        "Unfinished. Samples so far: tgr-latent 3 of 4.",
        "Samples without a grade: base: 1 (grader died).",
        "The tables compare 1 of 2 problems, at k up to 2: those with at least 2 graded samples in "
        "every system shown.",
    ]


def test_texts_that_a_limit_or_a_loop_cut_are_counted(tmp_path):
    samples = both()
    for i, finish in enumerate(("length", "loop")):
        samples[i] = dataclasses.replace(samples[i], finish=finish)
    (section,) = report.build([run_folder.read(write(tmp_path / "run", samples))]).sections
    (cut,) = (note for note in section.notes if note.startswith("Texts that"))
    assert cut.startswith("Texts that a limit cut before their end: base 2 of 4. ")


def test_all_numbers_of_a_table_are_about_the_same_problems(tmp_path):
    samples = both()
    samples[2] = dataclasses.replace(samples[2], correct=None)
    base, tgr = outcomes(write(tmp_path / "run", samples))
    assert list(base.graded) == list(tgr.graded) == ["p"]
    (table, *_) = tables.of_task(comparison.of([base, tgr]), [])
    assert [row[-2:] for row in table.rows] == [["1", "2"], ["1", "2"]]


def test_runs_with_other_k_are_compared_at_those_that_they_share(tmp_path):
    four = [dataclasses.replace(one, index=one.index + 2) for one in both()] + both()
    folders = [
        write(tmp_path / "two", both()),
        write(tmp_path / "four", four, k=[1, 2, 4], raw=True),  # other systems, then
    ]
    for order in (folders, folders[::-1]):
        found = outcomes(*order)
        assert {outcome.ks for outcome in found} == {(1, 2)}
        assert {len(table.rows) for table in tables.of_task(comparison.of(found), [])[:2]} == {4}


def test_runs_of_other_data_are_not_compared(tmp_path):
    folders = [write(tmp_path / name, both()) for name in ("one", "two")]
    path = folders[1] / "problems.jsonl"
    path.write_text(path.read_text().replace("what is q", "what was q"))
    with pytest.raises(TgrError, match="another prompt for toy q"):
        outcomes(*folders)


def test_the_tables_agree_with_the_samples(tmp_path):
    page = report.build([run_folder.read(write(tmp_path / "run", both()))])
    text = report.as_markdown(page)
    assert "| base | 25.0 [3.3, 76.3] | 50.0 [9.5, 90.5] | 37.5 [6.3, 84.2] | - | 2 | 4 |" in text
    assert "| tgr-latent | 75.0 [23.7, 96.7] | 100.0 [34.2, 100.0] | 87.5 [33.2, 99.0] |" in text
    assert "+50.0 [-22.8, +81.2]" in text
    assert "forward tokens: `360 counted; 240 of them in uninterrupted phases" in text
    assert "| tgr-latent | 20 | 10 | 30 | 60 | 10 | 0.30 | 60 | stop 4 |" in text
    assert (
        "| tgr-latent | 0.7 ± 0 | 0.6 ± 0 | 1.5 ± 0 | 0.995 ± 0 | 0.1 ± 0 | 2 ± 0 | 1 | 4 |" in text
    )  # cycling: all
    head, facts = text.split("\n- run: ")
    assert head.startswith(
        "# Evaluation\n\n**Verdict.** At equal cost (60 forward tokens a problem)"
    )
    tasks = facts[facts.index("## toy") : facts.index("### One answer")]
    assert report.as_markdown(page, brief=True).strip() == f"{head}\n{tasks}".strip()


def test_a_case_shows_the_candidates_and_the_choice(tmp_path):
    page = report.build([run_folder.read(write(tmp_path / "run", both()))])
    case = page.sections[0].cases[0]
    assert case.title == "tgr-latent correct, base wrong" and case.prompt == "<what is p?>"
    assert case.boundary == "problem p, chunk 1 of 1, margin 0.5000"
    assert case.candidates[0] == ["chosen", "-0.4000", "4.5000", "0.2000", "-2.0000", "ab<u>d"]
    assert "after 'ab<' the chosen one continues with 'u>d', the best different one with 'i>c'" in (
        case.divergence
    )
    assert case.result.startswith(
        "correct with 7 after 60 forward tokens (stop); base: wrong with 6"
    )


def test_systems_of_several_runs_have_different_labels(tmp_path):
    model = {"name": "toy-8B", "sha256": "1" * 64, "description": "", "parameters": 8}
    one, two = write(tmp_path / "one", both()), write(tmp_path / "two", both(), model=model)
    labels = [outcome.label for outcome in outcomes(one, two)]
    assert labels == [
        "base (toy-1B)", "tgr-latent (toy-1B)", "base (toy-8B)", "tgr-latent (toy-8B)"
    ]  # fmt: skip
    three = write(tmp_path / "three", both(), raw=True)
    assert outcomes(one, three)[2].label == "base (three)"
    (tmp_path / "deep").mkdir()
    four = write(tmp_path / "deep" / "one", both(), raw=True)
    assert outcomes(one, four)[2].label == f"base ({four})"


def test_runs_of_one_system_are_one_outcome(tmp_path):
    alone = [sample("base", p, i, seed=7, correct=True) for p in "pq" for i in range(2)]
    folders = [
        write(tmp_path / "one", both()),
        write(tmp_path / "two", [*both(), *alone], seeds=[42, 7], command="else", created="x"),
    ]
    base, tgr = outcomes(*folders)
    assert (base.label, tgr.label) == ("base", "tgr-latent")
    assert len(base.all_samples) == 8 and len(tgr.all_samples) == 4  # none twice
    assert (base.n_planned, tgr.n_planned) == (8, 8)
    assert base.passed(1).tolist() == [0.75, 0.5] and len(base.phases) == 2
    text = report.as_markdown(report.build([run_folder.read(folder) for folder in folders]))
    assert text.count("### At equal k") == 1
    assert "- run: `one" in text and "- run: `two" in text and "- command: `else`" in text
    assert "Unfinished. Samples so far: tgr-latent 4 of 8." in text


def test_a_table_is_made_of_what_an_interrupted_run_has(tmp_path):
    def drawn(system: str, problem: str, n: int) -> list[Sample]:
        return [sample(system, problem, i, correct=i == 0) for i in range(n)]

    samples = [*drawn("base", "p", 4), *drawn("base", "q", 2), *drawn("tgr-latent", "p", 3)]
    base, tgr = outcomes(write(tmp_path / "one", samples, k=[1, 2, 4]))
    assert base.ks == tgr.ks == (1, 2) and list(base.graded) == ["p"]
    assert base.passed(2).tolist() == [0.5] and tgr.passed(2).tolist() == [pytest.approx(2 / 3)]
    (section,) = report.build([run_folder.read(tmp_path / "one")]).sections
    assert section.notes[0] == "Unfinished. Samples so far: base 6 of 8, tgr-latent 3 of 8."
    assert [table.title for table in section.tables][:2] == [
        "At equal k",
        "At equal forward tokens",
    ]

    two = write(tmp_path / "two", samples, k=[8], systems=[*read_systems(tmp_path / "one"), OTHER])
    base, tgr, other = outcomes(two)  # before the first problem is done
    assert base.ks == (1, 2) and (other.n_planned, other.graded) == (16, {})
    (section,) = report.build([run_folder.read(two)]).sections
    assert section.notes[0].endswith("base 6 of 16, tgr-latent 3 of 16, other 0 of 16.")
    assert "1 of 2 problems, at k up to 2" in section.notes[1]
    assert section.notes[1].endswith(
        "Left out, because fewer than half of the problems are graded: other."
    )


OTHER = {"name": "other", "method": "markov", "config": dataclasses.asdict(SearchConfig())}


def read_systems(folder: Path) -> list[dict[str, Any]]:
    return manifest.read(folder).systems


def test_a_budget_that_is_not_filled_is_not_finished(tmp_path):
    base, tgr = outcomes(write(tmp_path / "run", both(), budget=100))
    assert (base.n_planned, tgr.n_planned) == (8, 4)  # at 30 and at 60 tokens a sample
    assert set(outcome.common_budgets([base, tgr])[-1].of.values()) == {60}


def test_the_best_base_is_chosen_by_what_is_compared(tmp_path):
    systems = [
        {"name": name, "method": "base", "config": dataclasses.asdict(SearchConfig())}
        for name in ("dear", "cheap")
    ]
    right = {"dear": 6, "cheap": 4}
    samples = [
        sample(name, p, i, correct=i < right[name], counts={"chunk": 40 if name == "dear" else 10})
        for name in right for p in "pq" for i in range(8)
    ]  # fmt: skip
    folder = write(tmp_path / "run", samples, systems=systems, k=[1, 2, 4, 8])
    at_k, at_tokens, *_ = tables.of_task(comparison.of(outcomes(folder)), [])
    assert at_k.columns[-3] == "AUC, minus dear" and "dear is the best of 2 base" in at_k.note
    assert at_tokens.columns[-2] == "80, minus cheap"
    assert at_tokens.note.endswith("cheap is the best of 2 base systems by the share at 80 tokens.")


def test_self_bleu_compares_equal_numbers_of_texts(tmp_path):
    pytest.importorskip("sacrebleu")
    words = [
        "the old lamp burns all night", "a river runs past the mill",
        "nobody came home that day", "birds sang in the tall oak",
    ]  # fmt: skip
    few = [sample("base", p, i, text=words[i]) for p in "pq" for i in range(2)]
    many = [sample("tgr-latent", p, i, text=words[i]) for p in "pq" for i in range(4)]
    refused = sample("base", "p", 2, text="", finish="error", correct=None)
    base, tgr = found = outcomes(write(tmp_path / "run", [*few, *many, refused]))
    n, problems = outcome.equal_texts(found)
    assert (n, problems) == (2, ["p", "q"])
    assert base.self_bleu(n, problems).tolist() == tgr.self_bleu(n, problems).tolist()
    table = table_accuracy.open_ended(found)
    assert table.columns[-1] == "Self-BLEU@2" and table.rows[0][1] == table.rows[1][1]


def test_a_run_without_samples_is_reported_too(tmp_path):
    page = report.build([run_folder.read(write(tmp_path / "run", []))])
    assert "## toy" in report.as_markdown(page)


def test_the_papers_numbers_are_marked():
    (table,) = paper.reported("ablation", "aime25", "Qwen3-8B-Q4_K_M")
    assert table.title == "Reported by the paper: Qwen3-8B"
    assert ["w/o P_uni", "31.0", "49.1"] in table.rows and "not measured here" in table.note
    assert [t.title[-4:] for t in paper.reported("main", "aime25", "Qwen3-1.7B-Q8_0")] == ["1.7B"]
    (table,) = paper.reported("ablation", "aime25", "DeepSeek-R1-0528-Qwen3-8B-Q4")
    assert table.note.endswith("and DeepSeek-R1-0528-Qwen3-8B-Q4 is another model.")
    assert paper.reported("", "aime25", "Qwen3-8B") == []
    assert paper.reported("ablation", "gsm8k", "Qwen3-8B") == []


def test_auc_of_each_injection_seed_has_mean_and_sd(tmp_path):
    config = dataclasses.asdict(SearchConfig())
    systems = [
        {"name": f"tgr, injection seed {seed}", "method": "tgr-latent",
         "config": config | {"injection_seed": seed}}
        for seed in (5, 6)
    ]  # fmt: skip
    systems.append({"name": "alone", "method": "tgr-latent", "config": config | {"rank": 3}})
    names = {"base": systems[0]["name"], "tgr-latent": systems[1]["name"]}
    samples = [dataclasses.replace(one, system=names[one.system]) for one in both()]
    samples += [dataclasses.replace(one, system="alone") for one in both()[:4]]
    graded = outcomes(write(tmp_path / "run", samples, systems=systems))
    table = table_accuracy.by_injection_seed(graded)
    assert table.columns == ["system", "injection seed 5", "injection seed 6", "mean ± SD"]
    assert table.rows == [["tgr", "37.5", "87.5", "62.5 ± 35"]]
    assert table.title == "AUC of each injection seed"


def test_a_task_has_the_rollouts_of_its_own(tmp_path):
    task = {"name": "toy", "metric": "pass", "problems": 2, "sha256": "",
            "rollout_len": {"tgr-latent": 64}}  # fmt: skip
    folder = write(tmp_path / "run", both(), tasks=[task])
    found = [one.system["config"]["rollout_len"] for one in outcomes(folder)]
    assert found == [SearchConfig().rollout_len, 64]
    text = report.as_markdown(report.build([run_folder.read(folder)]))
    assert "- rollout_len on toy: `tgr-latent 64`" in text


def test_several_tasks_have_a_table_of_their_mean_auc(tmp_path):
    """toy: base 37.5, tgr-latent 87.5; other: 100 and 87.5."""
    other = [
        dataclasses.replace(one, task="other", correct=one.correct or one.system == "base")
        for one in both()
    ]
    task = {"name": "other", "metric": "pass", "problems": 2, "sha256": ""}
    folders = [write(tmp_path / "a", both()), write(tmp_path / "b", other, tasks=[task])]
    lines = (folders[1] / "problems.jsonl").read_text(encoding="utf-8")
    (folders[1] / "problems.jsonl").write_text(lines.replace('"toy"', '"other"'), encoding="utf-8")
    runs = [run_folder.read(folder) for folder in folders]
    page = report.build(runs)
    (table,) = page.all_tasks
    assert table.columns == [
        "system", "toy", "other", "Avg AUC", "Δ%", "Avg AUC, minus base", "forward tokens",
    ]  # fmt: skip
    base, tgr = table.rows
    assert [base[0], *(cell.split(" [")[0] for cell in base[1:])] == [
        "base", "37.5", "100.0", "68.8", "-", "-", "30",
    ]  # fmt: skip
    assert [tgr[0], *(cell.split(" [")[0] for cell in tgr[1:])] == [
        "tgr-latent", "87.5", "87.5", "87.5", "+27.3", "+18.8", "60",
    ]  # fmt: skip
    text = report.as_markdown(page)
    assert text.index("## All tasks") < text.index("## toy") < text.index("## other")
    assert not report.build(runs[:1]).all_tasks


def test_the_interval_of_a_mean_over_tasks_is_narrower_than_theirs():
    one = Interval(50, 44, 58)
    found = average.over_tasks([one, one, one, one])
    assert (found.mean, found.low, found.high) == pytest.approx((50, 47, 54))


def test_the_papers_tasks_have_their_mean_and_change():
    tasks = ["aime25", "olympiadbench", "omnimath", "countdown"]
    table = average.theirs("main", tasks, "Qwen3-1.7B-Q8_0")
    assert table.columns == ["system", *tasks[:3], "Avg AUC", "Δ%"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["base"] == ["5.8", "9.0", "14.3", "9.7", "-"]
    assert rows["tgr-latent"] == ["9.4", "13.7", "20.5", "14.5", "+49.8"]
    assert len(rows) == 8
    assert average.theirs("main", ["aime25"], "Qwen3-1.7B").rows == []


def paper_rows() -> list[dict[str, str]]:
    with paper.PAPER.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_papers_tables_are_whole():
    """The main table: 8 systems, trained ones included, 4 models, 6 tasks, 5 measures."""
    rows = paper_rows()
    main = [row for row in rows if row["table"] == "main"]
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    counts = Counter(row["system"] for row in main)
    trained = {"LCoT-GRPO", "LCoT-SimKO", "Dele-GRPO", "Dele-SimKO"}
    assert counts == dict.fromkeys({"base", "power", "tgr-token", "tgr-latent"} | trained, 120)
    (table,) = paper.reported("open-ended", "ifeval", "Qwen3-8B")
    assert ["Dele-SimKO", "60.8", "84.7", "88.9", "75.8", "69.5"] in table.rows
    assert Counter(row["table"] for row in rows) == {
        "main": 960, "ablation": 18, "chunk-length": 18, "sensitivity": 20, "token-space": 32,
        "open-ended": 45, "hard-filter": 3, "latent-statistics": 10, "overhead": 7,
    }  # fmt: skip


def test_every_number_of_the_papers_file_is_in_ours():
    path = Path(DATA or "", "paper_results.json")
    if not path.is_file():
        pytest.skip("TGR_DATA names no folder with paper_results.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    rows = paper_rows()
    ours = Counter(row["value"].lstrip("<") for row in rows)
    theirs: Counter[str] = Counter()
    for part in ("math", "code"):  # a number of tokens is that of each of the three tasks
        for entry in (entry for model in data.pop(part).values() for entry in model.values()):
            theirs[str(entry.pop("avg_kilotokens"))] += 3
            theirs.update(str(value) for task in entry.values() for value in task.values())
    del data["chunk_length_qwen3_8b"]["horizon_tokens"]
    theirs.update(leaves(data))
    assert ours == theirs


def leaves(value: Any) -> Iterator[str]:
    """The numbers in nested JSON, as text."""
    if isinstance(value, dict):
        yield from (leaf for name, v in value.items() if name not in ("columns", "note")
                    for leaf in leaves(v))  # fmt: skip
    elif isinstance(value, list):
        yield from (leaf for v in value for leaf in leaves(v))
    else:
        yield str(value).lstrip("<")


def test_a_report_is_written_where_it_is_asked_for(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder, page = write(tmp_path / "run", both()), tmp_path / "page.html"
    assert cli.main(["eval", "report", str(folder), "--out", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "page.md").is_file()
    tables_alone = tmp_path / "alone.md"
    assert cli.main(["eval", "report", str(folder), "--out", str(tables_alone)]) == 0
    assert tables_alone.read_bytes() == (tmp_path / "page.md").read_bytes()
    assert not tables_alone.with_suffix(".html").exists()
    assert cli.main(["eval", "report", str(folder), "--out", str(tmp_path / "page.pdf")]) == 2
    assert "must end in .html or .md" in capsys.readouterr().err
