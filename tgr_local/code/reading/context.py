"""Parts of a project that the prompt shows, ranked and cut to a budget of tokens.

In: the project's files, the task, the output of failing tests, the files that the person names.
Out: a `Context`: the text of the prompt, and the documents that an edit may change. For every file
it says whether the file is shown whole, in part, as an outline or not at all, and gives the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tgr_local.code import edits
from tgr_local.code.edits import FileText, Function, syntax
from tgr_local.code.edits.syntax import Definition
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.reading import evidence, outline, prompt, reach
from tgr_local.code.reading.evidence import CodeLine, Paths

_MOST_FILES = 2000
"""Files whose definitions are compared with the task."""
_MOST_CHARACTERS = 8 << 20
"""Largest number of characters of those files together."""
_TEST_FILES = 64
"""Test files in which the names of failing checks are looked for."""
_MOST_WHOLE = 8
"""Files that may be changed where the person names none."""
_OUTLINE_SHARE = 0.25
"""Largest share of the budget for outlines of other files."""
_ENOUGH = 1.0
"""A rank from which a file is shown whole."""
NO_ROOM = "the budget is spent"
"""Why a file that may matter is not shown."""


@dataclass(frozen=True)
class Shown:
    """One file of the prompt."""

    path: str
    how: Literal["whole", "functions", "outline"]
    why: str
    n_tokens: int
    changeable: bool
    functions: tuple[str, ...] = ()
    """The names of the functions that are shown whole, where the file is shown in part."""


@dataclass(frozen=True)
class Context:
    """Contents of the prompt."""

    text: str
    """The beginning of the user message."""
    documents: tuple[FileText, ...]
    """Documents that an edit may change, whole."""
    shown: tuple[Shown, ...]
    left_out: tuple[tuple[str, str], ...]
    """Files of the project that are not shown, each with the reason."""
    refused: tuple[str, ...]
    """Reason why files that the task points to may not be changed."""
    n_tokens: int
    budget: int
    fence: str
    """A fence of backticks, longer than any in the documents."""

    @functools.cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions that an edit may replace: all functions of documents that are shown whole,
        and the shown functions of the others."""
        changeable_files = {file.path: file for file in self.shown if file.changeable}
        functions: list[Function] = []
        for document in self.documents:
            file = changeable_files[document.path]
            all_functions = functions_of(document)
            functions += (
                f for f in all_functions if file.how == "whole" or f.name in file.functions
            )
        return tuple(functions)


@dataclass(frozen=True)
class Wish:
    """Task that the context is made for."""

    task: str
    output: str = ""
    """Output of the tests that fail; empty without any."""
    named_paths: tuple[str, ...] = ()
    """The files that the person names, the only ones that may be changed then."""
    script: str = ""
    """A shell script that runs the tests. It counts as a test."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Target of each symbolic link to a file or a folder of the project."""
    failures: tuple[Failure, ...] = ()
    """The tests that fail."""


def make_context(
    paths: Sequence[str],
    read: Callable[[str], FileText | None],
    wish: Wish,
    budget: int,
    count: prompt.CountTokens,
    refusal: Callable[[str], str] = lambda path: "",
) -> Context:
    """The context of a task. `paths` are all files of the project. `read` returns the text of a
    file, or None where it is not text. `refusal` returns the reason why a file may not be changed.

    Raises ValueError where a file that the person names neither fits into the budget nor has
    functions that do.
    """
    return _Builder(paths, read, wish, budget, count, refusal).build()


@dataclass
class _Ranked:
    path: str
    rank: float
    why: str


@dataclass
class _Builder:
    paths: Sequence[str]
    read: Callable[[str], FileText | None]
    wish: Wish
    budget: int
    count: prompt.CountTokens
    refusal: Callable[[str], str]
    documents: dict[str, FileText | None] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    n_tokens: int = 0
    fence: str = "```"

    def build(self) -> Context:
        ranked = self._rank_files()
        wanted = self._choose_files(ranked)
        texts = [document.text for path in wanted if (document := self._document(path))]
        self.fence = edits.fence_for(texts)
        for path, why in wanted.items():
            self._add_file(path, why)
        self._add_tests()
        self._add_outlines(ranked)
        changeable = [file.path for file in self.shown if file.changeable]
        documents = [document for path in changeable if (document := self._document(path))]
        return Context(
            text="\n".join(self.blocks),
            documents=tuple(documents),
            shown=tuple(self.shown),
            left_out=tuple(self.left_out.items()),
            refused=tuple(self.refused.values()),
            n_tokens=self.n_tokens,
            budget=self.budget,
            fence=self.fence,
        )

    # ---- ranking ----

    def _document(self, path: str) -> FileText | None:
        if path not in self.documents:
            self.documents[path] = self.read(path)
        return self.documents[path]

    def _is_test(self, path: str) -> bool:
        return evidence.is_test(path) or path == self.wish.script

    def _places(self) -> list[CodeLine]:
        return [*self._named_checks, *self._places_in_output]

    @functools.cached_property
    def _places_in_output(self) -> list[CodeLine]:
        return evidence.places(self.wish.output, Paths(self.paths, self._links()))

    @functools.cached_property
    def _named_checks(self) -> list[CodeLine]:
        tests = [path for path in self.paths if self._is_test(path)][:_TEST_FILES]
        if all(failure.file for failure in self.wish.failures):
            return []
        texts = [document for path in tests if (document := self._document(path))]
        return reach.checks(self.wish.failures, texts)

    def _links(self) -> dict[str, str]:
        """The links, but for files that the person names: these go by the person's name."""
        links = self.wish.links.items()
        return {link: end for link, end in links if link not in self.wish.named_paths}

    def _rank_files(self) -> list[_Ranked]:
        """The project's code, the most concerned first."""
        links = self._links()
        known, places = Paths(self.paths, links), self._places()
        seeds = list(dict.fromkeys([*self.wish.named_paths, *(place.path for place in places)]))
        code = [
            path for path in self.paths
            if syntax.language(path) and known.exact(path) == path  # each file under one name
        ]  # fmt: skip
        nearest = evidence.Nearest(seeds)
        code.sort(key=nearest.steps if seeds else lambda path: 0)
        looked, n_characters = [], 0
        for path in code[:_MOST_FILES]:
            document = self._document(path)
            if document is None:
                self.left_out[path] = "no text"
                continue
            n_characters += len(document.text)
            if n_characters > _MOST_CHARACTERS:
                break
            looked.append(document)
        known_paths = {document.path for document in looked}
        for path in code:
            if path not in known_paths:
                self.left_out.setdefault(path, "not looked at: the project is large")
        defines = {document.path: _names(document) for document in looked}
        owners = Counter(name for names in defines.values() for name in names)
        words = evidence.words(self.wish.task) | evidence.words(self.wish.output)
        imports = {document.path: evidence.imported_files(document, known) for document in looked}
        imported = {path for seed in seeds for path in imports.get(seed, ())}
        called = self._called(places, seeds, imports)
        uses = _any_of(evidence.names_of_code(self.wish.task) & owners.keys())
        concerned = set(seeds)
        ranked = []
        for document in looked:
            path = document.path
            mentions = sum(1 / owners[name] for name in defines[path] & words)
            reasons = [
                (8.0 if path.rpartition("/")[2] in self.wish.task else 0.0, "named in the task"),
                (4.0 if path in imported else 0.0, "imported by a file that is concerned"),
                (3.0 if path in called else 0.0, "called by what fails"),
                (3.0 if uses and uses.search(document.text) else 0.0, "uses what the task names"),
                (2.0 * min(mentions, 3.0), "its names are mentioned"),
                (
                    0.0 if concerned.isdisjoint(imports[path]) else 1.0,
                    "imports a file that is concerned",
                ),
            ]
            distance = nearest.steps(path) if seeds else path.count("/")
            rank = sum(points for points, _ in reasons) - 0.25 * distance
            best, why = max(reasons, key=lambda reason: reason[0])
            ranked.append(_Ranked(path, rank, why if best else "nearby"))
        ranked += self._settings([*seeds, *imported, *called], known_paths)
        ranked.sort(key=lambda file: -file.rank)
        return ranked

    def _called(
        self, places: Sequence[CodeLine], seeds: Sequence[str], imports: Mapping[str, list[str]]
    ) -> set[str]:
        """The files that define what the failing code calls, as far as names tell. The search goes
        through the files that the output names and their imports, direct or not."""
        waiting = [path for path in seeds if path in imports]
        closure = dict.fromkeys(waiting)
        while waiting:
            more = [p for p in imports[waiting.pop()] if p in imports and p not in closure]
            closure.update(dict.fromkeys(more))
            waiting += more
        documents = [document for path in closure if (document := self._document(path))]
        texts = []
        with_lines = {place.path for place in places if place.line}
        for place in places:
            document = self._document(place.path)
            is_vague = place.path in with_lines and not place.line
            if document is None or is_vague or place.path not in closure:
                continue
            all_functions = reach.functions(document)
            texts_at_line = [
                f.text for f in all_functions if f.lines[0] <= place.line <= f.lines[1]
            ]
            texts += texts_at_line or [document.text]
        reached = reach.reach(evidence.words("\n".join(texts)), documents)
        return {d.path for d in documents if not reached.isdisjoint(_names(d, values=True))}

    def _settings(self, concerned: Sequence[str], known: Collection[str]) -> list[_Ranked]:
        """The files of settings that the task, the output or a concerned file names."""
        named_in_task = evidence.settings_in(self.wish.task)
        documents = (self._document(path) for path in dict.fromkeys(concerned))
        read_by_failing = evidence.settings_in(self.wish.output).union(
            *(evidence.settings_in(document.text) for document in documents if document)
        )
        names = {path: path.rpartition("/")[2] for path in self.paths if path not in known}
        named_files = [
            (path, name) for path, name in names.items() if name in named_in_task | read_by_failing
        ]
        return [
            _Ranked(path, 8.0, "named in the task") if name in named_in_task
            else _Ranked(path, 1.5, "read by what fails")
            for path, name in named_files
        ]  # fmt: skip

    def _choose_files(self, ranked: Sequence[_Ranked]) -> dict[str, str]:
        """The files that may be changed, each with the reason."""
        if self.wish.named_paths:
            return dict.fromkeys(self.wish.named_paths, "you named it")
        wanted = {}
        for place in reversed(self._places()):  # the innermost call comes last
            if not self._is_test(place.path):
                wanted[place.path] = "in the traceback"
        sources = [file for file in ranked if not self._is_test(file.path)]
        for file in sources:
            if file.rank >= _ENOUGH:
                wanted.setdefault(file.path, file.why)
        for path in evidence.missing_files(self.wish.output, self.paths, self.wish.task):
            wanted.setdefault(path, "imported by the tests")
            self.documents[path] = self._document(path) or FileText(path, "")
        if not wanted:  # nothing points anywhere: as many as fit
            wanted = {file.path: file.why for file in sources}
        changeable: dict[str, str] = {}
        for path, why in wanted.items():
            if len(changeable) == _MOST_WHOLE:
                break
            if reason := self.refusal(path):
                self.left_out[path] = self.refused[path] = reason
            else:
                changeable[path] = why
        return changeable

    # ---- files that may be changed ----

    def _add_file(self, path: str, why: str) -> None:
        document = self._document(path)
        if document is None:
            if path in self.wish.named_paths:
                raise ValueError(f"{path} is no text file; name another")
            self.left_out[path] = "no text"
            return
        note = "" if document.text else "empty; write it"
        why = why if document.text else f"{why}; it is empty, or not there yet"
        block = prompt.file_block(path, document.text, self.fence, note)
        if self._add(block, Shown(path, "whole", why, 0, True)):
            return
        names, block = self._excerpt(document)
        if names and self._add(block, Shown(path, "functions", why, 0, True, names)):
            return
        if path not in self.wish.named_paths:
            return  # its outline may fit
        n = self.count(document.text)
        raise ValueError(
            f"{path} has {n} tokens, but the context has room for {self.budget - self.n_tokens} of "
            f"{self.budget}, and no function in it fits that the task names; name one, name fewer "
            "files, or raise context_tokens"
        )

    def _add(self, block: str, file: Shown) -> bool:
        """Adds a block if the budget has room for it."""
        n = self.count(block) + 1
        if self.n_tokens + n > self.budget:
            return False
        self.n_tokens += n
        self.blocks.append(block)
        self.shown.append(dataclasses.replace(file, n_tokens=n))
        self.left_out.pop(file.path, None)
        return True

    def _excerpt(self, document: FileText) -> tuple[tuple[str, ...], str]:
        """Returns the names of the concerned functions that fit, and the block of a long file:
        these functions, and a line for everything else that it defines."""
        room = self.budget - self.n_tokens
        chosen: list[Definition] = []
        block = ""
        for function in self._concerned_functions(document):
            more = sorted([*chosen, function], key=lambda f: f.first)
            text = _functions_text(document, more)
            longer = prompt.file_block(document.path, text, self.fence, _EXCERPT)
            if self.count(longer) + 1 <= room:
                chosen, block = more, longer
        return tuple(function.name for function in chosen), block

    def _concerned_functions(self, document: FileText) -> list[Definition]:
        """The functions of a file that the traceback or the task names, the surest first."""
        lines = [place.line for place in self._places() if place.path == document.path]
        words = evidence.words(self.wish.task), evidence.words(self.wish.output)
        ranked: list[tuple[int, Definition]] = []
        nameable = {function.name for function in functions_of(document)}  # by an edit
        for function in outline.outline(document).functions:
            if function.name not in nameable and not function.is_test:
                continue
            name = function.name.rpartition(".")[2]
            points = 4 * any(function.first <= line <= function.last for line in lines)
            points += 3 * (name in words[0]) + (name in words[1])
            if points:
                ranked.append((points, function))
        return [function for _, function in sorted(ranked, key=lambda pair: -pair[0])]

    # ---- what is shown beside them ----

    def _add_tests(self) -> None:
        """The tests that the task names, and the functions of tests that failed, unless the output
        shows them. A test that could not begin is shown whole."""
        printed = {line.strip(" >\t") for line in self.wish.output.split("\n")}
        whys = {
            path: "a test that the task names" for path in self.paths
            if self._is_test(path) and path.rpartition("/")[2] in self.wish.task
        }  # fmt: skip
        if self.wish.script and self.wish.output:
            whys.setdefault(self.wish.script, "it runs the tests")
        lines: dict[str, list[int]] = {path: [] for path in whys}
        for place in self._places():
            if self._is_test(place.path):
                lines.setdefault(place.path, []).append(place.line)
        for path, numbers in lines.items():
            if self._is_shown(path) or (document := self._document(path)) is None:
                continue
            why = whys.get(path, "a test that fails")
            all_functions = outline.outline(document).functions
            failing = [f for f in all_functions if any(f.first <= n <= f.last for n in numbers)]
            chosen = [f for f in failing if not _is_printed(document, f, numbers, printed)]
            if failing and not chosen and path not in whys:
                self.left_out[path] = "a test; the output shows what failed"
                continue
            if not any(numbers):  # the output names no line of it
                chosen = [f for f in all_functions if self._is_said(f)]
            if not chosen or path in whys:
                chosen = [] if self._add_test(document, why) else list(chosen or all_functions)
            while chosen and not self._add_test(document, why, chosen):
                chosen = chosen[: len(chosen) // 2]
            if not self._is_shown(path):
                self.left_out[path] = NO_ROOM

    def _add_test(self, document: FileText, why: str, functions: Sequence[Definition] = ()) -> bool:
        """Adds functions of a test, or without any the file, if the budget has room for it."""
        text = _functions_text(document, functions, alone=True) if functions else document.text
        block = prompt.file_block(document.path, text, self.fence, "a test, not to be changed")
        names = tuple(function.name for function in functions)
        how: Literal["whole", "functions"] = "functions" if functions else "whole"
        return self._add(block, Shown(document.path, how, why, 0, False, names))

    def _is_said(self, function: Definition) -> bool:
        """Whether the output names a test."""
        name = function.name.rpartition(".")[2]
        if function.is_test:
            return name in syntax.words_of(self.wish.output)
        return name in evidence.words(self.wish.output)

    def _add_outlines(self, ranked: Sequence[_Ranked]) -> None:
        """Outlines of the other files, as many as fit."""
        limit = min(self.budget, self.n_tokens + math.floor(_OUTLINE_SHARE * self.budget))
        for file in ranked:
            if self._is_shown(file.path) or self.left_out.get(file.path, "").startswith("a test"):
                continue
            document = self._document(file.path)
            if document is None:
                continue
            file_outline = outline.outline(document)
            if not file_outline.definitions:
                self.left_out[file.path] = file_outline.problem or "it defines nothing"
                continue
            block = f"`{file.path}` (outline):\n{outline.outline_text(file_outline.definitions)}\n"
            n = self.count(block) + 1
            fits = self.n_tokens + n <= limit
            why = "; ".join(filter(None, (file.why, self.refused.get(file.path))))
            if not (fits and self._add(block, Shown(file.path, "outline", why, 0, False))):
                self.left_out[file.path] = NO_ROOM
        for path in self.paths:
            if not self._is_shown(path) and path not in self.left_out:
                self.left_out[path] = "no code"

    def _is_shown(self, path: str) -> bool:
        return any(file.path == path for file in self.shown)


_VALUE = re.compile(
    r"^(?:export )?(?:const |let |var )?(\w{1,99})(?: ?:[^=\n]{1,99})? ?=", re.MULTILINE
)
_EXCERPT = "in part: what is not shown whole has one line"


def functions_of(document: FileText) -> list[Function]:
    """The functions of a file that an edit can name; in Python files also those inside other
    functions."""
    if syntax.language(document.path) == "python":
        return edits.functions_of(document)
    definitions = (f for f in outline.outline(document).functions if not f.is_test)
    return [Function(document.path, f.name, f.first, f.last) for f in definitions]


def _names(document: FileText, *, values: bool = False) -> frozenset[str]:
    """The last part of each name that a document defines; with `values` also names assigned at its
    top level. Names of one or two letters are left out: they say nothing."""
    definitions = outline.outline(document).definitions
    names = [d.name.rpartition(".")[2] for d in definitions if not d.is_test]
    names += _VALUE.findall(document.text) if values else []
    return frozenset(name for name in names if len(name) > 2 and not name.startswith("__"))


def _any_of(names: Collection[str]) -> re.Pattern[str] | None:
    """An expression for any of some names as a word; None without names."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b") if names else None


def _is_printed(
    document: FileText, function: Definition, numbers: Sequence[int], printed: Collection[str]
) -> bool:
    """Whether an output contains a function up to the last of these lines, as pytest prints it."""
    last = max(n for n in numbers if function.first <= n <= function.last)
    lines = document.text.split("\n")[function.first - 1 : last]
    return all(line.strip(" >\t") in printed for line in lines if line.strip())


def _functions_text(document: FileText, whole: Sequence[Definition], *, alone: bool = False) -> str:
    """The functions in `whole`, and a line for each other definition, unless they are `alone`."""
    lines = document.text.split("\n")
    names = {function.name for function in whole}
    parts = []
    for definition in outline.outline(document).definitions:
        if definition.name in names:
            parts.append("\n".join(lines[definition.first - 1 : definition.last]))
        elif not alone or any(name.startswith(definition.name + ".") for name in names):
            parts.append(outline.line(definition))
    return "\n".join(parts) + "\n"
