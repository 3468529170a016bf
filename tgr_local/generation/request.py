"""Requests for replies: what to write, in which format, and what is kept of its limits for the
answer.

In: the tokens of a prompt, options, a method. Out: a run of the search, and what reads its
text.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tgr_local.engine import Engine, GrammarTrigger, Sampling
from tgr_local.generation.text import Kind, LineLimits, TextSplitter, ends_with
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import context_limit, longest_text
from tgr_local.search.run import Method, Run
from tgr_local.system.errors import CapacityError
from tgr_local.system.think_tags import CLOSE_THINK, CLOSING, OPEN_THINK

NO_THINKING = f"{OPEN_THINK}\n{CLOSING}"
_SHARE, _MOST_KEPT = 8, 256  # of the new tokens: an eighth, at most 256


@dataclass(frozen=True)
class ReplyFormat:
    """Format of the replies to one prompt, as its template defines it."""

    prefix: str
    """The end of the prompt, where the reply begins; its parser reads it first."""
    parser: str
    """llama.cpp's parser of a reply, in its own notation."""
    kind: int
    """llama.cpp's number of the format."""
    shown: tuple[int, ...] = ()
    """Control tokens that belong to the text."""
    grammar: str = ""
    """GBNF of a reply, or with `trigger` of its end; empty = none."""
    grammar_prefix: str = ""
    """Text that the grammar reads before the answer; without `trigger`."""
    trigger: GrammarTrigger | None = None
    names: tuple[str, ...] = ()
    """Functions that a reply may call, without the tags of its format, too."""
    parallel: bool = True
    """Whether it may have several such calls."""
    begun: tuple[str, str] = ("", "")
    """The beginnings of the thinking and of the answer that `prefix` has."""


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

    def by(self, method: Method | None) -> ReplyRequest:
        """This request with that method, or as it is."""
        return dataclasses.replace(self, method=method) if method else self

    def fitted(self, engine: Engine) -> ReplyRequest:
        """This request with a config that fits into the context, as `Method.fitted` has it."""
        config = self.method.fitted(engine, len(self.query), self.config)
        return dataclasses.replace(self, config=config)

    @property
    def shown(self) -> tuple[int, ...]:
        """Control tokens that belong to the text of the reply."""
        return self.form.shown if self.form else ()

    def has_cells(self, engine: Engine) -> bool:
        """Whether its run fits into the cache."""
        try:
            self.method.cells(engine, len(self.query), self.config)
        except CapacityError:
            return False
        return True

    def opens_thinking(self, engine: Engine) -> bool:
        """Whether the reply begins within a thinking block."""
        return self.splitter(engine).kind == "thinking"

    def may_open_thinking(self, engine: Engine) -> bool:
        """Whether the reply to a chat may have thinking: its template has opened it, or it knows
        thinking and leaves it to the model."""
        if self.raw or self.verbatim or not self.config.thinking:
            return False
        knows = OPEN_THINK in engine.chat_template
        return knows and not ends_with(engine, self.query, CLOSE_THINK)

    def splitter(self, engine: Engine) -> TextSplitter:
        """The reader of the text of the reply, which reads a text with a format whole."""
        form, closers = self.form, tuple[str, ...]()
        if form and form.trigger:  # what has the tag ends with it
            closers = tuple(tag for tag in form.trigger.think_ends if CLOSE_THINK not in tag)
        return TextSplitter(
            engine,
            self.query,
            self.config.stop,
            verbatim=self.verbatim,
            continued=self.continued,
            keep_tags=form is not None,
            closers=closers,
            lines=self.lines if self.verbatim else None,
            shown=self.shown,
        )

    def run(self, engine: Engine, **options: Any) -> Run:
        """The run that writes all of it, with options of `Run`."""
        sampling = self._sampling(engine)
        return Run(engine, self.query, self.config, sampling, self.shown, **options)

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
        prefix = tag if tag and ends_with(engine, self.query, tag, 16) else ""
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
        request = request.by(request.method.thinking)
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


def settled(engine: Engine, request: ReplyRequest) -> ReplyRequest:
    """The request with the method of its answer, where nothing is thought and that is another."""
    thinks = request.opens_thinking(engine) or request.may_open_thinking(engine)
    return request if thinks else request.by(request.method.answer)


def thinking_request(request: ReplyRequest) -> ReplyRequest:
    """The request of a run that ends with the thinking."""
    request = request.by(request.method.thinking)
    config = request.config
    limit = config.token_limit
    return request.with_options(
        grammar="",
        stop=(*config.stop, CLOSE_THINK),
        max_tokens=min(config.thinking_budget or limit, limit),
    )


def length_option(config: SearchConfig) -> str:
    """The option that bounds the new tokens."""
    horizon = config.chunk_len * config.max_chunks
    return "max_tokens" if 0 < config.max_tokens <= horizon else "max_chunks"
