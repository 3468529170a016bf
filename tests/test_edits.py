"""From an answer's text to changes; test_edit_grammar.py has the grammar of such an answer."""

from __future__ import annotations

import pytest

from tgr_local.code.edits import (
    EditError,
    FileText,
    Format,
    Function,
    Markers,
    functions_of,
    read_edits,
)

CALC = FileText(
    "calc.py",
    """import math

class Stack:
    @property
    def size(self):
        return len(self.items)

    @size.setter
    def size(self, n):
        pass

    async def push(self, x):
        def inner():
            return x
        self.items.append(inner())

def double(x):
    return x + x
""",
)
NOTES = FileText("docs/notes.md", "a\nb\na\nb\nc")
EMPTY = FileText("pkg/__init__.py", "")


def after(answer: str, *documents: FileText, format: Format = "replace") -> str:
    """The new text of the only file that an answer changes."""
    (change,) = read_edits(answer, documents, format)
    return change.after


def why(answer: str, *documents: FileText, format: Format = "replace") -> str:
    with pytest.raises(EditError) as error:
        read_edits(answer, documents, format)
    return str(error.value)


# --- the whole file ---


def test_a_whole_file_keeps_its_last_line_end():
    assert after("calc.py\n```python\nx = 1\n```", CALC, format="file") == "x = 1\n"
    assert after("docs/notes.md\n```markdown\nx\n\n```\n", NOTES, format="file") == "x"
    assert after("calc.py\n```python\n```", CALC, format="file") == ""
    assert read_edits(f"calc.py\n```python\n{CALC.text}```", [CALC], "file") == ()


def test_a_fence_is_longer_than_those_in_the_files():
    readme = FileText("README.md", "```sh\nls\n```\n    `````\n")
    fence = Markers.of([readme, CALC]).fence
    assert fence == "`" * 6
    answer = f"README.md\n{fence}markdown\n```\nx\n```\n{fence}"
    assert after(answer, readme, CALC, format="file") == "```\nx\n```\n"


def test_what_models_write_around_an_edit_is_left_out():
    answer = "Sure!\n\n**calc.py**\n```py\nx\n```\nThat is all."
    assert after(answer, CALC, NOTES, format="file") == "x\n"
    assert after("Here:\n```python\nx\n```", CALC, format="file") == "x\n"


# --- search and replace ---


def test_quoted_lines_are_replaced_where_they_are_first():
    block = "docs/notes.md\n<<<<<<< SEARCH\na\nb\n=======\nx\n>>>>>>> REPLACE\n"
    assert after(block, NOTES) == "x\na\nb\nc"
    assert after(f"{block}\n{block}", NOTES, CALC) == "x\nx\nc"
    again = block.partition("\n")[2].replace("x", "y")
    assert after(f"{block}{again}", NOTES, CALC) == "x\ny\nc"
    last = "docs/notes.md\n<<<<<<< SEARCH\nb\nc\n=======\n>>>>>>> REPLACE"
    assert after(last, NOTES) == "a\nb\na"


def test_fences_around_the_blocks_are_passed_over():
    block = "<<<<<<< SEARCH\nimport math\n=======\nimport os\n>>>>>>> REPLACE"
    answer = f"Fix:\n\ncalc.py\n```python\n{block}\n```\n\n`docs/notes.md`\n```\n"
    answer += "<<<<<<< SEARCH\nc\n=======\n>>>>>>> REPLACE\n```\n"
    first, second = read_edits(answer, [CALC, NOTES], "replace")
    assert first.after == CALC.text.replace("math", "os") and second.after == "a\nb\na\nb"


def test_an_empty_file_is_quoted_by_no_lines_once():
    block = "pkg/__init__.py\n<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n"
    assert after(block, EMPTY, CALC) == "x\n"
    assert "begins again the file" in why(block * 2, EMPTY, CALC)


def test_markers_are_none_of_the_lines_in_the_files():
    merge = FileText("a.rst", f"Title\n=======\ntext\n========  \n{'=' * 79}\n>>>>>>> REPLACE\n")
    markers = Markers.of([merge])
    assert markers.separator == "=" * 9 and markers.search == "<" * 9 + " SEARCH"
    answer = f"a.rst\n{markers.search}\nTitle\n=======\n{markers.separator}\nNew\n=======\n"
    assert after(answer + markers.replace, merge).startswith("New\n=======\ntext\n")


def test_an_answer_that_does_not_apply_says_why():
    block = "calc.py\n<<<<<<< SEARCH\nimport maths\n=======\nx\n>>>>>>> REPLACE"
    assert why("no idea", CALC) == "the answer has no edit in the format 'replace'"
    assert why(block, CALC).endswith("lines that calc.py does not have: 'import maths'")
    assert "'other.py', which is not open" in why(block.replace("calc", "other"), CALC, NOTES)
    assert "cut off" in why(block[:-3], CALC) and "cut off" in why(block[:35], CALC)
    swapped = block.replace("import maths", "        pass\nimport math")
    assert why(swapped, CALC).endswith("not one after another")
    once = block.replace("maths", "math")
    assert "an earlier block has replaced" in why(f"{once}\n{once}", CALC)
    assert "quotes no lines" in why(once.replace("import math\n", ""), CALC)
    assert "changes calc.py again" in why(
        "calc.py\n```\n```\ncalc.py\n```\n```", CALC, format="file"
    )


# --- functions ---


def test_functions_of_python_have_their_decorators():
    assert [(one.name, one.first, one.last) for one in functions_of(CALC)] == [
        ("Stack.size", 4, 6), ("Stack.size#2", 8, 10), ("Stack.push", 12, 15),
        ("Stack.push.inner", 13, 14), ("double", 17, 18),
    ]  # fmt: skip
    assert functions_of(FileText("a.py", "def f(:\n")) == []
    assert functions_of(FileText("a.py", "(" * 10**5)) == []


def test_a_function_is_indented_as_the_one_in_its_place():
    text = "\ndef size(self):\n    \"\"\"One.\n\n    Two.\n    \"\"\"\n    return '''a\nb'''\n\n"
    new = after(f"calc.py::Stack.size\n```python\n{text}```", CALC, format="function")
    begin, end = CALC.text.split("    @property\n", 1)
    assert new == (
        f'{begin}    def size(self):\n        """One.\n\n        Two.\n        """\n'
        f"        return '''a\nb'''\n{end.split('items)', 1)[1].removeprefix(chr(10))}"
    )
    deeper = after(
        "calc.py::double\n```python\n\tdef f(x):\n\t\tpass\n```", CALC, format="function"
    )
    assert deeper.endswith("\ndef f(x):\n\tpass\n")
    tabs = FileText("tabs.py", "def f(x):\n\tif x:\n\t\treturn 1\n")
    spaces = "def f(x):\n  if x:\n    return 2\n"
    for new in (
        after(f"tabs.py::f\n```python\n{spaces}```", tabs, format="function"),
        after(f"tabs.py\n```python\n{spaces}```", tabs, format="file"),
    ):
        assert new == tabs.text.replace("1", "2")
    comment = FileText("a.c", "int f(void) {\n\treturn 1;\n}\n")
    new = after(
        "a.c\n```c\n/*\n * f\n */\nint f(void) {\n    return 2;\n}\n```", comment, format="file"
    )
    assert new == "/*\n * f\n */\nint f(void) {\n\treturn 2;\n}\n"
    one_tab = FileText("a.yaml", "a:\n  b: 1\n\tc: 2\n  d: 3\n")
    new = after("a.yaml\n```yaml\na:\n  b: 1\n  c: 2\n  d: 3\n```", one_tab, format="file")
    assert new == "a:\n  b: 1\n  c: 2\n  d: 3\n"
    assert "or a part of it" in why(
        "calc.py::Stack.push\n```\n```\ncalc.py::Stack.push.inner\n```\n```", CALC,
        format="function",
    )  # fmt: skip


def test_other_languages_have_the_functions_that_the_caller_names():
    code = FileText("a.js", "f = 1;\nfunction g() {\n  return 1;\n}")
    own = [Function("a.js", "g", 2, 4)]
    answer = "a.js::g\n```javascript\nfunction g() {}\n```"
    (change,) = read_edits(answer, [code], "function", functions=own)
    assert change.after == "f = 1;\nfunction g() {}"
    for bad in (
        Function("a.js", "g", 2, 5),
        Function("b.js", "g", 1, 1),
        Function("a.js", "", 1, 1),
    ):
        with pytest.raises(ValueError, match="function"):
            read_edits(answer, [code], "function", functions=[bad])
    with pytest.raises(ValueError, match="no functions; use the format file or replace"):
        read_edits(answer, [code], "function")


# --- hostile documents ---


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "a/../b",
        "a\nb",
        "a ",
        "C:x",
        "a\\b",
        "``` x",
        "<<<<<<< SEARCH",
        "a//b",
        "ä" * 128,
    ],
)
def test_a_path_stays_in_the_folder_and_on_its_line(path: str):
    with pytest.raises(ValueError, match="cannot be named in an edit"):
        read_edits("", [FileText(path, "")], "file")


def test_documents_that_no_edit_can_change_are_refused():
    with pytest.raises(ValueError, match="no valid Unicode"):
        read_edits("", [FileText("a", "\ud800")], "file")
    with pytest.raises(ValueError, match="open twice"):
        read_edits("", [CALC, CALC], "file")
    with pytest.raises(ValueError, match="must be one of file, function, replace"):
        read_edits("", [CALC], "diff")  # type: ignore[arg-type]
