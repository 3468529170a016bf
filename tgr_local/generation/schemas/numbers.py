"""GBNF of the JSON numbers between two bounds, written without an exponent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

_DIGITS = 16  # of a whole number; of a fraction where no bound is near: 6, so that a float keeps it
_MOST = 10**_DIGITS - 1
INTEGER = '"-"? ("0" | [1-9] [0-9]{0,15})'
NUMBER = f'{INTEGER} ("." [0-9]{{1,16}})? ([eE] [-+]? [0-9]{{1,2}})?'


@dataclass(frozen=True)
class NumberRange:
    """Numbers from `low` to `high`; None = without an end."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    """Whether the bound itself does not belong to it."""
    high_open: bool = False

    def within(self, other: NumberRange) -> NumberRange:
        """The numbers that both have."""
        low, low_open = self.low, self.low_open
        if other.low is not None and (low is None or other.low >= low):
            low, low_open = other.low, other.low_open or (other.low == low and low_open)
        high, high_open = self.high, self.high_open
        if other.high is not None and (high is None or other.high <= high):
            high, high_open = other.high, other.high_open or (other.high == high and high_open)
        return NumberRange(low, high, low_open, high_open)

    def holds(self, value: Fraction) -> bool:
        """Whether a number belongs to it."""
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        below = (
            self.high is None or value < self.high or (value == self.high and not self.high_open)
        )
        return above and below

    @property
    def empty(self) -> bool:
        """Whether it has no number."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or not (self.low != self.high or self.holds(self.low))

    def negative(self) -> NumberRange:
        """Returns the interval of the negated numbers."""
        low = None if self.low is None else -self.low
        high = None if self.high is None else -self.high
        return NumberRange(high, low, self.high_open, self.low_open)

    def whole(self, scale: int = 1) -> tuple[int, int]:
        """The first and the last whole number of it, times `scale`."""
        low, high = -_MOST * scale, _MOST * scale
        if self.low is not None:
            exact = self.low * scale
            low = max(low, ceil(exact) + (self.low_open and exact.denominator == 1))
        if self.high is not None:
            exact = self.high * scale
            high = min(high, floor(exact) - (self.high_open and exact.denominator == 1))
        return low, high


_POSITIVE = NumberRange(low=Fraction(0))


def integers(interval: NumberRange, step: int = 1) -> str:
    """GBNF of the whole numbers of an interval that `step`, a power of ten, divides. Empty where
    there are none."""
    if interval == NumberRange() and step == 1:
        return INTEGER
    low, high = interval.whole()
    low, high = -(-low // step), high // step
    zeros = f' "{str(step)[1:]}"' if step > 1 else ""
    choices = []
    if low < 0:
        choices.append(f'"-" ({_whole(max(1, -high), -low)}){zeros}')
    if low <= 0 <= high:
        choices.append('"0"')
    if high > 0:
        choices.append(f"({_whole(max(1, low), high)}){zeros}")
    return " | ".join(choices) if low <= high else ""


def numbers(interval: NumberRange) -> str:
    """GBNF of the numbers of an interval. Empty where it has none that can be written."""
    if interval == NumberRange():
        return NUMBER
    choices = list(_decimals(interval.within(_POSITIVE), ""))
    below = interval.negative().within(NumberRange(low=Fraction(0), low_open=True))
    choices += _decimals(below, '"-" ')
    return " | ".join(choices)


def _decimals(interval: NumberRange, sign: str) -> Iterator[str]:
    """Whole numbers, and numbers with a point, of an interval from 0 on."""
    if interval.empty:
        return
    low, high = interval.whole()
    if low <= high:
        yield f"{sign}({_whole(low, high)})"
    low_part = floor(interval.low or 0)
    high_part = _MOST if interval.high is None else min(_MOST, floor(interval.high))
    if high_part - low_part > 1:
        yield f'{sign}({_whole(low_part + 1, high_part - 1)}) "." [0-9]{{1,6}}'
    for part in dict.fromkeys((low_part, high_part)):  # the bounds lie in these
        inside = interval.within(
            NumberRange(Fraction(part), Fraction(part + 1), low_open=False, high_open=True)
        )
        for n_digits in range(1, _fraction_digits(interval) + 1):
            scale = 10**n_digits
            first, last = inside.whole(scale)
            if first <= last:
                digits = (str(number - part * scale).zfill(n_digits) for number in (first, last))
                yield f'{sign}"{part}." {_same_length(*digits)}'


def _fraction_digits(interval: NumberRange) -> int:
    """Digits behind the point that numbers near a bound may have."""
    needed = 3
    for bound in (interval.low, interval.high):
        for n_digits in range(needed, 15):
            if bound is None or (bound * 10**n_digits).denominator == 1:
                break
            needed = n_digits + 1
    return min(needed + 1, 15)


def _whole(low: int, high: int) -> str:
    """GBNF of the whole numbers from `low` to `high`, neither of which is negative."""
    choices = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        choices.append(_same_length(str(low), str(last)))
        low = last + 1
    return " | ".join(choices)


def _same_length(low: str, high: str) -> str:
    """GBNF of the texts of digits between two of the same length."""
    if not low:
        return '""'
    n_more = len(low) - 1
    if low[0] == high[0]:
        return f'"{low[0]}"' + (f" {_same_length(low[1:], high[1:])}" if n_more else "")
    zeros, nines = "0" * n_more, "9" * n_more
    first, last = int(low[0]), int(high[0])
    choices = []
    if low[1:] != zeros:
        choices.append(f'"{first}" {_same_length(low[1:], nines)}')
        first += 1
    if high[1:] != nines:
        choices.append(f'"{last}" {_same_length(zeros, high[1:])}')
        last -= 1
    if first <= last:
        more = f" [0-9]{{{n_more}}}" if n_more else ""
        choices.append(f"[{first}-{last}]{more}")
    return f"({' | '.join(choices)})"
