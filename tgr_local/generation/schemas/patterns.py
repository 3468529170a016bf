"""GBNF of the JSON texts that a regular expression matches.

The dialect is what ECMAScript and Python have in common. A class such as ``\\d`` or ``.`` stands
for what it means in both, so the grammar may allow less than the expression, and never more. What
no grammar has (lookarounds, back references, ``\\b``) raises ValueError with its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

REPEATS_MOST = 2000
"""Repetitions that a grammar may demand."""
_LENGTH_MOST, _NESTED_MOST = 4096, 40
_LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
# characters that stand in a JSON text as they are
PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, _LAST))
_ESCAPED = {0x22: '"\\\\\\""', 0x5C: '"\\\\\\\\"', 8: '"\\\\b"', 9: '"\\\\t"', 10: '"\\\\n"',
            12: '"\\\\f"', 13: '"\\\\r"'}  # fmt: skip
_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACES: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_ASCII: Ranges = ((0x20, 0x7E),)
_LINES: Ranges = ((0x0A, 0x0D), (0x85, 0x85), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}


@dataclass(frozen=True)
class Pattern:
    """Texts that a regular expression, or a part of one, allows."""

    body: str
    """GBNF of what stands between the quotes."""
    least: int
    most: int | None
    """Characters of a text, None = without an end."""
    single: str = ""
    """GBNF of the class if the whole pattern is one repeated class."""


def subtracted(ranges: Ranges, others: Ranges) -> Ranges:
    """The characters of some ranges that others do not have."""
    left: list[tuple[int, int]] = []
    without, at = _sorted(others), 0
    for first, last in _sorted(ranges):
        while at < len(without) and without[at][1] < first:
            at += 1
        n = at
        while n < len(without) and without[n][0] <= last:
            if first < without[n][0]:
                left.append((first, without[n][0] - 1))
            first = without[n][1] + 1
            n += 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def _sorted(ranges: Ranges) -> Ranges:
    """Returns the same characters as sorted ranges, none of which meets another."""
    if len(ranges) < 2:
        return ranges
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


_ANY_OF_A_LINE = subtracted(((0x20, _LAST),), _LINES)
_NOT_PLAIN = subtracted(((0, _LAST),), PLAIN)


@lru_cache(maxsize=256)
def character(ranges: Ranges) -> str:
    """GBNF of one character of some ranges, as JSON writes it. ValueError where there is none."""
    inside = _sorted(ranges)
    plain = subtracted(inside, _NOT_PLAIN)
    choices = ["[" + "".join(map(_range, plain)) + "]"] if plain else []
    choices += [
        text for code, text in _ESCAPED.items() if any(low <= code <= high for low, high in inside)
    ]
    if not choices:
        raise ValueError("a class without any character")
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"


def _range(characters: tuple[int, int]) -> str:
    low, high = characters
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _code(code: int) -> str:
    return f"\\U{code:08X}" if code > 0xFF else f"\\x{code:02X}"


ANY = character(PLAIN)


@lru_cache(maxsize=16)
def pattern(expression: str) -> Pattern:
    """Returns the pattern of texts in which a schema's regular expression matches somewhere. Raises
    ValueError that names what is wrong or has no grammar."""
    if len(expression) > _LENGTH_MOST:
        raise ValueError(f"{len(expression)} characters, but it may have {_LENGTH_MOST}")
    reader = _PatternReader(expression)
    body = reader.alternatives(top=True)
    if reader.at < len(expression):
        raise ValueError("a parenthesis that was not opened")
    return body


class _PatternReader:
    """Reads an expression once, from its first character to its last."""

    def __init__(self, expression: str) -> None:
        self._text, self.at, self._depth = expression, 0, 0

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self.at)

    def _take(self) -> str:
        if self.at >= len(self._text):
            raise ValueError("an end where something must follow")
        self.at += 1
        return self._text[self.at - 1]

    def alternatives(self, *, top: bool) -> Pattern:
        """Reads the alternatives between the bars; at the `top`, with any text before and after
        it."""
        branches = [self._sequence(top)]
        while self._peek("|"):
            self.at += 1
            branches.append(self._sequence(top))
        most = [branch.most for branch in branches]
        return Pattern(
            body=" | ".join(branch.body for branch in branches),
            least=min(branch.least for branch in branches),
            most=None if None in most else max(length for length in most if length is not None),
            single=branches[0].single if len(branches) == 1 else "",
        )

    def _sequence(self, top: bool) -> Pattern:
        parts: list[Pattern] = []
        begins = ends = False
        while self.at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if self._peek("^") and top and not parts and not begins:
                begins, self.at = True, self.at + 1
            elif self._peek("$") and top and self._text[self.at + 1 : self.at + 2] in ("", "|"):
                ends, self.at = True, self.at + 1
            else:
                parts.append(self._repeated(self._atom()))
        around = Pattern(f"{ANY}*", 0, None)
        parts = [*([around] if top and not begins else []), *parts,
                 *([around] if top and not ends else [])]  # fmt: skip
        most = [part.most for part in parts]
        return Pattern(
            " ".join(part.body for part in parts) or '""',
            sum(part.least for part in parts),
            None if None in most else sum(length for length in most if length is not None),
            parts[0].single if len(parts) == 1 else "",
        )

    def _atom(self) -> Pattern:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return self._of(_ANY_OF_A_LINE)
        if char == "\\":
            return self._of(self._escape())
        if char in "^$":
            raise ValueError(f"{char} within the expression")
        if char in "*+?":
            raise ValueError(f"{char} with nothing to repeat")
        return self._of(((ord(char), ord(char)),))

    def _of(self, ranges: Ranges) -> Pattern:
        ((low, high), *more) = ranges or ((0, -1),)
        is_plain = low == high and not more and any(a <= low <= b for a, b in PLAIN)
        text = f"[{_code(low)}]" if is_plain else character(ranges)
        return Pattern(text, 1, 1, text)

    def _group(self) -> Pattern:
        if self._peek("?"):
            if not self._peek("?:"):
                raise ValueError(f"the group ({self._text[self.at : self.at + 2]}…)")
            self.at += 2
        self._depth += 1
        if self._depth > _NESTED_MOST:
            raise ValueError(f"more than {_NESTED_MOST} levels of groups")
        inner = self.alternatives(top=False)
        if not self._peek(")"):
            raise ValueError("a group without an end")
        self.at += 1
        self._depth -= 1
        return Pattern(f"({inner.body})", inner.least, inner.most)

    def _repeated(self, part: Pattern) -> Pattern:
        low, high = self._times()
        if (low, high) == (1, 1):
            return part
        if self._peek("?"):  # lazy, which matches the same texts
            self.at += 1
        if self.at < len(self._text) and self._text[self.at] in "*+{":
            raise ValueError("a repetition of a repetition")
        if low > REPEATS_MOST:
            raise ValueError(f"{low} repetitions, but a grammar can demand {REPEATS_MOST}")
        most = None if high is None or part.most is None else part.most * high
        return Pattern(
            part.body + times(low, high), part.least * low, most, part.single and part.body
        )

    def _times(self) -> tuple[int, int | None]:
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        for sign, sign_bounds in signs.items():
            if self._peek(sign):
                self.at += 1
                return sign_bounds
        end = self._text.find("}", self.at)
        if not self._peek("{") or end < 0:
            return 1, 1
        least, comma, most = self._text[self.at + 1 : end].partition(",")
        if not (least.isascii() and least.isdigit() and (not most or most.isdigit())):
            return 1, 1  # a brace
        self.at = end + 1
        if len(least) > 9 or len(most) > 9:
            raise ValueError("a repetition of more than nine digits")
        bounds = int(least), int(most) if most else None if comma else int(least)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise ValueError("a repetition that ends before it begins")
        return bounds

    def _class(self) -> Pattern:
        negated = self._peek("^")
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while not self._peek("]"):
            low = self._member()
            is_one = len(low) == 1 and low[0][0] == low[0][1]
            if is_one and self._peek("-") and not self._peek("-]"):
                self.at += 1
                high = self._member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise ValueError("a range of characters without an end")
                low = ((low[0][0], high[0][0]),)
            ranges += low
        self.at += 1
        given = tuple(ranges)
        return self._of(subtracted(((0x20, _LAST),), given) if negated else given)

    def _member(self) -> Ranges:
        char = self._take()
        return self._escape() if char == "\\" else ((ord(char), ord(char)),)

    def _escape(self) -> Ranges:
        char = self._take()
        if char in "dDwWsS":
            ranges = {"d": _DIGITS, "w": _WORD, "s": _SPACES}[char.lower()]
            return ranges if char.islower() else subtracted(_ASCII, ranges)
        if char in "xu":
            length = 2 if char == "x" else 4
            digits = self._text[self.at : self.at + length]
            self.at += length
            try:
                code = int(digits, 16) if len(digits) == length else -1
            except ValueError:
                code = -1
            if code < 0:
                raise ValueError(f"the escape \\{char}{digits}")
            return ((code, code),)
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char.isascii() and char.isalnum():
            raise ValueError(f"the escape \\{char}")
        return ((ord(char), ord(char)),)


def times(low: int, high: int | None) -> str:
    """Returns the GBNF suffix that repeats what stands before it."""
    plain = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    if plain:
        return plain
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
