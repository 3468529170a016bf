"""How late the event loop of examples/desktop is while replies are written, and how soon a reply
ends that is stopped.

    python bench/desktop_latency.py --conversations 8 --seconds 20 --cancels 40

It opens the program's window. A timer of the event loop measures its own delays, first while the
window is idle. "own" is a delay without the time that the system let the window's thread wait for
a processor, which Linux counts: what this thread computed, and waited for Python's lock. "computed"
is the first part alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QEventLoop, QObject, QSettings, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tgr_local.options.model_files import embedded_model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from desktop.window import Window

PERIOD_MS = 4
LIMITS = (1, 2, 4, 8, 16, 33, 100)
PARTS = ("delay", "own", "computed")
QUESTION = "Use 3, 7, 25, 50, 8, 4 to make 777"


class LoopClock(QObject):
    """How late the event loop calls a timer of `PERIOD_MS`, and why, in ms."""

    def __init__(self) -> None:
        super().__init__()
        self._timer = QTimer(self, interval=PERIOD_MS, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)
        self.clear()
        self._timer.start()

    def clear(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        """Of each tick: the delay, what was own of it, what was computed since the last one."""
        self._last = _clocks()

    def _tick(self) -> None:
        now = _clocks()
        passed, waited, computed = (b - a for a, b in zip(self._last, now, strict=True))
        delay = max(0.0, passed - PERIOD_MS)
        self.rows.append((delay, max(0.0, delay - waited), computed))
        self._last = now

    def report(self, name: str) -> None:
        for part, values in zip(PARTS, zip(*self.rows, strict=True), strict=True):
            print(histogram(f"{name}, {part}", values), flush=True)


def _clocks() -> tuple[float, float, float]:
    """Time, what this thread has waited for a processor, and what it has computed, ms."""
    return 1000 * time.perf_counter(), _waited_ms(), 1000 * time.thread_time()


def _waited_ms() -> float:
    """0 where the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6
    except (OSError, IndexError, ValueError):
        return 0.0


def histogram(name: str, delays: Sequence[float]) -> str:
    """One line: how many lie below each of the limits, and the largest ones."""
    counts, low = [], 0.0
    for high in (*LIMITS, float("inf")):
        counts.append(f"{sum(low <= delay < high for delay in delays):6}")
        low = high
    ordered = sorted(delays)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    return f"{name:30}{''.join(counts)}   {p99:6.1f} {ordered[-1]:6.1f}"


def wait(ms: int) -> None:
    """Lets the event loop run; QTest.qWait would sleep in between."""
    loop = QEventLoop()
    QTimer.singleShot(ms, loop.quit)
    loop.exec()


def until(is_done: Callable[[], object]) -> None:
    while not is_done():
        wait(2)


def ask(window: Window) -> None:
    window.conversation.messages.clear()  # the context stays small
    window.conversation.input.setPlainText(QUESTION)
    QTest.keyClick(window.conversation.input, Qt.Key.Key_Return)


def busy(window: Window, clock: LoopClock, seconds: float) -> int:
    """Keeps every conversation writing for some time; returns the number of replies."""
    n_replies, end = 0, time.monotonic() + seconds
    clock.clear()
    while time.monotonic() < end:
        for i in range(window.tabs.count()):
            if not window.tabs.widget(i).is_busy:
                window.tabs.setCurrentIndex(i)
                ask(window)
                n_replies += 1
            wait(2)
    return n_replies


def cancel(window: Window, times: int) -> list[float]:
    """Times from Esc to the moment at which the window shows the end, ms."""
    times_taken: list[float] = []
    for i in range(times):
        ask(window)
        wait(50 + 37 * i % 200)
        if not window.conversation.is_busy:  # the reply was faster
            continue
        start = time.perf_counter()
        QTest.keyClick(window.conversation.input, Qt.Key.Key_Escape)
        until(lambda: not window.conversation.is_busy)
        times_taken.append(1000 * (time.perf_counter() - start))
    return times_taken


def measure(window: Window, n_conversations: int, seconds: float, n_cancels: int) -> None:
    clock = LoopClock()
    ask(window)  # what is done once: fonts, the template's process
    until(lambda: not window.conversation.is_busy)
    clock.clear()
    wait(int(1000 * seconds / 3))
    head = "".join(f"{f'<{limit}':>6}" for limit in LIMITS)
    print(f"{'ms':30}{head}{'more':>6}   {'p99':>6} {'max':>6}")
    clock.report("idle")
    while window.tabs.count() < n_conversations:
        window.new_conversation()
    n_replies = busy(window, clock, seconds)
    clock.report(f"{n_conversations} x 8 candidates")
    print(f"{n_replies} replies began")
    for i in range(window.tabs.count()):
        window.tabs.widget(i).cancel()
    until(lambda: not any(window.tabs.widget(i).is_busy for i in range(window.tabs.count())))
    if times := cancel(window, n_cancels):
        print(
            f"cancel: median {statistics.median(times):.1f} ms, max {max(times):.1f} ms "
            f"of {len(times)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the desktop program's event loop.")
    parser.add_argument("model", nargs="?", type=Path, default=embedded_model())
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--cancels", type=int, default=20)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0002)  # as the program does
    app = QApplication(sys.argv[:1])
    app.setStyle("Fusion")
    with tempfile.TemporaryDirectory() as folder:
        window = Window(QSettings(f"{folder}/settings.ini", QSettings.Format.IniFormat))
        window.options = {"n_candidates": 8}
        ended: list[bool] = []
        window.model_changed.connect(lambda: ended.append(True))
        window.load(arguments.model)
        window.show()
        until(lambda: ended)
        if not window.engine:
            sys.exit(window.notice.text())
        measure(window, arguments.conversations, arguments.seconds, arguments.cancels)
        window.close()
        window.shut_down()


if __name__ == "__main__":
    main()
