"""A double of the model and of the tests for the code assistant.

The model's answers are a script; the tests of a project of one file `calc.py` are a function of its
text. Nothing is decoded and no program is run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fake_engine import FakeEngine, fake_step
from surroundings import HANG

from tgr_local import generation, methods
from tgr_local.code.edits import Change, FileText
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.rounds import CodeTask, TaskOutcome, solve
from tgr_local.code.writing import departures
from tgr_local.code.writing.candidates import Judge
from tgr_local.code.writing.departures import Departure, FoundDepartures
from tgr_local.engine import Cancel
from tgr_local.generation import Query, Reply, TextDelta
from tgr_local.options.config import CodeConfig, SearchConfig
from tgr_local.system.errors import CancelledError

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a + b\n"
RIGHT = CALC.replace("a - b", "a + b").replace("return a + b\n\n\n", "RIGHT").replace(
    "    return a + b\n", "    return a - b\n"
).replace("RIGHT", "return a + b\n\n\n")  # fmt: skip
HALF = CALC.replace("a - b", "a + b")
WAIT = "wait"
"""An answer that never comes."""


def answer(text: str) -> str:
    """An answer of the form ``file`` that replaces calc.py."""
    return f"calc.py\n```python\n{text}```\n"


class Coder(FakeEngine):
    """A model with a long context whose answers are those of a script, round after round."""

    n_ctx_train = 8000

    def __init__(self, *rounds: Sequence[str]) -> None:
        super().__init__("coder.gguf")
        self.metadata = {}
        self.rounds = list(rounds)
        self.prompts: list[str] = []
        """What the model read in each round."""
        self.begun: list[list[str]] = []
        """The beginnings of the answers of each round."""
        self.departures: list[str] = []
        """Beginnings of the code that answers depart with; none = all answers are free."""
        self.configs: list[SearchConfig] = []
        self.verbatim: list[bool] = []
        """Whether think tags are text in each round."""
        self.kept: list[int] = []
        """The tokens that are kept for an answer in each round."""

    def chat_prompt(self, messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        return "".join(f"[{m['role']}]\n{m['content']}" for m in messages)


def query_tokens(engine: Coder, messages: Any, config: SearchConfig, **_: Any) -> list[int]:
    return list(engine.chat_prompt(messages).encode())


def find(engine: Coder, copies: Any, n: int, tried: Any, cancel: Cancel) -> FoundDepartures:
    """The departures of the script, but for those that were tried."""
    scripted = [
        Departure(copies[0], [*copies[0].tokens, 1], copies[0].opening + text, -1.0)
        for text in engine.departures
    ]
    return FoundDepartures(tuple(d for d in scripted if d.text not in tried)[:n], 50)


def generate_each(
    engine: Coder, prompts: Sequence[Any], config: SearchConfig, **how: Any
) -> list[Reply]:
    """The replies of the script's next round, in their order, each in a thread of its own."""
    k = len(prompts)
    assert how["apart"]  # so that each has a seed of its own
    free = [prompt for prompt in prompts if not isinstance(prompt, Query)]
    engine.prompts.append(bytes(free[0]).decode() if free else "")
    engine.begun.append([p.begun if isinstance(p, Query) else "" for p in prompts])
    engine.configs.append(config)
    engine.verbatim.append(how["verbatim"])
    engine.kept.append(how["answer_tokens"])
    cancel: Cancel = how["cancel"]
    texts = engine.rounds[len(engine.prompts) - 1]
    replies: dict[int, Reply] = {}

    def reply(index: int, text: str, finish: Any = "stop") -> Reply:
        step = fake_step(0, text, finish, search=False)
        return Reply(
            text, "", list(text.encode()), finish, [step], step.counts, 0.5,
            config.seed + index, "base",
        )  # fmt: skip

    def write(index: int, text: str) -> None:
        if text == WAIT:
            with cancel.watched(stopped.set):
                if not cancel.is_set():
                    stopped.wait(HANG)
            replies[index] = reply(index, "calc.py\n", "cancelled")
            return
        said = ""
        for line in text.splitlines(keepends=True):
            said += line
            how["on_event"](index, TextDelta(line, "answer"))
            if how["until"] and how["until"](index, line):
                break
        replies[index] = reply(index, said)
        how["on_event"](index, replies[index])

    stopped = threading.Event()
    threads = [threading.Thread(target=write, args=(i, texts[i % len(texts)])) for i in range(k)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if cancel.is_set() and any(r.finish == "cancelled" for r in replies.values()):
        error = CancelledError("cancelled")
        error.replies = [replies[i] for i in sorted(replies)]
        raise error
    return [replies[i] for i in range(k)]


def verdict(text: str) -> Verdict:
    """What the tests of calc.py say about its text."""
    try:
        names: dict[str, Any] = {}
        exec(text, names)
        results = {"add": names["add"](2, 1) == 3, "sub": names["sub"](2, 1) == 1}
    except Exception as error:
        return make_verdict(False, 0, 0, 1, f"{type(error).__name__}\n")
    failed = [name for name, ok in results.items() if not ok]
    output = "".join(f"calc.py:1: {name} is wrong\n" for name in failed)
    return make_verdict(True, 2 - len(failed), len(failed), 0, output)


def make_verdict(ran: bool, passed: int, failed: int, errors: int, output: str) -> Verdict:
    ended: Any = "failed" if failed or errors else "passed"
    return Verdict(ran, passed, failed, errors, 0, 0.25, output, ended, framework="pytest")


def judge(changes: Sequence[Change], cancel: Cancel) -> Verdict:
    texts = {change.path: change.after for change in changes}
    return verdict(texts.get("calc.py", CALC))


class Followed:
    """A listener that remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.states: dict[int, list[str]] = {}

    def baseline(self, verdict: Verdict) -> None:
        self.heard.append(f"before {verdict.passed}")

    def context(self, context: Any, form: str) -> None:
        self.heard.append(f"context {form}")

    def round_begins(self, number: int, candidates: Sequence[Candidate]) -> None:
        self.heard.append(f"round {number}: {[c.number for c in candidates]}")

    def update(self, candidate: Candidate, text: str) -> None:
        self.states.setdefault(candidate.number, []).append(candidate.state)

    def round_ends(self, outcome: TaskOutcome) -> None:
        self.heard.append(f"best {outcome.ranked[0].number}")

    def adopts(self, candidate: Candidate) -> None:
        self.heard.append(f"adopts {candidate.number}")


class Climber(Followed):
    """Whoever begins with another edit departs from the code as that leaves it."""

    def __init__(self, coder: Coder, then: dict[int, str]) -> None:
        super().__init__()
        self.coder, self.then = coder, then

    def adopts(self, candidate: Candidate) -> None:
        super().adopts(candidate)
        self.coder.departures = [self.then[candidate.number]] * 2


def carry_out(
    put: Callable[[Any, str, Any], None],
    coder: Coder,
    text: str = "Make the tests pass.",
    *,
    tests: str = "pytest",
    by: Judge = judge,
    read: Callable[[str], FileText | None] | None = None,
    paths: Sequence[str] = ("calc.py",),
    named_paths: tuple[str, ...] = (),
    listener: Any = None,
    cancel: Cancel | None = None,
    **options: Any,
) -> TaskOutcome:
    """The outcome of a task with these answers."""
    put(generation, "generate_each", generate_each)
    put(departures, "find", find)
    put(generation, "query_tokens", query_tokens)
    documents = {"calc.py": FileText("calc.py", CALC)}
    task = CodeTask(text, paths, read or documents.get, by, tests, named_paths=named_paths)
    code = CodeConfig(**{"candidates": 2, "rounds": 1, "constrained": False} | options)
    config = SearchConfig(seed=42, max_tokens=np.int32(400).item())
    listener = listener or Followed()
    return solve(coder, task, config, methods.get("base"), code, listener, cancel)  # type: ignore[arg-type]


Solve = Callable[..., TaskOutcome]
"""The type of the fixture `solved`."""


def install(put: Callable[[Any, str, Any], None], coder: Coder) -> None:
    """Puts the model and the tests in place of the real ones, for every command of the process."""
    from tgr_local.code.workplace import Workplace
    from tgr_local.engine import installation
    from tgr_local.options import model_files
    from tgr_local.system.sandbox import commands

    put(commands, "defect", lambda kind: "")  # as no program is run, no sandbox is needed
    put(model_files, "find", Path)
    put(installation, "load_with_progress", lambda *_, **__: coder)
    put(generation, "generate_each", generate_each)
    put(departures, "find", find)
    put(generation, "query_tokens", query_tokens)
    put(Workplace, "judge", lambda self, changes, cancel: judge(changes, cancel))


def installed(*rounds: Sequence[str]) -> str:
    """Code that begins a process with a model whose rounds have these answers."""
    return f"import fake_coder; fake_coder.install(setattr, fake_coder.Coder(*{rounds!r}))"
