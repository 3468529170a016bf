"""Parameters of other servers' clients that have no effect here: those of OpenAI's, Anthropic's,
llama.cpp's, llama-cpp-python's, vLLM's, ollama's and OpenRouter's.

Those that cannot change the reply are accepted and listed as ignored in the response. Those that
are not supported are refused unless they have a neutral value, one without an effect.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tgr_local.openai.validation import OpenObject, RequestBody, RequestError

_IGNORED = "ignored"
Ignored = Annotated[Any, _IGNORED]
"""A parameter of any value, listed as ignored in the response."""


class Only:
    """Marks a parameter that is not supported; `neutral` are its values without an effect."""

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
        fields = type(self).model_fields
        given = (name for name in fields if name in self.model_fields_set)
        return tuple(
            name
            for name in given
            if _IGNORED in fields[name].metadata and getattr(self, name) is not None
        )


ADAPTERS_MAX = 256


class LoraScale(OpenObject):
    """The scale of a LoRA adapter, by its number in /lora-adapters."""

    id: int
    scale: float


class ClientParameters(Ignoring):
    """What clients send in addition to what has an effect."""

    lora: list[LoraScale] | None = Field(
        None,
        max_length=ADAPTERS_MAX,
        description="the server's LoRA adapters for this request alone; those that are not named "
        "have the scale 0",
    )

    # OpenAI's
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
    moderation: Ignored = None
    verbosity: Ignored = None

    # llama.cpp's: its cache and slots, its report; limits of lines, which texts without a chat
    # template have (`bodies.TextRequest`); a limit that llama-server ignores too
    cache_prompt: Ignored = None
    n_cache_reuse: Ignored = None
    n_keep: Ignored = None
    n_discard: Ignored = None
    n_indent: Ignored = None
    t_max_predict_ms: Ignored = None
    t_max_prompt_ms: Ignored = None
    timings_per_token: Ignored = None
    return_progress: Ignored = None
    return_tokens: Ignored = None
    response_fields: Ignored = None
    post_sampling_probs: Ignored = None
    reasoning_format: Ignored = None
    parse_tool_calls: Ignored = None
    backend_sampling: Ignored = None
    sse_ping_interval: Ignored = None
    verbose: Ignored = None

    # llama.cpp's: samplers that are not here
    samplers: Ignored = None
    min_keep: Ignored = None
    repeat_last_n: Ignored = None
    top_n_sigma: Ignored = None
    dynatemp_range: Ignored = None
    dynatemp_exponent: Ignored = None
    mirostat_tau: Ignored = None
    mirostat_eta: Ignored = None
    adaptive_target: Ignored = None
    adaptive_decay: Ignored = None

    # vLLM's
    priority: Ignored = None
    request_id: Ignored = None
    cache_salt: Ignored = None
    length_penalty: Ignored = None
    skip_special_tokens: Ignored = None
    spaces_between_special_tokens: Ignored = None
    return_token_ids: Ignored = None
    return_tokens_as_token_ids: Ignored = None
    include_reasoning: Ignored = None
    guided_decoding_backend: Ignored = None
    guided_whitespace_pattern: Ignored = None
    mm_processor_kwargs: Ignored = None
    chat_template_content_format: Ignored = None
    kv_transfer_params: Ignored = None

    # ollama's, LM Studio's and OpenRouter's
    keep_alive: Ignored = None
    options: Ignored = None
    num_ctx: Ignored = None
    ttl: Ignored = None
    draft_model: Ignored = None
    provider: Ignored = None
    transforms: Ignored = None
    route: Ignored = None
    usage: Ignored = None

    # what cannot be followed
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none", "auto")] = None
    audio: Annotated[Any, Only()] = None
    prediction: Annotated[Any, Only()] = None
    web_search_options: Annotated[Any, Only()] = None
    modalities: Annotated[Any, Only(["text"])] = None
    typical_p: Annotated[Any, Only(1)] = None
    tfs_z: Annotated[Any, Only(1)] = None
    mirostat: Annotated[Any, Only(0)] = None
    mirostat_mode: Annotated[Any, Only(0)] = None
    ignore_eos: Annotated[Any, Only(False)] = None
    n_cmpl: Annotated[Any, Only(1)] = None
    n_probs: Annotated[Any, Only(0)] = None
    image_data: Annotated[Any, Only([])] = None
    logits_processor: Annotated[Any, Only([])] = None
    stopping_criteria: Annotated[Any, Only([])] = None
    use_beam_search: Annotated[Any, Only(False)] = None
    min_tokens: Annotated[Any, Only(0)] = None
    stop_token_ids: Annotated[Any, Only([])] = None
    bad_words: Annotated[Any, Only([])] = None
    allowed_token_ids: Annotated[Any, Only([])] = None
    include_stop_str_in_output: Annotated[Any, Only(False)] = None
    prompt_logprobs: Annotated[Any, Only()] = None
    truncate_prompt_tokens: Annotated[Any, Only(-1)] = None
    chat_template: Annotated[Any, Only()] = None
    documents: Annotated[Any, Only([])] = None
    guided_regex: Annotated[Any, Only()] = None
    guided_choice: Annotated[Any, Only([])] = None
    guided_grammar: Annotated[Any, Only()] = None
    structured_outputs: Annotated[Any, Only()] = None
    top_a: Annotated[Any, Only(0)] = None
