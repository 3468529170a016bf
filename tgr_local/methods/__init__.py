"""The methods, by name: exactly one module each.

A method takes a `search.run.Run` and yields one `Step` for each chunk. It knows nothing of
messages, other replies or terminals. Each module has one `METHOD` record: its name, its `run`, the
cells and sequences that it needs, the positions that it decodes at most, and whether it resets,
searches and steers. A new method is a new module, its import and its place in `_MODULES` below.

base.py              plain sampling
markov.py            the reset at every chunk, and nothing else
random_anchor.py     an anchor at every chunk, drawn without a search
tgr_latent.py        The Geometric Reasoner
tgr_think.py         the thinking by tgr-latent, the answer by plain sampling
tgr_token.py         rollouts without anchors; the best one begins the chunk
hard_geometry.py     anchors accepted or rejected by a rule
best_of_n.py         n samples; the likeliest one
self_consistency.py  n samples; the most frequent answer
vote.py              samples in waves; weighted votes; stops once an answer is sure
auto.py              the vote that suits the model and the budget
power.py             Metropolis-Hastings towards p^α
tot.py               Tree of Thoughts
got.py               Graph of Thoughts
early_exit.py        the thinking ends when a trial answer is sure
answers.py           the final answer in a text, as votes compare it
think_tags.py        the tags around the thinking
probe/               how likely a text is right; knows no method
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from tgr_local.methods import (
    auto,
    base,
    best_of_n,
    early_exit,
    got,
    hard_geometry,
    markov,
    power,
    random_anchor,
    self_consistency,
    tgr_latent,
    tgr_think,
    tgr_token,
    tot,
    vote,
)
from tgr_local.search.run import Method as Method

_MODULES = (
    base,
    markov,
    random_anchor,
    tgr_latent,
    tgr_think,
    tgr_token,
    hard_geometry,
    best_of_n,
    self_consistency,
    vote,
    auto,
    power,
    tot,
    got,
    early_exit,
)
_NAME_MOST = 64  # characters of a name that is compared with known ones

METHODS: Mapping[str, Method] = {module.METHOD.name: module.METHOD for module in _MODULES}


def get(name: str | Method) -> Method:
    """The method of that name; a `Method` is returned as it is. Raises ValueError for an unknown
    name, with the nearest one, or all."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        raise ValueError(f"method is {name!r:.80}, but must be a name, such as 'tgr-latent'")
    if name not in METHODS:
        near = difflib.get_close_matches(name[:_NAME_MOST], METHODS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(METHODS)}"
        raise ValueError(f"unknown method {name!r:.80}; {hint}")
    return METHODS[name]
