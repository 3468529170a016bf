"""From a stream of steps to text: one reply, several at once, or pieces as they come.

Where a function takes a config, None means the defaults with what the model file advises.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TypeGuard, TypeVar

import numpy as np

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Participant, awaited_by, awaiting, start_thread
from tgr_local.errors import BudgetError, CancelledError, CapacityError
from tgr_local.generation.text import CLOSE_THINK, OPEN_THINK, TextDelta, TextSplitter, is_loop
from tgr_local.options.config import DEFAULT_METHOD, EngineConfig, SearchConfig
from tgr_local.options.resolve import resolve
from tgr_local.search.capacity import kept_tokens
from tgr_local.search.steps import Counts, Listener, Progress, Step
from tgr_local.search.trajectory import derived_seed

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A question; messages, each with "role" and "content"; or token ids."""

_AFTER_THINK = "\n\n"  # what models write between the thinking and the answer
_CHARS_OF_A_TOKEN = 8  # more than most texts have


@dataclass(frozen=True, eq=False)
class Run:
    """A run of the method."""

    first: int
    """Index of its first step in the reply."""
    query: list[int]
    """Q, the tokens that it began with."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A whole reply and what it took."""

    text: str
    """The answer."""
    thinking: str
    """What stood in the thinking block, without its tags."""
    tokens: list[int]
    """All new tokens, thinking and end token included."""
    finish: str
    """"stop", "length" or "budget", see `Step.finish`; or "loop"."""
    steps: list[Step]
    """One for each chunk, in order."""
    counts: Counts
    """All positions that were decoded for it."""
    seconds: float
    """Wall time."""
    seed: int
    method: str
    closed: int | None = None
    """Number of tokens after which the thinking was closed from outside; None = never."""
    runs: list[Run] = field(default_factory=list)
    """One, or two where the thinking had to end before the answer began."""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def tokens_per_second(self) -> float:
        """Kept tokens per second of wall time, search included."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0


Event = TextDelta | Progress | Step | Reply


def load(path: str | os.PathLike[str] | None = None, config: EngineConfig | None = None) -> Engine:
    """Loads a GGUF file, or without a path the embedded model. Raises ModelError."""
    if path is None:
        from tgr_local.models.library import embedded_model

        path = embedded_model()
    return Engine(path, config)


def advised(engine: Engine, config: SearchConfig | None = None) -> SearchConfig:
    """`config`, or if it is None the defaults with what the model file advises."""
    return config or resolve(engine.metadata).config


def prompt_tokens(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig,
    *,
    raw: bool = False,
    cancel: Cancel | None = None,
) -> list[int]:
    """The query Q: a question or messages in the model's chat template, or with `raw` a text as it
    stands; token ids are Q already. Raises ModelError for a model without a template, CapacityError
    for a text that is far too long for the model, and CancelledError by `cancel`.

    Where the thinking must end before the answer begins (`thinking_budget`, `grammar`), it is
    opened here for models that open it themselves.
    """
    if _is_tokens(prompt):
        return [int(token) for token in prompt]
    if raw:
        if not isinstance(prompt, str):
            raise ValueError("a raw prompt must be a text, but is a list of messages; drop raw")
        return tokens_within(engine, prompt, add_special=True)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    text = engine.chat_prompt(messages, thinking=config.thinking, cancel=cancel)  # type: ignore[arg-type]
    if config.thinking and (config.thinking_budget or config.grammar):
        ends = text.rstrip().endswith((OPEN_THINK, CLOSE_THINK))
        text += "" if ends or OPEN_THINK not in engine.chat_template else f"{OPEN_THINK}\n"
    return tokens_within(engine, text)


def tokens_within(
    engine: Engine, text: str, *, add_special: bool = False, parse_special: bool = True
) -> list[int]:
    """Tokens of a text that has to fit into the length that the model was trained for.

    CapacityError, after a look at its beginning, for one that is far too long.
    """
    most = engine.n_ctx_train
    some = text[: _CHARS_OF_A_TOKEN * most]
    if len(some) < len(text):
        tokens = engine.tokenize(some, add_special=add_special, parse_special=parse_special)
        if len(tokens) > most:
            raise CapacityError(
                f"the prompt has {len(text)} characters and more than {most} tokens, but the model "
                f"was trained for {most}; shorten it"
            )
    return engine.tokenize(text, add_special=add_special, parse_special=parse_special)


def _is_tokens(prompt: Prompt) -> TypeGuard[Sequence[int]]:
    """Whether it is token ids. Raises ValueError for what is no prompt at all."""
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes):
        if not len(prompt):
            raise ValueError("the prompt is an empty list; write something")
        if all(isinstance(one, Integral) for one in prompt):
            return True
        if all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in prompt):
            return False
    raise ValueError(
        f"the prompt is {prompt!r:.80}, but must be a text, messages with role and content, or "
        "token ids"
    )


def generate_steps(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str = DEFAULT_METHOD,
    raw: bool = False,
    participant: Participant | None = None,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """The steps of one reply, each as its chunk is done. Closing the iterator frees the cache."""
    config = advised(engine, config)
    tokens = prompt_tokens(engine, prompt, config, raw=raw, cancel=cancel)
    run = methods.get(method).run
    return run(engine, tokens, config, participant=participant, on_event=on_event, cancel=cancel)


def generate(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    participant: Participant | None = None,
    answer_participant: Participant | None = None,
    on_event: Callable[[Event], None] | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    """Writes one reply. `on_event` hears every `TextDelta`, `Progress` and `Step` as it comes.

    `verbatim` takes all text as it is written, with tags and outer space. Where the thinking has
    to end before the answer begins (`thinking_budget`, `loop_guard`, `grammar`,
    ``cancel.answer_now()``), a second run of the method writes the answer: its query is Q, the
    thinking, as much of it as a reset keeps, and the closing tag. With a grammar, which only an
    answer can keep to, so does a reply that ends inside its thinking. `answer_participant` is that
    run's place in a group.

    Raises ValueError for bad arguments, CapacityError for a query that cannot fit, and
    CancelledError when `cancel` is set.
    """
    start = time.monotonic()
    methods.get(method)
    config = advised(engine, config)
    query = prompt_tokens(engine, prompt, config, raw=raw, cancel=cancel)
    if config.grammar:  # which a reply may never come to
        engine.check_grammar(config.grammar)
    splitter = TextSplitter(engine, query, config.stop, verbatim=verbatim)
    writing = _Writing(engine, query, config, method, splitter, on_event, cancel)
    finish = writing.run(participant, answer_participant)
    return Reply(
        text=splitter.text,
        thinking=splitter.thinking,
        tokens=writing.tokens,
        finish=finish,
        steps=writing.steps,
        counts=sum((step.counts for step in writing.steps), Counts()),
        seconds=time.monotonic() - start,
        seed=config.seed,
        method=method,
        closed=writing.closed,
        runs=writing.runs,
    )


def _thinking_alone(config: SearchConfig) -> SearchConfig:
    """The config of a run that ends with the thinking."""
    limit = config.token_limit
    return dataclasses.replace(
        config,
        grammar="",
        stop=(*config.stop, CLOSE_THINK),
        max_tokens=min(config.thinking_budget or limit, limit),
    )


class _AnswerNow(Cancel):
    """Passes a cancel on, and "answer now" only while there is thinking to end: at the next token
    where the text is followed, else at the end of a step."""

    def __init__(self, outer: Cancel | None, splitter: TextSplitter, follows: bool) -> None:
        super().__init__(outer)
        self.heard = self._closed = False
        self._splitter, self._follows = splitter, follows

    def answers_now(self) -> bool:
        self.heard = self.heard or (self._follows and self.is_due())
        return self._follows and self.is_due()

    def is_due(self) -> bool:
        """As far as the splitter knows the text."""
        return super().answers_now() and self._splitter.kind == "thinking" and not self._closed

    def close(self) -> None:
        """The answer begins: nothing is to be stopped_early any more."""
        self._closed = True


class _Writing:
    """One reply under way: a run of the method, or two, where the thinking is ended for it."""

    def __init__(
        self,
        engine: Engine,
        query: list[int],
        config: SearchConfig,
        method: str,
        splitter: TextSplitter,
        on_event: Callable[[Event], None] | None,
        cancel: Cancel | None,
    ) -> None:
        self.engine, self.query, self.config, self.method = engine, query, config, method
        self.steps: list[Step] = []
        self.tokens: list[int] = []
        self.closed: int | None = None
        self.runs: list[Run] = []
        self._splitter, self._tell = splitter, on_event or (lambda event: None)
        # where nobody follows the text, nobody is woken for every token
        self._follows = on_event is not None
        self._cancel = _AnswerNow(cancel, splitter, self._follows)
        self._start = time.monotonic()
        self._limit = config.token_limit
        self._first = self._n_before = 0  # steps and tokens before this run
        # a grammar holds for the answer alone, so the thinking is a run of its own
        self._thinks_first = splitter.kind == "thinking" and bool(
            config.thinking_budget or config.grammar
        )

    def run(self, participant: Participant | None, answer_participant: Participant | None) -> str:
        """Writes it all; returns why it ended."""
        config = _thinking_alone(self.config) if self._thinks_first else self.config
        finish = self._write(self.query, config, participant)
        if not finish:
            finish = self._answer(answer_participant)
        for piece in self._splitter.end():
            self._tell(piece)
        return finish

    def _write(
        self, query: list[int], config: SearchConfig, participant: Participant | None
    ) -> str:
        """One run of the method. Returns why the reply ended, or "" when the answer is due."""
        self.runs.append(Run(self._first, query))
        run = methods.get(self.method).run
        hear = self._hear if self._follows else None
        steps = run(
            self.engine, query, config, participant=participant, on_event=hear, cancel=self._cancel
        )
        with contextlib.closing(steps):  # type: ignore[type-var]
            try:
                for step in steps:
                    if (finish := self._added(step)) is not None:
                        return finish
            except BudgetError:  # what is left pays for no step, or time is up between two
                if not self.steps:
                    raise
                self.steps[-1] = dataclasses.replace(self.steps[-1], finish="budget")
                return "budget"
        raise AssertionError(f"{self.method} ended without saying why")

    def _added(self, step: Step) -> str | None:
        """Takes a step; what `_verdict` says of it."""
        if not self._follows:
            self._splitter.feed(step.tokens.tolist())
        finish = self._verdict(step)
        self.tokens += step.tokens.tolist()
        step = dataclasses.replace(step, index=step.index + self._first, finish=finish or None)
        self.steps.append(step)
        self._tell(step)
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
        ended = ended and (not thinking or bool(self.config.grammar))  # which needs an answer
        stopped_early = finish == "budget" and self._cancel.heard
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
            self._tell(piece)
        self._tell(Progress(self.steps[-1].index, "answer due"))
        self._first, self._n_before = len(self.steps), len(self.tokens)
        resets = methods.get(self.method).resets
        kept = self.tokens[-kept_tokens(self.config) :] if resets else self.tokens
        if kept and kept[-1] in self.engine.end_tokens:
            kept = kept[:-1]
        query = [*self.query, *kept, *after]
        config = self._what_is_left(len(query))
        finish = self._write(query, config, participant) if config else "budget"
        self.steps[-1] = dataclasses.replace(self.steps[-1], finish=finish)
        return finish

    def _what_is_left(self, n_query: int) -> SearchConfig | None:
        """The config of the answer's run; None when nothing is left of a budget, or no room in the
        cache."""
        config, method = self.config, methods.get(self.method)
        tokens, seconds = config.max_forward_tokens, config.max_seconds
        tokens -= sum(step.counts.total for step in self.steps)
        seconds -= time.monotonic() - self._start
        if config.max_forward_tokens and tokens <= 0:
            return None
        if config.max_seconds and seconds <= 0:
            return None
        left = dataclasses.replace(
            config,
            max_tokens=self._limit - len(self.tokens),
            max_forward_tokens=tokens if config.max_forward_tokens else 0,
            max_seconds=seconds if config.max_seconds else 0.0,
            seed=derived_seed(config.seed, self._first) >> 1,
        )
        try:
            method.cells(self.engine, n_query, left)
        except CapacityError:
            return None
        return left

    def _hear(self, progress: Progress) -> None:
        self._tell(dataclasses.replace(progress, chunk=progress.chunk + self._first))
        if progress.stage == "tokens":
            for piece in self._splitter.feed(progress.tokens):
                self._tell(piece)


def generate_many(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    k: int = 1,
    *,
    method: str = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    on_event: Callable[[int, Event], None] | None = None,
    cancel: Cancel | None = None,
) -> list[Reply]:
    """Writes k replies together, in the same batches; reply i has the seed ``config.seed + i``.

    They advance in step, so the same call gives the same replies. `on_event` hears the events of
    reply i as ``on_event(i, event)``, from several threads, and last the reply itself.
    """
    return generate_each(
        engine, [prompt], config, k, method=method, raw=raw, verbatim=verbatim, on_event=on_event,
        cancel=cancel,
    )  # fmt: skip


def generate_each(
    engine: Engine,
    prompts: Sequence[Prompt],
    config: SearchConfig | None = None,
    k: int = 1,
    *,
    method: str = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    on_event: Callable[[int, Event], None] | None = None,
    cancel: Cancel | None = None,
) -> list[Reply]:
    """Writes k replies to each of several prompts, all as `generate_many` does: those to prompt j
    are replies j·k to j·k + k - 1, with the seeds from ``config.seed`` on."""
    if k < 1:
        raise ValueError(f"k is {k}, but must be at least 1")
    if not prompts:
        raise ValueError("prompts is empty, but must hold at least one")
    config = advised(engine, config)
    queries = [prompt_tokens(engine, prompt, config, raw=raw, cancel=cancel) for prompt in prompts]
    needs = methods.get(method)
    n, n_seqs = len(queries) * k, needs.sequences(config)
    if n_seqs > engine.n_seq_max:
        raise CapacityError(
            f"{method} needs {n_seqs} sequences at a time, but the engine holds "
            f"{engine.n_seq_max}; raise n_seq_max, or try fewer candidates or texts"
        )
    engine.reserve(
        max(needs.cells(engine, len(query), config) for query in queries),
        min(n, engine.n_seq_max // n_seqs),
    )
    group, answer_group = engine.lockstep_group(n), engine.lockstep_group(n)

    def one(number: int, stop: Cancel) -> Reply:
        hear = (lambda event: on_event(number, event)) if on_event else None
        with (
            group.participant(number) as participant,
            answer_group.participant(number) as answer_participant,
        ):
            reply = generate(
                engine, queries[number // k],
                dataclasses.replace(config, seed=config.seed + number % k), method=method,
                verbatim=verbatim, participant=participant, answer_participant=answer_participant, on_event=hear,
                cancel=stop,
            )  # fmt: skip
        if hear:
            hear(reply)
        return reply

    try:
        return together(n, one, cancel)
    finally:
        for number in range(n):  # one whose thread never started is waited for
            group.participant(number).leave()
            answer_group.participant(number).leave()


def stream(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    cancel: Cancel | None = None,
) -> Iterator[Event]:
    """Yields the events of one reply as they come, and last the `Reply` itself.

    Closing the iterator, or an exception in the code that reads it, cancels the work.
    """

    def work(on_event: Callable[[Event], None], stop: Cancel) -> None:
        reply = generate(
            engine, prompt, config, method=method, raw=raw, verbatim=verbatim, on_event=on_event,
            cancel=stop,
        )  # fmt: skip
        on_event(reply)

    return told(work, cancel)


_Told = TypeVar("_Told")
_Made = TypeVar("_Made")


def together(
    n: int, work: Callable[[int, Cancel], _Made], cancel: Cancel | None = None
) -> list[_Made]:
    """What ``work(0, stop)`` to ``work(n - 1, stop)`` return, each called in a thread of its own.

    They have to end when `stop` is set, which `cancel` and the failure of one of them do. That
    failure is raised here.
    """
    stop, line = Cancel(cancel), awaiting()
    made: dict[int, _Made] = {}
    failures: list[BaseException] = []

    def run(number: int) -> None:
        with awaited_by(line):
            try:
                made[number] = work(number, stop)
            except BaseException as error:
                failures.append(error)
                stop.cancel()

    threads: list[threading.Thread] = []
    try:
        for number in range(n):
            threads.append(start_thread(functools.partial(run, number)))
        for thread in threads:
            while thread.is_alive():
                thread.join(0.05)
    finally:
        stop.cancel()
        for thread in threads:
            thread.join()
    for failure in sorted(failures, key=lambda error: isinstance(error, CancelledError)):
        raise failure
    return [made[number] for number in range(n)]


def told(
    work: Callable[[Callable[[_Told], None], Cancel], None], cancel: Cancel | None = None
) -> Iterator[_Told]:
    """What `work` tells its on_event, as it comes, while it runs in a thread of its own.

    ``work(on_event, stop)`` has to end when `stop` is set, which closing the iterator and `cancel`
    do. What it raises is raised here.
    """
    stop = Cancel(cancel)
    events: queue.Queue[_Told | _End] = queue.Queue()
    line = awaiting()

    def run() -> None:
        try:
            with awaited_by(line):
                work(events.put, stop)
            events.put(_End(None))
        except BaseException as error:
            events.put(_End(error))

    thread = start_thread(run)
    try:
        while not isinstance(event := events.get(), _End):
            yield event
        if event.error:
            raise event.error
    finally:
        stop.cancel()
        thread.join()


@dataclass(frozen=True)
class _End:
    error: BaseException | None
