"""One trajectory: a text in chunks, and the operations from which methods are built.

`Trajectory` is a policy over a `Run`. It holds one text and one sequence. It resets the KV cache
to the query and the newest tokens, tries candidates, writes a chunk, and reads the state at its
end. A method (`tgr_local.methods`) decides the order and yields a `steps.Step` for each chunk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.records import Output
from tgr_local.engine.session import Injection, New, Sequence, Task
from tgr_local.search import geometry
from tgr_local.search.capacity import STATE_COST, check_shift, guard_positions, text_room
from tgr_local.search.capacity import goes_on as goes_on_when_full
from tgr_local.search.run import Method, Run
from tgr_local.search.seeds import CHUNK, ROLLOUT, derived_seed
from tgr_local.search.steps import Candidates, Counts, Finish, Step, scored
from tgr_local.system.errors import CancelledError

_CHUNKS = 32  # the most chunks that one task writes


class Trajectory:
    """The text of a run, chunk after chunk; use it in a ``with`` block.

    `method` says whether the context is reset to Q and the newest tokens at every chunk, whether
    candidates are tried, and whether the state at the end of each chunk is read.
    Raises ValueError for a prompt without tokens or a budget below one step, and CapacityError,
    with the numbers, when the run cannot fit.
    """

    def __init__(self, run: Run, method: Method) -> None:
        engine, config = run.engine, run.config
        self.run, self.engine, self.config = run, engine, config
        if method.resets and config.shift_cells:
            check_shift(engine)
        self.generated: list[int] = []
        self._n_context = 0  # generated tokens in the context
        self._resets = method.resets
        n_query = len(run.query)
        goes_on = not self._resets and goes_on_when_full(engine, n_query, config)
        self._room = text_room(engine, n_query) if goes_on else None
        self._first_rollouts = self._guard_cost = 0
        if method.searches:
            self._first_rollouts = config.n_candidates * config.n_mc * config.rollout_len
            if method.steers:
                self._guard_cost = guard_positions(config)
                self._first_rollouts += self._guard_cost
        self._state_cost = STATE_COST if method.steers else 0
        self._eoc = engine.eoc_token(config.eoc_token) if method.steers else -1

        state = 0 if config.search_from else self._state_cost
        run.open(method, least=state + self._least_cost(0))
        self._main: Sequence
        self._root: Sequence | None = None  # Q alone, for a model that cannot roll back to it
        self._rollouts: list[tuple[Sequence, Injection | None]] = []  # of this boundary
        self._begun: Output | None = None  # the rollout that the chunk begins with
        self._injections: list[Injection] = []
        # [n, n_layer] residual norms of the tokens of Q, and of what follows it in the context
        self._query_norms = self._tail_norms = np.zeros((0, engine.n_layer), np.float32)
        self._was_reset = False
        self._reads_along = False  # the next task reads Q
        self._goes_on = False  # the task of the newest chunk writes the next one too
        self._began: float | None = None  # that task, by time.monotonic; None once it writes

    def __enter__(self) -> Trajectory:
        return self

    def __exit__(self, *exc: object) -> None:
        if (self.generated or self._reads_along) and not self._was_reset:
            self.run.remember(self._main)
        self.run.close()

    # --- moves ---

    def read_query(self) -> None:
        """Decodes Q without its last token, which is pending."""
        self._main, output = self.run.read_query()
        if (self._resets or self._room) and not self.engine.rolls_back:
            self._root, self._main = self._main, self._main.fork()
        self._query_norms = output.norms

    def begin(self) -> None:
        """Prepares `chunks`: reads Q as `read_query` does. For a streamed reply the task that
        writes the first chunk also reads Q instead, which saves the time of two engine steps."""
        run = self.run
        if (
            run.on_event is None
            or run.participant  # all runs of a lockstep group read Q in the same way
            or not self.engine.rolls_back  # such a model remembers only the end of a task
            or len(run.query) == 1
            or self.config.shift_cells  # the sequence would never hold Q alone
            or run.left is not None  # the budget of the text depends on the cost of Q
            or run.is_out_of_time
        ):
            self.read_query()
            return
        run.report_read(0)
        self._main, self._reads_along = run.session.sequence(), True

    def reset(self) -> None:
        """Resets the KV cache to Q and the retained tokens. The cells of Q stay. The retained
        tokens are decoded again without injection; the last one is pending.

        ``shift_cells`` removes the other tokens from the cache instead and decodes nothing. The
        residual norms then keep their last measured values.
        """
        run = self.run
        run.report("rebuild")
        with run.timed("rebuild"):
            tail = self._retained
            if self.config.shift_cells and self._resets:
                self._main.shift(len(run.query), self._length - len(tail) + 1)
            else:
                if self._root is None:
                    self._main.truncate(len(run.query) - 1)
                else:
                    self._main.drop()
                    self._main = self._root.fork()
                if not self._was_reset:  # Q, which the task of the first chunk may have read
                    run.remember(self._main)
                output = run.read(self._main, [run.query[-1], *tail[:-1]])
                self._tail_norms = output.norms
                run.count(rebuild=len(tail))
            self._n_context = len(tail)
            self._was_reset = True

    @property
    def residual_norms(self) -> NDArray[np.float64]:
        """[n_layer] median‖h‖₂ of the prefix after each layer; 0 unless the run `measures`."""
        if not self.run.measures:
            return np.zeros(self.engine.n_layer)
        return geometry.median_norms([self._query_norms, self._tail_norms])

    def roll_out(self, injections: Seq[Injection | None]) -> list[Output]:
        """N_MC rollouts under each injection, in the order of the injections, all in one batch that
        shares the prefix. Each decodes the pending token itself.

        A second call at a boundary adds rollouts to those of the first. The cells of the rollouts
        stay until the chunk is written, so that `adopt` can continue one of them. Its index counts
        all rollouts of the boundary.
        """
        first, n_mc, length = len(self._rollouts), self.config.n_mc, self.config.rollout_len
        for injection in injections:
            self._rollouts += [(self._main.fork(), injection) for _ in range(n_mc)]
        run = self.run
        run.report("rollouts")
        with run.timed("rollouts"):
            outputs = run.generate(
                [
                    self._continuation(fork, injection, length, (ROLLOUT, first + i))
                    for i, (fork, injection) in enumerate(self._rollouts[first:])
                ]
            )
            run.count(rollouts=sum(output.n_decoded for output in outputs))
        return outputs

    @property
    def late(self) -> bool:
        """Whether the time is up. Raises CancelledError for a run that was cancelled."""
        self.run.check_cancelled()
        return self.run.is_out_of_time

    def affords(self, n_positions: int) -> bool:
        """Whether the limits leave time and `n_positions` positions for further rollouts, beside
        the guard and a chunk of one token."""
        least = 1 + self._state_cost + self._guard_cost
        return not self.late and self.run.affords(n_positions + least)

    def choose(
        self,
        anchors: NDArray[np.float64],
        origin: NDArray[np.float64],
        outputs: list[Output],
        owners: Seq[int] | None = None,
    ) -> Candidates:
        """Scores the candidate anchors [K, d_z], drawn around origin [d_z], by their rollouts.

        `owners` [n] has the candidate of each output; None: N_MC outputs for each candidate, in
        their order.
        """
        config, run = self.config, self.run
        with run.timed("scoring"):
            if owners is None:
                owners = [k for k in range(len(anchors)) for _ in range(config.n_mc)]
            candidates = scored(anchors, origin, outputs, np.array(owners, np.int64), config)
        run.report("scored", candidates=candidates)
        return candidates

    def excess(self, rollout: int, output: Output) -> float:
        """How much likelier a rollout is under its injection (q) than without it (p): the mean of
        ln q − ln p over its tokens, nats a token. The tokens are read again without the injection.
        The other rollouts of the boundary are dropped to make room, so only this one can be
        adopted.

        A high value means that the injection has derailed the model. The log-probabilities under
        the injection alone do not show that: a model that repeats one word forever is sure of it.
        """
        for number, (sequence, *_) in enumerate(self._rollouts):
            if number != rollout:
                sequence.drop()
        with self.run.timed("scoring"):
            fork = self._main.fork()
            feed = [self._pending, *output.tokens.tolist()]
            (plainly,) = self.run.decode([Task(fork, feed, feed_logprobs=True)])
            fork.drop()
            self.run.count(guard=plainly.n_decoded)
        return float(np.mean(output.logprobs, dtype=float) - np.mean(plainly.feed_logprobs))

    def adopt(self, rollout: int, output: Output) -> None:
        """Begins the chunk with a rollout of this boundary, cut to the limits; `write` continues
        it. The rollout's cells are used, so nothing is decoded again, unless it must be cut and the
        model cannot roll back."""
        space = min(self.config.chunk_len, self.config.token_limit - len(self.generated))
        sequence, injection = self._rollouts.pop(rollout)
        if len(output.tokens) > space:
            if self.engine.rolls_back:
                # the pending token is one of its cells
                sequence.truncate(self._length + space)
            else:
                if self.run.left is not None:
                    space = min(space, self.run.left - self._state_cost)
                sequence.drop()
                sequence = self._main
                with self.run.timed("rebuild"):
                    feed = [self._pending, *output.tokens[:space].tolist()[:-1]]
                    self.run.decode([Task(sequence, feed, injection=injection)])
                    self.run.count(rebuild=len(feed))
            output = output.beginning(space)
        if sequence is not self._main:
            self._main.drop()
        self._main, self._begun = sequence, output

    def write(self, injection: Injection | None = None) -> Output:
        """Writes the chunk under `injection`, after the pending token or the adopted rollout: at
        most S tokens, fewer where a limit says so."""
        run = self.run
        with run.timed("chunk"):
            for sequence, *_ in self._rollouts:
                sequence.drop()
            self._rollouts.clear()
            begun, self._begun = self._begun, None
            n_begun = len(begun.tokens) if begun else 0
            if begun:
                self._take(begun)
                tokens = begun.tokens.tolist()
                run.report("tokens", tokens=tuple(tokens), text=run.text(tokens))
            limits = [
                self.config.chunk_len - n_begun,
                self.config.token_limit - len(self.generated),
            ]
            if run.left is not None:
                limits.append(run.left - self._state_cost)
            if begun and (begun.finish == "stop" or min(limits) < 1):
                return begun
            task = self._continuation(self._main, injection, max(1, min(limits)), (CHUNK, 0))
            (output,) = run.generate(
                [task], on_tokens=self._report_chunk if run.on_event else None, stop_early=True
            )
            self._take(output)
            self._count_chunk(output)
        return begun.joined(output) if begun else output

    def first_chunk(self) -> Output:
        """Writes the first chunk, after Q. After `begin`, its task may read Q too."""
        with contextlib.closing(self.chunks(1)) as chunks:
            return next(chunks)

    def chunks(self, most: int = _CHUNKS) -> Generator[Output, None, None]:
        """Writes chunk after chunk without injection, until the text ends or a limit is reached.

        One task writes up to `most` chunks, so no chunk waits for the next step of the engine. Each
        chunk has the seed that it would have in a task of its own. Closing the generator ends the
        task.
        """
        run, config = self.run, self.config
        while True:
            limits = [config.token_limit - len(self.generated)]
            if self._room:
                limits.append(self._room - self._n_context)
            if run.left is not None:
                limits.append(run.left)
            n_chunks = min(most, config.max_chunks - run.index)
            if (n_required := run.held_back.tokens - len(self.generated)) > 0:
                n_chunks = min(n_chunks, -(-n_required // config.chunk_len))
            n = max(1, min(*limits, n_chunks * config.chunk_len))
            end = len(self.generated) + n
            task = dataclasses.replace(
                self._continuation(self._main, None, n, (CHUNK, 0)),
                part=config.chunk_len,
                seeds=[
                    derived_seed(config.seed, run.index + i, CHUNK, 0)
                    for i in range(1, -(-n // config.chunk_len))
                ],
            )
            if self._reads_along:
                task = dataclasses.replace(task, feed=run.query, history=(), reuse=True)
            on_tokens = self._report_chunk if run.on_event else None
            written = run.generate_parts(task, on_tokens=on_tokens, reads=self._reads_along)
            with contextlib.closing(written) as parts:
                while True:
                    with run.timed("chunk") as start, self._reading():
                        if self._reads_along:
                            self._began = start
                        output = next(parts, None)
                        if output is None:
                            break
                        n_read = self._read(output) if self._reads_along else 0
                        self._take(output)
                        self._count_chunk(output, n_read)
                    self._goes_on = output.finish == "length" and len(self.generated) < end
                    yield output

    def read_state(self, injection: Injection | None = None) -> NDArray[np.float32]:
        """h_eoc of the text so far [d_h]: the state at the delimiter. The pending token is decoded
        under `injection`, then the delimiter without one. The cells of both are freed."""
        run = self.run
        with run.timed("delimiter"):
            with run.passing(self._main, self._length) as sequence:
                feed = [self._pending, self._eoc]
                task = Task(sequence, feed, injection=injection, plain=1, feed_states="last")
                (output,) = run.decode([task])
            h: NDArray[np.float32] = output.feed_states[0]
            run.count(delimiter=STATE_COST)
        return h

    def finish(self, output: Output) -> Finish | None:
        """Why the run ends after this chunk; None when it goes on."""
        config = self.config
        if output.finish == "stop":
            return "stop"
        if output.finish == "cancelled":
            return "budget"
        if len(self.generated) >= config.token_limit or self.run.index + 1 >= config.max_chunks:
            return "length"
        # a task that continues with the next chunk checks the time itself
        if not self._goes_on and self.late:
            return "budget"
        if not self.run.affords(self._state_cost + self._least_cost(self.run.index + 1)):
            return "budget"
        return None

    @property
    def is_full(self) -> bool:
        """Whether the context of a text that continues after a reset is full."""
        return self._room is not None and self._n_context >= self._room

    @property
    def n_cells(self) -> int:
        """Cells of the context; the pending token has none yet."""
        return self._length

    @property
    def n_sequences(self) -> int:
        """Sequences that hold the context: one, and one for Q alone where a reset needs it."""
        return 1 if self._root is None else 2

    def step(self, output: Output, finish: Finish | None, **parts: Any) -> Step:
        """The record of this step; starts the next step. `parts` has the fields origin, candidates,
        anchor and state where the method has them, and cells where it knows them."""
        if "cells" not in parts:
            parts["cells"] = self.run.session.peak_cells(reset=True)
        has_top = bool(self.config.top_logprobs)
        return self.run.step(
            finish,
            tokens=output.tokens,
            logprobs=output.logprobs,
            entropies=output.entropies,
            top_ids=list(output.top_ids) if has_top else None,
            top_logprobs=list(output.top_logprobs) if has_top else None,
            **parts,
        )

    def injections(self, vectors: NDArray[Any]) -> list[Injection]:
        """The injections with these vectors [K, n_layer, d_h]. They replace the injections of the
        last boundary."""
        for injection in self._injections:
            injection.drop()
        self._injections = [self.run.session.injection(injection) for injection in vectors]
        return self._injections

    # --- parts ---

    @property
    def _pending(self) -> int:
        """The newest token, decoded by every candidate and by the chunk itself."""
        return self.generated[-1] if self.generated else self.run.query[-1]

    @property
    def _length(self) -> int:
        """Tokens of the text's sequence: the context without the pending token."""
        return len(self.run.query) - 1 + self._n_context

    def _take(self, output: Output) -> None:
        self.generated += output.tokens.tolist()
        self._n_context += len(output.tokens)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Counts what the task under way read of Q if it raises CancelledError."""
        try:
            yield
        except CancelledError as error:
            if self._reads_along and error.counts is not None:
                n_read = min(error.n_decoded, len(self.run.query) - 1 - error.n_reused)
                error.counts += Counts(query=n_read, reused=error.n_reused, discarded=-n_read)
            raise

    def _read(self, output: Output) -> int:
        """Counts the positions of Q that the task of the first chunk has read; returns how many it
        decoded."""
        n_prefix = len(self.run.query) - 1
        if self.run.is_out_of_time:
            self.run.check_read(output, n_prefix)
        self._reads_along = False
        n_read = min(output.n_decoded, n_prefix - output.n_reused)
        self.run.count(query=n_read, reused=output.n_reused)
        return n_read

    def _count_chunk(self, output: Output, n_read: int = 0) -> None:
        """Counts the decoded positions of a chunk's task. `n_read` of them belong to Q."""
        self.run.count(chunk=output.n_decoded - n_read, refused=output.n_refused)

    def _report_chunk(self, new: list[New]) -> None:
        if self._began is not None:
            seconds, self._began = time.monotonic() - self._began, None
            self.run.spend(rebuild=seconds, chunk=-seconds)
            self.run.report_read(len(self.run.query))
        ((tokens, text),) = new
        self.run.report("tokens", tokens=tuple(tokens), text=text)

    def _continuation(
        self, sequence: Sequence, injection: Injection | None, n: int, purpose: tuple[int, int]
    ) -> Task:
        """The task that generates up to n tokens after the text so far."""
        rolls_out = purpose[0] != CHUNK
        return self.run.continuation(
            sequence,
            self.generated,
            n,
            derived_seed(self.config.seed, self.run.index, *purpose),
            injection=injection,
            states=rolls_out,
            n_top=0 if rolls_out and not self.config.reuse_winner else self.run.n_top,
            drafts=not (self._resets or self._was_reset),  # the context is the whole text
        )

    def _least_cost(self, index: int) -> int:
        """The fewest positions that the step of that index decodes: rebuild, rollouts, one token,
        and reading its state."""
        decodes_again = (self._resets and not self.config.shift_cells) or self.is_full
        rebuild = len(self._retained) if decodes_again else 0
        if index < self.config.search_from:
            return rebuild + 1
        return rebuild + self._first_rollouts + 1 + self._state_cost

    @property
    def _retained(self) -> list[int]:
        """The newest tokens of the text, which a reset retains: a chunk of them, or half of a full
        context."""
        n = self._room // 2 if self._room else self.config.chunk_len
        return self.generated[-n:]
