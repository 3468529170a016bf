"""The training data of the embedded model: true, repeatable, free of test puzzles, encodable; and
what counts as right where it is measured, with the figures made of that."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from models import (  # noqa: E402
    arithmetic,
    countdown,
    data,
    equations,
    evaluate,
    vocab,
)
from models.evaluate import Question, is_right  # noqa: E402
from models.vocab import SPECIALS, Vocabulary  # noqa: E402
from tgr_local import SearchConfig  # noqa: E402

PUBLIC = ROOT.parent / "shared" / "data"
TRUE_LINE = re.compile(r"(?<![\d=*/+(-])(-?\d+)([-+*/])(\d+)=(-?\d+)(?![\d*/+=-])(\?)?")


def boxed(answer: str) -> str:
    """The content of the only box of an answer."""
    (found,) = re.findall(r"\\boxed\{([^{}]*)\}", answer)
    return str(found)


def generated(task: str, n: int = 200) -> list[arithmetic.Problem]:
    """Problems of one task."""
    rng = np.random.default_rng(7)
    return [data.problem(rng, task) for _ in range(n)]


def test_text_has_the_fewest_parentheses():
    assert arithmetic.text(("-", 5, ("-", 3, 2))) == "5-(3-2)"
    assert arithmetic.text(("-", ("-", 5, 3), 2)) == "5-3-2"
    assert arithmetic.text(("*", ("+", 1, 2), 3), " ") == "(1 + 2) * 3"
    assert arithmetic.value(("/", 7, 2)) is None


def test_long_products_go_through_partial_products():
    assert arithmetic.calculation("*", 23, 47) == "23*47=47*20+47*3=940+141=1081"
    assert arithmetic.calculation("*", 23, 40) == "23*40=920"


@pytest.mark.parametrize("n_operands", [2, 3, 4, 5, 6])
def test_arithmetic_reduces_to_the_boxed_value(n_operands):
    for made in generated(f"arithmetic{n_operands}"):
        first = made.reasoning[0][0].strip()
        # The first line is the question in plain signs, with division always exact.
        assert eval(first.replace("/", "//")) == int(boxed(made.answer))


@pytest.mark.parametrize("task", ["arithmetic3", "countdown3", "countdown4"])
def test_calculations_are_true_unless_marked_as_slips(task):
    n_seen = 0
    for made in generated(task):
        learnt = "".join(text if shown else "#" for text, shown in made.reasoning)
        for left, operator, right, result, _ in TRUE_LINE.findall(learnt):
            n_seen += 1
            assert arithmetic.apply(operator, int(left), int(right)) == int(result), learnt
    assert n_seen > 100


def test_a_slip_is_wrong_and_repaired():
    rng = np.random.default_rng(0)
    slips = [p for p in (arithmetic.worked(rng, "+", 27, 35) for _ in range(500)) if len(p) == 3]
    assert slips
    for _, (wrong, learn), (repair, _) in slips:
        assert int(wrong) != 62 and not learn
        assert repair.startswith(f"? {wrong}-35={int(wrong) - 35} wrong, 27+35=62")


@pytest.mark.parametrize("n_numbers", [3, 4])
def test_tries_are_numbered_new_and_end(n_numbers):
    n_given_up = 0
    for made in generated(f"countdown{n_numbers}"):
        *lines, last = "".join(text for text, _ in made.reasoning).splitlines()
        given_up = last == "I give up"
        n_given_up += given_up
        tries = lines if given_up else [*lines, last]
        assert [line.split(": ")[0] for line in tries] == [str(i + 1) for i in range(len(tries))]
        most = countdown.MAX_TRIES[n_numbers]
        assert len(tries) == most if given_up else len(tries) <= most
        assert made.answer.startswith("I did not find it." if given_up else "The answer is")
        if given_up:
            assert Counter(re.findall(r"\d+", boxed(made.answer))) <= Counter(
                re.findall(r"\d+", made.question)
            )
    assert 10 < n_given_up < 120


def test_a_puzzle_whose_plausible_tries_all_hit_is_still_tried_wrongly():
    rng = np.random.default_rng(0)
    seen: set[tuple[countdown.Step, ...]] = set()
    steps = countdown.wrong_try(rng, (2, 2, 2), 2, seen, is_last=True)
    assert steps[-1][3] != 2 and len(steps) == 2 and tuple(steps) in seen


@pytest.mark.parametrize("n_numbers", [3, 4])
def test_countdown_boxes_use_every_number_once_and_reach_the_target(n_numbers):
    for made in generated(f"countdown{n_numbers}"):
        expression = boxed(made.answer)
        lines = "".join(text for text, _ in made.reasoning).splitlines()
        if lines[-1] == "I give up":
            continue
        assert lines[-1].endswith(" yes") and sum(line.endswith(" yes") for line in lines) == 1
        asked = Counter(re.findall(r"\d+", made.question))
        used = Counter(re.findall(r"\d+", expression))
        target = (asked - used) or Counter(["24"])
        assert not used - asked and sum(used.values()) == n_numbers
        assert str(int(eval(expression))) in target


def test_solutions_of_a_puzzle_that_can_be_checked_by_hand():
    assert (("*", 3, 2, 6), ("*", 6, 4, 24)) in countdown.solutions((2, 3, 4), 24)
    assert countdown.solutions((1, 1, 1), 50) == ()


def side_value(side: str, name: str, root: int) -> int:
    """One side of an equation with the unknown replaced by its root."""
    return int(eval(re.sub(rf"(\d)(?=[{name}(])", r"\1*", side), {name: root}))


def test_equations_hold_for_the_boxed_root():
    for made in generated("equation"):
        left, right = made.reasoning[0][0].strip().split("=")
        name, root = made.answer[0], int(boxed(made.answer))
        assert side_value(left, name, root) == side_value(right, name, root)


def test_equation_forms():
    assert equations.shifted(3, 5, 5, "x") == ("3x+5=20", ["3x=20-5=15", "x=15/3=5"])
    assert equations.bracketed(3, -2, 6, "y") == ("3(y-2)=12", ["y-2=12/3=4", "y=4+2=6"])
    lines = ["5x-2x=3x", "3x=15-3=12", "x=12/3=4"]
    assert equations.two_sided(5, 2, 3, 4, "x") == ("5x+3=2x+15", lines)


def test_puzzle_hash_ignores_the_order_of_numbers():
    assert countdown.puzzle_hash([3, 1, 2], 6) == countdown.puzzle_hash([1, 2, 3], 6)
    assert countdown.puzzle_hash([1, 2, 3], 6) != countdown.puzzle_hash([1, 2, 3], 7)


def test_excluded_puzzles_are_never_drawn(monkeypatch):
    drawn = iter([((2, 3, 4), 24), ((4, 3, 2), 24), ((5, 6, 7), 18)])
    monkeypatch.setattr(countdown, "draw", lambda rng, n: next(drawn))
    made = countdown.problem(
        np.random.default_rng(0), 3, frozenset({countdown.puzzle_hash((2, 3, 4), 24)})
    )
    assert Counter(re.findall(r"\d+", boxed(made.answer))) == Counter("567")


def test_the_public_test_puzzles_are_excluded():
    if not (PUBLIC / "countdown").exists() or not (PUBLIC / "game24").exists():
        pytest.skip("the public puzzles are not next to this checkout (../shared/data)")
    from models.exclude import public_puzzles

    hashes = {countdown.puzzle_hash(numbers, target) for numbers, target in public_puzzles(PUBLIC)}
    assert hashes == countdown.excluded()


def test_seeds_repeat_and_differ():
    def first(seed: int, part: int) -> list[list[int]]:
        samples = data.stream(seed, part)
        return [next(samples).ids.tolist() for _ in range(20)]

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(2, 0)
    assert first(1, 0) != first(1, 1)


def test_only_the_newest_answer_is_learnt():
    vocabulary = Vocabulary.load()
    rng = np.random.default_rng(3)
    for _ in range(300):
        made = data.sample(rng, vocabulary, data.any_problem(rng))
        learnt = vocabulary.decode(made.ids[made.learnt])
        assert learnt.endswith("<|im_end|>") and learnt.count("<|im_end|>") == 1
        assert "<|im_start|>" not in learnt


def test_a_cut_keeps_the_end_and_hides_the_first_tokens():
    ids, learnt = data.cut(np.random.default_rng(0), list(range(60)), [True] * 60)
    assert ids == list(range(60 - len(ids), 60)) and len(ids) >= data.MIN_AFTER_CUT
    assert learnt == [False] * data.UNLEARNT_AFTER_CUT + [True] * (
        len(ids) - data.UNLEARNT_AFTER_CUT
    )


@pytest.mark.parametrize(
    "text",
    ["What is 12 + 7 * 3?\n", "naïve ×÷ 数学\r\n\n  x", "", "<think>\n12+7</think>", "\x00~"],
)
def test_vocabulary_round_trips(text):
    vocabulary = Vocabulary.load()
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_vocabulary_layout():
    vocabulary = Vocabulary.load()
    assert len(vocabulary) == len(set(vocabulary.tokens)) == 512
    assert vocabulary.tokens[-len(SPECIALS) :] == list(SPECIALS)
    assert [len(vocabulary.encode(digits)) for digits in ("7", "42", "1000")] == [1, 2, 4]


def test_pieces_encode_as_their_whole():
    vocabulary = Vocabulary.load()
    rng = np.random.default_rng(11)
    for _ in range(300):
        _, pieces = data.body(rng, data.any_problem(rng))
        assert data.tokenized(vocabulary, pieces)[0] == vocabulary.encode(
            "".join(text for text, _ in pieces)
        )


def test_learn_merges_the_most_frequent_pair_first():
    assert vocab.learn(["abab ab", "ab"], 2) == [("a", "b"), ("ab", "ab")]


def test_vocabulary_agrees_with_llama_cpp():
    llama_cpp = pytest.importorskip("llama_cpp")
    file = ROOT / "models" / "tgr-mini-q8_0.gguf"
    if not file.exists():
        pytest.skip("the model file has not been exported")
    theirs = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    vocabulary = Vocabulary.load()
    rng = np.random.default_rng(13)
    texts = [
        "naïve ×÷ 数学 \n\n x_1 don't I'LL 3x+5=20  \t (a)[b]",
        "a<|im_end|>\n<think>\n1",
        "  two  spaces\n",
    ]
    for _ in range(200):
        goal = data.any_problem(rng)
        opening, pieces = data.body(rng, goal)
        texts.append(
            data.prompt(rng, goal.question) + opening + "".join(text for text, _ in pieces)
        )
    for text in texts:
        assert theirs.tokenize(text.encode(), add_bos=False, special=True) == vocabulary.encode(
            text
        )


# --- how the model is measured ---


@pytest.mark.parametrize(
    ("box", "right"),
    [
        ("55+19-36", True),
        ("(55-36)+19", True),
        ("19*(55-53)", False),  # foreign number
        ("55-36+19+0", False),  # number too many
        ("38", False),
        ("55+19-", False),
        ("55/0+19-36", False),
        ("__import__('os')", False),
    ],
)
def test_a_puzzle_needs_each_number_once_and_the_target(box, right):
    question = Question("", 38, (19, 36, 55))
    assert is_right(question, f"The answer is \\boxed{{{box}}}.") is right


def test_other_tasks_need_the_number_in_the_last_box():
    question = Question("", -4, None)
    assert is_right(question, "\\boxed{5} no, \\boxed{-4}")
    assert not is_right(question, "\\boxed{4}") and not is_right(question, "-4")


@pytest.mark.parametrize("task", [*evaluate.FRESH, *evaluate.PUZZLES])
def test_the_generators_own_answers_are_right_unless_it_gave_up(task):
    rng = np.random.default_rng(3)
    for _ in range(100):
        made = data.problem(rng, task)
        found = made.answer.startswith(("I did not find it.",))
        assert is_right(evaluate.as_question(made), made.answer) is not found, made


def test_wilson_intervals_of_known_shares():
    assert evaluate.wilson(50, 100) == pytest.approx((40.38, 59.62), abs=0.01)
    assert evaluate.wilson(100, 100) == pytest.approx((96.30, 100.0), abs=0.01)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    rows = [[True, False, False, False], [False] * 4, [True] * 4]
    value, low, high = evaluate.pass_at(2, rows)
    assert value == pytest.approx(100 * (1 - math.comb(3, 2) / math.comb(4, 2) + 0 + 1) / 3)
    assert low <= value <= high
    assert evaluate.pass_at(1, [[True]] * 9) == (100.0, 100.0, 100.0)


def test_outcomes_count_every_answer(engine):
    questions = [Question("1+1", 2, None), Question("2+2", 4, None)]
    config = SearchConfig(chunk_len=4, max_chunks=2)
    found = evaluate.outcomes(engine, questions, config, "markov", 3)
    assert [len(row) for row in found] == [3, 3]
    assert all(0 < o.n_tokens <= 8 and not o.is_right for row in found for o in row)
    assert found == evaluate.outcomes(engine, questions, config, "markov", 3)
