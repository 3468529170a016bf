"""``got``: Graph of Thoughts over chunks: a tree whose thoughts are also merged and refined.

Besta et al., "Graph of Thoughts: Solving Elaborate Problems with Large Language Models" (AAAI
2024). Each level generates and keeps the b likeliest as `tot` does; then the kept thoughts are
merged into new ones (aggregation), the best is refined, and the b best of all go on.

A request to the model about its own text is the user's next turn, in the model's chat template: it
ends the reply under way, makes the request, and opens the next reply. A model without a template
gets the request in plain text. Texts are quoted as tokens, so that their length is known and their
tokens do not change.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence

from tgr_local.engine import Engine, Output, Sampling, Task
from tgr_local.lab.methods import tot
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import TreeOptions
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run, penalty_history
from tgr_local.search.seeds import ROLLOUT
from tgr_local.search.steps import Step
from tgr_local.system.think_tags import CLOSE_THINK, CLOSING, OPEN_THINK

REFINE = (
    "Check the solution above, correct its mistakes and improve it. Write the improved solution "
    "from the beginning."
)
_FORCED = 1e30  # a logit bias that only one token has
_QUOTE, _REPLY = "[[a quoted text]]", "[[the reply so far]]"


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
        best, *rest = self.kept
        if rest:
            ends = self.branches.engine.end_tokens
            quoted = [[token for token in t.tokens if token not in ends] for t in rest]
            request = merge_request(len(rest))
            self._rewrite(best, request, quoted, "merges")

    def refine(self) -> None:
        """Tries a refinement of the best thought."""
        self._rewrite(self.kept[0], REFINE, [], "refinements")

    def _rewrite(self, best: Branch, request: str, quoted: list[list[int]], what: str) -> None:
        """Asks for a new thought after the best one, decodes it again as a text after the query,
        which makes its likelihood comparable, and selects. Does nothing that the budget cannot pay.
        """
        branches = self.branches
        asked = UserTurn(branches.engine, request, thinking=self.config.thinking)
        turn = asked.after(branches.context(best), quoted)
        length = max(len(thought.tokens) for thought in self.kept)
        cost = len(turn) + 2 * length + 1
        if branches.late or not branches.run.affords(cost):
            return
        reply = self.ask(best, turn, length)
        if branches.late:
            return
        self.figures[what] += 1
        self.select([*self.kept, self._reread(reply)])

    def ask(self, branch: Branch, turn: Sequence[int], n_tokens: int) -> Output:
        """Appends a turn to a copy of the text and samples a reply to it of at most n_tokens. The
        text does not change."""
        branches, run = self.branches, self.branches.run
        context = branches.context(branch)
        # the turn itself ends a text that has no end token
        asked = [*(context[:-1] if context[-1] in branches.engine.end_tokens else context), *turn]
        with run.timed("chunk"):
            sequence = branch.sequence.fork()
            (read,) = run.decode([Task(sequence, asked[len(context) - 1 : -1])])
            run.count(discarded=read.n_decoded)
        task = Task(
            sequence,
            asked[-1:],
            n_generate=n_tokens,
            sampling=branches.sampling,
            seed=branches.seed(ROLLOUT, 0),
            history=penalty_history(asked, branches.sampling),
            stop=self.config.stop,
            n_top=run.n_top,
        )
        (output,) = branches.generate([task])
        sequence.drop()
        return output

    def _reread(self, output: Output) -> Branch:
        """The text of a reply, decoded again as a text of its own after the query."""
        run = self.branches.run
        with run.timed("rebuild"):
            branch = self.branches.fork(self._root)
            tokens = output.tokens.tolist()
            task = Task(
                branch.sequence,
                [run.query[-1], *tokens[:-1]],
                feed_logprobs=True,
                n_generate=1,  # the last token, which is not decoded
                sampling=Sampling(0.0, logit_bias=((tokens[-1], _FORCED),)),
            )
            (again,) = run.decode([task])
            branch.tokens = tokens
            branch.logprobs = [*again.feed_logprobs.tolist(), *again.logprobs.tolist()]
            branch.entropies = output.entropies.tolist()
            branch.top = list(zip(output.top_ids, output.top_logprobs, strict=True))
            branch.ended = output.finish == "stop"
            run.count(rebuild=again.n_decoded)
        return branch


def _limit(engine: Engine, n_query: int, config: SearchConfig) -> int:
    # the longest text of all: the best thought, the turn that quotes the others, the reply
    times, extra = 1 + config.tree_breadth, _turn_tokens(engine, config)
    cells = functools.partial(_cells, engine, config)
    return text_limit(engine, n_query, config, times=times, extra=extra, cells=cells)


def _turn_tokens(engine: Engine, config: SearchConfig) -> int:
    """Tokens of the turns that ask for new thoughts at most, without the quoted texts."""
    requests = merge_request(config.tree_breadth - 1), REFINE
    turns = [UserTurn(engine, request, thinking=config.thinking) for request in requests]
    return max(turn.n_tokens for turn in turns)


# --- requests about the texts ---


def merge_request(n_others: int) -> str:
    """Asks for the merger of the reply with n_others texts, which are to be quoted."""
    others = f"Another attempt at the same question:\n\n{_QUOTE}\n\n" * n_others
    return (
        f"{others}Combine what is right in these attempts and in yours into one better solution. "
        "Write it from the beginning."
    )


class UserTurn:
    """A request as the user's next turn, ready to follow any context.

    `thinking` lets the reply to it open a thinking block.
    """

    def __init__(self, engine: Engine, request: str, *, thinking: bool) -> None:
        self._engine = engine
        self._pieces = _pieces(engine, request, thinking)
        self._closing = engine.tokenize(CLOSING)

    @property
    def n_tokens(self) -> int:
        """Maximum number of its tokens, without the quoted texts."""
        return len(self._closing) + sum(map(len, self._pieces))

    def after(self, context: Sequence[int], quoted: Sequence[Sequence[int]] = ()) -> list[int]:
        """Returns its tokens after the query and the reply so far, with the quoted texts inserted.
        A thinking block that is open there is closed first."""
        first, *rest = self._pieces
        tokens = [*self._closing, *first] if _thinks(self._engine, context) else list(first)
        for text, piece in zip(quoted, rest, strict=True):
            tokens += [*text, *piece]
        return tokens


_known: weakref.WeakKeyDictionary[Engine, dict[tuple[str, bool, str], list[list[int]]]] = (
    weakref.WeakKeyDictionary()
)


def _pieces(engine: Engine, request: str, thinking: bool) -> list[list[int]]:
    """The tokens of the turn, cut where texts are quoted; a template is rendered once for each
    request, however many turns are made of it."""
    known = _known.setdefault(engine, {})
    key = (request, thinking, engine.chat_template)
    if key not in known:
        known[key] = [engine.tokenize(part) for part in _parts(engine, request, thinking)]
    return known[key]


def _parts(engine: Engine, request: str, thinking: bool) -> list[str]:
    """The text of the turn, cut where texts are quoted."""
    text = f"\n\n{request}\n\n"
    if engine.chat_template:
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": request},
        ]
        rendered = engine.chat_prompt(messages, thinking=thinking)
        if _REPLY in rendered:  # else the template rewrites the assistant's text
            text = rendered.rpartition(_REPLY)[2]
    return text.split(_QUOTE)


def _thinks(engine: Engine, context: Sequence[int]) -> bool:
    text = engine.detokenize(context, special=True)
    return text.rfind(OPEN_THINK.encode()) > text.rfind(CLOSE_THINK.encode())


METHOD = Method(
    "got",
    run,
    cells,
    sequences,
    positions=positions,
    about="the same, and merges and refines thoughts",
    options=(TreeOptions,),
)
