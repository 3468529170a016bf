"""The tables of bench/oracle.py, made of the records of its boundaries.

A record of a boundary under one setting and one kind of seeds has the success of every completion
(``success``, a text of 0 and 1 for each arm, without injection last), ``same``, V and P_bum of the
first s tokens (``V``, ``P_bum``: [lengths, arms, n]) and ``P_uni`` of each anchor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle_statistics as stats
from numpy.typing import NDArray

from tgr_local import SearchConfig
from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.metrics import Interval

Record = Mapping[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cell:
    """One boundary under one setting: success [K + 1, n] and terms [lengths, K + 1, n], of which
    the last row is that without injection."""

    x: Floats
    same: float
    """Share of chunks under an anchor that have the tokens of the one without, of the same seed."""
    V: Floats
    bumpiness: Floats
    S: Floats
    shared: bool

    @classmethod
    def of(cls, record: Record, config: SearchConfig) -> Cell:
        """`config` has the weights of the score."""
        bumpiness = imputed(np.array(record["P_bum"], np.float64))
        V, uniformity = np.array(record["V"], np.float64), np.array([*record["P_uni"], 0.0])
        S = config.foresight_weight * V - config.lambda_b * bumpiness
        return cls(
            success_of(record),
            float(np.mean(record["same"])),
            V,
            bumpiness,
            S - config.lambda_u * uniformity[:, None],
            record["kind"] == "shared",
        )

    @property
    def success(self) -> Floats:
        """[K, n] under the anchors."""
        return self.x[:-1]

    @property
    def cost(self) -> float:
        """Success under the anchors, less that without injection."""
        return float(self.success.mean() - self.x[-1].mean())

    @functools.cached_property
    def best(self) -> float:
        """What the best anchor gains over chance, chosen by one half and judged by the other."""
        return stats.best_of_half(self.success, np.random.default_rng(0))

    @functools.cached_property
    def variances(self) -> Floats:
        return stats.variances(self.success, self.shared)


Groups = Mapping[tuple[str, str], Sequence[Cell]]
"""The boundaries of each setting and kind of seeds."""
Parts = Callable[[Cell], Any]


def success_of(record: Record) -> Floats:
    """[arms, n]"""
    return np.array([[float(bit) for bit in row] for row in record["success"]])


def imputed(bumpiness: Floats) -> Floats:
    """P_bum [lengths, K + 1, n] with the mean of the other anchors of a column where it is NaN, as
    `scoring.bumpiness` has it, or 0 if all are."""
    anchors = bumpiness[:, :-1]
    known = ~np.isnan(anchors)
    sums = np.where(known, anchors, 0.0).sum(axis=1, keepdims=True)
    means = sums / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(np.isnan(bumpiness), means, bumpiness)


def over(cells: Sequence[Cell], parts: Parts, measure: stats.Measure = stats.mean) -> Interval:
    """`measure` of the boundaries' parts, with its interval."""
    return stats.bootstrap(np.array([np.atleast_1d(parts(cell)) for cell in cells]), measure)


def points(interval: Interval, sign: str = "+") -> str:
    """In percent or points."""
    return _shown(interval, 100, f"{sign}.1f")


def _shown(interval: Interval, scale: float, form: str) -> str:
    if np.isnan(interval.mean):
        return "-"
    middle, low, high = (scale * value for value in (interval.mean, interval.low, interval.high))
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def ceiling(groups: Groups) -> str:
    """What the anchor explains of success, and what the best anchor gains."""
    heads = (
        "setting", "seeds", "boundaries", "same chunk, %", "success without injection, %",
        "with an anchor, less that", "variance between anchors, % of all",
        "best anchor, less chance", "at most", "best anchor, less none",
    )  # fmt: skip
    rows = []
    for setting, kind, name, cells in _parts_of(groups):
        spread = over(cells, lambda c: c.variances[0])
        most = stats.best_of_normal(len(cells[0].success)) * max(0.0, spread.high) ** 0.5
        rows.append([
            setting, kind, name,
            f"{100 * np.mean([c.same for c in cells]):.0f}" if kind == "shared" else "-",
            points(over(cells, lambda c: c.x[-1].mean()), ""),
            points(over(cells, lambda c: c.cost)),
            points(over(cells, lambda c: c.variances, stats.share)),
            points(over(cells, lambda c: c.best)),
            f"{100 * most:.1f}",
            points(over(cells, lambda c: c.best + c.cost)),
        ])  # fmt: skip
    return table(heads, rows)


def regrets(groups: Groups, at: int) -> str:
    """How far each choice by rollouts of length number `at` stays behind the best anchor, what it
    gains, and what it would gain if the chosen rollout's own text went on."""
    heads = (
        "setting", "seeds", "boundaries", "regret of V", "of −P_bum", "of S", "of chance",
        "V, less chance", "−P_bum, less chance", "S, less chance", "V, rollout kept, less chance",
        "V, less none", "V, rollout kept, less none",
    )  # fmt: skip
    terms: tuple[Parts, ...] = (
        lambda c: c.V[at, :-1],
        lambda c: -c.bumpiness[at, :-1],
        lambda c: c.S[at, :-1],
    )

    def gains(cell: Cell) -> list[float]:
        return [stats.gain_of_choice(term(cell), cell.success) for term in terms]

    rows = []
    for setting, kind, name, cells in _parts_of(groups):
        won = np.array([gains(cell) for cell in cells])
        best = np.array([cell.best for cell in cells])
        columns = [*(best[:, None] - won).T, best, *won.T]
        going = np.array([stats.gain_of_winner(terms[0](cell), cell.success) for cell in cells])
        cost = np.array([cell.cost for cell in cells])
        columns += [going, won[:, 0] + cost, going + cost]
        texts = [points(stats.bootstrap(column[:, None], stats.mean)) for column in columns]
        rows.append([setting, kind, name, *texts])
    return table(heads, rows)


def lookahead(groups: Groups, lengths: Sequence[int]) -> str:
    """What the likeliest rollout of each length gains over one completion without injection: with
    the seeds of the run, with a seed for each candidate, and among K rollouts without injection."""
    heads = (
        "setting", "seeds", "s", "V, less none", "V, rollout kept, less none",
        "own seeds: V, less none", "own seeds: V, rollout kept, less none",
        "likeliest of K without injection, kept, less one",
    )  # fmt: skip
    rows = []
    for (setting, kind), cells in groups.items():
        for at, length in enumerate(lengths):
            gains = np.array([_lookahead(cell, at) for cell in cells])
            texts = [points(stats.bootstrap(column[:, None], stats.mean)) for column in gains.T]
            rows.append([setting, kind, str(length), *texts])
    return table(heads, rows)


def _lookahead(cell: Cell, at: int) -> list[float]:
    V, x, rng = cell.V[at, :-1], cell.success, np.random.default_rng(0)
    measures = stats.gain_of_choice, stats.gain_of_winner
    gains = [measure(V, x) for measure in measures]
    if cell.shared:
        gains += [stats.apart(measure, V, x, rng) for measure in measures]
    else:
        gains *= 2
    none, keys = cell.x[-1], cell.V[at, -1]
    _, place = np.unique(keys, return_inverse=True)  # equal rollouts share what becomes of them
    shares = np.bincount(place, none) / np.bincount(place)
    likeliest = metrics.best_of_k(shares[place], keys, len(x)) - none.mean()
    return [*(gain + cell.cost for gain in gains), float(likeliest)]


def signal(groups: Groups, lengths: Sequence[int]) -> str:
    """What the anchor explains of the scores, and what V says of success."""
    heads = (
        "setting", "seeds", "s", "of V, %", "N_MC = 4", "of P_bum, %", "N_MC = 4", "of ΔV, %",
        "V and success, anchors", "V and success, texts",
    )  # fmt: skip
    rows = [
        [setting, kind, str(length), *_signal(cells, at)]
        for (setting, kind), cells in groups.items()
        for at, length in enumerate(lengths)
    ]
    return table(heads, rows)


def _signal(cells: Sequence[Cell], at: int) -> list[str]:
    def explained(values: Parts, shared: bool, n_mc: int = 1) -> str:
        def parts(cell: Cell) -> Floats:
            anchor, _, luck = stats.variances(values(cell), shared)
            return np.array([anchor, luck / n_mc])

        return points(over(cells, parts, stats.share), "")

    def V(cell: Cell) -> Floats:
        return cell.V[at, :-1]

    def bumpiness(cell: Cell) -> Floats:
        return cell.bumpiness[at, :-1]

    shared = cells[0].shared
    anchors = over(cells, lambda c: stats.half_moments(V(c), c.success), stats.correlation)
    texts = over(cells, lambda c: stats.text_moments(V(c), c.success), stats.correlation)
    return [
        *(explained(term, shared, n) for term in (V, bumpiness) for n in (1, 4)),
        explained(lambda c: V(c) - c.V[at, -1], False) if shared else "-",
        _shown(anchors, 1, "+.2f"),
        _shown(texts, 1, "+.2f"),
    ]


def swapped(records: Sequence[Record]) -> str:
    """Success under the state's own anchor, another problem's and none, and without the reset."""
    heads = (
        "setting", "boundaries", "own anchor, %", "another problem's, %", "none, %",
        "none, whole text, %", "own less another's", "own less none", "whole text less none",
    )  # fmt: skip
    rows = []
    for setting in dict.fromkeys(record["setting"] for record in records):
        mine = [record for record in records if record["setting"] == setting]
        x = np.array([success_of(record).mean(axis=1) for record in mine])  # [boundaries, 4]
        own, foreign, none, unreset = x.T
        shares = [points(stats.bootstrap(arm[:, None], stats.mean), "") for arm in x.T]
        pairs = [
            points(stats.bootstrap(difference[:, None], stats.mean))
            for difference in (own - foreign, own - none, unreset - none)
        ]
        rows.append([setting.partition(":")[2], str(len(x)), *shares, *pairs])
    return table(heads, rows)


def _parts_of(groups: Groups) -> list[tuple[str, str, str, Sequence[Cell]]]:
    """Each group as a whole, and its informative boundaries, where some texts are right and some
    wrong."""
    parts: list[tuple[str, str, str, Sequence[Cell]]] = []
    for (setting, kind), cells in groups.items():
        some = [cell for cell in cells if 0 < cell.success.mean() < 1]
        for name, part in (("all", cells), ("informative", some)):
            if part:
                parts.append((setting, kind, f"{name} {len(part)}", part))
    return parts
