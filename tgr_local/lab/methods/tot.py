"""``tot``: Tree of Thoughts over chunks, searched breadth first.

Yao et al., "Tree of Thoughts: Deliberate Problem Solving with Large Language Models" (NeurIPS
2023). A thought is a text of whole chunks. At each level every kept thought is continued by k
sampled chunks, and the b likeliest are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import TreeOptions
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step


def run(run: Run) -> Iterator[Step]:
    """Level after level until every kept thought has ended, then yields the best."""
    limit = _limit(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=run.config.tree_proposals) as branches:
        tree = Tree(branches)
        while tree.expand():
            pass
        yield from branches.steps(tree.best, tree.figures)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = _cells(config, _limit(engine, n_query, config))
    options = "tree_breadth", "tree_proposals"
    return cells_for(engine, n_query, n_texts, sequences(engine, config), *options)


def sequences(engine: Engine, config: SearchConfig) -> int:
    return config.tree_breadth * (1 + config.tree_proposals)


def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
    limit = _limit(engine, n_query, config)
    return n_query + n_levels(limit, config) * level_cells(limit, config)


def _limit(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return text_limit(engine, n_query, config, cells=functools.partial(_cells, config))


def _cells(config: SearchConfig, limit: int) -> int:
    """Cells of the thoughts of a level, without the query."""
    return config.tree_breadth * limit + level_cells(limit, config)


# --- shared with the graph of thoughts ---


class Tree:
    """The thoughts kept at a level, best first; `expand` makes the next level."""

    def __init__(self, branches: Branches) -> None:
        self.branches, self.config = branches, branches.config
        self.kept = [branches.read_query()]
        self.figures: dict[str, float] = {"levels": 0, "thoughts": 0}

    @property
    def best(self) -> Branch:
        """The best thought that has ended, else the best."""
        return max(self.kept, key=lambda thought: (thought.ended, thought.likelihood))

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
        allowed = branches.allowance(n_children, wanted)
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
        """Keeps the b likeliest of different thoughts."""
        first: dict[tuple[int, ...], Branch] = {}
        for thought in thoughts:
            first.setdefault(tuple(thought.tokens), thought)
        self.figures["thoughts"] += sum(thought not in self.kept for thought in first.values())
        ranked = sorted(first.values(), key=lambda thought: thought.likelihood, reverse=True)
        self.kept = ranked[: self.config.tree_breadth]
        for thought in thoughts:
            if thought not in self.kept:
                thought.sequence.drop()


def n_levels(limit: int, config: SearchConfig) -> int:
    """Levels of a tree whose thoughts grow to `limit` tokens."""
    return -(-limit // config.chunk_len)


def level_cells(limit: int, config: SearchConfig) -> int:
    """Cells of the thoughts of a new level without the kept ones, each at most `limit` tokens."""
    return config.tree_breadth * config.tree_proposals * min(config.chunk_len, limit)


METHOD = Method(
    "tot",
    run,
    cells,
    sequences,
    positions=positions,
    about="a tree of thoughts: keeps the best beginnings, chunk by chunk",
    options=(TreeOptions,),
)
