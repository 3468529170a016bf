"""The rest of a character at the end of a reply.

A limit of tokens may fall inside of a character, of which many vocabularies write the bytes one by
one. In: the text before, the bytes that there are. Out: a step with the tokens that complete it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tgr_local import methods
from tgr_local.engine import Cancel, Engine
from tgr_local.errors import BudgetError, CapacityError
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Run
from tgr_local.search.steps import Step

_MOST = 3  # tokens: a character has four bytes at most


def rest_of_character(
    engine: Engine,
    query: Sequence[int],
    config: SearchConfig,
    begun: bytes,
    cancel: Cancel | None = None,
) -> Step | None:
    """The tokens after `query` that complete the character whose first bytes are `begun`: none
    where the model writes something else. None where nothing fits any more. Raises
    CancelledError."""
    if len(query) + _MOST > engine.n_ctx_train:
        return None
    few = dataclasses.replace(
        config,
        max_tokens=_MOST, chunk_len=_MOST, max_chunks=1, stop=(), max_seconds=0.0, loop_guard=0,
    )  # fmt: skip
    try:
        (step,) = methods.get("base").run(Run(engine, query, few, cancel=cancel))
    except (BudgetError, CapacityError):
        return None
    tokens = step.tokens.tolist()
    for n in range(1, len(tokens) + 1):
        if tokens[n - 1] in engine.end_tokens:
            break
        try:
            (begun + engine.detokenize(tokens[:n])).decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                break
        else:
            return step.beginning(n)
    return step.beginning(0)
