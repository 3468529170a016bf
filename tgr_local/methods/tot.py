"""``tot``: Tree of Thoughts over chunks, searched breadth first.

Yao et al., "Tree of Thoughts: Deliberate Problem Solving with Large Language Models" (NeurIPS
2023). A thought is a text of whole chunks. At each level every kept thought is continued by k
sampled chunks, all are valued, and the b best are kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.search import prompts
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step


def run(run: Run) -> Iterator[Step]:
    """Level after level until every kept thought has ended, then yields the best."""
    limit = _limit(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=least(run.engine, run.config)) as branches:
        tree = Tree(branches)
        while tree.expand():
            pass
        yield from branches.steps(tree.best, tree.figures)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = _cells(engine, config, _limit(engine, n_query, config))
    options = "tree_breadth", "tree_proposals", "tree_value_samples"
    return cells_for(engine, n_query, n_texts, sequences(engine, config), *options)


def sequences(engine: Engine, config: SearchConfig) -> int:
    return config.tree_breadth * (1 + config.tree_proposals * (1 + askers(config)))


def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
    limit = _limit(engine, n_query, config)
    return n_query + n_levels(limit, config) * level_cells(engine, limit, config)


def _limit(engine: Engine, n_query: int, config: SearchConfig) -> int:
    cells = functools.partial(_cells, engine, config)
    return text_limit(engine, n_query, config, extra=value_cost(engine, config), cells=cells)


def _cells(engine: Engine, config: SearchConfig, limit: int) -> int:
    """Cells of the thoughts of a level, without the query."""
    return config.tree_breadth * limit + level_cells(engine, limit, config)


# --- shared with the graph of thoughts ---


class Tree:
    """The thoughts kept at a level, best first; `expand` makes the next level."""

    def __init__(self, branches: Branches) -> None:
        self.branches, self.config = branches, branches.config
        self.kept = [branches.read_query()]
        self.figures: dict[str, float] = {"levels": 0, "thoughts": 0}
        self._values: dict[Branch, float] = {}
        self._cost = value_cost(branches.engine, self.config)

    @property
    def best(self) -> Branch:
        """The best thought that has ended, else the best."""
        return max(self.kept, key=lambda thought: (thought.ended, *self.rank(thought)))

    def expand(self) -> bool:
        """Continues every kept thought that has not ended by k sampled chunks, and selects. False
        if all have ended or the budget is spent."""
        branches = self.branches
        growing = [thought for thought in self.kept if not thought.ended]
        if not growing or branches.late:
            return False
        k = self.config.tree_proposals
        n_children = len(growing) * k
        wanted = min(self.config.chunk_len, branches.limit - len(growing[0].tokens))
        allowed = branches.allowance(n_children, wanted, n_children * self._cost)
        if not allowed:
            return False
        children = [branches.fork(thought) for thought in growing for _ in range(k)]
        for thought in growing:
            thought.sequence.drop()
        branches.grow(children, allowed)
        self.figures["levels"] += 1
        self.select([*(thought for thought in self.kept if thought.ended), *children])
        return True

    def select(self, thoughts: Sequence[Branch]) -> None:
        """Keeps the b best of different thoughts."""
        first: dict[tuple[int, ...], Branch] = {}
        for one in thoughts:
            first.setdefault(tuple(one.tokens), one)
        new = [one for one in first.values() if one not in self._values]
        self._values |= dict(zip(new, self._valued(new), strict=True))
        self.figures["thoughts"] += len(new)
        ranked = sorted(first.values(), key=self.rank, reverse=True)
        self.kept = ranked[: self.config.tree_breadth]
        for one in thoughts:
            if one not in self.kept:
                one.sequence.drop()

    @functools.cached_property
    def _turn(self) -> prompts.Turn:
        return value_turn(self.branches.engine)

    def rank(self, thought: Branch) -> tuple[float, float]:
        """What selection compares: the model's value of the thought, then its likelihood."""
        return self._values.get(thought, 0.0), thought.likelihood

    def _valued(self, thoughts: Sequence[Branch]) -> list[float]:
        """The value of each, summed over the model's replies; 0 for all when it is not asked: then
        their likelihoods decide."""
        branches, n = self.branches, askers(self.config)
        if not n or branches.late:
            return [0.0] * len(thoughts)
        turns = [self._turn.after(branches.context(thought)) for thought in thoughts]
        free = dataclasses.replace(
            branches.sampling, grammar="", edits=None
        )  # they hold for the answer alone
        replies = branches.ask(thoughts, turns, n, prompts.VALUE_TOKENS, sampling=free)
        return [
            sum(prompts.value_of(branches.text(reply.tokens.tolist())) for reply in own)
            for own in replies
        ]


def askers(config: SearchConfig) -> int:
    """Times that the model is asked for the value of a thought."""
    return config.tree_value_samples if config.tree_value == "prompt" else 0


def value_turn(engine: Engine) -> prompts.Turn:
    return prompts.Turn(engine, prompts.VALUE, thinking=False)


def value_cost(engine: Engine, config: SearchConfig) -> int:
    """Positions, and cells, that the value of one thought takes at most."""
    if not askers(config):
        return 0
    return value_turn(engine).n_tokens + askers(config) * prompts.VALUE_TOKENS


def n_levels(limit: int, config: SearchConfig) -> int:
    """Levels of a tree whose thoughts grow to `limit` tokens."""
    return -(-limit // config.chunk_len)


def level_cells(engine: Engine, limit: int, config: SearchConfig) -> int:
    """Cells of the thoughts of a new level without the kept ones, each at most `limit` tokens."""
    chunk = min(config.chunk_len, limit)
    n_children = config.tree_breadth * config.tree_proposals
    return n_children * (chunk + value_cost(engine, config))


def least(engine: Engine, config: SearchConfig) -> int:
    """Positions that the first level takes at least."""
    return config.tree_proposals * (1 + value_cost(engine, config))


METHOD = Method(
    "tot",
    run,
    cells,
    sequences,
    positions=positions,
    about="a tree of thoughts: keeps the best beginnings, chunk by chunk",
    options=(
        "tree_breadth",
        "tree_proposals",
        "tree_value",
        "tree_value_samples",
    ),
)
