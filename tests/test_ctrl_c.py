"""Ctrl-C at every moment: KeyboardInterrupt leaves nothing locked that is waited for later.

Python raises it in the main thread after any call. Here a trace function does so after the first
call, in the next run after the second, and so on, until the work ends without one.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from surroundings import HANG

from tgr_local.console.dialog import until_left
from tgr_local.engine import Cancel
from tgr_local.generation.threads import streamed
from tgr_local.lab.eval.samples import Store
from tgr_local.lab.eval.sampling import Sampler
from tgr_local.system.progress import ProgressLine

# the removal of a dead thread from a WeakSet may be what is interrupted
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

START = threading.Thread.start.__code__  # Python's own, which an interruption can end otherwise
CALLS = {number for name, number in dis.opmap.items() if name.startswith("CALL")}


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


def interrupt(work: Callable[[], None], n_calls: int) -> bool:
    """Runs `work` and raises KeyboardInterrupt in it after so many calls. Whether it had them."""
    last: dict[FrameType, int] = {}  # the instruction that a frame began last
    left = n_calls

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if any(outer.f_code is START for outer in outwards(frame)):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if last.get(frame) in CALLS:
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt  # which also ends the tracing
            last[frame] = frame.f_code.co_code[frame.f_lasti]
        return trace

    before = sys.gettrace()
    if own := inspect.currentframe():
        own.f_trace_opcodes = True  # else Python 3.12 traces none in the first run
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left < 0


def interrupt_everywhere(make: Callable[[], tuple[Callable[[], None], Callable[[], None]]]) -> None:
    """`make` gives the work to interrupt and what follows, which must end."""
    failures: list[BaseException] = []

    def run() -> None:
        nonlocal n_calls
        try:
            is_interrupted = True
            while is_interrupted:
                work, then = make()
                is_interrupted = interrupt(work, n_calls)
                then()
                n_calls += 1
        except BaseException as error:
            failures.append(error)

    n_calls = 0
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive(), f"it waits forever after an interruption at call {n_calls}"
    assert not failures, failures
    assert n_calls > 3


def test_a_progress_line_is_closed_again_after_an_interruption():
    def make() -> tuple[Callable[[], None], Callable[[], None]]:
        line = ProgressLine("loading")

        def then() -> None:
            line.close()
            assert line.closed

        return line.close, then

    interrupt_everywhere(make)


def test_ctrl_c_leaves_no_dialog(capsys):
    """Not while an error, or what an earlier Ctrl-C did, is being printed either."""

    def make() -> tuple[Callable[[], None], Callable[[], None]]:
        lines, ended = iter(["/wrong", "/wrong"]), []

        def read() -> str:
            for line in lines:
                return line
            ended.append(True)
            raise EOFError

        def answer(line: str) -> None:
            raise ValueError(line)

        def then() -> None:
            assert ended

        return lambda: until_left(read, answer, lambda: "stopped", "Ctrl-D leaves"), then

    interrupt_everywhere(make)


def test_an_interrupted_stream_ends_and_its_thread_too():
    def make() -> tuple[Callable[[], None], Callable[[], None]]:
        begun, ended = threading.Event(), threading.Event()

        def write(on_event: Callable[[int], None], stop: Cancel) -> None:
            begun.set()
            for number in range(3):
                on_event(number)
            while not stop.is_set():
                time.sleep(0.001)
            ended.set()

        def work() -> None:
            with contextlib.closing(streamed(write)) as events:
                assert list(itertools.islice(events, 3)) == [0, 1, 2]

        def then() -> None:
            assert not begun.is_set() or ended.wait(HANG)

        return work, then

    interrupt_everywhere(make)


def test_a_store_of_samples_is_flushed_and_closed_after_an_interruption(tmp_path):
    numbers = itertools.count()

    def make() -> tuple[Callable[[], None], Callable[[], None]]:
        store = Store(tmp_path / str(next(numbers)))

        def then() -> None:
            with store:
                store.flush()

        return store.flush, then

    interrupt_everywhere(make)


@dataclass
class Made:
    """What `Sampler` reads of a sample and a grade."""

    key: int
    finish: str = "stop"
    text: str = ""
    cost: int = 1
    correct: bool = True
    score: float = 1.0
    answer: str = ""
    detail: str = ""
    lacks_grade: bool = False


def grade() -> Made:
    time.sleep(0.003)  # longer than it takes to make a sample, so that grades are waited for
    return Made(0)


def test_an_interrupted_evaluation_waits_for_the_samples_it_makes():
    def make() -> tuple[Callable[[], None], Callable[[], None]]:
        begun: list[int] = []
        made: list[Made] = []

        def sample(job: tuple[Any, int], *_: Any) -> Made:
            begun.append(job[1])
            time.sleep(0.001)
            made.append(Made(job[1]))
            return made[-1]

        added: list[Made] = []
        maker: Any = SimpleNamespace(begin=lambda *_: 2, make=sample)
        store: Any = SimpleNamespace(flush=lambda: None, known={}, add=added.append)
        grades: Any = SimpleNamespace(submit=lambda *_: pool.submit(grade))
        nothing: Any = SimpleNamespace(sample=lambda _: None)
        sampler = Sampler(maker, nothing, {}, store, grades, nothing)
        problem: Any = SimpleNamespace(id="p")

        def work() -> None:
            assert sampler.run([(problem, n) for n in range(6)], 1, 0) == 2
            assert sorted(one.key for one in added) == list(range(6))

        def then() -> None:
            time.sleep(0.002)  # a thread that begins now makes nothing
            assert len(begun) == len(made)

        return work, then

    with ThreadPoolExecutor(1) as pool:
        interrupt_everywhere(make)
