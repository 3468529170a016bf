"""Panels as inline SVG, and what all plots share: colours, markers, points with intervals, labels.

The SVG has no colours of its own: text and axes have the colour of the text around them, and lines
the CSS variables ``--s0``, ``--s1`` … of the page.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Outcome

COLORS = (
    "#1f6fb4", "#c2500a", "#1a7f3c", "#b5282d", "#7a4fb5", "#7f5a45", "#b83a93", "#5f6670",
    "#737000", "#007f95",
)  # fmt: skip
"""Colours of systems, in turns, on a light page; matplotlib writes, and the page replaces them."""
MARKERS = "osD^v"
"""Markers of the systems, in turns, so that colours are not needed to tell them apart."""
WIDTH, HEIGHT = 5.0, 3.1
"""Inches of a panel: on a phone its text is about as large as the page's."""
ROW = 0.26
"""Inches of a row in a panel with one row for each system."""
PAPER = "#fefefe"
"""The colour of the page."""
Legend = list[tuple[str, int]]
"""Label and number of each line, from which `color` and `marker` follow."""


class Panels:
    """The panels of the plot that is being drawn."""

    def __init__(self, figure_type: Any) -> None:
        self.figures: list[Any] = []
        self._figure_type = figure_type

    def new(self, height: float = HEIGHT) -> Any:
        """The axes of one more panel."""
        figure = self._figure_type(figsize=(WIDTH, height), layout="constrained")
        self.figures.append(figure)
        return figure.subplots()


def color(number: int) -> str:
    """The colour of a system, the same in every plot, as CSS."""
    return f"var(--s{number % len(COLORS)})"


def marker(number: int) -> str:
    """The marker of a system; no two of the first 50 share both marker and colour."""
    return MARKERS[(number + number // len(COLORS)) % len(MARKERS)]


def svg(figure: Any) -> str:
    """The picture without fixed colours, and without ids that nothing refers to, which several
    pictures on one page would share."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("#000000", "currentColor")
    for i, hex_color in enumerate(COLORS):
        text = text.replace(hex_color, color(i))
    text = text.replace(PAPER, "var(--page)")
    used = set(re.findall(r"#([\w-]+)", text))
    return re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)


def errorbar(
    axes: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    number: int,
    xs_of: Sequence[Interval] = (),
    ys_of: Sequence[Interval] = (),
    line: str = "",
) -> None:
    """Points with the intervals of their x or y; `number` is that of the system."""
    axes.errorbar(
        xs, ys, xerr=arms(xs_of), yerr=arms(ys_of), fmt=marker(number) + line,
        ms=5, lw=1.5, elinewidth=1, color=COLORS[number % len(COLORS)],
    )  # fmt: skip


def arms(intervals: Sequence[Interval]) -> list[list[float]] | None:
    """[2, n] the distances of the edges of intervals from their means."""
    if not intervals:
        return None
    return [[i.mean - i.low for i in intervals], [i.high - i.mean for i in intervals]]


def in_percent(share: Interval) -> Interval:
    return Interval(100 * share.mean, 100 * share.low, 100 * share.high)


def number_of(compared: Comparison, outcome: Outcome) -> int:
    return compared.outcomes.index(outcome)


def short(label: str) -> str:
    """A label that leaves room for the data."""
    return "\n".join(textwrap.wrap(cut(label, 44), 22))


def cut(label: str, most: int = 28) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"
