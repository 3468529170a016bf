"""``got``: Graph of Thoughts over chunks: a tree whose thoughts are also merged and refined.

Besta et al., "Graph of Thoughts: Solving Elaborate Problems with Large Language Models" (AAAI
2024). Each level generates and keeps the b likeliest as `tot` does; then the kept thoughts are
merged into new ones (aggregation), the best is refined, and the b best of all go on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tgr_local.engine import Engine
from tgr_local.methods import tot
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import TreeOptions
from tgr_local.search import prompts
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step


def run(run: Run) -> Iterator[Step]:
    """Level after level until every kept thought has ended, then yields the best."""
    limit = _limit(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=run.config.tree_proposals) as branches:
        graph = Graph(branches)
        while graph.expand():
            graph.merge()
            graph.refine()
        yield from branches.steps(graph.best, graph.figures)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = _cells(engine, config, _limit(engine, n_query, config))
    options = "tree_breadth", "tree_proposals"
    return cells_for(engine, n_query, n_texts, sequences(engine, config), *options)


def _cells(engine: Engine, config: SearchConfig, limit: int) -> int:
    """Cells of the thoughts of a level, without the query."""
    merging = (config.tree_breadth + 1) * limit + _turn_tokens(engine, config)
    return config.tree_breadth * limit + max(tot.level_cells(limit, config), merging)


def sequences(engine: Engine, config: SearchConfig) -> int:
    return 1 + tot.sequences(engine, config)  # also the query alone


def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
    limit = _limit(engine, n_query, config)
    # each new thought is written after a turn that may quote all others, and decoded again
    turn = _turn_tokens(engine, config) + config.tree_breadth * limit
    level = tot.level_cells(limit, config) + 2 * (turn + 2 * limit + 1)
    return n_query + tot.n_levels(limit, config) * level


class Graph(tot.Tree):
    """The kept thoughts; `merge` and `refine` add one each."""

    def __init__(self, branches: Branches) -> None:
        super().__init__(branches)
        self._root = branches.fork(self.kept[0])
        self.figures |= {"merges": 0, "refinements": 0}

    def merge(self) -> None:
        """Tries a merger of all kept thoughts: the best one is the reply, the others are quoted."""
        best, *others = self.kept
        if others:
            quoted = [self._quotable(other) for other in others]
            request = prompts.merge_request(len(others))
            self._rewrite(best, request, quoted, "merges")

    def refine(self) -> None:
        """Tries a refinement of the best thought."""
        self._rewrite(self.kept[0], prompts.REFINE, [], "refinements")

    def _rewrite(self, best: Branch, request: str, quoted: list[list[int]], what: str) -> None:
        """Asks for a new thought after the best one, decodes it again as a text after the query,
        which makes its likelihood comparable, and selects. Does nothing that the budget cannot pay.
        """
        branches = self.branches
        asked = prompts.Turn(branches.engine, request, thinking=self.config.thinking)
        turn = asked.after(branches.context(best), quoted)
        length = max(len(thought.tokens) for thought in self.kept)
        cost = len(turn) + 2 * length + 1
        if branches.late or not branches.affords(cost):
            return
        reply = branches.ask(best, turn, length, stop=self.config.stop)
        if branches.late:
            return
        self.figures[what] += 1
        self.select([*self.kept, branches.reread(self._root, reply)])

    def _quotable(self, thought: Branch) -> list[int]:
        return [token for token in thought.tokens if token not in self.branches.engine.end_tokens]


def _limit(engine: Engine, n_query: int, config: SearchConfig) -> int:
    # the longest text of all: the best thought, the turn that quotes the others, the reply
    times, extra = 1 + config.tree_breadth, _turn_tokens(engine, config)
    cells = functools.partial(_cells, engine, config)
    return text_limit(engine, n_query, config, times=times, extra=extra, cells=cells)


def _turn_tokens(engine: Engine, config: SearchConfig) -> int:
    """Tokens of the turns that ask for new thoughts at most, without the quoted texts."""
    requests = prompts.merge_request(config.tree_breadth - 1), prompts.REFINE
    turns = [prompts.Turn(engine, one, thinking=config.thinking) for one in requests]
    return max(turn.n_tokens for turn in turns)


METHOD = Method(
    "got",
    run,
    cells,
    sequences,
    positions=positions,
    about="the same, and merges and refines thoughts",
    options=(TreeOptions,),
)
