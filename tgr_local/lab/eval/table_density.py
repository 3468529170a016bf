"""The table of anchor density: how close the candidates of a boundary are to each other and to the
chain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.table_cells import Table

MEASURES = {"pairwise": "between candidates", "to_chain": "candidate to z_t-1"}
"""Cosines of `boundaries.measured`, and their names."""


def density(found: Sequence[Outcome]) -> Table:
    """Mean with interval, and quantiles, of the cosines."""
    rows = []
    for outcome in found:
        for measure, name in MEASURES.items():
            some = outcome.several(measure)
            if not some:
                continue
            mean, low, high = metrics.bootstrap_mean(np.array([[own.mean()] for own in some]))[:, 0]
            parts = np.percentile(np.concatenate(some), (5, 25, 50, 75, 95))
            cells = [f"{part:.3f}" for part in parts]
            label = f"{outcome.label}, {name}"
            rows.append([label, f"{mean:.3f} [{low:.3f}, {high:.3f}]", *cells, f"{len(some):,}"])
    return Table(
        "Anchor density",
        ["system", "mean cosine", "5%", "25%", "median", "75%", "95%", "problems"],
        rows,
        "Cosines of the anchors of a boundary: of every two candidates, and of every candidate "
        "with z_t-1, around which they are drawn. The mean is over problems, of each problem's "
        "mean, with a 95% bootstrap interval in brackets; the quantiles are of all cosines.",
    )
