"""Evidence about the files of a project, from a task and the output of failing tests.

In: texts, the paths of a project, documents. Out: the places that a traceback names, the words of a
text, the files that a document imports, which paths belong to tests. Nothing is read from the disk,
and nothing is run.
"""

from __future__ import annotations

import bisect
import functools
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from tgr_local.code.edits import FileText, syntax
from tgr_local.code.judging.test_counts import Failure

_MOST = 1 << 20  # characters of an output that are searched
_PLACES = (
    re.compile(r'File "(?P<path>[^"\n]{1,512})", line (?P<line>\d{1,7})'),  # Python
    # pytest, compilers, node: path.py:12, path.js:12:5, path.py::test_name, path.c(12)
    re.compile(
        r"(?<![\w./\\+@~-])"  # where a path begins: each is tried once
        r"(?P<path>[\w./\\+@~-]{1,512}\.\w{1,8})(?::|\()(?::|(?P<line>\d{1,7}))"
    ),
)
_FOREIGN = ("/site-packages/", "/dist-packages/", "/lib/python", "/node_modules/", "<frozen")
_MOST_LINKS = 8  # one behind the other
_FAR = 1 << 30  # steps, where there are no folders
_DEEPEST_LINK = 32  # parts of its path
_WORD = re.compile(r"[^\W\d]\w*")
_OF_CLASSES = (".java", ".kt", ".cs", ".php", ".scala", ".groovy", ".swift", ".hs")
_OF_SPECS = (".rb", ".js", ".mjs", ".lua", ".cr")
_TEST_CLASS = re.compile(r"^Tests?[A-Z]|(?:[a-z0-9]Tests?|[A-Za-z0-9]Spec)$")
_HEADERS, _OF_HEADERS = (".h", ".hh", ".hpp", ".hxx"), (".c", ".cc", ".cpp", ".cxx")
_SPEC = re.compile(r"[_-]spec$|[a-z0-9]Spec$")
_PYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]{1,99}([\w.]*)[ \t]{1,99}import[ \t]+\(?([\w, \t*]*)"
    r"|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_QUOTED_IMPORT = re.compile(
    r"""^[^\n]{0,500}?\b(?:import|include|require|use|from|source)\b"""
    r"""[^\n]{0,500}?["'<]([^"'<>\n]{1,512})["'>]""",
    re.MULTILINE,
)
_RUST_USE = re.compile(
    r"^[ \t]*(?:pub[ \t]+)?(?:use|mod)[ \t]+([^;{]{1,500}(?:\{[^;]{1,2000})?);", re.M
)
_MOST_BESIDE = 64  # files of a Go package
_CODE_NAME = re.compile(
    r"`([^`\n]{1,99})`|['\"](\w{1,99})['\"]|\b(\w{1,99})\("
    r"|\b(?i:renam\w+|function|method|class|constant|variable|parameter|argument|calls? (?:to|of)"
    r"|uses? of|named|called) (\w{1,99})"
    r"|\b([a-z0-9]{1,99}_\w{1,99}|_\w{1,99}|[A-Za-z]{0,9}[a-z][A-Z]\w{0,99}|[A-Z]+_\w{1,99})\b"
)
_SETTINGS = re.compile(r"(?<![\w.-])([\w-]{1,99}\.(?:ya?ml|toml|json|ini|cfg|conf))(?![\w-]|\.\w)")
_MISSING = re.compile(
    r"cannot import name '(\w{1,99})'|does not provide an export named '(\w{1,99})'"
)
_UNKNOWN = re.compile(
    r"undeclared|not declared|implicit declaration|undefined reference|undefined: |undefined \(type"
    r"|has no member|cannot find|[Uu]nresolved|is not a function\b|is not a constructor\b"
    r"|\bno (?:method|function|variant|field|associated)\b|does not exist on type|Cannot find name"
)
_NO_MODULE = re.compile(r"No module named '([\w.]{1,200})'")
_NO_SCRIPT = re.compile(
    r"Cannot find module '([^'\n]{1,500})'(?:\s+imported from |\s+Require stack:\s+- )"
    r"'?([^\s']{1,500})"
)
Lines = tuple[int, int]
"""The first and the last one, counted from 1."""


class CodeLine(NamedTuple):
    """A line of a file of the project."""

    path: str
    line: int
    """Counted from 1; 0 where only the file is named."""


class Paths:
    """The paths of a project, found by their ends, and the files that its symbolic links lead
    to."""

    def __init__(self, paths: Sequence[str], links: Mapping[str, str] | None = None) -> None:
        """`links` has the target of each symbolic link to a file or a folder of the project. Links
        deeper than 32 folders count as files."""
        self._known = frozenset(paths)
        self._links = {
            link: to for link, to in (links or {}).items() if link.count("/") < _DEEPEST_LINK
        }
        self._deepest = 1 + max((link.count("/") for link in self._links), default=-1)

    @functools.cached_property
    def _reversed(self) -> list[str]:
        """The paths, each from its last character to its first, in order: those with the same end
        are neighbours."""
        return sorted(path[::-1] for path in self._known)

    @functools.cached_property
    def _by_name(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for path in sorted(self._known):
            names[path.rpartition("/")[2]].append(path)
        return names

    def named(self, stems: Iterable[str], ending: str) -> Iterator[str]:
        """The files that have one of these names and this ending, where there is one such file
        beside those of tests."""
        for stem in dict.fromkeys(stems):
            same = self._by_name.get(f"{stem}{ending}", [])
            same = [path for path in same if not is_test(path)] or same
            if len(same) == 1:
                yield same[0]

    @functools.cached_property
    def _by_folder(self) -> dict[str, list[str]]:
        folders: dict[str, list[str]] = defaultdict(list)
        for path in sorted(self._known):
            folders[path.rpartition("/")[0]].append(path)
        return folders

    def beside(self, path: str) -> list[str]:
        """The files in the folder of a file that have its ending, at most 64."""
        ending = posixpath.splitext(path)[1]
        others = self._by_folder.get(path.rpartition("/")[0], [])
        return [other for other in others if other.endswith(ending)][:_MOST_BESIDE]

    def exact(self, path: str) -> str:
        """The path of a file without links; empty where there is none."""
        end = path
        for _ in range(_MOST_LINKS if self._links else 0):
            parts = end.split("/")
            most = min(len(parts), self._deepest)
            n = next((n for n in range(most, 0, -1) if "/".join(parts[:n]) in self._links), 0)
            if not n:
                break
            end = "/".join([self._links["/".join(parts[:n])], *parts[n:]])
        return next((known for known in (end, path) if known in self._known), "")

    def resolve(self, text: str) -> str:
        """The project's path for a path in an output, which may be absolute or shortened: the
        longest path that `text` ends with, else the only path that ends with `text`; empty without
        one."""
        text = text.replace("\\", "/").removeprefix("./")
        parts = text.split("/")
        for first in self._links_in(parts):
            if path := self.exact("/".join(parts[first:]).rstrip("/")):
                return path
        ends = ("/".join(parts[first:]) for first in range(len(parts)))
        if known := next((end for end in ends if end in self._known), ""):
            return known
        wanted = f"/{text}"[::-1]
        at = bisect.bisect_left(self._reversed, wanted)
        longer = [p[::-1] for p in self._reversed[at : at + 2] if p.startswith(wanted)]
        return longer[0] if len(longer) == 1 else ""

    def _links_in(self, parts: Sequence[str]) -> list[int]:
        """Returns the indices of parts at which links begin, the longest link first."""
        begins = []
        for first in range(len(parts) if self._links else 0):
            for n in range(1, min(self._deepest, len(parts) - first) + 1):
                link = "/".join(parts[first : first + n])
                if link in self._links:
                    begins.append((len(link), first))
        return [first for _, first in sorted(begins, reverse=True)]


def places(output: str, paths: Paths) -> list[CodeLine]:
    """The places that an output names, in its order, each once."""
    located: list[tuple[int, CodeLine]] = []
    output = output[-_MOST:]
    for pattern in _PLACES:
        for match in pattern.finditer(output):
            text = match["path"]
            if any(part in text for part in _FOREIGN):
                continue
            if path := paths.resolve(text):
                located.append((match.start(), CodeLine(path, int(match["line"] or 0))))
    return list(dict.fromkeys(place for _, place in sorted(located, key=lambda pair: pair[0])))


def words(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(_WORD.findall(text[-_MOST:]))


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests, by its name or its folder."""
    pure = PurePosixPath(path)
    folders = [part.lower() for part in pure.parts[:-1]]
    if folders[:1] == ["t"] or {"test", "tests", "__tests__", "spec"} & set(folders):
        return True
    stem, *parts = pure.name.split(".")
    first, *words = re.split("[_-]", stem.lower())
    if {first, *words[-1:]} & {"test", "tests"} or first == "conftest":
        return True
    if {"test", "spec"} & {part.lower() for part in parts[:-1]}:
        return True
    of_classes, of_specs = pure.suffix in _OF_CLASSES, pure.suffix in _OF_SPECS
    return bool((of_classes and _TEST_CLASS.search(stem)) or (of_specs and _SPEC.search(stem)))


def imported_files(document: FileText, paths: Paths) -> list[str]:
    """The files of the project that a document imports, by name; each once."""
    imports: Iterable[str] = _quoted_imports(document, paths)
    ending = PurePosixPath(document.path).suffix
    if syntax.language(document.path) == "python":
        imports = _python_imports(document, paths)
    elif ending in _OF_CLASSES:
        imports = paths.named(_WORD.findall(document.text[:_MOST]), ending)
    elif ending == ".rs":
        imports = _rust_imports(document, paths)
    elif ending == ".go":  # a package is the files of a folder
        imports = paths.beside(document.path)
    return [path for path in dict.fromkeys(imports) if path != document.path]


def _python_imports(document: FileText, paths: Paths) -> Iterable[str]:
    folder = document.path.split("/")[:-1]
    for match in _PYTHON_IMPORT.finditer(document.text[:_MOST]):
        module, names, plain = match[1], match[2], match[3]
        if plain is not None:
            modules = [part.split()[0] for part in plain.split(",") if part.split()]
            yield from _modules((name.split(".") for name in modules), paths)
            continue
        dots = len(module) - len(module.lstrip("."))
        base = folder[: len(folder) - dots + 1] if dots else []
        parts = [*base, *(part for part in module.split(".") if part)]
        inner = [part.split()[0] for part in names.split(",") if part.split()]
        yield from _modules([*([*parts, name] for name in inner), parts], paths)


def _rust_imports(document: FileText, paths: Paths) -> Iterator[str]:
    """The modules that a file of Rust names, and the library that a test of it uses."""
    for statement in _RUST_USE.findall(document.text[:_MOST]):
        words = _WORD.findall(statement)
        yield from paths.named(words, ".rs")
        if words and words[0] not in ("std", "core", "alloc", "crate", "self", "super"):
            yield from filter(None, [paths.exact("src/lib.rs")])


def _modules(modules: Iterable[Sequence[str]], paths: Paths) -> Iterable[str]:
    for parts in modules:
        if not parts:
            continue
        name = "/".join(parts)
        for path in (f"{name}.py", f"{name}/__init__.py"):
            if exact := paths.exact(path):
                yield exact
            elif known := paths.resolve(path):
                yield from [known] if known.endswith("/" + path) else []


def _quoted_imports(document: FileText, paths: Paths) -> Iterable[str]:
    folder = PurePosixPath(document.path).parent
    for match in _QUOTED_IMPORT.finditer(document.text[:_MOST]):
        text = posixpath.normpath(posixpath.join("/", folder, match[1])).lstrip("/")
        endings = ("", PurePosixPath(document.path).suffix, ".ts", ".js", "/index.js", "/index.ts")
        for ending in dict.fromkeys(endings):
            if exact := paths.exact(text + ending):
                known = exact
                break
        else:
            known = paths.resolve(match[1])
        if known:
            yield known
            yield from _implementations(known, paths)


def _implementations(header: str, paths: Paths) -> Iterator[str]:
    """The files of C and C++ of a header's name, beside it or where there is one such file."""
    stem, ending = posixpath.splitext(header)
    for other in _OF_HEADERS if ending in _HEADERS else ():
        name = posixpath.basename(stem) + other
        if (
            known := paths.exact(stem + other)
            or paths.resolve(f"src/{name}")
            or paths.resolve(name)
        ):
            yield known


class Nearest:
    """The folders of some paths, as a tree."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._steps = _FAR
        self._below: dict[str, Nearest] = {}
        for path in paths:
            node, folders = self, path.split("/")[:-1]
            for n_left in range(len(folders), -1, -1):
                node._steps = min(node._steps, n_left)
                if n_left:
                    node = node._below.setdefault(folders[-n_left], Nearest(()))

    def steps(self, path: str) -> int:
        """The steps in the tree from the folder of a path to the nearest of these folders."""
        node, folders = self, path.split("/")[:-1]
        n_steps = len(folders) + node._steps
        for n_left, name in zip(range(len(folders) - 1, -1, -1), folders, strict=True):
            if (below := node._below.get(name)) is None:
                break
            node, n_steps = below, min(n_steps, n_left + below._steps)
        return n_steps


def names_of_code(task: str) -> frozenset[str]:
    """The words of a task that are meant as names of code: quoted, called, written as code is, or
    behind a word such as "rename"."""
    return words(" ".join(part for groups in _CODE_NAME.findall(task[-_MOST:]) for part in groups))


def settings_in(text: str) -> frozenset[str]:
    """The names of files of settings in a text, without their folders."""
    return frozenset(_SETTINGS.findall(text[-_MOST:]))


def missing_names(output: str) -> frozenset[str]:
    """The names that an output says a module does not have, so that its tests cannot begin."""
    return frozenset(
        name for groups in _MISSING.findall(output[-_MOST:]) for name in groups if name
    )


def lack_names(failures: Sequence[Failure]) -> bool:
    """Whether tests use a name that is not there, by the errors of a compiler or of JavaScript in a
    file of tests."""
    return any(
        _UNKNOWN.search(failure.message) for failure in failures
        if is_test(failure.reached_in if failure.reached else failure.file)
    )  # fmt: skip


def missing_files(output: str, paths: Sequence[str], task: str) -> list[str]:
    """The files that tests import and the project lacks: Python modules of an existing package, or
    with a name from the task or the test file's name; scripts that JavaScript imports by path."""
    modules = list(_NO_MODULE.finditer(output[-_MOST:]))
    scripts = list(_NO_SCRIPT.finditer(output[-_MOST:]))
    if not modules and not scripts:  # what follows looks at all paths
        return []
    wanted: list[str] = []
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    tests = " ".join(path for path in paths if is_test(path) and path in output)
    said = words(task) | words(re.sub("test_|_test", " ", tests))
    for match in modules:
        *around, name = match[1].split(".")
        folder = "/".join(around) or "."
        if around and f"src/{folder}" in folders:
            folder = f"src/{folder}"
        if folder in folders and (around or name in said):
            wanted.append(posixpath.normpath(f"{folder}/{name}.py"))
    for match in scripts:
        path, test = match[1], match[2]
        if path.startswith("."):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(test), path))
        wanted.append(path if syntax.language(path) else path + posixpath.splitext(test)[1])
    return [path for path in dict.fromkeys(wanted) if path not in paths and path[0] not in "/."]
