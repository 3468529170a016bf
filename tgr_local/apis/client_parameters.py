"""Parameters of other servers' clients that have no effect here: those of OpenAI's, Anthropic's,
llama.cpp's, llama-cpp-python's, vLLM's, ollama's, OpenRouter's and other hosts'.

Those that cannot change the reply are accepted and listed as ignored in the response, and so is
`samplers`, the order of llama.cpp's samplers: here it is fixed. Those that are not supported are
refused unless they have a neutral value, one without an effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tgr_local.apis.validation import Model, RequestBody, RequestError, with_fields

_IGNORED = "ignored"
Ignored = Annotated[Any, _IGNORED]
"""A parameter of any value, listed as ignored in the response."""


class Only:
    """Marks a parameter that is not supported; `neutral` are its values without an effect."""

    is_refused = True

    def __init__(self, *neutral: Any) -> None:
        self._accepted = [None, *neutral]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._check, handler(Any))

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, Any]:
        return {"enum": self._accepted}

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if value not in self._accepted:
            raise RequestError(f"{info.field_name} is not supported; leave it out", info.field_name)
        return value


class Ignoring(RequestBody):
    """A body with parameters that have no effect."""

    def ignored(self) -> tuple[str, ...]:
        """The names of the given parameters that have no effect."""
        return tuple(
            name
            for name, field in type(self).model_fields.items()
            if _IGNORED in field.metadata and getattr(self, name) is not None
        )


def ignoring(*names: str) -> Callable[[type[Model]], type[Model]]:
    """A decorator that adds parameters without an effect to a body."""
    return with_fields(dict.fromkeys(names, (Ignored, None)))


_IGNORED_NAMES = (
    # OpenAI's
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options", "moderation", "verbosity", "prediction",
    # llama.cpp's: its cache and slots, its report; limits of lines, which texts without a chat
    # template have (`bodies.TextRequest`); a limit that llama-server ignores too
    "cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "n_discard", "n_indent",
    "t_max_predict_ms", "t_max_prompt_ms", "timings_per_token", "return_progress",
    "return_tokens", "response_fields", "post_sampling_probs", "reasoning_format",
    "parse_tool_calls", "backend_sampling", "sse_ping_interval", "verbose",
    # llama.cpp's: the order of the samplers, which is fixed here; numbers of those that are refused
    "samplers", "mirostat_tau", "mirostat_eta", "adaptive_decay", "smoothing_curve",
    # vLLM's
    "priority", "request_id", "cache_salt", "length_penalty", "skip_special_tokens",
    "spaces_between_special_tokens", "return_token_ids", "return_tokens_as_token_ids",
    "include_reasoning", "guided_decoding_backend", "guided_whitespace_pattern",
    "mm_processor_kwargs", "chat_template_content_format", "kv_transfer_params",
    # ollama's, LM Studio's and OpenRouter's
    "keep_alive", "options", "num_ctx", "ttl", "draft_model", "provider", "transforms", "route",
    "usage", "plugins", "models", "preset", "session_id", "trace", "debug", "image_config",
    "cache_control",
    # those of Groq, Mistral, DeepSeek, Together, Fireworks, Azure and SGLang
    "citation_options", "compound_custom", "disable_tool_validation", "search_settings",
    "include_domains", "exclude_domains", "prompt_mode", "user_id", "safety_model", "compliance",
    "context_length_exceeded_behavior", "prompt_cache_isolation_key", "perf_metrics_in_response",
    "user_security_context", "rid", "separate_reasoning", "stream_reasoning",
    # those of llama.cpp and vLLM for drafts and pictures
    "speculative.n_max", "speculative.n_min", "speculative.p_min", "media_io_kwargs",
    "vllm_xargs",
)  # fmt: skip
_REFUSED: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((), "audio web_search_options prompt_logprobs chat_template guided_regex guided_grammar "
         "structured_outputs"),
    (([],), "functions image_data logits_processor stopping_criteria stop_token_ids bad_words "
            "allowed_token_ids documents guided_choice lora"),
    ((False,), "ignore_eos use_beam_search include_stop_str_in_output safe_prompt"),
    ((1,), "tfs_z n_cmpl"),
    ((0,), "mirostat mirostat_mode smoothing_factor n_probs min_tokens top_a"),
    ((0, 1), "min_keep"),
    ((-1,), "adaptive_target truncate_prompt_tokens"),
    (("none", "auto"), "function_call"),
    ((["text"],), "modalities"),
)  # fmt: skip
"""Values without an effect, and the parameters that cannot be followed with any others."""


@ignoring(*_IGNORED_NAMES)
@with_fields(
    {
        name: (Annotated[Any, Only(*neutral)], None)
        for neutral, names in _REFUSED
        for name in names.split()
    }
)
class ClientParameters(Ignoring):
    """Parameters that clients send in addition to those that have an effect."""
