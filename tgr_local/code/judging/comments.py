"""The text of a file without its comments, in languages that Python has no parser for.

In: a path, a text. Out: the text that is left. Strings are known, so that an address in one begins
no comment; the time is linear in the length, whatever the text is.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_QUOTED = r""""(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\[\s\S]|[^`\\])*`?"""
_BETWEEN = r"/\*[\s\S]*?(?:\*/|\Z)"
_HASH = r"(?:^|(?<=\s))#[^\n]*"
_COMMENTS = {
    "c cc cpp cxx h hh hpp hxx m mm": rf"//[^\n]*|{_BETWEEN}|"
    r"^[ \t]*#[ \t]*if[ \t]+0\b[\s\S]*?(?:^[ \t]*#[ \t]*(?:endif|else|elif)\b|\Z)",
    "cjs cs dart go groovy java js jsx kt kts less mjs mts proto rs scala scss swift ts tsx zig":
        rf"//[^\n]*|{_BETWEEN}",
    "css": _BETWEEN,
    "php": rf"//[^\n]*|{_BETWEEN}|(?:^|(?<=\s))#(?!\[)[^\n]*",
    "sql": rf"--[^\n]*|{_BETWEEN}",
    "lua": r"--\[\[[\s\S]*?(?:\]\]|\Z)|--[^\n]*",
    "hs elm": r"\{-[\s\S]*?(?:-\}|\Z)|--[^\n]*",
    "bash cfg cmake conf dockerfile ex exs jl makefile mk nix pl pm ps1 py pyi r rb sh tf toml "
    "yaml yml zsh": _HASH,
    "ini": r"^[ \t]*[;#][^\n]*",
    "clj el lisp scm": r";[^\n]*",
    "tex": r"(?<!\\)%[^\n]*",
}  # fmt: skip
_MARKUP = {"htm", "html", "md", "markdown", "svg", "vue", "xhtml", "xml"}
"""Here a quote begins no string."""
_BY_ENDING = {
    ending: re.compile(f"(?P<kept>{_QUOTED})|{pattern}", re.MULTILINE)
    for endings, pattern in _COMMENTS.items()
    for ending in endings.split()
}
_BY_ENDING |= dict.fromkeys(_MARKUP, re.compile(r"(?P<kept>\Z)|<!--[\s\S]*?(?:-->|\Z)"))


def without_comments(path: str, text: str) -> str:
    """The text of a file without its comments; all of it in a language that is not known here."""
    name = PurePosixPath(path).name.lower()
    pattern = _BY_ENDING.get(name.rpartition(".")[2])
    return pattern.sub(lambda found: found["kept"] or " ", text) if pattern else text
