"""Names that tests use and modules lack: told at once, and counted as progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from fake_coder import Coder, Followed, Solve, make_verdict

from tgr_local.code.edits import Change, FileText
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.reading.evidence import Paths
from tgr_local.code.reading.lacking import Lacking, lacking, sentence
from tgr_local.code.rounds import TaskOutcome
from tgr_local.code.writing.combining import merge_edits
from tgr_local.engine import Cancel


def lacks(files: dict[str, str], *tests: str, new: Sequence[str] = ()) -> Lacking:
    def read(path: str) -> FileText | None:
        return FileText(path, files[path]) if path in files else None

    documents = [FileText(path, files[path]) for path in tests]
    return lacking(documents, read, Paths(list(files)), new)


@pytest.mark.parametrize(
    ("test", "module", "names"),
    [
        ("from words import a, b as c, d\n", "def a(): ...\nfrom x import d\n", ["b"]),
        ("from words import (\n    a,\n    b,\n)\n", "a = b = 1\n", []),
        ("from words import A, B, c\n", "class A: ...\nif x:\n    B = 1\n", ["c"]),
        ("from words import a\n", "try:\n    import a\nexcept ImportError:\n    a = None\n", []),
        ("from words import a\n", "def __getattr__(name): ...\n", []),
        ("from words import *\n", "", []),
        ("import words\nwords.a()\nwords.b.c = 1\nwords.e = 2\n", "def a(): ...\n", ["b"]),
        ("import words as w\nassert w.x == w.x\n", "", ["x"]),
        ("from words import a\nimport os\nos.nothing\n", "a = 1\n", []),
        ("from words import a\n", "def a(:\n", []),  # nobody knows what it has
        ("from words import (\n", "", []),
    ],
)
def test_names_that_python_tests_need(test: str, module: str, names: list[str]):
    files = {"words.py": module, "test_words.py": test}
    assert lacks(files, "test_words.py") == tuple(("words.py", name) for name in names)


def test_names_of_packages_and_of_modules_that_are_not_there():
    files = {
        "src/shop/__init__.py": "from shop.cart import Cart\n",
        "src/shop/cart.py": "class Cart: ...\n",
        "tests/test_shop.py": (
            "import shop.cart\nimport shop\nfrom shop import Cart, Price, cart\n"
            "from shop.tax import rate, vat\nfrom numpy import nothing\n"
            "shop.cart.total()\nshop.cart.Cart()\nshop.tax\n"
        ),
    }
    assert set(lacks(files, "tests/test_shop.py", new=["src/shop/tax.py"])) == {
        ("src/shop/__init__.py", "Price"),
        ("src/shop/cart.py", "total"),
        ("src/shop/tax.py", "rate"),
        ("src/shop/tax.py", "vat"),
    }


def test_names_that_scripts_need():
    files = {
        "lib/cart.js": (
            "export class Cart {}\nexport async function load() {}\nexport const A = 1;\n"
            "const b = 2;\nexport { b as c };\n"
        ),
        "lib/all.js": "export * from './cart.js';\n",
        "test/cart.test.js": (
            "import {\n  Cart,\n  load, A as a, b,\n  c,\n  save,\n} from '../lib/cart.js';\n"
            "import { x } from '../lib/all.js';\nimport { test } from 'node:test';\n"
            "import { y } from './new.js';\n"
        ),
    }
    assert lacks(files, "test/cart.test.js", new=["test/new.js"]) == (
        ("lib/cart.js", "b"), ("lib/cart.js", "save"), ("test/new.js", "y"),
    )  # fmt: skip


def test_the_names_in_words():
    some = (("a.py", "x"), ("b.py", "y"), ("a.py", "z"), ("a.py", "t"))
    assert sentence(some) == (
        "The tests need `x`, `z` and `t` in `a.py`.\nThe tests need `y` in `b.py`.\n"
    )
    assert sentence(()) == ""


# ---- progress ----


def with_names(*names: str, passed: int = 0, errors: int = 1) -> Verdict:
    plain = make_verdict(True, passed, 0, errors, "ImportError\n")
    return dataclasses.replace(plain, lacks=tuple(("words.py", name) for name in names))


def test_fewer_lacking_names_are_further():
    start = with_names("a", "b", "c")
    assert with_names("b", "c").is_beyond(start) and with_names("c").is_beyond(with_names("b", "c"))
    assert not start.is_beyond(start) and not start.is_beyond(with_names("b", "c"))
    assert not with_names("b", "d").is_beyond(start)  # another name is gone
    assert not with_names().is_beyond(start)  # another error at the import
    assert with_names(errors=0).is_beyond(start)  # the tests begin


TESTS = "from words import a, b, c\n\n\ndef test_all():\n    assert (a(), b(), c()) == (1, 2, 3)\n"
WORDS = "def a():\n    return 1\n"
B, C = "\n\ndef b():\n    return 2\n", "\n\ndef c():\n    return 3\n"


def judge(changes: Sequence[Change], cancel: Cancel) -> Verdict:
    """What pytest says of test_words.py, without running it."""
    text = next((change.after for change in changes), WORDS)
    for name in "abc":
        if f"def {name}(" not in text:
            said = f"test_words.py:1: in <module>\nE   ImportError: cannot import name '{name}'\n"
            return make_verdict(True, 0, 0, 1, said)
    return make_verdict(True, 1, 0, 0, "")


def carried_out(solved: Solve, coder: Coder, rounds: int = 1) -> tuple[TaskOutcome, Followed]:
    files, followed = {"words.py": WORDS, "test_words.py": TESTS}, Followed()
    documents = {path: FileText(path, text) for path, text in files.items()}
    outcome = solved(
        coder, by=judge, read=documents.get, paths=list(files), listener=followed, rounds=rounds
    )
    return outcome, followed


def in_file(text: str) -> str:
    return f"```python\n{text}```\n"


def test_the_model_reads_all_names_that_are_missing(solved: Solve):
    outcome, _ = carried_out(solved, coder := Coder([in_file(WORDS + B + C)]))
    assert "The tests need `b` and `c` in `words.py`." in coder.prompts[0]
    assert outcome.best is not None and outcome.best.passes


def test_functions_of_two_answers_are_one_edit(solved: Solve):
    outcome, _ = carried_out(solved, Coder([in_file(WORDS + B), in_file(WORDS + C)]))
    best = outcome.best
    assert best is not None and best.passes and best.parts == (1, 2)
    assert best.changes[0].after in (WORDS + B + C, WORDS + C + B)


def test_the_next_round_goes_on_from_the_names_that_are_there(solved: Solve):
    coder = Coder([in_file(WORDS + C)], [in_file(WORDS + C + B)])
    outcome, followed = carried_out(solved, coder, rounds=2)
    assert followed.heard.count("adopts 1") == 1 and "def c" in coder.prompts[1]
    assert "The tests need" not in coder.prompts[1]  # one name: the output has it
    assert outcome.best is not None and outcome.best.passes


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (WORDS + B, WORDS + "\n\nb = 1\n"),  # no function
        (WORDS + B, WORDS + "\n\ndef b():\n    return 4\n"),  # the same name
    ],
)
def test_what_is_not_two_functions_stays_apart(mine: str, theirs: str):
    one, other = ((Change("words.py", WORDS, text),) for text in (mine, theirs))
    assert merge_edits((), one, other) is None
