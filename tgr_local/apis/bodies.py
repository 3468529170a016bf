"""Request bodies: what those of every API have, and those of OpenAI's endpoints and llama.cpp's.

Types and bounds only. What a parameter means here, and what depends on the model, is in `requests`.
/openapi.json is made from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired

from tgr_local.apis.client_parameters import ClientParameters
from tgr_local.apis.search_options import (
    TgrOptions,
    as_list,
    list_bounds,
    option_field,
    option_fields,
    optional,
    text_bounds,
    whole_field,
)
from tgr_local.apis.tools import as_choice, as_tool, function_call
from tgr_local.apis.validation import AT_FAULT, OpenObject, with_fields
from tgr_local.options.fields import INT_MAX

CHOICES_MAX = 128
PROMPTS_MAX = 128
FILES_MAX = 1024
FIELDS_MAX = 64
INDENT_MAX = 1024
NAME_MAX = 256
"""Characters of a model's name."""
TOOLS_MAX, CALLS_MAX = 512, 512
ToolName = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]
# ids are compared with the vocabulary later, which has the lower bound too
Tokens = Annotated[
    list[Annotated[int, Field(json_schema_extra={"minimum": 0})]], Field(fail_fast=True)
]
StopText = Annotated[str, text_bounds("stop")]
StopTexts = Annotated[list[StopText], list_bounds("stop"), as_list]
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}
LogitBias = Annotated[
    dict[Any, Any] | list[Any],
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": _BIAS},
                {"type": "array", "items": {"type": "array", "prefixItems": [{}, _BIAS]}},
            ]
        }
    ),
]


class _TextPart(OpenObject):
    """A part of a message's content; in the place of what is not text a line stands."""

    type: NotRequired[str | None]
    text: NotRequired[str]


def _check_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in (None, "text") and "text" not in part:
        raise PydanticCustomError(AT_FAULT, "has no text; add it", {})
    return part


TextPart = Annotated[_TextPart, BeforeValidator(_check_part)]


class CalledFunction(OpenObject):
    """The function that a call names; its arguments are the text of a JSON object, or one."""

    name: ToolName
    arguments: NotRequired[str | dict[str, Any] | None]


def _as_function(call: Any) -> Any:
    """A call of a tool that takes a text, in a history, as that of a function."""
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        return call
    return function_call(call.get("id"), custom.get("name"), {"input": custom.get("input")})


class ToolCall(OpenObject):
    """A call of a tool in an earlier message of the assistant."""

    id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)] | None]
    type: NotRequired[Literal["function"] | None]
    function: CalledFunction


class Message(OpenObject):
    """A message; what else it has is for the chat template. One with the role "tool" is the result
    of the call `tool_call_id`."""

    role: str
    content: NotRequired[str | Annotated[list[TextPart], Field(fail_fast=True)] | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[
        Annotated[
            list[Annotated[ToolCall, BeforeValidator(_as_function)]],
            Field(fail_fast=True, max_length=CALLS_MAX),
        ]
        | None
    ]
    tool_call_id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)] | None]


class ToolFunction(OpenObject):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: ToolName
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


class _Tool(OpenObject):
    """A tool of a request: a function, or what is ignored."""

    type: NotRequired[Any]
    function: NotRequired[ToolFunction]


Tools = Annotated[
    list[Annotated[_Tool, BeforeValidator(as_tool)]],
    Field(fail_fast=True, max_length=TOOLS_MAX),
]


class NamedFunction(OpenObject):
    """The function that must be called."""

    name: ToolName


class NamedTool(OpenObject):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Annotated[Literal["none", "auto", "required"] | NamedTool, BeforeValidator(as_choice)]


class StreamOptions(OpenObject):
    """Reports of a stream in addition to its text."""

    include_usage: NotRequired[bool | None]


class JsonSchemaFormat(OpenObject):
    """The JSON schema of a reply."""

    schema: NotRequired[Any]


class ResponseFormat(OpenObject):
    """The form of a reply: OpenAI's ``json_schema``, or llama-cpp-python's ``schema``."""

    type: NotRequired[Literal["text", "json_object", "json_schema"] | None]
    json_schema: NotRequired[JsonSchemaFormat | None]
    schema: NotRequired[Any]


class ThinkingMode(OpenObject):
    """Whether the model thinks first, and how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: NotRequired[Annotated[int, Field(ge=1, le=INT_MAX)] | None]
    display: NotRequired[Literal["summarized", "omitted"] | None]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningOptions(OpenObject):
    """How the model thinks, and whether the response has its thinking, as OpenRouter has it."""

    effort: NotRequired[Effort | None]
    max_tokens: NotRequired[Annotated[int, Field(ge=0, le=INT_MAX)] | None]
    enabled: NotRequired[bool | None]
    exclude: NotRequired[bool | None]


class ChatTemplateOptions(OpenObject):
    """Variables of the chat template, by any names."""

    enable_thinking: NotRequired[bool | None]
    thinking_budget: NotRequired[Annotated[int, Field(ge=-1, le=INT_MAX)] | None]


_grammar_text = BeforeValidator(lambda given: getattr(given, "_grammar", given))
"""Takes a llama_cpp.LlamaGrammar too."""


SAMPLERS = (
    "min_p", "top_n_sigma", "typical_p", "dynatemp_range", "dynatemp_exponent", "repeat_last_n",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "xtc_probability", "xtc_threshold",
)  # fmt: skip


@with_fields(
    option_fields(
        *SAMPLERS,
        top_n_sigma={"ge": -1e30},
        dry_base={"ge": 0},
        dry_sequence_breakers={"doc": "DRY: texts at which a repetition ends"},
    )
)
class CommonRequest(ClientParameters):
    """Fields of requests for replies, or about them, in every API; min-p, DRY, XTC and so
    on are samplers of llama.cpp."""

    model: str | None = optional("any name; after a colon, the method", max_length=NAME_MAX)
    tgr: TgrOptions | None = None

    def sampler_options(self) -> Mapping[str, Any]:
        """The fields of `SearchConfig` that these samplers set."""
        given = {name: getattr(self, name) for name in SAMPLERS}
        if given["top_n_sigma"] is not None:
            given["top_n_sigma"] = max(0.0, given["top_n_sigma"])  # -1 turns it off there
        if given["dry_base"] is not None and given["dry_base"] < 1:
            del given["dry_base"]  # which to llama-server means its default
        if (breakers := given["dry_sequence_breakers"]) is not None:
            given["dry_sequence_breakers"] = tuple(breakers)
        return {name: value for name, value in given.items() if value is not None}

    def for_chat(self, *more: str) -> dict[str, Any]:
        """The parameters that are given of those that a chat request has by the same names."""
        given = {name: getattr(self, name, None) for name in (*_SAME, *more, *SAMPLERS)}
        return {name: value for name, value in given.items() if value is not None}


# the same name here, in OpenAI's API and in llama-cpp-python
SAMPLING = (
    "temperature", "top_p", "top_k", "repeat_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip
_HIDDEN = "hidden"
_SAME = (
    "model", "tgr", "method", "temperature", "top_p", "top_k", "seed", "stream",
    "chat_template_kwargs",
)  # fmt: skip


class SampledRequest(CommonRequest):
    """Fields of requests for replies in every API."""

    method: str | None = optional("name of the method, as in tgr")
    temperature: float | None = option_field("temperature")
    top_p: float | None = option_field("top_p")
    top_k: int | None = option_field("top_k", ge=-INT_MAX)
    seed: int | None = option_field("seed", ge=-1)
    stream: bool | None = None


class GenerationRequest(SampledRequest):
    """Fields of all requests for replies, but for Anthropic's and OpenAI's Responses."""

    random_seed: int | None = option_field("seed", ge=-1, doc="Mistral's name for seed")
    n: int | None = whole_field("choices for each prompt", least=1, most=CHOICES_MAX)
    best_of: int | None = whole_field(
        "replies that the n choices are taken from, by mean log-probability",
        least=1,
        most=CHOICES_MAX,
    )
    max_tokens: int | None = whole_field("new tokens at most; -1 = as many as the config allows")
    n_predict: int | None = whole_field("llama.cpp's name for max_tokens")
    repeat_penalty: float | None = option_field("repeat_penalty")
    repetition_penalty: float | None = option_field("repeat_penalty")
    frequency_penalty: float | None = option_field("frequency_penalty")
    presence_penalty: float | None = option_field("presence_penalty")
    stop: StopText | StopTexts | None = optional("texts that end the reply")
    logit_bias: LogitBias | None = optional(
        "token id to what is added to its logit; or llama.cpp's pairs of a token or a "
        "text and a number, or false for never"
    )
    grammar: Annotated[str | None, _grammar_text] = option_field("grammar")
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = optional(
        "llama.cpp's name for the schema of response_format"
    )
    guided_json: dict[str, Any] | None = optional("vLLM's name for the schema of response_format")
    stream_options: StreamOptions | None = None
    return_progress: bool | None = optional("a stream also says how much of the prompt is read")


BUDGETS = {
    "thinking_budget": "new tokens of thinking at most; -1 = no limit of its own",
    "thinking_budget_tokens": "llama.cpp's name for thinking_budget",
    "reasoning_budget_tokens": "llama.cpp's other name for it",
    "reasoning_budget": "the same, as llama-server's flag has it",
    "thinking_token_budget": "vLLM's name for it",
}


@with_fields({name: (int | None, whole_field(doc)) for name, doc in BUDGETS.items()})
class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    resent: ClassVar[Sequence[str]] = ("messages", "tools")

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = whole_field("OpenAI's newer name for max_tokens", least=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    reasoning_effort: Effort | None = optional(
        "a thinking_budget: none = no thinking, minimal 512, low 1024, medium "
        "4096; the others have no limit of their own. The chat template gets it too"
    )
    reasoning: ReasoningOptions | None = optional(
        "the same, as in OpenRouter's API; exclude = the thinking is not shown"
    )
    include_reasoning: bool | None = optional(
        "OpenRouter's and Groq's name for the opposite of reasoning.exclude"
    )
    reasoning_format: str | None = optional(
        "Groq's hidden; llama-server's formats are ignored", max_length=NAME_MAX
    )
    chat_template_kwargs: ChatTemplateOptions | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = optional(
        "whether the reply goes on with a last message of the assistant, or with which "
        "part of it; true if absent, unless add_generation_prompt is true"
    )
    add_generation_prompt: bool | None = optional(
        "vLLM's name for the opposite: whether the reply is a message of its own"
    )
    enable_thinking: bool | None = optional("whether the model thinks first")
    think: bool | Literal["low", "medium", "high"] | None = optional(
        "ollama's name for enable_thinking"
    )
    thinking: ThinkingMode | None = optional("the same, as in Anthropic's API")
    tools: Tools | None = optional("functions that the model may call; other tools are ignored")
    tool_choice: ToolChoice | None = optional(
        "none, auto, required, or the function that must be called"
    )
    parallel_tool_calls: bool | None = optional(
        "whether one message may have several calls; true if absent"
    )

    @property
    def effort(self) -> Effort | None:
        """How much the model thinks, by a word."""
        given = self.reasoning.get("effort") if self.reasoning else None
        return self.reasoning_effort or given

    @property
    def shows_thinking(self) -> bool:
        """Whether the response has the thinking."""
        excluded = bool(self.reasoning and self.reasoning.get("exclude"))
        omitted = bool(self.thinking and self.thinking.get("display") == "omitted")
        is_hidden = self.include_reasoning is False or self.reasoning_format == _HIDDEN
        return not (excluded or omitted or is_hidden)

    def ignored(self) -> tuple[str, ...]:
        names = super().ignored()
        if self.reasoning_format in (None, _HIDDEN):
            return names
        return (*names, "reasoning_format")


class TextRequest(GenerationRequest):
    """Fields of all requests for text without a chat template."""

    logprobs: int | None = whole_field("alternatives reported for each token", least=0, most=128)
    echo: bool | None = optional("the reply begins with the prompt")
    n_indent: int | None = whole_field(
        "the reply ends before a new line with fewer spaces and tabs at its beginning; "
        "0 = it does not",
        least=0,
        most=INDENT_MAX,
    )
    t_max_predict_ms: int | None = whole_field(
        "the reply ends with the first line break after this many milliseconds since "
        "its first token; 0 and -1 = it does not"
    )


class CompletionRequest(TextRequest):
    """The body of /v1/completions."""

    suffix: str | None = optional("text after a gap that the reply fills")
    wanted: ClassVar[Mapping[str, str]] = {"prompt": "a text, token ids, or a list of either"}
    prompt: (
        str | Tokens | Annotated[list[str | Tokens], Field(fail_fast=True, max_length=PROMPTS_MAX)]
    ) = Field(union_mode="left_to_right")


class ExtraFile(OpenObject):
    """A file, or a part of one, that the model may look at."""

    text: NotRequired[str | None]
    filename: NotRequired[str | None]


class NativeRequest(TextRequest):
    """Fields of llama.cpp's own requests."""

    n_probs: int | None = whole_field(
        "alternatives reported for each token; 0 = none", least=0, most=128
    )
    response_fields: Annotated[list[str], Field(fail_fast=True, max_length=FIELDS_MAX)] | None = (
        optional("the parts of the response that are wanted, as `timings/prompt_n`")
    )
    return_tokens: bool | None = optional("the response has token ids too")


class NativeCompletionRequest(NativeRequest):
    """The body of /completion: as in /v1/completions, in llama.cpp's words."""

    wanted: ClassVar[Mapping[str, str]] = {
        "prompt": "a text, token ids, both mixed, or a list of these"
    }
    prompt: (
        str
        | Annotated[
            list[int | str | Annotated[list[int | str], Field(fail_fast=True)]],
            Field(fail_fast=True),
        ]
    ) = Field(union_mode="left_to_right")


class InfillRequest(NativeRequest):
    """The body of /infill: what comes before and after a gap, in llama.cpp's words."""

    input_prefix: str | None = optional("text before the gap")
    input_suffix: str | None = optional("text after the gap")
    input_extra: Annotated[list[ExtraFile], Field(fail_fast=True, max_length=FILES_MAX)] | None = (
        optional("other files that the model may look at")
    )
    prompt: str | None = optional("text after it, such as a line up to the cursor")
