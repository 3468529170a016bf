"""A task in parts is the same as a task for each part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines import ENDLESS, TOKENS

from tgr_local.engine import Cancel, Engine, New, Output, Sampling, Session, Task
from tgr_local.methods import get
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Run
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory
from tgr_local.system.errors import CancelledError

PART = 6
SEEDS = [11, 12, 13, 14]
ARRAYS = [
    "tokens", "logprobs", "sampled_logprobs", "entropies", "top_ids", "top_logprobs", "states",
]  # fmt: skip


def same(a: Output, b: Output) -> bool:
    return (a.finish, a.n_decoded) == (b.finish, b.n_decoded) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ARRAYS
    )


def one_by_one(engine: Engine, sampling: Sampling, n: int, stop: tuple[str, ...]) -> list[Output]:
    """A task for each part."""
    outputs: list[Output] = []
    written: list[int] = []
    with engine.session(len(TOKENS) + n, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, TOKENS[:-1])])
        for seed in SEEDS:
            text = TOKENS + written
            task = Task(
                sequence, text[-1:], n_generate=min(PART, n - len(written)), sampling=sampling,
                seed=seed, history=text[-65:-1], stop=stop, ignore_eog=True, states=True, n_top=3,
                tail=engine.detokenize(written),
            )  # fmt: skip
            outputs += session.run([task])
            written += outputs[-1].tokens.tolist()
            if outputs[-1].finish == "stop" or len(written) == n:
                break
    return outputs


def in_parts(
    session: Session, sampling: Sampling, n: int, stop: tuple[str, ...] = (), **more: Any
) -> Iterator[Output]:
    """One task for all parts."""
    sequence = session.sequence()
    session.run([Task(sequence, TOKENS[:-1])])
    task = Task(
        sequence, TOKENS[-1:], n_generate=n, sampling=sampling, seed=SEEDS[0],
        history=TOKENS[-65:-1], stop=stop, ignore_eog=True, states=True, n_top=3,
        part=PART, seeds=SEEDS[1:],
    )  # fmt: skip
    return session.run_parts(task, **more)


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize("n", [3, PART, 4 * PART, 4 * PART - 1])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7, top_k=20, repeat_penalty=1.3, presence_penalty=0.5)]
)
def test_parts_are_the_same_as_tasks(engine: Engine, sampling: Sampling, n: int, reports: bool):
    expected = one_by_one(engine, sampling, n, ())
    news: list[New] = []
    on_tokens = news.extend if reports else None
    with engine.session(len(TOKENS) + n, 1) as session:
        found = []
        for output in in_parts(session, sampling, n, on_tokens=on_tokens):
            found.append(output)
            if reports:  # those of this part, and no other ones
                assert [token for new, _ in news for token in new] == [
                    token for one in found for token in one.tokens
                ]
            time.sleep(0.01)  # the task is ahead
    assert len(found) == len(expected)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    if reports:
        tokens = [token for one in found for token in one.tokens]
        assert b"".join(text for _, text in news) == engine.detokenize(tokens)


def test_a_stop_text_across_two_parts_ends_them(engine: Engine):
    letters = Sampling(logit_bias=tuple((engine.tokenize(text)[0], 100.0) for text in "abcdefgh"))
    plain = one_by_one(engine, letters, 4 * PART, ())
    text = [engine.detokenize(output.tokens).decode() for output in plain]
    stop = (text[1][-3:] + text[2][:1],)
    expected = one_by_one(engine, letters, 4 * PART, stop)
    with engine.session(len(TOKENS) + 4 * PART, 1) as session:
        found = list(in_parts(session, letters, 4 * PART, stop))
    assert found[-1].finish == "stop"
    assert len(found) == len(expected)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_parts_end_early(engine: Engine):
    with engine.session(ENDLESS + 10, 2) as session:
        task = Task(session.sequence(), [1], n_generate=ENDLESS, ignore_eog=True, part=4)
        *parts, last = session.run_parts(task, deadline=time.monotonic() + 0.05)
        assert all((part.finish, len(part.tokens)) == ("length", 4) for part in parts)
        assert last.finish == "cancelled" and len(last.tokens) <= 4

        task.sequence.truncate(0)
        parts_of = session.run_parts(task)
        next(parts_of)
        parts_of.close()
        assert engine.stats().n_jobs == 0

        cancel = Cancel()
        task.sequence.truncate(0)
        with pytest.raises(CancelledError):
            for _ in session.run_parts(task, cancel=cancel):
                cancel.cancel()
        assert engine.stats().n_jobs == 0

        def fail(new: list[New]) -> None:
            raise ZeroDivisionError

        task.sequence.truncate(0)
        with pytest.raises(ZeroDivisionError):
            list(session.run_parts(task, on_tokens=fail))
        assert engine.stats().n_jobs == 0


def written(engine: Engine, config: SearchConfig, most: int) -> list[Step]:
    """The chunks of base, of which one task writes `most`."""
    with pytest.MonkeyPatch.context() as patch:
        plain = Trajectory.chunks
        patch.setattr(Trajectory, "chunks", lambda self: plain(self, most))
        return list(get("base").run(Run(engine, TOKENS, config)))


def test_base_writes_the_same_chunks_in_one_task(engine: Engine):
    config = SearchConfig(chunk_len=5, max_chunks=40, max_tokens=178, seed=3, top_logprobs=2)
    one_task, tasks = (written(engine, config, most) for most in (40, 1))
    assert len(one_task) == len(tasks) > 32
    for a, b in zip(one_task, tasks, strict=True):
        assert (a.index, a.finish, a.counts, a.cells) == (b.index, b.finish, b.counts, b.cells)
        assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.logprobs, b.logprobs)
        assert np.array_equal(a.entropies, b.entropies)
        assert np.array_equal(np.array(a.top_ids), np.array(b.top_ids))


def test_a_budget_ends_base_where_it_ends_single_chunks(engine: Engine):
    for budget in (len(TOKENS) + 7, len(TOKENS) + 9, len(TOKENS) + 10):
        config = SearchConfig(chunk_len=5, max_chunks=40, seed=3, max_forward_tokens=budget)
        made = [written(engine, config, most) for most in (40, 1)]
        a, b = ([(len(step.tokens), step.finish, step.counts) for step in steps] for steps in made)
        assert a == b
