"""Bounds on the work for one token and for one call of `stats`, for texts of any length."""

from __future__ import annotations

import contextlib
import random
import re
import time
from typing import Any

import pytest
from engines import TOKENS, is_free, written
from fixture_types import Load, Model
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Engine, Sampling, Task
from tgr_local.system.errors import CancelledError

MEGABYTE = 1_000_000


def test_stats_answer_while_a_long_decode_runs(model: Model, load: Load):
    engine = load(model(), n_ctx=16384, n_batch=8192, n_ubatch=8192)
    cancel = Cancel()

    def read() -> None:
        with engine.session(8192, 1) as session, contextlib.suppress(CancelledError):
            session.run([Task(session.sequence(), [1] * 8192)], cancel=cancel)

    def ask() -> None:
        wait_until(lambda: engine.stats().n_jobs == 1)
        stats = engine.stats()
        cancel.cancel()
        if stats.n_decodes:
            pytest.skip("the decode was over before the engine was asked")
        # the values before the decode: `stats` did not wait for its end
        assert (stats.n_decodes, stats.n_jobs, stats.n_sessions) == (0, 1, 1)

    assert in_threads(read, ask) == [None, None]
    assert is_free(engine)


# --- stop texts ---


def run(engine: Engine, stop: tuple[str, ...], tail: bytes = b"") -> list[int]:
    options: dict[str, Any] = {"n_generate": 100, "ignore_eog": True, "seed": 7}
    return written(engine, TOKENS, stop=stop, tail=tail, **options).tokens.tolist()


def test_a_stop_text_ends_with_the_token_that_completes_it(engine: Engine):
    """Against the plain rule: the text so far holds it."""
    whole, rng = run(engine, ()), random.Random(0)
    texts = [engine.detokenize(whole[: n + 1]) for n in range(len(whole))]
    runs = re.findall(rb"[\x01-\x7f]{2,}", texts[-1])
    assert len(runs) > 5
    for _ in range(60):
        plain = rng.choice(runs)
        start = rng.randrange(len(plain))
        stop = plain[start : start + rng.randint(1, 8)]
        tail = rng.choice([b"", b"\x80", b"\x80" * 2000])
        words = ("never", stop.decode(), "x" * rng.choice([1, 100]) + "\x80")
        n = 1 + next(i for i, text in enumerate(texts) if stop in text)
        assert run(engine, words, tail) == whole[:n]


def test_a_stop_text_that_began_long_before_the_task(engine: Engine):
    first = engine.detokenize(run(engine, ())[:1])
    stop = "y" * MEGABYTE + first.decode()
    assert len(run(engine, (stop,), b"y" * MEGABYTE)) == 1
    assert len(run(engine, (stop,), b"y" * (MEGABYTE - 1))) == 100


def test_long_and_many_stop_texts_cost_a_token_little(engine: Engine):
    """A search through the whole text would take seconds to minutes for every token."""
    half = "\x01" * (MEGABYTE // 2)
    long = (half + "\x02", "\x02" * MEGABYTE)
    many = tuple(f"\x01stop{i}" for i in range(1000))
    (tokens,) = in_threads(lambda: run(engine, (*long, *many), half.encode() * 2))
    assert len(tokens) == 100


# --- grammars ---


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.4])
def test_a_run_that_ends_inside_a_grammar_keeps_what_it_has(engine: Engine, seconds: float):
    """The deadline ends the work of a grammar in the middle of a token."""
    heavy = Sampling(grammar="root ::= " + "[^\\x00]{0,200} " * 60)
    with engine.session(2000, 9) as session:
        tasks = [
            Task(
                session.sequence(), [1, 2], n_generate=200, sampling=heavy, ignore_eog=True, seed=i
            )
            for i in range(8)
        ]
        outputs = session.run(tasks, deadline=time.monotonic() + seconds)
        for output in outputs:
            n = len(output.tokens)
            assert n == len(output.logprobs) == len(output.entropies)
            assert (output.finish == "cancelled") == (n < 200)
        assert len(session.run([Task(session.sequence(), [1], n_generate=3)])[0].tokens) > 0
    assert is_free(engine)
