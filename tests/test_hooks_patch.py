"""The patch of llama.cpp: its format, its anchors, and a file that has changed around them."""

from __future__ import annotations

import os
import sys

import pytest
from surroundings import ROOT

if not (ROOT / "csrc").is_dir():
    pytest.skip("the sources are not next to the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT / "csrc"))

import fetch_llama_cpp
import hooks_patch

PLAIN = """\
#include <a>

int first(int x) {
    int y = x;
    return y;
}

int second(int x) {
    int y = x;
    if (y) {
        y += 1;
    }

    if (y) {
        y += 1;
    }
    return y;
}
"""


def edited(text: str, *changes: tuple[str, str]) -> str:
    """The text with each first part replaced once, from the top."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_the_patch_of_this_repository_is_read_and_written():
    text = hooks_patch.PATCH.read_text(encoding="utf-8")
    patch = hooks_patch.parse(text)
    functions = {hunk.function for file in patch.files for hunk in file.hunks}
    assert "llama_kv_cache::find_slot" in functions and len(functions) > 5
    assert hooks_patch.written(patch) == text


def test_functions_are_found_by_their_place():
    lines = PLAIN.split("\n")
    found = [hooks_patch.function_around(lines, at) for at in (0, 1, 4, 7, 9, 19)]
    top = hooks_patch.TOP_LEVEL
    assert found == [top, top, "first", top, "second", top]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#include <a>\n", "#include <b>\n#include <a>\n"),
        ("int y = x;\n    if", "int y = x;\n    call();\n\n    if"),
        ("        y += 1;\n    }\n    return", "        y += 1;\n        z();\n    }\n    return"),
        ("}\n    return y;", "}\n    if (x) {\n        z();\n    }\n    return y;"),
        ("return y;\n}\n", "return y;\n}\n\nint new_one();\n"),
        ("    }\n\n    if", "    }\n\n    call();\n\n    if"),
        ("    }\n\n    if", "    }\n    call();\n\n\n    if"),
        ("    }\n\n    if", "    }\n    if (y) {\n        z();\n    }\n\n    if"),
    ],
    ids=[
        "begin",
        "middle",
        "in braces",
        "block",
        "top level",
        "between empty lines",
        "above empty lines",
        "like the next",
    ],
)
def test_a_patch_made_of_two_files_gives_the_second_from_the_first(old: str, new: str):
    patched = edited(PLAIN, (old, new))
    hunks = hooks_patch.made(PLAIN, patched)
    patch = hooks_patch.Patch("about", [hooks_patch.FilePatch("a.cpp", hunks)])
    assert hooks_patch.parse(hooks_patch.written(patch)) == patch
    text, missing = hooks_patch.inserted(PLAIN, hunks)
    assert text == patched
    assert not missing


def test_an_insertion_with_empty_lines_is_stable():
    """It has its place above the empty line, so that this one follows it."""
    patched = edited(PLAIN, ("    }\n\n    if", "    }\n    call();\n\n    z();\n    if"))
    hunks = hooks_patch.made(PLAIN, patched)
    text, _ = hooks_patch.inserted(PLAIN, hunks)
    assert text == edited(patched, ("z();\n", "z();\n\n"))
    assert hooks_patch.made(PLAIN, text) == hunks


def test_a_patch_only_inserts():
    with pytest.raises(ValueError, match=r"line 13, '', is missing"):
        hooks_patch.made(PLAIN, edited(PLAIN, ("    }\n\n    if", "    }\n    z();\n    if")))
    with pytest.raises(ValueError, match=r"line 3, 'int first\(int x\) \{', is missing"):
        hooks_patch.made(PLAIN, edited(PLAIN, ("first", "other")))


def second_block() -> list[hooks_patch.Hunk]:
    """An insertion between lines that stand twice in their function."""
    (hunk,) = hooks_patch.made(
        PLAIN, edited(PLAIN, ("}\n\n    if (y) {\n", "}\n\n    if (y) {\n        call();\n"))
    )
    assert (hunk.index, hunk.of) == (2, 2)
    return [hunk]


@pytest.mark.parametrize(
    "change",
    [
        ("#include <a>", "#include <a>\n\nint zero() {\n    return 0;\n}\n"),
        ("    return y;\n}\n\nint second", "    return 0;\n}\n\nint second"),
        ("(int x) {\n    int y = x;\n    if", "(int x, int z) {\n    int y = x + z;\n    if"),
        ("}\n\n", "}\n\nint second_of(int x) {\n    if (y) {\n        y += 1;\n    }\n}\n\n"),
        ("    if (y) {\n        y", "      if (y)  {\n\n          y"),
    ],
    ids=["file", "other function", "function", "like it", "white space"],
)
def test_an_insertion_finds_its_place_in_a_file_that_changed_elsewhere(change: tuple[str, str]):
    moved = edited(PLAIN, change)
    text, missing = hooks_patch.inserted(moved, second_block())
    assert not missing
    head, call, tail = text.partition("        call();\n")
    assert call and head + tail == moved
    assert head.endswith("}\n\n    if (y) {\n") and tail.endswith(
        "y += 1;\n    }\n    return y;\n}\n"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("int second", "int other")], "there is no second"),
        ([("y += 1;", "y += 2;")], "the places with the lines around it are 1, but were 2"),
        ([("y += 1;", "y += 2;"), ("y += 1;", "y += 2;")], "the lines around it have changed"),
    ],
)
def test_an_insertion_without_its_place_is_named(changes: list[tuple[str, str]], message: str):
    moved = edited(PLAIN, *changes)
    text, (why,) = hooks_patch.inserted(moved, second_block())
    assert why.startswith("'call();' in second: ") and message in why
    assert text == moved


def test_the_line_that_is_still_there_is_named():
    hunks = hooks_patch.made(PLAIN, edited(PLAIN, ("    return", "    call();\n    return")))
    _, (why,) = hooks_patch.inserted(edited(PLAIN, ("return y;", "return x;")), hunks)
    assert why.endswith("the lines around it have changed; the line before it is at 4")
    _, (why,) = hooks_patch.inserted(edited(PLAIN, ("y = x;", "y = 2;")), hunks)
    assert why.endswith("the lines around it have changed; the line after it is at 5")


def test_a_line_that_is_no_insertion_is_refused():
    with pytest.raises(
        ValueError, match=r"patch of a\.cpp has a line that is not an insertion: ' int"
    ):
        hooks_patch.parse("about\n# file a.cpp\n@@ first 0123456789ab 0123456789ab\n int y = x;\n")


def test_a_move_to_another_version(tmp_path, monkeypatch):
    """The steps that csrc/README.md describes: apply, place the rest by hand, write the patch."""
    plain, patched = tmp_path / "plain", tmp_path / "patched"
    moved = edited(PLAIN, ("y += 1;", "y += 2;"))
    for folder in (plain, patched):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "a.cpp").write_text(moved)
    begin = hooks_patch.made(PLAIN, f'#include "hooks.h"\n{PLAIN}')
    files = [
        hooks_patch.FilePatch("src/a.cpp", begin + second_block()),
        hooks_patch.FilePatch("src/gone.cpp", begin),
    ]
    patch = tmp_path / "llama.cpp.patch"
    patch.write_text(hooks_patch.written(hooks_patch.Patch("about", files)))

    with pytest.raises(SystemExit) as error:
        fetch_llama_cpp.insert(patch.read_text(), patched, "0.3.35")
    one, two, last = str(error.value).split("\n")
    assert one.startswith("src/a.cpp: 'call();' in second: the places with the lines around it")
    assert two == "src/gone.cpp: '#include \"hooks.h\"' in (top level): there is no such file"
    assert last.startswith(
        "1 of 3 insertions have their place in the llama.cpp of llama-cpp-python"
    )

    text = (patched / "src" / "a.cpp").read_text()
    by_hand = edited(text, ("y += 1;\n", "call();\n        y += 1;\n"))
    (patched / "src" / "a.cpp").write_text(by_hand)
    arguments = [str(plain), str(patched), "--patch", str(patch)]
    monkeypatch.setattr(sys, "argv", ["hooks_patch.py", *arguments])
    hooks_patch.main()
    fetch_llama_cpp.insert(patch.read_text(), plain, "0.3.35")
    assert (plain / "src" / "a.cpp").read_text() == by_hand


def test_a_file_that_is_as_it_was_keeps_its_time(tmp_path):
    before, out = tmp_path / "before", tmp_path / "out"
    for folder, changed in ((before, "int x;"), (out, "int y;")):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "same.cpp").write_text(PLAIN)
        (folder / "src" / "changed.cpp").write_text(changed)
    (out / "new.h").write_text("")
    for name in ("same.cpp", "changed.cpp"):
        os.utime(before / "src" / name, (1000, 1000))
    fetch_llama_cpp.keep_times(before, out)
    times = {file.name: file.stat().st_mtime for file in out.rglob("*") if file.is_file()}
    assert times["same.cpp"] == 1000
    assert times["changed.cpp"] > 1000 and times["new.h"] > 1000
