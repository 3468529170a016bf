"""The grammar of an answer in a form of edits: what it allows can be read, and applies."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from gbnf_texts import Texts

from tgr_local import Engine
from tgr_local.code.edits import FORMATS, EditError, FileText, Format, edit_grammar, read_edits

CALC = FileText(
    "calc.py",
    "class A:\n    def f(self):\n        def g():\n            pass\n        return g\n\n"
    "def half(x):\n    pass\n    pass\n    return x / 2",
)
FILES = [
    CALC,
    FileText("docs/é.md", '```\n"\\n"\n=======\n>>>>>>> REPLACE\n\x0c<|im_start|>\x7f\n'),
    FileText("empty.txt", ""),
    FileText("b.py", "def f(): pass\n\n\nasync def f(): return 1\n"),
]


@pytest.mark.parametrize("format", FORMATS)
def test_every_answer_of_the_grammar_applies(format: Format):
    texts, source, changed = Texts(edit_grammar(FILES, format)), random.Random(1), Counter[str]()
    for _ in range(2000):
        answer = texts.draw(source)
        changed.update(one.path for one in read_edits(answer, FILES, format))
    assert len(changed) == (2 if format == "function" else 4)


@pytest.mark.parametrize(
    ("format", "answer"),
    [
        ("file", "calc.py\n````python\n```\n\n````\n\nb.py\n````python\n````\n"),
        ("function", "calc.py::A.f\n````python\n é\n````\nb.py::f#2\n````python\n`\n````"),
    ],
)  # fmt: skip
def test_the_engine_reads_it(engine: Engine, format: Format, answer: str):
    grammar = edit_grammar(FILES, format)
    engine.check_grammar(grammar, answer)
    assert read_edits(answer, FILES, format)


@pytest.mark.parametrize(
    ("format", "answer"),
    [
        ("file", "calc.py\n````python\n\x0b"),  # a control character that no file has
        ("file", "calc.py\n````python\n`````"),
        ("file", "calc.py\n````python\n````\ncalc.py"),
        ("file", "other.py"),
        ("file", "\n"),
        ("function", "calc.py::g"),
        ("function", "calc.py::A.f\n````python\n````\ncalc.py::A.f.g"),
    ],
)  # fmt: skip
def test_it_allows_nothing_else(engine: Engine, format: Format, answer: str):
    with pytest.raises(ValueError, match="grammar_prefix"):
        engine.check_grammar(edit_grammar(FILES, format), answer)


def test_a_fence_is_longer_than_those_in_the_files():
    with pytest.raises(EditError, match="cut off"):
        read_edits("calc.py\n````python\nx\n```", FILES, "file")


def test_it_is_bounded_and_needs_something_to_change():
    lines = FileText("a.py", "x = 1\n" * 5000)
    assert len(edit_grammar([lines], "file")) < 2000  # it has nothing of the text
    many = [FileText(f"{'a' * 200}{i}.py", "") for i in range(1400)]
    with pytest.raises(
        ValueError, match=r"of these edits has \d+ bytes, but may have 262144; open"
    ):
        edit_grammar(many, "file")
    for format in FORMATS:
        with pytest.raises(ValueError, match=r"no functions|no file is open"):
            edit_grammar([], format)
