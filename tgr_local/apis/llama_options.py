"""The parts of llama-cpp-python's interface that `TgrLlama` has not: which of its options may have
which values here, and what to do instead of the rest; and the types of the parameters of its
methods, for type checkers and editors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from typing_extensions import TypedDict

from tgr_local.apis.validation import RequestError
from tgr_local.engine import Cancel
from tgr_local.generation.control_vectors import ControlVector
from tgr_local.generation.schemas import json_grammar
from tgr_local.system.text_files import read_file

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


class Allowed(NamedTuple):
    """The values that an option may have here, and what to do instead of another."""

    accepted: tuple[Any, ...]
    instead: str


RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's number for a seed that is drawn."""
POOLINGS = {0: "none", 1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers of the ways to make one vector of a text."""
_BY_FILE: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("kv_overrides", (None, {})), ("rope_scaling_type", (-1, None)), ("rope_freq_base", (0.0,)),
    ("rope_freq_scale", (0.0,)), ("yarn_ext_factor", (-1.0,)), ("yarn_attn_factor", (1.0, -1.0)),
    ("yarn_beta_fast", (32.0, -1.0)), ("yarn_beta_slow", (1.0, -1.0)), ("yarn_orig_ctx", (0,)),
    ("attention_type", (-1, 0)),
)  # fmt: skip

ONLY: Mapping[str, Allowed] = {
    "split_mode": Allowed((1,), "layers are divided among the GPUs as tensor_split says"),
    "vocab_only": Allowed((False,), "the whole model is loaded"),
    **{name: Allowed(values, "the model file says it; leave it out") for name, values in _BY_FILE},
    "pooling_type": Allowed((-1, *POOLINGS), "TgrLlama.rerank scores documents with a reranker"),
    "offload_kqv": Allowed(
        (True,), "the cache lies beside its layers; n_gpu_layers=0 keeps it in RAM"
    ),
    "lora_base": Allowed((None,), "lora_path is added to the model as it is"),
    "chat_handler": Allowed((None,), "the template of the model file is used; images are not read"),
    "draft_model": Allowed(
        (None,), "config=SearchConfig(draft_lookup='auto') guesses tokens without a second model"
    ),
    "tokenizer": Allowed((None,), "that of the model file is used"),
    "spm_infill": Allowed((False,), "the order of the model's own format is used"),
}
"""Options of ``llama_cpp.Llama`` with their values that change nothing here, the default first."""
ANY: Mapping[str, Any] = {
    "logits_all": True, "embedding": True, "verbose": False, "n_threads_batch": None,
    "op_offload": None, "swa_full": None, "no_perf": False, "numa": False,
}  # fmt: skip
"""Options of ``llama_cpp.Llama`` that have no effect here, and their defaults."""
NEUTRAL = {n: only.accepted[0] for n, only in ONLY.items() if n != "pooling_type"} | {**ANY}
"""The options that change nothing here, and their defaults."""

ABSENT: Mapping[str, str] = {
    **dict.fromkeys(
        ("generate", "eval", "sample"), "create_completion(tokens, stream=True) yields what follows"
    ),
    "tokenizer": "tokenize and detokenize are here",
    "save_state": "a request takes what earlier ones have read of its prompt from the cache",
    "load_state": "a request takes what earlier ones have read of its prompt from the cache",
    "scores": "create_completion has logprobs",
    "eval_logits": "create_completion has logprobs",
    "input_ids": "create_completion takes and counts tokens",
    "eval_tokens": "create_completion takes and counts tokens",
    "n_tokens": "usage of a response counts tokens",
    "ctx": "engine is what lies below",
    "context_params": "engine.config has the options",
    "model_params": "engine.config has the options",
}
"""Names of ``llama_cpp.Llama`` that are not here, and what is instead."""


def check_only(given: Mapping[str, Any]) -> None:
    """Raises ValueError for an option of `ONLY` with a value that would have a meaning."""
    for name, only in ONLY.items():
        value = given[name]
        if not any(type(value) is not np.ndarray and value == neutral for neutral in only.accepted):
            raise ValueError(f"{name} is {value!r:.80}, which is not supported: {only.instead}")


def check_types(given: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raises ValueError for an option that is neither absent nor of its type."""
    for name, kind in kinds.items():
        value = given.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r:.80}, but must be of type {kind.__name__}")


def as_path(name: str, given: Any) -> str:
    """The path that an option is. Raises ValueError for what is none."""
    path = os.fspath(given) if hasattr(given, "__fspath__") else given
    if not isinstance(path, str):
        raise ValueError(f"{name} is {given!r:.80}, but must be a path")
    return path


def as_shares(given: Any) -> tuple[float, ...]:
    """The numbers of `tensor_split`; None = none. Raises ValueError for anything else."""
    try:
        if not isinstance(given, str | bytes):
            return () if given is None else tuple(float(share) for share in given)
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"tensor_split is {given!r:.80}, but must be a list of numbers, one for each GPU"
    )


CALLBACKS: Mapping[str, str] = {
    "logits_processor": "logit_bias, grammar, min_p and the penalties do what most of them do",
    "stopping_criteria": "stop texts and max_tokens end a text, and so does leaving its stream",
}
"""Parameters of functions that llama-cpp-python calls for each token, and what to do instead."""


def check_callbacks(**given: Any) -> None:
    """Raises RequestError for a parameter of `CALLBACKS` with any function in it."""
    for name, value in given.items():
        if value is not None and (not isinstance(value, list | tuple) or value):
            raise RequestError(
                f"{name} is not supported, since tokens are drawn outside of Python; "
                f"{CALLBACKS[name]}",
                name,
            )


class LlamaGrammar:
    """A grammar in GBNF, as ``llama_cpp.LlamaGrammar`` is one; `verbose` has no effect."""

    def __init__(self, grammar: str) -> None:
        self._grammar = grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """The grammar of a text; a request says where it does not parse."""
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """The grammar in a file. Raises ValueError for a name that is not a file, OSError as
        `open` does."""
        return cls(read_file(str(file)))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """The grammar of JSON that follows a schema. Raises ValueError for a text that is not JSON
        and for a schema that cannot be followed."""
        import json

        try:
            schema = json.loads(json_schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"json_schema is not JSON: {error}") from None
        return cls(json_grammar(schema))
