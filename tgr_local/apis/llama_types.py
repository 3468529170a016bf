"""Types of the parameters of `TgrLlama`'s methods, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from tgr_local.engine import Cancel
from tgr_local.generation.control_vectors import ControlVector

Prompt: TypeAlias = str | Seq[int] | Seq[str] | Seq[Seq[int]]


class _Parameters(TypedDict, total=False):
    stream: bool
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    typical_p: float | None
    stop: str | Seq[str] | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repeat_penalty: float | None
    tfs_z: float | None
    mirostat_mode: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    model: str | None
    logits_processor: None
    grammar: Any
    logit_bias: Mapping[int, float] | None
    n: int
    best_of: int | None
    stream_options: Mapping[str, Any] | None
    method: str | None
    tgr: Mapping[str, Any] | None
    control_vector: ControlVector | None
    cancel: Cancel | None


class CompletionParameters(_Parameters, total=False):
    """The parameters of `TgrLlama.create_completion` after `max_tokens`."""

    logprobs: int | None
    echo: bool
    stopping_criteria: None


class ChatParameters(_Parameters, total=False):
    """The parameters of `TgrLlama.create_chat_completion` after the messages."""

    functions: None
    function_call: None
    tools: Seq[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    response_format: Mapping[str, Any] | None
    max_tokens: int | None
    logprobs: bool | None
    top_logprobs: int | None
    reasoning_effort: str | None
