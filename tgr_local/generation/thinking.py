"""Thinking that must end before the answer begins: the options of both runs, and "answer now"."""

from __future__ import annotations

import dataclasses

from tgr_local.engine import Cancel
from tgr_local.generation.text import CLOSE_THINK, TextSplitter
from tgr_local.options.config import SearchConfig
from tgr_local.search.seeds import derived_seed
from tgr_local.search.steps import Step


def thinking_config(config: SearchConfig) -> SearchConfig:
    """The config of a run that ends with the thinking."""
    limit = config.token_limit
    return dataclasses.replace(
        config,
        grammar="",
        stop=(*config.stop, CLOSE_THINK),
        max_tokens=min(config.thinking_budget or limit, limit),
    )


def answer_config(config: SearchConfig, steps: list[Step], seconds: float) -> SearchConfig | None:
    """The config of the answer's run, with what the `steps` and `seconds` of the thinking leave of
    its limits; None when that is nothing."""
    n_tokens = sum(len(step.tokens) for step in steps)
    positions = config.max_forward_tokens - sum(step.counts.total for step in steps)
    seconds = config.max_seconds - seconds
    if (config.max_forward_tokens and positions <= 0) or (config.max_seconds and seconds <= 0):
        return None
    return dataclasses.replace(
        config,
        max_tokens=config.token_limit - n_tokens,
        max_forward_tokens=positions if config.max_forward_tokens else 0,
        max_seconds=seconds if config.max_seconds else 0.0,
        seed=derived_seed(config.seed, len(steps)) >> 1,
    )


class AnswerNow(Cancel):
    """Passes a cancel on, and "answer now" only while there is thinking to end: at the next token
    where the text is read as it comes, else at the end of a step."""

    def __init__(self, outer: Cancel | None, splitter: TextSplitter, follows: bool) -> None:
        super().__init__(outer)
        self.was_seen = self._closed = False
        self._splitter, self._follows = splitter, follows

    def answers_now(self) -> bool:
        self.was_seen = self.was_seen or (self._follows and self.is_due())
        return self._follows and self.is_due()

    def is_due(self) -> bool:
        """Whether the text that the splitter has so far is thinking that is to be ended."""
        return super().answers_now() and self._splitter.kind == "thinking" and not self._closed

    def close(self) -> None:
        """The answer begins: nothing is to be stopped early any more."""
        self._closed = True
