"""Fits a probe on samples, and measures it on problems that it has not seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.fitting import regression
from tgr_local.lab.fitting.samples import Samples
from tgr_local.methods.probe import answer
from tgr_local.methods.probe.classifiers import WIDTH, Likeness, Logistic, projection, sigmoid
from tgr_local.methods.probe.record import FORMAT, Judgement, Probe
from tgr_local.system import paths

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FOLDS = 5
FEWEST = 2 * FOLDS
"""Problems that a fit needs."""
_STRENGTHS = (0.01, 0.003, 0.001, 0.0003)
"""C of the regressions of texts: the one is taken that does best on problems it has not seen."""
_VOTE_SIZES = (1, 1, 2, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of texts of the votes that the answer's regression is fitted on."""
_VOTES = 20  # of each problem
_ANSWER_STRENGTH = 1.0
_RESAMPLES = 200
_LIMIT = 0.99  # quantile of the known texts' distances
_MARGIN = 1.15
_RIDGE = 1e-3


def fit(samples: Samples, model: str, cut: int, about: dict[str, Any]) -> Probe:
    """The probe for these samples of a model with sha256 `model`, whose `about` is extended by how
    the regressions do on problems that they have not seen (5 folds over problems). ValueError
    unless some texts are right and some wrong, on several problems."""
    n = len(np.unique(samples.problems))
    if n < FEWEST:
        raise ValueError(f"there are samples of {n} problems, but a probe needs {FEWEST}")
    strength, odds = best_strength(samples.whole, samples.right, samples.problems)
    long = ~np.isnan(samples.beginning[:, 0])
    early, early_right = samples.beginning[long], samples.right[long]
    if not 0 < early_right.sum() < len(early_right):
        raise ValueError(
            f"of {len(early)} texts that are longer than {cut} tokens {early_right.sum()} are "
            "right, but a probe needs right and wrong ones; lower the cut"
        )
    early_odds = held_out(early, early_right, samples.problems[long], strength)
    votes, leads, of = simulated_votes(samples, odds)
    lead_odds = held_out(votes, leads, of, _ANSWER_STRENGTH)
    return Probe(
        model,
        _judgement(samples.whole, samples.right, strength),
        _judgement(early, early_right, strength),
        cut,
        regression.fit(votes, leads, strength=_ANSWER_STRENGTH),
        {
            **about,
            "whole": measured(odds, samples.right, samples.problems),
            "beginning": measured(early_odds, early_right, samples.problems[long]),
            "answer": measured(lead_odds, leads, of),
        },
    )


def _judgement(features: Floats, right: Flags, strength: float) -> Judgement:
    return Judgement(regression.fit(features, right, strength=strength), likeness(features))


def likeness(features: Floats) -> Likeness:
    """The likeness to texts with features [n, n_features]."""
    x = np.asarray(features, np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9 * np.maximum(1, np.abs(mean)), scale, 1.0)
    width = min(WIDTH, x.shape[1])
    projected = (x - mean) / scale @ projection(x.shape[1], width)
    spread = np.cov(projected.T) + _RIDGE * np.eye(width)
    root = np.linalg.cholesky(np.linalg.inv(spread))
    unlimited = Likeness(mean, scale, root, 0.0)
    limit = _MARGIN * float(np.quantile(unlimited.distance(x), _LIMIT))
    return Likeness(mean, scale, root, limit)


def best_strength(
    features: Floats, right: Flags, problems: NDArray[np.int64]
) -> tuple[float, Floats]:
    """The C of `_STRENGTHS` with the highest likelihood on problems that a regression has not seen,
    and its log-odds [n] there."""
    tried = [(strength, held_out(features, right, problems, strength)) for strength in _STRENGTHS]
    sign = np.where(right, -1.0, 1.0)
    return min(tried, key=lambda pair: float(np.logaddexp(0, sign * pair[1]).mean()))


def held_out(
    features: Floats, right: Flags, problems: NDArray[np.int64], strength: float
) -> Floats:
    """[n] the log-odds of each text by a regression that was fitted on the other problems."""
    log_odds = np.zeros(len(right))
    for fold in range(FOLDS):
        unseen = problems % FOLDS == fold
        if unseen.any():
            part = regression.fit(features[~unseen], right[~unseen], strength=strength)
            log_odds[unseen] = part.log_odds(features[unseen])
    return log_odds


def simulated_votes(
    samples: Samples, odds: Floats, seed: int = 0
) -> tuple[Floats, Flags, NDArray[np.int64]]:
    """`answer.features` of the leading answers of random votes among the samples of a problem,
    whether they are right, and their problems."""
    rng = np.random.default_rng(seed)
    rows: list[Floats] = []
    right: list[bool] = []
    of: list[int] = []
    for problem in np.unique(samples.problems):
        own = np.flatnonzero(samples.problems == problem)
        for size in rng.choice(_VOTE_SIZES, _VOTES):
            drawn = rng.permutation(own)[:size]
            keys = [samples.keys[i] for i in drawn]
            row = answer.features(keys, odds[drawn])
            if row is not None:
                leader = next(iter(answer.tally(keys, answer.weights(odds[drawn]))))
                rows.append(row)
                right.append(bool(samples.right[drawn[keys.index(leader)]]))
                of.append(int(problem))
    return np.array(rows), np.array(right, bool), np.array(of, np.int64)


def measured(odds: Floats, right: Flags, problems: NDArray[np.int64]) -> dict[str, Any]:
    """Measures how log-odds [n] tell right from wrong: AUROC with its 95% interval (bootstrap over
    problems), AUROC within a problem, share that is right, and reliability. The AUROCs are None
    where all texts are right, or none."""
    differs = 0 < right.sum() < len(right)
    low, high = _interval(odds, right, problems, regression.auroc) if differs else (0.0, 0.0)
    return {
        "n": len(right),
        "right": round(float(np.mean(right)), 4),
        "auroc": (
            [round(v, 4) for v in (regression.auroc(odds, right), low, high)] if differs else None
        ),
        "within": _finite(regression.auroc_within(odds, right, problems)),
        "reliability": [
            [n, round(mean, 4), round(share, 4)]
            for n, mean, share in regression.reliability(sigmoid(odds), right)
            if n
        ],
    }


def _finite(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


def _interval(
    odds: Floats,
    right: Flags,
    problems: NDArray[np.int64],
    measure: Callable[[Floats, Flags], float],
) -> tuple[float, float]:
    """95%, percentile bootstrap over problems."""
    rng = np.random.default_rng(0)
    rows = [np.flatnonzero(problems == problem) for problem in np.unique(problems)]
    values = []
    for _ in range(_RESAMPLES):
        drawn = np.concatenate([rows[i] for i in rng.integers(len(rows), size=len(rows))])
        values.append(measure(odds[drawn], right[drawn]))
    low, high = np.nanpercentile(values, (2.5, 97.5))
    return float(low), float(high)


def judged(probe: Probe, samples: Samples) -> dict[str, Any]:
    """Results of a probe on samples that it was not fitted on, as `measured`; and the share of
    texts that are like those that it was fitted on."""
    odds = probe.whole.right.log_odds(samples.whole)
    return {
        **measured(odds, samples.right, samples.problems),
        "known": round(float(np.mean(probe.whole.known.covers(samples.whole))), 4),
        "likelihood": _finite(regression.auroc(samples.whole[:, 0], samples.right)),
    }


def save(probe: Probe, path: Path) -> None:
    """Writes the file of a probe, which `record.load` reads, whole or not at all."""
    data = {
        "format": FORMAT, "model": probe.model, "cut": probe.cut, "about": probe.about,
        "whole": _written(probe.whole), "beginning": _written(probe.beginning),
        "answer": _regression(probe.answer),
    }  # fmt: skip
    paths.write_whole(path, json.dumps(data, ensure_ascii=False).encode() + b"\n")
    path.chmod(0o644)


def _regression(regression: Logistic) -> dict[str, Any]:
    return {"bias": regression.bias, "weights": _rounded(regression.weights)}


def _written(judgement: Judgement) -> dict[str, Any]:
    known = judgement.known
    return {
        **_regression(judgement.right),
        "known": {
            "mean": _rounded(known.mean),
            "scale": _rounded(known.scale),
            "root": [_rounded(row) for row in known.root],
            "limit": known.limit,
        },
    }


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
