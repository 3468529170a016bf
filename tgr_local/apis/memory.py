"""The memory that a request takes, in addition to the model and its cache."""

from __future__ import annotations

import dataclasses

from tgr_local.apis.requests import PreparedRequest
from tgr_local.engine import Engine
from tgr_local.search import geometry
from tgr_local.search.capacity import most_chunks, n_rollouts

# bytes, measured: of a token of a reply, of an alternative reported for one, of a token in the
# record of a rollout, and of a character of a grammar in a sampler
_TOKEN, _ALTERNATIVE, _RECORDED, _GRAMMAR = 250, 400, 12, 32


def memory_needed(engine: Engine, request: PreparedRequest) -> int:
    """An upper bound in bytes: injection maps, states of rollouts, records of steps, text and
    log-probabilities."""
    config, method = request.config, request.method
    if method.thinking and method.answer:
        kinds = (method.thinking, method.answer)
        return max(memory_needed(engine, dataclasses.replace(request, method=one)) for one in kinds)
    n_replies = len(request.prompts) * request.best_of
    n_seqs = method.sequences(engine, config)
    at_once = min(n_replies, max(1, engine.n_seq_max // n_seqs))
    n_steps = most_chunks(config)
    n_texts = 1 if method.resets else n_seqs
    text = config.token_limit * (_TOKEN * n_texts + _ALTERNATIVE * config.top_logprobs)
    maps = moment = record = 0
    if method.steers:
        d_z = config.d_z or engine.n_embd
        maps = geometry.map_bytes(engine.n_layer, engine.n_embd, d_z, config.rank)
        n_anchors = config.n_candidates if method.searches else 1
        moment = 16 * n_anchors * engine.n_layer * engine.n_embd
        record = 8 * n_anchors * d_z
    if method.searches:
        n_tokens = n_rollouts(config) * config.rollout_len
        moment += 8 * n_tokens * engine.n_embd
        record += _RECORDED * n_tokens
    grammar = request.form.grammar if request.form else ""
    moment += _GRAMMAR * max(len(config.grammar), len(grammar)) * n_seqs
    if request.echo and request.logprobs is not None:
        n_prompt = sum(map(len, request.prompts)) * request.best_of
        text += n_prompt * (_TOKEN + _ALTERNATIVE * request.logprobs) // n_replies
    return maps + at_once * moment + n_replies * (n_steps * record + text)
