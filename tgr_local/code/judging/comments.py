"""The code of a file that can run, in languages other than Python: without comments, and without
blocks whose condition is constant and false.

In: a path, a text. Out: the text that is left. Strings are known, so that an address in one begins
no comment; the time is linear in the length, whatever the text is.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_QUOTED = r""""(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\[\s\S]|[^`\\])*`?"""
_LINE, _BETWEEN = r"//[^\n]*", r"/\*[\s\S]*?(?:\*/|\Z)"
_HASH = r"(?:^|(?<=\s))#[^\n]*"
_BRACES = {
    "c cc cpp cxx h hh hpp hxx m mm": rf"{_LINE}|{_BETWEEN}|"
    r"^[ \t]*#[ \t]*if[ \t]+0\b[\s\S]*?(?:^[ \t]*#[ \t]*(?:endif|else|elif)\b|\Z)",
    "cjs cs dart go groovy java js jsx kt kts less mjs mts proto rs scala scss swift ts tsx zig":
        rf"{_LINE}|{_BETWEEN}",
    "php": rf"{_LINE}|{_BETWEEN}|(?:^|(?<=\s))#(?!\[)[^\n]*",
}  # fmt: skip
"""Patterns of comments by file endings, for languages whose blocks have braces."""
_OTHERS = {
    "css": _BETWEEN,
    "sql": rf"--[^\n]*|{_BETWEEN}",
    "lua": r"--\[\[[\s\S]*?(?:\]\]|\Z)|--[^\n]*",
    "hs elm": r"\{-[\s\S]*?(?:-\}|\Z)|--[^\n]*",
    "bash sh zsh": _HASH +
        r"|^:[ \t]*<<-?[ \t]*['\"]?(?P<end>\w+)['\"]?[ \t]*\n[\s\S]*?(?:^(?P=end)$|\Z)",
    "rb": rf"{_HASH}|^=begin\b[\s\S]*?(?:^=end\b[^\n]*|\Z)",
    "pl pm": rf"{_HASH}|^=[a-z][\s\S]*?(?:^=cut\b[^\n]*|\Z)",
    "ps1": rf"<#[\s\S]*?(?:#>|\Z)|{_HASH}",
    "nix": rf"{_HASH}|{_BETWEEN}",
    "tf": rf"{_HASH}|{_LINE}|{_BETWEEN}",
    "cfg cmake conf dockerfile ex exs jl makefile mk py pyi r toml yaml yml": _HASH,
    "ini": r"^[ \t]*[;#][^\n]*",
    "clj el lisp scm": r";[^\n]*",
    "tex": r"(?<!\\)%[^\n]*",
}  # fmt: skip
_MARKUP = {"htm", "html", "md", "markdown", "svg", "vue", "xhtml", "xml"}
"""Here a quote begins no string."""
_BY_ENDING = {
    ending: re.compile(f"(?P<kept>{_QUOTED})|{pattern}", re.MULTILINE)
    for endings, pattern in {**_BRACES, **_OTHERS}.items()
    for ending in endings.split()
}
_BY_ENDING |= dict.fromkeys(_MARKUP, re.compile(r"(?P<kept>\Z)|<!--[\s\S]*?(?:-->|\Z)"))
_WITH_BRACES = frozenset(" ".join(_BRACES).split())
_NEVER = re.compile(r"\b(?:if|while)\s{0,9}\(?\s{0,9}(?:false|0)\s{0,9}\)?\s{0,9}\{", re.IGNORECASE)
_BRACE = re.compile(rf"{_QUOTED}|[{{}}]")


def living(path: str, text: str) -> str:
    """The text of a file that can run; all of it in a language that is not known here."""
    ending = PurePosixPath(path).name.lower().rpartition(".")[2]
    pattern = _BY_ENDING.get(ending)
    if pattern is None:
        return text
    text = pattern.sub(lambda match: match["kept"] or " ", text)
    return _remove_dead_blocks(text) if ending in _WITH_BRACES else text


def _remove_dead_blocks(text: str) -> str:
    parts, at = [], 0
    while dead := _NEVER.search(text, at):
        parts.append(text[at : dead.start()])
        depth, at = 1, len(text)
        for brace in _BRACE.finditer(text, dead.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if not depth:
                at = brace.end()
                break
    return "".join([*parts, text[at:]])
