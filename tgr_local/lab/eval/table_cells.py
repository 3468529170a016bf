"""Tables as text, and how numbers and their intervals are written in their cells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.metrics import Interval

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def mean(values: Floats, *, scale: float = 100) -> str:
    """The mean of values from 0 to 100/scale, with its 95% interval; - without a value."""
    interval = metrics.interval(values, top=100 / scale)
    return _with_interval(interval, scale, ".1f") if len(values) else "-"


def percent(interval: Interval | None) -> str:
    """A share, 0 … 1, in percent with its interval; - without a value."""
    return "-" if interval is None else _with_interval(interval, 100, ".1f")


def points(interval: Interval | None) -> str:
    """A number from 0 to 100 with its interval; - without a value."""
    return "-" if interval is None else _with_interval(interval, 1, ".1f")


def signed(interval: Interval | None) -> str:
    """A difference in points with its sign and interval; - without a value."""
    return "-" if interval is None else _with_interval(interval, 1, "+.1f")


def _with_interval(interval: Interval, scale: float, shape: str) -> str:
    """Formats a mean with its interval; without one that has no width."""
    low, high = format(scale * interval.low, shape), format(scale * interval.high, shape)
    mean = format(scale * interval.mean, shape)
    return f"{mean} [{low}, {high}]" if low != high else mean


def plain_mean(values: Floats) -> str:
    """The mean with three digits; - without a value."""
    return f"{values.mean():.3g}" if len(values) else "-"


def mean_and_sd(values: Floats) -> str:
    """The mean ± the standard deviation (n − 1) with two digits; the mean alone of one value; -
    without a value."""
    if len(values) < 2:
        return plain_mean(values)
    spread = values.std(ddof=1) if np.ptp(values) else 0.0  # not what rounding makes of equals
    return f"{plain_mean(values)} ± {spread:.2g}"


def number(value: float, shape: str) -> str:
    """A formatted number; - for NaN."""
    return "-" if math.isnan(value) else shape.format(value)


def correlation(points: Floats) -> str:
    """Rank correlation of [n, 2] points with its interval; - where it is undefined."""
    interval = metrics.rank_correlation(*points.T)
    if math.isnan(interval.mean):
        return "-"
    return f"{interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
