"""Per-session attention: each session in a shared cache reads what it would read alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from engines import ENDLESS, ROUNDING, assert_same, greedy_task, text, vectors
from fixture_types import Load, Model
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Engine, Output, Session, Task
from tgr_local.system.errors import CancelledError, CapacityError

MODES = [
    {"type_k": "f32", "type_v": "f32", "flash_attn": "off"},
    {"type_k": "f16", "type_v": "f16", "flash_attn": "off"},
    {"type_k": "f16", "type_v": "f16", "flash_attn": "on"},
    {"type_k": "q8_0", "type_v": "f16", "flash_attn": "off"},
]


def bound(mode: dict[str, Any]) -> float:
    """F16 and Q8_0 caches round, and a sum in another order may fall on the other side. Flash
    attention also adds up in F16, in pieces that depend on the number of cells."""
    if mode["flash_attn"] == "on":
        return 2e-2
    return {"f32": ROUNDING, "f16": 5e-3, "q8_0": 5e-2}[mode["type_k"]]


class Reader:
    """A session with a prefix and forks that generate. Its number selects its tokens."""

    def __init__(self, engine: Engine, i: int, n_prefix: int, n_forks: int, n: int) -> None:
        self.engine, self.i, self.n_forks, self.n = engine, i, n_forks, n
        self.session: Session = engine.session(n_prefix + n_forks * (n + 2) + 1, n_forks + 1)
        self.prefix = self.session.sequence()
        self.prompt = text(i, n_prefix)
        self.read = False

    def work(self) -> list[Output]:
        if not self.read:
            self.session.run([Task(self.prefix, self.prompt)])
            self.read = True
        forks = [self.prefix.fork() for _ in range(self.n_forks)]
        injection = (
            self.session.injection(vectors(d=self.engine.n_embd)[0]) if self.i % 3 == 0 else None
        )
        outputs = self.session.run(
            [
                greedy_task(self.engine, fork, text(j, 2), n_generate=self.n, injection=injection)
                for j, fork in enumerate(forks)
            ]
        )
        for fork in forks:
            fork.drop()
        return outputs


def alone_and_together(engine: Engine, readers: list[tuple[int, int, int]], atol: float) -> None:
    """Each (prefix, forks, tokens) alone in the cache, then all at the same time."""
    n_cells = sum(prefix + forks * (n + 2) + 1 for prefix, forks, n in readers)
    engine.grow_cache(n_cells)
    alone = []
    for i, shape in enumerate(readers):
        reader = Reader(engine, i, *shape)
        alone.append(reader.work())
        reader.session.close()
    group = [Reader(engine, i, *shape) for i, shape in enumerate(readers)]
    for _ in range(2):
        for ours, theirs in zip(in_threads(*[r.work for r in group]), alone, strict=True):
            assert not isinstance(ours, BaseException), ours
            for one, other in zip(ours, theirs, strict=True):
                assert_same(one, other, atol)
    for reader in group:
        reader.session.close()


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    "readers",
    [
        [(20, 1, 12)] * 12,  # one block, one row for each session
        [(30, 4, 8)] * 5,  # one block, several rows
        [(20, 1 + i % 4, 12) for i in range(8)],  # rows to fill up
        [(10 + 17 * i, 1, 6) for i in range(12)],  # sizes that differ
        [(8 + 97 * (7 * i % 13), 1 + i % 2, 5) for i in range(13)],  # more shapes than blocks
        [(5, 2, 4), (400, 1, 4), (3, 1, 40), (90, 6, 6)],
    ],
    ids=["equal", "forks", "uneven", "sizes", "many shapes", "mixed"],
)
def test_sessions_side_by_side_read_what_each_reads_alone(
    model: Model, load: Load, mode: dict[str, Any], readers: Any
):
    shape = {"n_embd": 128, "head_dim": 32} if mode["type_k"] == "q8_0" else {}
    engine = load(model(**shape), **mode)
    alone_and_together(engine, readers, bound(mode))


@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_sessions_of_other_architectures(model: Model, load: Load, arch: str):
    engine = load(model(arch, n_head_kv=4))
    alone_and_together(engine, [(20, 1 + i % 3, 8) for i in range(6)], ROUNDING)


def test_micro_batches_cut_through_sessions(model: Model, load: Load):
    engine = load(model(), n_batch=64, n_ubatch=16)
    alone_and_together(engine, [(50, 3, 6)] * 4 + [(7, 1, 9)] * 3, ROUNDING)


@pytest.mark.parametrize("mode", MODES[:3], ids=str)
def test_a_session_in_scattered_cells_reads_the_same(
    model: Model, load: Load, mode: dict[str, Any]
):
    """With every other reservation in use, no free piece is as long as the session."""
    engine = load(model(), n_ctx=512, **mode)
    shape = (60, 3, 20)  # 127 cells
    first = Reader(engine, 0, *shape)
    alone = first.work()
    first.session.close()
    reserved = [engine.session(64, 1) for _ in range(8)]
    taken = [reserved[i] for i in (1, 3, 5, 7)]
    for session in taken:
        session.run([Task(session.sequence(), text(1, 50))])
    for i in (0, 2, 4, 6):
        reserved[i].close()
    scattered = Reader(engine, 0, *shape)
    for one, other in zip(scattered.work(), alone, strict=True):
        assert_same(one, other, bound(mode))


def test_jobs_of_one_session_cannot_exceed_its_reservation(engine: Engine):
    """Each alone would fit; what runs has a claim on the cells that it has yet to take."""
    cancel = Cancel()
    with engine.session(ENDLESS + 10, 2) as session:
        first, second = session.sequence(), session.sequence()

        def work() -> None:
            task = Task(first, [1], n_generate=ENDLESS, ignore_eog=True)
            with pytest.raises(CancelledError):
                session.run([task], cancel=cancel)

        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: engine.stats().n_jobs == 1)
        with pytest.raises(CapacityError, match=f"needs {ENDLESS + 20} cache cells"):
            session.run([Task(second, [1] * 20)])
        session.run([Task(second, [1] * 10)])
        cancel.cancel()
        thread.join()
        session.run([Task(second, [1] * 100)])  # the claim has ended with the job
