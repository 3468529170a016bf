"""The memory of the cache: asked for before it is taken, and taken in steps that grow."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import EXACT, GREEDY, TOKENS, exact, generated, one_device, vectors
from fixture_types import Load, Model
from plain_llama import llama_cpp_output
from surroundings import HANG, environment

from tgr_local.engine import Cancel, Engine, Session, Task, available_memory
from tgr_local.engine.native import native
from tgr_local.lab.bench import shapes
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CapacityError

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
STATUS = Path("/proc/self/status")
SHARE = 0.9  # of the available memory that a cache may take


@pytest.fixture(autouse=True)
def truth() -> Iterator[None]:
    """The system's own answers again, whatever a test pretended."""
    yield
    native.pretend_available(None)


def taken(engine: Engine) -> int:
    memory = engine.memory()
    return memory.cache + memory.buffers


def pretend_room_for(engine: Engine, n_bytes: float) -> None:
    """As much memory as lets a cache of `n_bytes` take the place of the present one."""
    native.pretend_available(max(0, int(n_bytes / SHARE) - taken(engine)))


def loaded(path: Path, **options: object) -> Engine:
    return Engine(path, EngineConfig(**(EXACT | options)))


@pytest.mark.skipif(not ENABLED.exists(), reason="the system has no huge pages")
@one_device
def test_huge_pages_are_asked_for_the_cache(tmp_path):
    path = tmp_path / "tiny.gguf"
    shapes.write(path, shapes.SHAPES["tiny"], "q8_0")
    advised, cache = reported("report", path)
    assert advised > 0.9 * cache


@pytest.mark.skipif(
    not (STATUS.exists() and "RssAnon:" in STATUS.read_text()),
    reason="the system says nothing of it",
)
@pytest.mark.skipif(
    ENABLED.exists() and "[always]" in ENABLED.read_text(),
    reason="the system makes whole huge pages resident, with memory that nobody has used",
)
@one_device
def test_logits_of_texts_that_there_are_not_take_no_memory(model: Model):
    few, many = (reported("report_logits", model(n_extra=20_000), n) for n in (2, 200))
    before, after, logits = (more - less for more, less in zip(many, few, strict=True))
    assert logits > 10 << 20 and max(before, after) < logits / 4


def reported(function: str, path: Path, *more: int) -> list[int]:
    """The numbers that a function of `huge_pages` prints in a process of its own: in one that has
    closed an engine, memory that was advised may be used again."""
    code = f"from huge_pages import {function}; {function}(*{(str(path), *more)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return [int(one) for one in done.stdout.split()]


def test_what_is_available():
    known = available_memory()
    assert known is None or known > 1 << 20
    native.pretend_available(12345)
    assert available_memory() == 12345


@one_device
@pytest.mark.parametrize("options", [{}, {"type_k": "q8_0", "type_v": "q8_0", "flash_attn": "on"}])
@pytest.mark.parametrize("n_ctx", [256, 8192])
def test_a_cache_is_planned_as_large_as_it_is(model: Model, n_ctx: int, options: dict[str, object]):
    """No less, or the system would end the process; not much more, or memory would stay unused."""
    path = model(n_embd=128)
    with loaded(path, n_ctx=n_ctx, **options) as engine:
        needed = taken(engine)
    native.pretend_available(int(0.97 * needed / SHARE))
    with pytest.raises(CapacityError, match=rf"needs {n_ctx} cells .* MiB of RAM"):
        loaded(path, n_ctx=n_ctx, **options)
    native.pretend_available(int(1.03 * needed / SHARE))
    loaded(path, n_ctx=n_ctx, **options).close()


@one_device
def test_a_cache_far_beyond_the_memory_is_refused_without_a_plan(model: Model):
    """A plan of so many cells alone takes minutes and gigabytes."""
    native.pretend_available(64 << 20)
    with pytest.raises(CapacityError, match=rf"needs {2**31 - 1} cells .* MiB of RAM"):
        loaded(model("qwen3"), n_ctx=2**31 - 1)


def test_a_session_without_memory_is_refused_at_once(model: Model):
    """Also while others hold the cache; what is there goes on."""
    with loaded(model()) as engine, engine.session(200, 1) as session:
        before = generated_in(session)
        native.pretend_available(1 << 20)
        with pytest.raises(CapacityError, match=r"needs 100000 cells .* lower chunk_len"):
            engine.session(100_000, 1)
        assert engine.most_cells() < 20_000
        native.pretend_available(None)
        assert generated_in(session) == before


def generated_in(session: object) -> list[int]:
    sequence = session.sequence()  # type: ignore[attr-defined]
    task = Task(sequence, TOKENS[:4], n_generate=4, ignore_eog=True)
    return session.run([task])[0].tokens.tolist()  # type: ignore[attr-defined, no-any-return]


def test_a_cache_grows_by_half(model: Model):
    with loaded(model()) as engine:
        sizes = []
        for n_cells in (1000, 1100, 1500, 1600, 5000):
            engine.session(n_cells, 1).close()
            sizes.append(engine.n_ctx)
        assert sizes == [1024, 1536, 1536, 2304, 5120]
        assert len(generated(engine)) == 12
    with loaded(model(), n_ctx=256) as fixed:
        fixed.grow_cache(1000)
        assert fixed.n_ctx == 256


@one_device
def test_a_cache_grows_by_less_where_memory_is_short(model: Model):
    path = model()
    with loaded(path, n_ctx=4352) as exact, loaded(path, n_ctx=6144) as half_more:
        least, most = taken(exact), taken(half_more)
    with loaded(path) as engine:
        engine.session(4096, 1).close()
        pretend_room_for(engine, (least + most) / 2)
        engine.session(4200, 1).close()
        assert engine.n_ctx == 4352
        pretend_room_for(engine, most)
        with pytest.raises(CapacityError, match="needs 100000 cells"):
            engine.session(100_000, 1)
        assert engine.n_ctx == 4352
        assert len(generated(engine)) == 12


def test_a_cache_does_not_grow_beyond_its_bound(model: Model):
    with loaded(model()) as engine:
        engine.max_cells = 1200
        engine.session(1000, 1).close()
        engine.session(1100, 1).close()
        assert engine.n_ctx == 1280
        with pytest.raises(CapacityError, match=r"needs 1201 cells .* can have 1200"):
            engine.session(1201, 1)
        assert engine.most_cells() == 1200
        engine.max_cells = None
        engine.session(1201, 1).close()


def test_a_bounded_cache_grows_while_sessions_are_open(model: Model):
    """Their texts go on as if nothing had happened, an injection of theirs too."""
    path = model()

    def written(engine: Engine, others: int) -> list[int]:
        tokens: list[int] = []
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(engine.session(200, 1))
            sequence, steer = session.sequence(), session.injection(vectors()[0])
            feed = TOKENS[:4]
            for i in range(3):
                task = Task(
                    sequence, feed, n_generate=8, injection=steer, sampling=GREEDY, ignore_eog=True
                )
                tokens += session.run([task])[0].tokens.tolist()
                feed = tokens[-1:]
                if i < others:
                    other = stack.enter_context(engine.session(300, 1))
                    assert generated_in(other) == generated_in(other)
        return tokens

    with loaded(path) as plain:
        expected = written(plain, 0)
    with loaded(path) as engine:
        engine.max_cells = 1000
        assert written(engine, 2) == expected
        assert 700 <= engine.n_ctx <= 1024
        with engine.session(900, 1):
            request = threading.Thread(target=lambda: engine.session(300, 1).close())
            request.start()
            request.join(0.2)
            assert request.is_alive()  # beyond the bound it waits
        request.join(HANG)
        assert not request.is_alive()
    with loaded(path) as engine:
        engine.max_cells = 4000
        with engine.session(900, 1):
            n_ctx = engine.n_ctx
            native.pretend_available(0)
            request = threading.Thread(target=lambda: engine.session(900, 1).close())
            request.start()
            request.join(0.2)
            assert request.is_alive() and engine.n_ctx == n_ctx  # without memory too
            native.pretend_available(None)
        request.join(HANG)
        assert not request.is_alive()


@exact
def test_rotations_for_long_texts_do_not_change_with_the_cache(model: Model, load: Load):
    path = model("phi3", n_ctx_original=512)
    options: dict[str, Any] = {"cache": 0, "flash": False, "n_batch": 512}
    short, long = (
        llama_cpp_output(path, TOKENS[:4], 12, n_ctx=n, **options)[0] for n in (512, 4096)
    )
    assert short != long
    engine = load(path)
    with engine.session(200, 1) as session:
        sequence = session.sequence()
        task = Task(sequence, TOKENS[:4], n_generate=6, sampling=GREEDY, ignore_eog=True)
        tokens = session.run([task])[0].tokens.tolist()
        assert engine.n_ctx < 512
        engine.max_cells = 4000
        with engine.session(2000, 1):
            assert engine.n_ctx > 512
            task = Task(sequence, tokens[-1:], n_generate=6, sampling=GREEDY, ignore_eog=True)
            tokens += session.run([task])[0].tokens.tolist()
    assert tokens == long
    assert generated(load(path, n_ctx=512)) == short
    assert generated(load(path, n_ctx=4096)) == long


@pytest.mark.parametrize("options", [{}, {"reproducible": True}])
@one_device
def test_a_cache_is_given_back(model: Model, options: dict[str, object]):
    """What is remembered stays, wherever its cells lay."""

    def answered(session: Session, text: list[int]) -> tuple[int, list[int]]:
        sequence = session.sequence()
        reading = session.run([Task(sequence, text[:-1], reuse=True)])[0]
        task = Task(sequence, text[-1:], n_generate=4, sampling=GREEDY, ignore_eog=True)
        tokens = session.run([task])[0].tokens.tolist()
        session.remember(sequence)
        return reading.n_reused, tokens

    texts = [TOKENS[i:] * 6 for i in range(2)]
    with loaded(model(), prefix_cells=4096, **options) as engine:
        engine.grow_cache(3500)
        before = []
        with engine.session(3000, 1):
            for text in texts:
                with engine.session(200, 1) as session:
                    before.append(answered(session, text)[1])
            n_ctx = engine.n_ctx
            engine.shrink_cache(1000)
            assert engine.n_ctx == n_ctx  # a session is open
        kept = engine.stats().cells_remembered
        assert kept >= 256
        engine.shrink_cache(1000)
        stats = engine.stats()
        assert (stats.n_ctx, stats.cells_remembered) == (1024, kept)
        for text, tokens in zip(texts, before, strict=True):
            with engine.session(200, 1, prompt=text[:-1]) as session:
                n_reused, again = answered(session, text)
            assert again == tokens
            assert n_reused >= 64


def test_growing_ahead_stops_where_the_memory_does(model: Model):
    with loaded(model()) as engine:
        native.pretend_available(1 << 20)
        engine.grow_cache(100_000)
        assert engine.n_ctx == 256
        native.pretend_available(None)
        engine.grow_cache(1000, 2)
        assert engine.n_ctx >= 2000


def test_the_first_steered_decode_needs_no_new_buffers(model: Model):
    """Nor do norms and states: the buffers are reserved for graphs with all of our nodes."""
    path = model()
    with loaded(path, n_ctx=2048) as engine:
        before = engine.memory().buffers
        n = engine.config.n_batch
        with engine.session(2 * n, 2) as session:
            steer = session.injection(vectors()[0])
            task = Task(
                session.sequence(), TOKENS[:16] * (n // 16), n_generate=4, injection=steer,
                states=True, feed_states="last", norms=True, ignore_eog=True,
            )  # fmt: skip
            session.run([task], cancel=Cancel())
        assert engine.memory().buffers == before > 0


ROOM = """
import resource
from pathlib import Path
from tgr_local.engine import available_memory, require_address_space, start_thread
require_address_space()
def limit(bytes_left):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + bytes_left
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
limit(200 << 20)
require_address_space()
print(available_memory() >> 20 in range(120, 137))
limit(60 << 20)
for call in (require_address_space, lambda: start_thread(print)):
    try:
        call()
    except MemoryError:
        print("no room")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit of the address space")
def test_a_reserve_of_a_limited_address_space_stays():
    done = subprocess.run(
        [sys.executable, "-c", ROOM],
        capture_output=True, text=True, env=environment(), timeout=HANG,
    )  # fmt: skip
    assert done.stdout.split("\n") == ["True", "no room", "no room", ""], done.stderr
