"""Measurements of a reply's boundaries: enough for every plot of a report, small enough for every
sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.methods import hard_geometry
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry
from tgr_local.search.diagnostics import Geometry, measure
from tgr_local.search.seeds import PROPOSE, derived_seed
from tgr_local.search.steps import Step

if TYPE_CHECKING:
    from tgr_local.engine import Engine

N_JUDGED = 128  # proposals judged at every boundary for the acceptance rate
N_PAIRS = 28  # pairwise cosines of a boundary: all those of eight candidates
_CHUNK_SHOWN, _ROLLOUT_SHOWN = 400, 120  # characters


def measured(steps: Sequence[Step], config: SearchConfig) -> list[dict[str, Any]]:
    """One dict for each step that has anchors, candidates or figures (the method's own
    measurements): ``chunk``, ``tokens``, the score terms ``V``, ``P_bum``, ``P_uni`` and ``S`` of
    all candidates with the ``chosen`` one, the measures of `diagnostics.Geometry` (the top M
    candidates), the cosines of all candidates with the anchor before (``to_chain``) and with each
    other (``pairwise``, sorted; of more than `N_PAIRS` as many at equal ranks), ``figures``, and
    ``acceptance``, the share of `N_JUDGED` proposals that follow the rule of `hard-geometry`, where
    that method searched."""
    if not any(step.candidates or step.origin is not None or step.figures for step in steps):
        return []
    return [
        measures
        for step, previous in zip(steps, [None, *steps], strict=False)
        if (measures := _of(step, measure(step, previous)) | _acceptance(step, previous, config))
    ]


def _acceptance(step: Step, previous: Step | None, config: SearchConfig) -> dict[str, float]:
    """Judges the first proposals of the boundary's own seed; they pass through no model."""
    if previous is None or previous.origin is None or step.origin is None:
        return {}
    if "proposals" not in step.figures:
        return {}
    rng = np.random.default_rng(derived_seed(config.seed, step.index, PROPOSE))
    share = acceptance(previous.origin, step.origin, config, rng, N_JUDGED)
    return {"acceptance": share}


def acceptance(
    previous: NDArray[np.float64],
    z: NDArray[np.float64],
    config: SearchConfig,
    rng: np.random.Generator,
    n: int,
) -> float:
    """α at one boundary: the share of n proposals around z [d_z] that follow the rule, 0 to 1. All
    are judged, unlike in a search. `previous` [d_z] led to z. ValueError for n < 1."""
    anchors = geometry.propose(z, n, config.sigma, rng)
    return float(np.mean(hard_geometry.breaches(previous, z, anchors, config) == 0))


def _of(step: Step, shape: Geometry) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if step.candidates is not None:
        scores = step.candidates.scores
        terms = {
            "V": scores.foresight,
            "P_bum": scores.bumpiness,
            "P_uni": scores.uniformity,
            "S": scores.total,
        }
        fields |= {name: _rounded(term) for name, term in terms.items()}
        fields["chosen"] = scores.chosen
        fields |= _cosines(step)
    measures = vars(shape).items()
    fields |= {name: _rounded(value) for name, value in measures if value is not None}
    if step.figures:
        fields["figures"] = {name: _rounded(value) for name, value in step.figures.items()}
    return {"chunk": step.index, "tokens": len(step.tokens), **fields} if fields else {}


def _cosines(step: Step) -> dict[str, Any]:
    """Cosines of the candidates to each other and to the anchor that they are drawn around."""
    if step.candidates is None or not step.candidates.anchors.size or step.origin is None:
        return {}
    anchors = step.candidates.anchors
    pairs = np.sort(geometry.pairwise_cosines(anchors))
    if len(pairs) > N_PAIRS:
        pairs = pairs[np.linspace(0, len(pairs) - 1, N_PAIRS).round().astype(int)]
    return {"pairwise": _rounded(pairs), "to_chain": _rounded(anchors @ step.origin)}


def with_texts(
    engine: Engine, steps: Sequence[Step], boundaries: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The boundaries with the first characters of each chunk (``text``) and of each candidate's
    rollout (``rollouts``), for the cases of a report."""

    def text(tokens: NDArray[np.int32], most: int) -> str:
        return engine.detokenize(tokens.tolist()).decode("utf-8", "replace")[:most]

    by_index = {step.index: step for step in steps}
    fuller = []
    for boundary in boundaries:
        step = by_index[boundary["chunk"]]
        texts: dict[str, Any] = {"text": text(step.tokens, _CHUNK_SHOWN)}
        if step.candidates is not None:
            n_first = len(step.candidates.scores.total)
            owners = step.candidates.owners.tolist()
            firsts = (step.candidates.tokens[owners.index(k)] for k in range(n_first))
            texts["rollouts"] = [text(tokens, _ROLLOUT_SHOWN) for tokens in firsts]
        fuller.append(boundary | texts)
    return fuller


def _rounded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_rounded(float(number)) for number in value]
    return value if isinstance(value, int) else float(f"{value:.5g}")
