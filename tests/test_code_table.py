"""An edit as a diff: git applies it, and a terminal shows it."""

from __future__ import annotations

import difflib
import random
import re
import shutil
import subprocess

import pytest

from tgr_local.code import table
from tgr_local.code.edits import Change

LONG = "".join(f"{i % 7}\n" for i in range(60))
TEXTS = ["a\nb\nc\n", "a\nb\nc", "", "-- a\n++ b\n", "x\x0cy\nz\u2028w\n", "a\n\n\nb\n", "no end",
         LONG, LONG.replace("3\n", "", 1).replace("5\n6\n", "5\nx\n6\n", 3), LONG[:-1]]  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("before", TEXTS)
def test_git_applies_the_diff(tmp_path, before: str):
    place = tmp_path / "a b.txt"
    for after in TEXTS:
        if before == after:
            continue
        diff = table.diff((Change(place.name, before, after),))
        for exists in (True, False) if not before else (True,):
            place.unlink(missing_ok=True)
            if exists:
                place.write_bytes(before.encode())
            done = subprocess.run(
                ["git", "apply"], input=diff.encode(), cwd=tmp_path, capture_output=True
            )
            assert done.returncode == 0, done.stderr
            assert place.read_bytes() == after.encode()


def test_a_diff_is_that_of_the_whole_files():
    rng = random.Random(1)
    for _ in range(300):
        old = [f"{i}\n" for i in range(rng.randint(0, 40))]
        new = old.copy()
        for n in range(rng.randint(1, 4)):
            at = rng.randint(0, len(new))
            new[at : at + rng.randint(0, 2)] = [f"new {n}\n"] * rng.randint(0, 2)
        plain = "".join(difflib.unified_diff(old, new, "a/x", "b/x"))
        assert table.diff([Change("x", "".join(old), "".join(new))]) == plain


def test_lines_are_counted_and_coloured():
    change = (Change("a.txt", "-- a\nkeep\n", "++ b\nkeep\nmore\n"),)
    assert table.n_lines(change) == (2, 1)
    text = table.coloured(change)
    assert re.sub(r"\x1b\[\d*m", "", text) == table.diff(change)
    assert "\x1b[31m--- a\x1b[0m\n\x1b[32m+++ b\x1b[0m\n" in text
    assert "\x1b[1m--- a/a.txt\x1b[0m" in text


def test_a_diff_with_control_characters_is_safe_on_a_terminal():
    change = (Change("a.txt", "x\n", "\x1b]0;title\x07\n"),)
    assert "\x1b]" not in table.coloured(change)


def test_what_is_not_seen_in_an_edit_is_said():
    before = "x = 1  # \u200bold\n"
    after = f"{before}if user != 'admin\u202e \u2066': pass\n"
    change = (Change("a.py", before, after),)
    assert "admin<U+202E> <U+2066>'" in table.coloured(change)
    assert "\u202e" in table.diff(change)  # which git applies
    assert table.unseen(change) == [
        "a.py: the edit has characters that are not seen: <U+202E>, <U+2066>"
    ]
    assert table.unseen([Change("a.py", before, "y = 2  # ü 👩‍🚀\n")]) == []
    assert table.unseen([Change("a\u202ey.py", "", "x\n")]) == [
        "a\ufffdy.py: the edit has characters that are not seen: <U+202E>"
    ]
