"""What the code assistant shows a model of a project: outlines, evidence, context, prompt."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from code_folders import needs_tree_sitter
from surroundings import HANG, environment

from tgr_local.code.edits import FileText, syntax
from tgr_local.code.reading import evidence, outline, prompt
from tgr_local.code.reading.context import Context, Wish, make_context

STACK = '''\
import util


class Stack(list):
    """A stack.

    More.
    """

    @property
    def top(self):
        return self[-1]

    def pop_many(self, n: int = 1) -> list:
        """Take n items."""
        return [self.pop() for _ in range(n)]


async def load(path, *, deep=False):
    def inner():
        return 1

    return inner()
'''
TEST = """\
from stack import Stack


def test_pop_many():
    stack = Stack([1, 2])
    assert stack.pop_many(2) == [2, 1]


def test_other():
    assert True
"""
UTIL = "def helper():\n    return 1\n"
FAR = "def unrelated_thing():\n    return 2\n"
OUTPUT = """\
Traceback (most recent call last):
  File "/tmp/copy-3/tests/test_stack.py", line 6, in test_pop_many
    assert stack.pop_many(2) == [2, 1]
AssertionError
"""
FILES = {
    "stack.py": STACK,
    "util.py": UTIL,
    "tests/test_stack.py": TEST,
    "deep/down/far.py": FAR,
    "README.md": "# It\n",
}


def count(text: str) -> int:
    return len(text.split())


def reader(files: dict[str, str]) -> Callable[[str], FileText | None]:
    return {path: FileText(path, text) for path, text in files.items()}.get


def context_of(
    task: str, output: str = "", *named: str, budget: int = 1000, **more: str
) -> Context:
    files = FILES | {path.replace("_DOT_", "."): text for path, text in more.items()}
    wish = Wish(task, output, named)

    return make_context(list(files), reader(files), wish, budget, count)


# ---- outlines ----


def test_the_outline_of_a_python_file():
    found = outline.outline(FileText("a/stack.py", STACK))
    assert outline.outline_text(found.definitions) == (
        "class Stack(list)  # A stack.\n"
        "    def top(self)\n"
        "    def pop_many(self, n: int=1) -> list  # Take n items.\n"
        "async def load(path, *, deep=False)"
    )
    lines = {one.name: (one.first, one.last) for one in found.functions}
    assert lines == {"Stack.top": (10, 12), "Stack.pop_many": (14, 16), "load": (19, 23)}


def test_a_name_that_is_twice_in_a_file_can_not_be_edited_by_name():
    text = "def f(): ...\ndef g(): ...\nif g():\n    def f(x): ...\n"
    found = outline.outline(FileText("a.py", text))
    assert [one.name for one in found.definitions] == ["f", "g", "f"]
    assert [one.name for one in found.functions] == ["g"]


@pytest.mark.parametrize("path", ["a.txt", "Makefile", "a.unknown"])
def test_other_files_have_no_outline_and_say_so(path: str):
    found = outline.outline(FileText(path, "x\n"))
    assert not found.definitions and found.problem.startswith("no outline of ")


def test_a_very_long_file_has_no_outline():
    long = "x = 1\n" * (outline.MAX_CHARACTERS // 6 + 1)
    assert "longer than" in outline.outline(FileText("a.py", long)).problem


@pytest.mark.parametrize("text", ["(" * 5000, "def f(:\n", "x = '\0'\n", "-" * 9000 + "1\n"])
def test_a_file_that_is_no_python_is_no_failure(text: str):
    assert not outline.outline(FileText("hostile.py", text)).functions


def test_without_tree_sitter_a_note_says_what_is_missing(monkeypatch):
    missing = "its outline needs tree-sitter: pip install 'tgr-local[code]'"
    monkeypatch.setattr(syntax, "problem", lambda: missing)
    assert outline.outline(FileText("w.rs", "fn f() {}\n")).problem == f"is rust; {missing}"
    assert outline.outline(FileText("w.py", "def f(x):\n    return (\n")).problem == (
        f"has a syntax error; {missing}"
    )


@needs_tree_sitter
def test_a_python_file_with_a_syntax_error_has_an_outline_but_no_exact_lines():
    found = outline.outline(FileText("b.py", "class A:\n    def f(self):\n        return (1\n"))
    assert [one.name for one in found.definitions] == ["A", "A.f"]
    assert not found.functions


SOURCES = {
    "a.js": ("// Adds.\nfunction add(a, b) {\n  return a + b\n}\nconst sub = (a) => a\n",
             "function add(a, b)  # Adds.\nsub = (a)", {"add": (2, 4), "sub": (5, 5)}),
    "a.ts": ("export class K {\n  private g(x: string): void {}\n}\n",
             "class K\n    private g(x: string): void", {"K.g": (2, 2)}),
    "a.go": ("package m\n\nfunc (s *S) Get() int {\n\treturn s.x\n}\n",
             "func (s *S) Get() int", {"Get": (3, 5)}),
    "a.rs": ("/// Gets.\npub fn get(x: u8) -> u8 {\n    x\n}\nimpl P {\n    fn h(&self) {}\n}\n",
             "pub fn get(x: u8) -> u8  # Gets.\nimpl P\n    fn h(&self)",
             {"get": (2, 4), "P.h": (6, 6)}),
    "a.c": ("/* adds */\nstatic int *add(int a)\n{\n  return 0;\n}\n",
            "static int *add(int a)  # adds", {"add": (2, 5)}),
    "A.java": ("class A {\n  int f(int a) {\n    return a;\n  }\n}\n",
               "class A\n    int f(int a)", {"A.f": (2, 4)}),
    "a.rb": ("class A < B\n  def f(x)\n    1\n  end\nend\n",
             "class A < B\n    def f(x)", {"A.f": (2, 4)}),
}  # fmt: skip


@needs_tree_sitter
@pytest.mark.parametrize("path", SOURCES)
def test_outlines_of_other_languages(path: str):
    text, shown, lines = SOURCES[path]
    found = outline.outline(FileText(path, text))
    assert outline.outline_text(found.definitions) == shown
    assert {one.name: (one.first, one.last) for one in found.functions} == lines


# ---- evidence ----


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('File "/tmp/x/lib/a.py", line 12, in f', ("lib/a.py", 12)),
        ("lib/a.py:7: AssertionError", ("lib/a.py", 7)),
        ("FAILED lib/a.py::test_x - assert 1", ("lib/a.py", 0)),
        ("    at f (/w/lib/b.js:3:5)", ("lib/b.js", 3)),
        ("lib\\a.py:9: in f", ("lib/a.py", 9)),
        ("a.py:9: in f", ("lib/a.py", 9)),
    ],
)
def test_places_of_an_output(text: str, place: tuple[str, int]):
    paths = evidence.Paths(["lib/a.py", "lib/b.js", "c.py"])
    assert evidence.places(text, paths) == [evidence.CodeLine(*place)]


def test_places_outside_of_the_project_are_none():
    paths = evidence.Paths(["case.py", "x/a.py", "y/a.py"])
    foreign = 'File "/usr/lib/python3.11/unittest/case.py", line 59\nother.py:3: x\na.py:3: x\n'
    assert evidence.places(foreign, paths) == []


LINKS = {"pkg": "src/pkg", "calc.py": "src/calc.py", "src/pkg/old": "lib", "out.py": "gone.py"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('File "/w/pkg/b.py", line 3', "src/pkg/b.py"),
        ('File "/w/calc.py", line 3', "src/calc.py"),
        ("pkg/old/c.py:3: ValueError", "lib/c.py"),
        ("pkg/b.py:3: ValueError", "src/pkg/b.py"),
        ("../w/pkg/b.py:3: ValueError", "src/pkg/b.py"),
        ('File "/w/src/pkg/b.py", line 3', "src/pkg/b.py"),
        ('File "/w/out.py", line 3', "out.py"),
    ],
)
def test_a_place_behind_a_link_is_that_of_the_file(text: str, path: str):
    files = ["src/pkg/b.py", "b.py", "src/calc.py", "lib/c.py", *LINKS]
    assert evidence.places(text, evidence.Paths(files, LINKS)) == [evidence.CodeLine(path, 3)]


def test_an_import_by_way_of_a_link_is_one_of_the_file():
    paths = evidence.Paths(["src/pkg/b.py", "src/calc.py", "lib/c.py", *LINKS], LINKS)
    python = "import calc\nfrom pkg import b\nfrom pkg.old.c import f\n"
    assert evidence.imported_files(FileText("t.py", python), paths) == [
        "src/calc.py", "src/pkg/b.py", "lib/c.py",
    ]  # fmt: skip
    endless = {"a": "b", "b": "a"}
    assert evidence.Paths(["a/x.py"], endless).resolve("a/x.py") == "a/x.py"
    deep = "/".join("d" * 40)
    assert evidence.Paths([f"{deep}/x.py", "x.py"], {deep: "."}).exact(f"{deep}/x.py") != "./x.py"


def test_a_path_is_found_by_its_end_as_a_plain_search_finds_it():
    draw = random.Random(3)

    def path() -> str:
        return "/".join(
            draw.choice(["a", "b", "c", "x.py", "y.py"]) for _ in range(draw.randint(1, 4))
        )

    for _ in range(2000):
        known, text = list(dict.fromkeys(path() for _ in range(draw.randint(1, 9)))), path()
        ends = [one for one in known if f"/{text}".endswith(f"/{one}")]
        longer = [one for one in known if one.endswith(f"/{text}")]
        expected = max(ends, key=len) if ends else longer[0] if len(longer) == 1 else ""
        assert evidence.Paths(known).resolve(text) == expected


def test_the_nearest_folder_is_that_of_a_plain_search():
    draw = random.Random(4)

    def path() -> str:
        return "/".join([*(draw.choice("abc") for _ in range(draw.randint(0, 4))), "x.py"])

    def distance(one: str, other: str) -> int:
        first, second = one.split("/")[:-1], other.split("/")[:-1]
        common = 0
        while common < min(len(first), len(second)) and first[common] == second[common]:
            common += 1
        return len(first) + len(second) - 2 * common

    for _ in range(2000):
        paths, wanted = [path() for _ in range(draw.randint(1, 5))], path()
        nearest = min(distance(wanted, one) for one in paths)
        assert evidence.Nearest(paths).steps(wanted) == nearest


def test_an_output_of_dots_is_searched_for_places_once():
    for part in (".", "1..", "a/", "x."):
        assert not evidence.places(part * ((1 << 20) // len(part)), evidence.Paths(["a.py"]))
    text = "....a.py:1 /w/a.py:2: E\n(a.py:3) a.py::test_b ~/a.py(4)"
    found = evidence.places(text, evidence.Paths(["a.py"]))
    assert [place.line for place in found] == [2, 3, 0, 4]


def test_an_output_that_names_many_of_many_files_is_read_at_once():
    paths = [f"d{i}/m{i}.py" for i in range(20_000)]
    output = "".join(f'File "/w/{path}", line 3\n' for path in paths)
    context = make_context(
        paths, lambda path: FileText(path, "x = 1\n"), Wish("Correct it.", output), 1000,
        lambda text: len(text) // 4, lambda path: "",
    )  # fmt: skip
    assert context.documents


def test_a_folder_of_links_and_of_files_of_one_name_is_read_at_once():
    n = 20_000
    paths = evidence.Paths([f"d{i}/x.py" for i in range(n)], {f"l{i}": f"d{i}" for i in range(n)})
    assert all(paths.exact(f"l{i}/x.py") == f"d{i}/x.py" for i in range(n))
    assert not any(paths.resolve(f"/w/other{i}/x.py") for i in range(n))


TESTS = [
    "tests/a.py", "test_a.py", "x/a_test.go", "a.spec.ts", "conftest.py", "run_tests.sh",
    "test-a.c", "CartTest.java", "TestCart.java", "cart_spec.rb", "CartSpec.scala",
    "cart.test.js", "CartTests.cs", "cartSpec.js",
]  # fmt: skip
NO_TESTS = [
    "testing.py", "contest.py", "latest/a.py", "attest.js", "spec.rb", "grid_spec.py",
    "job_spec.go", "task_spec.cc", "font-spec.ts", "openapi-spec.yaml", "TestData.py",
    "TestBed.ts", "UnitTest.h", "Latest.java",
]  # fmt: skip


@pytest.mark.parametrize("path", TESTS + NO_TESTS)
def test_files_of_tests_are_known_by_their_names(path: str):
    assert evidence.is_test(path) == (path in TESTS)


def test_imports_of_a_document():
    paths = evidence.Paths(["pkg/__init__.py", "pkg/a.py", "pkg/b/c.py", "src/deep.py", "web/x.ts"])
    python = "import pkg.a, deep\nfrom .b import c\nfrom pkg import nothing\nimport os\n"
    found = evidence.imported_files(FileText("pkg/z.py", python), paths)
    assert sorted(found) == ["pkg/__init__.py", "pkg/a.py", "pkg/b/c.py", "src/deep.py"]
    script = "import { x } from './x'\nconst y = require('missing')\n"
    assert evidence.imported_files(FileText("web/main.ts", script), paths) == ["web/x.ts"]


# ---- context ----


def how(context: Context) -> dict[str, str]:
    return {one.path: one.how for one in context.shown}


@pytest.mark.parametrize(
    ("path", "unit"), [("m.py", "."), ("m.py", " "), ("m.js", "import "), ("m.js", "from '")]
)
def test_imports_of_a_hostile_document_take_no_longer_than_its_length(path: str, unit: str):
    """In a process of its own: before, a megabyte took hours."""
    code = (
        "from tgr_local.code.reading import evidence; from tgr_local.code.edits import FileText\n"
        f"text = 'from ' + {unit!r} * ((1 << 20) // {len(unit)})\n"
        f"print(evidence.imported_files(FileText({path!r}, text), evidence.Paths(['a.py'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), timeout=HANG, capture_output=True
    )
    assert done.stdout == b"[]\n", done.stderr


def test_a_script_that_runs_the_tests_is_not_what_the_task_points_to():
    files = {"calc.sh": "echo 1\n", "check.sh": "sh calc.sh | grep 2\n"}
    wish = Wish("Make check.sh pass.", script="check.sh")

    context = make_context(list(files), reader(files), wish, 1000, count)
    assert [one.path for one in context.documents] == ["calc.sh"]


@pytest.mark.parametrize("link", ["link.py", "folder"])
def test_a_file_behind_a_link_may_be_changed(link: str):
    """Under its own name, and it is shown once."""
    calc = "def f():\n    return 1\n"
    test = "from link import f\ndef test(): assert f() == 2\n"
    files = {"src/calc.py": calc, "test_a.py": test, link: calc}
    links = {"link.py": "src/calc.py"} if link == "link.py" else {"folder": "src"}
    where = "link.py" if link == "link.py" else "folder/calc.py"
    output = f'File "/w/test_a.py", line 2\nFile "/w/{where}", line 2\n'
    wish = Wish("Make the failing test pass.", output, links=links)
    refused = {link: "it is a link"}.get
    context = make_context(
        list(files), reader(files), wish, 1000, count, lambda path: refused(path, "")
    )
    assert [one.path for one in context.documents] == ["src/calc.py"] and not context.refused


def test_the_file_under_a_failing_test_is_shown_whole_and_the_test_with_it():
    context = context_of("Make the failing test pass.", OUTPUT)
    assert [one.path for one in context.documents] == ["stack.py"]
    assert how(context)["stack.py"] == "whole"
    (test,) = [one for one in context.shown if one.path == "tests/test_stack.py"]
    assert test.functions == ("test_pop_many",) and not test.changeable
    assert "test_other" not in context.text
    assert "`util.py` (outline):\ndef helper()\n" in context.text
    assert dict(context.left_out) == {"README.md": "no code"}


def test_a_test_that_the_output_prints_up_to_its_failure_is_not_shown_again():
    lines = "".join(f">   {line}\n" for line in TEST.split("\n")[3:6])
    context = context_of("Repair it.", f"{lines}\ntests/test_stack.py:6: AssertionError\n")
    assert "tests/test_stack.py" not in how(context)
    assert "shows what failed" in dict(context.left_out)["tests/test_stack.py"]


def test_only_named_files_may_be_changed():
    context = context_of("Change helper.", OUTPUT, "util.py")
    assert [one.path for one in context.documents] == ["util.py"]
    assert how(context)["stack.py"] == "outline"


def test_a_file_that_the_task_mentions_is_shown():
    assert [one.path for one in context_of("speed up unrelated_thing").documents] == [
        "deep/down/far.py"
    ]
    assert context_of("look at far.py").documents[0].path == "deep/down/far.py"


def test_an_outline_says_why_its_file_may_not_be_changed():
    refused = {"util.py": "it is read-only"}
    wish = Wish("Change helper in util.py and pop_many in stack.py.", "", ())
    read = reader(FILES)
    context = make_context(list(FILES), read, wish, 1000, count, lambda path: refused.get(path, ""))
    (shown,) = (one for one in context.shown if one.path == "util.py")
    assert (shown.how, shown.why) == ("outline", "named in the task; it is read-only")
    assert context.refused == ("it is read-only",)


def test_without_any_hint_all_code_but_tests_may_be_changed():
    documents = context_of("make it better").documents
    assert sorted(one.path for one in documents) == ["deep/down/far.py", "stack.py", "util.py"]


def test_every_file_is_shown_or_left_out_with_a_reason():
    for budget in (15, 60, 100, 200, 1000):
        context = context_of("Repair pop_many.", OUTPUT, budget=budget)
        names = [one.path for one in context.shown] + [path for path, _ in context.left_out]
        assert sorted(names) == sorted(FILES)
        assert context.n_tokens <= budget
        assert count(context.text) <= budget


def test_of_a_file_that_is_too_long_the_functions_concerned_are_shown():
    body = "".join(f"def f{i}(x):\n    y = x + {i}\n    return y * y\n\n\n" for i in range(40))
    context = context_of("f17 must return y", "", "big.py", budget=200, big_DOT_py=body)
    (shown,) = [one for one in context.shown if one.path == "big.py"]
    assert (shown.how, shown.functions) == ("functions", ("f17",))
    assert "def f17(x):\n    y = x + 17\n    return y * y\ndef f18(x)\n" in context.text
    assert context.documents[0].text == body
    assert [one.name for one in context.functions] == ["f17"]
    # lines that Python and an edit would count in different ways
    with pytest.raises(ValueError, match="no function in it fits that the task names"):
        context_of("f17 must return y", "", "big.py", budget=200, big_DOT_py=f"{body}\f\n")


def test_a_named_file_that_does_not_fit_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"big\.py has 400 tokens, .* raise context_tokens"):
        context_of("go", "", "big.py", budget=100, big_DOT_py="x = 1 #\n" * 100)


def test_a_fence_is_longer_than_those_of_the_documents():
    context = context_of("go", "", "a.py", a_DOT_py='"""\n````text\n"""\n')
    assert context.fence == "`````"
    assert context.text.startswith("`a.py`:\n`````python\n")


# ---- prompt ----


def test_the_user_message():
    block = prompt.file_block("calc.py", "x = 1", "```")
    files, output = f"{block}\n", "The tests fail:\n```\nAssertionError\n```\n"
    assert prompt.user_message(block, "Fix it.", "AssertionError") == f"{files}Fix it.\n\n{output}"
    assert prompt.user_message(block, "Add it.") == f"{files}Add it.\n"


def test_rounds_share_the_beginning_of_their_messages():
    first = prompt.conversation("user")
    second = prompt.conversation("user", "answer", "E\n```` fence")
    assert second[: len(first)] == first
    assert [one["role"] for one in second[1:]] == ["assistant", "user"]
    assert "`````\nE\n```` fence\n`````\n" in second[-1]["content"]
    unused = prompt.conversation("user", "answer", problem="it changes nothing")
    assert unused[-1]["content"].startswith("That answer cannot be used: it changes nothing.\n\n")
    assert unused[-1]["content"].endswith("Write all edits anew, corrected.\n")


@pytest.mark.parametrize("most", [20, 50, 400])
def test_the_tail_of_an_output_keeps_its_end_and_says_what_is_missing(most: int):
    output = "".join(f"line {i}\n" for i in range(1000))
    text = prompt.tail(output, most, count)
    assert count(text) <= most and text.endswith("line 999\n")
    first = re.match(r"\[\.\.\. (\d+) lines before\]\nline (\d+)\n", text)
    assert first and first[1] == first[2]


def test_a_short_output_stays_and_a_long_line_is_cut():
    assert prompt.tail("\na\r\nb\n\n", 20, count) == "a\nb\n"
    assert prompt.tail("", 20, count) == ""
    assert len(prompt.tail("x" * 100_000, 50, len)) < 100


@needs_tree_sitter
@pytest.mark.parametrize("language", ["python", "go", "c", "javascript"])
def test_a_text_full_of_errors_has_no_definitions_rather_than_no_end(language: str):
    assert list(syntax.definitions("<!--" * 20_000, language)) == []


# ---- files that are used, called, or named ----

NO_NAME = """\
ImportError while importing test module '/w/tests/test_overdue.py'.
tests/test_overdue.py:1: in <module>
    from loans import overdue
E   ImportError: cannot import name 'overdue' from 'loans' (/w/loans.py)
"""
LOANS = {
    "loans.py": "import dates\n\n\ndef lend(book):\n    return dates.day(book)\n",
    "dates.py": "def day(x):\n    return x + units()\n\n\ndef units():\n    return 1\n",
    "tests/test_overdue.py": "from loans import overdue\n\n\ndef test_overdue():\n"
    "    assert overdue(3) == 'late'\n",
}


def made(files: dict[str, str], task: str, output: str = "", budget: int = 2000) -> Context:
    wish = Wish(task, output)
    return make_context(list(files), reader(files), wish, budget, lambda text: len(text) // 4)


def changeable(context: Context) -> list[str]:
    return [one.path for one in context.documents]


@pytest.mark.parametrize("task", ["Implement what tests/test_overdue.py describes.", "Go on."])
def test_a_test_that_cannot_begin_is_shown_whole_and_so_is_one_that_the_task_names(task: str):
    context = made(LOANS, task, NO_NAME)
    assert how(context)["tests/test_overdue.py"] == "whole"
    assert "assert overdue(3) == 'late'" in context.text
    assert changeable(context)[0] == "loans.py" and "tests/test_overdue.py" not in (
        changeable(context)
    )
    named = made(LOANS, "Implement what tests/test_overdue.py describes.")
    (test,) = [one for one in named.shown if one.path == "tests/test_overdue.py"]
    assert (test.how, test.why) == ("whole", "a test that the task names")


def test_of_a_test_that_is_too_long_as_many_functions_as_fit_are_shown():
    body = "".join(f"def test_{i}():\n    assert overdue({i}) == {i}\n\n\n" for i in range(90))
    files = LOANS | {"tests/test_overdue.py": f"from loans import overdue\n\n\n{body}"}
    context = made(files, "Implement what tests/test_overdue.py describes.", budget=600)
    (test,) = [one for one in context.shown if one.path == "tests/test_overdue.py"]
    assert test.how == "functions" and 5 < len(test.functions) < 90


def test_a_module_that_is_not_there_yet_can_be_written():
    files = {path: text for path, text in LOANS.items() if path != "loans.py"}
    output = NO_NAME.replace(
        "cannot import name 'overdue' from 'loans' (/w/loans.py)", "No module named 'loans'"
    )
    context = made(files, "Write loans.py as tests/test_overdue.py describes it.", output)
    assert changeable(context) == ["loans.py"] and context.documents[0].text == ""
    assert "`loans.py` (empty; write it):" in context.text
    foreign = made(files, "Make the tests pass.", output.replace("'loans'", "'requests'"))
    assert "requests.py" not in changeable(foreign)
    paths = ["src/shop/a.py", "tests/shop.test.js"]
    said = "No module named 'shop.prices'\nCannot find module '../lib/x'\nRequire stack:\n"
    assert evidence.missing_files(f"{said}- tests/shop.test.js\n", paths, "") == [
        "src/shop/prices.py", "lib/x.js",
    ]  # fmt: skip


def test_files_that_use_what_the_task_names_are_opened():
    files = {
        "shop/prices.py": "def calc(x):\n    return x\n",
        "shop/deep/orders.py": "from shop import prices\n\n\ndef total():\n"
        "    return prices.calc(1)\n",
        "other.py": "def calculate():\n    return 'recalc'\n",
    }
    for task in ("Rename calc to net_price.", "The function calc must round.", "`calc` rounds."):
        assert changeable(made(files, task)) == ["shop/prices.py", "shop/deep/orders.py"], task
    # a word that may be none of the code
    assert changeable(made(files, "Let it calc well.")) == ["shop/prices.py"]


def test_a_module_that_no_traceback_names_is_opened_where_the_failing_test_calls_it():
    output = 'File "/w/tests/test_a.py", line 5, in test_a\nAssertionError\n'
    files = LOANS | {
        "tests/test_a.py": "from loans import lend\n\n\ndef test_a():\n    assert lend(1) == 5\n",
        "dates.py": LOANS["dates.py"] + "\n\nimport units, never\n",
        "units.py": "def units():\n    return 1\n",
        "never.py": "def never():\n    return 1\n",
    }
    context = made(files, "Make the failing tests pass.", output)
    assert changeable(context) == ["loans.py", "dates.py", "units.py"]
    assert how(context)["never.py"] == "outline"


def test_the_code_beside_a_header_is_opened():
    files = {
        "tests/test_cart.c": '#include "../src/cart.h"\nint main(void) {\n  assert(add(1));\n}\n',
        "src/cart.h": "int add(int a);\n",
        "src/cart.c": '#include "cart.h"\nint add(int a) { return a; }\n',
        "src/other.c": "int other(int a) { return a; }\n",
    }
    output = "test: tests/test_cart.c:3: main: Assertion `add(1)' failed.\n"
    assert {"src/cart.h", "src/cart.c"} <= set(changeable(made(files, "Mend it.", output)))
    assert "src/other.c" not in changeable(made(files, "Mend it.", output))


def test_settings_that_a_failing_test_reads_are_opened():
    files = {
        "app.py": "def rates():\n    return load('conf/rates.yaml')\n",
        "test_app.py": "from app import rates\n\n\ndef test_rates():\n    assert rates() == 3\n",
        "conf/rates.yaml": "rate: 2\n",
        "conf/other.yaml": "rate: 2\n",
    }
    output = "test_app.py:5: AssertionError\n"
    assert changeable(made(files, "Make the tests pass.", output)) == ["app.py", "conf/rates.yaml"]
    assert changeable(made(files, "Correct other.yaml.")) == ["conf/other.yaml"]


# ---- tests of JavaScript ----

CART_TEST = """\
const { test, describe, it } = require("node:test");
const { Cart } = require("../cart");

function made() {
  return new Cart();
}

test("adds 1.5 of a thing", () => {
  assert.equal(made().add(1.5), 1.5);
});

describe("total", () => {
  it.only(`sums`, async function () {
    assert.equal(made().total(), 0);
  });
  it("todo");
});
"""


@needs_tree_sitter
@pytest.mark.parametrize("path", ["cart.test.js", "cart.test.ts", "cart.test.tsx"])
def test_tests_of_javascript_are_definitions(path: str):
    found = outline.outline(FileText(path, CART_TEST))
    assert outline.outline_text(found.definitions) == (
        'function made()\ntest("adds 1.5 of a thing")\ndescribe("total")\n    it.only(`sums`)'
    )
    lines = {one.name: (one.first, one.last) for one in found.functions}
    assert lines == {"made": (4, 6), "adds 1 5 of a thing": (8, 10), "total.sums": (13, 15)}


@needs_tree_sitter
@pytest.mark.parametrize(
    "output",
    [
        "test at tests/cart.test.js:13:3\n✖ sums (0.5ms)\n",
        "    at Object.<anonymous> (/w/tests/cart.test.js:14:12)\n",
        "not ok tests/cart.test.js::total > sums\n",
    ],
)
def test_a_failing_test_of_javascript_is_shown(output: str):
    files = {
        "cart.js": "class Cart {\n  total() { return 1; }\n}\nmodule.exports = { Cart };\n",
        "tests/cart.test.js": CART_TEST,
    }
    context = made(files, "Make the failing test pass.", output)
    (test,) = [one for one in context.shown if one.path == "tests/cart.test.js"]
    assert test.functions == ("total.sums",) and not test.changeable
    assert "it.only(`sums`, async function () {\n" in context.text and "adds" not in context.text
    assert changeable(context) == ["cart.js"]
