"""Sessions, which reserve cells of the KV cache, with their sequences, injections and tasks; and
lockstep groups, whose sessions advance together."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator, MutableMapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import threads, waits
from tgr_local.engine.native import native
from tgr_local.engine.records import Output, Sampling
from tgr_local.system.cancel import Cancel, check_cancelled, watched
from tgr_local.system.errors import CancelledError

INT_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Task:
    """Work for one sequence: append `feed`, then generate."""

    sequence: Sequence
    feed: Seq[int]
    """Tokens to append, at least one; their positions follow the sequence's."""
    n_generate: int = 0
    """Tokens to generate at most. The last one is sampled but not decoded."""
    injection: Injection | None = None
    """The injection for every token that this task decodes."""
    plain: int = 0
    """Number of fed tokens, counted from the end, that get no injection."""
    reuse: bool = False
    """Take fed tokens from the cache where a remembered prefix or another sequence has them, and
    wait for another task that is reading them. The sequence must be empty, the injection none."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    part: int = 0
    """Generated tokens of a part, for `Session.run_parts`; 0 = no parts."""
    seeds: Seq[int] = ()
    """Seeds of the parts after the first one."""
    history: Seq[int] = ()
    """Tokens before the feed, for repetition penalties."""
    grammar_history: Seq[int] = ()
    """Tokens that the grammar reads before the first generated token, so that a grammar can span
    several tasks. The grammar reads tokens of the feed only if they are here too."""
    stop: tuple[str, ...] = ()
    """Text that ends the generation."""
    shown: Seq[int] = ()
    """Control tokens that belong to the text."""
    tail: bytes = b""
    """Newest text of the reply before this task, for a stop text that began there."""
    ignore_eog: bool = False
    """Go on after an end token."""
    drafts: bool = False
    """Whether drafts are decoded too, once enough of them were right. A draft guesses that the next
    tokens are those that followed the same words before, in this text or another one of the
    session. Drafts change no token."""
    states: bool = False
    """Read the state that each generated token was sampled from."""
    feed_states: str = "none"
    """The fed tokens whose states are read: "none", "last" or "all"."""
    feed_logprobs: bool = False
    norms: bool = False
    """Read the residual norms of the fed tokens."""
    n_top: int = 0
    """Number of likeliest alternatives to report for each generated token."""


@dataclass(frozen=True, eq=False)
class Added:
    """Additions to everything that a session decodes: `vectors` in addition to its injections,
    `logit_bias` in addition to the biases of its tasks; and the `owner` of its prefixes."""

    vectors: NDArray[np.float32] | None = None
    """[n_layer, n_embd], added to the residual stream after every layer at every position."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token and a number added to its logit."""
    owner: bytes = b""
    """Only sessions with the same owner reuse the prefixes; empty = all sessions without owner."""
    digest: bytes = field(init=False)
    """Digest of the vectors; empty = none."""
    prefix_digest: bytes = field(init=False)
    """Digest of the vectors and the owner, under which prefixes are remembered; empty = neither."""

    def __post_init__(self) -> None:
        digest = b""
        if self.vectors is not None:
            digest = _digest(np.ascontiguousarray(self.vectors).tobytes())
        object.__setattr__(self, "digest", digest)
        owned = _digest(self.owner + digest) if self.owner else digest
        object.__setattr__(self, "prefix_digest", owned)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


READ_SECONDS = 0.5
"""Between two calls of `OnRead`."""
OnRead = Callable[[int], None]
New = tuple[list[int], bytes]
"""New tokens of a task with their text."""
OnTokens = Callable[[list[New]], None]


class Session:
    """A reservation in the cache. Closing it, or leaving its ``with`` block, frees all of it."""

    def __init__(
        self,
        engine: native.Engine,
        session: int,
        reservation: waits.Reservation,
        reservations: MutableMapping[int, waits.Reservation],
        added: Added,
    ) -> None:
        self._id = session
        self._native = engine
        self._reservation = reservation
        self._reservations = reservations
        self._added = added
        reservations[session] = reservation
        self._plain = 0  # the row of the table for tokens without their task's injection
        if added.vectors is not None:
            self._plain = self._table_row(added.vectors, added.prefix_digest)

    def close(self) -> None:
        """Cancels what runs and frees all sequences and injections. May be called again."""
        self._native.close_session(self._id)
        if self._reservations.pop(self._id, None) and waits:  # None while the interpreter ends
            waits.search()  # threads that waited for this session may now wait for each other

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def sequence(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self, self._native.sequence(self._id))

    def injection(self, vectors: NDArray[np.float32]) -> Injection:
        """Vectors to add to the residual stream, [n_layer, n_embd]: row i after layer i. Tokens
        decoded under it are not remembered."""
        return Injection(self, self._table_row(vectors, None, self._added.vectors))

    def _table_row(
        self,
        vectors: NDArray[np.float32],
        digest: bytes | None,
        added: NDArray[np.float32] | None = None,
    ) -> int:
        """Writes vectors plus the session's `added` vectors into a row of the engine's table."""
        info = self._native.info
        expected = (info.n_layer, info.n_embd)
        if np.shape(vectors) != expected:
            raise ValueError(f"vectors have shape {np.shape(vectors)}, but must have {expected}")
        with np.errstate(over="ignore"):
            vectors = np.asarray(vectors if added is None else vectors + added, np.float32)
        if not np.isfinite(vectors).all():
            raise ValueError(
                "vectors hold a value that is not finite; check what they were made of"
            )
        return int(self._native.injection(self._id, vectors, digest))

    def remember(self, sequence: Sequence) -> None:
        """Keeps the sequence's tokens in the cache after this session, for tasks with `reuse`: the
        tokens before the first steered one. A model that cannot roll back keeps all tokens or
        none."""
        self._native.remember(self._id, sequence._id)

    def peak_cells(self, *, reset: bool = False) -> int:
        """The most cells that this session has used, since its start or the last reset."""
        return int(self._native.session_peak(self._id, reset))

    def run(
        self,
        tasks: Seq[Task],
        *,
        on_tokens: OnTokens | None = None,
        on_read: OnRead | None = None,
        cancel: Cancel | None = None,
        deadline: float | None = None,
        stop_early: bool = False,
    ) -> list[Output]:
        """Runs the tasks together and returns their outputs, in order.

        `on_tokens` gets the new tokens of every task after each step. While the prompt is read,
        `on_read` gets the length of the first task's sequence now and then. At `deadline` (by
        time.monotonic) the run ends and the outputs hold the tokens so far; with `stop_early`, also
        after `cancel.answer_now()`. Raises CancelledError when `cancel` is set or the engine is
        closed first. If another thread closes the session, the outputs end with finish "cancelled".
        """
        job = self._start(tasks, cancel)
        least = 1 if on_tokens else None
        reads = (tasks[0].sequence, on_read) if on_read else None
        all_news = self._news(job, least, cancel, deadline, stop_early, reads)
        with _counted(job), contextlib.closing(all_news):
            for news, _ in all_news:
                if on_tokens:
                    on_tokens(news)
        return job.outputs()

    def run_parts(
        self,
        task: Task,
        *,
        on_tokens: OnTokens | None = None,
        on_read: OnRead | None = None,
        cancel: Cancel | None = None,
        deadline: float | None = None,
        stop_early: bool = False,
    ) -> Generator[Output, None, None]:
        """Runs one task as `run` does, but yields every ``task.part`` generated tokens as an output
        of their own while the task goes on; the last one says why it ended. Closing the iterator
        ends the task."""
        job = self._start([task], cancel)
        n = 0  # tokens of the part under way
        done = False
        least = 1 if on_tokens else task.part
        reads = (task.sequence, on_read) if on_read else None
        all_news = self._news(job, least, cancel, deadline, stop_early, reads)
        with _counted(job) as parts, contextlib.closing(all_news):
            for (new,), done in all_news:  # noqa: B007
                for piece in self._cut(new, task.part - n, task.part, task.shown):
                    if on_tokens:
                        on_tokens([piece])
                    check_cancelled(cancel)
                    n += len(piece[0])
                    if n == task.part:
                        n = 0
                        parts.append(job.take_part(0, task.part))
                        yield parts[-1]
        job.outputs()  # raises its error
        if n or not done:  # else the last tokens made a whole part
            yield job.take_part(0, n)

    def _cut(self, new: New, first: int, n: int, shown: Seq[int]) -> Iterator[New]:
        """New tokens in pieces: the first of at most `first` tokens, the others of n."""
        tokens, _ = new
        if len(tokens) <= first:
            yield new
            return
        for start, end in itertools.pairwise([0, *range(first, len(tokens), n), len(tokens)]):
            piece = tokens[start:end]
            yield piece, self._native.detokenize(piece, False, shown)

    def _start(self, tasks: Seq[Task], cancel: Cancel | None) -> native.Job:
        check_cancelled(cancel)
        with threads.inside():
            self._reservation.use()
            self._reservation.job = job = self._submit(tasks)
            if self._reservation.group:
                waits.search()  # the group may stand still for a participant that waits
        return job

    def _news(
        self,
        job: native.Job,
        least: int | None,
        cancel: Cancel | None,
        deadline: float | None,
        stop_early: bool,
        reads: tuple[Sequence, OnRead] | None,
    ) -> Generator[tuple[list[New], bool], None, None]:
        """Yields the new tokens of every task, at least `least` of them or the last ones, and
        whether the job is done. With `least` None it waits for the end and yields nothing. Closing
        the iterator ends the job."""

        def look() -> None:
            if cancel and (cancel.is_set() or (stop_early and cancel.answers_now())):
                job.cancel()

        done, due = False, deadline or None
        try:
            with watched(cancel, look):
                look()
                while not done:
                    if due is not None and time.monotonic() >= due:
                        job.cancel()
                        due = None
                    news: list[New] = []
                    patience = threads.patience(self._native, due)
                    patience = min(patience, READ_SECONDS) if reads else patience
                    with threads.inside():
                        if least is None:
                            done = job.wait(patience)
                        else:
                            news, done = job.take(patience, least)
                    if reads and not done and not any(tokens for tokens, _ in news):
                        sequence, on_read = reads
                        on_read(len(sequence))
                    if any(tokens for tokens, _ in news):
                        reads = None
                        yield news, done
                        look()  # the caller may have asked for the answer because of these tokens
            self._reservation.job = None
            if cancel and cancel.is_set() and any(o.finish == "cancelled" for o in job.outputs()):
                raise CancelledError("cancelled")
        except BaseException:
            with threads.inside():
                job.cancel()
                job.wait(0.0 if self._native in threads.HUNG else 60.0)
            raise

    def _submit(self, tasks: Seq[Task]) -> native.Job:
        for task in tasks:
            _check(task, self._native.info.n_vocab)
        tasks = [self._biased(task) for task in tasks] if self._added.logit_bias else tasks
        # -1 for handles of another session: their ids may be in use here too
        sequences = [task.sequence._id if task.sequence.session is self else -1 for task in tasks]
        injections = [self._row(task.injection) for task in tasks]
        return self._native.submit(self._id, tasks, sequences, injections, self._plain)

    def _row(self, injection: Injection | None) -> int:
        if injection is None:
            return self._plain
        return injection._row if injection.session is self else -1

    def _biased(self, task: Task) -> Task:
        bias = (*task.sampling.logit_bias, *self._added.logit_bias)
        return dataclasses.replace(
            task, sampling=dataclasses.replace(task.sampling, logit_bias=bias)
        )


class Sequence:
    """Tokens in the cache, freed by `drop` or by the garbage collector."""

    def __init__(self, session: Session, sequence: int) -> None:
        self.session = session
        self._id = sequence

    def __len__(self) -> int:
        return int(self.session._native.length(self.session._id, self._id))

    def fork(self) -> Sequence:
        """A sequence with the same tokens, in the same cells."""
        return Sequence(self.session, self.session._native.fork(self.session._id, self._id))

    def truncate(self, n_tokens: int) -> None:
        """Keeps the first `n_tokens` tokens."""
        self.session._native.truncate(self.session._id, self._id, n_tokens)

    def shift(self, start: int, end: int) -> None:
        """Removes the tokens [start, end) and moves those behind them to their place.

        The moved tokens keep their states, which depend on the removed ones; only their positions
        change. Raises TgrError, and changes nothing, when a fork shares a token that would move, or
        when the model's cache cannot be moved; ValueError when there are no such tokens.
        """
        check_whole("start", start, 0, INT_MAX)
        check_whole("end", end, 0, INT_MAX)
        self.session._native.shift(self.session._id, self._id, start, end)

    @property
    def is_dropped(self) -> bool:
        return self._id < 0

    def drop(self) -> None:
        """Frees it. May be called again."""
        if self._id >= 0:
            sequence, self._id = self._id, -1
            self.session._native.drop(self.session._id, sequence)

    def __del__(self) -> None:
        self.drop()


class Injection:
    """Vectors in the engine's table, one for every layer, freed by `drop` or by the garbage
    collector."""

    def __init__(self, session: Session, row: int) -> None:
        self.session = session
        self._row = row

    def drop(self) -> None:
        """Frees it. May be called again."""
        if self._row > 0:
            row, self._row = self._row, -1
            self.session._native.drop_injection(self.session._id, row)

    def __del__(self) -> None:
        self.drop()


@dataclass(frozen=True, eq=False)
class LockstepGroup:
    """Sessions that advance in lockstep: nothing is decoded while a participant is idle. So their
    batches, and the rounding in them, depend on the seeds alone.

    Every participant must open its session or `leave`, and must not wait for another participant
    in between.
    """

    _engine: native.Engine
    _native: native.LockstepGroup

    def participant(self, index: int) -> Participant:
        return Participant(self, index)


@dataclass(frozen=True, eq=False)
class Participant:
    """One place in a group; leaving its ``with`` block leaves the group."""

    group: LockstepGroup
    index: int

    def leave(self) -> None:
        """The group stops waiting for this participant. May be called again."""
        self.group._engine.leave(self.group._native, self.index)
        waits.search()  # reservations of a group are given only when all participants have asked

    def __enter__(self) -> Participant:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()


@contextlib.contextmanager
def _counted(job: native.Job) -> Iterator[list[Output]]:
    """Adds the positions that the job has decoded to a CancelledError. Yields a list, to which the
    caller adds the outputs that it took before the end."""
    taken: list[Output] = []
    try:
        yield taken
    except CancelledError as error:
        with contextlib.suppress(Exception):  # the engine is closed
            outputs = job.outputs()
            error.n_reused = sum(output.n_reused for output in outputs)
            n_decoded = sum(output.n_decoded for output in outputs)
            error.n_decoded = n_decoded - sum(output.n_decoded for output in taken)
        raise


def check_whole(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, but must be between {low} and {high}")


def _check(task: Task, n_vocab: int) -> None:
    if task.feed_states not in ("none", "last", "all"):
        raise ValueError(f"feed_states is {task.feed_states!r}, but must be none, last or all")
    check_whole("n_generate", task.n_generate, 0, INT_MAX)
    check_whole("n_top", task.n_top, 0, n_vocab)
    check_whole("seed", task.seed, 0, 2**64 - 1)
