"""Edits in answers as code models write them: what is taken from them, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tgr_local.code.edits import Change, EditError, FileText
from tgr_local.code.writing.merging import keep_docstring
from tgr_local.code.writing.natural import codes, is_whole, read_answer

SHOP = '''"""Prices."""

import os

RATE = 0.2


class Cart:
    def __init__(self):
        self.items = []

    def add(self, price):
        self.items.append(price)

    def total(self):
        return sum(self.items)


def tax(price):
    return price * RATE
'''
TWO = "def net(price):\n    return 2\n"
ONE = "def tax(price):\n    return 1\n"
OTHER = "def tax(price, rate):\n    return price * rate\n\n\ndef net(price):\n    return price\n"


def fenced(text: str, info: str = "python") -> str:
    return f"```{info}\n{text}```\n"


def after(answer: str, *texts: str) -> str:
    """The new text of the first document that an answer changes."""
    names = ("shop.py", "other.py")
    documents = [FileText(name, text) for name, text in zip(names, texts or (SHOP,), strict=False)]
    (change,) = read_answer(answer, documents)
    assert change.before in texts or change.before == SHOP
    return change.after


def test_a_function_takes_the_place_of_the_one_with_its_name():
    new = "def tax(price):\n    return round(price * RATE, 2)\n"
    answer = (
        f"The tax must be rounded.\n\n{fenced(new)}\nNow it is right:\n\n{fenced('tax(1)', '')}"
    )
    assert after(answer) == SHOP.replace(
        "    return price * RATE\n", "    return round(price * RATE, 2)\n"
    )


@pytest.mark.parametrize(
    "answer",
    [
        fenced("    def total(self):\n        return sum(self.items) / 2\n"),
        fenced("def total(self):\n    return sum(self.items) / 2\n"),
        fenced("class Cart:\n    def total(self):\n        return sum(self.items) / 2\n"),
        fenced(
            "class Cart:\n    # …\n\n    def total(self):\n        return sum(self.items) / 2\n"
        ),
        "> ```python\n> def total(self):\n>     return sum(self.items) / 2\n> ```\n",
        "1. Halve it:\n   ```python\n   def total(self):\n       return sum(self.items) / 2\n"
        "   ```\n",
        "~~~python\ndef total(self):\n    return sum(self.items) / 2\n~~~\n",
        "def total(self):\n    return sum(self.items) / 2\n",
        fenced("    def total(self):\n        return sum(self.items) / 2\n").removesuffix("```\n"),
        fenced(
            "<<<<<<< SEARCH\n        return sum(self.items)\n=======\n"
            "        return sum(self.items) / 2\n>>>>>>> REPLACE\n"
        ),
    ],
    ids=("method", "dedented", "class", "part", "quoted", "list", "tildes", "bare", "cut", "lines"),
)
def test_a_method_is_found_however_it_is_written(answer: str):
    assert after(answer) == SHOP.replace("sum(self.items)", "sum(self.items) / 2")


def test_a_whole_file_is_the_new_text():
    new = SHOP.replace("0.2", "0.3").replace('"""Prices."""', '"""New."""')
    assert after(f"`shop.py`:\n{fenced(new)}") == new
    assert after(fenced(f"# shop.py\n{new}")) == new  # the comment only names it


def test_a_file_without_its_imports_keeps_them():
    """Small models repeat all functions, and nothing that stands above them."""
    new = SHOP.partition("RATE = 0.2\n\n\n")[2].replace("price * RATE", "price / RATE")
    assert after(fenced(new)) == SHOP.replace("price * RATE", "price / RATE")


def test_what_is_new_is_added_with_what_it_needs():
    new = (
        "import math\nimport sys\n\nRATE = 0.5\n\n\ndef up(x):\n    return math.ceil(x)\n\n\n"
        "def tax(price):\n    return up(price * RATE)\n\n\nprint(tax(3))\nassert tax(3) == 2\n"
    )
    made = after(fenced(new))
    assert made == SHOP.replace("import os\n", "import os\nimport math\n").replace(
        "0.2", "0.5"
    ).replace("def tax(", "def up(x):\n    return math.ceil(x)\n\n\ndef tax(").replace(
        "return price * RATE", "return up(price * RATE)"
    )
    names: dict[str, object] = {}
    exec(made, names)


def test_a_new_method_comes_at_the_end_of_its_class():
    made = after(fenced("class Cart:\n    def clear(self):\n        self.items = []\n"))
    assert made == SHOP.replace(
        "sum(self.items)\n", "sum(self.items)\n\n    def clear(self):\n        self.items = []\n"
    )


def test_a_new_function_comes_at_the_end():
    made = after(fenced("def net(price):\n    return price - tax(price)\n"))
    assert made == f"{SHOP}\n\ndef net(price):\n    return price - tax(price)\n"


@pytest.mark.parametrize(
    "before", ["other.py", "**`other.py`**:", "### other.py", "File: `other.py`", "`src/other.py`"]
)
def test_the_line_before_a_block_names_its_file(before: str):
    new = "def tax(price, rate=1):\n    return price * rate\n"
    made = after(f"{before}\n{fenced(new)}", SHOP, OTHER)
    assert made == OTHER.replace("price, rate)", "price, rate=1)")


@pytest.mark.parametrize("info", ["python other.py", "python:other.py"])
def test_the_fence_may_name_the_file(info: str):
    new = "def tax(price, rate=1):\n    return price * rate\n"
    assert "rate=1" in after(fenced(new, info), SHOP, OTHER)


def test_without_a_name_the_file_is_the_one_that_has_most_of_it():
    new = OTHER.replace("return price\n", "return 2 * price\n")
    assert after(f"In `shop.py` nothing changes.\n{fenced(new)}", SHOP, OTHER) == new


def test_several_files_and_blocks_one_after_the_other():
    answer = (
        f"shop.py\n{fenced(ONE)}other.py\n{fenced(TWO)}shop.py\n{fenced(ONE.replace('1', '3'))}"
    )
    documents = [FileText("shop.py", SHOP), FileText("other.py", OTHER)]
    first, second = read_answer(answer, documents)
    assert "return 3" in first.after and "return 1" not in first.after
    assert second.after == OTHER.replace("return price\n", "return 2\n")


def test_tests_of_the_answer_are_no_part_of_the_code():
    tests = "from shop import tax\n\n\ndef test_tax():\n    assert tax(1) == 0.2\n"
    answer = f"{fenced(ONE)}\n{fenced(tests)}"
    assert "test_tax" not in after(answer)


def test_lines_without_a_name_are_placed_by_their_ends():
    new = "    def add(self, price):\n        assert price\n        self.items.append(price)\n"
    broken = f"{new}\n    if\n"  # which Python cannot read
    assert after(fenced(new)) == SHOP.replace(
        "        self.items.append", "        assert price\n        self.items.append"
    )
    config = "[a]\nx = 1\ny = 2\n\n[b]\nx = 3\n"
    (change,) = read_answer(fenced("[a]\nx = 5\n[b]\n", "toml"), [FileText("a.toml", config)])
    assert change.after == "[a]\nx = 5\n[b]\nx = 3\n"
    with pytest.raises(EditError, match="syntax error, in line"):
        read_answer(fenced(broken), [FileText("shop.py", SHOP)])


def test_of_two_versions_of_a_function_the_last_one_counts():
    two = ONE + "\n\n" + ONE.replace("return 1", "return 2")
    assert after(fenced(two)) == SHOP.replace("price * RATE", "2")


def test_a_file_that_is_indented_with_tabs_stays_so():
    old = "class A:\n\tdef f(self):\n\t\tif self:\n\t\t\treturn 1\n\t\treturn 2\n"
    new = "def f(self):\n    if self:\n        return 3\n    return 2\n"
    (change,) = read_answer(fenced(new), [FileText("a.py", old)])
    assert change.after == old.replace("return 1", "return 3")


def test_a_comment_may_say_that_something_is_unchanged():
    new = ONE.replace("    return", "    # the rest of the price is unchanged\n    return")
    assert "# the rest" in after(fenced(new))


def test_a_new_file_is_the_whole_block():
    (change,) = read_answer(fenced("x = 1\n"), [FileText("new.py", "")])
    assert change.after == "x = 1\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I cannot see a defect.", "has no code"),
        ("```sh\npytest -q\n```", "has no code"),
        (f"tests/test_shop.py\n{fenced(ONE)}", "which is not open"),
        (fenced("price * 2\n"), "no place in the open files"),
        (fenced("def tax(price):\n    # ... rest of the code\n    return 1\n"), "leaves out lines"),
        (fenced("def tax(price):\n    ...\n"), "leaves out lines"),
        (fenced("def tax(price):\n    # existing code here\n    return 1\n"), "leaves out lines"),
        (fenced("class Cart:\n    (all lines of the class)\n"), "syntax error"),
        (fenced("def tax(price:\n    return 1\n"), "syntax error"),
    ],
)
def test_what_is_no_edit_is_refused(answer: str, why: str):
    with pytest.raises(EditError, match=why):
        read_answer(answer, [FileText("shop.py", SHOP)])


def test_an_answer_that_repeats_the_file_changes_nothing():
    assert read_answer(fenced(SHOP), [FileText("shop.py", SHOP)]) == ()


def test_a_file_keeps_its_last_line_end_and_its_comments():
    text = "# calc\ndef f():  # one\n    return 1  # it\n# end"
    (change,) = read_answer(fenced("def f():\n    return 2\n"), [FileText("shop.py", text)])
    assert change.after == "# calc\ndef f():\n    return 2\n# end"


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_whole_file_and_a_quoted_last_line_keep_the_last_line_end(end: str):
    script = FileText("sum.js", f"function f() {{\n  return 1;\n}}\nmodule.exports = {{ f }};{end}")
    new = script.text.replace("1", "2")
    for answer in (
        fenced(new.rstrip("\n") + "\n", "javascript"),
        fenced("<<<<<<< SEARCH\n  return 1;\n=======\n  return 2;\n>>>>>>> REPLACE\n", ""),
    ):
        assert [one.after for one in read_answer(answer, [script])] == [new]
    line = "module.exports = { f"
    quoted = f"<<<<<<< SEARCH\n{line} }};\n=======\n{line}, g }};\n>>>>>>> REPLACE\n"
    (change,) = read_answer(fenced(quoted, ""), [script])
    assert change.after == script.text.replace("{ f }", "{ f, g }")


def test_an_answer_is_whole_when_a_file_has_ended():
    documents = [FileText("other.py", OTHER)]
    answer = f"Like this:\n{fenced(OTHER.replace('* rate', '/ rate'))}"
    ends = [answer[:end] for end in range(len(answer)) if is_whole(answer[:end], documents)]
    assert ends == [answer[:-1]]  # the fence without its line end
    assert not is_whole(fenced(OTHER), documents)  # it may still change something
    assert not is_whole(answer, [*documents, FileText("shop.py", SHOP)])


def test_behind_a_function_another_block_may_come():
    documents = [FileText("shop.py", SHOP)]
    answer = f"Two defects. The first:\n{fenced(ONE)}Then the second:\n"
    assert not is_whole(fenced(ONE), documents) and not is_whole(answer, documents)
    assert is_whole(f"{answer}\nIt is right now.\n", documents)
    method = "def total(self):\n    return 0\n"
    assert "return 0" in after(answer + fenced(method)) and "return 1" in after(answer)


def test_what_was_cut_off_behind_the_code_is_no_part_of_it():
    cut = fenced(f"{ONE}\n\nassert tax(1) == [\n    1, 2,").removesuffix("```\n")
    assert after(cut) == SHOP.replace("price * RATE", "1")
    with pytest.raises(EditError):  # the function itself was cut off
        after(fenced("def tax(price):\n    return (1 +").removesuffix("```\n"))


@pytest.mark.parametrize("behind", ["assert tax(1)", "print(tax(1))"])
def test_an_answer_is_whole_where_calls_and_tests_begin(behind: str):
    documents = [FileText("shop.py", SHOP)]
    answer = f"```python\n{ONE}\n{behind}"
    assert is_whole(answer, documents)
    assert not is_whole(answer.replace("\n\n", "\n    return 2\n    "), documents)
    assert not is_whole(answer, [FileText("shop.py", f"{SHOP}\n{behind}\n")])
    assert not is_whole(answer, [FileText("test_shop.py", SHOP)])
    assert not is_whole(f"```python\n{ONE}\nprinter = 1", documents)


def test_a_long_answer_is_read():
    answer = "```\n" * 20_000 + "`" * 100_000 + "\n" + "# ..." * 20_000
    assert len(codes(answer)) < 20_000
    with pytest.raises(EditError):
        read_answer(answer, [FileText("shop.py", SHOP)])


# ---- pieces that depend on each other ----


def names_after(answer: str, text: str) -> dict[str, Any]:
    """The names of the document after an answer, which must run."""
    (change,) = read_answer(answer, [FileText("m.py", text)])
    names: dict[str, Any] = {"__name__": "m"}
    exec(change.after, names)
    return names


def test_what_is_added_keeps_its_order():
    errors = "class Base(Exception):\n    pass\n\n\nclass Negative(Base):\n    pass\n"
    assert "Negative" in names_after(fenced(errors), OTHER)
    assert "Negative" in names_after(fenced(f"{errors}\n\n{ONE}"), OTHER)
    methods = "class Cart:\n    def a(self):\n        pass\n\n    def b(self):\n        pass\n"
    made = after(fenced(methods))
    order = [made.index(f"def {name}(") for name in ("total", "a", "b", "tax")]
    assert order == sorted(order)


def test_imports_and_values_stand_where_they_can_be_used():
    log = "import logging\n\nlog = logging.getLogger()\nLIMIT = RATE * 2\n\n\n"
    new = "def tax(price):\n    log.info(LIMIT)\n    return price\n"
    assert names_after(fenced(log + new), SHOP)["LIMIT"] == 0.4
    usage = "def tax(price):\n    result = price * RATE\n    return result\n\n\nresult = tax(100)\n"
    assert "result" not in names_after(fenced(f"{usage}RATE = 0.5\n"), SHOP)
    future = f"from __future__ import annotations\n\n{ONE}"
    assert names_after(fenced(future), SHOP.replace('"""Prices."""', "#!/bin/python\n# x"))
    other = "from math import ceil as up\n\n\ndef f(x):\n    return up(x)\n"
    old = other.replace("ceil", "floor")
    assert names_after(fenced(other), old)["f"](1.5) == 2


def test_a_block_of_imports_alone_is_added():
    use = "def tax(price):\n    return math.ceil(price)\n"
    for answer in (fenced("import math\n") + fenced(use), fenced(use) + fenced("import math\n")):
        assert names_after(answer, SHOP)["tax"](1.5) == 2


def test_what_a_file_does_at_its_top_stays():
    guard = '\n\nif __name__ == "__main__":\n    print(tax(1, 2))\n'
    new = OTHER.replace("* rate", "/ rate")
    (change,) = read_answer(fenced(new), [FileText("m.py", OTHER + guard)])
    assert change.after == new + guard
    (change,) = read_answer(fenced(new + guard), [FileText("m.py", OTHER)])
    assert change.after == new + guard
    checks = f"{new}\n\n# Test cases\nassert tax(1, 2) == 3\nprint(tax(1, 2))\n"
    assert "net" in names_after(fenced(checks), OTHER)
    suite = "\n\nimport unittest\n\n\nclass TestTax(unittest.TestCase):\n    pass\n"
    (change,) = read_answer(fenced(new + suite), [FileText("m.py", OTHER)])
    assert change.after == new
    (change,) = read_answer(fenced(new + suite), [FileText("test_m.py", OTHER)])
    assert change.after == new + suite
    used = f"{new}\n\nclass TestRunner:\n    pass\n\n\ndef go():\n    return TestRunner()\n"
    assert "TestRunner" in names_after(fenced(used), OTHER)


def test_a_class_keeps_its_values():
    old = "class A:\n    k = 3\n\n    def f(self):\n        return self.k\n"
    new = "class A:\n    def f(self):\n        return self.k + 1\n"
    assert names_after(fenced(new), old)["A"]().f() == 4


def test_a_file_with_a_syntax_error_is_repaired():
    broken = OTHER.replace("rate):", "rate)")
    assert "tax" in names_after(fenced(OTHER), broken)


def test_a_property_and_its_setter_are_two():
    old = (
        "class A:\n    @property\n    def x(self):\n        return 1\n\n"
        "    @x.setter\n    def x(self, v):\n        pass\n"
    )
    new = old.replace("return 1", "return 2").replace("pass", "self.v = v")
    (change,) = read_answer(fenced(new + "\n    k = 1\n"), [FileText("m.py", f"y = 1\n\n\n{old}")])
    assert "return 2" in change.after and "self.v = v" in change.after
    lone = "class A:\n    @x.setter\n    def x(self, v):\n        pass\n"
    with pytest.raises(EditError, match="several times"):
        read_answer(fenced(lone), [FileText("m.py", f"y = 1\n\n\n{old}")])


def test_a_method_without_a_class_is_refused():
    two = SHOP + "\n\nclass Bag:\n    def total(self):\n        return 0\n"
    with pytest.raises(EditError, match="a method 'total', but not its class"):
        after(fenced("def total(self):\n    return 1\n"), two)


def test_a_method_without_a_class_goes_to_the_only_file_that_has_it():
    other = FileText("a.py", "class Other:\n    def sum(self):\n        return 0\n")
    shop = FileText("shop.py", SHOP)
    for documents in ([other, shop], [shop, other]):
        (change,) = read_answer(fenced("def total(self):\n    return 1\n"), documents)
        assert change.path == "shop.py" and "        return 1\n" in change.after


def test_code_that_leaves_lines_out_does_not_go_to_another_file():
    one = FileText("a.py", "def parse(t):\n    return t\n\n\ndef main():\n    return 1\n")
    other = FileText("b.py", "def show(t):\n    return t\n\n\ndef main():\n    return 2\n")
    block = (
        "def parse(t):\n    # ... existing code ...\n    return t\n\n\ndef main():\n    return 3\n"
    )
    with pytest.raises(EditError, match="leaves out lines"):
        read_answer(fenced(block), [one, other])
    new = "def extra(price):\n    # ... existing code ...\n    return 1\n"
    with pytest.raises(EditError, match="leaves out lines"):
        after(fenced(new))


def test_the_file_that_the_prose_names_comes_before_one_with_a_method_of_that_name():
    one = FileText("a.py", "class A:\n    def run(self):\n        return 1\n")
    other = FileText("b.py", "class B:\n    def stop(self):\n        return 1\n")
    block = fenced("def run(self):\n    return 2\n\n\ndef stop(self):\n    return 2\n")
    with pytest.raises(EditError, match="a method 'run', but not its class"):
        read_answer(f"In b.py the class needs both:\n{block}", [one, other])


def test_a_snippet_of_a_settings_file_does_not_replace_it():
    old = '[project]\nname = "a"\nversion = "1"\n\n[tool.ruff]\nline-length = 80\n'
    with pytest.raises(EditError, match="no place"):
        read_answer(
            fenced('[tool.ruff]\nline-length = 100\nselect = ["E"]\nfix = true\n', "toml"),
            [FileText("pyproject.toml", old)],
        )
    new = old.replace("80", "100")
    assert read_answer(fenced(new, "toml"), [FileText("pyproject.toml", old)])[0].after == new


def test_usage_that_is_quoted_first_is_no_file():
    old = "def add(a, b):\n    return a - b\n"
    wrong = fenced("from m import add\nprint(add(1, 2))\n")
    right = fenced(old.replace("-", "+"))
    assert not is_whole(f"Wrong:\n{wrong}", [FileText("m.py", old)])
    assert names_after(f"Wrong:\n{wrong}Right:\n{right}", old)["add"](1, 2) == 3


@pytest.mark.parametrize("name", ["# shop.py:\n", "# app/shop.py\n\n", "", "\n"])
def test_a_fence_that_is_written_twice_is_one(name: str):
    """As a small model writes it."""
    new = "def tax(price):\n    return 0\n"
    answer = f"Here:\n```python\n{name}```python\n{new}```\n"
    assert after(answer) == SHOP.replace("    return price * RATE\n", "    return 0\n")
    (code,) = codes(answer)
    assert (code.text, code.line_before) == (new, name.strip("# :\n") or "Here:")


def test_a_fence_within_a_docstring_is_text():
    new = 'def tax(price):\n    """Tax.\n\n    ```\n    tax(1)\n    ```\n    """\n    return 1\n'
    assert after(fenced(new)).count("```") == 2


def test_dots_that_leave_nothing_out():
    told = '"""\n    >>> if x:\n    ...     y\n    """'
    doctest = ONE.replace("    return", f"    {told}\n    return")
    assert "return 1" in after(fenced(doctest))
    old = "const f = (s) => {\n  return {\n    a: 1,\n  };\n};\nlet z = 1;\n"
    new = old.replace("a: 1", "...s,\n    a: 2")
    assert read_answer(fenced(new, "js"), [FileText("a.txt", old)])[0].after == new


def test_numbered_headings_name_files():
    answer = f"### 1. `shop.py`\n{fenced(ONE)}### 2. `other.py`\n{fenced(ONE.replace('1', '2'))}"
    first, second = read_answer(answer, [FileText("shop.py", SHOP), FileText("other.py", OTHER)])
    assert "return 1" in first.after and "return 2" in second.after


def test_a_shell_script_is_code_where_it_is_open():
    (change,) = read_answer(fenced("set -e\necho 2\n", "bash"), [FileText("run.sh", "set -e\n")])
    assert change.after == "set -e\necho 2\n"


@pytest.mark.parametrize(
    "text",
    [
        "x" + ".a" * 3000 + " = 1\n\n\ndef tax(price):\n    return 1\n",
        "<<<<<<< SEARCH\na\n=======\n" * 4000,
        f"```{' ' * 50_000}`\n",
        f"def tax(price):\n{' ' * 50_000}\n    return 1\n",
        f"# a.py{' ' * 50_000}x\n",
    ],
    ids=("attributes", "search", "fence", "spaces", "comment"),
)
def test_hostile_text_is_read_or_refused(text: str):
    """The limit of a test's time is the bound: what is quadratic takes minutes."""
    documents = [FileText("shop.py", SHOP)]
    with contextlib.suppress(EditError):
        assert len(read_answer(fenced(text), documents)) <= 1
    assert not is_whole(fenced(text), documents)


@pytest.mark.parametrize("part", ["<!--", "```", "(", " ", "def f(:\n", "@a\n"])
def test_a_long_answer_without_code_is_read_in_time_that_grows_with_its_length(part: str):
    assert all(one.text for one in codes(part * (100_000 // len(part))))


# ---- answers that were cut, methods of one name, docstrings ----


@pytest.mark.parametrize(
    ("before", "cut"),
    [
        ("f(1)\nf(2)\nf(3)\nf(4)\n", "f(1)\nf(2)\nf(9)\nf"),  # no names in it
        ("", "def f():\n    return 1\n\n\ndef g():\n    ret"),
        ("def f(:\n    x = 1\n    return x\n", "def f():\n    x = 1\n    return x\n\n\nx"),
    ],
)
@pytest.mark.parametrize("fence", ["```python\n", ""])
def test_what_was_cut_off_is_no_whole_file(before: str, cut: str, fence: str):
    with pytest.raises(EditError):
        read_answer(fence + cut, [FileText("shop.py", before)], is_cut=True)


def test_a_bare_answer_that_was_cut_off_loses_its_last_function():
    two = "def tax(price):\n    return 1\n\n\ndef net(price):\n    x = price\n"
    (change,) = read_answer(two, [FileText("shop.py", OTHER)], is_cut=True)
    assert "return 1" in change.after and "return price\n" in change.after


@pytest.mark.parametrize("end", ["else:\n    A", "@cached\n@kept\ndef tax(price):\n    x = 1\n"])
def test_the_last_statement_of_a_cut_answer_goes_whole(end: str):
    before = "import os\n\nif os:\n    A = 1\nelse:\n    A = 2\n\n\n" + ONE
    head = "def net(price):\n    return 2\n\n\n" + ("if os:\n    A = 3\n" * end.startswith("e"))
    (change,) = read_answer(f"```python\n{head}{end}", [FileText("a.py", before)], is_cut=True)
    assert "else:\n    A = 2\n" in change.after and "A = 3" not in change.after
    assert "cached" not in change.after and ONE in change.after and TWO in change.after


LEDGER = (
    "class Ledger:\n    def check(self, amount):\n        if amount < 0:\n"
    "            raise ValueError\n        return self.book(amount)\n"
)
BOOKING = "class Booking:\n    def check(self, date):\n        return date in self.days\n"


@pytest.mark.parametrize("turned", [False, True])
def test_a_method_goes_to_the_class_whose_lines_it_has(turned: bool):
    documents = [FileText("ledger.py", LEDGER), FileText("booking.py", BOOKING)]
    method = (
        "def check(self, amount):\n    if amount <= 0:\n        raise ValueError\n"
        "    return self.book(amount)\n"
    )
    (change,) = read_answer(fenced(method), documents[::-1] if turned else documents)
    assert change.path == "ledger.py" and change.after == LEDGER.replace("< 0", "<= 0")


def test_a_method_of_a_class_that_is_not_open_is_refused():
    method = "def check(self, amount):\n    return self.book(amount)\n"
    with pytest.raises(EditError, match="has a method 'check', but not its class"):
        read_answer(fenced(method), [FileText("booking.py", BOOKING)])
    new = "def check(self, date):\n    return True\n"  # the same parameters: it is rewritten
    (change,) = read_answer(fenced(new), [FileText("booking.py", BOOKING)])
    assert "return True" in change.after


def test_a_function_is_no_method():
    """It is added beside the class that has a method of its name."""
    new = "def check(date):\n    return bool(date)\n"
    (change,) = read_answer(fenced(new), [FileText("booking.py", BOOKING)])
    assert BOOKING in change.after and new in change.after


def kept(before: str, new: str, path: str = "a.py") -> str:
    return keep_docstring(Change(path, before, new)).after


def test_the_docstring_of_a_module_is_kept():
    text = '#!/usr/bin/python\n"""One.\n\nTwo."""\n\nimport os\n'
    said = '"""One.\n\nTwo."""\n\n'
    assert kept(text, "import os\nX = 1\n") == f"{said}import os\nX = 1\n"
    assert kept(text, "#!/usr/bin/python\n\nX = 1\n") == f"#!/usr/bin/python\n{said}X = 1\n"
    assert kept(text, "X = 1") == f"{said}X = 1"
    for new in ('"""Other."""\nX = 1\n', "", "X = (\n"):
        assert kept(text, new) == new
    assert kept("X = 1\n", "X = 2\n") == "X = 2\n"
    assert kept(text, "X = 1\n", "a.js") == "X = 1\n"


def test_a_function_with_another_name_takes_the_place_of_the_old_one() -> None:
    """Its import goes too, where the file does not use it any more."""
    prices = "def calc(x):\n    return round(x)\n\n\ndef net(x):\n    return x\n"
    orders = "from prices import calc\n\nX = 1\n\n\ndef total(a):\n    return calc(a)\n"
    documents = [FileText("prices.py", prices), FileText("orders.py", orders)]
    new = (
        "from prices import gross\n\n\ndef total(a):\n    return gross(a)\n",
        "def gross(x):\n    return round(x)\n",
    )
    answer = f"orders.py\n{fenced(new[0])}\nprices.py\n{fenced(new[1])}"
    first, second = read_answer(answer, documents)
    assert first.after == prices.replace("calc", "gross")
    assert second.after == orders.replace("calc", "gross")
    other = fenced("def gross(x):\n    return round(2 * x)\n")  # something new
    (change,) = read_answer(other, documents[:1])
    assert prices in change.after
    uses = orders + "\n\ndef more():\n    return calc(1)\n"
    (kept_import,) = read_answer(fenced(new[0]), [FileText("orders.py", uses)])
    assert "from prices import calc\n" in kept_import.after
