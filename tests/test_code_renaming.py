"""Renames that need no model: what is renamed in Python, JavaScript and Go, and what stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from code_folders import needs_tree_sitter
from fake_coder import CALC, Coder, Solve, answer, make_verdict

from tgr_local.code.edits import Change, EditError, FileText
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.writing.candidates import Judge
from tgr_local.code.writing.renaming import Rename, asked, renamed
from tgr_local.engine import Cancel

PYTHON = {
    "shop/prices.py": '''\
"""Prices. `calc` has the discount; we calc nothing else."""

import json

__all__ = ["calc"]


def calc(price, off=0):
    """Calls: calc(3)."""
    return price - off  # the function calc


def shown(price):
    return f"{calc(price)} calc", json.calc, "calc"
''',
    "shop/cart.py": """\
from shop import prices
from shop.prices import calc as cost


def total(items):
    find = getattr(prices, "calc")
    return sum(find(price=item, off=0) for item in items) + prices.calc(1) + cost(2)
""",
    "shop/other.py": "from numbers_of_others import calc\n\nx = calc(1)\n",
    "tests/test_cart.py": "from shop.prices import calc\n\n\ndef test_calc():\n"
    "    assert calc(3, off=1) == 2\n",
    "README.md": "Call `calc` or calc(3). We calc daily.\n",
    "CHANGELOG.md": "- `calc` is new.\n",
}
PYTHON_AFTER = {
    "shop/prices.py": '''\
"""Prices. `net_price` has the discount; we calc nothing else."""

import json

__all__ = ["net_price"]


def net_price(price, off=0):
    """Calls: net_price(3)."""
    return price - off  # the function net_price


def shown(price):
    return f"{net_price(price)} calc", json.calc, "calc"
''',
    "shop/cart.py": """\
from shop import prices
from shop.prices import net_price as cost


def total(items):
    find = getattr(prices, "net_price")
    return sum(find(price=item, off=0) for item in items) + prices.net_price(1) + cost(2)
""",
    "tests/test_cart.py": "from shop.prices import net_price\n\n\ndef test_calc():\n"
    "    assert net_price(3, off=1) == 2\n",
    "README.md": "Call `net_price` or net_price(3). We calc daily.\n",
}
SCRIPTS = {
    "src/prices.js": """\
const { round } = require("mathjs");
// calc: see calc(x) below, and é
function calc(price) {
  return round(price, { calc: 2 });
}
module.exports = { calc };
""",
    "src/cart.js": """\
const prices = require("./prices");
const lib = require("pricelib");
exports.total = (xs) =>
  xs.map((x) => [prices.calc(x), prices["calc"](x), lib.calc(x), "calc"]);
""",
    "src/theirs.js": 'import { calc } from "pricelib";\ncalc(1);\n',
    "page.html": "<p>we calc {{ calc(price) }}</p>\n",
}
SCRIPTS_AFTER = {
    "src/prices.js": """\
const { round } = require("mathjs");
// calc: see netPrice(x) below, and é
function netPrice(price) {
  return round(price, { calc: 2 });
}
module.exports = { netPrice };
""",
    "src/cart.js": """\
const prices = require("./prices");
const lib = require("pricelib");
exports.total = (xs) =>
  xs.map((x) => [prices.netPrice(x), prices["netPrice"](x), lib.calc(x), "calc"]);
""",
    "page.html": "<p>we calc {{ netPrice(price) }}</p>\n",
}
GO = {
    "go.mod": "module shop\n\ngo 1.20\n",
    "text.go": 'package shop\n\nimport "strings"\n\n// Title has capitals. `Title` is fast.\n'
    "func Title(s string) string { return strings.Title(s) }\n",
    "cmd/main.go": 'package main\n\nimport "shop"\n\nfunc main() { shop.Title("Title") }\n',
    "text_test.go": 'package shop\n\nimport "testing"\n\n'
    'func TestTitle(t *testing.T) {\n\tif Title("a") != "A" {\n\t\tt.Fatal("Title")\n\t}\n}\n',
}
GO_AFTER = {
    "text.go": 'package shop\n\nimport "strings"\n\n// Title has capitals. `Capital` is fast.\n'
    "func Capital(s string) string { return strings.Title(s) }\n",
    "cmd/main.go": 'package main\n\nimport "shop"\n\nfunc main() { shop.Capital("Title") }\n',
    "text_test.go": 'package shop\n\nimport "testing"\n\n'
    'func TestTitle(t *testing.T) {\n\tif Capital("a") != "A" {\n\t\tt.Fatal("Title")\n\t}\n}\n',
}


def after(files: dict[str, str], task: str, keep: Sequence[str] = ()) -> dict[str, str]:
    """The files that a rename changes, after it."""
    wish = asked(task)
    assert wish is not None
    read = {path: FileText(path, text) for path, text in files.items()}.get
    changes = renamed(wish, list(files), read, lambda path: path in keep)
    assert all(change.before == files[change.path] for change in changes)
    return {change.path: change.after for change in changes}


@pytest.mark.parametrize(
    ("task", "wish"),
    [
        ("Rename the function calc to net_price, everywhere.", Rename("calc", "net_price")),
        ("rename calc to net_price", Rename("calc", "net_price")),
        ("Please rename `calc()` to `net_price()` in all files.", Rename("calc", "net_price")),
        ("Rename method Cart.total to Cart.sum", Rename("total", "sum")),
        ("Rename the calc function into net_price, and update all callers and tests.",
         Rename("calc", "net_price", (), True)),
        ("Rename X to LIMIT everywhere but not in old/x.py or tests", Rename(
            "X", "LIMIT", ("old/x.py", "tests"))),
        ("Rename calc to net_price and add a parameter.", None),
        ("Rename the file a.py to b.py.", None),
        ("Rename calc to net_price in prices.py.", None),
        ("Rename Cart.total to Basket.total.", None),
        ("Rename a to a.", None),
        ("Rename calc to net_price in the tests.", None),
        ("Rename calc to net_price in all docs and comments", None),
        ("Make the failing tests pass.", None),
    ],
)  # fmt: skip
def test_which_tasks_are_renames(task: str, wish: Rename | None):
    assert asked(task) == wish


def test_a_function_of_python():
    assert after(PYTHON, "Rename the function calc to net_price, everywhere.") == PYTHON_AFTER


@needs_tree_sitter
def test_a_function_of_javascript():
    assert after(SCRIPTS, "Rename the function calc to netPrice.") == SCRIPTS_AFTER


@needs_tree_sitter
def test_a_function_of_go():
    assert after(GO, "Rename the function Title to Capital.") == GO_AFTER


@needs_tree_sitter
def test_names_of_other_languages():
    ruby = {"a.rb": 'class A\n  attr_reader :size\n  def f\n    send(:size) + "size"\n  end\nend\n'}
    assert after(ruby, "Rename size to width") == {"a.rb": ruby["a.rb"].replace(":size", ":width")}
    rust = {"a.rs": "struct Box { size: u8 }\nfn f(b: &Box) -> u8 { b.size }\n"}
    assert after(rust, "Rename Box to Crate") == {"a.rs": rust["a.rs"].replace("Box", "Crate")}
    java = {"A.java": "class A {\n  A() {}\n  static A of() { return new A(); }\n}\n"}
    assert after(java, "Rename the class A to B")["A.java"].count("B") == 4


def test_a_parameter_is_renamed_where_the_project_takes_it():
    files = {
        "a.py": "def f(size):\n    return size\n\n\nf(size=1)\nopen(size=1)\n",
        "b.py": "class B:\n    size: int\n\n\nB(size=2)\nprint(B.size)\n",
    }
    assert after(files, "Rename the parameter size to width") == {
        "a.py": "def f(width):\n    return width\n\n\nf(width=1)\nopen(size=1)\n",
        "b.py": "class B:\n    width: int\n\n\nB(width=2)\nprint(B.width)\n",
    }


def test_both_methods_of_a_name_are_renamed():
    text = "class A:\n    def go(self): ...\n\n\nclass B:\n    def go(self): ...\n"
    assert after({"a.py": text}, "Rename the method A.go to run")["a.py"].count("def run") == 2


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        # members of other libraries and of texts
        ('import os\n\ndef calc(a): return ",".calc(a) + os.path.calc(a)\n',
         'import os\n\ndef new(a): return ",".calc(a) + os.path.calc(a)\n'),
        ("import calc\ncalc.x\n", None),
        ("import os.calc\nos.calc.join(calc)\n", "import os.calc\nos.calc.join(new)\n"),
        ("from xml.calc import x\ncalc\n", "from xml.calc import x\nnew\n"),
        # names of files
        ('"""`calc.py`, `calc`, /calc(1), calc(1)"""\n',
         '"""`calc.py`, `new`, /calc(1), new(1)"""\n'),
        # names in strings
        ('__all__: list[str] = ["calc"]\n__all__.append("calc")\nx = ["calc"]\n',
         '__all__: list[str] = ["new"]\n__all__.append("new")\nx = ["calc"]\n'),
        ('__slots__ = ("a", "calc")\n', '__slots__ = ("a", "new")\n'),
        ('patch("shop.calc", "calc")\nsetattr(x, "calc", "a calc")\n',
         'patch("shop.new", "calc")\nsetattr(x, "new", "a calc")\n'),
        ('parametrize("calc,b", ["calc"])\nnamedtuple("calc", ["calc"])\ngetattr(x, r"calc")\n',
         'parametrize("new,b", ["calc"])\nnamedtuple("calc", ["new"])\ngetattr(x, r"new")\n'),
        ('def f(x: "calc", y: Literal["calc"]) -> "list[calc]": ...\nz: "calc" = cast("calc", 1)\n',
         'def f(x: "new", y: Literal["calc"]) -> "list[new]": ...\nz: "new" = cast("new", 1)\n'),
        # formatted strings
        ('f"{{calc}} calc {calc:{w}} {x:calc} {y!r:>{calc}} {d[\'calc\']} {(calc, {1: calc})}"\n',
         'f"{{calc}} calc {new:{w}} {x:calc} {y!r:>{new}} {d[\'calc\']} {(new, {1: new})}"\n'),
        ('import os\nf"{os.path.calc} {calc}"\n', 'import os\nf"{os.path.calc} {new}"\n'),
    ],
)  # fmt: skip
def test_what_a_name_is_in_python(before: str, expected: str | None):
    files = {"a.py": before, "shop.py": "calc = 1\n"}
    changed = after(files, "Rename calc to new")
    assert changed.pop("shop.py") == "new = 1\n"
    assert changed == ({} if expected is None else {"a.py": expected})


def test_the_folder_may_be_a_package():
    files = {"__init__.py": "", "core.py": "def calc(): ...\n",
             "use.py": "from shop.core import calc\nimport shop.core as c\n\nc.calc(calc())\n",
             "other.py": "from lib import calc\n"}  # fmt: skip
    changed = after(files, "Rename calc to fresh")
    assert changed == {path: files[path].replace("calc", "fresh") for path in ("core.py", "use.py")}


def test_keyword_arguments_of_subclasses_and_of_functions_that_are_passed_on():
    files = {
        "a.py": "def f(size): ...\n\n\nclass A:\n    size: int\n\n\nclass B(A): ...\n\n\n"
        "class C(B): ...\n\n\nclass D:\n    size = ib()\n\n\nD(size=1)\n"
        "h = lambda size: 1\nh(size=1)\nC(size=1)\npartial(f, size=1)\nopen(a, size=1)\n",
        "b.py": "from a import f as g\n\ng(size=1)\n",
    }
    changed = after(files, "Rename the parameter size to width")
    assert changed["a.py"] == files["a.py"].replace("size", "width").replace(
        "open(a, width", "open(a, size"
    )
    assert changed["b.py"] == files["b.py"].replace("size", "width")


@needs_tree_sitter
@pytest.mark.parametrize(
    ("path", "before", "expected"),
    [
        ("a.js", "function calc(x) { return JSON.calc(x) }\n",
         "function fresh(x) { return JSON.calc(x) }\n"),
        ("a.js", 'import fs from "fs";\nfs.promises.calc(calc);\n',
         'import fs from "fs";\nfs.promises.calc(fresh);\n'),
        ("a.js", 'export { calc } from "lib";\n', None),
        ("a.js", 'const { calc } = await import("lib");\n', None),
        ("a.js", 'import { calc } from "./b"\nimport { x } from "lib"\ncalc(x)\n',
         'import { fresh } from "./b"\nimport { x } from "lib"\nfresh(x)\n'),
        ("src/a.js", 'import { calc } from "src/b";\n', 'import { fresh } from "src/b";\n'),
        ("a.cpp", "#define M(x) calc(x)\nint calc(int a) { return std::calc(a); }\n",
         "#define M(x) fresh(x)\nint fresh(int a) { return std::calc(a); }\n"),
        ("a.rs", 'fn f(calc: u8) { println!("{calc:?} {{calc}} calc"); std::mem::calc(); }\n',
         'fn f(fresh: u8) { println!("{fresh:?} {{calc}} calc"); std::mem::calc(); }\n'),
        ("a.rs", "use std::mem::calc;\n", None),
        ("a.rs", "use std::calc::{A, B};\nfn calc(self) { self.calc() }\n",
         "use std::calc::{A, B};\nfn fresh(self) { self.fresh() }\n"),
        ("A.java", "import java.calc.B;\nclass A { int calc; }\n",
         "import java.calc.B;\nclass A { int fresh; }\n"),
        ("A.java", "import java.util.List;\nclass A { void calc() { List.calc(); } }\n",
         "import java.util.List;\nclass A { void fresh() { List.calc(); } }\n"),
        ("a.lua", 'local t = {calc = string.calc(1)}\nt["calc"] = 2\n',
         'local t = {fresh = string.calc(1)}\nt["fresh"] = 2\n'),
        ("a.rb", "class A\n  attr_reader :calc\n  def f = @calc\nend\n",
         "class A\n  attr_reader :fresh\n  def f = @fresh\nend\n"),
    ],
)  # fmt: skip
def test_what_a_name_is_in_other_languages(path: str, before: str, expected: str | None):
    changed = after({path: before, "own.py": "calc = 1\n"}, "Rename calc to fresh")
    assert changed.pop("own.py") == "fresh = 1\n"
    assert changed == ({} if expected is None else {path: expected})


@needs_tree_sitter
@pytest.mark.parametrize(
    "files",
    [
        {"calc.py": "def calc(): ...\n", "b.py": "from calc import calc\n"},
        {"shop/calc.py": "x = 1\n", "b.py": "from shop import calc\n\ncalc.x\n"},
        {"Calc.java": "public final class calc {}\n", "calc.java": "public class calc {}\n"},
        {"calc.php": "<?php\nclass calc {}\n"},
        {"src/lib.rs": "mod calc;\nfn f() {}\n", "src/calc.rs": "fn calc() {}\n"},
    ],
)
def test_a_name_that_the_code_finds_a_file_by_is_left_to_the_model(files: dict[str, str]):
    assert after(files, "Rename calc to fresh") == {}


@needs_tree_sitter
@pytest.mark.parametrize(
    ("path", "text"),
    [("a.py", "def calc(:\n"), ("a.py", "calc = " + "-" * 20_000 + "1\n"),
     ("a.js", "let x = [" + "1,\n" * 600_000 + "];\ncalc();\n")],
)  # fmt: skip
def test_no_part_of_the_files_is_renamed_where_one_cannot_be_read(path: str, text: str):
    changed = after({path: text, "own.py": "calc = 1\n"}, "Rename calc to fresh")
    assert changed == {} or changed.keys() == {path, "own.py"}


def test_a_file_that_is_no_text_or_too_long_may_have_the_name():
    wish = asked("Rename calc to fresh")
    assert wish is not None
    own = FileText("own.py", "calc = 1\n")
    for path, n_changes in (("big.py", 0), ("big.js", 1), ("picture.png", 1)):
        read = {"own.py": own, path: None}.get
        assert len(renamed(wish, ["own.py", path], read, lambda _: False)) == n_changes


def test_what_the_task_or_the_person_keeps_stays():
    task = "Rename calc to net_price, but not in shop/cart.py"
    assert after(PYTHON, task).keys() == PYTHON_AFTER.keys() - {"shop/cart.py"}
    task = "Rename calc to net_price everywhere except in tests and README.md."
    assert after(PYTHON, task).keys() == {"shop/cart.py", "shop/prices.py"}
    assert after(PYTHON, "Rename calc to net_price", ["README.md"]).keys() == (
        PYTHON_AFTER.keys() - {"README.md"}
    )
    assert after(PYTHON, "Rename calc to net_price, but not in the legacy module.") == {}


def test_a_name_that_is_there_already_is_not_taken_twice():
    files = {"a.py": "def calc(): ...\n\n\ndef net_price(): ...\n"}
    assert after(files, "Rename calc to net_price") == {}
    files = {"a.py": "def calc(): ...\n", "b.py": "x = f'{net_price} a'\n"}
    assert after(files, "Rename calc to net_price") == {}
    files = {"a.py": "def calc(): ...\n", "b.py": "x = f'{{net_price}} net_price', 'net_price'\n"}
    assert after(files, "Rename calc to net_price").keys() == {"a.py"}


@pytest.mark.parametrize(
    "unit", ["calc(", "calc.", "'calc'+", "#calc\n", "f'{calc}' ", "def calc(calc):\n"]
)
def test_hostile_files_are_renamed_or_refused_in_linear_time(unit: str):
    text = unit * (60_000 // len(unit))
    for path in ("a.py", "a.js", "a.go", "a.md"):
        after({path: text, "b.py": "calc = 1\n"}, "Rename calc to net_price")
    for path, text in (
        ("a.js", "calc();\nconst" + " " * 60_000), ("a.js", "calc();\n" + "function f\n" * 50_000),
        ("a.go", "package a\nvar calc = 1\n" + "\n" * 300_000), ("a.html", "calc" + "{" * 600_000),
    ):  # fmt: skip
        after({path: text, "b.py": "calc = 1\n"}, "Rename calc to net_price")
    big = {f"{n}.py": "calc\n" for n in range(6000)}
    assert after(big, "Rename calc to net_price") == {}


# ---- in a task ----

RENAMED = CALC.replace("add", "plus")


def wants(name: str) -> Judge:
    """Tests that pass where calc.py has a name."""

    def judge(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        text = {change.path: change.after for change in changes}.get("calc.py", CALC)
        is_there = f"def {name}(" in text
        return make_verdict(True, 1 + is_there, 1 - is_there, 0, "" if is_there else "no\n")

    return judge


def test_no_token_is_written_where_the_tests_pass_with_a_rename(solved: Solve):
    coder = Coder([answer(CALC)])
    outcome = solved(coder, "Rename the function add to plus.", by=wants("plus"))
    assert outcome.best is not None and outcome.best.passes and outcome.best.number == 1
    assert [change.after for change in outcome.best.changes] == [RENAMED]
    assert not coder.prompts and outcome.forward_tokens == 0 and len(outcome.rounds) == 1


def test_a_rename_that_does_not_pass_is_one_candidate_of_the_first_round(solved: Solve):
    coder = Coder([answer(CALC.replace("add", "sum_of"))])
    outcome = solved(coder, "Rename the function add to plus.", by=wants("sum_of"))
    assert len(coder.prompts) == 1 and [len(some) for some in outcome.rounds] == [3]
    assert [c.number for c in outcome.rounds[0]] == [1, 2, 3]
    assert outcome.best is not None and outcome.best.passes and outcome.best.number > 1


def test_an_edit_that_its_file_cannot_hold_is_no_end_of_the_task(solved: Solve):
    """Such as one with a character that the encoding lacks."""

    def judge(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        if changes:
            raise EditError("calc.py is not changed")
        return make_verdict(True, 1, 1, 0, "no\n")

    outcome = solved(Coder([answer(RENAMED)]), "Rename the function add to plus.", by=judge)
    assert [each.problem for each in outcome.rounds[0]] == ["calc.py is not changed"] * 3
    assert not any(each.changes or each.parses for each in outcome.rounds[0])


def test_without_tests_a_rename_is_offered_beside_the_answers(solved: Solve):
    coder = Coder([answer(CALC.replace("a - b", "b - a")), answer(RENAMED)])
    outcome = solved(coder, "Rename the function add to plus.", tests="", by=wants("plus"))
    assert len(coder.prompts) == 1 and outcome.offered is not None
    assert [change.after for change in outcome.offered.changes] == [RENAMED]


def test_tests_are_renamed_where_they_pass_before_and_not_while_they_fail(solved: Solve):
    test = FileText("test_calc.py", "from calc import add\n")
    files = {"calc.py": FileText("calc.py", CALC), "test_calc.py": test}
    for passes, changed in ((True, ["calc.py", "test_calc.py"]), (False, ["calc.py"])):
        seen: list[list[str]] = []

        def judge(changes: Sequence[Change], cancel: Cancel) -> Verdict:
            seen.append([change.path for change in changes])  # noqa: B023
            return make_verdict(True, 1, 0 if changes or passes else 1, 0, "x\n")  # noqa: B023

        coder = Coder([answer(CALC)])
        solved(coder, "Rename add to plus.", by=judge, read=files.get, paths=list(files))
        assert seen == [[], changed] and not coder.prompts


def test_named_files_alone_are_renamed(solved: Solve):
    files = {path: FileText(path, "def add(): ...\n") for path in ("a.py", "calc.py")}
    seen: list[list[str]] = []

    def judge(changes: Sequence[Change], cancel: Cancel) -> Verdict:
        seen.append([change.path for change in changes])
        return make_verdict(True, 1, 0, 0, "")

    solved(Coder([answer(CALC)]), "Rename add to plus.", by=judge, read=files.get,
           paths=list(files), named_paths=("calc.py",))  # fmt: skip
    assert seen == [[], ["calc.py"]]
