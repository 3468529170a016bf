"""Tables of the boundaries: measures of candidates and chain, their density, and the methods' own
counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.table_cells import Floats, Table, correlation, mean, mean_and_sd, plain_mean
from tgr_local.search.diagnostics import Diagnostics

MEASURES = {"pairwise": "between candidates", "to_chain": "candidate to z_t-1"}
"""Cosines of `boundaries.measured`, and their names."""


def latent(outcomes: Sequence[Outcome]) -> Table:
    """Means of the measures of method.md over boundaries."""
    names = {
        "apcs": "APCS",
        "min_cosine": "min cosine",
        "n_eff": "N_eff",
        "similarity": "cos(z_t, z_t-1)",
        "angle": "angle",
        "curvature": "curvature",
    }
    rows = []
    for outcome in outcomes:
        if not any(len(outcome.measure(name)) for name in names):
            continue
        cells = [mean_and_sd(outcome.measure(name)) for name in names]
        cycling = plain_mean((outcome.measure("similarity") > Diagnostics.CYCLING).astype(float))
        rows.append([outcome.label, *cells, cycling, str(len(outcome.boundaries))])
    return Table(
        "Latent statistics",
        ["system", *names.values(), "cycling", "boundaries"],
        rows,
        "Mean ± standard deviation over boundaries: similarity of the candidates (APCS, min "
        "cosine, N_eff), movement of the chain from one anchor to the next (cosine, angle) and its "
        f"curvature. Cycling is the share of steps with a cosine above {Diagnostics.CYCLING}. "
        "Angles are in radians.",
    )


def density(outcomes: Sequence[Outcome]) -> Table:
    """Mean with interval, and quantiles, of the cosines."""
    rows = []
    for outcome in outcomes:
        for measure, name in MEASURES.items():
            some = outcome.several(measure)
            if not some:
                continue
            means = np.array([[own.mean()] for own in some])
            middle, low, high = metrics.bootstrap_mean(means)[:, 0]
            parts = np.percentile(np.concatenate(some), (5, 25, 50, 75, 95))
            cells = [f"{part:.3f}" for part in parts]
            label = f"{outcome.label}, {name}"
            rows.append([label, f"{middle:.3f} [{low:.3f}, {high:.3f}]", *cells, f"{len(some):,}"])
    return Table(
        "Anchor density",
        ["system", "mean cosine", "5%", "25%", "median", "75%", "95%", "problems"],
        rows,
        "Cosines of the anchors of a boundary: of every two candidates, and of every candidate "
        "with z_t-1, around which they are drawn. The mean is over problems, of each problem's "
        "mean, with a 95% bootstrap interval in brackets; the quantiles are of all cosines.",
    )


def against_auc(graded: Sequence[Outcome]) -> Table:
    """Whether problems with more curvature, or with more different candidates, are solved more
    often."""
    names = {"curvature": "curvature", "n_eff": "N_eff", "apcs": "APCS"}
    rows = []
    for outcome in graded:
        points = {name: outcome.against_auc(name) for name in names}
        if any(len(some) for some in points.values()):
            cells = [
                cell
                for some in points.values()
                for cell in (plain_mean(some[:, 0]), correlation(some))
            ]
            rows.append([outcome.label, mean(outcome.aucs, scale=1), *cells])
    columns = [column for name in names.values() for column in (name, f"{name} ~ AUC")]
    return Table(
        "Geometry against AUC",
        ["system", "AUC", *columns],
        rows,
        "Means over problems, and Spearman's rank correlation, over problems, between the mean of "
        "a measure and AUC; 95% bootstrap intervals in brackets.",
    )


def method_counts(outcomes: Sequence[Outcome]) -> Table:
    """Counts that methods report themselves, such as accepted proposals."""
    reported = (b.get("figures", {}) for outcome in outcomes for b in outcome.boundaries)
    names = sorted({name for figures in reported for name in figures})
    pooled = {"accepted", "proposals"} <= set(names)
    judged = any(len(outcome.measure("acceptance")) for outcome in outcomes)
    columns = ["system", *names]
    note = "Each method's own counts, as means over samples."
    if pooled:
        columns.append("accepted / proposals")
        note += " Accepted / proposals is of the sums over all samples."
    if judged:
        columns += ["none accepted", "α", "1/α"]
        note += (
            " A search ends with the first accepted proposal or at the maximum, so the boundaries "
            "where none was accepted (their share) count most in that. α is the share of accepted "
            "proposals where the same number is judged at every boundary, a mean over boundaries."
        )
    rows = []
    for outcome in outcomes:
        counts = {name: outcome.method_count(name) for name in names}
        if any(map(len, counts.values())):
            cells = [plain_mean(values) for values in counts.values()]
            cells += [_pool(counts)] if pooled else []
            rows.append([outcome.label, *cells, *(_acceptance(outcome) if judged else [])])
    return Table("Measurements of the methods", columns, rows, note)


def _pool(counts: Mapping[str, Floats]) -> str:
    proposed, accepted = counts["proposals"].sum(), counts["accepted"].sum()
    return f"{accepted / proposed:.3g}" if proposed else "-"


def _acceptance(outcome: Outcome) -> list[str]:
    """The share of the boundaries where no proposal was accepted; α, 1/α."""
    searched = [b["figures"] for b in outcome.boundaries if "acceptance" in b]
    if not searched:
        return ["-", "-", "-"]
    without = np.array([not figures["accepted"] for figures in searched], float)
    alpha = outcome.measure("acceptance").mean()
    return [plain_mean(without), f"{alpha:.3g}", f"{1 / alpha:.3g}" if alpha else "-"]
