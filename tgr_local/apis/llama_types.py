"""Types of `TgrLlama`'s arguments and results for checkers: llama-cpp-python's, with our parts.

`tgr` and `timings` are on every response: the cost of the search, and llama-server's times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import NotRequired, TypedDict

from tgr_local.engine import Cancel
from tgr_local.generation.control_vectors import ControlVector

Prompt: TypeAlias = str | Seq[int] | Seq[str] | Seq[Seq[int]]
StoppingCriterion: TypeAlias = Callable[[NDArray[np.intc], NDArray[np.single]], bool]
StoppingCriteria: TypeAlias = StoppingCriterion | Seq[StoppingCriterion]


class ResponseUsage(TypedDict):
    """Tokens of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[dict[str, int]]
    completion_tokens_details: NotRequired[dict[str, int]]


class _ResponseFields(TypedDict):
    id: str
    created: int
    model: str
    tgr: NotRequired[dict[str, Any]]
    timings: NotRequired[dict[str, Any]]


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a text's tokens."""

    tokens: list[str]
    text_offset: list[int]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None


class CompletionChoice(TypedDict):
    """A text, or the next piece of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(_ResponseFields):
    """The response of `TgrLlama.create_completion`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: ResponseUsage


class CompletionChunk(_ResponseFields):
    """A chunk of its stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[ResponseUsage | None]


class ReplyFunction(TypedDict):
    """The function that a call names, and the text of its arguments, a JSON object."""

    name: str
    arguments: str


class ReplyToolCall(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: ReplyFunction


class ReplyMessage(TypedDict):
    """A reply to a conversation."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ReplyToolCall]]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a reply's tokens."""

    content: list[dict[str, Any]] | None
    refusal: list[dict[str, Any]] | None


class ChatChoice(TypedDict):
    """A reply."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletion(_ResponseFields):
    """The response of `TgrLlama.create_chat_completion`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: ResponseUsage


class CalledFunctionPart(TypedDict):
    """A piece of a call's function."""

    name: NotRequired[str]
    arguments: str


class ToolCallPart(TypedDict):
    """A piece of a call."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionPart


class Delta(TypedDict):
    """Part that a chunk adds to a reply."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallPart]]


class ChatChunkChoice(TypedDict):
    """A reply's part of a chunk."""

    index: int
    delta: Delta
    logprobs: NotRequired[ChatLogprobs | None]
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(_ResponseFields):
    """A chunk of its stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[ResponseUsage | None]


class EmbeddingUsage(TypedDict):
    """Tokens of the texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The vector of a text, or with pooling "none" those of its tokens."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[list[float]]


class EmbeddingResponse(TypedDict):
    """The response of `TgrLlama.create_embedding`."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class NeutralOptions(TypedDict, total=False):
    """Options of ``llama_cpp.Llama`` that change nothing here: those of `llama_options.ONLY` have
    one value or two, the others any."""

    logits_all: bool
    embedding: bool
    verbose: bool
    split_mode: int
    vocab_only: bool
    kv_overrides: Mapping[str, bool | int | float | str] | None
    n_threads_batch: int | None
    rope_scaling_type: int | None
    attention_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    offload_kqv: bool
    op_offload: bool | None
    swa_full: bool | None
    no_perf: bool
    lora_base: str | None
    numa: bool | int
    chat_handler: None
    draft_model: None
    tokenizer: None
    spm_infill: bool


class _Parameters(TypedDict, total=False):
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
    stopping_criteria: StoppingCriteria | None


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


CHAT_ORDER = (
    "functions function_call tools tool_choice temperature top_p top_k min_p typical_p stream stop "
    "seed response_format max_tokens presence_penalty frequency_penalty repeat_penalty tfs_z "
    "mirostat_mode mirostat_tau mirostat_eta model logits_processor grammar logit_bias logprobs "
    "top_logprobs"
)
"""The parameters of a chat in llama-cpp-python's order, after the messages."""
COMPLETION_ORDER = (
    "temperature top_p min_p typical_p logprobs echo stop frequency_penalty presence_penalty "
    "repeat_penalty top_k stream seed tfs_z mirostat_mode mirostat_tau mirostat_eta model "
    "stopping_criteria logits_processor grammar logit_bias"
)
"""The parameters of a completion in llama-cpp-python's order, after `max_tokens`."""
