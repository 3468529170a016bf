"""The request for a reply, the part of its limits that is kept for the answer, and the requests of
its runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tgr_local.engine import Engine, Sampling
from tgr_local.generation.reply_format import Kind, LineLimits, ReplyFormat
from tgr_local.generation.text import thinking_is_open
from tgr_local.methods.think_tags import CLOSE_THINK, CLOSING, OPEN_THINK
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import context_limit, longest_text
from tgr_local.search.run import Method, Request
from tgr_local.search.seeds import derived_seed
from tgr_local.search.steps import Step

NO_THINKING = f"{OPEN_THINK}\n{CLOSING}"
_SHARE, _MOST_KEPT = 8, 256  # of the new tokens: an eighth, at most 256
# of a character class
_INVISIBLE = r"\x00-\x20\x7F-\xA0\xAD\u1680\u2000-\u200F\u2028-\u202F\u205F-\u2064\u3000\uFEFF"


@dataclass(frozen=True, eq=False)
class ReplyRequest:
    """Request for a reply: all that a reply depends on besides the engine."""

    query: list[int]
    """Q, the tokens of the prompt."""
    config: SearchConfig
    """The options of sampling and of the search, and the limits."""
    method: Method
    raw: bool = False
    """Whether the query is a text's, not a chat's."""
    verbatim: bool = False
    """Whether the text is returned unchanged, with tags and outer space."""
    continued: Kind | None = None
    """The part of the message that the query ends within; an answer may get nothing more then."""
    begun: str = ""
    """The text of that answer so far, which a grammar reads first; with a `form`, that has it."""
    lines: LineLimits | None = None
    """Limits that end a `verbatim` text at one of its lines."""
    form: ReplyFormat | None = None
    """Format of the reply by a chat template; None = it is plain text."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Tokens, and what is added to the logit of each."""
    answer_tokens: int = 0
    """New tokens kept for an answer while the reply thinks; 0 = an eighth of the limit, at most
    256."""

    def with_options(self, **changes: Any) -> ReplyRequest:
        """This request with some options of its config changed."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes))

    def fitted(self, engine: Engine) -> ReplyRequest:
        """This request with a config that fits into the context, as `Method.fitted` has it."""
        config = self.method.fitted(engine, len(self.query), self.config)
        return dataclasses.replace(self, config=config)

    @property
    def shown(self) -> tuple[int, ...]:
        """Control tokens that belong to the text of the reply."""
        return self.form.shown if self.form else ()

    def of_run(self, engine: Engine) -> Request:
        """The request of a run that writes all of it."""
        sampling = self._sampling(engine)
        return Request(self.query, self.config, sampling, self.shown, self.form is not None)

    def _sampling(self, engine: Engine) -> Sampling:
        """How the tokens after the query are drawn, with the grammar of the format."""
        config, form = self.config, self.form
        sampling = Sampling.of(config, self.logit_bias)
        if form is None or not form.grammar:
            prefix = self.begun if config.grammar else ""
            return dataclasses.replace(sampling, grammar_prefix=prefix)
        if form.trigger is None or config.grammar:  # which the config has for an answer
            prefix = form.grammar_prefix if config.grammar == form.grammar else ""
            return dataclasses.replace(sampling, grammar_prefix=prefix)
        tag = form.trigger.think_tag
        end = engine.detokenize(self.query[-16:], special=True).decode("utf-8", "replace").rstrip()
        prefix = tag if tag and end.endswith(tag) else ""
        return dataclasses.replace(
            sampling, grammar=form.grammar, grammar_prefix=prefix, trigger=form.trigger
        )


@dataclass(frozen=True)
class Reserve:
    """The part of a reply's limits that is kept for an answer, while there is none."""

    limit: int
    """New tokens of the reply at most."""
    tokens: int
    """New tokens that are kept, at least 1."""
    positions: int
    """Forward tokens that are kept; 0 without ``max_forward_tokens``."""
    option: str
    """The option that bounds the new tokens."""

    @property
    def thinking(self) -> int:
        """New tokens after which the thinking is closed."""
        return self.limit - self.tokens

    @classmethod
    def of(cls, engine: Engine, request: ReplyRequest) -> Reserve:
        """Returns the reserve of a reply."""
        request = with_method(request, request.method.thinking)
        query, config, method = request.query, request.config, request.method
        limit, option = config.token_limit, length_option(config)
        closing = len(engine.tokenize(NO_THINKING))
        space = longest_text(engine) - len(query)
        goes_on = method.resets or config.when_full == "reset"
        if goes_on and space > 0:  # a single chunk may be all that fits
            space = request.fitted(engine).config.token_limit
        fills = not goes_on or space < limit
        if fills and 0 < space - closing < limit:
            limit, option = space - closing, context_limit(engine)
        elif fills and 0 < space < limit:  # too little for the end of a thinking
            option = context_limit(engine)
        kept = min(limit, request.answer_tokens or max(1, min(limit // _SHARE, _MOST_KEPT)))
        # an answer reads the query again, with the newest tokens of the thinking
        budget, again = config.max_forward_tokens, len(query) - 1 + closing
        spare = budget - max(1, len(query) - 1) - again
        positions = again + min(kept, max(1, spare // 4)) + min(config.chunk_len, spare // 4)
        return cls(limit, kept, min(budget, positions) if spare > 1 else budget, option)

    def is_late(self, config: SearchConfig, seconds: float, n_tokens: int) -> bool:
        """Whether ``max_seconds`` leaves no more than an answer takes, by the speed of the first
        `n_tokens` tokens; a quarter of it at most is kept."""
        kept = min(config.max_seconds / 4, self.tokens * seconds / max(1, n_tokens))
        return 0 < config.max_seconds <= seconds + kept


def may_think(engine: Engine, query: Sequence[int], config: SearchConfig) -> bool:
    """Whether a reply to a chat's query may begin with thinking: the template has opened it, or it
    knows thinking and leaves it to the model."""
    if not config.thinking or OPEN_THINK not in engine.chat_template:
        return False
    end = engine.detokenize(query[-8:], special=True).decode("utf-8", "replace")
    return not end.rstrip().endswith(CLOSE_THINK)


def opens_thinking(engine: Engine, request: ReplyRequest) -> bool:
    """Whether the reply begins within a thinking block."""
    if request.verbatim:
        return False
    return request.continued == "thinking" or thinking_is_open(engine, request.query)


def may_open_thinking(engine: Engine, request: ReplyRequest) -> bool:
    """Whether the model may open a thinking block in the reply itself."""
    is_chat = not (request.raw or request.verbatim)
    return is_chat and may_think(engine, request.query, request.config)


def settled(engine: Engine, request: ReplyRequest) -> ReplyRequest:
    """The request with the method of its answer, where nothing is thought and that is another."""
    thinks = opens_thinking(engine, request) or may_open_thinking(engine, request)
    return request if thinks else with_method(request, request.method.answer)


def with_method(request: ReplyRequest, method: Method | None) -> ReplyRequest:
    """The request with that method, or as it is."""
    return dataclasses.replace(request, method=method) if method else request


def length_option(config: SearchConfig) -> str:
    """The option that bounds the new tokens."""
    horizon = config.chunk_len * config.max_chunks
    return "max_tokens" if 0 < config.max_tokens <= horizon else "max_chunks"


def opening_request(request: ReplyRequest) -> ReplyRequest:
    """The request of a run that ends where the model opens its thinking."""
    request = with_method(request, request.method.answer)
    return request.with_options(stop=(*request.config.stop, OPEN_THINK))


def thinking_request(request: ReplyRequest) -> ReplyRequest:
    """The request of a run that ends with the thinking."""
    request = with_method(request, request.method.thinking)
    config = request.config
    limit = config.token_limit
    return request.with_options(
        grammar="",
        stop=(*config.stop, CLOSE_THINK),
        max_tokens=min(config.thinking_budget or limit, limit),
    )


def answer_request(request: ReplyRequest, steps: list[Step], seconds: float) -> ReplyRequest | None:
    """The request of a further run, by the method of the answer, with what the `steps` and
    `seconds` so far leave of the limits; None when that is nothing. Time that is up leaves one
    token."""
    request = with_method(request, request.method.answer)
    config = request.config
    n_tokens = config.token_limit - sum(len(step.tokens) for step in steps)
    positions = config.max_forward_tokens - sum(step.counts.total for step in steps)
    if n_tokens < 1 or (config.max_forward_tokens and positions < 1):
        return None
    late = 0 < config.max_seconds <= seconds
    return request.with_options(
        max_tokens=1 if late else n_tokens,
        max_forward_tokens=positions if config.max_forward_tokens else 0,
        max_seconds=config.max_seconds - seconds if config.max_seconds and not late else 0.0,
        seed=derived_seed(config.seed, len(steps)) >> 1,
    )


def visible_grammar(stop: Sequence[str]) -> str:
    """GBNF of a text whose first character is visible, begins no tag and none of the stop texts."""
    firsts = "".join(f"\\U{ord(text[0]):08X}" for text in stop)
    return f"root ::= [^{_INVISIBLE}<{firsts}] .*"
