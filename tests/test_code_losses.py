"""Edits that take away what nobody asked for are none; what has no parser is not said to parse."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import sandboxes
from code_folders import needs_tree_sitter
from fake_coder import CALC, RIGHT, Coder, answer, make_verdict
from fake_coder import carry_out as solved_with

from tgr_local.code.edits import Change, EditError, FileText, syntax
from tgr_local.code.folder.copies import Copies
from tgr_local.code.folder.project import Project
from tgr_local.code.judging.candidate import syntax_error
from tgr_local.code.judging.comments import living
from tgr_local.code.judging.judge import check
from tgr_local.code.judging.losses import loss
from tgr_local.code.writing.natural import read_answer
from tgr_local.system.errors import TgrError
from tgr_local.system.sandbox import commands

NOTES = "# Notes\n\nFirst we measure.\n\nThen we decide what to do next.\n\nAt last we write.\n"
CODE = {
    "app.js": "function highest(scores) {\n  let top = scores[0];\n  for (const s of scores) "
    "if (s < top) top = s;\n  return top;\n}\nmodule.exports = { highest };\n",
    "main.go": "package main\n\nfunc highest(s []int) int {\n\ttop := s[0]\n\tfor _, x := range s "
    "{\n\t\tif x < top {\n\t\t\ttop = x\n\t\t}\n\t}\n\treturn top\n}\n",
}
CONSTANTS = "LIMIT = 3\nNAMES = ['a', 'b']\nTABLE = {1: 2}\n"
C = "int add(int a, int b) {\n    return a + b; /* the sum */\n}\n"
SCRIPT = "cd build\nmake all install\necho done >> log\n"
SELECT = "SELECT name, age FROM people WHERE age > 3;\n"
FOREIGN = "def total(values):\n    result = 0\n    for one in values:\n        result += one\n" \
          "    return result\n"  # fmt: skip


@pytest.mark.parametrize("path", ["notes.md", "Makefile", "q.sql", "run.sh", "a.py", "d.json"])
def test_an_edit_that_empties_a_file_is_none_unless_the_task_says_so(path: str):
    for after in ("", "\n", "  \n\n"):
        edit = [Change(path, "a\n", after)]
        assert "empties" in loss(edit, "Correct the spelling.")
        assert "empties" in loss(edit, "Remove the last line.")
        assert loss(edit, f"Delete everything in {path}.") == ""
        assert loss(edit, f"Empty {path}.") == ""
    assert loss([Change(path, "", "a\n")], "Write it.") == ""


def test_a_task_about_a_part_that_is_empty_permits_no_empty_file():
    edit = [Change("notes.md", NOTES, "")]
    for task in (
        "Remove the empty line.", "remove blank lines", "Fix everything.", "Make the text clearer.",
        "Correct the contents of the table.", "Remove all comments from the file.",
        "Remove all lines with TODO.", "delete everything after line 5", "Clear the list.",
        "Fix the case where the file is empty.", "Leere Zeilen löschen.", "Rewrite the whole file.",
        "truncate the text to 80 characters",
    ):  # fmt: skip
        assert "empties" in loss(edit, task), task
    for task in (
        "Empty the file.", "clear notes.md", "Remove everything from notes.md.", "delete all lines",
        "Delete the contents of the file.", "notes.md should be empty", "Make it an empty file.",
        "Leere die Datei.", "vider le fichier",
    ):  # fmt: skip
        assert loss(edit, task) == "", task


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("app.js", CODE["app.js"], "module.exports = { highest };\n"),
        ("main.go", CODE["main.go"], "package main\n\n"),
        ("const.py", CONSTANTS, FOREIGN),
        ("notes.md", NOTES, FOREIGN),
        ("notes.md", NOTES, "# Notes\n\nFirst we measure.\n"),
        ("page.html", "<html><body><p>hi there</p></body></html>\n", "{}\n"),
        ("a.py", CALC, "def add(a, b):\n    pass\n\n\ndef sub(a, b):\n    return a - b\n"),
        ("a.py", CALC, CALC.replace("return a - b", "raise NotImplementedError")),
        ("a.py", CALC, f'"""\n{CALC}"""\n'),
        ("a.py", CALC, CALC.replace("    return a - b", '    """The sum."""')),
        ("a.py", CALC, CALC.replace("return a - b", "return None")),
        ("a.py", CALC, CALC.replace("return a - b", "return", 1)),
        ("a.py", CALC, CALC.replace("return a - b", "return\n    return a - b", 1)),
        ("a.py", CALC, CALC.replace("return a - b", "if 0:\n        return a - b", 1)),
        ("a.py", CALC, f"OLD = '''{CALC}'''\n"),
        ("a.py", CALC, f"raise SystemExit\n\n{CALC}"),
        *(
            ("a.py", CALC, f"{condition}:\n{textwrap.indent(CALC, '    ')}")
            for condition in (
                "if False",
                "if 0",
                "if not 1",
                "if x and False",
                "while None",
                "if True:\n    pass\nelse",
            )
        ),
        ("app.js", CODE["app.js"], f"/*\n{CODE['app.js']}*/\n"),
        ("main.go", CODE["main.go"], textwrap.indent(CODE["main.go"], "// ", bool)),
        ("calc.c", C, f"/* {C} */\n"),
        ("calc.c", C, f"#if 0\n{C}#endif\n"),
        ("notes.md", NOTES, f"<!--\n{NOTES}-->\n"),
        ("run.sh", SCRIPT, textwrap.indent(SCRIPT, "# ", bool)),
        ("q.sql", SELECT, f"/* {SELECT} */"),
        ("q.sql", SELECT, f"-- {SELECT}"),
        ("app.js", CODE["app.js"], f"if (false) {{\n{CODE['app.js']}}}\n"),
        ("run.sh", SCRIPT, f": <<'X'\n{SCRIPT}X\n"),
        ("run.rb", SCRIPT, f"=begin\n{SCRIPT}=end\n"),
    ],
)
def test_an_edit_that_leaves_little_is_none_unless_the_task_says_so(
    path: str, before: str, after: str
):
    assert loss([Change(path, before, after)], "Correct it.")
    assert loss([Change(path, before, after)], "Rewrite it.") == ""


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("notes.md", NOTES, NOTES.replace("measure", "count").replace("decide", "choose")),
        ("notes.md", NOTES, NOTES.replace("At last we write.\n", "")),
        ("notes.md", NOTES, f"{NOTES}\nMore.\n"),
        ("VERSION", "1.2.3\n", "2.0.0\n"),
        ("conf.yaml", "host: a\nport: 80\n", "host: b\nport: 90\n"),
        ("calc.py", CALC, RIGHT),
        ("a.py", '"""Long text.\n\nMore and more and more of it, word by word, line by line.\n"""'
         "\n\n\ndef f(x):\n    return x\n", "def f(x):\n    return x + 1\n"),
        ("a.py", "def f(xs):\n    n = 0\n    for x in xs:\n        n += x\n    return n\n",
         "def f(xs):\n    return sum(xs)\n"),
        ("p.py", "class P:\n    def f(self): ...\n", "class P:\n    def g(self): ...\n"),
        ("bad.py", "def f(:\n", "def f():\n    pass\n"),
        ("c.py", "class C:\n    def __exit__(self, *error):\n        return True\n",
         "class C:\n    def __exit__(self, *error):\n        return None\n"),
        ("w.py", "def f(q):\n    while True:\n        q.get()\n",
         "def f(q):\n    while True:\n        q.get(timeout=1)\n"),
        ("app.js", "open('http://a.b/c'); // a page of the net, and no other one\n",
         "open('http://a.b/d'); // a page of the net, and no other one\n"),
        ("main.go", CODE["main.go"], f"// {NOTES.split('.')[0][9:]}\n{CODE['main.go']}"),
    ],
)  # fmt: skip
def test_a_change_of_parts_is_an_edit(path: str, before: str, after: str):
    assert loss([Change(path, before, after)], "Correct it.") == ""


def test_a_function_may_return_none_where_the_task_says_so():
    edit = [Change("a.py", CALC, CALC.replace("return a - b", "return None", 1))]
    assert "leaves add in a.py without a body" in loss(edit, "Correct it.")
    assert loss(edit, "add must return None.") == ""


def test_what_can_run_is_code_and_its_strings():
    for path, text, left in (
        ("a.go", 'x := "http://a" // b', 'x := "http://a"'),
        ("a.js", "f(`// ${a}`) /* b */", "f(`// ${a}`)"),
        ("a.sh", "echo ${#x} $# a#b # c", "echo ${#x} $# a#b"),
        ("a.md", "it's <!-- b\n--> \"c", "it's   \"c"),
        ("a.rs", "fn f<'a>(x: &'a str) {} // b", "fn f<'a>(x: &'a str) {}"),
        ("a.txt", "// a # b", "// a # b"),
        ("a.c", '"/*', '"/*'),
        ("a.c", "a /* b", "a"),
        ("a.go", 'if false {\n f("}") { b }\n}\nc()', "\nc()"),
        ("a.c", "if (0) { x; } else { y; }", " else { y; }"),
        ("a.js", "if (0 + x) { y }", "if (0 + x) { y }"),
        ("a.js", "while (false) { a", ""),
    ):
        assert living(path, text).rstrip() == left


def test_the_table_says_why_there_is_no_edit_and_nothing_is_tested(monkeypatch):
    judged: list[str] = []

    def judge(changes: object, cancel: object) -> object:
        judged.append("")
        return make_verdict(True, 1, 0, 0, "")

    gutted = answer("def add(a, b):\n    pass\n\n\ndef sub(a, b):\n    pass\n")
    outcome = solved_with(
        monkeypatch.setattr, Coder([gutted]), "Correct it.", by=judge  # type: ignore[arg-type]
    )  # fmt: skip
    assert len(judged) == 1 and outcome.best is None  # the project as it is
    assert "without a body" in outcome.ranked[0].problem


# ---- answers without an end ----


@pytest.mark.parametrize(("path", "text"), [("notes.md", NOTES), *CODE.items()])
def test_a_file_does_not_lose_its_tail_to_an_answer_that_was_cut_off(path: str, text: str):
    document = FileText(path, text)
    lines = text.splitlines(keepends=True)
    cut = f"{path}\n```\n" + "".join(lines[:-2]).replace("top", "best")
    with pytest.raises(EditError, match="--max-tokens"):
        read_answer(cut, [document], is_cut=True)


def test_python_keeps_what_a_cut_answer_did_not_come_to():
    long = "def f(x):\n    a = x\n    b = 2\n    return a + b\n"
    document = FileText("calc.py", f"{CALC}\n\n{long}")
    first = RIGHT.split("\n\n\n")[0]
    cut = f"calc.py\n```python\n{first}\n\n\ndef f(x):\n    a = x\n    b = 3\n"
    (change,) = read_answer(cut, [document], is_cut=True)
    assert "return a + b\n\n\ndef sub" in change.after and long in change.after
    with pytest.raises(EditError, match="has no end"):
        read_answer("calc.py\n```python\ndef f(x):\n    a = x\n", [document], is_cut=True)


@pytest.mark.parametrize(
    "line",
    [
        "# (unchanged)", "# same as before", "// unchanged code", "# keep the rest as is",
        "<!-- existing content -->", "... (rest of file) ...", "[... rest of the document ...]",
        "# rest of your existing code", "<rest of file>", "(rest of the document unchanged)",
        "# No changes below", "# ... rest of the code", "/* ... */",
    ],
)  # fmt: skip
def test_a_line_that_stands_for_others_is_no_edit(line: str):
    lines = [f"This is line {n} of the notes.\n" for n in range(10)]
    text = "".join([*lines[:8], f"{line}\n"]).replace("line 3", "row 3")
    with pytest.raises(EditError, match="leaves out lines"):
        read_answer(f"notes.md\n```\n{text}```\n", [FileText("notes.md", "".join(lines))])
    for honest in ("the rest of the document", "unchanged", "- existing code", "# Existing users"):
        whole = "".join([*lines, f"{honest}\n"])
        (change,) = read_answer(
            f"notes.md\n```\n{whole}```\n", [FileText("notes.md", "".join(lines))]
        )
        assert change.after == whole


CODE_OF_STACK = (
    "class Stack:\n    def push(self, x):\n        self.items.append(x)\n\n    def pop(self):\n"
    "        self.top -= 1\n"
)
DOCUMENTED = CODE_OF_STACK.replace("        self", '        """Puts it on top."""\n        self')


@pytest.mark.parametrize(
    "task",
    [
        "Add docstrings to stack.py.",
        "Please add a docstring to Stack.push",
        "Add missing docstrings",
        "Improve the docstring of `push`.",
        "Write Google-style docstrings for all public methods!",
    ],
)
def test_a_task_about_docstrings_changes_no_code(task: str):
    assert loss([Change("stack.py", CODE_OF_STACK, DOCUMENTED)], task) == ""
    other = DOCUMENTED.replace("append", "insert")
    why = "it changes code of stack.py, and the task is about docstrings"
    assert loss([Change("stack.py", CODE_OF_STACK, other)], task) == why
    assert loss([Change("stack.py", CODE_OF_STACK, CODE_OF_STACK + "\n\nx = 1\n")], task) == why


@pytest.mark.parametrize(
    "task",
    [
        "Add docstrings and fix push.",
        "Fix push as its docstring says.",
        "push should do what its docstring says.",
        "Add a docstring parser.",
        "Add docstrings to push. Rename pop to take.",
        "Write a function that counts docstrings.",
    ],
)
def test_a_task_about_more_may(task: str):
    other = DOCUMENTED.replace("append", "insert")
    assert loss([Change("stack.py", CODE_OF_STACK, other)], task) == ""


def test_a_docstring_may_be_a_body():
    code = "class A:\n    pass\n\n\ndef f():\n    'Old.'\n    pass\n"
    after = "class A:\n    'New.'\n\n\ndef f():\n    'New.'\n"
    assert loss([Change("a.py", code, after)], "Update all docstrings") == ""


def test_conditions_of_any_depth_are_read():
    deep = "not " * 900
    body = "".join(f"    total += step_{i}(scores)\n" for i in range(6))
    before = f"def add(scores):\n    total = 0\n{body}    return total\n"
    for start in (
        f"    if {deep}1:\n        return 0\n",
        f"    raise NotImplementedError({deep}x)\n",
    ):
        after = before.replace("    total = 0\n", f"{start}    total = 0\n")
        lost = bool(loss([Change("a.py", before, after)], "Make it faster."))
        assert lost == start.startswith("    raise")


# ---- what is parsed ----


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("a.json", '{"a": 1}', '{"a": 1'),
        ("a.ipynb", '{"cells": []}', "[]"),
        ("a.ipynb", '{"cells": []}', '{"cells": 3}'),
        ("a.py", "x = 1\n", "x = = 1\n"),
    ],
)
def test_an_edit_that_breaks_the_syntax_of_a_known_language_is_not_tested(
    path: str, good: str, bad: str
):
    assert path in syntax_error([Change(path, good, bad)])
    assert path in syntax_error([Change(path, "", bad)])
    assert not syntax_error([Change(path, bad, bad + " ")])  # as before
    assert not syntax_error([Change(path, good, good + "\n")])


JS = "function add(a, b) {\n  return a - b;\n}\n\nfunction sub(a, b) {\n  return a - b;\n}\n"


@needs_tree_sitter
@pytest.mark.parametrize(
    ("path", "old", "new", "line"),
    [
        ("a.js", JS, JS.replace("a - b", "a - - ;", 1), 2),
        ("a.js", JS, JS.replace("sub(a, b)", "sub(a, b"), 5),
        ("a.ts", "let a: number = 1\n", "let a: = 1\n", 1),
        ("a.go", "package a\n\nfunc f() {}\n", "package a\n\nfunc f( {}\n", 3),
        ("a.rs", "fn f() -> u8 { 1 }\n", "fn f() -> u8 { 1 + }\n", 1),
        ("a.rb", "def f(x)\n  x\nend\n", "def f(x\n  x\nend\n", 1),
        ("A.java", "class A {\n  int x;\n}\n", "class A {\n  int = x;\n}\n", 2),
        ("a.php", "<?php\nf(1);\n", "<?php\nf(1 1);\n", 2),
        ("a.lua", "return 1\n", "return = 1\n", 1),
        ("a.scala", "object A { val x = 1 }\n", "object A { val = = 1 }\n", 1),
    ],
)  # fmt: skip
def test_an_edit_that_does_not_parse_is_refused_with_the_line(
    path: str, old: str, new: str, line: int
):
    assert syntax_error([Change(path, old, new)]) == f"{path}:{line}: invalid syntax"
    assert not syntax_error([Change(path, old, old.replace("1", "2"))])
    assert not syntax_error([Change(path, new, new + "\n")])  # it may be new syntax
    assert not syntax_error([Change(path, "", new)])  # a new file: nothing tells


@needs_tree_sitter
@pytest.mark.parametrize(
    ("path", "old", "line"),
    [
        ("a.jsx", "let a = <p/>;\n", "a = <p>terms & conditions of AT&T</p>;"),
        ("a.tsx", "let a = <p/>;\n", "a = <p>\n  terms & &amp;\n</p>;"),
        ("a.ts", "let a = 1;\n", "type A<in out T> = T;"),
        ("a.ts", "let a = 1;\n", 'export type * from "x";'),
        ("a.rs", "fn f() {}\n", 'unsafe extern "C" { safe fn y(); }'),
        ("a.rb", "a = 1\n", 'def f = puts "a"'),
        ("A.java", "class A {}\n", "class B extends A { B() { int x = 1; super(x); } }"),
        ("A.java", "class A {}\n", "import module java.base;"),
        ("A.scala", "object A {}\n", "given [T](using A[T]): B[T] with {}"),
    ],
)  # fmt: skip
def test_valid_syntax_that_a_parser_does_not_know_is_not_refused(path: str, old: str, line: str):
    assert not syntax_error([Change(path, old, f"{old}{line}\n")])


@needs_tree_sitter
def test_what_tree_sitter_may_not_know_is_tested():
    """Macros of C; a file whose parsing may take seconds; an error in a line that stays."""
    c = "int f(void) { return 1; }\n"
    assert not syntax_error([Change("a.c", c, c + "EACH(x, list) { f(x) }\n")])
    long = JS * 1000
    assert not syntax_error([Change("a.js", long, long + "f( = ;\n")])
    assert syntax.has_error(JS.replace("a - b;", "a -", 1), "javascript")
    assert not syntax_error([Change("a.js", JS, JS.replace("a - b;", "a -", 1))])


def test_without_tree_sitter_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(syntax, "problem", lambda: "not installed")
    assert not syntax_error([Change("a.js", JS, JS.replace("a - b", "a - - ;", 1))])


def test_only_what_has_a_parser_is_said_to_parse(tmp_path):
    best = sandboxes.strongest(commands.obstacle)
    files = {
        "n.md": "x\n",
        "Makefile": "x\n",
        "n.ipynb": json.dumps({"cells": []}),
        "b.ipynb": "[]",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def said(*paths: str) -> str:
        with Copies(Project(tmp_path)) as copies:
            place = copies.make(in_place=True)
            return check(place, paths, python=sys.executable, backend=best).summary

    assert said("n.md", "Makefile") == "not checked"
    assert said("n.ipynb") == "1 of 1 parse"
    assert said("n.ipynb", "n.md") == "1 of 1 parse, 1 not checked"
    assert said("b.ipynb") == "0 of 1 parse"


# ---- a model that has learnt functions ----


def learnt(name: str = "tgr-mini-code") -> Coder:
    coder = Coder([answer(RIGHT)])
    coder.metadata = {"tgr.edit_format": "function", "general.name": name}
    return coder


def test_the_embedded_model_refuses_what_it_has_not_learnt(monkeypatch):
    documents = {
        "notes.md": FileText("notes.md", NOTES),
        "const.py": FileText("const.py", CONSTANTS),
    }
    for path in documents:
        coder = learnt()
        with pytest.raises(TgrError, match=f"{path} has no Python function; name another model"):
            solved_with(monkeypatch.setattr, coder, f"Correct {path}.", tests="",
                        read=documents.get, paths=[path], named_paths=(path,))  # fmt: skip
        assert not coder.prompts
    with pytest.raises(TgrError, match=r"no tests are named .*-m MODEL"):
        solved_with(monkeypatch.setattr, learnt(), "Correct calc.py.", tests="")
    with pytest.raises(TgrError, match="no test fails here"):
        solved_with(monkeypatch.setattr, learnt(), "Correct calc.py.",
                    by=lambda *_: make_verdict(True, 2, 0, 0, ""))  # fmt: skip
    for coder in (learnt(), learnt("another")):
        solved_with(monkeypatch.setattr, coder, "Correct calc.py.")
        assert coder.prompts
