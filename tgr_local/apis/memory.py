"""The memory that a request takes, in addition to the model and its cache."""

from __future__ import annotations

import dataclasses

from tgr_local.apis.requests import PreparedRequest
from tgr_local.engine import Engine
from tgr_local.generation import run_bytes

# bytes, measured: of a token of a reply, of an alternative reported for one, and of a character of
# a grammar in a sampler
_TOKEN, _ALTERNATIVE, _GRAMMAR = 250, 400, 32


def memory_needed(engine: Engine, request: PreparedRequest) -> int:
    """An upper bound in bytes: injection maps, states of rollouts, records of steps, text and
    log-probabilities."""
    config, method = request.config, request.method
    if method.thinking and method.answer:
        kinds = (method.thinking, method.answer)
        return max(
            memory_needed(engine, dataclasses.replace(request, method=part)) for part in kinds
        )
    n_replies = len(request.prompts) * request.best_of
    n_seqs = method.sequences(engine, config)
    at_once = min(n_replies, max(1, engine.n_seq_max // n_seqs))
    n_texts = 1 if method.resets else n_seqs
    text = config.token_limit * (_TOKEN * n_texts + _ALTERNATIVE * config.top_logprobs)
    maps, boundary, records = run_bytes(engine, config, method)
    grammar = request.form.grammar if request.form else ""
    boundary += _GRAMMAR * max(len(config.grammar), len(grammar)) * n_seqs
    if request.echo and request.logprobs is not None:
        n_prompt = sum(map(len, request.prompts)) * request.best_of
        text += n_prompt * (_TOKEN + _ALTERNATIVE * request.logprobs) // n_replies
    return maps + at_once * boundary + n_replies * (records + text)
