"""The statistics of bench/oracle.py, on arrays whose answer is known."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from engines import EXACT
from method_runs import RESIDUAL
from surroundings import ROOT

from tgr_local import EngineConfig, SearchConfig, load
from tgr_local.generation import query_tokens
from tgr_local.search.run import Run
from tgr_local.search.steering import Steering

BENCH = ROOT / "bench"

if not BENCH.exists():
    pytest.skip("bench is not next to the tests", allow_module_level=True)


def module(name: str) -> ModuleType:
    """A module of bench/, under its own name, which the others import it by."""
    spec = importlib.util.spec_from_file_location(name, Path(BENCH, f"{name}.py"))
    assert spec and spec.loader
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


stats = module("oracle_statistics")
tables = module("oracle_tables")
module("oracle_checkpoint")
module("oracle_completions")
oracle = module("oracle")

RNG = np.random.default_rng(1)
ALIKE = RNG.binomial(1, RNG.uniform(size=(300, 1, 1)), (300, 8, 32)).astype(float)
"""300 boundaries whose eight anchors are equally good."""


def drawn(chances: list[float], n: int = 32, boundaries: int = 400) -> np.ndarray:
    """Independent successes [boundaries, anchors, n]."""
    p = np.array(chances)[None, :, None]
    return RNG.binomial(1, p, (boundaries, len(chances), n)).astype(float)


def test_the_variance_between_anchors_by_hand():
    x = np.array([[1.0, 1.0], [0.0, 1.0]])
    # means 1 and 1/2: variance 1/8; luck (0 + 1/2) / 2 = 1/4, half of it in a mean of two
    assert stats.variances(x, False) == pytest.approx([0.0, 0.0, 0.25])
    # residuals 1/4, -1/4, -1/4, 1/4 on one degree of freedom: 1/4
    assert stats.variances(x, True) == pytest.approx([0.0, 0.0, 0.25])
    assert stats.share(np.array([1.0, 0.0, 3.0])) == 0.25
    assert math.isnan(stats.share(np.zeros(3)))


@pytest.mark.parametrize("shared", [False, True])
def test_binomial_noise_alone_is_no_variance_between_anchors(shared: bool):
    found = [stats.variances(x, shared)[0] for x in ALIKE]
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found)) < 3 * error
    means = [x.mean(axis=1).var(ddof=1) for x in ALIKE]  # which the noise is in
    assert np.mean(means) > 10 * error


@pytest.mark.parametrize("shared", [False, True])
def test_a_known_variance_between_anchors_is_found(shared: bool):
    chances = [0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8]
    found = [stats.variances(x, shared) for x in drawn(chances)]
    between, common, rest = np.mean(found, axis=0)
    assert between == pytest.approx(np.var(chances, ddof=1), rel=0.05)
    assert common == pytest.approx(0.0, abs=0.002)
    assert rest == pytest.approx(np.mean([p * (1 - p) for p in chances]), rel=0.05)


def test_what_columns_have_in_common_is_no_variance_between_anchors():
    column = RNG.binomial(1, 0.5, (400, 1, 32)).astype(float)
    x = np.where(RNG.random((400, 8, 32)) < 0.1, 1 - column, column)
    between, common, rest = np.mean([stats.variances(one, True) for one in x], axis=0)
    assert between == pytest.approx(0.0, abs=0.001)
    assert common == pytest.approx(0.16, rel=0.05) and rest == pytest.approx(0.09, rel=0.05)
    same = np.broadcast_to(column[0], (8, 32))
    assert stats.variances(same, True)[0] == pytest.approx(0.0)
    assert stats.best_of_half(same, RNG) == pytest.approx(0.0)


def test_too_few_completions_are_refused():
    with pytest.raises(ValueError, match="at least two anchors and completions"):
        stats.variances(np.ones((8, 1)), False)


def test_the_best_of_equal_anchors_gains_nothing():
    found = [stats.best_of_half(x, RNG, 4) for x in ALIKE]
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found)) < 3 * error
    naive = [x.mean(axis=1).max() - x.mean() for x in ALIKE]  # chosen and judged by the same
    assert np.mean(naive) > 10 * error


def test_equal_anchors_gain_nothing_where_only_some_texts_are_right():
    """A boundary is informative by its outcome, which favours no anchor."""
    rare = [x for x in drawn([0.005] * 8, boundaries=1000) if 0 < x.mean() < 1]
    assert 500 < len(rare) < 950
    for found in (
        [stats.best_of_half(x, RNG, 2) for x in rare],
        [stats.variances(x, False)[0] for x in rare],
    ):
        assert abs(np.mean(found)) < 3 * np.std(found) / math.sqrt(len(found))


def test_the_best_anchor_gains_what_it_is_better_by():
    one = np.zeros((4, 8))
    one[2] = 1.0
    assert stats.best_of_half(one, RNG) == pytest.approx(0.75)
    found = [stats.best_of_half(x, RNG, 2) for x in drawn([0.9, 0.1, 0.1, 0.1])]
    assert np.mean(found) == pytest.approx(0.9 - 0.3, abs=0.02)


def test_a_choice_is_judged_by_other_completions_than_its_own():
    x = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    # column 0 chooses the first anchor (others: 0 and 1/2), column 2 the second (1/2 and 0), and
    # column 1 has equals
    assert stats.gain_of_choice(x, x) == pytest.approx(-(0.25 + 0.25) / 3)
    assert stats.gain_of_winner(x, x) == pytest.approx((0.5 + 0.0 + 0.5) / 3)
    better = np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert stats.gain_of_choice(better, better, n_mc=2) == pytest.approx(0.5)
    assert stats.gain_of_choice(-better, better) == pytest.approx(-0.5)


def test_a_choice_by_the_luck_of_a_rollout_gains_nothing():
    """A score that knows each text's own success, and nothing of its anchor."""
    found = [stats.gain_of_choice(x, x) for x in ALIKE]
    assert abs(np.mean(found)) < 3 * np.std(found) / math.sqrt(len(found))
    assert np.mean([stats.gain_of_winner(x, x) for x in ALIKE]) > 0.2


def test_a_choice_among_candidates_with_seeds_of_their_own():
    luck = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # the seed decides, not the anchor
    assert stats.gain_of_winner(luck, luck) == pytest.approx(0.0)
    # a column never has seed 0 twice, so two columns of three have it
    assert stats.apart(stats.gain_of_winner, luck, luck, RNG) == pytest.approx(2 / 3 - 1 / 3)
    anchor = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    assert stats.apart(stats.gain_of_choice, anchor, anchor, RNG) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="a completion for each anchor"):
        stats.apart(stats.gain_of_winner, luck.T, luck.T, RNG)


def test_correlations_of_anchors_and_of_texts():
    x = drawn([0.1, 0.9], boundaries=1)[0]
    assert stats.correlation(stats.text_moments(2 * x + 1, x)) == pytest.approx(1.0)
    scores = np.broadcast_to([[0.0], [1.0]], x.shape)
    assert stats.correlation(stats.half_moments(scores, x)) > 0.99
    moments = np.mean([stats.half_moments(x, x) for x in ALIKE], axis=0)
    assert abs(stats.correlation(moments)) < 0.1  # luck of a half says nothing of the other
    assert math.isnan(stats.correlation(np.array([0.0, 0.0, 1.0])))


def test_the_best_of_normal_numbers():
    assert stats.best_of_normal(1) == pytest.approx(0.0, abs=1e-9)
    assert stats.best_of_normal(2) == pytest.approx(1 / math.sqrt(math.pi))
    assert stats.best_of_normal(8) == pytest.approx(1.4236, abs=1e-4)


def test_an_interval_over_boundaries():
    parts = np.stack([np.repeat([0.0, 1.0], 50), np.ones(100)], axis=1)
    found = stats.bootstrap(parts, stats.share)
    assert found.mean == pytest.approx(1 / 3)
    assert stats.share(np.array([0.4, 1.0])) == pytest.approx(found.low, abs=0.02)
    assert stats.share(np.array([0.6, 1.0])) == pytest.approx(found.high, abs=0.02)
    assert math.isnan(stats.bootstrap(np.zeros((0, 2)), stats.share).mean)
    assert math.isnan(stats.bootstrap(np.zeros((3, 2)), stats.share).low)


def test_the_tables_of_records():
    record = {
        "kind": "shared",
        "setting": "one",
        "success": ["1111", "0000", "0101"],
        "same": [0.5, 1.0],
        "V": [[[-1.0] * 4, [-2.0] * 4, [-1.6, -1.5] * 2]],
        "P_bum": [[[2.0] * 4, [None, 1.0, 1.0, 1.0], [4.0] * 4]],
        "P_uni": [0.5, 0.5],
    }
    cell = tables.Cell.of(record, SearchConfig(lambda_b=1.0, lambda_u=2.0))
    assert cell.bumpiness[0, 1].tolist() == [2.0, 1.0, 1.0, 1.0]  # that of the other anchor
    assert cell.S[0, :, 1].tolist() == [-1 - 2 - 2 * 0.5, -2 - 1 - 2 * 0.5, -1.5 - 4]
    groups = {("one", "shared"): [cell, cell]}
    row = tables.ceiling(groups).splitlines()[2].split(" | ")
    expected = ["75", "50.0 [50.0, 50.0]", "+0.0 [+0.0, +0.0]", "+100.0 [+100.0, +100.0]"]
    assert row[2:7] == ["all 2", *expected]
    assert row[9].startswith("+50.0")  # the best is right in all texts, none in half of them
    row = tables.regrets(groups, 0).splitlines()[2].split(" | ")
    assert row[3:8] == [f"+{r} [+{r}, +{r}]" for r in ("0.0", "87.5", "37.5", "50.0", "50.0")]
    row = tables.lookahead(groups, [4]).splitlines()[2].split(" | ")
    # the first anchor has the largest V under all seeds; without injection the likelier half is
    # right, and five of six pairs have one of it
    assert row[2:] == ["4", *["+50.0 [+50.0, +50.0]"] * 4, "+33.3 [+33.3, +33.3] |"]
    assert tables.signal(groups, [4]).splitlines()[2].startswith("| one | shared | 4 | 100.0")
    swap = {"setting": "tgr-latent:eta=2", "success": ["11", "01", "00", "11"]}
    last = tables.swapped([swap]).splitlines()[-1]
    assert last.startswith("| eta=2 | 1 | 100.0")
    assert "| +50.0 [+50.0, +50.0] | +100.0 [+100.0, +100.0] | +100.0 [+100.0, +100.0] |" in last


@pytest.mark.parametrize("begins", [False, True])
def test_a_completion_is_what_the_method_writes(begins: bool):
    """Completion 0 has the seeds of the text itself: without injection it is the `markov` text,
    under an anchor its chunk is the one that the trajectory writes."""
    config = SearchConfig(**RESIDUAL, chunk_len=12, max_chunks=9, relative_strength=0.6, seed=5)
    with load(None, EngineConfig(**EXACT)) as engine:
        query = query_tokens(engine, "What is 12 + 7 * 3 - 5?", config)
        with oracle.Completions(Run(engine, query, config), 3, [4]) as markov:
            boundaries = markov.walk(False)
            text = markov.generated
        assert len(boundaries) >= 3
        with oracle.Completions(Run(engine, query, config), 3, [4]) as c:
            index, (n, z) = (0, c.walk(True)[0]) if begins else (2, c.walk(False)[1])
            c.return_to(index, n)
            anchors = Steering(c).propose(z, 4)
            injections = Steering(c).injections(anchors)
            plain, *steered = c.steered([(None, (0,)), *((one, (0,)) for one in injections)])
            rest = c.texts([plain, *steered])
            assert rest[0] == text
            for whole, start in zip(rest[1:], steered, strict=True):
                assert whole[: len(start.tokens)] == list(start.tokens)
            assert len({s.tokens for s in steered}) > 1
            assert plain.tokens[:n] == tuple(text[:n])
            chunk = c.write(injections[2])
            assert (*text[:n], *chunk.tokens.tolist()) == steered[2].tokens
            assert steered[2].terms[0, 0] == pytest.approx(chunk.logprobs[:4].mean(), abs=1e-3)


def test_equal_texts_of_equal_seeds_are_written_once():
    config = SearchConfig(chunk_len=8, max_chunks=4, seed=5)
    with load(None, EngineConfig(**EXACT)) as engine:
        query = query_tokens(engine, "What is 12 + 7 * 3 - 5?", config)
        with oracle.Completions(Run(engine, query, config), 3, [4]) as c:
            c.return_to(0, c.walk(True)[0][0])
            (start,) = c.steered([(None, (1,))])
            before = engine.stats().n_positions
            c.texts([start])
            once = engine.stats().n_positions - before
            assert c.texts([start] * 5)[4] == c.texts([start])[0]
            assert engine.stats().n_positions - before == 3 * once


def test_a_run_of_other_options_is_not_continued(tmp_path):
    path = tmp_path / "run.jsonl"
    record = {"number": 0, "kind": "shared", "setting": "a"}
    checkpoint = oracle.Checkpoint(path, {"task": "x", "seeds": [1]})
    checkpoint.add([{"number": 0, "state": [1.0]}, record])
    with path.open("a", encoding="utf-8") as file:
        file.write('{"number": 1, "sta')  # killed while it wrote
    again = oracle.Checkpoint(path, {"task": "x", "seeds": [1]})
    assert again.records == checkpoint.records
    assert again.missing(0, ["shared"], ["a"]) == []
    assert again.missing(0, ["shared", "independent"], ["a"]) == ["independent"]
    assert again.missing(1, ["shared"], ["a"]) == ["state", "shared"]
    with pytest.raises(ValueError, match="of a run with other seeds; name another file"):
        oracle.Checkpoint(path, {"task": "x", "seeds": [2]})


def test_a_run_with_former_options_is_continued_where_they_changed_nothing(tmp_path):
    path = tmp_path / "run.jsonl"
    oracle.Checkpoint(path, {"options": {"sigma": 0.1, "min_gap": 0.0}})
    oracle.Checkpoint(path, {"options": {"sigma": 0.1}})
    path.write_text('{"options": {"sigma": 0.1, "min_gap": 0.5}}\n')
    with pytest.raises(ValueError, match="of a run with other options; name another file"):
        oracle.Checkpoint(path, {"options": {"sigma": 0.1}})


@pytest.mark.parametrize("text", ['{"a": 1}\n', '{\n "a": 1\n}\n', "[1]\n", "7\n", "\ud800\n"])
def test_a_report_on_a_file_of_another_kind_is_one_sentence(
    text: str, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "other.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    monkeypatch.setattr(sys, "argv", ["oracle.py", "x", "--report", "--out", str(path)])
    assert oracle.main() == 1
    says = f"oracle: {path} is not a checkpoint of the oracle; name another file with --out\n"
    assert capsys.readouterr().err == says


def options_of(monkeypatch, *words: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["oracle.py", *words])
    found: argparse.Namespace = oracle.parsed()
    return found


def test_a_run_by_divergence_measures_its_strengths_first(monkeypatch, tmp_path, capsys):
    """Its records pay for no measurement, and give the same tables without a model."""
    out = str(tmp_path / "run.jsonl")
    words = [
        "arithmetic6", "--out", out, "--boundaries", "2", "--completions", "8", "--parallel", "72",
        "--kinds", "shared", "--setting", "divergence=0.05", "--lengths", "4,8", "--left", "20",
        "--threads", "1", "--options", "chunk_len=16,max_chunks=9",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--completions is 7, but shared seeds need one for each"):
        oracle.measure(options_of(monkeypatch, *words, "--completions", "7"))
    with pytest.raises(ValueError, match="no effect with the calibration residual; add calib"):
        oracle.measure(options_of(monkeypatch, *words))
    words[-1] += ",calibration=divergence"
    oracle.measure(options_of(monkeypatch, *words))
    shown = capsys.readouterr()
    assert "tgr-latent:divergence=0.05: zeta " in shown.err
    head, *records = oracle.read_lines(Path(out))
    measured = [record for record in records if "tokens" in record]
    assert len(measured) == 2
    # 72 chunks, and the rest of as many texts, of at most 9 * 16 tokens that are read again
    assert all(record["tokens"] < 2 * 72 * 144 for record in measured)
    only = options_of(monkeypatch, "arithmetic6", "--out", out, "--kinds", "shared", "--report")
    oracle.report(only, head, records)
    assert capsys.readouterr().out in shown.out
    only.length = 5
    with pytest.raises(ValueError, match="length is 5, but must be one of --lengths, 4, 8"):
        oracle.report(only, head, records)


def test_problems_are_taken_in_the_order_in_which_they_are_named(monkeypatch):
    found = oracle.problems_of(options_of(monkeypatch, "arithmetic6", "--problems", "0-7,0-3"))
    assert [problem.id for problem in found] == ["0-7", "0-3"]
    with pytest.raises(ValueError, match="arithmetic6 has no problem 'x'; remove it from --prob"):
        oracle.problems_of(options_of(monkeypatch, "arithmetic6", "--problems", "0-7,x"))
