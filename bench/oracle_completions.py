"""A text that returns to one of its boundaries and is completed many times, for oracle.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local import Engine, SearchConfig
from tgr_local.engine import Injection, Output, Task
from tgr_local.engine import Sequence as Cells
from tgr_local.lab.methods import random_anchor
from tgr_local.methods import markov
from tgr_local.search import scoring
from tgr_local.search.run import Method, Run
from tgr_local.search.seeds import CHUNK, derived_seed
from tgr_local.search.steering import Steering
from tgr_local.search.trajectory import Trajectory

N_BESIDE = 3  # sequences other than the completions: the text, the query, a state
Key = tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """A text up to the end of the steered chunk."""

    tokens: tuple[int, ...]
    key: Key
    """The seeds of what follows are made of it: equal starts have the same rest."""
    ended: bool
    terms: NDArray[np.float64]
    """[2, lengths] V and P_bum of the chunk's first tokens; P_bum is NaN for fewer than three."""


class Completions(Trajectory):
    """A `markov` text that returns to one of its boundaries and is completed many times."""

    def __init__(self, run: Run, parallel: int, lengths: Sequence[int]) -> None:
        super().__init__(run, _method(parallel))
        self.parallel, self.lengths = parallel, lengths
        self._query: Cells

    def walk(self, begins: bool) -> list[tuple[int, NDArray[np.float64]]]:
        """The boundaries that may be drawn: of each the tokens before it and the state's anchor
        [d_z]. The beginning of the text alone, or the others, of a text written to its end."""
        steering = Steering(self)
        self.read_query()
        if begins:
            return [(0, steering.anchor(self.read_state()))]
        boundaries: list[tuple[int, NDArray[np.float64]]] = []
        while True:
            chunk = self.write()
            finish = self.finish(chunk)
            if finish is not None:
                return boundaries
            boundaries.append((len(self.generated), steering.anchor(self.read_state())))
            self.step(chunk, None)
            self.reset()

    def return_to(self, index: int, n_tokens: int) -> None:
        """Brings the text back to the boundary before chunk `index`, after its first n_tokens."""
        self.generated, self.run.index = self.generated[:n_tokens], index
        if n_tokens:
            self.reset()
        if self._root is not None:
            self._query = self._root
        else:
            self._query = self._main.fork()
            self._query.truncate(len(self.run.query) - 1)

    def steered(self, arms: Sequence[tuple[Injection | None, Key]]) -> list[Start]:
        """The next chunk under each arm's injection."""

        def task(arm: tuple[Injection | None, Key]) -> Task:
            injection, key = arm
            return self.run.continuation(
                self._main.fork(), self.generated, self._space(self.generated),
                self._seed(0, key), injection=injection, states=True,
            )  # fmt: skip

        def start(arm: tuple[Injection | None, Key], output: Output) -> Start:
            tokens = (*self.generated, *output.tokens.tolist())
            return Start(tokens, arm[1], output.finish == "stop", self._terms(output))

        return self._in_waves(arms, task, start)

    def texts(self, starts: Sequence[Start]) -> list[list[int]]:
        """The whole text of each start, written without injection to its end or the limit."""
        texts = {(s.tokens, s.key): list(s.tokens) for s in starts}
        ended = {(s.tokens, s.key) for s in starts if s.ended}
        for index in range(1, self.config.max_chunks):
            going = [k for k, text in texts.items() if k not in ended and self._space(text)]

            def task(name: tuple[tuple[int, ...], Key], index: int = index) -> Task:
                text = texts[name]
                tail = text[-self.config.chunk_len :]
                task = self.run.continuation(
                    self._query.fork(), text, self._space(text), self._seed(index, name[1])
                )
                return dataclasses.replace(task, feed=[self.run.query[-1], *tail])

            def take(name: tuple[tuple[int, ...], Key], output: Output) -> None:
                texts[name] += output.tokens.tolist()
                if output.finish == "stop":
                    ended.add(name)

            self._in_waves(going, task, take)
        return [texts[s.tokens, s.key] for s in starts]

    def without_reset(self, keys: Sequence[Key]) -> list[list[int]]:
        """The whole text for each key, written after all of its beginning."""
        sequence = self._query.fork()
        self.run.decode([Task(sequence, [self.run.query[-1], *self.generated[:-1]])])

        def task(key: Key) -> Task:
            n = self.config.token_limit - len(self.generated)
            return self.run.continuation(sequence.fork(), self.generated, n, self._seed(0, key))

        texts = self._in_waves(keys, task, lambda _, o: [*self.generated, *o.tokens.tolist()])
        sequence.drop()
        return texts

    def _in_waves(
        self, jobs: Sequence[Any], task: Callable[[Any], Task], take: Callable[[Any, Output], Any]
    ) -> list[Any]:
        """What `take` makes of each job and its output; `parallel` tasks in a batch."""
        results: list[Any] = []
        for first in range(0, len(jobs), self.parallel):
            part = jobs[first : first + self.parallel]
            running = [task(job) for job in part]
            outputs = self.run.decode(running)
            for t in running:
                t.sequence.drop()
            results += [take(job, output) for job, output in zip(part, outputs, strict=True)]
        return results

    def _space(self, text: Sequence[int]) -> int:
        return min(self.config.chunk_len, self.config.token_limit - len(text))

    def _seed(self, n_after: int, key: Key) -> int:
        return derived_seed(self.config.seed, self.run.index + n_after, CHUNK, *key)

    def _terms(self, output: Output) -> NDArray[np.float64]:
        terms = np.full((2, len(self.lengths)), np.nan)
        for i, length in enumerate(self.lengths):
            n = np.array([min(length, len(output.tokens))])
            terms[0, i] = scoring.foresight(output.logprobs[None], n)[0]
            if n[0] >= 3:
                terms[1, i] = scoring.bumpiness(output.states[None], n)[0]
        return terms


def _method(parallel: int) -> Method:
    """What `Completions` needs of the cache: one more sequence for Q, and those of a wave."""

    def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
        needed = markov.METHOD.cells(engine, n_query, config)
        return needed + config.token_limit + parallel * (2 * config.chunk_len + 2)

    def sequences(engine: Engine, config: SearchConfig) -> int:
        return N_BESIDE + parallel

    return dataclasses.replace(
        random_anchor.METHOD, name="oracle", cells=cells, sequences=sequences
    )
