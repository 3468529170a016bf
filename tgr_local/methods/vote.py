"""``vote``: plain samples in waves; weighted votes for equal answers; it stops once one is sure.

Each wave of samples is written side by side, as by `base`. Every text that has ended votes for its
final answer, with a weight that says how much the text is worth. As soon as the leading answer is
likely enough, what is still being written is dropped. Of a wave only the most promising beginnings
may be written to their ends.

Sources: self-consistency (arXiv 2203.11171); stopping by a posterior: adaptive consistency (arXiv
2305.11860); votes weighted by confidence: CISC (arXiv 2502.06233); weak texts dropped early:
DeepConf (arXiv 2508.15260). The weights by a probe are `tgr_local.methods.probe`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine
from tgr_local.methods.probe import answer, features, record
from tgr_local.methods.probe.record import Probe
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import SampleOptions, VoteOptions
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step
from tgr_local.system.answers import answer_key, is_comparable
from tgr_local.system.errors import ModelError

Floats = NDArray[np.float64]

TEMPERATURE = 0.1
"""Temperature of the softmax from mean log-probabilities to votes; CISC fits it, this is ours."""
_GRID = 4001  # points of the integral of a Beta density


def run(run: Run, *, first_alone: bool = False, bar_without: float | None = None) -> Iterator[Step]:
    """Waves of samples until an answer is sure or all are written, then yields the best sample of
    the leading answer. Where no sample has an answer that can be compared, further ones are not
    written; with `first_alone` the first one says so, at the cost of one, and decides nothing
    else. `bar_without` takes the place of ``vote_bar`` once a probe does not know the texts."""
    judge = judge_of(run.engine, run.config)
    limit = _limit(run.engine, len(run.query), run.config)
    states = isinstance(judge, ByProbe)
    with Branches(run, METHOD, limit=limit, least=1, states=states) as branches:
        poll = Poll(branches, judge, first_alone=first_alone, bar_without=bar_without)
        poll.hold()
        yield from branches.steps(poll.chosen, poll.figures)


class Judge:
    """Vote weights of texts; here each has one vote."""

    cut: int = 0
    """Tokens of a beginning; 0 = a chunk."""
    figure: str = "posterior"
    """Name of its `chance`."""

    def __init__(self, drops: bool = True) -> None:
        self._drops = drops

    def promises(self, texts: Sequence[Branch]) -> list[float] | None:
        """How promising beginnings are; larger is better. None where the judge cannot say. Here the
        worst window of each, by which DeepConf drops weak texts; None unless it `drops`."""
        if not self._drops:
            return None
        return [float(features.window_means(np.array(text.logprobs)).min()) for text in texts]

    def covers(self, text: Branch) -> bool:
        """Whether the judge knows such texts."""
        return True

    def odds(self, text: Branch) -> float:
        """How good a whole text is; larger is better."""
        return text.likelihood

    def votes(self, odds: Sequence[float]) -> Floats:
        """The votes of texts with these odds."""
        return np.ones(len(odds))

    def chance(self, keys: list[str | None], odds: list[float]) -> float:
        """Chance of the leading answer, 0 … 1: `SearchConfig.vote_bar` ends the vote. Here the
        chance that the leader is the more frequent one of the two leading answers."""
        first, second, *_ = *answer.tally(keys, self.votes(odds)).values(), 0.0, 0.0
        return ahead(first, second) if first else 0.0


class ByLikelihood(Judge):
    """A text has more votes the likelier its tokens are: n softmax(mean log-probability / 0.1)."""

    def votes(self, odds: Sequence[float]) -> Floats:
        scaled = np.array(odds) / TEMPERATURE
        shares = np.exp(scaled - scaled.max())
        votes: Floats = len(odds) * shares / shares.sum()
        return votes


class ByProbe(Judge):
    """A text has more votes the likelier it is right by the model's probe."""

    figure = "chance"

    def __init__(self, probe: Probe) -> None:
        self.cut, self._probe = probe.cut, probe

    def promises(self, texts: Sequence[Branch]) -> list[float] | None:
        rows = np.array([features_of(text) for text in texts])
        judge = self._probe.beginning
        if np.mean(judge.known.covers(rows)) < 0.5:
            return None
        return [float(odds) for odds in judge.right.log_odds(rows)]

    def covers(self, text: Branch) -> bool:
        return bool(self._probe.whole.known.covers(features_of(text)[None])[0])

    def odds(self, text: Branch) -> float:
        return float(self._probe.whole.right.log_odds(features_of(text)[None])[0])

    def votes(self, odds: Sequence[float]) -> Floats:
        return answer.weights(odds)

    def chance(self, keys: list[str | None], odds: list[float]) -> float:
        """Chance that the leader is right."""
        return self._probe.chance(keys, odds)


def features_of(text: Branch) -> Floats:
    """[9 + 2 n_embd] of a text of n ≥ 1 tokens whose states were read: `CONFIDENCES`, the mean
    state, the first state."""
    assert text.first_state is not None
    own = features.confidences(text.logprobs, text.entropies)
    all_features: Floats = np.r_[own, text.mean_state, text.first_state]
    return all_features


def judge_of(engine: Engine, config: SearchConfig) -> Judge:
    """The judge that ``vote_weight`` asks for. ModelError where it asks for a probe and the model
    has none."""
    if config.vote_weight == "count":
        return Judge()
    if config.vote_weight == "likelihood":
        return ByLikelihood()
    if (probe := record.of(engine, config.probe)) is not None:
        return ByProbe(probe)
    if config.vote_weight == "probe":
        raise ModelError(
            f"{engine.path.name} has no probe ({record.place(engine.path)}); fit one with "
            "tgr-local probe fit, or set vote_weight to likelihood"
        )
    return ByLikelihood()


class Poll:
    """The texts of one vote."""

    def __init__(
        self,
        branches: Branches,
        judge: Judge,
        *,
        first_alone: bool = False,
        bar_without: float | None = None,
    ) -> None:
        self._branches, self._judge, self._config = branches, judge, branches.config
        self._first_alone, self._bar = first_alone, branches.config.vote_bar
        self._bar_without = self._bar if bar_without is None else bar_without
        self.root = branches.read_query()
        self._texts: list[Branch] = []
        """Texts that have ended."""
        self._keys: list[str | None] = []
        self._odds: list[float] = []
        self._n_covered = 0
        """Number of these texts that the judge knows."""
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
        leader = next(iter(answer.tally(self._keys, self._judge.votes(self._odds))), None)
        own = [i for i, key in enumerate(self._keys) if key == leader]
        return self._texts[max(own, key=lambda i: self._odds[i])]

    @property
    def figures(self) -> dict[str, float]:
        votes = answer.tally(self._keys, self._judge.votes(self._odds)) if self._texts else {}
        share = max(votes.values()) / sum(votes.values()) if votes else 0.0
        return {
            "samples": self._n_started,
            "dropped": self._n_dropped,
            "answers": len(votes),
            "share": share,
            "sure": float(self._is_sure),
            **({self._judge.figure: self._chance} if votes else {}),
        }

    @property
    def _is_free(self) -> bool:
        """Whether the question asks for free text, of which no sample equals another."""
        if len(self._texts) == 1 and self._first_alone:
            return not is_comparable(self._branches.text(self._texts[0].tokens))
        if self._first_alone and not self._texts and len(self._cut_off) > 1:
            return True  # no text comes to an end within its limit
        return bool(self._texts) and not any(self._keys)

    @property
    def _cut(self) -> int:
        """Tokens after which beginnings are judged."""
        return self._judge.cut or self._config.chunk_len

    @property
    def _is_sure(self) -> bool:
        least = 2 if self._first_alone and self._config.n_samples > 1 else 1
        return len(self._texts) >= least and self._chance >= self._bar

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
        keep, cut = self._config.vote_keep or n, min(self._cut, length)
        while n and min(n, keep) * length + max(0, n - keep) * cut > left:
            n -= 1
        return n

    def _wave(self, texts: list[Branch]) -> None:
        config, branches = self._config, self._branches
        self._n_started += len(texts)
        keep = config.vote_keep or len(texts)
        if keep < len(texts):
            for _ in branches.rounds(texts, self._cut):
                pass
            texts = self.kept(texts, keep)
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

    def kept(self, texts: list[Branch], n: int) -> list[Branch]:
        """The n most promising of these beginnings, and those that have ended; all of them where
        the judge cannot say."""
        if any(not text.tokens for text in texts):
            return texts  # the budget ended
        promises = self._judge.promises(texts)
        if promises is None:
            return texts
        order = sorted(range(len(texts)), key=lambda i: (texts[i].ended, promises[i]), reverse=True)
        for i in order[n:]:
            if not texts[i].ended:
                texts[i].sequence.drop()
                self._n_dropped += 1
        return [text for text in texts if not text.sequence.is_dropped]

    def count(self, ended: Iterable[Branch]) -> bool:
        """Counts the votes of texts that have ended; whether there are new ones."""
        new = [text for text in ended if text not in self._texts]
        for text in new:
            self._texts.append(text)
            self._keys.append(answer_key(self._branches.text(text.tokens)))
            self._n_covered += self._judge.covers(text)
        if 2 * self._n_covered < len(self._texts):
            self._judge, self._n_covered = ByLikelihood(drops=False), len(self._texts)
            self._bar = self._bar_without
            self._odds = []
        self._odds += [self._judge.odds(text) for text in self._texts[len(self._odds) :]]
        if new:
            self._chance = self._judge.chance(self._keys, self._odds)
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
    n_texts = (_width(config) + 1) * limit
    # which all texts share
    return min(n_texts, config.max_forward_tokens) if config.max_forward_tokens else n_texts


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
