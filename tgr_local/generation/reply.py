"""One reply: the steps of a method become text, with the thinking apart from the answer.

In: an engine, a prompt, a config, a method. Out: a `Reply`, and its events as they come. Where a
function takes a config, None means the defaults with what the model file advises; a method is a
name or a `Method`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.errors import BudgetError, CapacityError
from tgr_local.generation.prompt import Prompt, advised, query_tokens
from tgr_local.generation.text import CLOSE_THINK, TextDelta, TextSplitter, is_loop
from tgr_local.generation.thinking import AnswerNow, answer_config, thinking_config
from tgr_local.generation.threads import streamed
from tgr_local.methods import Method
from tgr_local.options.config import DEFAULT_METHOD, SearchConfig
from tgr_local.search import capacity
from tgr_local.search.run import Run
from tgr_local.search.steps import Counts, OnProgress, Progress, Step

_AFTER_THINK = "\n\n"  # what models write between the thinking and the answer


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of the method within a reply."""

    first: int
    """Index of its first step in the reply."""
    query: list[int]
    """Q, the tokens of its prompt."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A whole reply, its steps and its cost."""

    text: str
    """The answer."""
    thinking: str
    """The text of the thinking block, without its tags."""
    tokens: list[int]
    """All new tokens, thinking and end token included."""
    finish: str
    """"stop", "length" or "budget", see `Step.finish`; or "loop"."""
    steps: list[Step]
    """One for each chunk, in order."""
    counts: Counts
    """All positions that were decoded for the reply."""
    seconds: float
    """Wall time."""
    seed: int
    method: str
    closed: int | None = None
    """Number of tokens after which the thinking was closed from outside; None = it was not."""
    runs: list[MethodRun] = field(default_factory=list)
    """One, or two where the thinking was ended before the answer began."""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of wall time, search included."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0


Event = TextDelta | Progress | Step | Reply
OnEvent = Callable[[Event], None]


def generate(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    on_event: OnEvent | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    """Writes one reply. `on_event` is called with every `TextDelta`, `Progress` and `Step` as it
    comes.

    `verbatim` returns the text unchanged, with tags and outer space. Where the thinking has to end
    before the answer begins (`thinking_budget`, `loop_guard`, `grammar`, ``cancel.answer_now()``),
    a second run of the method writes the answer: its query is Q, the thinking (of which a method
    with resets retains the newest tokens) and the closing tag. With a grammar, which only holds for
    an answer, a reply that ends inside its thinking is continued in the same way.

    Raises ValueError for bad arguments, CapacityError for a query that cannot fit, and
    CancelledError when `cancel` is set.
    """
    start = time.monotonic()
    method = methods.get(method)
    config = advised(engine, config)
    query = query_tokens(engine, prompt, config, raw=raw, cancel=cancel)
    reply = write_reply(
        engine, query, config, method, verbatim=verbatim, on_event=on_event, cancel=cancel
    )
    return dataclasses.replace(reply, seconds=time.monotonic() - start)


def generate_steps(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    on_event: OnProgress | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """The steps of one reply, each as its chunk is done. Closing the iterator frees the cache."""
    config = advised(engine, config)
    query = query_tokens(engine, prompt, config, raw=raw, cancel=cancel)
    return methods.get(method).run(Run(engine, query, config, on_event=on_event, cancel=cancel))


def stream(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    cancel: Cancel | None = None,
) -> Iterator[Event]:
    """Yields the events of one reply as they come, and last the `Reply` itself.

    Closing the iterator, or an exception in the code that reads it, cancels the work.
    """

    def work(on_event: OnEvent, stop: Cancel) -> None:
        reply = generate(
            engine, prompt, config, method=method, raw=raw, verbatim=verbatim, on_event=on_event,
            cancel=stop,
        )  # fmt: skip
        on_event(reply)

    return streamed(work, cancel)


def write_reply(
    engine: Engine,
    query: list[int],
    config: SearchConfig,
    method: Method,
    *,
    verbatim: bool = False,
    participants: tuple[Participant | None, Participant | None] = (None, None),
    on_event: OnEvent | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    """One reply to a query of tokens. `participants` place its first run, and the run of an answer
    that follows an ended thinking, in two lockstep groups."""
    start = time.monotonic()
    if config.grammar:  # a reply may end before its grammar is used
        engine.check_grammar(config.grammar)
    splitter = TextSplitter(engine, query, config.stop, verbatim=verbatim)
    generation = _Generation(engine, query, config, method, splitter, on_event, cancel)
    finish = generation.run(*participants)
    return Reply(
        text=splitter.text,
        thinking=splitter.thinking,
        tokens=generation.tokens,
        finish=finish,
        steps=generation.steps,
        counts=sum((step.counts for step in generation.steps), Counts()),
        seconds=time.monotonic() - start,
        seed=config.seed,
        method=method.name,
        closed=generation.closed,
        runs=generation.runs,
    )


class _Generation:
    """One reply under way: a run of the method, or two where the thinking is ended from outside."""

    def __init__(
        self,
        engine: Engine,
        query: list[int],
        config: SearchConfig,
        method: Method,
        splitter: TextSplitter,
        on_event: OnEvent | None,
        cancel: Cancel | None,
    ) -> None:
        self.engine, self.query, self.config, self.method = engine, query, config, method
        self.steps: list[Step] = []
        self.tokens: list[int] = []
        self.closed: int | None = None
        self.runs: list[MethodRun] = []
        self._splitter, self._emit = splitter, on_event or (lambda event: None)
        # without on_event the text is split once a chunk, not at every token
        self._follows = on_event is not None
        self._cancel = AnswerNow(cancel, splitter, self._follows)
        self._start = time.monotonic()
        self._limit = config.token_limit
        self._first = self._n_before = 0  # steps and tokens before the run under way
        # a grammar holds for the answer alone, so the thinking is a run of its own
        self._thinks_first = splitter.kind == "thinking" and bool(
            config.thinking_budget or config.grammar
        )

    def run(self, participant: Participant | None, answer_participant: Participant | None) -> str:
        """Writes the whole reply; returns why it ended."""
        config = thinking_config(self.config) if self._thinks_first else self.config
        finish = self._write(self.query, config, participant)
        if not finish:
            finish = self._answer(answer_participant)
        for piece in self._splitter.end():
            self._emit(piece)
        return finish

    def _write(
        self, query: list[int], config: SearchConfig, participant: Participant | None
    ) -> str:
        """One run of the method. Returns why the reply ended, or "" when the answer is due."""
        self.runs.append(MethodRun(self._first, query))
        run = Run(
            self.engine,
            query,
            config,
            participant=participant,
            on_event=self._on_progress if self._follows else None,
            cancel=self._cancel,
        )
        steps = self.method.run(run)
        with contextlib.closing(steps):  # type: ignore[type-var]
            try:
                for step in steps:
                    if (finish := self._added(step)) is not None:
                        return finish
            except BudgetError:  # too little is left for a step, or the time is up between two
                if not self.steps:
                    raise
                self.steps[-1] = dataclasses.replace(self.steps[-1], finish="budget")
                return "budget"
        raise AssertionError(f"{self.method.name} ended without saying why")

    def _added(self, step: Step) -> str | None:
        """Adds a step to the reply; returns its `_verdict`."""
        if not self._follows:
            self._splitter.feed(step.tokens.tolist())
        finish = self._verdict(step)
        self.tokens += step.tokens.tolist()
        step = dataclasses.replace(step, index=step.index + self._first, finish=finish or None)
        self.steps.append(step)
        self._emit(step)
        return finish

    def _verdict(self, step: Step) -> str | None:
        """Why the reply ends after this step; "" = the answer is due, None = the run goes on."""
        finish, guard = step.finish, self.config.loop_guard
        text = [*self.tokens, *step.tokens.tolist()]
        loops = guard and finish != "stop" and is_loop(text[self._n_before :], guard)
        if self._first or self._splitter.stopped or len(text) >= self._limit:
            return "loop" if loops else finish
        thinking = self._splitter.kind == "thinking"
        spent = thinking and self._thinks_first and finish == "length"
        ended = self._thinks_first and finish == "stop"
        ended = ended and (not thinking or bool(self.config.grammar))  # a grammar needs an answer
        stopped_early = finish == "budget" and self._cancel.was_seen
        stopped_early = stopped_early or (
            finish is None and not self._follows and self._cancel.is_due()
        )
        if spent or ended or stopped_early or (loops and thinking):
            return ""
        return "loop" if loops else finish

    def _answer(self, participant: Participant | None) -> str:
        """The answer, after thinking that had to come first or was ended from outside."""
        self._cancel.close()
        bridge = _AFTER_THINK if self._thinks_first else ""
        if self._splitter.kind == "thinking":
            bridge = f"\n{CLOSE_THINK}{_AFTER_THINK}"
            self.closed = len(self.tokens)
        after = self.engine.tokenize(bridge)
        for piece in self._splitter.feed(after):
            self._emit(piece)
        self._emit(Progress(self.steps[-1].index, "answer due"))
        self._first, self._n_before = len(self.steps), len(self.tokens)
        n_retained = capacity.n_retained(self.config) if self.method.resets else len(self.tokens)
        thinking = self.tokens[-n_retained:]
        if thinking and thinking[-1] in self.engine.end_tokens:
            thinking = thinking[:-1]
        query = [*self.query, *thinking, *after]
        config = answer_config(self.config, self.steps, time.monotonic() - self._start)
        finish = "budget"
        if config and self._fits(len(query), config):
            finish = self._write(query, config, participant)
        self.steps[-1] = dataclasses.replace(self.steps[-1], finish=finish)
        return finish

    def _fits(self, n_query: int, config: SearchConfig) -> bool:
        try:
            self.method.cells(self.engine, n_query, config)
        except CapacityError:
            return False
        return True

    def _on_progress(self, progress: Progress) -> None:
        if self._first:
            progress = dataclasses.replace(progress, chunk=progress.chunk + self._first)
        self._emit(progress)
        if progress.stage == "tokens":
            for piece in self._splitter.feed_text(progress.text):
                self._emit(piece)
