"""Attention over views: what each sequence reads of its own cells is what the unpatched library
reads of one sequence alone, however the cells lie and whoever shares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import ROUNDING, distributions, greedy_task, held, text
from families import FAMILIES, ROUNDED, Family
from fixture_types import Load, Model
from plain_llama import llama_cpp_output
from surroundings import ROOT

from tgr_local.engine import Engine, Output, Sequence, Session, Task

# with an F16 cache llama.cpp also rounds the weights of attention, with Q8_0 keys also the queries
BOUNDS = {"f32": ROUNDING, "f16": 5e-3, "q8_0": 1e-1}
GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
N = 6  # tokens that each sequence generates


class Texts:
    """Sequences of one session, each with the tokens that it holds."""

    def __init__(self, engine: Engine, n_cells: int, n_seqs: int, bound: float = 0.0) -> None:
        self.engine, self.bound = engine, bound
        self.session: Session = engine.session(n_cells, n_seqs)
        self.tokens: dict[Sequence, list[int]] = {}

    def add(self, feed: list[int], parent: Sequence | None = None) -> Sequence:
        """A new sequence, or a fork, that has read more: cells in one run."""
        sequence = parent.fork() if parent else self.session.sequence()
        self.tokens[sequence] = list(self.tokens[parent]) if parent else []
        if feed:
            self.read(sequence, feed)
        return sequence

    def read(self, sequence: Sequence, feed: list[int]) -> None:
        self.session.run([Task(sequence, feed)])
        self.tokens[sequence] += feed

    def check(self, feeds: dict[Sequence, list[int]], cache: str = "f32") -> None:
        """All read their feed and write in one job; each as the unpatched library does alone."""
        tasks = [
            greedy_task(self.engine, sequence, feed, n_generate=N)
            for sequence, feed in feeds.items()
        ]
        outputs = self.session.run(tasks)
        for (sequence, feed), output in zip(feeds.items(), outputs, strict=True):
            self.tokens[sequence] += feed
            self._compare(self.tokens[sequence], output, cache)
            self.tokens[sequence] += output.tokens.tolist()[:-1]
        assert self.engine.stats().n_whole_graphs == 0

    def _compare(self, tokens: list[int], output: Output, cache: str) -> None:
        plain, logprobs = llama_cpp_output(
            self.engine.path, tokens, N,
            cache=GGML_TYPES[cache], values=GGML_TYPES["f16" if cache == "q8_0" else cache],
            flash=False, n_batch=512, n_ctx=len(tokens) + N,
        )  # fmt: skip
        bound = max(self.bound, BOUNDS[cache])
        if bound == ROUNDING:
            assert output.tokens.tolist() == plain
        same = int(np.argmin([*(output.tokens == plain), False]))  # rounding may turn a choice
        n = min(same + 1, N)
        np.testing.assert_allclose(distributions(output)[:n], logprobs[:n], atol=bound, rtol=0)


@pytest.fixture
def texts(model: Model, load: Load) -> Iterator[Callable[..., Texts]]:
    """`texts(n_cells, n_seqs)`: a session of a small engine, closed after the test."""
    made: list[Texts] = []

    def make(
        n_cells: int, n_seqs: int, path: Path | None = None, bound: float = 0.0, **options: Any
    ) -> Texts:
        made.append(Texts(load(path or model(), **options), n_cells, n_seqs, bound))
        return made[-1]

    yield make
    for one in made:
        one.session.close()
        assert not any(held(one.engine.stats()).values())


CACHES = ["f32", "f16", "q8_0"]


def with_keys(cache: str) -> dict[str, Any]:
    return {"type_k": cache, "type_v": "f16" if cache == "q8_0" else cache}


@pytest.mark.parametrize("cache", ["f32", "f16"])
def test_a_sequence_in_several_pieces(texts: Callable[..., Texts], cache: str):
    """Two sequences take turns, so that each lies in six pieces far from each other."""
    pair = texts(2500, 2, **with_keys(cache))
    first, second = pair.add(text(0, 120)), pair.add(text(1, 150))
    for i in range(5):
        pair.read(first, text(10 + i, 130))
        pair.read(second, text(20 + i, 110 + i))
    pair.check({first: [1], second: text(2, 90)}, cache)
    pair.check({second: [3]}, cache)


@pytest.mark.parametrize("n_forks", [2, 8, 32])
def test_forks_that_share_a_text(texts: Callable[..., Texts], n_forks: int):
    """Their own cells are in one piece each, and the shared ones are read once for all."""
    family = texts(200 + n_forks * 90, n_forks + 1)
    parent = family.add(text(0, 200))
    forks = [family.add(text(1 + i, 64), parent) for i in range(n_forks)]
    family.check({fork: [i] for i, fork in enumerate(forks)})
    family.check({parent: [5], **{fork: [9] for fork in forks[1:]}})


def test_forks_with_texts_of_several_lengths(texts: Callable[..., Texts]):
    family = texts(6000, 14)
    parent = family.add(text(0, 300))
    forks = [family.add(text(1 + i, 1 + 67 * (5 * i % 11)), parent) for i in range(11)]
    grandchildren = [family.add(text(50 + i, 80), forks[4]) for i in range(2)]
    feeds = {fork: text(100 + i, 1 + i % 3) for i, fork in enumerate([*forks, *grandchildren])}
    family.check(feeds)


def test_forks_of_a_parent_that_goes_on(texts: Callable[..., Texts]):
    """The parent's cells go on where the shared ones end."""
    family = texts(1200, 4)
    parent = family.add(text(0, 100))
    forks = [family.add([], parent) for _ in range(3)]
    family.read(parent, text(1, 130))
    for i, fork in enumerate(forks):
        family.read(fork, text(2 + i, 120))
    family.check({parent: [1], forks[0]: [2], forks[1]: text(9, 40), forks[2]: [3]})


@pytest.mark.parametrize("n_query", [20, 150])
def test_forks_of_many_prompts_that_share_a_query(texts: Callable[..., Texts], n_query: int):
    """More forks than blocks, in three generations: a query, chunks, rollouts."""
    tree = texts(6_000, 90)
    query = tree.add(text(0, n_query))
    chunks = [tree.add(text(1 + i, 24 + 13 * (i % 3)), parent=query) for i in range(9)]
    rollouts = [tree.add([], parent=chunk) for chunk in chunks for _ in range(8)]
    tree.check({rollout: text(50 + i, 1) for i, rollout in enumerate(rollouts)})


@pytest.mark.parametrize("cache", CACHES)
def test_prompts_beside_writers(texts: Callable[..., Texts], model: Model, cache: str):
    path = model(n_embd=128, head_dim=32)
    mixed = texts(3500, 8, path, **with_keys(cache))
    parent = mixed.add(text(0, 130))
    writers = [mixed.add(text(1 + i, 70), parent) for i in range(4)]
    readers = [mixed.add([]) for _ in range(2)]
    feeds = {writer: [i] for i, writer in enumerate(writers)}
    feeds |= {reader: text(30 + i, 500 + 113 * i) for i, reader in enumerate(readers)}
    mixed.check(feeds, cache)


def test_prompts_that_share_their_beginning(texts: Callable[..., Texts]):
    """Read at the same time: several rows for each, at the shared cells too."""
    family = texts(2500, 10)
    parent = family.add(text(0, 260))
    forks = [family.add([], parent) for _ in range(8)]
    family.check({fork: text(1 + i, 20 + i % 2) for i, fork in enumerate(forks)})
    long = family.add([], parent)
    family.check({long: text(40, 600)})


def test_more_prompts_than_blocks(texts: Callable[..., Texts]):
    """The longest one comes last."""
    many = texts(1500, 11)
    feeds = {many.add([]): text(i, 40) for i in range(10)}
    feeds[many.add([])] = text(20, 150)
    many.check(feeds)


@pytest.mark.parametrize("n", [63, 64, 65, 127, 128, 129, 1023, 1500])
def test_lengths_around_the_padding(texts: Callable[..., Texts], n: int):
    alone = texts(n + 2 * N, 1)
    alone.check({alone.add(text(0, n - 2)): [7]})


def test_steps_use_a_graph_again(texts: Callable[..., Texts]):
    """Views that grow by a token in every step: a graph lasts until the next multiple of 64."""
    family = texts(200 + 8 * 64, 9, n_ctx=1024)
    parent = family.add(text(0, 200))
    forks = [family.add(text(1 + i, 4), parent) for i in range(8)]
    before = family.engine.stats()
    family.session.run([Task(fork, [1], n_generate=40, ignore_eog=True) for fork in forks])
    after = family.engine.stats()
    assert after.n_decodes - before.n_decodes == 40
    assert after.n_graphs - before.n_graphs <= 8


def test_the_embedded_model_never_looks_at_the_whole_cache(load: Load):
    engine = load(ROOT / "models" / "tgr-mini-q8_0.gguf", type_k="f16", type_v="f16")
    with engine.session(600, 3) as session:
        prompt = engine.tokenize("What is 12 times 12?" * 8)
        first = session.sequence()
        session.run([Task(first, prompt, n_generate=8, ignore_eog=True)])
        forks = [first.fork() for _ in range(2)]
        session.run([Task(fork, [5], n_generate=8, ignore_eog=True) for fork in forks])
    assert engine.stats().n_whole_graphs == 0


WINDOWS = [family for family in FAMILIES if family.name.startswith(("gemma", "gpt-oss"))]


@pytest.mark.parametrize("family", WINDOWS, ids=lambda family: family.name)
def test_layers_with_a_sliding_window(texts: Callable[..., Texts], family: Family, tmp_path):
    """Long enough that these layers look at a part of each view only."""
    bound = ROUNDED.get(family.name, ROUNDING)
    forks = texts(2500, 6, family.write(tmp_path / "model.gguf"), bound)
    parent = forks.add(text(0, 500))
    children = [forks.add(text(1 + i, 90 * i), parent) for i in range(4)]
    alone = forks.add(text(10, 700))
    forks.check({alone: [1], **{child: [2] for child in children}})
    forks.check({alone: text(11, 40), children[0]: [4], children[1]: text(12, 3)})


OTHERS = [family for family in FAMILIES if not (family in WINDOWS or family.recurrent)]


@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.name)
def test_other_families(texts: Callable[..., Texts], family: Family, tmp_path):
    forks = texts(1500, 4, family.write(tmp_path / "model.gguf"))
    parent = forks.add(text(0, 200))
    children = [forks.add(text(1 + i, 70), parent) for i in range(2)]
    alone = forks.add(text(10, 100))
    forks.check({alone: [1], children[0]: [2], children[1]: text(12, 30)})
