"""``power``: Metropolis-Hastings over blocks of the text towards p^α.

Karan and Du, "Reasoning with Sampling: Your Base Model is Smarter Than You Think" (2025). The text
grows block by block, each drawn at temperature 1/α. After each block the text so far is improved:
from a uniformly chosen position on it is written again to the end of the block, and the proposal
takes its place with probability min(1, ratio), so that p(text so far)^α stays the target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np

from tgr_local.engine import Engine, Sequence, Task
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import PowerOptions
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.seeds import PROPOSE, derived_seed
from tgr_local.search.steps import Step

_BLOCKS = 16  # that the new tokens are divided into, each of a token at least


def run(run: Run) -> Iterator[Step]:
    """Block after block until the text has ended when its block is done, then yields the text."""
    limit = _limit(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=1) as branches:
        chain = Chain(branches)
        for end in _ends(limit):
            paid = chain.extend(end)
            for _ in range(run.config.power_steps if paid else 0):
                paid = chain.improve()
                if not paid:
                    break
            if not paid or chain.text.ended:
                break
        yield from branches.steps(chain.text, chain.figures)


def _limit(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return text_limit(engine, n_query, config, cells=_cells)


def _cells(limit: int) -> int:
    return 2 * limit  # the text and the proposal


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = _cells(_limit(engine, n_query, config))
    return cells_for(engine, n_query, n_texts, sequences(engine, config))


def sequences(engine: Engine, config: SearchConfig) -> int:
    return 2 if engine.rolls_back else 3  # also the query alone


def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
    limit = _limit(engine, n_query, config)
    # a proposal decodes its part anew, and where the model cannot roll back, what is before it too
    proposals = sum(config.power_steps * (end + 1) for end in _ends(limit))
    return n_query + limit + proposals


def _ends(limit: int) -> list[int]:
    """The length of the text after each block."""
    block = math.ceil(limit / _BLOCKS)
    return [*range(block, limit, block), limit]


class Chain:
    """The text so far, the state of a Markov chain whose stationary law is p(text)^α, normalised
    over the texts of at most `end` tokens: those that ended before, and those cut there."""

    def __init__(self, branches: Branches) -> None:
        config = branches.config
        self.text = branches.read_query()
        self._root: Sequence | None = None  # Q alone, for a model that cannot roll back to it
        if not branches.engine.rolls_back:
            self._root = self.text.sequence
            self.text.sequence = self._root.fork()
        self.end = 0
        self.proposals = self.accepted = 0
        self._branches, self._alpha = branches, config.power_alpha
        self._drawn: list[float] = []  # log q of each token
        self._sampling = dataclasses.replace(
            branches.sampling, temperature=1 / self._alpha, dynatemp_range=0.0, xtc_probability=0.0
        )
        self._rng = np.random.default_rng(derived_seed(config.seed, 0, PROPOSE))

    @property
    def figures(self) -> dict[str, float]:
        return {"proposals": self.proposals, "accepted": self.accepted}

    def extend(self, end: int) -> bool:
        """Grows the text to `end` tokens, or as far as the budget allows; False if that is less."""
        self.end = end
        wanted = end - len(self.text.tokens)
        allowed = self._branches.allowance(1, wanted)
        if not allowed or self._branches.late:
            return False
        self._drawn += self._write(self.text, allowed)
        return allowed == wanted and not self._branches.late

    def improve(self) -> bool:
        """One step of Metropolis-Hastings. False, without a change, if budget or time are up."""
        branches, text = self._branches, self.text
        at = int(self._rng.integers(len(text.tokens)))
        cost = self.cut_cost(at) + self.end - at
        if branches.late or not branches.run.affords(cost):
            return False
        proposal = self.cut(at)
        drawn = self._write(proposal, self.end - at)
        if branches.late:  # it may have been cut short
            proposal.sequence.drop()
            return False
        self.proposals += 1
        ratio = log_ratio(proposal.logprobs, text.logprobs, drawn, self._drawn[at:], self._alpha)
        if math.log(1 - self._rng.random()) < ratio:
            self.accepted += 1
            text.sequence.drop()
            self.text, self._drawn = proposal, self._drawn[:at] + drawn
        else:
            proposal.sequence.drop()
        return True

    def cut(self, n: int) -> Branch:
        """A copy of the text with its first n tokens, which may go on; it costs `cut_cost`."""
        text = self.text
        parts = text.logprobs[:n], text.entropies[:n], text.top[:n]
        return Branch(self._cut_sequence(n), text.tokens[:n], *parts)

    def cut_cost(self, n: int) -> int:
        """Positions that it takes to cut a copy to n tokens."""
        return 0 if self._root is None else n

    def _cut_sequence(self, n: int) -> Sequence:
        run, text = self._branches.run, self.text
        if n == len(text.tokens) or self._root is None:
            sequence = text.sequence.fork()
            if n < len(text.tokens):
                sequence.truncate(len(run.query) - 1 + n)
            return sequence
        sequence = self._root.fork()
        if n:
            with run.timed("rebuild"):
                run.decode([Task(sequence, [run.query[-1], *text.tokens[: n - 1]])])
                run.count(rebuild=n)
        return sequence

    def _write(self, branch: Branch, n: int) -> list[float]:
        (output,) = self._branches.grow([branch], n, self._sampling)
        drawn: list[float] = output.sampled_logprobs.tolist()
        return drawn


def log_ratio(
    new: Seq[float],
    old: Seq[float],
    new_drawn: Seq[float],
    old_drawn: Seq[float],
    alpha: float,
) -> float:
    """log of p(x')^α q(x|x') / (p(x)^α q(x'|x)), nats.

    `new` and `old` are log p of every token of x' and x, `new_drawn` and `old_drawn` log q of the
    tokens from the chosen position on. That position is one of |x|, and on the way back one of
    |x'|: q has this factor too where one of them ended early.
    """
    target = alpha * (math.fsum(new) - math.fsum(old))
    proposed = math.fsum(new_drawn) - math.log(len(old))
    back = math.fsum(old_drawn) - math.log(len(new))
    return target + back - proposed


METHOD = Method(
    "power",
    run,
    cells,
    sequences,
    positions=positions,
    about="rewrites parts of a text until it is likely as a whole",
    options=(PowerOptions,),
)
