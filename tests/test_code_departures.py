"""Where answers depart from the code as it is, beside an independent search on a random model, and
the candidates that depart, on doubles."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from code_folders import needs_tree_sitter
from fake_coder import CALC, HALF, RIGHT, WAIT, Climber, Coder, Solve, make_verdict

from tgr_local import generation
from tgr_local.code.edits import Change, FileText, Function, functions_of
from tgr_local.code.reading import prompt
from tgr_local.code.reading.prompt import Copy
from tgr_local.code.writing import departures
from tgr_local.code.writing.branches import branches
from tgr_local.code.writing.departures import Departure
from tgr_local.engine import Engine, Sampling
from tgr_local.engine import Task as EngineTask
from tgr_local.generation import Query
from tgr_local.options.config import SearchConfig

CODE = "x = 1\ny = x + 2\n"
SOURCE = '''\
"""A module."""
import os


@cache
def area(a, b):  # of a field
    """Its size."""
    return a * b
'''


def copy_of(engine: Engine, code: str, path: str = "a.txt", opening: str = "a:\n") -> Copy:
    return Copy(
        FileText(path, code), opening, code,
        engine.tokenize(f"Mend it.\n{opening}{code.rstrip()}", parse_special=False),
    )  # fmt: skip


def next_logprobs(engine: Engine, tokens: Sequence[int]) -> dict[int, float]:
    """Every token's log-probability after some, by a run of its own."""
    with engine.session(len(tokens) + 2, 1) as session:
        task = EngineTask(
            session.sequence(), list(tokens), 1, n_top=engine.n_vocab,
            sampling=Sampling(temperature=0.0),
        )  # fmt: skip
        (out,) = session.run([task])
        return dict(zip(out.top_ids[0].tolist(), out.top_logprobs[0].tolist(), strict=True))


def by_hand(engine: Engine, copy: Copy, n_query: int) -> dict[str, float]:
    """The beginnings of answers that depart anywhere behind the first character of the code, with
    the log-probability of their last token."""
    found: dict[str, float] = {}
    tokens = list(copy.tokens)
    begun = len(copy.opening.encode())
    for index in range(n_query, len(tokens) + 1):
        before = engine.detokenize(tokens[n_query:index])
        if len(before) <= begun:
            continue
        rest = copy.code.rstrip().encode()[len(before) - begun :]
        for token, logprob in next_logprobs(engine, tokens[:index]).items():
            new = engine.detokenize([token])
            if new.isalnum() and not (rest and rest.startswith(new)):
                found[(before + new).decode(errors="replace")] = logprob
    return found


def test_they_are_the_likeliest_other_tokens(engine: Engine):
    copy = copy_of(engine, CODE)
    n_query = len(engine.tokenize("Mend it.\n", parse_special=False))
    some = departures.find(engine, [copy], 12)
    every = by_hand(engine, copy, n_query)
    assert len(some.departures) == 12
    values = [one.logprob for one in some.departures]
    assert values[:6] == sorted(values[:6], reverse=True)
    assert max(every.values()) <= values[0] + 1e-5  # nothing likelier was left out
    for one in some.departures:
        if one.text[-1].isalnum():
            np.testing.assert_allclose(one.logprob, every[one.text], rtol=1e-5)
        assert engine.detokenize(one.tokens[n_query:]).decode() == one.text
        assert not f"{copy.opening}{CODE}".startswith(one.text)
    assert len({one.text for one in some.departures}) == 12
    lines = Counter(one.text.count("\n") for one in some.departures[:6])
    assert set(lines.values()) == {3}  # each line has its turn


def test_equal_functions_have_their_departures_once(engine: Engine):
    copies = [copy_of(engine, CODE), copy_of(engine, CODE)]
    texts = [one.text for one in departures.find(engine, copies, 8).departures]
    assert len(texts) == len(set(texts)) == 8


def test_what_was_tried_is_not_found_again(engine: Engine):
    copy = copy_of(engine, CODE)
    first = departures.find(engine, [copy], 4).departures
    tried = {one.text for one in first}
    then = departures.find(engine, [copy], 8, tried).departures
    assert then and not tried & {one.text for one in then}


def test_the_head_says_which_function(engine: Engine):
    """The probability of a function's name counts for what departs in it."""
    codes = ["def f(a):\n    return a\n", "def g(a):\n    return a\n"]
    plain = [copy_of(engine, code) for code in codes]
    copies = [
        Copy(one.document, one.opening, one.code, one.tokens, n_head=len("def f")) for one in plain
    ]
    found = departures.find(engine, copies, 16).departures
    query = engine.tokenize("Mend it.\na:\ndef ", parse_special=False)  # what both begin with
    for one in found:
        shared = len(query)
        assert list(one.copy.tokens[:shared]) == query
        at, total = shared, 0.0
        while len(engine.detokenize(one.copy.tokens[shared:at])) < len("f"):
            total += next_logprobs(engine, one.copy.tokens[:at])[one.copy.tokens[at]]
            at += 1
        last = next_logprobs(engine, one.tokens[:-1])[one.tokens[-1]]
        np.testing.assert_allclose(one.logprob, total / 2 + last, rtol=1e-4)  # the head has half
        assert one.text.startswith(("a:\ndef f", "a:\ndef g"))


def test_comments_docstrings_imports_and_names_at_the_top_stay(engine: Engine):
    copy = copy_of(engine, SOURCE, "a.py")
    found = departures.find(engine, [copy], 16).departures
    kept = "@cache\ndef area"
    for one in found:
        begun = one.text.removeprefix(copy.opening)
        same = next(
            (i for i, (a, b) in enumerate(zip(begun, SOURCE, strict=False)) if a != b), len(begun)
        )
        assert same >= SOURCE.index(kept) + len(kept), begun
        assert not SOURCE.index('"""Its') <= same < SOURCE.index('size."""') + 8, begun
        assert not SOURCE.index("# of") < same < SOURCE.index("field") + 5, begun


@needs_tree_sitter
def test_comments_and_imports_of_javascript_stay(engine: Engine):
    code = 'import { b } from "./b.js";\n// one\nconst x = 1; /* two */\nlet y = b;\n'
    copy = copy_of(engine, code, "a.js")
    for one in departures.find(engine, [copy], 64).departures:
        begun = one.text.removeprefix(copy.opening)
        same = next(
            (i for i, (a, b) in enumerate(zip(begun, code, strict=False)) if a != b), len(begun)
        )
        assert same >= code.index("// one") + len("// one"), begun
        assert not code.index("/*") <= same < code.index("*/") + 2, begun
        assert not begun.endswith(("//", "/*")), begun


def test_a_model_that_cannot_go_back_has_none(engine: Engine, monkeypatch):
    monkeypatch.setattr(engine, "rolls_back", False)
    assert departures.find(engine, [copy_of(engine, CODE)], 4) == departures.FoundDepartures()


def test_tokens_that_do_not_end_with_the_code_have_none(engine: Engine):
    copy = copy_of(engine, CODE)
    other = Copy(copy.document, copy.opening, "z = 3\n", copy.tokens)
    assert departures.find(engine, [other], 4).departures == ()


# ---- from answers ----


def test_branches_are_the_likeliest_other_tokens_of_an_answer(engine: Engine):
    copy = copy_of(engine, CODE)
    first = departures.find(engine, [copy], 1).departures[0]
    config = SearchConfig(
        temperature=0.0, max_tokens=12, top_logprobs=3, grammar="root ::= [ -~\\n]+"
    )
    query = Query(list(first.tokens), first.text, "answer")
    (reply,) = generation.generate_each(engine, [query], config)
    expected: dict[str, float] = {}
    tokens, total = list(first.tokens), first.logprob
    for token in reply.tokens:
        likely = next_logprobs(engine, tokens)
        written = engine.detokenize(tokens[len(first.tokens) :])
        for other in sorted(likely, key=lambda one: -likely[one])[:3]:
            new = engine.detokenize([other])
            if other != token and new.split() not in ([], engine.detokenize([token]).split()):
                with contextlib.suppress(UnicodeDecodeError):  # a byte of a character
                    expected[first.text + (written + new).decode()] = total + likely[other]
        tokens, total = [*tokens, token], total + likely[token]
    every = branches(engine, first, reply, 0, 100)
    assert len(every) > 3
    assert {one.text: one.logprob for one in every} == pytest.approx(expected, abs=1e-3)
    assert [one.text for one in every[:4]] == [
        one.text for one in branches(engine, first, reply, 0, 4)
    ]
    for one in every:
        assert engine.detokenize(list(one.tokens)[len(first.tokens) :]).decode() == (
            one.text.removeprefix(first.text)
        )
    assert branches(engine, first, reply, reply.text.count("\n") + 1, 100) == []


def test_branches_of_a_long_answer_take_little_memory():
    """An answer of 8,000 tokens; the text before each place is not kept for each."""
    n = 8000
    engine = SimpleNamespace(detokenize=lambda ids: b"".join(b"word%d " % one for one in ids))
    tokens = [index % 500 for index in range(n)]
    step = SimpleNamespace(
        tokens=tokens, logprobs=[-0.1] * n, top_ids=[[one, one + 1] for one in tokens],
        top_logprobs=[[-0.1, -3.0 - index / n] for index in range(n)],
    )  # fmt: skip
    text = engine.detokenize(tokens).decode()
    reply: Any = SimpleNamespace(text=text, steps=[step], tokens=tokens)
    own = departure("def add")
    tracemalloc.start()
    try:
        found = branches(cast(Any, engine), own, reply, 0, 4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # the sum over the text falls by 0.1 with each token, so the first places are the likeliest
    assert [one.text.removeprefix(own.text) for one in found] == [
        f"{text[: text.index(f'word{index} ')]}word{index + 1} " for index in range(4)
    ]
    assert peak < 50 * len(text)


# ---- back in the copy ----


def departure(
    begun: str, code: str = CALC, path: str = "calc.py", function: Function | None = None
) -> Departure:
    copy = Copy(FileText(path, code), "```python\n", code, [1], 0, function)
    return Departure(copy, [1, 2], f"```python\n{begun}", -1.0)


def rejoined(
    begun: str,
    written: str,
    code: str = CALC,
    path: str = "calc.py",
    function: Function | None = None,
) -> str | None:
    one = departure(begun, code, path, function)
    return departures.rejoined(one, one.text + written)


def test_two_equal_lines_bring_an_answer_back():
    begun, rest = "def add(a, b):\n    return a +", " b\n\n\ndef sub(a, b):\n    return a + b\n"
    for end in range(1, len(rest)):
        back = rejoined(begun, rest[:end])
        if end < len(rest):
            assert back is None
    assert rejoined(begun, rest + "    ") == "```python\n" + CALC.replace("a - b", "a + b")


def test_what_is_behind_the_place_is_taken_from_the_copy():
    code = "a = 1\nb = 2\nc = 3\nd = 4\n\ne = 5\n"
    back = rejoined("a = 1\nb = 9", "\nc = 3\nd = 4\n", code, "x.txt")
    assert back == "```python\n" + code.replace("b = 2", "b = 9")
    inserted = rejoined("a = 1\nnew", " = 7\nb = 2\nc = 3\n  ", code, "x.txt")
    assert inserted == "```python\n" + code.replace("b = 2", "new = 7\nb = 2")
    assert rejoined("a = 1\nb = 9", "\nd = 4\nc = 3\n", code, "x.txt") is None


ADD = "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize("behind", ["\nif __name__ ==", "# Test it\n", "print(add(1, 2))\n"])
def test_tests_behind_the_end_are_not_written(behind: str):
    back = rejoined("def add(a, b):\n    return a +", f" b\n\n{behind}", ADD)
    assert back == "```python\n" + ADD.replace("-", "+")
    assert rejoined("def add(a, b):\n    return a +", " b\n\n    ", ADD) is None
    tests = rejoined("def add(a, b):\n    return a +", f" b\n\n{behind}", ADD, "test_add.py")
    assert tests is None


def test_a_file_may_grow_at_its_end_and_a_function_may_not():
    begun, written = "def add(a, b):\n    return a +", " b\n\n\ndef mul(a, b):\n"
    assert rejoined(begun, written, ADD) is None
    place = Function("calc.py", "add", 1, 2)
    back = rejoined(begun, written, ADD, function=place)
    assert back == "```python\n" + ADD.replace("-", "+")


def test_a_line_before_the_last_one_is_put_there():
    code = "a: 1\nb: 2\nc: 3\nd: 4\n"
    for written in ("x: 9\nd: 4\n", "x: 9\nd: 4\ne: 5\n"):
        assert rejoined("a: 1\nb: 2\nc: 3\n", written, code, "x.yaml") is None
    script = "assert 1\nx = 2\nassert x == 3\nz = 3\ny = 4\n"
    back = rejoined("assert 1\nx = 2\nassert x", " == 2\nz = 3\ny = 4\n", script)
    assert back == "```python\n" + script.replace("x == 3", "x == 2")


@pytest.mark.parametrize("name", ["A.get", "B.get", "C.size#2", "outer.inner"])
def test_a_function_is_changed_in_its_place(name: str):
    text = (
        "class A:\n    def get(self):\n        return 1\n\n\nclass B:\n    def get(self):\n"
        "        return 1\n\n\nclass C:\n    @property\n    def size(self):\n        return 1\n\n"
        "    @size.setter\n    def size(self, n):\n        self.n = 1\n\n\ndef outer():\n"
        "    def inner():\n        return 1\n\n    return inner()\n"
    )
    document = FileText("m.py", text)
    functions = [one for one in functions_of(document) if one.name == name]
    (begun,) = prompt.copies([document], functions, "```")
    assert begun.code[: begun.n_head].split("\n")[-1].startswith("def ")
    (change,) = departures.change_of(begun, begun.code.replace("1", "2"))
    place = functions[0]
    old, new = text.split("\n"), change.after.split("\n")
    assert len(old) == len(new) and change.after.count("2") == text.count("2") + 1
    assert [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b] == [place.last - 1]
    assert departures.change_of(begun, begun.code) == ()


def test_a_text_at_the_margin_stays_there():
    text = 'class A:\n    def q(self):\n        s = """\nSELECT 1\n"""\n        return s\n'
    document = FileText("m.py", text)
    (begun,) = prompt.copies([document], functions_of(document), "```")
    assert begun.code.startswith("def q(self):\n    s = ")
    (change,) = departures.change_of(begun, begun.code.replace("return s", "return s.strip()"))
    assert change.after == text.replace("return s", "return s.strip()")


def test_tests_are_not_written_where_the_copy_goes_on():
    back = rejoined("def add(a, b):\n    return a +", " b\n\n\ndef test_add():\n")
    assert back is not None and "test" not in back and "def sub" not in back


def test_what_would_not_parse_goes_on():
    code = "def f(a):\n    if a:\n        b = 1\n        c = 2\n    d = 3\n    return d\n"
    assert rejoined("def f(a):\n    for", " x in (\n        b = 1\n        c = 2\n", code) is None


@needs_tree_sitter
def test_what_would_not_parse_goes_on_in_other_languages_too():
    code = "int f(int a)\n{\n    if (a)\n        a = 1;\n    a = 2;\n    return a;\n}\n"
    begun, rest = "int f(int a)\n{\n    if (a == 2)", " {\n        a = 1;\n    a = 2;\n"
    assert rejoined(begun, rest, code, "f.c") is None
    assert rejoined(begun, rest.replace(" {", ""), code, "f.c") is not None
    broken = f"{code}}}\n"  # of which nothing is known
    assert rejoined(begun, rest, broken, "f.c") is not None


def test_an_answer_that_goes_on_as_another_method_of_the_name_is_that_method():
    text = (
        "class Ledger:\n    def check(self, x):\n        if x < 0:\n            return False\n"
        "        return self.book(x)\n\n\nclass Booking:\n    def check(self, x):\n"
        "        if x <= 0:\n            raise ValueError\n        return x in self.days\n"
    )
    document = FileText("m.py", text)
    ledger, booking = prompt.copies([document], functions_of(document), "```")
    begun = f"{booking.opening}def check(self, x):\n    if x <"
    one = Departure(booking, [1], begun, -1.0)
    some = departures.alike(one, [ledger, booking])
    assert some == [booking, ledger]
    like_ledger = f"{begun} 1:\n        return False\n    return self.book(x)\n"
    found = departures.nearest(one, some, like_ledger)
    assert found.copy is ledger
    (change,) = departures.change_of(found.copy, like_ledger.removeprefix(booking.opening))
    assert change.after == text.replace("x < 0", "x < 1")
    own = f"{begun} 1:\n        raise ValueError\n    return x in self.days\n"
    assert departures.nearest(one, some, own).copy is booking
    later = Departure(booking, [1], f"{begun}= 0:\n        return", -1.0)
    assert departures.alike(later, [ledger, booking]) == [booking]


# ---- candidates ----


def test_a_method_is_written_where_the_answer_belongs(solved: Solve):
    text = (
        "class A:\n    def add(self, a, b):\n        c = a - b\n        return c\n\n\n"
        "class B:\n    def add(self, a, b):\n        d = a * b\n        self.d = d\n"
        "        return d\n"
    )
    coder = Coder([" = a + b\n    self.d = d\n    return d\n"])
    coder.departures = ["def add(self, a, b):\n    d"]  # from the copy of A

    def tested(changes: Sequence[Change], cancel: Any) -> Any:
        return make_verdict(True, int(bool(changes)), int(not changes), 0, "calc.py:3: wrong\n")

    outcome = solved(
        coder, candidates=1, by=tested, read={"calc.py": FileText("calc.py", text)}.get,
        edit_format="function",
    )  # fmt: skip
    assert outcome.best is not None
    assert outcome.best.changes[0].after == text.replace("a * b", "a + b")


def test_an_answer_that_is_much_too_long_is_no_function(solved: Solve):
    """What is stopped there has no end."""
    coder = Coder(["".join(f" c + \\\n    d{i}" for i in range(400))])
    coder.departures = ["def add(a, b):\n    return a +"]
    (one, *_) = solved(coder, candidates=1, edit_format="function").rounds[0]
    assert not one.changes and one.problem == "the answer has no end"


def test_candidates_depart_where_failing_tests_decide(solved: Solve):
    coder = Coder([" b\n\n\ndef sub(a, b):\n    return a - b\n```\nBecause.\n", WAIT])
    coder.departures = ["def add(a, b):\n    return a +", "def add(a, b):\n    return b"]
    outcome = solved(coder)
    one, other = outcome.rounds[0]
    assert coder.begun == [[one.begun, other.begun]]
    assert one.begun == "```python\ndef add(a, b):\n    return a +"
    assert one.passes and one.changes[0].after == RIGHT
    assert "Because" not in one.answer  # nothing is written behind the code
    assert one.forward_tokens >= 50  # what finding them took
    assert other.state == "stopped"


def test_an_answer_that_is_back_ends(solved: Solve):
    coder = Coder([" b\n\n\ndef sub(a, b):\n    return a + b\nnever = 1\n"])
    coder.departures = ["def add(a, b):\n    return a +"]
    outcome = solved(coder, candidates=1, budget=8000)
    (one,) = outcome.rounds[0]
    assert one.changes[0].after == CALC.replace("a - b", "a + b")
    assert "never" not in one.answer


def test_what_is_shown_whole_is_copied_whole():
    documents = FileText("a.py", "X = 1\n\n\ndef f():\n    return X\n"), FileText("b.py", CALC)
    some = list(prompt.copies(documents, functions_of(documents[1]), "```"))
    assert [(one.opening, one.code.split("\n")[0], one.function is None) for one in some] == [
        ("a.py\n```python\n", "X = 1", True),
        ("b.py\n```python\n", "def add(a, b):", False),
        ("b.py\n```python\n", "def sub(a, b):", False),
    ]


def test_more_depart_while_they_take_less_than_whole_answers(solved: Solve):
    """The answers of a first wave have `n` characters, which count as tokens."""
    allowed = 2 * len(f"[assistant]\n```python\n{CALC}".rstrip())
    for n, waves in [(allowed // 2 - 1, 2), (allowed // 2, 1)]:
        coder = Coder(["0" * n], [" 0\n```\n\n"])
        coder.departures = [f"def add(a, b):\n    return {name}" for name in "abcd"]
        outcome = solved(coder, candidates=2)
        (candidates,) = outcome.rounds
        assert [one.number for one in candidates] == list(range(1, 2 * waves + 1))
        assert [one.seed for one in candidates] == [42, 43, 44, 45][: 2 * waves]
        assert len({one for some in coder.begun for one in some}) == 2 * waves
        assert "" not in coder.begun[0] and "" not in coder.begun[-1]
        assert outcome.forward_tokens == sum(one.forward_tokens for one in candidates)
    coder = Coder(["0"])  # a budget of tokens bounds k answers
    coder.departures = [f"def add(a, b):\n    return {name}" for name in "abcd"]
    outcome = solved(coder, candidates=2, budget=2000)
    assert len(coder.begun) == 1 and len(outcome.rounds[0]) == 2


def test_a_round_goes_on_from_an_edit_that_gets_further(solved: Solve):
    coder = Coder([" b\n\n\ndef sub(a, b):\n    return a + b\n"], [" b\n```\n", WAIT])
    coder.departures = [f"def add(a, b):\n    return {text}" for text in ("a +", "b", "a")]
    climber = Climber(coder, {1: HALF.rstrip().removesuffix(" + b") + " -"})
    outcome = solved(coder, listener=climber)
    ((half, wrong, whole, stopped),) = outcome.rounds
    assert half.verdict is not None and half.verdict.passed == 1 and not wrong.passes
    assert climber.heard[2:] == [
        "round 1: [1, 2]", "adopts 1", "context file", "round 1: []", "best 3",
    ]  # fmt: skip
    assert whole.passes and whole.changes == (Change("calc.py", CALC, RIGHT),)
    assert stopped.state == "stopped" and len(coder.begun) == 2
    assert [config.seed for config in coder.configs] == [42, 44]
    assert outcome.forward_tokens >= 2 * 50  # what finding the departures took, twice


def test_a_round_ends_when_it_has_taken_as_many_tokens_as_whole_answers(solved: Solve):
    long = "# 0\n" * 60
    coder = Coder([" b\n\n\ndef sub(a, b):\n    return a + b\n", long], [" b\n```\n"])
    coder.departures = ["def add(a, b):\n    return a +", "def add(a, b):\n    return b"]
    outcome = solved(coder)
    assert len(coder.begun) == 1 and outcome.best is not None and not outcome.best.passes


@pytest.mark.parametrize("k", [1, 2, 3])
def test_four_waves_at_most_and_half_of_the_last_is_free(k: int, solved: Solve):
    coder = Coder(*[["0"]] * 4)
    coder.departures = [f"def add(a, b):\n    return {i}" for i in range(40)]
    outcome = solved(coder, candidates=k)
    assert [len(some) for some in coder.begun] == [k] * 4
    assert [some.count("") for some in coder.begun] == [0, 0, 0, (k + 1) // 2]
    begun = [text for some in coder.begun for text in some if text]
    assert len(set(begun)) == len(begun)
    assert len({one.seed for one in outcome.rounds[0]}) == 4 * k
    assert [one.number for one in outcome.rounds[0]] == list(range(1, 4 * k + 1))


def test_the_third_wave_departs_from_answers(solved: Solve, monkeypatch):
    """The likeliest first, also of an answer that fails by one word."""
    heard: list[str] = []

    def found(engine: Any, departure: Departure, reply: Any, n_same: int, most: int) -> Any:
        heard.append(reply.text)
        places = [(" b *", -3.0), (" b +", -2.0)] if departure.text.endswith("a") else []
        return [
            Departure(departure.copy, [1], departure.text + text, logprob)
            for text, logprob in places
        ]

    monkeypatch.setattr("tgr_local.code.writing.candidates.branches", found)
    coder = Coder(["0"], ["1"], ["2"], ["3"])
    coder.departures = [f"def add(a, b):\n    return {name}" for name in "abcdefg"]
    solved(coder, candidates=2)
    head = "```python\ndef add(a, b):\n    return "
    assert coder.begun == [
        [f"{head}a", f"{head}b"], [f"{head}c", f"{head}d"], [f"{head}a b +", f"{head}a b *"],
        [f"{head}e", ""],
    ]  # fmt: skip
    assert heard == ["0"] * 2 + ["1"] * 2 + ["2"] * 2 + ["3"]


def test_of_a_long_file_the_functions_are_copied(solved: Solve, monkeypatch):
    """Also where it is shown whole."""
    seen: list[bool] = []

    def found(engine: Any, copies: Any, *_: Any) -> departures.FoundDepartures:
        seen.extend(one.function is None for one in copies)
        return departures.FoundDepartures()

    for n, wholes in [(1, [True]), (500, [False, False])]:
        text = CALC + "VALUE = 12\n" * n
        coder = Coder(["0"])
        coder.n_ctx_train = 60_000
        monkeypatch.setattr("fake_coder.find", found)
        seen.clear()
        document = FileText("calc.py", text)
        solved(coder, read={"calc.py": document}.get)
        assert seen == wholes


def test_a_wave_after_a_pass_is_not_written(solved: Solve):
    coder = Coder([" b\n\n\ndef sub(a, b):\n    return a - b\n```\nBecause.\n", " 0\n```\n\n"])
    coder.departures = ["def add(a, b):\n    return a +", *"bcd"]
    outcome = solved(coder, candidates=2)
    assert outcome.best is not None and outcome.best.passes and len(coder.begun) == 1


def test_later_rounds_depart_elsewhere(solved: Solve):
    coder = Coder([" 0\n```\n\n"], [" 0\n```\n\n"], [" 0\n```\n\n"])
    coder.departures = [f"def add(a, b):\n    return {name}" for name in "abcd"]
    solved(coder, candidates=2, rounds=3, budget=8000)
    first, second, third = coder.begun
    assert len(set(first)) == 2 and "" not in first
    assert second[0] and second[1] == ""  # one may do what a departure cannot
    assert third[0] not in (*first, second[0], "")
    assert coder.prompts[1] == coder.prompts[2]  # without an attempt to copy
    assert "[assistant]" not in coder.prompts[1]


@pytest.mark.parametrize("why", ["thinks", "passes", "learnt"])
def test_else_candidates_are_free(why: str, solved: Solve):
    coder = Coder(["```python\n" + RIGHT + "```\n\n\n"])
    coder.departures = ["def add(a, b):\n    return a +"]
    more: dict[str, Any] = {}
    if why == "thinks":
        coder.chat_template = "<think>"
    elif why == "learnt":
        coder.metadata = {"tgr.edit_format": "file"}
        more = {"constrained": False}
    else:
        more = {"tests": ""}
    solved(coder, **more)
    assert set(coder.begun[0]) == {""}
