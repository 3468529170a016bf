"""Answers in the notations that models use, and the normalised string of each."""

from __future__ import annotations

import pytest

from tgr_local.system.answers import answer_key, boxed, cleaned, compact, is_comparable, normalised


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} and then \boxed{ 2 }.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{9}", "9"),
        (r"\boxed{3} and \boxed{\frac{1}{2}", "3"),  # the last one never closes
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{}", ""),
        (r"-\boxed{5}", "-5"),
        (r"$x = −\boxed{5}$", "-5"),
        (r"10-\boxed{5}", "5"),
        (r"- \boxed{5}", "5"),  # a list
        ("no box, only {braces}", None),
        (r"\boxed{", None),
        ("", None),
    ],
)
def test_the_last_complete_box_is_found_with_its_braces(text: str, inside: str | None):
    assert boxed(text) == inside


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (r"The answer is 3. No: \boxed{4}", "4"),
        ("The answer is 12.", "12"),
        ("**Answer:** 12", "12"),
        ("the answer is: $1,234$.", "1234"),
        ("The answer isn't 5 but 7", "7"),
        ("Answer is 3.14, as we saw above in 7 steps.", "3.14"),
        ("The answer is 5. Wait. The answer is 6.", "6"),
        ("The answer is unclear\nbut the final answer is Paris.", "paris"),
        ("The answer is", None),
        ("It takes 3 steps to get 17 apples", "17"),
        ("from 2 to -3", "-3"),
        ("x = 5-3 = 2", "2"),
        ("it costs $1,250.50.", "1250.5"),
        ("a ratio of 3/4 in all", "3/4"),
        ("see room b12", None),
        (r"\boxed{12 cm}", "12"),
        ("The answer is 1,234 dollars.", "1234"),
        (r"\boxed{x=5}", "5"),
        (r"\boxed{5x}", "5x"),
        ("nothing here", None),
        ("", None),
        (r"\boxed{}", None),
        ("a.py::f\n```python\ndef f():\n    return 1\n```\n", "def f():\n    return 1"),
        ("~~~\nx = 1  \n\ny = 2\n~~~", "x = 1\ny = 2"),
        ("```\r\nx = 1\r\n```\r\n", "x = 1"),
        ("```py\nx = 1\n`````", "x = 1"),
        ("```\nx = 1\n```\nno:\n```\nx = 2\n```", "x = 2"),
        ("````\n```\nx\n```\n````", "```\nx\n```"),
        ("<think>\nThe answer is 5.\n</think>\n```\nx = 1\n```", "x = 1"),
        ("```\nx = 1\n```\nThis sets x to 1.", "1"),  # the text goes on
        ("```\nprint(3+4)\n```\nSo the total is 7.", "7"),
        ("```\nprint(6 * 7)\n```\nThe answer is 42.", "42"),
        ("\\boxed{42}\nCheck:\n```\nprint(42)\n```", "42"),
        ("The answer is 7. Check:\n```\nassert 3 + 4 == 7\n```", "7"),
        ("```\n# the answer is here\n```", "# the answer is here"),
        ("```python\nnever = 'closed 7'", "7"),
        ("~~~ x\n" * 4000, None),
        ("```\n```", None),
    ],
)
def test_the_key_is_the_box_else_the_stated_answer_else_the_last_number(text: str, key: str | None):
    assert answer_key(text) == key


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("42", " $42$ "), ("42", "42.0"), ("42", "+42."), ("42", "042"), ("0", "-0.00"),
        ("0.5", ".50"), ("-3", "−3"), ("1234567", "1,234,567"), ("(1,234)", "(1, 234)"),
        ("1/2", r"\frac{1}{2}"), ("1/2", r"\dfrac12"), ("1/2", r"$\tfrac{1}{2}$"),
        ("-1/2", r"-\frac{1}{2}"), ("(x+1)/2", r"\frac{x+1}{2}"),
        ("1/(2/3)", r"\frac{1}{\frac{2}{3}}"), ("paris", r"\text{Paris}"),
        ("5cm", r"5\text{ cm}"), ("(a,b)", r"\left(a, b\right)"), ("10%", r"10\%"),
        ("3*4", r"3 \times 4"), ("b", r"\textbf{B}."), (r"\sqrt{2}", r"\( \sqrt{2} \)"),
        ("5", "x = 5"), ("3*4", "3 ⋅ 4"), ("3*4", r"3\,\times\,4 \\"), ("(3)", r"\big(3\big)"),
        ("48/2", r"\frac{48} 2"), ("1+1/2", r"1\frac{1}{2}"),
        ("8/(6/2)", r"8 \div \frac{6}{2}"), ("1234", r"1\ 234"), ("1234", r"1{,}234"),
        ("1234", r"1,\!234"), ("90", r"90^\circ"), ("90", "90°"), ("12", "**12**"),
    ],
)  # fmt: skip
def test_equal_answers_become_equal(one: str, same: str):
    assert normalised(one) == normalised(same)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "-1"), ("1/2", "2/1"), ("10", "1"), ("1.5", "15"), ("(1,2)", "(12)"),
     ("(10,100)", "(10100)"), ("10, 100", "10100"), ("2**3", "23"), ("6!", "6"),
     (r"1\frac{1}{2}", "11/2")],
)  # fmt: skip
def test_different_answers_stay_different(one: str, other: str):
    assert normalised(one) != normalised(other)


def test_cleaning_leaves_words_and_capitals():
    assert cleaned(r"$x \in \text{ the set } \mathbf{N}$.") == r"x \in the set N."
    assert compact(r"x \in \text{ the set } N.") == r"x\intheset" + "N"


@pytest.mark.parametrize("text", [r"\frac", r"\frac{1}", r"\text{", r"\text", "{", "}", "\\", "$"])
def test_broken_latex_is_an_answer_like_any_other(text: str):
    assert normalised(normalised(text)) == normalised(text)


def test_normalising_twice_changes_nothing():
    for text in (r"\frac{x+1}{2}", "1,234.50", r"\text{ a }", "{3}", "+.5"):
        assert normalised(normalised(text)) == normalised(text)


@pytest.mark.parametrize(
    "text",
    [
        "So it is \\boxed{7}.",
        "The answer is a pear.",
        "She has 5 apples left.",
        "12 + 30 = 42\n\nLet me know if you need more!",
        "```python\nprint(1)\n```",
        "<think>\n3 of 4\n</think>\n\n42",
    ],
)
def test_answers_that_votes_can_compare(text: str):
    assert is_comparable(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Apple",
        "A fruit that many people like is the banana.",
        "In 1990 there was a dog.\nIt was small.\nIt lived in a house.",
        "1. Apple\n2. Pear\n3. Plum",
        "<think>\n3 of 4\n</think>\n\nA pear.",
    ],
)
def test_free_text_cannot_be_compared(text: str):
    assert not is_comparable(text)


@pytest.mark.parametrize(
    "part",
    ["\\frac{", "\\frac{1}{", "\\frac{1}{2}", "\\boxed{", "\\boxed{1}", "\\text{", "\\text{a}",
     "1", "1,000", "answer is . ", "```", "{", " ", "^"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "}", "x"])
def test_a_long_text_is_read_in_time_that_grows_with_its_length(part: str, end: str):
    text = part * (200_000 // len(part)) + end  # whose square takes longer than a test may
    for read in (answer_key, is_comparable, normalised, boxed, cleaned):
        assert read(text) in (True, False, None) or isinstance(read(text), str)


def test_fractions_within_fractions_are_read_as_deep_as_anyone_writes():
    deep = "1"
    for _ in range(40):
        deep = rf"\frac{{1}}{{1+{deep}}}"
    assert normalised(deep) == "1/(1+" * 40 + "1" + ")" * 40
    assert cleaned(r"\frac{\frac12}{3} \frac34/\frac56 2^\frac12") == "( 1/2)/3 3/4/ (5/6) 2^ (1/2)"
    assert cleaned(r"\frac{1}{\frac} \frac12") == r"1/(\frac) \frac12"
