"""A task under way, as an editor shows it: a plan, tool calls, thoughts.

In: what a `Listener` hears. Out: updates. The text of one candidate of a round is shown as it is
written, all of them as a table. What is said at the end, and the edit, are the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Literal

from acp import helpers, schema

from tgr_local.code import edits, table
from tgr_local.code.acp.editor import Editor
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import ranked
from tgr_local.code.reading.context import Context
from tgr_local.code.reading.prompt import Form
from tgr_local.code.report import context_lines
from tgr_local.code.rounds import TaskOutcome
from tgr_local.console.render import plural
from tgr_local.options.config import CodeConfig
from tgr_local.system.sanitize import printable

_TEXT_SECONDS, _ROWS_SECONDS = 0.1, 0.5  # between two updates
_END = 4000  # characters of the output of tests
_NO_TESTS = "parse and import the changed files"


class Follower:
    """A `Listener` of one task; use it in a ``with``, which ends the tool calls that are open."""

    def __init__(self, editor: Editor, code: CodeConfig, cwd: str, prefix: str) -> None:
        """`prefix` makes the identifiers of tool calls unique in a session."""
        self._editor, self._cwd, self._prefix = editor, cwd, prefix
        self._command = code.test
        self._plan = {
            "read": "Read the project",
            "write": f"Write {plural(code.candidates, 'candidate')} in one batch",
            "test": f"Run the tests: {code.test}" if code.test else _NO_TESTS.capitalize(),
        }
        if code.rounds > 1:
            self._plan["repair"] = f"Repair the best one, in {code.rounds} rounds at most"
        self._states: dict[str, schema.PlanEntryStatus] = dict.fromkeys(self._plan, "pending")
        self._open: dict[str, None] = {}  # tool calls, in their order
        self._round = self._batch = self._adopted = self._n_contexts = 0
        self._rows: dict[int, Candidate] = {}
        self._followed = 0  # number of the candidate whose text is shown
        self._text = ""  # of it, not sent yet
        self._sent_text = self._sent_rows = 0.0

    def __enter__(self) -> Follower:
        self._set(read="in_progress")
        if self._command:
            self._start("before", self._command, "execute", raw_input={"command": self._command})
        return self

    def __exit__(self, *exc: object) -> None:
        for name in list(self._open):
            self._end(name, "failed")
        # after an error, or stopped: nothing is under way any more
        under_way = [name for name, state in self._states.items() if state == "in_progress"]
        for name in under_way:
            self._states[name] = "pending"
        if under_way:
            self._send_plan()

    def finished(self, passes: bool) -> None:
        """The task has its outcome. Tests that do not pass are still to be done."""
        names = [name for name in self._plan if name != "repair" or self._round > 1]
        open_names = () if passes else ("test", "repair")
        self._states = {name: "pending" if name in open_names else "completed" for name in names}
        self._send_plan()

    # ---- what is heard ----

    def baseline(self, verdict: Verdict) -> None:
        self._end("before", "completed" if verdict.ran else "failed", output(verdict))
        if verdict.passes:
            self._editor.say(
                "The tests pass already and cannot choose, so the most frequent edit is the best."
            )

    def context(self, context: Context, form: Form) -> None:
        self._n_contexts += 1
        places = [str(PurePath(self._cwd, file.path)) for file in context.shown]
        paths = [schema.ToolCallLocation(path=place) for place in places]
        lines = [f"{label:7} {text}".rstrip() for label, text in context_lines(context)]
        name = f"context-{self._n_contexts}"
        title = f"Read {plural(len(context.shown), 'file')}"
        self._start(name, title, "read", locations=paths)
        self._end(name, "completed", fenced("\n".join(lines)))
        self._set(read="completed")

    def round_begins(self, number: int, candidates: Sequence[Candidate]) -> None:
        self._round, self._followed, self._text = number, 0, ""
        self._batch += 1
        self._rows = {candidate.number: candidate for candidate in candidates}
        if number > 1:
            self._set(repair="in_progress")
        else:
            self._set(write="in_progress")
        title = f"Round {number}"
        if candidates:
            title += f": {plural(len(candidates), 'candidate')}"
        if self._adopted:
            title += f" with the edit of {self._adopted}"
        self._start(f"round-{self._batch}", title, "think")

    def update(self, candidate: Candidate, text: str) -> None:
        old = self._rows.get(candidate.number, candidate)
        self._rows[candidate.number] = candidate
        if text and not self._followed:
            self._followed = candidate.number
            self._text = f"Candidate {candidate.number}:\n\n"
        if candidate.number == self._followed:
            self._text += text
            self._send_text(now=old.state == "writing" and candidate.state != "writing")
        if candidate.state == "testing" and f"tests-{self._batch}" not in self._open:
            self._begin_tests()
        self._send_rows()

    def round_ends(self, outcome: TaskOutcome) -> None:
        self._close(outcome.ranked)
        passes = outcome.best is not None and outcome.best.passes
        self._set(write="completed", test="completed" if passes else "in_progress")

    def adopts(self, candidate: Candidate) -> None:
        self._close(ranked(list(self._rows.values())))
        self._adopted = candidate.number
        self._editor.think(
            f"\n\nThe next candidates begin with the edit of candidate {candidate.number}.\n\n"
        )

    def _close(self, candidates: Sequence[Candidate]) -> None:
        """Ends the tool calls of the candidates that were written last."""
        self._send_text(now=True)
        if f"round-{self._batch}" in self._open:
            self._end(
                f"round-{self._batch}", "completed", fenced("\n".join(table.table(candidates)))
            )
        if f"tests-{self._batch}" in self._open:
            said = (
                f"Candidate {candidate.number}: {output(candidate.verdict)}"
                for candidate in candidates
                if candidate.number in self._rows and candidate.verdict
            )
            self._end(f"tests-{self._batch}", "completed", next(said, "stopped"))

    # ---- what is sent ----

    def _set(self, **states: schema.PlanEntryStatus) -> None:
        known = {name: state for name, state in states.items() if name in self._plan}
        if known.items() - self._states.items():
            self._states.update(known)
            self._send_plan()

    def _send_plan(self) -> None:
        entries = [
            helpers.plan_entry(self._plan[name], status=state)
            for name, state in self._states.items()
        ]
        self._editor.send(helpers.update_plan(entries))

    def _begin_tests(self) -> None:
        self._set(test="in_progress")
        raw_input = {"command": self._command} if self._command else None
        title = self._command or _NO_TESTS.capitalize()
        self._start(f"tests-{self._batch}", title, "execute", raw_input=raw_input)

    def _send_text(self, now: bool) -> None:
        if self._text and (now or time.monotonic() - self._sent_text > _TEXT_SECONDS):
            self._editor.think(self._text)
            self._text, self._sent_text = "", time.monotonic()

    def _send_rows(self) -> None:
        if time.monotonic() - self._sent_rows > _ROWS_SECONDS:
            self._sent_rows = time.monotonic()
            rows = "\n".join(_row(candidate) for candidate in self._rows.values())
            self._editor.update_call(self._id(f"round-{self._batch}"), fenced(rows))

    def _start(
        self, name: str, title: str, kind: Literal["read", "execute", "think"], **about: Any
    ) -> None:
        self._open[name] = None
        self._editor.send(
            helpers.start_tool_call(
                self._id(name), printable(title), kind=kind, status="in_progress", **about
            )
        )

    def _end(self, name: str, status: Literal["completed", "failed"], text: str = "") -> None:
        del self._open[name]
        self._editor.update_call(self._id(name), text, status)

    def _id(self, name: str) -> str:
        return f"{self._prefix}-{name}"


def output(verdict: Verdict) -> str:
    """Returns the result of the tests: one line, and the end of their output."""
    said = f"{verdict.summary} in {verdict.seconds:.1f} s"
    return f"{said}\n{fenced(verdict.output[-_END:])}" if verdict.output.strip() else said


def fenced(text: str) -> str:
    """Lines as Markdown shows them unchanged."""
    text = printable(text.strip("\n"))
    fence = edits.fence_for([text])
    return f"{fence}\n{text}\n{fence}"


def _row(candidate: Candidate) -> str:
    return f"{candidate.number:3}  {table.result(candidate):16}  {candidate.n_tokens:6,} tokens"
