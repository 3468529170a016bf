"""Options, and values of options, that have been removed. Files written before may name them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FORMER: Mapping[str, Any] = {
    "suffix_tokens": 0, "max_cached_tokens": 0, "rollout_end": "length", "proposal": "noise",
    "foresight_temperature": "one", "rollout_states": "before", "foresight": "value",
    "normalize_scores": False, "min_gap": 0.0, "max_rollout": 128, "search_entropy": 0.0,
    "entropy_window": 32, "geometry_top": 0, "min_n_eff": 0.0, "max_apcs": 1.0,
    "raised_lambda_u": 2.0, "common_noise": False, "share_repulsion": False,
    "injection_maps": "random", "first_layer": 0, "last_layer": -1, "vote_cut": 0,
    "tree_value": "likelihood", "tree_value_samples": 3, "tree_resets": False, "exit_gap": 0,
    "step_min": 0.0, "step_max": math.pi / 2, "max_proposals": 1000,
    "graph_merges": 1, "graph_refines": 1, "exit_at": "line",
    "exit_prefix": "The answer is \\boxed{", "exit_tokens": 20,
    "exit_threshold": 0.95, "vote_keep": 0, "keep_head": 0, "power_blocks": 16, "answer_tokens": 0,
    "draft_model": "", "draft_tokens": 0, "probe": "", "main_gpu": -1,
    "slot_save_path": "", "slot_save_mib": 8192,
}  # fmt: skip
"""Their defaults: what the search and the engine do now."""
FORMER_VALUES: Mapping[str, Mapping[Any, Any]] = {
    "vote_weight": {"auto": "likelihood", "probe": "likelihood"},
}
"""Values that have left, and the default that takes their place."""
FORMER_METHODS = {"early-exit": "base"}
"""Methods that have left, and what takes their place."""
_LEFT = {"draft_model": "engine", "draft_tokens": "engine", "slot_save_path": "server",
         "slot_save_mib": "server"}  # fmt: skip
_NEW_NAMES = {"main_gpu": "device"}


def has_left(name: str, value: Any) -> bool:
    """Whether an option, or this value of it, is a former one."""
    return name in FORMER or (isinstance(value, str) and value in FORMER_VALUES.get(name, ()))


def no_effect(name: str, value: Any, written: str) -> str:
    """The warning for what `has_left`, which the user has written so."""
    what = written if name in FORMER else f"{written} = {value}"
    return f"{what} {departed(name) or 'has left the search'} and has no effect"


def departed(name: str) -> str:
    """Says what happened to a removed option; empty for any other name."""
    if name not in FORMER:
        return ""
    if name in _NEW_NAMES:
        return f"is called {_NEW_NAMES[name]} now"
    return f"has left the {_LEFT.get(name, 'search')}"


def removed_option_error(name: str, written: str = "") -> str:
    """The error for a removed option, whose name the user has written so; empty for any other
    name."""
    return f"{written or name} {departed(name)}; remove it" if name in FORMER else ""
