"""One trajectory: the moves that methods are made of.

`Trajectory` holds a session of the engine and knows how to bring its cache to a context, try
candidates, write a chunk and read the state at its end; it counts every decoded position. Which
moves follow each other is a method's business (`tgr_local.methods`), which yields a `steps.Step`
for each chunk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import (
    Cancel,
    Engine,
    Injection,
    Output,
    Participant,
    Sampling,
    Sequence,
    Task,
)
from tgr_local.errors import BudgetError, CancelledError
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry, scoring
from tgr_local.search.capacity import (
    SPARE_CELLS,
    cells_needed,
    kept_of,
    longest_rollout,
    n_rollouts,
    sequences_needed,
)
from tgr_local.search.shared_anchors import shared_anchors_of
from tgr_local.search.steps import Candidates, Counts, Listener, Progress, Seconds, Step

_STATE_COST = 2  # positions that reading a state decodes: the chunk's last token and the delimiter

# the fields of an Output that have a row for each generated token
_OF_THE_TASK = {"feed_states", "feed_logprobs", "norm_sums", "norm_counts", "n_decoded", "finish"}
_PER_TOKEN = [spec.name for spec in fields(Output) if spec.name not in _OF_THE_TASK]

# what a seed is derived for
PROPOSE, ROLLOUT, CHUNK = range(3)


def derived_seed(*parts: int) -> int:
    """A 64-bit seed that changes with every part, such as (seed, chunk, what for, which)."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def _joined(first: Output, more: Output) -> Output:
    """A generation and what continued it, as one."""
    arrays = {
        name: np.concatenate([getattr(first, name), getattr(more, name)]) for name in _PER_TOKEN
    }
    n_decoded = first.n_decoded + more.n_decoded
    return replace(first, **arrays, n_decoded=n_decoded, finish=more.finish)


def _beginning(output: Output, n: int) -> Output:
    """The first n tokens of a generation that has more."""
    arrays = {name: getattr(output, name)[:n] for name in _PER_TOKEN}
    return replace(output, **arrays, finish="length")


def _norm_totals(output: Output) -> NDArray[np.float64]:
    """[2, n_layer] sums of the residual norms, and how many tokens they stand for: in the last
    layer, where the engine measures some of them only, as many as in the others."""
    means = output.norm_sums / output.norm_counts
    return np.stack([means * output.n_decoded, np.full_like(means, output.n_decoded)])


class Trajectory:
    """One run of a method on one prompt; use it in a ``with`` block.

    `prompt` is Q; `resets` says whether the context is brought back to Q and the newest tokens at
    every chunk, `searches` whether candidates will be tried, which needs room for their rollouts,
    `steers` whether the states at the chunks' ends will be read, which takes positions.
    Raises ValueError for a prompt without tokens or a budget below one step, and CapacityError,
    with the numbers, when the run cannot fit.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Seq[int],
        config: SearchConfig,
        *,
        resets: bool = True,
        searches: bool = False,
        steers: bool = False,
        participant: Participant | None = None,
        on_event: Listener | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        n_cells = cells_needed(engine, len(prompt), config, resets=resets, searches=searches)
        if resets and config.shift_cells and engine.config.type_k.startswith("q"):
            raise ValueError(
                f"shift_cells moves keys, which type_k {engine.config.type_k} would round again; "
                "set type_k to f16, or drop shift_cells"
            )
        self.engine, self.config = engine, config
        self.prompt = list(prompt)
        self.generated: list[int] = []
        self.entropies: list[float] = []
        """Of each generated token's distribution, nats."""
        self.index = 0  # of the step under way
        self._resets = resets
        self._rollout_cells = n_rollouts(config) * longest_rollout(config) if searches else 0
        self._first_rollouts = (
            config.n_candidates * config.n_mc * config.rollout_len if searches else 0
        )
        self._on_event = on_event
        self._cancel = cancel
        self._deadline = time.monotonic() + config.max_seconds if config.max_seconds else None
        self._sampling = Sampling.of(config)
        self._n_top = min(config.top_logprobs, engine.n_vocab)
        self._eoc = engine.eoc_token(config.eoc_token) if steers else -1

        self._state_cost = _STATE_COST if steers else 0
        self._check_budget()
        n_seqs = sequences_needed(config, searches=searches)
        self._session = engine.session(n_cells, n_seqs, participant=participant, cancel=cancel)
        self._shared = (
            shared_anchors_of(participant) if participant and config.share_repulsion else None
        )
        if self._shared:
            self._shared.join(self._session)
        self._main = self._session.sequence()
        self._rollouts: list[tuple[Sequence, Injection | None]] = []  # of this boundary
        self._begun: Output | None = None  # the rollout that the chunk begins with
        self._injections: list[Injection] = []
        self._held = self.prompt[-1]  # decoded by every candidate and by the chunk itself
        self._counts, self._seconds = Counts(), Seconds()  # of the step under way
        self._spent = 0  # positions of the steps before
        self._norms = self._query_norms = np.zeros((2, engine.n_layer))

    def __enter__(self) -> Trajectory:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._shared:
            self._shared.leave()
        self._session.close()

    # --- moves ---

    def read_query(self, *, norms: bool = False) -> None:
        """Decodes Q, all but its last token, which is held back."""
        self._tell("rebuild")
        start = time.monotonic()
        prefix = self.prompt[:-1] or self.prompt  # a lone token stands in for its empty prefix
        output = self._read(prefix, norms=norms)
        self._main.truncate(len(self.prompt) - 1)
        if norms:
            self._norms = self._query_norms = _norm_totals(output)
        self._count(query=len(prefix))
        self._time("rebuild", start)

    def reset(self, *, norms: bool = False) -> None:
        """Brings the cache to Q and the kept tokens, decoded afresh without injection; the last of
        them is held back. Q's cells stay, since Q never changes.

        A lazy reset does nothing while the next step fits; ``shift_cells`` takes what is not kept
        out of the cache and decodes nothing. `norms` then has those of the last time.
        """
        if self._fits_lazily():
            return
        self._tell("rebuild")
        start = time.monotonic()
        head, tail = self._kept()
        if self.config.shift_cells:
            begin, end = len(self.prompt) + len(head), len(self._main) - len(tail) + 1
            self._main.shift(begin, end)
        else:
            self._main.truncate(len(self.prompt) - 1)
            output = self._read([self.prompt[-1], *head, *tail[:-1]], norms=norms)
            if norms:
                self._norms = self._query_norms + _norm_totals(output)
            self._count(rebuild=len(head) + len(tail))
        self._time("rebuild", start)

    @property
    def residual_norms(self) -> NDArray[np.float64]:
        """[n_layer] mean‖h‖₂ of the prefix after each layer; 0 unless decoded with `norms`."""
        sums, counts = self._norms
        means: NDArray[np.float64] = sums / np.maximum(counts, 1)
        return means

    def roll_out(self, injections: Seq[Injection | None]) -> list[Output]:
        """N_MC rollouts under each injection, candidate-major, all in one batch that shares the
        prefix; each decodes the held-back token itself.

        A second call at a boundary adds to the first. The rollouts' cells stay until the chunk is
        written, so that `deepen` and `adopt` can go on with them, by their place in all outputs of
        the boundary.
        """
        config = self.config
        first = len(self._rollouts)
        for injection in injections:
            self._rollouts += [(self._main.fork(), injection) for _ in range(config.n_mc)]
        return self._run_rollouts(
            [
                self._continuation(fork, injection, config.rollout_len, (ROLLOUT, i), states=True)
                for i, (fork, injection) in enumerate(self._rollouts[first:], first)
            ]
        )

    def deepen(self, outputs: Seq[Output], n: int) -> list[Output]:
        """All rollouts of this boundary, each continued by n tokens unless it has ended."""
        going = [i for i, output in enumerate(outputs) if output.finish == "length"]
        tasks = []
        for i in going:
            (fork, injection), written = self._rollouts[i], outputs[i].tokens.tolist()
            what = (ROLLOUT, i, len(written))
            tasks.append(self._continuation(fork, injection, n, what, written=written, states=True))
        more = dict(zip(going, self._run_rollouts(tasks), strict=True)) if tasks else {}
        return [
            _joined(output, more[i]) if i in more else output for i, output in enumerate(outputs)
        ]

    @property
    def late(self) -> bool:
        """Whether time is up. Raises CancelledError for a run that was cancelled."""
        if self._cancel and self._cancel.is_set():
            raise CancelledError("cancelled")
        return self._deadline is not None and time.monotonic() >= self._deadline

    def affords(self, n_positions: int) -> bool:
        """Whether the limits leave so many positions, and time, to try more before the chunk, which
        takes at least one."""
        left = self._positions_left()
        return not self.late and (left is None or left >= n_positions + 1 + self._state_cost)

    def choose(
        self,
        anchors: NDArray[np.float64],
        origin: NDArray[np.float64],
        outputs: list[Output],
        owners: Seq[int] | None = None,
    ) -> Candidates:
        """Scores the candidate anchors [K, d_z], drawn around origin [d_z], by their rollouts.

        `owners` [n] are the candidates of the n outputs; None means N_MC of each, candidate-major.
        """
        start = time.monotonic()
        config = self.config
        if owners is None:
            owners = [k for k in range(len(anchors)) for _ in range(config.n_mc)]
        belongs = np.array(owners, np.int64)
        others = self._shared.of_others(self.index, self._cancel) if self._shared else []
        lengths = np.array([len(output.tokens) for output in outputs])
        logprobs = np.zeros((len(outputs), lengths.max()), np.float32)
        states = np.zeros((*logprobs.shape, self.engine.n_embd), np.float32)
        for i, output in enumerate(outputs):
            logprobs[i, : lengths[i]] = output.logprobs
            states[i, : lengths[i]] = output.states
        scores = scoring.score(
            logprobs,
            states,
            lengths,
            anchors,
            origin,
            delta=config.delta,
            weights=scoring.Weights(config.foresight_weight, config.lambda_b, config.lambda_u),
            normalize=config.normalize_scores,
            owners=belongs,
            others=others,
        )
        top = anchors[scores.best(config.geometry_top or len(anchors))]
        if geometry.collapsed(top, config.min_n_eff, config.max_apcs):
            scores = scoring.with_lambda_u(scores, config.raised_lambda_u)
        candidates = Candidates(
            anchors, [o.tokens for o in outputs], [o.logprobs for o in outputs], scores, belongs
        )
        self._time("scoring", start)
        self._tell("scored", candidates=candidates)
        return candidates

    def announce(self, anchor: NDArray[np.float64]) -> None:
        """Tells the trajectories run together with this one which anchor it goes on with, where
        ``share_repulsion`` asks for it."""
        if self._shared:
            self._shared.add(self.index, anchor)

    def adopt(self, rollout: int, output: Output) -> None:
        """Begins the chunk with a rollout of this boundary, or what the limits leave of it; `write`
        goes on from there. Its cells stay, so it costs nothing."""
        room = min(self.config.chunk_len, self.config.token_limit - len(self.generated))
        sequence, _ = self._rollouts.pop(rollout)
        if len(output.tokens) > room:
            output = _beginning(output, room)
            sequence.truncate(len(self._main) + room)  # the held-back token is one of its cells
        self._main.drop()
        self._main, self._begun = sequence, output

    def write(self, injection: Injection | None = None) -> Output:
        """Writes the chunk: continues from the held-back token, or the adopted rollout, under
        `injection`, to at most S tokens or what the limits leave."""
        start = time.monotonic()
        for sequence, _ in self._rollouts:
            sequence.drop()
        self._rollouts.clear()
        begun, self._begun = self._begun, None
        n_begun = len(begun.tokens) if begun else 0
        if begun:
            self._take(begun)
            self._tell("tokens", tokens=tuple(begun.tokens.tolist()))
        limits = [self.config.chunk_len - n_begun, self.config.token_limit - len(self.generated)]
        if (left := self._positions_left()) is not None:
            limits.append(left - self._state_cost)
        if begun and (begun.finish == "stop" or min(limits) < 1):
            return begun
        task = self._continuation(self._main, injection, max(1, min(limits)), (CHUNK, 0))
        (output,) = self._session.run(
            [task],
            on_tokens=self._hear_chunk if self._on_event else None,
            cancel=self._cancel,
            deadline=self._deadline,
            stop_early=True,
        )
        self._take(output)
        self._count(chunk=output.n_decoded)
        self._time("chunk", start)
        return _joined(begun, output) if begun else output

    def read_state(self, injection: Injection | None = None) -> NDArray[np.float32]:
        """h_eoc of the text as it stands [d_h]: the held-back token is decoded under `injection`,
        then the delimiter without any; the cells of both are given back."""
        start = time.monotonic()
        length = len(self._main)
        self._feed([self._held], injection)
        h: NDArray[np.float32] = self._feed([self._eoc], keep="last").feed_states[0]
        self._main.truncate(length)
        self._count(delimiter=_STATE_COST)
        self._time("delimiter", start)
        return h

    def finish(self, output: Output) -> str | None:
        """Why the run ends after this chunk; None when it goes on."""
        config = self.config
        if output.finish == "stop":
            return "stop"
        if output.finish == "cancelled":
            return "budget"
        if len(self.generated) >= config.token_limit or self.index + 1 >= config.max_chunks:
            return "length"
        if self.late:
            return "budget"
        left = self._positions_left()
        if left is not None and left < self._state_cost + self._least_cost():
            return "budget"
        return None

    def step(self, output: Output, finish: str | None, **search: Any) -> Step:
        """The record of this step; starts the next one. `search` holds origin, candidates, anchor
        and state where the method has them."""
        step = Step(
            index=self.index,
            tokens=output.tokens,
            logprobs=output.logprobs,
            entropies=output.entropies,
            finish=finish,
            counts=self._counts,
            seconds=self._seconds,
            cells=self._session.peak_cells(reset=True),
            top_ids=list(output.top_ids) if self.config.top_logprobs else None,
            top_logprobs=list(output.top_logprobs) if self.config.top_logprobs else None,
            **search,
        )
        self._spent += self._counts.total
        self._counts, self._seconds = Counts(), Seconds()
        self.index += 1
        return step

    def injections(self, vectors: NDArray[Any]) -> list[Injection]:
        """The injections of this boundary, which replace those of the last; vectors
        [K, n_layer, d_h]."""
        for injection in self._injections:
            injection.drop()
        self._injections = [self._session.injection(injection) for injection in vectors]
        return self._injections

    # --- parts ---

    def _feed(
        self, tokens: Seq[int], injection: Injection | None = None, *, keep: str = "none"
    ) -> Output:
        task = Task(self._main, tokens, injection=injection, feed_states=keep)
        return self._session.run([task], cancel=self._cancel)[0]

    def _read(self, tokens: Seq[int], *, norms: bool) -> Output:
        """Decodes a part of the context. Raises BudgetError when time is up before its end."""
        task = Task(self._main, tokens, norms=norms)
        # where time was up before, a token is still written
        deadline = None if self.late else self._deadline
        (output,) = self._session.run([task], cancel=self._cancel, deadline=deadline)
        if output.n_decoded < len(tokens):
            raise BudgetError(
                f"max_seconds is {self.config.max_seconds:g}, which was over before the context "
                "was read; raise it or shorten the query"
            )
        return output

    def _run_rollouts(self, tasks: Seq[Task]) -> list[Output]:
        self._tell("rollouts")
        start = time.monotonic()
        outputs = self._session.run(tasks, cancel=self._cancel, deadline=self._deadline)
        self._count(rollouts=sum(output.n_decoded for output in outputs))
        self._time("rollouts", start)
        return outputs

    def _take(self, output: Output) -> None:
        self.generated += output.tokens.tolist()
        self.entropies += output.entropies.tolist()
        self._held = self.generated[-1] if self.generated else self._held

    def _kept(self) -> tuple[list[int], list[int]]:
        return kept_of(self.generated, self.config)

    def _fits_lazily(self) -> bool:
        limit = self.config.max_cached_tokens
        next_step = max(self.config.chunk_len, self._rollout_cells) + SPARE_CELLS
        return bool(limit) and len(self._main) + next_step <= limit

    def _continuation(
        self, sequence: Sequence, injection: Injection | None, n: int, what: tuple[int, ...], *,
        written: Seq[int] = (), states: bool = False,
    ) -> Task:  # fmt: skip
        """Up to n tokens after the generated ones and those `written` in this sequence alone."""
        stop = self.config.stop
        text = [*self.generated, *written]
        longest = max((len(text.encode()) for text in stop), default=0)
        tail = self.engine.detokenize(text[-longest:])[1 - longest :] if longest > 1 else b""
        return Task(
            sequence,
            [written[-1] if written else self._held],
            n_generate=n,
            injection=injection,
            sampling=self._sampling,
            seed=derived_seed(self.config.seed, self.index, *what),
            history=(self.prompt + text)[-65:-1],
            grammar_history=text if self.config.grammar else (),
            stop=stop,
            tail=tail,
            states=states,
            n_top=self._n_top if what[0] == CHUNK or self.config.reuse_winner else 0,
        )

    def _hear_chunk(self, fresh: list[list[int]]) -> None:
        self._tell("tokens", tokens=tuple(fresh[0]))

    def _tell(self, stage: str, **what: Any) -> None:
        if self._on_event:
            self._on_event(Progress(self.index, stage, **what))

    def _count(self, **positions: int) -> None:
        self._counts += Counts(**positions)

    def _time(self, part: str, start: float) -> None:
        self._seconds += Seconds(**{part: time.monotonic() - start})

    def _positions_left(self) -> int | None:
        limit = self.config.max_forward_tokens
        return limit - self._spent - self._counts.total if limit else None

    def _least_cost(self) -> int:
        """Positions that a step after this chunk takes at least: rebuild, rollouts, one token, and
        the reading of its state."""
        return self._rebuild_cost() + self._first_rollouts + 1 + self._state_cost

    def _rebuild_cost(self) -> int:
        if not self._resets or not self.generated or self.config.shift_cells:
            return 0
        return 0 if self._fits_lazily() else sum(map(len, self._kept()))

    def _check_budget(self) -> None:
        budget = self.config.max_forward_tokens
        first = max(1, len(self.prompt) - 1) + self._state_cost + self._least_cost()
        if budget and budget < first:
            raise BudgetError(
                f"max_forward_tokens is {budget}, but the first step alone takes at least {first}; "
                "raise it or shorten the query"
            )
