"""From an answer's text to changes; test_edit_grammar.py has the grammar of such an answer."""

from __future__ import annotations

import pytest

from tgr_local.code.edits import (
    EditError,
    FileText,
    Format,
    Function,
    fence_for,
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


def after(answer: str, *documents: FileText, format: Format = "file") -> str:
    """The new text of the only file that an answer changes."""
    (change,) = read_edits(answer, documents, format)
    return change.after


def why(answer: str, *documents: FileText, format: Format = "file") -> str:
    with pytest.raises(EditError) as error:
        read_edits(answer, documents, format)
    return str(error.value)


# --- the whole file ---


def test_a_whole_file_keeps_its_last_line_end():
    assert after("calc.py\n```python\nx = 1\n```", CALC) == "x = 1\n"
    assert after("docs/notes.md\n```markdown\nx\n\n```\n", NOTES) == "x"
    assert after("calc.py\n```python\n```", CALC) == ""
    assert read_edits(f"calc.py\n```python\n{CALC.text}```", [CALC], "file") == ()


def test_a_fence_is_longer_than_those_in_the_files():
    readme = FileText("README.md", "```sh\nls\n```\n    `````\n")
    fence = fence_for([readme.text, CALC.text])
    assert fence == "`" * 6
    answer = f"README.md\n{fence}markdown\n```\nx\n```\n{fence}"
    assert after(answer, readme, CALC) == "```\nx\n```\n"


def test_what_models_write_around_an_edit_is_left_out():
    answer = "Sure!\n\n**calc.py**\n```py\nx\n```\nThat is all."
    assert after(answer, CALC, NOTES) == "x\n"
    assert after("Here:\n```python\nx\n```", CALC) == "x\n"


def test_an_answer_that_does_not_apply_says_why():
    assert why("no idea", CALC) == "the answer has no edit in the format 'file'"
    assert "'other.py', which is not among what is open" in why("other.py\n```\n```", CALC, NOTES)
    assert "changes calc.py again" in why("calc.py\n```\n```\ncalc.py\n```\n```", CALC)


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
        after(f"tabs.py\n```python\n{spaces}```", tabs),
    ):
        assert new == tabs.text.replace("1", "2")
    comment = FileText("a.c", "int f(void) {\n\treturn 1;\n}\n")
    new = after(
        "a.c\n```c\n/*\n * f\n */\nint f(void) {\n    return 2;\n}\n```", comment, format="file"
    )
    assert new == "/*\n * f\n */\nint f(void) {\n\treturn 2;\n}\n"
    one_tab = FileText("a.yaml", "a:\n  b: 1\n\tc: 2\n  d: 3\n")
    new = after("a.yaml\n```yaml\na:\n  b: 1\n  c: 2\n  d: 3\n```", one_tab)
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
    with pytest.raises(ValueError, match="no functions; use the format file"):
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
    with pytest.raises(ValueError, match="must be one of file, function"):
        read_edits("", [CALC], "diff")  # type: ignore[arg-type]
