"""Timing of contenders and output of results: turns, spreads, targets, rows; rows as text,
Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats | Sequence[float]) -> Spread:
        array = np.asarray(values, np.float64)
        return cls(float(np.median(array)), float(array.min()), float(array.max()))

    def scaled(self, factor: float) -> Spread:
        return Spread(factor * self.median, factor * self.low, factor * self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return shown(self.median)
        return f"{shown(self.median)} ({shown(self.low)} to {shown(self.high)})"


def shown(value: float) -> str:
    """Three significant digits, and all digits of a whole number."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text if float(text.replace(",", "")) else "0"


@dataclass(frozen=True)
class Target:
    """A bound on a row's median."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One comparison: its result, the target for the result's median, and the values behind it."""

    group: str
    what: str
    result: Spread
    unit: str
    values: dict[str, Spread] = field(default_factory=dict)
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return self.target.met(self.result.median) if self.target else None

    def record(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        target = str(self.target) if self.target else None
        return dataclasses.asdict(self) | {"target": target, "met": self.met}


def alternate(repeats: int, contenders: Sequence[Callable[[], object]]) -> Floats:
    """Seconds [contenders, repeats]. Contenders take turns, so that other load of the machine
    affects all of them, and every second round runs backwards, after an unmeasured one."""
    return alternate_timed(repeats, [partial(clock, contender) for contender in contenders])


def alternate_timed(
    repeats: int, contenders: Sequence[Callable[[], float]], *, warm: bool = True
) -> Floats:
    """`alternate` for contenders that measure themselves and return their seconds; `warm` adds the
    unmeasured round before."""
    seconds = np.zeros((len(contenders), repeats))
    if warm:
        for contender in contenders:
            contender()
    for i in range(repeats):
        order = range(len(contenders))
        for j in order if i % 2 == 0 else reversed(order):
            seconds[j, i] = contenders[j]()
    return seconds


def clock(contender: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    contender()
    return time.perf_counter() - start


# ---- output ----


def verdict(row: Figure) -> str:
    """``at most 3: met``, or nothing."""
    return f"{row.target}: {'met' if row.met else 'MISSED'}" if row.target else ""


def facts(about: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _fact(value)) for name, value in about.items()]


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_text(row: Figure) -> str:
    """One to three lines: the result with its target, the values behind it, the note."""
    lines = [f"{row.what:74}  {row.result} {row.unit}"]
    if row.target:
        lines[0] += f"   [{verdict(row)}]"
    values = "   ".join(f"{name} {spread}" for name, spread in row.values.items())
    return "\n".join([*lines, *(f"    {line}" for line in (values, row.note) if line)])


def as_json(about: dict[str, Any], rows: Iterable[Figure]) -> str:
    return json.dumps(
        {"machine": about, "rows": [row.record() for row in rows]}, indent=2, ensure_ascii=False
    )


def as_markdown(about: dict[str, Any], rows: Sequence[Figure]) -> str:
    """The machine as a list, then one table."""
    lines = [f"- {name}: {fact}" for name, fact in facts(about)]
    lines += ["", "| measured | median (range) | values | target |", "|---|---|---|---|"]
    for row in rows:
        values = "; ".join(f"{name} {spread}" for name, spread in row.values.items())
        beside = "; ".join(text for text in (values, row.note) if text)
        lines.append(f"| {row.what} | {row.result} {row.unit} | {beside} | {verdict(row)} |")
    return "\n".join(lines) + "\n"
