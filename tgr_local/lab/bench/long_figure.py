"""The rows of the group `long` as a picture. Needs the extra `plot` (matplotlib)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tgr_local.errors import InstallError
from tgr_local.lab.bench.measure import Row

STYLES = {"base": "C0o-", "markov": "C1^--", "tgr-latent": "C2s-"}


def matplotlib_figure() -> Any:
    """The class. InstallError without matplotlib."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise InstallError(
            "the picture needs matplotlib; run: pip install 'tgr-local[plot]'"
        ) from None


def draw(rows: Iterable[Row], path: Path) -> None:
    """Time per token and resident memory against the length of the reply; nothing without such
    rows. The file's ending is its format."""
    at = [row.values for row in rows if "ms base" in row.values]
    if not at:
        return
    figure = matplotlib_figure()(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    tokens = [values["tokens"].median for values in at]
    for axes, prefix, label in zip(
        panels, ("ms ", "resident MB "), ("ms per kept token", "resident memory, MB"), strict=True
    ):
        for method, style in STYLES.items():
            if prefix + method in at[0]:
                spreads = [values[prefix + method] for values in at]
                below = [spread.median - spread.low for spread in spreads]
                above = [spread.high - spread.median for spread in spreads]
                medians = [spread.median for spread in spreads]
                axes.errorbar(tokens, medians, (below, above), fmt=style, capsize=3, label=method)
        axes.set(xlabel="tokens of the reply so far", ylabel=label, xscale="log")
        axes.set_ylim(0, 1.05 * axes.dataLim.ymax)
        axes.set_xticks(tokens, [f"{n:,.0f}" for n in tokens], rotation=30)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
