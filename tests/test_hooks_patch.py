"""The patch of llama.cpp: its format, and its move to another version of a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from surroundings import ROOT

if not (ROOT / "csrc").is_dir():
    pytest.skip("the sources are not beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT / "csrc"))

import fetch_llama_cpp
import hooks_patch
import reanchor

OLD = """\
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
    return y;
}
"""


def patch_of(folder: Path, *hunks: hooks_patch.Hunk) -> hooks_patch.Patch:
    file = hooks_patch.FilePatch("a.cpp", hooks_patch.digest(folder / "a.cpp"), list(hunks))
    return hooks_patch.Patch("about", [file])


def tree(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "a.cpp").write_text(text)
    return folder


def hunk(at: int, *lines: str) -> hooks_patch.Hunk:
    return hooks_patch.Hunk(at, hooks_patch.function_around(OLD.split("\n"), at), list(lines))


def test_the_patch_names_the_function_of_every_insertion() -> None:
    patch = hooks_patch.parse((ROOT / "csrc/patches/llama.cpp.patch").read_text())
    functions = {h.function for file in patch.files for h in file.hunks}
    assert "llama_kv_cache::find_slot" in functions and len(functions) > 10
    assert hooks_patch.parse(hooks_patch.written(patch)) == patch


def test_functions_are_found_by_their_place() -> None:
    lines = OLD.split("\n")
    found = [hooks_patch.function_around(lines, at) for at in (1, 4, 7, 9, 14)]
    assert found == [hooks_patch.TOP_LEVEL, "first", hooks_patch.TOP_LEVEL, "second", "(top level)"]


def test_lines_are_inserted_where_the_patch_says() -> None:
    text = hooks_patch.inserted("a\nb\nc", [hunk(1, "x", "y"), hunk(2, "z")])
    assert text == "a\nx\ny\nb\nz\nc"


def test_insertions_move_with_their_function(tmp_path: Path) -> None:
    old = tree(tmp_path / "old", OLD)
    # a longer first function, and a third one that looks like the second
    longer = OLD.replace("y = x;\n    return", "y = x;\n    // new\n    return")
    third = "int third(int x) {\n    int y = x;\n    if (y) {\n    }\n}\n"
    new = tree(tmp_path / "new", f"{longer}\n{third}")
    moved, left, report = reanchor.reanchored(
        patch_of(old, hunk(1, "include"), hunk(9, "call();")), old, new
    )
    assert [h.at for h in moved.files[0].hunks] == [1, 10] and not left
    assert moved.files[0].sha256 == hooks_patch.digest(new / "a.cpp")
    assert len(report) == 2 and report[1].startswith("a.cpp:9 in second → 10")


def test_insertions_without_a_place_are_reported(tmp_path: Path) -> None:
    old = tree(tmp_path / "old", OLD)
    new = tree(tmp_path / "new", OLD.replace("int first", "int other").replace("y += 1", "y += 2"))
    patch = patch_of(old, hunk(4, "gone();"), hunk(11, "call();"))
    moved, left, report = reanchor.reanchored(patch, old, new)
    assert [h.at for h in moved.files[0].hunks] == [11]
    assert left[0].hunks[0].lines == ["gone();"]
    assert report[0] == "a.cpp:4 in first: NOT PLACED, the new file has no first"
    assert "CHECK: only the" in report[1]


def test_a_file_without_any_placed_insertion_is_moved_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that CONTRIBUTING describes: reanchor, add what is in .rej, reanchor again."""
    old = tree(tmp_path / "old", OLD)
    new = tree(tmp_path / "new", OLD.replace("int first", "int other"))
    patch = tmp_path / "llama.cpp.patch"
    patch.write_text(hooks_patch.written(patch_of(old, hunk(4, "call();"))))

    def run(start: Path, end: Path) -> int:
        arguments = ["--from", str(start), "--to", str(end), "--patch", str(patch)]
        monkeypatch.setattr(sys, "argv", ["reanchor.py", *arguments])
        return reanchor.main()

    assert run(old, new) == 1
    head = f"# file a.cpp {hooks_patch.digest(new / 'a.cpp')}\n"
    assert patch.read_text() == f"about\n{head}"
    rejected = (tmp_path / "llama.cpp.patch.rej").read_text()
    assert rejected == f"Not placed.\n{head}@@ -4,0 +5 @@ first\n+call();\n"
    patch.write_text(patch.read_text() + rejected.partition(head)[2])
    assert run(new, new) == 0
    assert patch.read_text() == f"about\n{head}@@ -4,0 +5 @@ other\n+call();\n"
    fetch_llama_cpp.insert(patch.read_text(), new, "0.3.35")
    assert (new / "a.cpp").read_text().split("\n")[4] == "call();"


def test_a_file_that_is_gone_is_in_no_patch(tmp_path: Path) -> None:
    old, new = tree(tmp_path / "old", OLD), tmp_path / "new"
    new.mkdir()
    moved, left, report = reanchor.reanchored(patch_of(old, hunk(4, "call();")), old, new)
    assert not moved.files and left[0].hunks[0].lines == ["call();"]
    assert report == ["a.cpp: NOT PLACED, the file is gone"]


def test_a_patch_for_another_file_is_refused(tmp_path: Path) -> None:
    old, new = tree(tmp_path / "old", OLD), tree(tmp_path / "new", OLD + "\n")
    with pytest.raises(ValueError, match="is not the file that the patch was made for"):
        reanchor.reanchored(patch_of(new, hunk(4, "x")), old, new)
