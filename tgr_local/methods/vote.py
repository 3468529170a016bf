"""``vote``: plain samples in waves; weighted votes for equal answers; it stops once one is sure.

Each wave of samples is written side by side, as by `base`. Every text that has ended votes for its
final answer, with a weight that says how much the text is worth. As soon as the leading answer is
likely enough, what is still being written is dropped.

Sources: self-consistency (arXiv 2203.11171); stopping by a posterior: adaptive consistency (arXiv
2305.11860); votes weighted by confidence: CISC (arXiv 2502.06233).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import SampleOptions, VoteOptions
from tgr_local.search.branches import Branch, Branches, cells_for, cells_of_texts, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step
from tgr_local.system.answers import answer_key, is_comparable

Floats = NDArray[np.float64]

TEMPERATURE = 0.1
"""Temperature of the softmax from mean log-probabilities to votes; CISC fits it, this is ours."""
_GRID = 4001  # points of the integral of a Beta density


def run(run: Run, *, first_alone: bool = False) -> Iterator[Step]:
    """Waves of samples until an answer is sure or all are written, then yields the best sample of
    the leading answer. Where no sample has an answer that can be compared, further ones are not
    written; with `first_alone` the first one says so, at the cost of one, and decides nothing
    else."""
    limit = _limit(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=1) as branches:
        poll = Poll(branches, first_alone=first_alone)
        poll.hold()
        yield from branches.steps(poll.chosen, poll.figures)


def votes_of(likelihoods: Sequence[float], weight: str) -> Floats:
    """[n] the votes of texts with these mean log-probabilities, by `VoteOptions.vote_weight`: 1
    each, or n softmax(mean log-probability / 0.1)."""
    if weight == "count":
        return np.ones(len(likelihoods))
    scaled = np.array(likelihoods) / TEMPERATURE
    shares = np.exp(scaled - scaled.max())
    votes: Floats = len(likelihoods) * shares / shares.sum()
    return votes


def tally(keys: Sequence[str | None], votes: Sequence[float] | Floats) -> dict[str, float]:
    """The sum of votes of every answer, the leader first; equal ones in the order in which they
    came. A text without an answer does not vote."""
    sums: dict[str, float] = {}
    for key, vote in zip(keys, votes, strict=True):
        if key is not None:
            sums[key] = sums.get(key, 0.0) + float(vote)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


class Poll:
    """The texts of one vote."""

    def __init__(self, branches: Branches, *, first_alone: bool = False) -> None:
        self._branches, self._config = branches, branches.config
        self._first_alone = first_alone
        self.root = branches.read_query()
        self._texts: list[Branch] = []
        """Texts that have ended."""
        self._keys: list[str | None] = []
        self._cut_off: list[Branch] = []
        """Texts that a limit ended."""
        self._n_started = self._n_dropped = 0
        self._chance = 0.0

    def hold(self) -> None:
        """Writes wave after wave until the vote is decided."""
        while not (self._is_sure or self._is_free or self._branches.late) and (n := self._next()):
            self._wave([self._branches.fork(self.root) for _ in range(n)])

    @property
    def chosen(self) -> Branch:
        """The best text of the leading answer; without an answer the best text that has ended,
        else the likeliest one."""
        if not self._texts:
            return max([*self._cut_off, self.root], key=lambda text: text.likelihood)
        leader = next(iter(self._votes), None)
        own = (text for text, key in zip(self._texts, self._keys, strict=True) if key == leader)
        return max(own, key=lambda text: text.likelihood)

    @property
    def figures(self) -> dict[str, float]:
        votes = self._votes
        share = max(votes.values()) / sum(votes.values()) if votes else 0.0
        return {
            "samples": self._n_started,
            "dropped": self._n_dropped,
            "answers": len(votes),
            "share": share,
            "sure": float(self._is_sure),
            **({"posterior": self._chance} if votes else {}),
        }

    @property
    def _votes(self) -> dict[str, float]:
        """The sum of votes of every answer so far, the leader first."""
        if not self._texts:
            return {}
        likelihoods = [text.likelihood for text in self._texts]
        return tally(self._keys, votes_of(likelihoods, self._config.vote_weight))

    @property
    def _is_free(self) -> bool:
        """Whether the question asks for free text, of which no sample equals another."""
        if len(self._texts) == 1 and self._first_alone:
            return not is_comparable(self._branches.text(self._texts[0].tokens))
        if self._first_alone and not self._texts and len(self._cut_off) > 1:
            return True  # no text comes to an end within its limit
        return bool(self._texts) and not any(self._keys)

    @property
    def _is_sure(self) -> bool:
        least = 2 if self._first_alone and self._config.n_samples > 1 else 1
        return len(self._texts) >= least and self._chance >= self._config.vote_bar

    def _next(self) -> int:
        """Texts of the next wave: as many as the options and the budget allow. Under a budget the
        first text is alone, since nothing is known of its length."""
        n, left = self._config.vote_wave, self._branches.run.left
        if self._first_alone:
            n = max(1, n - 1) if self._n_started == 1 else n if self._n_started else 1
        n = min(n, self._config.n_samples - self._n_started)
        if left is None or n < 1:
            return max(0, n)
        if not self._n_started:
            return 1
        lengths = [len(text.tokens) for text in (*self._texts, *self._cut_off)]
        if not lengths:
            return 0  # the budget paid for no token
        length = float(np.mean(lengths))
        while n and n * length > left:
            n -= 1
        return n

    def _wave(self, texts: list[Branch]) -> None:
        branches = self._branches
        self._n_started += len(texts)
        for _ in branches.rounds(texts):
            is_new = self.count(text for text in texts if text.ended)
            if is_new and (self._is_sure or branches.late):  # free text is known by a whole wave
                break
        self.count(text for text in texts if text.ended)
        for text in texts:
            if not text.ended:
                self._n_dropped += self._is_sure
                if not self._is_sure and text.tokens:
                    self._cut_off.append(text)
        kept = self.chosen  # the others' cells are free for the next wave
        for text in (*texts, *self._texts, *self._cut_off):
            if text is not kept:
                text.sequence.drop()

    def count(self, ended: Iterable[Branch]) -> bool:
        """Counts the votes of texts that have ended; whether there are new ones."""
        new = [text for text in ended if text not in self._texts]
        self._texts += new
        self._keys += [answer_key(self._branches.text(text.tokens)) for text in new]
        if new:
            first, second, *_ = *self._votes.values(), 0.0, 0.0
            self._chance = ahead(first, second) if first else 0.0
        return bool(new)


def ahead(first: float, second: float) -> float:
    """P(x > 1/2) of x ~ Beta(first + 1, second + 1): the chance that the answer with `first` votes
    is the more frequent one of two, after a uniform prior. Votes may be fractions."""
    x = np.linspace(0, 1, _GRID)[1:-1]
    logs = first * np.log(x) + second * np.log1p(-x)
    density = np.exp(logs - logs.max())
    half = x > 0.5
    middle = density[len(x) // 2] / 2  # of the point 1/2 each side has one half
    return float((density[half].sum() + middle) / density.sum())


def _limit(engine: Engine, n_query: int, config: SearchConfig) -> int:
    """Tokens of a text at most."""
    return text_limit(engine, n_query, config, cells=partial(_cells, config))


def _cells(config: SearchConfig, limit: int) -> int:
    """Cells of the texts of a wave and the best one before, without the query."""
    return cells_of_texts(config, _width(config) + 1, limit)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = _cells(config, _limit(engine, n_query, config))
    return cells_for(engine, n_query, n_texts, sequences(engine, config), "vote_wave")


def sequences(engine: Engine, config: SearchConfig) -> int:
    return _width(config) + 2  # the query alone, and the best text so far


def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return n_query + config.n_samples * (_limit(engine, n_query, config) + 1)


def _width(config: SearchConfig) -> int:
    """Texts that are written at a time."""
    return min(config.vote_wave, config.n_samples)


METHOD = Method(
    "vote",
    run,
    cells,
    sequences,
    positions=positions,
    about="writes texts in waves until one answer leads clearly",
    options=(SampleOptions, VoteOptions),
)
