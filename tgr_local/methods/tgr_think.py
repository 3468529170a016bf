"""``tgr-think``: the thinking of a model that thinks, by ``tgr-latent``; the answer plainly.

The thinking is a long reasoning whose old lines may go, so its context stays bounded. What a person
reads is written by plain sampling, with the question and all of the thinking that fits as context.
A model that does not think writes by plain sampling alone.
"""

from __future__ import annotations

from tgr_local.engine import Engine
from tgr_local.methods import base, tgr_latent
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Method

_THINKING, _ANSWER = tgr_latent.METHOD, base.METHOD


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    """Cells of the larger of the two."""
    fitted = _THINKING.fitted(engine, n_query, config)
    return max(_THINKING.cells(engine, n_query, fitted), base.cells(engine, n_query, config))


METHOD = Method(
    "tgr-think",
    base.run,
    cells,
    _THINKING.sequences,
    fit=base.fit,
    thinking=_THINKING,
    answer=_ANSWER,
    about="plain answers; the thinking of a model that thinks is searched, as by tgr-latent",
    options=(*_THINKING.options, *_ANSWER.options),
)
