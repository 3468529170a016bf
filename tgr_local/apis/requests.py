"""Preparation of a request body as a `PreparedRequest`: each parameter's meaning for this engine.

In: a body, or one of the models in `bodies`, and an engine. Out: tokens of the prompts, a
`SearchConfig`, a method, and what the response reports. What depends on the model (vocabulary,
context length, advice of its file) is checked here; types and bounds are checked in `bodies`. It
decodes nothing; `tgr_local.apis.writing` writes the response.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgr_local.apis.bodies import (
    BUDGETS,
    SAMPLING,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TextRequest,
)
from tgr_local.apis.infill import fill_in_tokens
from tgr_local.apis.inputs import (
    chosen_tools,
    given_prompts,
    requested_grammar,
    template_messages,
    text_of,
)
from tgr_local.apis.logit_bias import TokenBiases, token_biases
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Cancel, Engine
from tgr_local.engine.templates.messages import Part, continued_part, without_empty_end
from tgr_local.generation import (
    ChatQuery,
    Method,
    Progress,
    Tools,
    advised,
    chat_query,
    method_named,
    query_tokens,
)
from tgr_local.generation.request import ReplyFormat, ReplyRequest
from tgr_local.generation.text import Kind, LineLimits
from tgr_local.options.config import DEFAULT_METHOD, RANDOM_SEED, SearchConfig
from tgr_local.options.fields import INT_MAX, updated

GRAMMAR_MOST = 1 << 18
_VARIABLES_MOST = 1 << 16  # characters of the variables of a chat template

_EFFORTS = {"minimal": 512, "low": 1024, "medium": 4096}  # tokens of thinking at most


@dataclass(frozen=True)
class PreparedRequest:
    """All that a response needs in addition to the engine."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    """Tokens of each prompt; a chat has one."""
    texts: tuple[str, ...]
    """Each prompt as `echo` shows it."""
    config: SearchConfig
    method: Method
    model: str
    """The model's name in the response."""
    n: int = 1
    """Choices for each prompt."""
    best_of: int = 1
    """Replies that the n choices are taken from, by mean log-probability."""
    format_stops: tuple[str, ...] = ()
    """Stop texts of the config that the format of the model adds to those of the client."""
    lines: LineLimits | None = None
    """Limits that end a text without a chat template at one of its lines."""
    logprobs: int | None = None
    """Alternatives reported for each token; None = no log-probabilities at all."""
    logit_bias: TokenBiases = ()
    echo: bool = False
    writes: bool = True
    """False for ``max_tokens=0``: the prompt is read and reported, and nothing is written."""
    reads: bool = False
    """Whether the cache keeps a prompt to which nothing is written."""
    stream: bool = False
    include_usage: bool = False
    progress: bool = False
    """A stream also reports what the search does, in chunks without choices."""
    return_progress: bool = False
    """A stream also says how much of the prompt is read, as llama-server does."""
    ignored: tuple[str, ...] = ()
    """Parameters of the body that have no effect."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional data for the translation of its API."""
    form: ReplyFormat | None = None
    """How the replies are written and read; None = they are text."""
    continued: Kind | None = None
    """The part of the message that the prompt ends within."""
    begun: str = ""
    """The text of an answer that the prompt ends with, without a `form`."""

    def of(self, number: int) -> ReplyRequest:
        """Returns the request for a reply to a prompt."""
        return ReplyRequest(
            list(self.prompts[number]),
            self.config,
            self.method,
            verbatim=not self.chat,
            continued=self.continued,
            begun=self.begun,
            lines=self.lines,
            form=self.form,
            logit_bias=self.logit_bias,
        )

    @property
    def shown(self) -> tuple[int, ...]:
        """Control tokens that belong to the text of the replies."""
        return self.form.shown if self.form else ()

    def reports_reading(self, progress: Progress) -> bool:
        """Whether this progress is one of reading that a stream reports as ``prompt_progress``."""
        return self.return_progress and progress.n_query > 0


def chat_request(
    engine: Engine,
    body: Mapping[str, Any] | ChatRequest,
    *,
    config: SearchConfig | None = None,
    method: str | Method = DEFAULT_METHOD,
    model: str | None = None,
    bounded: bool = True,
    cancel: Cancel | None = None,
) -> PreparedRequest:
    """The body of a chat completion request, checked.

    `config` (None = the defaults with what the model file advises), `method` and `model` hold
    where the body has nothing else; without a seed it gets a random one. In addition to OpenAI's
    and llama-cpp-python's parameters the body may hold ``tgr``, a dict of `SearchConfig` fields,
    "method" and "progress". A prompt that is not `bounded` may have any length, to be counted.
    Raises RequestError, ModelError for a model without a template,
    CapacityError for a prompt longer than the model can take, and CancelledError by `cancel`.
    """
    body = ChatRequest.parse(body)
    given, unseen = template_messages(body.messages)
    messages, part = _continued(body, given)
    functions, left_out = chosen_tools(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
    limit = body.max_completion_tokens
    limit = _limit(body) if limit is None else limit
    if limit == 0 and body.n_predict != 0:  # with which llama.cpp's clients read ahead
        raise RequestError("max_tokens is 0, but must be at least 1, or -1", "max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    request = _prepared(
        engine, body, config, method, model, limit, logprobs, cancel, thinking=_thinking(body)
    )
    query = _chat_query(engine, body, functions, messages, part, request.config, bounded, cancel)
    config = _with_format(request.config, query)
    if query.continued is not None:
        config = dataclasses.replace(config, thinking=query.continued == "thinking")
    return dataclasses.replace(
        request,
        chat=True,
        prompts=(tuple(query.tokens),),
        texts=("",),
        config=config,
        continued=query.continued,
        begun=query.begun,
        format_stops=tuple(text for text in query.stop if text not in request.config.stop),
        form=query.form,
        ignored=(*request.ignored, *left_out, *unseen, *query.unfollowed),
        reads=not request.writes,
        extra={"thinking": body.shows_thinking},
    )


def completion_request(
    engine: Engine,
    body: Mapping[str, Any] | CompletionRequest,
    *,
    config: SearchConfig | None = None,
    method: str | Method = DEFAULT_METHOD,
    model: str | None = None,
    cancel: Cancel | None = None,
) -> PreparedRequest:
    """The body of a legacy completion request, checked, as `chat_request` does.

    A prompt is a text, token ids, or a list of either; no chat template is applied. ``max_tokens``
    is 16 if absent, as OpenAI has it; -1 or null = as many as the config allows; 0 writes nothing,
    which with ``echo`` and ``logprobs`` scores the prompt.
    """
    body = CompletionRequest.parse(body)
    prompts = given_prompts(engine, body.prompt)
    if body.suffix:
        prompts = [_around(engine, prompt, body.suffix) for prompt in prompts]
    return text_request(
        engine, body, prompts, config=config, method=method, model=model, cancel=cancel
    )


def _around(engine: Engine, prompt: str | list[int], suffix: str) -> list[int]:
    if not isinstance(prompt, str):
        raise RequestError("suffix needs a prompt that is a text", "suffix")
    with _at_fault("suffix"):
        return fill_in_tokens(engine, prompt, suffix)


@contextlib.contextmanager
def _at_fault(param: str) -> Iterator[None]:
    """Makes a ValueError in the block the RequestError of a parameter."""
    try:
        yield
    except ValueError as error:
        raise RequestError(str(error), param) from None


def text_request(
    engine: Engine,
    body: TextRequest,
    prompts: Sequence[str | list[int]],
    *,
    config: SearchConfig | None = None,
    method: str | Method = DEFAULT_METHOD,
    model: str | None = None,
    cancel: Cancel | None = None,
    default_limit: int | None = 16,
) -> PreparedRequest:
    """A request for what continues some prompts, each a text or token ids of the vocabulary;
    `default_limit` holds for a body without ``max_tokens``."""
    given = {"max_tokens", "n_predict"} & body.model_fields_set
    limit = _limit(body) if given else default_limit
    request = _prepared(engine, body, config, method, model, limit, body.logprobs, cancel)
    tokens = [
        query_tokens(engine, prompt, request.config, raw=True, cancel=cancel) for prompt in prompts
    ]
    if not all(tokens):
        raise RequestError("prompt has no tokens; write something", "prompt")
    texts = tuple(
        prompt if isinstance(prompt, str) else text_of(engine, prompt) for prompt in prompts
    )
    lines = LineLimits(body.n_indent or 0, max(0, body.t_max_predict_ms or 0))
    return dataclasses.replace(
        request,
        prompts=tuple(map(tuple, tokens)),
        texts=texts,
        lines=lines if lines != LineLimits() else None,
        echo=bool(body.echo),
    )


def _prepared(
    engine: Engine,
    body: GenerationRequest,
    config: SearchConfig | None,
    method: str | Method,
    model: str | None,
    limit: int | None,
    logprobs: int | None,
    cancel: Cancel | None,
    *,
    thinking: bool | None = None,
) -> PreparedRequest:
    """A request without its prompts; `limit` is the number of new tokens, 0 = nothing is written,
    None = as many as the config allows."""
    base = advised(engine, config)
    changes = _changes(body, thinking) | {"top_logprobs": logprobs or 0}
    if grammar := requested_grammar(body, cancel) or changes.get("grammar", ""):
        with _at_fault("grammar"):
            engine.check_grammar(grammar)
        changes["grammar"] = grammar
    if limit:
        changes["max_tokens"] = limit
        # a method may write as many chunks as these tokens take
        n_chunks = min(-(-limit // changes.get("chunk_len", base.chunk_len)), INT_MAX)
        changes.setdefault("max_chunks", max(base.max_chunks, n_chunks))
    n = body.n or 1
    best_of = _best_of(body, n)
    if body.stream_options and not body.stream:
        raise RequestError("stream_options needs stream=true", "stream_options")
    return PreparedRequest(
        chat=False,
        prompts=(),
        texts=(),
        config=_changed(base, changes),
        method=_method(body, method),
        model=body.model or model or engine.path.stem,
        n=n,
        best_of=best_of if limit != 0 else n,
        logprobs=logprobs,
        logit_bias=token_biases(engine, body.logit_bias or {}),
        writes=limit != 0,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.get("include_usage")),
        progress=bool(body.tgr and body.tgr.progress),
        return_progress=bool(body.return_progress),
        ignored=body.ignored(),
    )


def _limit(body: GenerationRequest) -> int | None:
    """New tokens at most; None = as many as the config allows."""
    limit = body.n_predict if body.max_tokens is None else body.max_tokens
    return None if limit == -1 else limit


def _method(body: GenerationRequest, default: str | Method) -> Method:
    with _at_fault("method"):
        return method_named(body.method or (body.tgr and body.tgr.method) or default)


def _changes(body: GenerationRequest, thinking: bool | None) -> dict[str, Any]:
    """The fields of SearchConfig that the body sets, but for the grammar and the limits."""
    changes = body.tgr.options() if body.tgr else {}
    if changes.get("max_tokens", 0) < 0:
        changes["max_tokens"] = 0  # as many as the config allows
    if isinstance(body, ChatRequest) and (budget := _budget(body)) is not None:
        changes.setdefault("thinking_budget", max(budget, 0))
    for name in SAMPLING:
        if (value := getattr(body, name)) is not None:
            changes[name] = max(value, 0) if name == "top_k" else value  # -1 is llama.cpp's "all"
    if body.repeat_penalty is None and body.repetition_penalty is not None:
        changes["repeat_penalty"] = body.repetition_penalty
    changes |= body.sampler_options()
    if thinking is not None:
        changes["thinking"] = thinking
    if body.stop is not None:
        changes["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    seed = body.random_seed if body.seed is None else body.seed
    if seed is not None:
        changes["seed"] = seed
    changes.setdefault("seed", RANDOM_SEED)
    return changes


def _changed(base: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    try:
        return updated(base, changes)
    except ValueError as error:
        named = re.match(r"\w+", str(error))
        raise RequestError(str(error), named.group() if named else None) from None


def _best_of(body: GenerationRequest, n: int) -> int:
    best_of = body.best_of or n
    if best_of < n:
        raise RequestError(f"best_of is {best_of}, but must be at least n, which is {n}", "best_of")
    if body.stream and best_of > n:
        raise RequestError("best_of cannot be streamed; leave out stream, or best_of", "best_of")
    return best_of


def _continued(
    body: ChatRequest, messages: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Mapping[str, Any]], Part | None]:
    """The messages, and the part of the last one that the reply goes on with. As in llama-server
    it does so unless the client says otherwise; the flags are vLLM's. Raises RequestError."""
    wanted, anew = body.continue_final_message, body.add_generation_prompt
    if wanted and anew:
        raise RequestError(
            "continue_final_message and add_generation_prompt are both true, but the reply either "
            "goes on with the last message or is one of its own; leave one of them out",
            "continue_final_message",
        )
    part = continued_part(messages)
    if wanted in ("content", "reasoning_content") and part:
        part = wanted if messages[-1].get(wanted) else None
    named = "continue_final_message" if wanted else "add_generation_prompt"
    is_empty = len(without_empty_end(messages)) < len(messages)
    if (wanted or anew is False) and not part and not is_empty:
        raise RequestError(
            f"{named} is {wanted or False!r}, which needs a last message of the assistant with a "
            "text to go on with, without tool calls, after another message; leave it out",
            named,
        )
    is_anew = wanted is False or (anew and wanted is None)
    if is_anew:
        return messages, None
    return without_empty_end(messages), part


def _chat_query(
    engine: Engine,
    body: ChatRequest,
    functions: Sequence[Any],
    messages: Sequence[Mapping[str, Any]],
    part: Part | None,
    config: SearchConfig,
    bounded: bool,
    cancel: Cancel | None,
) -> ChatQuery:
    """The prompt of a chat, and how replies to it are read."""
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if (length := len(json.dumps(variables))) > _VARIABLES_MOST:
        raise RequestError(
            f"chat_template_kwargs has {length} characters, but may have {_VARIABLES_MOST}; "
            "leave some out",
            "chat_template_kwargs",
        )
    if body.effort not in (None, "none"):
        variables.setdefault("reasoning_effort", body.effort)
    choice = body.tool_choice or "auto"
    tools = Tools(
        [
            {name: value for name, value in tool["function"].items() if value is not None}
            for tool in functions
        ],
        choice="required" if isinstance(choice, dict) else choice,
        named=choice["function"]["name"] if isinstance(choice, dict) else "",
        parallel=body.parallel_tool_calls,
    )
    for name in ("grammar", "logprobs") if tools.callable else ():
        if getattr(body, name):
            raise RequestError(f"{name} does not go with tools; leave one of them out", name)
    try:
        return chat_query(
            engine, messages, config, tools=tools, variables=variables,
            as_text=bool(body.logprobs), continued=part, bounded=bounded,
            cancel=cancel,
        )  # fmt: skip
    except ValueError as error:
        if tools.callable:
            raise RequestError(f"the tools cannot be called: {error}", "tools") from None
        raise RequestError(str(error), "messages") from None


def _with_format(config: SearchConfig, query: ChatQuery) -> SearchConfig:
    """The config with the grammar and the stop texts of the replies' format."""
    if len(query.grammar) > GRAMMAR_MOST:
        raise RequestError(
            f"the tools make a grammar of {len(query.grammar)} characters, but it may have "
            f"{GRAMMAR_MOST}; leave some out, or shorten their parameters",
            "tools",
        )
    more = tuple(text for text in query.stop if text not in config.stop)
    if not more and not query.grammar:
        return config
    return dataclasses.replace(
        config, grammar=query.grammar or config.grammar, stop=(*config.stop, *more)
    )


def _thinking(body: ChatRequest) -> bool | None:
    """Whether the chat template opens a thinking block; None = as the config has it."""
    mode = body.thinking
    if body.chat_template_kwargs:
        wanted = body.chat_template_kwargs.get("enable_thinking")
        if wanted is not None:
            return wanted
    enabled = body.reasoning.get("enabled") if body.reasoning else None
    for given in (body.enable_thinking, body.think, mode and mode["type"] != "disabled", enabled):
        if given is not None:
            return bool(given)
    if body.effort == "none" or _budget(body) == 0:
        return False
    return None


def _budget(body: ChatRequest) -> int | None:
    """New tokens of thinking at most; -1 = no limit of its own, None = as the config has it."""
    mode: Any = body.thinking or {}
    options = body.chat_template_kwargs
    given = (
        *(getattr(body, name) for name in BUDGETS),
        mode.get("budget_tokens"),
        options.get("thinking_budget") if options else None,
        body.reasoning.get("max_tokens") if body.reasoning else None,
        _EFFORTS.get(str(body.effort or body.think)),
    )
    return next((budget for budget in given if budget is not None), None)
