"""Several texts after one query, in one session of the engine.

What the methods are made of that compare whole texts: a `Branch` is one text, `Branches` reads the
query, forks texts, continues many of them in one batch, and turns the one that is kept into steps.
Nothing is reset: every text stands after the query as a whole. Every decoded position is counted,
those of the kept text as `chunk` and all others that were written or asked as `discarded`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, Output, Participant, Sampling, Sequence, Task
from tgr_local.errors import BudgetError, CancelledError, CapacityError
from tgr_local.options.config import SearchConfig
from tgr_local.search.steps import Counts, Listener, Progress, Seconds, Step
from tgr_local.search.trajectory import CHUNK, ROLLOUT, derived_seed

_SPARE_CELLS = 8  # the held-back token and a little room

Top = tuple[NDArray[np.int32], NDArray[np.float32]]


@dataclass(eq=False)
class Branch:
    """A text after the query. Its cells hold the query and the text without the last token, which
    is decoded by whatever follows it."""

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token, nats, at temperature 1."""
    entropies: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    """The likeliest tokens in the place of each and their log-probabilities; empty unless asked."""
    ended: bool = False
    """By an end token or a stop text."""

    @property
    def likelihood(self) -> float:
        """Mean log-probability of its tokens, nats; of no tokens -inf."""
        return float(np.mean(self.logprobs)) if self.logprobs else -np.inf


def text_limit(
    engine: Engine, n_query: int, config: SearchConfig, *, times: int = 1, extra: int = 0
) -> int:
    """Tokens of a text at most: L·S or `max_tokens`, or less so that the query, `times` texts and
    `extra` tokens fit into the length that the model was trained for.

    Raises ValueError for a query without tokens and CapacityError when not one token fits.
    """
    if n_query < 1:
        raise ValueError("the prompt has no tokens; write something")
    room = (engine.n_ctx_train - n_query - extra) // times
    if room < 1:
        needs = f" and the prompts of this method up to {times + extra}" if extra else ""
        raise CapacityError(
            f"the query has {n_query} tokens{needs}, but the model was trained for "
            f"{engine.n_ctx_train}; shorten the query"
        )
    return min(config.token_limit, room)


def cells_for(engine: Engine, n_query: int, n_texts: int, n_seqs: int, *options: str) -> int:
    """Cells for the query and `n_texts` tokens beside it.

    Raises CapacityError, with the numbers, when they cannot fit into ``n_ctx``, or `n_seqs` texts
    at a time are too many; `options` are the ones to lower then.
    """
    n_cells = n_query + n_texts + _SPARE_CELLS
    n_ctx, n_seq_max = engine.config.n_ctx, engine.n_seq_max
    lower = " or ".join(options)
    if n_ctx and n_cells > n_ctx:
        raise CapacityError(
            f"the query has {n_query} tokens and needs {n_cells} cells with all texts beside it, "
            f"but n_ctx is {n_ctx}; raise n_ctx, or lower max_tokens" + (lower and f" or {lower}")
        )
    if n_seqs > n_seq_max:
        raise CapacityError(
            f"needs {n_seqs} sequences at a time, but the engine holds {n_seq_max}; raise "
            "n_seq_max" + (lower and f", or lower {lower}")
        )
    return n_cells


class Branches:
    """The texts of one run; use it in a ``with`` block.

    `limit` is the length of a text at most, `least` what a run decodes at least after the query.
    Raises ValueError for a budget below that, and CapacityError when the session cannot be had.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Seq[int],
        config: SearchConfig,
        *,
        limit: int,
        n_cells: int,
        n_seqs: int,
        least: int,
        participant: Participant | None = None,
        on_event: Listener | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        self.engine, self.config, self.limit = engine, config, limit
        self.prompt = list(prompt)
        self.sampling = Sampling.of(config)
        self._n_top = min(config.top_logprobs, engine.n_vocab)
        self._on_event, self._cancel = on_event, cancel
        self._deadline = time.monotonic() + config.max_seconds if config.max_seconds else None
        self._counts, self._seconds = Counts(), Seconds()  # all but what is kept is discarded
        self._round = 0
        budget, first = config.max_forward_tokens, max(1, len(self.prompt) - 1) + least
        if budget and budget < first:
            raise BudgetError(
                f"max_forward_tokens is {budget}, but the first step alone takes at least {first}; "
                "raise it or shorten the query"
            )
        self._session = engine.session(n_cells, n_seqs, participant=participant, cancel=cancel)

    def __enter__(self) -> Branches:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    # --- texts ---

    def read_query(self) -> Branch:
        """An empty text: Q decoded, all but its last token, which is held back."""
        self._tell("rebuild")
        start = time.monotonic()
        sequence = self._session.sequence()
        prefix = self.prompt[:-1] or self.prompt  # a lone token stands in for its empty prefix
        task = Task(sequence, prefix)
        # where time was up before, a token is still written
        deadline = None if self.late else self._deadline
        (read,) = self._session.run([task], cancel=self._cancel, deadline=deadline)
        if read.n_decoded < len(prefix):
            raise BudgetError(
                f"max_seconds is {self.config.max_seconds:g}, which was over before the query was "
                "read; raise it or shorten the query"
            )
        sequence.truncate(len(self.prompt) - 1)
        self._counts += Counts(query=len(prefix))
        self._seconds += Seconds(rebuild=time.monotonic() - start)
        return Branch(sequence)

    def context(self, branch: Branch) -> list[int]:
        """The query and the text."""
        return self.prompt + branch.tokens

    def text(self, tokens: list[int]) -> str:
        return self.engine.detokenize(tokens).decode("utf-8", "replace")

    def fork(self, branch: Branch, n_tokens: int | None = None) -> Branch:
        """A text with the first `n_tokens` tokens of another, or with all; it shares their cells.
        One that is cut short has not ended."""
        n = len(branch.tokens) if n_tokens is None else n_tokens
        fork = Branch(
            branch.sequence.fork(),
            branch.tokens[:n],
            branch.logprobs[:n],
            branch.entropies[:n],
            branch.top[:n],
            branch.ended and n_tokens is None,
        )
        fork.sequence.truncate(len(self.prompt) - 1 + n)
        return fork

    def grow(self, branches: Seq[Branch], n: int, sampling: Sampling | None = None) -> list[Output]:
        """Continues every text by at most n tokens, all in one batch, until it ends or time is
        up."""
        outputs = self._generate(
            [
                Task(
                    branch.sequence,
                    [self.context(branch)[-1]],
                    n_generate=n,
                    sampling=sampling or self.sampling,
                    seed=self._seed(CHUNK, i),
                    history=self.context(branch)[-65:-1],
                    grammar_history=branch.tokens,
                    stop=self.config.stop,
                    tail=self._tail(branch.tokens),
                    n_top=self._n_top,
                )
                for i, branch in enumerate(branches)
            ]
        )
        for branch, output in zip(branches, outputs, strict=True):
            branch.tokens += output.tokens.tolist()
            branch.logprobs += output.logprobs.tolist()
            branch.entropies += output.entropies.tolist()
            branch.top += zip(output.top_ids, output.top_logprobs, strict=True)
            branch.ended = output.finish == "stop"
        return outputs

    def sample(self, n: int) -> list[Branch]:
        """n texts, sampled side by side to their ends, the limit, or the end of the budget, which
        they share. They grow by a chunk at a time."""
        root = self.read_query()
        branches = [root, *(self.fork(root) for _ in range(n - 1))]
        while growing := [b for b in branches if not b.ended and len(b.tokens) < self.limit]:
            wanted = min(self.config.chunk_len, self.limit - len(growing[0].tokens))
            allowed = self.allowance(len(growing), wanted)
            if not allowed or self.late:
                break
            self.grow(growing, allowed)
        return branches

    def ask(
        self, branches: Seq[Branch], turns: Seq[Seq[int]], n_replies: int, n_tokens: int, *,
        sampling: Sampling | None = None, stop: tuple[str, ...] = (),
    ) -> list[list[Output]]:  # fmt: skip
        """Appends a turn to a copy of each text and samples n_replies replies to it, each of at
        most n_tokens. The texts stay as they are."""
        start = time.monotonic()
        asked = [self._asked(branch, turn) for branch, turn in zip(branches, turns, strict=True)]
        forks = [branch.sequence.fork() for branch in branches]
        feeds = [text[len(fork) :] for text, fork in zip(asked, forks, strict=True)]
        read = self._session.run(
            [Task(fork, feed[:-1]) for fork, feed in zip(forks, feeds, strict=True)],
            cancel=self._cancel,
        )
        self._counts += Counts(discarded=sum(output.n_decoded for output in read))
        self._seconds += Seconds(chunk=time.monotonic() - start)
        tasks: list[Task] = []
        for text, fork in zip(asked, forks, strict=True):
            for sequence in (fork, *(fork.fork() for _ in range(n_replies - 1))):
                tasks.append(
                    Task(
                        sequence,
                        text[-1:],
                        n_generate=n_tokens,
                        sampling=sampling or self.sampling,
                        seed=self._seed(ROLLOUT, len(tasks)),
                        history=text[-65:-1],
                        stop=stop,
                        n_top=self._n_top,
                    )
                )
        outputs = self._generate(tasks)
        for task in tasks:
            task.sequence.drop()
        return [outputs[i : i + n_replies] for i in range(0, len(outputs), n_replies)]

    def reread(self, root: Branch, output: Output) -> Branch:
        """The text of a reply, decoded afresh as a text of its own after the query."""
        start = time.monotonic()
        branch = self.fork(root, 0)
        tokens = output.tokens.tolist()
        task = Task(branch.sequence, [self.prompt[-1], *tokens], feed_logprobs=True)
        (again,) = self._session.run([task], cancel=self._cancel)
        branch.sequence.truncate(len(self.prompt) - 1 + len(tokens))
        branch.tokens, branch.logprobs = tokens, again.feed_logprobs.tolist()
        branch.entropies = output.entropies.tolist()
        branch.top = list(zip(output.top_ids, output.top_logprobs, strict=True))
        branch.ended = output.finish == "stop"
        self._counts += Counts(rebuild=again.n_decoded)
        self._seconds += Seconds(rebuild=time.monotonic() - start)
        return branch

    # --- limits ---

    @property
    def left(self) -> int | None:
        """Positions left of the budget; None = no limit."""
        limit = self.config.max_forward_tokens
        return limit - self._counts.total if limit else None

    def allowance(self, n_texts: int, wanted: int, reserve: int = 0) -> int:
        """Tokens by which each of n_texts texts may grow: as many as wanted, or what the budget
        leaves when `reserve` positions are kept back; 0 = none."""
        if self.left is None:
            return wanted
        return max(0, min(wanted, (self.left - reserve) // n_texts))

    def affords(self, n_positions: int) -> bool:
        return self.left is None or self.left >= n_positions

    @property
    def late(self) -> bool:
        """Whether time is up, or the answer is wanted now."""
        if self._cancel and self._cancel.answers_now():
            return True
        return self._deadline is not None and time.monotonic() >= self._deadline

    def finish(self, kept: Branch) -> str:
        """Why the kept text ends where it does."""
        if kept.ended:
            return "stop"
        return "length" if len(kept.tokens) >= self.limit else "budget"

    # --- steps ---

    def steps(self, kept: Branch, figures: Mapping[str, float]) -> Iterator[Step]:
        """The kept text in chunks of S tokens. The first step bears the cost of all that was not
        kept, the last the `figures`."""
        size, n = self.config.chunk_len, len(kept.tokens)
        n_steps = max(1, -(-n // size))
        counts, seconds = self._counts + Counts(discarded=-n), self._seconds
        for index in range(n_steps):
            part = slice(index * size, (index + 1) * size)
            tokens, top, last = kept.tokens[part], kept.top[part], index == n_steps - 1
            self._tell("tokens", index, tuple(tokens))
            if self._cancel and self._cancel.is_set():
                raise CancelledError("cancelled")
            yield Step(
                index=index,
                tokens=np.array(tokens, np.int32),
                logprobs=np.array(kept.logprobs[part], np.float32),
                entropies=np.array(kept.entropies[part], np.float32),
                finish=self.finish(kept) if last else None,
                counts=counts + Counts(chunk=len(tokens)),
                seconds=seconds,
                cells=self._session.peak_cells(),
                figures=dict(figures) if last else {},
                top_ids=[ids for ids, _ in top] if self._n_top else None,
                top_logprobs=[logprobs for _, logprobs in top] if self._n_top else None,
            )
            counts, seconds = Counts(), Seconds()

    # --- parts ---

    def _generate(self, tasks: list[Task]) -> list[Output]:
        start = time.monotonic()
        outputs = self._session.run(
            tasks,
            on_tokens=lambda fresh: self._tell("rollouts"),
            cancel=self._cancel,
            deadline=self._deadline,
            stop_early=True,
        )
        self._round += 1
        self._counts += Counts(discarded=sum(output.n_decoded for output in outputs))
        self._seconds += Seconds(chunk=time.monotonic() - start)
        return outputs

    def _asked(self, branch: Branch, turn: Seq[int]) -> list[int]:
        """The query, the text and the turn, which itself ends a text that has no end token."""
        text = self.context(branch)
        return [*(text[:-1] if text[-1] in self.engine.end_tokens else text), *turn]

    def _tail(self, tokens: list[int]) -> bytes:
        longest = max((len(text.encode()) for text in self.config.stop), default=0)
        if longest < 2:
            return b""
        return self.engine.detokenize(tokens[-longest:])[1 - longest :]

    def _seed(self, what: int, which: int) -> int:
        return derived_seed(self.config.seed, self._round, what, which)

    def _tell(self, stage: str, step: int = 0, tokens: tuple[int, ...] = ()) -> None:
        if self._on_event:
            self._on_event(Progress(step, stage, tokens))
