"""The names that other libraries have in a text of another language than Python, for a rename.

In: a text, its language, the paths of the project, its module of Go. Out: names that stand for
libraries or are imported from them, as far as the imports tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_SCRIPTS = ("javascript", "typescript", "tsx")
_GLOBALS = {
    "Array", "BigInt", "Date", "Intl", "JSON", "Math", "Number", "Object", "Promise", "Proxy",
    "Reflect", "RegExp", "String", "console",
}  # fmt: skip
_JAVA = {"jakarta", "java", "javax"}
_STANDARD: dict[str, set[str]] = {
    **dict.fromkeys(_SCRIPTS, _GLOBALS),
    "cpp": {"std"},
    "java": _JAVA | {"Double", "Integer", "Long", "Math", "String", "System"},
    "kotlin": _JAVA | {"android", "androidx", "kotlin", "kotlinx"},
    "lua": {"coroutine", "debug", "io", "math", "os", "string", "table", "utf8"},
    "rust": {"HashMap", "HashSet", "String", "Vec", "VecDeque", "alloc", "core", "std"},
    "scala": _JAVA | {"scala"},
}
"""Names that a language has without an import, whose members are not of the project."""
_FROM_SCRIPT = re.compile(
    r"""(?:\bimport\b([^;="']{1,500}?)\bfrom|\bexport\s{0,99}(\{[^{}]{0,500}\})\s{0,99}from"""
    r"""|\b(?:const|let|var)\b([^;=]{1,500}?)=\s{0,99}(?:await\s{1,99})?(?:require|import)\()"""
    r"""\s{0,99}["'](?![./~]|@/)([^"'\n]{1,200})["']"""
)
_FROM_GO = re.compile(
    r'^[ \t]*(?:import[ \t]+)?(?:([\w.]+)[ \t]+)?"([\w./-]{1,200})"[ \t]*(?://.*)?$', re.MULTILINE
)
_FROM_STANDARD = re.compile(
    r"^[ \t]*(?:pub[ \t]+)?(?:import|use)[ \t]+(?:static[ \t]+)?"
    r"(?:javax?|jakarta|kotlinx?|scala|androidx?|std|core|alloc)(?:\.|::)"
    r"(\{[^{};]{0,500}\}|[^;\n]{1,500})",
    re.MULTILINE,
)
_NO_NAMES = {"as", "crate", "default", "self", "super", "type"}
_CHAIN = re.compile(r"(?<![\w$])(?:[\w$]+\s{0,99}(?:\?\.|\.|::)\s{0,99})+\Z")


def names(text: str, language: str, paths: Sequence[str], module: str) -> frozenset[str]:
    """The names in a text that stand for other libraries or are imported from them."""
    if language in _SCRIPTS:
        tops = {path.partition("/")[0] for path in paths if "/" in path}
        imports = _FROM_SCRIPT.findall(text)
        said = " ".join(" ".join(what) for *what, of in imports if of.partition("/")[0] not in tops)
        said = re.sub(r"[\w$]+\s{1,99}as\s|[\w$]+\s{0,99}:", " ", said)
        return frozenset(re.findall(r"[\w$]+", said)) - _NO_NAMES
    if language in ("java", "kotlin", "rust", "scala"):
        said = " ".join(_FROM_STANDARD.findall(text))
        return frozenset(re.findall(r"\b\w+\b(?!\s*(?:\.|::))", said)) - _NO_NAMES
    if language != "go":
        return frozenset()
    return frozenset(
        alias or re.sub(r"/v\d+$", "", path).rpartition("/")[2]
        for alias, path in _FROM_GO.findall(text)
        if not (module and (path == module or path.startswith(f"{module}/")))
    )


def is_theirs(before: str, foreign: frozenset[str], language: str) -> bool:
    """Whether a name behind a text is a member of another library: ``fs.promises.readFile``."""
    chain = _CHAIN.search(before)
    owners = re.findall(r"[\w$]+", chain[0]) if chain else ["", ""]
    return not foreign.isdisjoint(owners) or owners[0] in _STANDARD.get(language, ())
