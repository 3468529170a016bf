"""``random-anchor``: an anchor drawn as the method draws its candidates, without rollouts or score.

What is left of ``tgr-latent`` when nothing is chosen: the reset and the injection.
"""

from __future__ import annotations

from tgr_local.search.chunkwise import Decision, chunk_method
from tgr_local.search.steering import Steering
from tgr_local.search.trajectory import Trajectory


def _decide(_: Trajectory, steering: Steering) -> Decision:
    """One anchor, as it comes."""
    (anchor,) = steering.propose(steering.z, 1)
    (injection,) = steering.injections(anchor[None])
    return Decision(anchor, injection, figures=steering.figures)


METHOD = chunk_method(
    "random-anchor",
    _decide,
    steering=Steering,
    about="markov with a random direction in every chunk, untested",
)
