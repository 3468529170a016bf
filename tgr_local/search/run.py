"""One run of a method after one query, and `Method`, the record of a method.

`Run` holds the query, how tokens are drawn after it, the limits, the engine and the event callback.
It reserves the cache, keeps the clock and the budget, counts every decoded position, builds the
tasks that continue a text, and makes the steps. It does not know what a method decides:
`Trajectory` (chunks after a query) and `Branches` (several texts after a query) are the two
policies over it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.records import Output, Sampling
from tgr_local.engine.session import Injection, OnTokens, Participant, Sequence, Session, Task
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import Config, group_of
from tgr_local.search.steps import Counts, Finish, OnProgress, Progress, Seconds, Step
from tgr_local.system.cancel import Cancel
from tgr_local.system.errors import BudgetError, CancelledError, TgrError

if TYPE_CHECKING:
    from tgr_local.engine import Engine

LEAST_DRAFTING = 100_000_000
"""Parameters of a model for which drafts can pay: in a smaller one, a row costs nearly a token."""
_BREAKER_TOKENS = 160  # before DRY's window, where a sequence breaker of 40 characters may begin


class Measurement(NamedTuple):
    """The most cells, sequences and positions that measuring the strength of injections takes."""

    cells: int
    sequences: int
    positions: int


@dataclass(frozen=True)
class Method:
    """A method: how it runs, and what it needs."""

    name: str
    run: Callable[[Run], Iterator[Step]]
    """Yields one step for each chunk; the last one says why the run ended. Closing the iterator
    frees the cache."""
    cells: Callable[[Engine, int, SearchConfig], int]
    """Cache cells for a query of that length. Raises CapacityError, with the numbers, when they
    can never fit."""
    sequences: Callable[[Engine, SearchConfig], int]
    """Sequences that it uses at a time."""
    resets: bool = False
    """Whether it resets the context to the query and the newest tokens; else the context is the
    whole text."""
    searches: bool = False
    """Rolls out candidates at every chunk boundary."""
    measurement: Callable[[Engine, SearchConfig], Measurement | None] | None = None
    """Returns the measurement that must come before the first injection with these options, if any.
    None for a method that injects nothing."""
    positions: Callable[[Engine, int, SearchConfig], int] | None = None
    """The most positions that a run decodes for a query of that length. None: as many as it has
    cells, since it decodes nothing twice."""
    fit: Callable[[Engine, int, SearchConfig], SearchConfig] | None = None
    """`capacity.fitted` for its kind of trajectory; None: `run` shortens its texts itself."""
    thinking: Method | None = None
    """The method that writes the thinking; None: this one."""
    answer: Method | None = None
    """The method that writes the answer; None: this one."""
    about: str = ""
    """Description in a few words, for users."""
    options: tuple[type[Config], ...] = ()
    """The groups of options that it uses, in addition to the fields of `SearchConfig` itself."""

    @property
    def steers(self) -> bool:
        """Whether it injects vectors made from anchors, and reads the state after every chunk."""
        return self.measurement is not None

    @property
    def of_thinking(self) -> Method:
        """The method that writes the thinking: `thinking`, or this one."""
        return self.thinking or self

    def uses(self, option: str) -> bool:
        """Whether a field of `SearchConfig` changes what it does."""
        return group_of(SearchConfig, option) in (SearchConfig, *self.options)

    def fitted(self, engine: Engine, n_query: int, config: SearchConfig) -> SearchConfig:
        """The config whose run fits into the context after a query of `n_query` tokens. Raises
        ContextError for a query that leaves no room for a token."""
        return self.fit(engine, n_query, config) if self.fit else config


@dataclass
class HeldBack:
    """Budget that a run must leave to the runs after it. It may change between two steps."""

    positions: int = 0
    """Number of positions of ``max_forward_tokens``."""
    tokens: int = 0
    """The run may be ended after this many new tokens: no task continues beyond the chunk that
    reaches them."""


class Run:
    """One run of a method: a query goes in, steps come out.

    `query` is Q, the tokens of the prompt, and `config` has the options of the search and the
    limits. Tokens are drawn by `sampling`, with grammar and biases; None = by the options alone.
    `shown` are control tokens that belong to the text. `participant` places the run in a lockstep
    group. `on_event` gets a `Progress` for each event inside a step. `cancel` ends the run with
    CancelledError. Nothing is reserved or decoded before `open`.
    """

    session: Session
    """Session that is open from `open` to `close`."""
    n_cells: int
    """Cells that are reserved."""
    n_sequences: int
    """Sequences that are reserved."""
    measures: bool
    """Whether the residual norms of the context are read with it."""

    def __init__(
        self,
        engine: Engine,
        query: list[int],
        config: SearchConfig,
        sampling: Sampling | None = None,
        shown: Seq[int] = (),
        *,
        participant: Participant | None = None,
        on_event: OnProgress | None = None,
        cancel: Cancel | None = None,
        held_back: HeldBack | None = None,
    ) -> None:
        self.engine, self.query, self.config, self.shown = engine, query, config, shown
        self.participant, self.on_event, self.cancel = participant, on_event, cancel
        self.held_back = held_back or HeldBack()
        self.sampling = sampling or Sampling.of(config)
        self.n_top = min(self.config.top_logprobs, engine.n_vocab)
        """Alternatives reported for each token."""
        self._drafts = self.config.draft_lookup == "auto" and engine.n_params >= LEAST_DRAFTING
        self.index = 0
        """Index of the step under way."""
        self._counts, self._seconds = Counts(), Seconds()  # of the step under way
        self._spent = 0  # positions of the steps before
        self._deadline: float | None = None  # by time.monotonic

    def with_options(self, **changes: Any) -> Run:
        """A copy of this run, which must not be open yet, with other options of the search."""
        self.config = dataclasses.replace(self.config, **changes)
        return self

    # --- begin and end ---

    def open(self, method: Method, *, least: int) -> None:
        """Starts the clock and reserves the cells and sequences that `method` needs. The first step
        decodes at least `least` positions after the query.

        Raises BudgetError for a budget below `least`, and CapacityError when the cache can never
        hold the run.
        """
        self.n_cells = method.cells(self.engine, len(self.query), self.config)
        self.n_sequences = method.sequences(self.engine, self.config)
        if self.config.max_seconds:
            self._deadline = time.monotonic() + self.config.max_seconds
        budget, first = self.config.max_forward_tokens, max(1, len(self.query) - 1) + least
        if budget and budget - self.held_back.positions < first:
            raise BudgetError(
                f"max_forward_tokens is {budget}, but the first step alone takes at least {first}; "
                "raise it or shorten the query"
            )
        self.measures = method.steers and self.config.calibration == "residual"
        self.session = self.engine.session(
            self.n_cells,
            self.n_sequences,
            prompt=self.query[:-1],
            norms=self.measures,
            preemptible=self.engine.preempts and self.n_sequences == 1 and not method.resets,
            participant=self.participant,
            cancel=self.cancel,
        )

    def close(self) -> None:
        """Frees the cache."""
        self.session.close()

    # --- limits ---

    @property
    def unclaimed(self) -> Counts:
        """The positions that are in no step yet."""
        return self._counts

    @property
    def spent(self) -> int:
        """Positions decoded so far."""
        return self._spent + self._counts.total

    @property
    def left(self) -> int | None:
        """Positions left of the budget; None = no limit."""
        limit = self.config.max_forward_tokens
        return limit - self.held_back.positions - self.spent if limit else None

    def affords(self, n_positions: int) -> bool:
        """Whether the budget has `n_positions` left."""
        return self.left is None or self.left >= n_positions

    @property
    def is_out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    @property
    def must_answer(self) -> bool:
        """Whether the user asked for the answer now."""
        return self.cancel is not None and self.cancel.answers_now()

    def check_cancelled(self) -> None:
        """Raises CancelledError for a run that was cancelled."""
        if self.cancel and self.cancel.is_set():
            with self._interruptible():
                raise CancelledError("cancelled")

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Adds the positions of the step under way to a CancelledError."""
        try:
            yield
        except CancelledError as error:
            error.counts = self._counts + Counts(discarded=error.n_decoded)
            raise

    # --- decoding ---

    def read_query(self, *, to_its_end: bool = False) -> tuple[Sequence, Output]:
        """Returns a sequence that holds Q without its last token, which is pending, and the output
        of the task that read it. Tokens of Q that are in the cache are not decoded again, and Q is
        remembered for later runs. Q is read `to_its_end`, or until the time is up."""
        self.report_read(0)
        with self.timed("rebuild"):
            sequence = self.session.sequence()
            prefix = self.query[:-1] or self.query  # a lone token stands in for its empty prefix
            try:
                output = self.read(sequence, prefix, to_its_end=to_its_end, reuse=True)
            finally:
                self.remember(sequence)
            if len(self.query) == 1:
                sequence.drop()
                sequence = self.session.sequence()
        self.count(query=output.n_decoded, reused=output.n_reused)
        self.report_read(len(self.query), output.n_reused)
        return sequence, output

    def remember(self, sequence: Sequence) -> None:
        """Keeps the sequence's tokens in the cache for later runs, up to the first steered one."""
        # the engine or the session is closed; while the interpreter ends, no error can be imported
        with contextlib.suppress(TgrError, ImportError):
            self.session.remember(sequence)

    @contextlib.contextmanager
    def passing(self, sequence: Sequence, n_tokens: int) -> Iterator[Sequence]:
        """Yields a sequence for tasks whose cells are freed at the end of the block: `sequence`,
        which has n_tokens, or a fork of it where the model cannot roll back."""
        if self.engine.rolls_back:
            yield sequence
            sequence.truncate(n_tokens)
        else:
            fork = sequence.fork()
            yield fork
            fork.drop()

    def read(
        self,
        sequence: Sequence,
        tokens: Seq[int],
        *,
        to_its_end: bool = False,
        reuse: bool = False,
    ) -> Output:
        """Decodes a part of the context; with `reuse`, tokens that are in the cache are not decoded
        again. Raises BudgetError when the time is up before the last token, unless `to_its_end`."""
        task = Task(sequence, tokens, norms=self.measures, reuse=reuse)
        # if the time was up before, a token is still generated
        deadline = None if to_its_end or self.is_out_of_time else self._deadline
        with self._interruptible():
            (output,) = self.session.run(
                [task],
                on_read=self.report_read if reuse and self.on_event else None,
                cancel=self.cancel,
                deadline=deadline,
            )
        self.check_read(output, len(tokens))
        return output

    def check_read(self, output: Output, n_tokens: int) -> None:
        """Raises BudgetError for a task that the time ended before it had read `n_tokens`."""
        if output.n_reused + output.n_decoded < n_tokens:
            raise BudgetError(
                f"max_seconds is {self.config.max_seconds:g}, which was over before the context "
                "was read; raise it or shorten the query"
            )

    def decode(self, tasks: Seq[Task]) -> list[Output]:
        """Runs the tasks to their ends."""
        with self._interruptible():
            return self.session.run(tasks, cancel=self.cancel)

    def generate(
        self, tasks: Seq[Task], *, on_tokens: OnTokens | None = None, stop_early: bool = False
    ) -> list[Output]:
        """Runs the tasks to their ends or until the time is up; with `stop_early` also until the
        user asks for the answer."""
        with self._interruptible():
            return self.session.run(
                tasks,
                on_tokens=on_tokens,
                cancel=self.cancel,
                deadline=self._deadline,
                stop_early=stop_early,
            )

    def generate_parts(
        self, task: Task, *, on_tokens: OnTokens | None = None, reads: bool = False
    ) -> Generator[Output, None, None]:
        """Runs a task that generates in parts, and yields the parts as they come, until the text
        ends, the time is up or the user asks for the answer. `reads`: the task reads Q too. Closing
        the iterator ends the task."""
        with self._interruptible():
            yield from self.session.run_parts(
                task,
                on_tokens=on_tokens,
                on_read=self.report_read if reads and self.on_event else None,
                cancel=self.cancel,
                deadline=self._deadline,
                stop_early=True,
            )

    def continuation(
        self,
        sequence: Sequence,
        text: list[int],
        n_tokens: int,
        seed: int,
        *,
        injection: Injection | None = None,
        sampling: Sampling | None = None,
        states: bool = False,
        n_top: int | None = None,
        drafts: bool = False,
    ) -> Task:
        """A task that generates up to n_tokens after Q and `text`, whose last token is pending."""
        context, sampling = self.query + text, sampling or self.sampling
        return Task(
            sequence,
            context[-1:],
            n_generate=n_tokens,
            injection=injection,
            sampling=sampling,
            seed=seed,
            history=penalty_history(context, sampling),
            grammar_history=text if sampling.grammar else (),
            stop=self.config.stop,
            shown=self.shown,
            tail=self._stop_tail(text),
            states=states,
            n_top=self.n_top if n_top is None else n_top,
            drafts=drafts and self._drafts,
        )

    def text(self, tokens: Seq[int] | NDArray[np.int32]) -> bytes:
        """The bytes of tokens of a reply, with the control tokens that belong to it."""
        return self.engine.detokenize(tokens, shown=self.shown)

    def _stop_tail(self, text: list[int]) -> bytes:
        """The end of the text in which a stop text may have begun."""
        longest = max((len(stop.encode()) for stop in self.config.stop), default=0)
        return self.text(text[-longest:])[1 - longest :] if longest > 1 else b""

    # --- records ---

    def count(self, **positions: int) -> None:
        """Adds decoded positions to the step under way, by the fields of `Counts`."""
        self._counts += Counts(**positions)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[float]:
        """Adds the wall time of the block to a part of the step under way, a field of `Seconds`.
        Gives the block its beginning, by time.monotonic."""
        start = time.monotonic()
        yield start
        self.spend(**{part: time.monotonic() - start})

    def spend(self, **seconds: float) -> None:
        """Adds wall time to parts of the step under way, by the fields of `Seconds`."""
        self._seconds += Seconds(**seconds)

    def report(self, stage: str, **fields: Any) -> None:
        """Calls `on_event` with the `Progress` of the step under way."""
        if self.on_event:
            self.on_event(Progress(self.index, stage, **fields))

    def report_read(self, n_read: int, n_reused: int = 0) -> None:
        """Reports how much of Q is in the cache."""
        n_query = len(self.query)
        self.report("rebuild", n_read=min(n_read, n_query), n_query=n_query, n_reused=n_reused)

    def step(self, finish: Finish | None, **parts: Any) -> Step:
        """The record of the step under way, from the other fields of `Step`; starts the next."""
        step = Step(
            index=self.index, finish=finish, counts=self._counts, seconds=self._seconds, **parts
        )
        self._spent += self._counts.total
        self._counts, self._seconds = Counts(), Seconds()
        self.index += 1
        return step


def penalty_history(context: Seq[int], sampling: Sampling) -> Seq[int]:
    """The tokens before the pending one that repetition penalties look at."""
    n = sampling.repeat_last_n if sampling.repeat_last_n >= 0 else len(context)
    if sampling.dry_multiplier:
        last = sampling.dry_penalty_last_n
        n = max(n, last + _BREAKER_TOKENS if last >= 0 else len(context))
    return context[-1 - n : -1]
