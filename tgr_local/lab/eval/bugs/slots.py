"""Random names and values: what the slots of a family's text are filled with.

A slot is ``{xs}`` in the text of a function; its name chooses the pool. Values are drawn by kind
(`list`, `member`, …) as Python source; a kind may depend on the arguments drawn before it.
"""

from __future__ import annotations

import ast
import random
import string
from collections.abc import Callable, Sequence

LISTS = (
    "values value", "numbers number", "items item", "scores score", "prices price", "nums num",
    "data entry", "marks mark", "points point", "sizes size", "ages age", "costs cost",
    "weights weight", "levels level", "steps step", "xs x", "counts count", "times time",
    "units unit", "rates rate", "temps temp", "rows row", "heights height", "days day",
)  # fmt: skip
WORDS = (
    "words word", "names name", "tokens token", "lines line", "parts part", "labels label",
    "tags tag", "items item", "keys key", "titles title", "strings string", "terms term",
)  # fmt: skip
POOLS: dict[str, tuple[str, ...]] = {
    "s": ("text", "s", "word", "phrase", "message", "sentence", "line", "string", "name", "source"),
    "c": ("char", "c", "ch", "letter", "symbol", "mark"),
    "n": ("count", "total", "n", "found", "hits", "matches", "number", "counter"),
    "t": ("total", "result", "acc", "amount", "value", "sum_", "answer", "score"),
    "r": ("result", "out", "found", "kept", "output", "res", "answer", "chosen", "collected"),
    "i": ("i", "index", "pos", "idx", "k", "at"),
    "j": ("j", "other", "right", "end", "m"),
    "k": ("limit", "bound", "threshold", "cutoff", "minimum", "target", "least", "top", "edge"),
    "p": ("n", "number", "value", "amount", "num", "x", "size", "count"),
    "q": ("k", "step", "factor", "base", "width", "m", "times", "divisor", "other"),
    "a": ("a", "x", "first", "left", "low", "start", "one"),
    "b": ("b", "y", "second", "right", "high", "stop", "two"),
    "d": ("counts", "table", "mapping", "groups", "lookup", "stock", "record", "scores", "data"),
    "g": ("best", "top", "chosen", "current", "winner", "leader", "answer"),
    "u": ("seen", "known", "used", "visited", "previous", "done"),
    "key": ("key", "name", "k", "label", "field"),
    "val": ("value", "v", "amount", "number", "item"),
    "o": ("other", "second", "more", "extra", "others", "rest"),
    "rows": ("rows", "grid", "matrix", "board", "lines"),
    "row": ("row", "line", "inner", "part"),
    "attr": ("items", "values", "data", "entries", "content"),
}
"""Names by slot; `xs` and `x`, `ws` and `w` are drawn in pairs from LISTS and WORDS."""
NOUNS = (
    "ant", "bee", "cat", "dog", "elk", "fox", "owl", "pig", "red", "blue", "tea", "cup", "sun",
    "map", "key", "pen", "box", "hat", "ice", "jam", "oak", "net", "log", "top", "van", "egg",
    "level", "noon", "apple", "bird", "stone", "river",
)  # fmt: skip


def names(rng: random.Random, slots: Sequence[str]) -> dict[str, str]:
    """A name for each slot, all different; a digit at the end of a slot chooses a further one."""
    chosen: dict[str, str] = {}
    for many, single, pairs in (("xs", "x", LISTS), ("ws", "w", WORDS)):
        if many in slots or single in slots:
            chosen[many], chosen[single] = rng.choice(pairs).split()
    for slot in slots:
        while slot not in chosen:
            name = rng.choice(POOLS[slot.rstrip(string.digits)])
            if name not in chosen.values():
                chosen[slot] = name
    return chosen


def _numbers(rng: random.Random, least: int, most: int, low: int = 0, high: int = 20) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def _repeated(rng: random.Random) -> list[int]:
    few = _numbers(rng, 3, 3, 1, 9)
    return [rng.choice(few) for _ in range(rng.randint(3, 6))]


def _nouns(rng: random.Random, least: int, most: int) -> list[str]:
    few = rng.sample(NOUNS, max(most, 1))
    return [rng.choice(few) for _ in range(rng.randint(least, most))]


def _member(rng: random.Random, earlier: Sequence[str]) -> object:
    """A part of the first argument, mostly, so that edges are met."""
    first = ast.literal_eval(earlier[0])
    parts = list(first) if isinstance(first, list | str | dict) else []
    if parts and rng.random() < 0.7:
        return rng.choice(parts)
    if isinstance(first, str):
        return rng.choice(string.ascii_lowercase)
    return rng.choice(NOUNS) if parts and isinstance(parts[0], str) else rng.randint(0, 20)


def _index(rng: random.Random, earlier: Sequence[str]) -> int:
    first = ast.literal_eval(earlier[0])
    return rng.randrange(len(first)) if first else 0


def _code(rng: random.Random) -> str:
    letters = "abcxyzABC"
    return "".join(rng.choice(letters + "0123456789") for _ in range(rng.randint(2, 6)))


def _phrase(rng: random.Random) -> str:
    return " ".join(_nouns(rng, 1, 4))


def _palindrome(rng: random.Random) -> str:
    half = "".join(rng.choice("abcde") for _ in range(rng.randint(1, 2)))
    middle = rng.choice(("", "x", "ab"))
    return half + middle + half[::-1] if rng.random() < 0.7 else half + middle


def _brackets(rng: random.Random) -> str:
    return rng.choice(("()", "(())", "()()", "(()", ")(", "())", "(a)", "a(b)c", "((", ""))


def _letters(rng: random.Random) -> str:
    return "".join(rng.choice("abcde") for _ in range(rng.randint(2, 4)))


def _shuffled(rng: random.Random, earlier: Sequence[str]) -> str:
    """The letters of the first argument in another order, mostly with none exchanged."""
    letters = list(ast.literal_eval(earlier[0]))
    rng.shuffle(letters)
    if rng.random() < 0.4:
        letters[0] = rng.choice("abcde")
    return "".join(letters)


def _near(rng: random.Random, earlier: Sequence[str]) -> str:
    """A string that begins as the first argument does."""
    first = str(ast.literal_eval(earlier[0]))
    return first[: rng.randint(0, len(first))] + rng.choice(("", "a", "x", "yz"))


def _doubled(rng: random.Random) -> str:
    return "".join(rng.choice("abcd") * rng.randint(1, 3) for _ in range(rng.randint(1, 3)))


def _nested(rng: random.Random) -> list[object]:
    return [_numbers(rng, 1, 2, 0, 9) if rng.random() < 0.5 else rng.randint(0, 9)
            for _ in range(rng.randint(1, 3))]  # fmt: skip


def _pairs(rng: random.Random) -> list[tuple[str, int]]:
    return [(rng.choice(NOUNS), rng.randint(0, 9)) for _ in range(rng.randint(1, 3))]


def _square(rng: random.Random) -> list[list[int]]:
    n = rng.randint(1, 3)
    return [_numbers(rng, n, n, 0, 9) for _ in range(n)]


KINDS: dict[str, Callable[[random.Random, Sequence[str]], object]] = {
    "list": lambda rng, _: _numbers(rng, 2, 5),
    "list0": lambda rng, _: _numbers(rng, 0, 4),
    "signed": lambda rng, _: _numbers(rng, 2, 5, -9, 9),
    "repeated": lambda rng, _: _repeated(rng),
    "sorted": lambda rng, _: sorted(_numbers(rng, 2, 5)),
    "distinct": lambda rng, _: sorted({*_numbers(rng, 3, 6)}),
    "bits": lambda rng, _: [rng.random() < 0.6 for _ in range(rng.randint(1, 4))],
    "words": lambda rng, _: _nouns(rng, 2, 4),
    "words0": lambda rng, _: _nouns(rng, 0, 3),
    "word": lambda rng, _: rng.choice(NOUNS),
    "text": lambda rng, _: _phrase(rng),
    "code": lambda rng, _: _code(rng),
    "mirror": lambda rng, _: _palindrome(rng),
    "brackets": lambda rng, _: _brackets(rng),
    "digits": lambda rng, _: str(rng.randint(1, 9999)),
    "int": lambda rng, _: rng.randint(0, 20),
    "any": lambda rng, _: rng.randint(-12, 12),
    "pos": lambda rng, _: rng.randint(1, 12),
    "small": lambda rng, _: rng.randint(0, 6),
    "two": lambda rng, _: rng.randint(2, 5),
    "big": lambda rng, _: rng.randint(10, 999),
    "hundred": lambda rng, _: rng.choice((0, 20, 40, 49, 50, 59, 60, 69, 70, 80, 89, 90, 100)),
    "year": lambda rng, _: rng.choice((1900, 1996, 2000, 2001, 2004, 2023, 2024, 2100)),
    "same2": lambda rng, _: _numbers(rng, 2, 2, 0, 9),
    "same3": lambda rng, _: _numbers(rng, 3, 3, 0, 9),
    "names2": lambda rng, _: rng.sample(NOUNS, 2),
    "mixed": lambda rng, _: _letters(rng),
    "shuffled": _shuffled,
    "near": _near,
    "doubled": lambda rng, _: _doubled(rng),
    "letter": lambda rng, _: rng.choice("abcelnoprst"),
    "separator": lambda rng, _: rng.choice(("-", ", ", " ", "/", "+", "")),
    "bit": lambda rng, _: rng.randint(0, 1),
    "nested": lambda rng, _: _nested(rng),
    "few": lambda rng, _: rng.choice(("tea", "jam", "egg")),
    "member": _member,
    "index": _index,
    "table": lambda rng, _: dict(_pairs(rng)),
    "rows": lambda rng, _: [_numbers(rng, 2, 2, 0, 9) for _ in range(rng.randint(1, 3))],
    "square": lambda rng, _: _square(rng),
    "pairs": lambda rng, _: _pairs(rng),
}


def arguments(rng: random.Random, kinds: str) -> list[str]:
    """The source of one list of arguments; `kinds` names each, separated by spaces."""
    sources: list[str] = []
    for kind in kinds.split():
        sources.append(repr(KINDS[kind](rng, sources)))
    return sources
