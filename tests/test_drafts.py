"""Drafts, decoded along, change no token of a text. tests/native/drafts.cpp has what is guessed and
how many guesses are decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engines import ROUNDING, TOKENS, assert_same, held, vectors
from fixture_types import Load, Model
from gguf_models import N_PLAIN, write_mamba

from tgr_local import SearchConfig, generate
from tgr_local.engine import Cancel, Engine, Output, Sampling, Session, Task
from tgr_local.engine.steered import SteeredEngine
from tgr_local.system.errors import CancelledError

REPEATED = (TOKENS[:9] * 6)[:50]
"""A prompt in which everything is said several times."""
FEW = tuple((token, 30.0) for token in TOKENS[:3])
"""A bias after which a text repeats itself, since three tokens are all that it has."""
PLAIN = Sampling(temperature=0, logit_bias=FEW)
WARM = Sampling(temperature=0.5, logit_bias=FEW)


@pytest.fixture
def session(engine: Engine) -> Iterator[Callable[..., Any]]:
    opened = []

    def make(n_cells: int = 700, n_seqs: int = 9, of: Engine = engine) -> Session:
        opened.append(of.session(n_cells, n_seqs))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def drafted(engine: Engine) -> tuple[int, int]:
    stats = engine.stats()
    return stats.n_drafted, stats.n_accepted


def both(session: Session, feed: list[int], **options: Any) -> tuple[Output, Output]:
    """The outputs of a task with drafts and without."""
    fixed: dict[str, Any] = {"n_generate": 60, "ignore_eog": True, "sampling": PLAIN}
    outputs = []
    for drafts in (True, False):
        task = Task(session.sequence(), feed, drafts=drafts, **fixed | options)
        outputs += session.run([task])
        task.sequence.drop()
    return outputs[0], outputs[1]


def drafting(session: Session, feed: list[int], **options: Any) -> Task:
    """A task with drafts."""
    fixed: dict[str, Any] = {"ignore_eog": True, "sampling": PLAIN}
    return Task(session.sequence(), feed, drafts=True, **fixed | options)


def assert_equal(ours: Output, theirs: Output) -> None:
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert (ours.finish, ours.n_decoded) == (theirs.finish, theirs.n_decoded)
    for name in ("logprobs", "sampled_logprobs", "entropies", "states", "top_logprobs"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), atol=ROUNDING, rtol=0, err_msg=name
        )
    assert theirs.n_refused == 0


@pytest.mark.parametrize("arch", ["qwen3", "llama", "phi3"])
def test_greedy_texts_are_those_without_drafts(model: Model, load: Load, session: Any, arch: str):
    engine = load(model(arch))
    with session(of=engine) as one:
        ours, theirs = both(one, REPEATED, n_generate=150, states=True, n_top=engine.n_vocab)
    assert_same(ours, theirs)
    assert_equal(ours, theirs)
    n_drafted, n_accepted = drafted(engine)
    assert n_accepted > 10
    assert n_drafted - n_accepted == ours.n_refused


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": WARM},
        {"sampling": replace(WARM, top_k=2, min_p=0.1)},
        {"sampling": replace(WARM, top_p=0.8, repeat_penalty=1.1, frequency_penalty=0.1)},
        {"sampling": WARM, "part": 7, "seeds": (5, 6, 7)},
        {"sampling": Sampling(temperature=0.4, grammar='root ::= ("a" | "ab" | "c")*')},
        {"n_generate": 1},
        {"n_generate": 2},
        {"n_generate": 17},
    ],
)  # fmt: skip
def test_sampled_texts_are_those_without_drafts(
    engine: Engine, session: Any, options: dict[str, Any]
):
    before = drafted(engine)
    with session() as one:
        for seed in range(4):
            assert_equal(*both(one, REPEATED, seed=seed, n_top=3, **options))
    if options.get("n_generate", 60) > 2:
        assert drafted(engine)[0] > before[0]


def test_a_stop_text_ends_a_text_within_its_draft(engine: Engine, session: Any):
    one = session()
    _, whole = both(one, REPEATED)
    text = engine.detokenize(whole.tokens).decode("latin-1")
    for n in range(20, 50):
        ours, theirs = both(one, REPEATED, stop=(text[n : n + 3],))
        assert_equal(ours, theirs)
    ours, theirs = both(one, REPEATED, ignore_eog=False)
    assert_equal(ours, theirs)


def test_frequencies_are_those_without_drafts(engine: Engine, session: Any):
    """Pearson's chi-square of two samples of texts, with and without drafts, of other seeds."""
    n = 300
    counts: list[dict[tuple[int, ...], int]] = [{}, {}]
    before = drafted(engine)
    for drafts in (True, False):
        one = session()
        root = one.sequence()
        one.run([Task(root, REPEATED[:-1])])
        for i in range(n):
            fork = root.fork()
            task = Task(
                fork, REPEATED[-1:], n_generate=12, sampling=WARM, drafts=drafts,
                seed=i if drafts else n + i, ignore_eog=True,
            )  # fmt: skip
            (output,) = one.run([task])
            fork.drop()
            key = tuple(output.tokens[[5, 11]].tolist())
            counts[drafts][key] = counts[drafts].get(key, 0) + 1
        one.close()
    n_drafted, n_accepted = drafted(engine)
    assert n_accepted > before[1]
    assert n_drafted - n_accepted > before[0] - before[1], "some were refused"
    kinds = sorted(set(counts[0]) | set(counts[1]))
    table = np.array([[count.get(kind, 0) for kind in kinds] for count in counts], float)
    expected = table.sum(0) / 2
    chi = float(((table - expected) ** 2 / expected).sum())
    degrees = len(kinds) - 1
    assert chi < degrees + 4 * np.sqrt(2 * degrees) + 4, (chi, table)


def test_what_was_refused_leaves_nothing_in_the_cache(engine: Engine, session: Any):
    """The text goes on as one that was read anew."""
    n_refused = 0
    for seed in range(6):
        with session() as one:
            task = drafting(one, REPEATED, n_generate=60, seed=seed, sampling=WARM)
            (output,) = one.run([task])
            n_refused += output.n_refused
            text = [*REPEATED, *output.tokens[:-1]]
            assert len(task.sequence) == len(text)
            anew = one.sequence()
            one.run([Task(anew, text)])
            more = [output.tokens[-1], *TOKENS]
            ours, theirs = one.run(
                [Task(s, more, feed_logprobs=True) for s in (task.sequence, anew)]
            )
        np.testing.assert_allclose(ours.feed_logprobs, theirs.feed_logprobs, atol=ROUNDING, rtol=0)
    assert n_refused > 0


def test_drafts_of_several_texts_in_one_batch(engine: Engine, session: Any):
    """Forks, texts without drafts and texts under an injection side by side."""

    def task(one: Session, i: int, injection: Any, drafts: bool) -> Task:
        return Task(
            one.sequence() if i % 2 else root.fork(), REPEATED[: 30 + i] if i % 2 else [5 + i],
            n_generate=30 + i, drafts=drafts, ignore_eog=True, sampling=PLAIN, states=True,
            n_top=engine.n_vocab, injection=injection if i == 3 else None,
        )  # fmt: skip

    before = drafted(engine)
    with session() as one:
        root = one.sequence()
        one.run([Task(root, REPEATED)])
        injection = one.injection(vectors()[0])
        together = one.run([task(one, i, injection, i != 2) for i in range(6)])
        alone = [one.run([task(one, i, injection, drafts=False)])[0] for i in range(6)]
    assert drafted(engine)[1] > before[1]
    for ours, theirs in zip(together, alone, strict=True):
        assert_same(ours, theirs)


def test_a_text_takes_guesses_from_another_one_of_its_session(engine: Engine, session: Any):
    one = session(1400)
    (first,) = one.run(
        [Task(one.sequence(), TOKENS, n_generate=150, sampling=PLAIN, ignore_eog=True)]
    )
    known = one.sequence()
    one.run([Task(known, [*TOKENS, *first.tokens])])
    before = drafted(engine)
    (second,) = one.run([drafting(one, TOKENS, n_generate=150)])
    assert second.tokens.tolist() == first.tokens.tolist()
    assert drafted(engine)[1] - before[1] > 20


def test_a_text_with_drafts_can_be_cancelled(engine: Engine, session: Any):
    cancel, seen = Cancel(), []

    def on_tokens(new: Any) -> None:
        seen.extend(new[0][0])
        if len(seen) > 200:
            cancel.cancel()

    with session(3500) as one, pytest.raises(CancelledError):
        one.run([drafting(one, REPEATED, n_generate=3000)], on_tokens=on_tokens, cancel=cancel)
    assert not any(held(engine.stats()).values())


def test_the_same_text_has_the_same_steps(engine: Engine, session: Any):
    counts = []
    for _ in range(3):
        before = engine.stats()
        with session() as one:
            (output,) = one.run([drafting(one, REPEATED, n_generate=80)])
        after = engine.stats()
        counts.append((after.n_decodes - before.n_decodes, output.n_refused))
    assert len(set(counts)) == 1
    assert counts[0][0] < 80


def test_positions_of_drafts_are_counted_apart(engine: Engine, session: Any):
    before, n_refused = engine.stats(), 0
    for seed in range(6):
        with session() as one:
            task = drafting(one, REPEATED, n_generate=60, seed=seed, sampling=WARM)
            (output,) = one.run([task])
            parts = list(one.run_parts(replace(task, sequence=one.sequence(), part=9)))
        assert output.n_decoded == len(REPEATED) + 59 == sum(part.n_decoded for part in parts)
        n_refused += output.n_refused + sum(part.n_refused for part in parts)
    after = engine.stats()
    assert after.n_positions - before.n_positions == 12 * (len(REPEATED) + 59)
    n_drafted, n_accepted = after.n_drafted - before.n_drafted, after.n_accepted - before.n_accepted
    assert n_drafted - n_accepted == n_refused > 0


def test_a_model_that_cannot_roll_back_gets_no_drafts(tmp_path, load: Load, session: Any):
    engine = load(write_mamba(tmp_path / "mamba.gguf"))
    feed = [t % N_PLAIN for t in REPEATED]
    with session(of=engine, n_seqs=4) as one:
        assert_equal(*both(one, feed))
    assert drafted(engine) == (0, 0)


def test_the_option_drafts_with_models_that_are_large_enough(engine: Engine, monkeypatch):
    steered = SteeredEngine(engine, logit_bias=FEW)
    off = SearchConfig(max_tokens=150, temperature=0)
    plain = generate(steered, REPEATED, off, method="base")
    before = drafted(engine)
    auto = replace(off, draft_lookup="auto")
    assert generate(steered, REPEATED, auto, method="base").tokens == plain.tokens
    assert drafted(engine) == before, "the model is small"
    monkeypatch.setattr("tgr_local.search.run.LEAST_DRAFTING", 0)
    reply = generate(steered, REPEATED, auto, method="base")
    assert reply.tokens == plain.tokens
    n_drafted, n_accepted = drafted(engine)
    assert n_accepted > before[1]
    refused = n_drafted - n_accepted - before[0] + before[1]
    assert (reply.counts.refused, reply.counts.total) == (refused, plain.counts.total)
