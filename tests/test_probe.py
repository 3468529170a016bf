"""Probes: their arithmetic against plain implementations, their files, and how they are fitted."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from command_line import run
from engines import EXACT
from surroundings import ROOT

from tgr_local.engine import Cancel, Engine
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.fitting import fit as fitting
from tgr_local.lab.fitting import questions, regression
from tgr_local.lab.fitting.samples import Drawer, Samples, joined, read, write
from tgr_local.methods import vote
from tgr_local.methods.probe import answer, features, record
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.search.branches import Branch
from tgr_local.system.errors import CancelledError, CapacityError, ModelError, TgrError

EMBEDDED = ROOT / "models" / "tgr-mini-q8_0.gguf"


# ---- logistic regression ----


def plain_fit(x: Any, y: Any, strength: float) -> tuple[float, Any]:
    """Newton's method with the whole matrix, on standardised features."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    z = np.c_[np.ones(len(x)), (x - mean) / scale]
    penalty = np.diag([0.0] + [1 / strength] * x.shape[1])
    w = np.zeros(z.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-z @ w))
        hessian = z.T @ (z * (p * (1 - p))[:, None]) + penalty
        w -= np.linalg.solve(hessian, z.T @ (p - y) + penalty @ w)
    return w[0] - (w[1:] * mean / scale).sum(), w[1:] / scale


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_a_regression_equals_a_plain_newton_fit(strength: float) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(2, [1, 5, 0.1, 3], (400, 4))
    right = rng.random(400) < 1 / (1 + np.exp(-(x[:, 0] - 2 + 8 * (x[:, 2] - 2))))
    found = regression.fit(x, right, strength=strength)
    bias, weights = plain_fit(x, right, strength)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-3, atol=1e-5)
    assert found.bias == pytest.approx(bias, rel=1e-3)
    np.testing.assert_allclose(found.log_odds(x), bias + x @ weights, atol=1e-3)


def test_a_feature_that_never_changes_has_no_weight() -> None:
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=100), np.full(100, 7.0)]
    found = regression.fit(x, x[:, 0] > 0)
    assert found.weights[1] == 0 and np.isfinite(found.bias)


def test_a_fit_needs_right_and_wrong_texts() -> None:
    with pytest.raises(ValueError, match="of 5 texts 5 are right"):
        regression.fit(np.zeros((5, 2)), np.ones(5, bool))


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    scores = np.array([0.1, 0.4, 0.4, 0.8, 0.9])
    right = np.array([False, True, False, False, True])
    # pairs (right, wrong): 0.4 beats 0.1, ties 0.4, loses to 0.8; 0.9 beats all three
    assert regression.auroc(scores, right) == pytest.approx((1 + 0.5 + 0 + 3) / 6)
    assert math.isnan(regression.auroc(scores, np.zeros(5, bool)))


def test_auroc_within_compares_texts_of_one_problem() -> None:
    scores = np.array([0.1, 0.2, 0.9, 0.8])
    right = np.array([False, True, False, True])
    problems = np.array([0, 0, 1, 1])
    assert regression.auroc_within(scores, right, problems) == 0.5  # one pair in order, one not


def test_reliability_counts_every_tenth() -> None:
    found = regression.reliability(np.array([0.05, 0.15, 0.12, 1.0]), np.array([0, 1, 0, 1], bool))
    assert [n for n, _, _ in found] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    assert found[1][1:] == pytest.approx((0.135, 0.5)) and found[9][1:] == (1.0, 1.0)


# ---- features ----


def test_confidences_by_hand() -> None:
    logprobs = [-0.1] * 20 + [-2.0] * 4
    found = features.confidences(logprobs, [0.5] * 20 + [1.0] * 4)
    worst = (12 * -0.1 + 4 * -2.0) / 16
    assert found == pytest.approx(
        [-10 / 24, -2.0, worst, worst, 14 / 24, (12 * 0.5 + 4) / 16, math.log(5), math.log(24), -10]
    )
    assert len(found) == len(features.CONFIDENCES)


def test_a_text_shorter_than_a_window_is_one_window() -> None:
    assert features.window_means(np.array([-1.0, -3.0])) == pytest.approx([-2.0])


def test_features_are_confidences_and_two_states() -> None:
    text = Branch(None, [1, 2], [-1.0, -2.0], [0.1, 0.2])  # type: ignore[arg-type]
    text.read_states(np.array([[1.0, 2.0]], np.float32))
    text.read_states(np.array([[3.0, 6.0]], np.float32))
    text.read_states(np.zeros((0, 2), np.float32))
    found = vote.features_of(text)
    np.testing.assert_allclose(found[9:], [2.0, 4.0, 1.0, 2.0])
    np.testing.assert_allclose(found[:9], features.confidences([-1.0, -2.0], [0.1, 0.2]))
    assert len(found) == features.width(2)


def test_other_texts_are_unlike_the_known_ones() -> None:
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(100, 100)) * np.linspace(0.01, 3, 100)
    known, same = rng.normal(size=(2000, 100)) @ mix, rng.normal(size=(500, 100)) @ mix
    found = fitting.likeness(known)
    assert found.covers(same).mean() > 0.97
    # small compared with the spread of every single feature, but in directions where nothing varied
    assert found.covers(same + 0.6 * same.std()).mean() < 0.05
    assert found.distance(same).mean() == pytest.approx(1, abs=0.1)


# ---- answers ----


def test_votes_are_cubes_of_chances_and_the_first_of_equal_leaders_wins() -> None:
    assert answer.weights([0.0, 100.0]) == pytest.approx([0.125, 1.0])
    assert answer.tally(["a", "b", None, "b"], [1, 0.5, 9, 0.5]) == {"a": 1.0, "b": 1.0}
    assert list(answer.tally(["a", "b", "b"], [1, 0.6, 0.6])) == ["b", "a"]
    found = answer.features(["a", "b", "b", None], [0.0, -1.0, 2.0, 5.0])
    votes = answer.weights([0.0, -1.0, 2.0])
    assert found == pytest.approx(
        [
            2.0,
            math.log(votes[1] + votes[2] + 1e-3),
            math.log(votes[0] + 1e-3),
            math.log(2),
            math.log(4),
        ]
    )
    assert answer.features([None, None], [1.0, 2.0]) is None


# ---- fitting ----


def made_samples(n_problems: int = 40, n: int = 8) -> Samples:
    """Texts whose second feature says whether they are right, up to noise."""
    rng = np.random.default_rng(5)
    right = rng.random(n_problems * n) < np.repeat(rng.random(n_problems), n)
    width = len(features.CONFIDENCES) + 3
    whole = rng.normal(size=(len(right), width))
    whole[:, 1] += 2.0 * right
    beginning = whole.copy()
    beginning[:, 1] = rng.normal(size=len(right)) + 0.7 * right
    beginning[::9] = np.nan  # a text that is shorter than the cut
    keys = [f"{i // n}" if ok else f"{i // n}?{i % 3}" for i, ok in enumerate(right)]
    return Samples(whole, beginning, right, list(keys), np.repeat(np.arange(n_problems), n), 999)


def test_a_fit_is_measured_on_problems_that_it_has_not_seen() -> None:
    samples = made_samples()
    odds = fitting.held_out(samples.whole, samples.right, samples.problems, 0.01)
    fold = samples.problems % fitting.FOLDS == 2
    alone = regression.fit(samples.whole[~fold], samples.right[~fold])
    np.testing.assert_allclose(odds[fold], alone.log_odds(samples.whole[fold]))
    probe = fitting.fit(samples, "0" * 64, 12, {"tasks": {"made": 40}})
    auroc, low, high = probe.about["whole"]["auroc"]
    assert low < auroc < high and 0.85 < auroc < 0.95
    assert probe.about["beginning"]["auroc"][0] < auroc < probe.about["answer"]["auroc"][0]
    assert probe.about["beginning"]["n"] == np.count_nonzero(np.arange(320) % 9)
    # labels without any relation to the features
    shuffled = np.random.default_rng(0).permutation(samples.right)
    chance = fitting.held_out(samples.whole, shuffled, samples.problems, 0.01)
    assert abs(regression.auroc(chance, shuffled) - 0.5) < 0.12


@pytest.mark.parametrize(("n_noise", "expected"), [(0, 0.01), (600, 0.003)])
def test_the_strength_is_chosen_on_problems_not_seen(n_noise: int, expected: float) -> None:
    samples = made_samples()
    noise = np.random.default_rng(5).normal(size=(len(samples.right), n_noise))
    features = np.c_[samples.whole, noise]
    strength, odds = fitting.best_strength(features, samples.right, samples.problems)
    assert strength == expected
    same = fitting.held_out(features, samples.right, samples.problems, expected)
    np.testing.assert_array_equal(odds, same)


def test_texts_that_are_all_right_have_no_auroc() -> None:
    found = fitting.measured(np.array([0.1, 0.9]), np.array([True, True]), np.array([0, 1]))
    assert found["auroc"] is None and found["within"] is None and found["right"] == 1.0
    assert json.loads(json.dumps(found)) == found  # no NaN


def test_a_fit_of_few_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="samples of 9 problems, but a probe needs 10"):
        fitting.fit(made_samples(9), "0" * 64, 12, {})


def test_a_probe_is_the_same_after_its_file(tmp_path: Path) -> None:
    samples = made_samples()
    probe = fitting.fit(samples, "0" * 64, 12, {"tasks": {"made": 40}})
    file = tmp_path / "a.probe.json"
    fitting.save(probe, file)
    again = record.load(file)
    assert (again.model, again.cut, again.about) == (probe.model, 12, probe.about)
    for one, other in ((probe.whole, again.whole), (probe.beginning, again.beginning)):
        x = samples.whole
        np.testing.assert_allclose(other.right.log_odds(x), one.right.log_odds(x), atol=1e-3)
        np.testing.assert_allclose(other.known.distance(x), one.known.distance(x), rtol=1e-3)
    assert probe.chance(["1", "1", "2"], [2.0, 1.0, 0.0]) == pytest.approx(
        again.chance(["1", "1", "2"], [2.0, 1.0, 0.0]), abs=1e-3
    )
    assert probe.chance(["1", "1", "2"], [2.0, 1.0, 0.0]) > probe.chance(["1", "2"], [-3.0, -3.1])
    assert probe.chance([None], [3.0]) == 0.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.probe.json"]


def _set(*path: str | int, value: Any) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return data

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: [], "must be an object"),
        (_set("format", value=2), "format is 2, but must be 1"),
        (_set("cut", value=0), "cut is 0, but must be at least 1"),
        (_set("model", value=7), "model is 7, but must be a text"),
        (
            _set("whole", "weights", value=[1.0]),
            "whole has 1 weights, which leave none for a state",
        ),
        (_set("whole", "weights", value=["x"]), "must be a number"),
        (_set("whole", "known", "scale", value=[1.0]), "not as many means and scales"),
        (_set("beginning", "known", "scale", 0, value=0.0), "scale has 0.0, but must be above 0"),
        (_set("whole", "known", "root", value=[[1.0, 2.0]]), "root is not square"),
        (_set("about", value={"tasks": [1]}), r"about.tasks is \[1\], but must be an object"),
        (_set("about", "whole", value={}), "about.whole.n is missing"),
        (
            _set("about", "whole", "auroc", value=["x"]),
            r"about.whole.auroc.* is .*, but must be a number",
        ),
        (_set("about", "forward_tokens", value="x"), 'about.forward_tokens is "x", but must be'),
        (_set("answer", "weights", value=[1.0]), "answer has 1 weights, but must have 5"),
    ],
)
def test_a_file_that_is_no_probe_is_refused(
    tmp_path: Path, change: Callable[[Any], Any], says: str
) -> None:
    file = tmp_path / "a.probe.json"
    fitting.save(fitting.fit(made_samples(), "0" * 64, 12, {}), file)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(ModelError, match=f"a.probe.json is not a probe: .*{says}.*fit it again"):
        record.load(file)


def test_a_probe_of_another_model_is_refused(tmp_path: Path, engine: Engine) -> None:
    file = tmp_path / "a.probe.json"
    fitting.save(fitting.fit(made_samples(), "0" * 64, 12, {}), file)
    with pytest.raises(ModelError, match="was fitted on another model"):
        record.of(engine, file)
    fitting.save(fitting.fit(made_samples(), engine.model_hash, 12, {}), file)
    with pytest.raises(ModelError, match="has 12 weights, but this model needs"):
        record.of(engine, file)
    with pytest.raises(
        ModelError, match=r"cannot read the probe .*No such file.*tgr-local probe fit"
    ):
        record.of(engine, tmp_path / "none.json")
    assert record.of(engine) is None


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    for file in (Path("/dev/null"), tmp_path):  # a pipe would wait for its other end
        with pytest.raises(ModelError, match=f"cannot read the probe {file}: it is not a regular"):
            record.load(file)


def test_a_cut_that_no_text_reaches_is_refused() -> None:
    made = made_samples()
    short = dataclasses.replace(made, beginning=np.full_like(made.whole, np.nan))
    with pytest.raises(ValueError, match=r"of 0 texts that are longer than 12 tokens .* lower"):
        fitting.fit(short, "0" * 64, 12, {})


# ---- questions and samples ----


SHORT = SearchConfig(chunk_len=8, max_chunks=20)


@pytest.fixture(scope="module")
def embedded() -> Iterator[Engine]:
    with Engine(EMBEDDED) as engine:
        yield engine


def asked(folder: Path, *lines: str, limit: int = 5) -> list[questions.Question]:
    """The questions of a file with these lines, each whole or the text of a question."""
    file = folder / "q.jsonl"
    whole = [line if line[:1] == "{" else json.dumps({"question": line}) for line in lines]
    file.write_text("".join(f"{line}\n" for line in whole))
    return questions.of_file(file, limit)


def test_questions_of_a_file(tmp_path: Path) -> None:
    lines = ('{"question": "1+1", "answer": "2.0"}\n', "why", "c")
    first, second = asked(tmp_path, *lines, limit=2)
    assert first.messages == ({"role": "user", "content": "1+1"},)
    assert first.judge(["It is 2.", "\\boxed{3}", "none"]) == [True, False, False]
    assert second.judge(["\\boxed{4}", "\\boxed{5}", "is 4"]) == [True, False, True]
    assert second.judge(["no", "answers"]) is None


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "has no questions"),
        (["{"], "line 1: "),
        (['{"answer": "2"}'], "question is missing"),
        (['{"question": 5}'], "question is 5, but must be a text"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        asked(tmp_path, *lines)


def test_a_task_whose_answers_are_programs_is_refused() -> None:
    with pytest.raises(ValueError, match="humaneval has no final answers"), Grader() as grader:
        questions.load("humaneval", None, 5, 0, grader)


FIVE = '{"question": "What is 2 + 3?", "answer": "5"}'


def test_samples_are_drawn_once_and_counted_to_the_token(embedded: Engine, tmp_path: Path) -> None:
    some, place = asked(tmp_path, FIVE, FIVE), tmp_path / "s"
    before = embedded.stats().n_positions
    first, again = (
        joined([part for part in Drawer(embedded, SHORT, 3, place).each(some, 8) if part])
        for _ in range(2)
    )
    assert embedded.stats().n_positions - before == first.tokens  # none were drawn again
    np.testing.assert_allclose(again.whole, first.whole, rtol=1e-6)
    assert first.keys == again.keys and first.right.any()
    with pytest.raises(TgrError, match="samples of another model, or with other options"):
        Drawer(embedded, SHORT, 4, place)
    with pytest.raises(ValueError, match="samples is 900, but the engine holds"):
        Drawer(embedded, SHORT, 900, place)


def test_questions_are_drawn_side_by_side(embedded: Engine, tmp_path: Path) -> None:
    """Their samples are those of one after another, in the order of the questions, in fewer steps;
    what is wrong with one of them ends the work."""
    sums = ["2 + 3", "9 * 8 + 1", "4 + 4 + 4 + 4", "7 - 5 * 2 + 30"]
    some = asked(tmp_path, *(f"What is {one}?" for one in sums))
    drawn, steps = [], []
    for n_seq_max in (4, 12):  # of samples of 3: one question at a time, and all four
        with Engine(EMBEDDED, EngineConfig(**EXACT | {"n_seq_max": n_seq_max})) as engine:
            drawer = Drawer(engine, SHORT, 3, tmp_path / str(n_seq_max))
            before = engine.stats().n_decodes
            drawn.append(list(drawer.each(some, 8)))
            steps.append(engine.stats().n_decodes - before)
    alone, together = ([part for part in parts if part is not None] for parts in drawn)
    assert len(alone) == len(together) == 4
    assert [part.keys for part in alone] == [part.keys for part in together]
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a.whole, b.whole, rtol=1e-4, atol=1e-4)
    assert steps[1] < steps[0]  # how much depends on when the threads begin
    broken = dataclasses.replace(some[2], messages=({"role": "user", "content": "x" * 10**6},))
    with pytest.raises(CapacityError):
        list(Drawer(embedded, SHORT, 3, tmp_path / "b").each([*some[:2], broken, some[3]], 8))


def test_a_cancel_between_questions_ends_the_drawing(embedded: Engine, tmp_path: Path) -> None:
    some, cancel = asked(tmp_path, "What is 2 + 3?", "What is 2 + 4?"), Cancel()
    drawer = Drawer(embedded, SHORT, 3, tmp_path / "s", cancel=cancel)
    cancel.cancel()
    with pytest.raises(CancelledError, match="cancelled while samples were drawn"):
        list(drawer.each(some, 8))


def test_samples_are_kept_by_settings_and_by_what_judges_them(
    embedded: Engine, tmp_path: Path
) -> None:
    lines = (FIVE, FIVE.replace('"5"', '"6"'), "What is 2 + 3?")
    of_five, of_six, of_none = (asked(tmp_path, line) for line in lines)
    drawers = [Drawer(embedded, SHORT, n, None) for n in (3, 4)]
    five, six, majority = (next(drawers[0].each(one, 8)) for one in (of_five, of_six, of_none))
    [other] = drawers[1].each(of_five, 8)
    assert five and six and majority and other
    assert five.right.any() and not (five.right & six.right).any() and majority.right.any()
    assert (len(five.right), len(other.right)) == (3, 4)
    assert len([*(tmp_path / "cache" / "tgr-local" / "probe").glob("*/*.npz")]) == 4


def test_a_text_without_tokens_has_no_beginning(embedded: Engine, tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, max_seconds=1e-9)
    drawer = Drawer(embedded, config, 3, tmp_path / "s")
    assert [*drawer.each(asked(tmp_path, FIVE), 8)] == [None]


@pytest.mark.parametrize("damage", ["empty", "half", "bits", "version", "npy", "shape"])
def test_a_damaged_file_of_samples_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "a.npz"
    write(file, made_samples())
    whole = file.read_bytes()
    entry = whole.index(b"PK\1\2")  # of the directory of a zip file
    content = {"empty": b"", "half": whole[: len(whole) // 2],
               "bits": whole[:40] + bytes(20) + whole[60:],
               "version": whole[: entry + 6] + b"\x41" + whole[entry + 7 :]}  # fmt: skip
    if damage in content:
        file.write_bytes(content[damage])
    else:
        with file.open("wb") as out:
            if damage == "npy":
                np.save(out, np.zeros(3))
            else:
                none = np.zeros((2, 3))
                np.savez(out, whole=none, beginning=none, right=none, keys=[], tokens=none)
    with pytest.raises(TgrError, match=r"a.npz is damaged: .*; remove it"):
        read(file)


# ---- the command, and the probe that comes with the embedded model ----


def test_fit_show_and_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "p.probe.json")
    some = ["--samples", "3", "--problems", "10"]
    assert run("probe", "fit", "arithmetic8", *some, "--out", out) == 0
    assert "arithmetic8 (10 questions), 3 samples each" in capsys.readouterr().out
    assert run("probe", "show", out, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["whole"]["n"] <= 30 and shown["tasks"] == {"arithmetic8": 10}
    assert run("probe", "test", "arithmetic6", *some, "--probe-file", out, "--json") == 0
    tested = json.loads(capsys.readouterr().out)["arithmetic6"]
    assert not (tmp_path / "p.probe.json.test").exists()
    assert tested["n"] == 30 and tested["auroc"][1] <= tested["auroc"][0] <= tested["auroc"][2]
    assert run("probe", "test", "equations", *some, "--probe-file", out) == 0
    assert "equations: 100% of 30 right; " in capsys.readouterr().out
    assert run("probe", "fit", "arithmetic6", "--samples", "0", "--out", f"{out}x") == 2
    assert "samples is 0, but must be at least 1" in capsys.readouterr().err


def test_files_of_equal_names_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []
    for number, folder in enumerate(("one", "two"), 1):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "q.jsonl"
        lines = [f'{{"question": "What is {i} + 3 - {number}?"}}\n' for i in range(4 + number)]
        file.write_text("".join(lines))
        names.append(str(file))
    some = ["--samples", "6", "--problems", "10", "--out", str(tmp_path / "p.json")]
    assert run("probe", "fit", *names, "arithmetic8", *some) == 0
    capsys.readouterr()
    assert run("probe", "show", str(tmp_path / "p.json"), "--json") == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [tasks[name] for name in names] == [5, 6] and "arithmetic8" in tasks


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cut", "-1"], "cut is -1, but must be at least 0"),
        (["--problems", "9"], "there are 9 questions, but a probe needs 10"),
        (["--out", "."], "is a folder, but --out needs the name of a file"),
        (["--max-tokens", "4"], "no text ended with an answer that can be judged"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ["--samples", "2", "--problems", "10", "--out", str(tmp_path / "p.json"), *options]
    assert run("probe", "fit", "arithmetic6", *some) != 0
    assert says in capsys.readouterr().err
    assert not [*tmp_path.glob("**/*.npz")]  # no samples were drawn in vain


@pytest.mark.parametrize("by_default", [True, False])
def test_a_fit_overwrites_no_probe(
    by_default: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.gguf"
    model.write_text("not loaded")
    file = record.place(model) if by_default else tmp_path / "p.json"
    file.write_text("precious")
    options = ["-m", str(model), *([] if by_default else ["--out", str(file)])]
    assert run("probe", "fit", "arithmetic6", *options) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"there is a probe already, {file}; name another file with --out FILE" in said
    assert {*tmp_path.iterdir()} == {model, file} and file.read_text() == "precious"


def test_an_interrupted_fit_goes_on_with_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.json"
    command = ("probe", "fit", "arithmetic6", "--samples", "2", "--problems", "10", "--out")
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "save", Mock(side_effect=KeyboardInterrupt))
        assert run(*command, str(out)) == 130
    samples = {file: file.stat().st_mtime_ns for file in tmp_path.glob("p.json.samples/*.npz")}
    assert samples and not out.exists()
    assert run(*command, str(out)) == 0
    assert out.exists() and samples == {file: file.stat().st_mtime_ns for file in samples}


def test_the_shipped_probe_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("probe", "fit", "arithmetic6", "--problems", "1", "--samples", "1") == 2
    assert "there is a probe already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("fit", "arithmetic6", "--out"), ("test", "arithmetic6", "--probe-file"), ("show",)]
)
def test_an_empty_name_of_a_probe_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("probe", *words, "") == 2
    assert "the name of the probe's file is empty" in capsys.readouterr().err


def test_a_test_without_texts_to_judge_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.json"
    shutil.copy(record.place(EMBEDDED), file)
    some = ["--samples", "1", "--problems", "1", "--probe-file", str(file), "--max-tokens", "4"]
    assert run("probe", "test", "arithmetic6", *some) == 1
    assert "no text ended with an answer" in capsys.readouterr().err


def test_the_embedded_model_has_a_probe(
    embedded: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = record.of(embedded)
    assert probe is not None
    auroc, low, _ = probe.about["whole"]["auroc"]
    assert auroc > low > 0.78 and "arithmetic6" not in " ".join(probe.about["tasks"])
    assert run("probe", "show", str(EMBEDDED)) == 0
    assert f"AUROC {auroc:.3f}" in capsys.readouterr().out
