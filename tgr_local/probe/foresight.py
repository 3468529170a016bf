"""``foresight=probe``: the value of a rollout is how likely the text with it is right.

In: the text so far and its rollouts, with their states. Out: log-odds by the model's probe, or
nothing where the probe does not know such texts. It knows nothing of anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine, Output
from tgr_local.options.config import SearchConfig
from tgr_local.probe import features, record
from tgr_local.probe.record import Judgement, Probe

Floats = NDArray[np.float64]

_LENGTH = features.CONFIDENCES.index("log of the number of tokens")


def judge_of(engine: Engine, config: SearchConfig) -> ProbeForesight | None:
    """The judge that ``foresight`` asks for. ModelError where it asks for a probe and the model has
    none."""
    if config.foresight != "probe":
        return None
    return ProbeForesight(record.required(engine, config.probe, "set foresight to value"))


class ProbeForesight:
    """V = log(p / (1 − p)), p the chance that the text with the rollout is right."""

    def __init__(self, probe: Probe) -> None:
        self._probe, self._text = probe, Written()
        self._n_known = self._n_asked = 0

    def take(self, output: Output) -> None:
        """The text goes on with these tokens, whose states were read."""
        self._text = self._text.with_more(output)

    def values(self, outputs: Sequence[Output]) -> Floats | None:
        """V [n] of n rollouts; None unless the probe knows half of the texts.

        A text that has ended is judged as a whole one. The others are judged as beginnings or as
        whole texts, whichever of these are nearer to them in length (mean of the logarithm).
        """
        found = np.array([features.features_of(self._text.with_more(o)) for o in outputs])
        ended = np.array([output.finish == "stop" for output in outputs])
        whole, part = self._probe.whole, self._of_unfinished(found)
        known = np.where(ended, whole.known.covers(found), part.known.covers(found))
        self._n_asked += 1
        if np.mean(known) < 0.5:
            return None
        self._n_known += 1
        odds: Floats = np.where(ended, whole.right.log_odds(found), part.right.log_odds(found))
        return odds

    @property
    def figures(self) -> dict[str, float]:
        """The share of the choices so far that the probe judged, 0 … 1; empty before the first."""
        return {"by probe": self._n_known / self._n_asked} if self._n_asked else {}

    def _of_unfinished(self, found: Floats) -> Judgement:
        length = float(np.mean(found[:, _LENGTH]))
        both = self._probe.beginning, self._probe.whole
        return min(both, key=lambda judgement: abs(judgement.known.mean[_LENGTH] - length))


@dataclass(frozen=True, eq=False)
class Written:
    """What a probe sees of a text (`features.Text`)."""

    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    first_state: NDArray[np.float32] | None = None
    state_sum: Floats | float = 0.0

    @property
    def mean_state(self) -> Floats:
        return np.asarray(self.state_sum / len(self.logprobs))

    def with_more(self, output: Output) -> Written:
        """The text with the tokens of an output after it."""
        if not len(output.tokens):
            return self
        return Written(
            [*self.logprobs, *output.logprobs.tolist()],
            [*self.entropies, *output.entropies.tolist()],
            output.states[0].copy() if self.first_state is None else self.first_state,
            self.state_sum + output.states.sum(axis=0, dtype=np.float64),
        )
