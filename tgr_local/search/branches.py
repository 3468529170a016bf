"""Several texts after one query, in one session of the engine.

`Branches` is a policy over a `Run`, for the methods that compare whole texts: a `Branch` is one
text; `Branches` forks texts, continues many of them in one batch, and turns the chosen one into
steps. The context of a text is the query and the whole text. Every decoded position is counted:
positions of the chosen text as `chunk`, repeated ones as `rebuild`, all others as `discarded`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine, Output, Sampling, Sequence, Task
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import SPARE_CELLS, context_limit, most_tokens, text_room
from tgr_local.search.run import Method, Run
from tgr_local.search.seeds import CHUNK, derived_seed
from tgr_local.search.steps import Finish, Step
from tgr_local.system.errors import CapacityError, ContextError

Top = tuple[NDArray[np.int32], NDArray[np.float32]]


@dataclass(eq=False)
class Branch:
    """A text after the query. Its cells hold the query and the text without the last token. That
    token is pending: the next task decodes it."""

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token, nats, at temperature 1."""
    entropies: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    """Likeliest alternatives to each token and their log-probabilities; empty unless
    ``top_logprobs`` asks for them."""
    ended: bool = False
    """True if an end token or a stop text ended it."""

    @property
    def likelihood(self) -> float:
        """Mean log-probability of its tokens, nats; -inf without tokens."""
        return float(np.mean(self.logprobs)) if self.logprobs else -np.inf

    def add(self, output: Output) -> None:
        """Appends the generated tokens."""
        self.tokens += output.tokens.tolist()
        self.logprobs += output.logprobs.tolist()
        self.entropies += output.entropies.tolist()
        self.top += zip(output.top_ids, output.top_logprobs, strict=True)

    def fields(self, part: slice, *, has_top: bool) -> dict[str, Any]:
        """Fields of a `Step` for a part of its tokens."""
        return {
            "tokens": np.array(self.tokens[part], np.int32),
            "logprobs": np.array(self.logprobs[part], np.float32),
            "entropies": np.array(self.entropies[part], np.float32),
            "top_ids": [ids for ids, _ in self.top[part]] if has_top else None,
            "top_logprobs": [logprobs for _, logprobs in self.top[part]] if has_top else None,
        }


def text_limit(
    engine: Engine,
    n_query: int,
    config: SearchConfig,
    *,
    times: int = 1,
    extra: int = 0,
    cells: Callable[[int], int] | None = None,
) -> int:
    """The largest number of tokens of a text: L·S or `max_tokens`, or less where the context is
    smaller. The query, `times` texts and `extra` tokens must fit into the longest text that the
    model can read. The ``cells(limit)`` of all texts of the method must fit into ``n_ctx``; without
    `cells` the method has one text.

    Raises ValueError for a query without tokens and CapacityError when not one token fits.
    """
    room, n_ctx = text_room(engine, n_query), engine.config.n_ctx
    limit = min(config.token_limit, (room - extra) // times)
    if limit > 0 and cells and n_ctx:
        limit = most_tokens(limit, cells, n_ctx - n_query - SPARE_CELLS)
    if limit < 1:
        needs = f" and the prompts of this method up to {times + extra}" if extra else ""
        size, raised = f"the model was trained for {engine.n_ctx_train}", ""
        if n_ctx and (room > extra + times or context_limit(engine) == "n_ctx"):
            size, raised = f"n_ctx is {n_ctx}", ", or raise n_ctx (-c)"
        raise ContextError(
            f"the query has {n_query} tokens{needs}, but {size}, which leaves no room for the "
            f"texts of this method; shorten the query{raised}",
            n_query,
            n_ctx or engine.n_ctx_train,
        )
    return limit


def cells_of_texts(config: SearchConfig, n_texts: int, limit: int) -> int:
    """Cells of `n_texts` texts of at most `limit` tokens, without the query. The texts share the
    budget."""
    n_cells = n_texts * limit
    return min(n_cells, config.max_forward_tokens) if config.max_forward_tokens else n_cells


def cells_for(engine: Engine, n_query: int, n_texts: int, n_seqs: int, *options: str) -> int:
    """Cells for the query and `n_texts` tokens of texts.

    Raises CapacityError, with the numbers, when they cannot fit into ``n_ctx``, or when `n_seqs`
    texts at a time are too many. The message names `options` as the options to lower.
    """
    n_cells = n_query + n_texts + SPARE_CELLS
    n_ctx, n_seq_max = engine.config.n_ctx, engine.n_seq_max
    lower = " or ".join(options)
    if n_ctx and n_cells > n_ctx:
        raise CapacityError(
            f"the query has {n_query} tokens and needs {n_cells} cells with all texts, "
            f"but n_ctx is {n_ctx}; raise n_ctx (-c), or lower max_tokens"
            + (lower and f" or {lower}")
        )
    if n_seqs > n_seq_max:
        raise CapacityError(
            f"needs {n_seqs} sequences at a time, but the engine holds {n_seq_max}; raise "
            "n_seq_max" + (lower and f", or lower {lower}")
        )
    return n_cells


class Branches:
    """The texts of one run; use it in a ``with`` block.

    A text has at most `limit` tokens. The run decodes at least `least` positions after the query.
    Raises ValueError for a budget below `least`, and CapacityError when the cache can never hold
    the texts.
    """

    def __init__(self, run: Run, method: Method, *, limit: int, least: int) -> None:
        self.run, self.limit = run, limit
        self.engine, self.config, self.sampling = run.engine, run.config, run.sampling
        self._round = 0
        run.open(method, least=least)

    def __enter__(self) -> Branches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.run.close()

    # --- texts ---

    def read_query(self) -> Branch:
        """An empty text: Q decoded, all but its last token, which is pending."""
        sequence, _ = self.run.read_query(to_its_end=self.run.must_answer)
        return Branch(sequence)

    def context(self, branch: Branch) -> list[int]:
        """The query and the text."""
        return self.run.query + branch.tokens

    def text(self, tokens: list[int]) -> str:
        return self.run.text(tokens).decode("utf-8", "replace")

    def fork(self, branch: Branch) -> Branch:
        """A copy of a text, which shares its cells."""
        return dataclasses.replace(
            branch,
            sequence=branch.sequence.fork(),
            tokens=[*branch.tokens],
            logprobs=[*branch.logprobs],
            entropies=[*branch.entropies],
            top=[*branch.top],
        )

    def grow(self, branches: Seq[Branch], n: int, sampling: Sampling | None = None) -> list[Output]:
        """Continues all texts in one batch, each by at most n tokens, or to its end, or until the
        time is up."""
        outputs = self.generate(
            [
                self.run.continuation(
                    branch.sequence, branch.tokens, n, self.seed(CHUNK, i), sampling=sampling
                )
                for i, branch in enumerate(branches)
            ]
        )
        for branch, output in zip(branches, outputs, strict=True):
            branch.add(output)
            branch.ended = output.finish == "stop"
        return outputs

    def rounds(self, branches: Seq[Branch]) -> Iterator[None]:
        """Continues texts of equal length in the same batches, a chunk at a time, until each has
        ended or reached the limit, or the shared budget is spent. The caller may stop after each
        chunk."""
        while growing := [b for b in branches if not b.ended and len(b.tokens) < self.limit]:
            wanted = min(self.config.chunk_len, self.limit - len(growing[0].tokens))
            allowed = self.allowance(len(growing), wanted)
            if not allowed or self.late:
                break
            self.grow(growing, allowed)
            yield

    # --- limits ---

    def allowance(self, n_texts: int, wanted: int) -> int:
        """Tokens by which each of `n_texts` texts may grow: `wanted`, or fewer where the budget
        allows only fewer; 0 = none."""
        if self.run.left is None:
            return wanted
        return max(0, min(wanted, self.run.left // n_texts))

    @property
    def late(self) -> bool:
        """Whether the time is up, or the user asked for the answer now."""
        return self.run.must_answer or self.run.is_out_of_time

    def finish(self, chosen: Branch) -> Finish:
        """Why the chosen text ends where it does."""
        if chosen.ended:
            return "stop"
        return "length" if len(chosen.tokens) >= self.limit else "budget"

    # --- steps ---

    def steps(self, chosen: Branch, figures: Mapping[str, float]) -> Iterator[Step]:
        """Yields the chosen text in chunks of S tokens. The first step also counts the positions of
        all other texts, and the last step has the `figures`. Until their step is yielded, tokens of
        the chosen text count as discarded, in `Run.unclaimed`."""
        run, size, n = self.run, self.config.chunk_len, len(chosen.tokens)
        if not chosen.sequence.is_dropped:
            run.remember(chosen.sequence)
        n_steps = max(1, -(-n // size))
        n_tokens_left = n  # of its tokens
        for index in range(n_steps):
            part = slice(index * size, (index + 1) * size)
            tokens, last = chosen.tokens[part], index == n_steps - 1
            text = run.text(tokens)
            run.report("tokens", tokens=tuple(tokens), text=text)
            run.check_cancelled()
            run.count(discarded=-n_tokens_left, chunk=len(tokens))
            step = run.step(
                self.finish(chosen) if last else None,
                **chosen.fields(part, has_top=run.n_top > 0),
                cells=run.session.peak_cells(),
                figures=dict(figures) if last else {},
            )
            n_tokens_left -= len(tokens)
            run.count(discarded=n_tokens_left)
            yield step

    # --- parts ---

    def generate(self, tasks: list[Task]) -> list[Output]:
        """Runs one round of tasks, whose positions count as discarded."""
        with self.run.timed("chunk"):
            outputs = self.run.generate(
                tasks, on_tokens=lambda new: self.run.report("texts"), stop_early=True
            )
            self._round += 1
            self.run.count(discarded=sum(output.n_decoded for output in outputs))
        return outputs

    def seed(self, purpose: int, index: int) -> int:
        """A seed of this round."""
        return derived_seed(self.config.seed, self._round, purpose, index)
