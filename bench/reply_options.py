"""The options that replies.py records replies with."""

from __future__ import annotations

from typing import Any

from exact_records import Json

EXACT: dict[str, Any] = {
    "type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1, "n_gpu_layers": 0,
}  # fmt: skip
BASE: dict[str, Any] = {
    "chunk_len": 20, "max_chunks": 5, "rollout_len": 6, "n_candidates": 4, "sigma": 0.3,
    "relative_strength": 0.15, "temperature": 0.9, "n_samples": 3,
    "power_steps": 2, "tree_proposals": 2,
}  # fmt: skip

# options of tgr-latent, in addition to BASE
VARIANTS: dict[str, Json] = {
    "absolute": {"calibration": "absolute", "eta": 0.5},
    "residual, strong": {"calibration": "residual", "relative_strength": 0.4, "eta": 1.5},
    "foresight alone": {"lambda_b": 0.0, "lambda_u": 0.0},
    "penalties alone": {"foresight_weight": 0.0, "delta": -0.5, "lambda_u": 2.0},
    "reevaluate": {"reevaluate": 2},
    "n_mc": {"n_mc": 2},
    "n_mc, reevaluate": {"n_mc": 2, "reevaluate": 3},
    "shift_cells": {"shift_cells": True},
    "shift_cells, short chunks": {"shift_cells": True, "chunk_len": 16},
    "forward tokens": {"max_forward_tokens": 260},
    "forward tokens, few": {"max_forward_tokens": 90, "reevaluate": 4},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    "truncation": {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    "greedy": {"temperature": 0.0},
    "reuse_winner": {"reuse_winner": True, "top_logprobs": 2},
    "reuse_winner, long": {"reuse_winner": True, "rollout_len": 24, "max_tokens": 47},
    "narrow anchors": {"d_z": 16, "rank": 2, "injection_seed": 7},
    "wide anchors": {"d_z": 300, "rank": 16},
    "top_logprobs": {"top_logprobs": 5},
    "one candidate": {"n_candidates": 1},
    "max_tokens": {"max_tokens": 47},
    "chunk_len": {"chunk_len": 16, "rollout_len": 8, "max_chunks": 6},
    "loop_guard": {"loop_guard": 3, "temperature": 0.05, "max_chunks": 12},
}  # fmt: skip

# options of one method, in addition to BASE
OF_METHODS: dict[str, list[Json]] = {
    "base": [{"max_chunks": 1}, {"chunk_len": 64, "max_tokens": 90}],
    "markov": [{"chunk_len": 16}, {"shift_cells": True}],
    "random-anchor": [{"calibration": "absolute"}, {"sigma": 1.0}],
    "tgr-latent": [{"sigma": 1.0, "delta": 0.9}],
    "tgr-token": [{"rollout_len": 20}, {"rollout_len": 30}],
    "hard-geometry": [{"kappa_max": 0.3}, {"d_z": 12}],
    "best-of-n": [{"n_samples": 5, "max_tokens": 33}, {"n_samples": 1}],
    "self-consistency": [{"n_samples": 7, "temperature": 1.2}],
    "power": [
        {"power_alpha": 1.5, "power_steps": 4}, {"power_steps": 0}, {"max_chunks": 3},
    ],
    "tot": [
        {"tree_breadth": 3, "chunk_len": 16},
    ],
    "got": [{"tree_breadth": 3, "max_chunks": 2}],
    "vote": [{"vote_keep": 2}, {"vote_weight": "count", "vote_bar": 2.0}, {"vote_wave": 1}],
    "auto": [{"n_samples": 4}],
    "early-exit": [{"exit_threshold": 0.5}, {"exit_threshold": 2.0}],
}  # fmt: skip

# options that every method knows, in addition to BASE
FOR_ALL: dict[str, Json] = {
    "top_logprobs": {"top_logprobs": 3},
    "stop": {"stop": ("4", " was a", "\n\n"), "temperature": 0.3},
    "forward tokens": {"max_forward_tokens": 700},
    "forward tokens, few": {"max_forward_tokens": 60},
    "truncation": {"top_k": 9, "top_p": 0.95, "repeat_penalty": 1.1},
    "grammar": {"grammar": 'root ::= [a-zA-Z0-9 ,.=+*]+ "\\n" [a-z ]*'},
    "thinking_budget": {"thinking_budget": 24},
    "no thinking": {"thinking": False},
    "one token": {"max_tokens": 1},
}
