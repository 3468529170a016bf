"""A toy task with its grader, and phases of it that need no process and no file of a benchmark."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from method_runs import RESIDUAL

from tgr_local.engine import Engine
from tgr_local.lab.eval import phases, samples, systems
from tgr_local.lab.eval.making import Phase
from tgr_local.lab.eval.samples import Sample, SamplePlan, Store
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.options.config import SearchConfig

SMALL = SearchConfig(chunk_len=6, max_chunks=2, n_candidates=2, rollout_len=3, **RESIDUAL)
PROBLEMS = [
    Problem("toy", name, ({"role": "user", "content": text},), None, raw=text)
    for name, text in (("a", "one"), ("b", "two and two"), ("c", "three"))
]


class EvenLengths:
    """Grades at once: right if the text has an even number of letters."""

    def submit(self, problem: Problem, text: str) -> Future[Grade]:
        future: Future[Grade] = Future()
        even = len(text) % 2 == 0
        future.set_result(Grade(even, float(even), str(len(text))))
        return future


class Recorder:
    """Records the progress, and interrupts after this many samples."""

    def __init__(self, interrupt_after: int = 10**9) -> None:
        self.samples: list[Sample] = []
        self._after = interrupt_after

    def phase(self, phase: Phase, samples: Sequence[Sample], n_total: int) -> None:
        self.n_known, self.n_total = len(samples), n_total

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) >= self._after:
            raise RuntimeError("interrupted by the test")


def toy(system: str = "tgr-latent", problems: Sequence[Problem] = PROBLEMS) -> Phase:
    chosen = systems.from_text(system)
    return Phase("toy", chosen, chosen.resolve(SMALL, 64), problems, raw=False)


class Broken(EvenLengths):
    """Gives no grade to texts for which `fails` is true, and counts the questions."""

    def __init__(self, fails: Callable[[str], bool], why: str = "grader died (SIGSEGV)") -> None:
        self._fails, self._why, self.asked = fails, why, 0

    def submit(self, problem: Problem, text: str) -> Future[Grade]:
        self.asked += 1
        future = super().submit(problem, text)
        if self._fails(text):
            future = Future()
            future.set_result(Grade(None, 0.0, None, self._why))
        return future


def go(
    engine: Engine, path: Path, phase: Phase, plan: SamplePlan, progress: Recorder | None = None,
    parallel: int = 4,
) -> tuple[dict[str, Any], dict[samples.Key, Sample]]:  # fmt: skip
    with Store(path) as store:
        recorder = progress or Recorder()
        took = phases.run_phase(engine, phase, plan, store, EvenLengths(), recorder, parallel)
    return took, {sample.key: sample for sample in samples.read(path)}


def timeless(known: dict[samples.Key, Sample]) -> dict[samples.Key, Sample]:
    """The samples without times, and without the last digits, which depend on the batch; with texts
    and choices."""
    return {
        key: dataclasses.replace(
            sample,
            seconds=0.0,
            parts={},
            logprob=None if sample.logprob is None else round(sample.logprob, 3),
            boundaries=[{"chosen": b.get("chosen")} for b in sample.boundaries],
        )
        for key, sample in sorted(known.items())
    }


def exercise(folder: Path, name: str, solution: str = "") -> None:
    """A folder with an exercise of aider's kind."""
    own = folder / "exercises" / "practice" / name
    for part in (".docs", ".meta"):
        (own / part).mkdir(parents=True)
    (own / ".docs" / "instructions.md").write_text("# Instructions\n\nDouble a number.\n")
    files = {"solution": [solution or "twice.py"], "test": ["twice_test.py"]}
    (own / ".meta" / "config.json").write_text(json.dumps({"files": files}))
    (own / "twice.py").write_text("def twice(x):\n    pass\n")
    (own / "twice_test.py").write_text(
        "import unittest\n\nfrom twice import twice\n\n\nclass TwiceTest(unittest.TestCase):\n"
        "    def test_two(self):\n        self.assertEqual(twice(2), 4)\n\n\n"
        "if __name__ == '__main__':\n    unittest.main()\n"
    )
