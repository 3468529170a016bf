"""The plot of accuracy by group of problems."""

from __future__ import annotations

from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.plot_panels import (
    HEIGHT,
    Legend,
    Panels,
    errorbar,
    in_percent,
    number_of,
    short,
)

_GAP, _STEP = 0.16, 0.11  # inches between two groups, and between the systems of one


def by_group(panels: Panels, compared: Comparison) -> Legend:
    """A panel for each property of the problems, a row for each group, a point for each system."""
    legend: Legend = []
    for profile in compared.profiles:
        n, n_groups = len(profile.rows), len(profile.groups)
        row = _GAP + _STEP * n  # inches
        axes = panels.new(max(HEIGHT / 2, 0.8 + row * n_groups))
        for i, (outcome, cells) in enumerate(profile.rows):
            found = [in_percent(cell) for cell in cells]
            ys = [y + (i - (n - 1) / 2) * _STEP / row for y in range(n_groups)]
            number = number_of(compared, outcome)
            errorbar(axes, [one.mean for one in found], ys, xs_of=found, number=number)
        heads = [
            f"{short(group)} ({size})"
            for group, size in zip(profile.groups, profile.sizes, strict=True)
        ]
        axes.set_yticks(range(n_groups), heads)
        axes.set(ylim=(n_groups - 0.5, -0.5), xlabel="Pass@1 (%)", title=profile.name)
        legend = [(outcome.label, number_of(compared, outcome)) for outcome, _ in profile.rows]
    return legend
