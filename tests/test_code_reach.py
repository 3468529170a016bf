"""Which functions failing tests do not reach, by names; departures from these come last."""

from __future__ import annotations

import dataclasses

import pytest
from code_folders import needs_tree_sitter

from tgr_local.code.edits import FileText, functions_of
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.reading.prompt import Copy
from tgr_local.code.reading.reach import out_of_reach
from tgr_local.code.writing import departures
from tgr_local.engine import Engine

SHOP = FileText(
    "shop.py",
    """\
class Cart:
    def __init__(self):
        self.items = {}

    def total(self):
        return rounded(sum(self.items.values()))

    def clear(self):
        self.items = {}


class Log:
    def __len__(self):
        return 0


def rounded(x):
    return int(x)


def unused(x):
    return x
""",
)
TESTS = FileText(
    "test_shop.py",
    """\
import pytest
from shop import Cart, Log


@pytest.fixture
def cart():
    return Cart()


def test_total(cart):
    assert cart.total() == 0


def test_clear(cart):
    cart.clear()


def test_log():
    assert len(Log()) == 0
""",
)


def names(failing: str) -> set[str]:
    """The functions that a failing test does not reach."""
    unreached = out_of_reach([Failure(failing)], [TESTS], [SHOP]).get("shop.py", ())
    return {one.name for one in functions_of(SHOP) if (one.first, one.last) in unreached}


def test_a_test_reaches_what_it_names_and_what_that_names():
    assert names("test_shop.py::test_total") == {"Cart.clear", "Log.__len__", "unused"}
    assert names("test_shop.py::test_total[1-a::b]") == names("test_shop.py::test_total")
    assert names("test_total (test_shop.TestCart.test_total)") == names("test_shop.py::test_total")


def test_a_special_method_is_reached_by_the_name_of_its_class():
    # the fixture of the same file makes a cart
    assert names("test_shop.py::test_clear") == {"Cart.total", "Log.__len__", "rounded", "unused"}
    assert "Log.__len__" not in names("test_shop.py::test_log")


def test_nothing_is_known_without_the_failing_test():
    assert out_of_reach([], [TESTS], [SHOP]) == {}
    assert out_of_reach([Failure("test_other.py::test_x")], [TESTS], [SHOP]) == {}
    broken = FileText("test_shop.py", "def test_total(:\n")
    assert out_of_reach([Failure("test_shop.py::test_total")], [broken], [SHOP]) == {}
    alone = FileText("test_shop.py", "def test_total():\n    assert 1 == 2\n")
    assert out_of_reach([Failure("test_shop.py::test_total")], [alone], [SHOP]) == {}


def test_calls_in_a_circle_end():
    circle = FileText("a.py", "def a():\n    b()\n\n\ndef b():\n    a()\n\n\ndef c():\n    c()\n")
    test = FileText("test_a.py", "def test_a():\n    a()\n")
    assert out_of_reach([Failure("test_a")], [test], [circle]) == {"a.py": ((9, 10),)}


@needs_tree_sitter
@pytest.mark.parametrize("name", ["cart › total is 1.5", "cart > total is 1.5", "total is 1.5"])
def test_a_test_of_javascript_reaches_what_it_and_what_runs_before_it_names(name: str):
    code = FileText(
        "cart.js",
        "class Cart {\n  constructor() {\n    this.a = [];\n  }\n  total() {\n    return 1;\n  }\n"
        "  clear() {\n    this.a = [];\n  }\n}\nfunction fresh() {\n  return new Cart();\n}\n",
    )
    test = FileText(
        "cart.test.js",
        'describe("cart", () => {\n  let one;\n  beforeEach(() => { one = fresh(); });\n'
        '  test("total is 1.5", () => { expect(one.total()).toBe(1.5); });\n'
        '  test("clear", () => { one.clear(); });\n});\n',
    )
    assert out_of_reach([Failure(name)], [test], [code]) == {"cart.js": ((8, 10),)}


def test_departures_from_lines_that_are_away_come_last(engine: Engine):
    code = "x = 1\ny = 2\nz = 3\n"
    copy = Copy(
        FileText("a.txt", code), "a:\n", code,
        engine.tokenize(f"Mend it.\na:\n{code.rstrip()}", parse_special=False),
    )  # fmt: skip
    plain = departures.find(engine, [copy], 400).departures
    first = departures.find(
        engine, [dataclasses.replace(copy, unreached=((1, 2),))], 400
    ).departures
    unreached = [one.is_unreached for one in first]
    assert unreached == sorted(unreached) and len(set(unreached)) == 2
    assert not any(one.is_unreached for one in plain)
    assert [one.text for one in plain] != [one.text for one in first]
