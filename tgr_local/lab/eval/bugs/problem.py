"""Whole problems: a file with a defective function, tests with their output, the repaired text.

The split into training and test problems depends on nothing but the function itself: a hash of the
correct text, the family, and the kind of the defect. So a generator for training and one for tests
share no correct function, whatever their seeds.
"""

from __future__ import annotations

import keyword
import random
import sys
from dataclasses import dataclass, replace
from typing import Literal
from zlib import crc32

from tgr_local.lab.eval.bugs import checks, defects
from tgr_local.lab.eval.bugs.checks import Check, Result
from tgr_local.lab.eval.bugs.family import Family, FamilyMember, draw, load
from tgr_local.lab.eval.bugs.output import Test, bare_output, pytest_output, unittest_output

Split = Literal["train", "test", "pairs", "families"]
"""`train`: what a model may learn from. `test`: functions that never occur there, of families and
kinds of defects that do. `pairs`: also the combination of family and kind never occurs there.
`families`: families that never occur there."""

FAMILIES: dict[str, Family] = load()
UNSEEN = frozenset(
    ("second_largest", "split_list", "count_digits", "discount", "alternate_case", "runs",
     "diagonal", "best_key", "point")
)  # fmt: skip
"""Families that are for tests alone."""
PATHS = (
    "calc", "util", "utils", "tools", "stats", "text", "lists", "helpers", "main", "maths", "core",
    "shop", "app", "basic", "funcs", "words", "numbers_", "data", "func", "module", "lib", "shapes",
)  # fmt: skip
SYLLABLES = (
    "ba", "co", "da", "fi", "ga", "ho", "ka", "lo", "ma", "ne", "or", "pa", "ro", "sa", "ta", "un",
    "ve", "wi", "ex", "ze", "score", "item", "user", "plan", "tree", "count", "part", "line", "s",
)  # fmt: skip
"""Syllables of the names of other files."""
TASKS = (
    "Make the failing test pass.", "Make the failing tests pass.", "Make the tests pass.",
    "Fix the failing test.", "Fix the bug.", "Fix the failing tests.", "Fix {path}.",
    "Fix {name}.", "Fix the bug in {name}.", "Fix the bug in `{name}`.", "Repair {name}.",
    "{name} gives wrong results.", "`{name}` is wrong.", "The test fails. Correct {path}.",
    "Find the defect and correct it.", "Please fix this.", "fix the tests", "fix {name}",
    "Correct the function {name}.", "Why does the test fail? Fix it.", "There is a bug in {path}.",
)  # fmt: skip
EXTRA_FUNCTIONS = (0.62, 0.3, 0.08)
"""Probabilities of no, one and two functions other than the defective one."""
N_CHECKS = 12


@dataclass(frozen=True)
class Bug:
    """One problem."""

    family: str
    kinds: tuple[str, ...]
    """Kinds of its defects."""
    path: str
    name: str
    """The defective function; a method as ``Class.method``."""
    file: str
    """Text of the file with the defect."""
    repaired: str
    """Text of the file without it."""
    function: str
    """The correct function with its indentation, as lines of `repaired`."""
    doc: str
    """Purpose of the function, in a sentence; empty where the family has none."""
    visible: tuple[Test, ...]
    """The tests that the problem shows; one fails."""
    hidden: tuple[Check, ...]
    """Further checks."""

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py")

    @property
    def test_path(self) -> str:
        return f"test_{self.path}"

    @property
    def results(self) -> tuple[Result, ...]:
        """Results of the visible checks on the defective file."""
        return tuple(result for test in self.visible for result in test.results)


def is_for(split: Split, draft: FamilyMember, kinds: tuple[str, ...]) -> bool:
    """Whether a function with such defects belongs to the split."""
    name = draft.family.name
    if name in UNSEEN:
        return split == "families"
    if any(_hash(f"{name} {kind}") % 12 == 0 for kind in kinds):
        return split == "pairs"
    return split == ("test" if _hash(draft.text) % 8 == 0 else "train")


def _hash(text: str) -> int:
    return crc32(text.encode())


def families(split: Split) -> list[Family]:
    """The families that the split draws from."""
    unseen = split == "families"
    return [family for name, family in FAMILIES.items() if (name in UNSEEN) == unseen]


def bug(rng: random.Random, split: Split, n_defects: int = 1, n_checks: int = N_CHECKS) -> Bug:
    """A random problem of the split, with up to `n_checks` visible and hidden checks."""
    while True:
        family = rng.choice(families(split))
        for _ in range(8):  # so that families in which most defects change nothing are met too
            problem = attempt(rng, split, family, n_defects, n_checks)
            if problem is not None:
                return problem


def attempt(
    rng: random.Random, split: Split, family: Family, n_defects: int, n_checks: int
) -> Bug | None:
    """A problem of a family; None where the drawn defect changes no result, or the function belongs
    to another split."""
    draft = draw(rng, family)
    if split in ("train", "test") and not is_for(split, draft, ()):
        return None
    quote = rng.choice("'\"")
    text = draft.text.replace("'", quote)
    if draft.doc and not family.asks and rng.random() < 0.12:
        head, _, body = text.partition("\n")
        text = f'{head}\n    """{draft.doc}"""\n{body}'
    wrong = text
    kinds: list[str] = []
    for _ in range(n_defects):
        chosen = defects.draw(rng, wrong, 1)
        if not chosen:
            return None
        wrong, kinds = chosen[0].apply(wrong).rstrip("\n"), [*kinds, chosen[0].kind]
    if not is_for(split, draft, tuple(kinds)) or not _parses(wrong):
        return None
    drawn = checks.draw(rng, draft, n_checks)
    drawn = [Check(c.setup, c.call.replace("'", quote), c.expected) for c in drawn]
    results = checks.run(wrong, drawn)
    if results is None:
        return None
    return _assemble(rng, draft, text, wrong, tuple(kinds), drawn, results)


def _parses(text: str) -> bool:
    try:
        compile(text, "<generated>", "exec")
    except SyntaxError:
        return False
    return True


def _assemble(
    rng: random.Random, draft: FamilyMember, right: str, wrong: str, kinds: tuple[str, ...],
    drawn: list[Check], results: list[Result],
) -> Bug | None:  # fmt: skip
    """The problem with its file and tests; None where no check fails."""
    failing = [i for i, c in enumerate(drawn) if not checks.passes(c, results[i])]
    if not failing or any(map(is_long, results)):
        return None
    groups = _draw_groups(rng, failing, len(drawn), is_class=bool(draft.family.asks))
    visible = [i for group in groups for i in group]
    extra = _others(rng, draft)
    at = rng.randint(0, len(extra))
    broken, fixed = ([*extra[:at], text, *extra[at:]] for text in (wrong, right))
    name, function = _changed_function(draft.name, wrong, right)
    stem = _stem(rng)
    short = name.rpartition(".")[2].lower()
    titles = [f"test_{short}", rng.choice((f"test_{short}_more", f"test_{short}_2", "test_more"))]
    shift = sum(text.count("\n") + 3 for text in extra[:at])
    tests = [
        Test(title, tuple(drawn[i] for i in group), tuple(_move(results[i], shift) for i in group))
        for title, group in zip(titles, groups, strict=False)
    ]
    return Bug(
        draft.family.name, kinds, f"{stem}.py", name, _join(broken), _join(fixed), function,
        draft.doc, tuple(tests),
        tuple(check for i, check in enumerate(drawn) if i not in visible),
    )  # fmt: skip


def _stem(rng: random.Random) -> str:
    """The name of a file: a usual one, or one that says nothing, so that it must be read."""
    while rng.random() < 0.5:
        parts = [rng.choice(SYLLABLES) for _ in range(rng.choice((1, 2, 2, 3)))]
        name = rng.choice(("", "", "_")).join(parts)
        if not keyword.iskeyword(name) and name not in sys.stdlib_module_names:
            return name
    return rng.choice(PATHS)


def is_long(result: Result) -> bool:
    """Whether a result takes too much room in an output."""
    return len(repr(result.value)) > checks.LONGEST or result.depth > 1


def _draw_groups(
    rng: random.Random, failing: list[int], n: int, *, is_class: bool
) -> list[list[int]]:
    """Draws the checks of the visible tests, one list for each test function."""
    first = rng.choice(failing)
    if is_class:
        return [[first]]
    more = rng.sample([i for i in range(n) if i != first], min(n - 1, rng.choice((0, 1, 1, 2))))
    group = [*more, first]
    rng.shuffle(group)
    if rng.random() < 0.2:
        unused = [i for i in range(n) if i not in group]
        return [group, unused[:1]] if unused else [group]
    return [group]


def _move(result: Result, n_lines: int) -> Result:
    """A result whose line counts from the beginning of the file."""
    if not result.error:
        return result
    return replace(result, line=result.line + n_lines)


def _others(rng: random.Random, draft: FamilyMember) -> list[str]:
    """Correct functions next to the defective one."""
    n = rng.choices(range(len(EXTRA_FUNCTIONS)), EXTRA_FUNCTIONS)[0]
    functions: dict[str, str] = {draft.name: ""}
    while len(functions) <= n:
        extra = draw(rng, rng.choice([f for f in families("train") if not f.asks]))
        if extra.name not in functions and is_for("train", extra, ()):
            functions[extra.name] = extra.text
    return [text for text in functions.values() if text]


def _join(texts: list[str]) -> str:
    return "\n\n\n".join(texts) + "\n"


def _changed_function(name: str, wrong: str, right: str) -> tuple[str, str]:
    """Name and correct text of the function that the defect is in; of a class, its first method
    that differs."""
    if not right.startswith("class "):
        return name, right
    for mine, theirs in zip(right.split("\n\n"), wrong.split("\n\n"), strict=True):
        if mine != theirs:
            lines = mine.split("\n")
            start = next(i for i, line in enumerate(lines) if line.startswith("    def "))
            method = lines[start].split("def ")[1].split("(")[0]
            return f"{name}.{method}", "\n".join(lines[start:])
    raise ValueError("the texts are equal")


def task(rng: random.Random, problem: Bug) -> str:
    """The person's sentence."""
    if problem.doc and rng.random() < 0.15:
        return problem.doc
    return rng.choice(TASKS).format(path=problem.path, name=problem.name)


def output(rng: random.Random, problem: Bug, text: str = "") -> str:
    """The end of a runner's output for the visible tests, in one of the usual forms."""
    text = text or problem.file
    failing = next(test for test in problem.visible if test.failing is not None)
    kind = rng.random()
    if kind < 0.08:
        return bare_output(failing, text, problem.path, problem.test_path, 4)
    if kind < 0.16:
        return unittest_output(failing, problem.module, problem.test_path, 9)
    seconds = f"0.{rng.randint(1, 9):02}"
    printed = pytest_output(problem.visible, problem.module, text, problem.test_path, seconds)
    return end_of(printed, rng)


def end_of(printed: str, rng: random.Random) -> str:
    """The output, mostly without its beginning, as a budget of tokens cuts it."""
    lines = printed.rstrip("\n").split("\n")
    marked = next(i for i, line in enumerate(lines) if line.startswith(">"))
    starts = (0, 0, 1, marked, marked, marked, max(2, marked - 1), rng.randint(0, marked))
    start = rng.choice(starts)
    said = [f"[... {start} lines before]"] if start and rng.random() < 0.7 else []
    return "\n".join([*said, *lines[start:]]) + "\n"


def user_message(path: str, text: str, wish: str, printed: str) -> str:
    """The message of the code assistant (`tgr_local.code.reading.prompt`) for one file."""
    return f"`{path}`:\n```python\n{text}```\n\n{wish}\n\nThe tests fail:\n```\n{printed}```\n"
