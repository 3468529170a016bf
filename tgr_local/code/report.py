"""Output for a person while a task is carried out.

In: what a `Listener` hears. Out: lines, and on a terminal rows that follow the candidates. The diff
and the question to accept it are the caller's.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tgr_local.code import table
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.reading.context import Context, Shown
from tgr_local.code.reading.prompt import Form
from tgr_local.code.rounds import TaskOutcome
from tgr_local.console.command_table import on_terminal
from tgr_local.console.render import plural
from tgr_local.system.progress import ProgressLine
from tgr_local.system.sanitize import printable_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tgr_local.console.growing import Piece
    from tgr_local.console.region import Region

_LABEL = 9  # characters
_FORMS = {"file": "whole files", "function": "whole functions"}
_SHOWN = 200  # newest characters of a text that are kept for its row
_SAID, _LONGEST = 3, 200
"""Lines of an output that counts no tests, and characters of a line."""
_ROWS = 16
"""Candidates in the table after a round; `/table` and ``--json`` have all."""
_ROWS_OF_LOG = 3
"""Candidates in that table where no terminal shows it, or no edit gains anything."""
_NAMED = 6
"""Files that are not shown and named nevertheless, of each reason."""


class Report:
    """A `Listener` that prints; use it in a ``with`` while a task is carried out."""

    def __init__(
        self,
        say: Callable[[str], None],
        command: str,
        is_live: bool,
        can_stop: bool = True,
        *,
        is_log: bool = False,
    ) -> None:
        """`say` prints a line, `command` is the person's test command, `is_live` tells whether
        stdout shows rows that are redrawn, `can_stop` whether a person is there who may stop
        the task, and `is_log` whether the lines go to no terminal: then a round is one line, and
        the table comes once, short."""
        self._say, self._command, self._can_stop = say, command, can_stop
        self._is_log = is_log
        self._view = _View() if is_live else None
        self._progress: ProgressLine | None = None
        self._stack = contextlib.ExitStack()
        self._rows: dict[int, Candidate] = {}
        self._last_parts: list[object] = []  # what the prompt shows

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    # ---- what is heard ----

    def baseline(self, verdict: Verdict) -> None:
        how = f"in {verdict.seconds:.1f} s"
        if verdict.ended == "timed out":
            how = "(--test-seconds allows more)"
        self._note("tests", f"{self._command}: {verdict.summary} {how}")
        if not verdict.passes and not verdict.total:  # only the output says why
            for line in last_lines(verdict.output, _SAID):
                self._note("", line)
        if verdict.ended in ("not found", "no tests"):
            self._note("", "the command may be wrong" + " (Ctrl-C stops)" * self._can_stop)
        if verdict.passes:
            self._note(
                "", "they pass already and cannot choose, so the most frequent edit is the best"
            )

    def context(self, context: Context, form: Form) -> None:
        parts: list[object] = [form]
        parts += [(file.path, file.how, file.functions) for file in context.shown]
        if parts == self._last_parts:
            return  # with an edit in it
        self._last_parts = parts
        for line in context_lines(context):
            self._note(*line)
        if not self._command:
            self._note(
                "tests",
                "none (see --test): edits are parsed and imported, the most frequent is best",
            )
        self._note("room", f"for {_FORMS[form]}")

    def round_begins(self, number: int, candidates: Sequence[Candidate]) -> None:
        if candidates:  # else the round goes on, and each is heard of when it begins
            self._note(f"round {number}", plural(len(candidates), "candidate"))
        self._rows = {candidate.number: candidate for candidate in candidates}
        if self._view:
            self._stack.enter_context(self._view.shown(candidates))
        else:
            self._progress = ProgressLine("writing")
            self._stack.enter_context(self._progress)

    def update(self, candidate: Candidate, text: str) -> None:
        if self._view:
            self._view.update(candidate, text)
            return
        self._rows[candidate.number] = candidate
        if self._progress:
            self._progress.line = _progress(list(self._rows.values()))

    def round_ends(self, outcome: TaskOutcome) -> None:
        self._stack.close()
        if not self._is_log:
            self._table(outcome, _ROWS)
        elif outcome.best is not None:
            self._note("", f"best: {outcome.best.number} ({table.result(outcome.best)})")

    def ends(self, outcome: TaskOutcome) -> None:
        """Writes the candidates to a log, and the notes about the best one."""
        if self._is_log and outcome.ranked:
            self._table(outcome, _ROWS_OF_LOG)
        verdict = outcome.best.verdict if outcome.best else None
        if verdict is not None and verdict.remark:
            self._note("note:", verdict.remark)

    def _table(self, outcome: TaskOutcome, most: int) -> None:
        heading, *rows = table.table(outcome.ranked)
        if outcome.offered is None:  # many rows that say the same
            most = min(most, _ROWS_OF_LOG)
        for line in (heading, *rows[:most]):
            self._say(line)
        if len(rows) > most:
            self._say(f"   … {plural(len(rows) - most, 'candidate')} more, none of them better")

    def adopts(self, candidate: Candidate) -> None:
        self._stack.close()
        verdict = candidate.verdict
        said = f" ({verdict.summary})" if verdict else ""
        self._note("", f"the next ones begin with the edit of {candidate.number}{said}")

    def _note(self, label: str, text: str) -> None:
        """A line with a label before it."""
        self._say(f"{label:{_LABEL}} {printable_line(text)}")


def last_lines(output: str, most: int) -> list[str]:
    """The last lines with text of an output, as a terminal may show them."""
    lines = [line for line in output.splitlines() if line.strip()]
    return [printable_line(line.rstrip(), _LONGEST) for line in lines[-most:]]


def say_on(terminal: bool) -> Callable[[str], None]:
    """Prints lines on stdout if that is the terminal, else on stderr, which leaves stdout to the
    diff."""

    def say(line: str) -> None:
        if terminal:
            print(on_terminal(line), flush=True)
        else:
            sys.stdout.flush()
            print(line, file=sys.stderr, flush=True)

    return say


def context_lines(context: Context) -> Iterator[tuple[str, str]]:
    """Labels and texts: what the prompt shows, what it does not show, and the sum."""
    label = "context"
    for file in context.shown:
        yield label, _file_line(file)
        label = ""
    reasons = Counter(why for _, why in context.left_out)
    for why, n in reasons.items():
        paths = [path for path, reason in context.left_out if reason == why][:_NAMED]
        more = f" and {n - len(paths)} more" if n > len(paths) else ""
        yield "", f"not shown ({why}): {', '.join(paths)}{more}"
    yield "", f"{context.n_tokens:,} of {context.budget:,} tokens"


def _file_line(file: Shown) -> str:
    how = {"whole": "whole", "outline": "outline"}.get(file.how) or ", ".join(file.functions)
    fixed = "" if file.changeable or file.how == "outline" else ", not to be changed"
    return f"{file.path}: {how}, {file.n_tokens} tokens ({file.why}){fixed}"


def _progress(rows: Sequence[Candidate]) -> str:
    states = Counter(candidate.state for candidate in rows)
    n_tokens = sum(candidate.n_tokens for candidate in rows)
    parts = [f"{n} {state}" for state, n in states.items()]
    return f"{', '.join(parts)}, {n_tokens} tokens"


# ---- rows on a terminal ----


class _View:
    """A row for each candidate; a single one is printed as it grows."""

    def __init__(self) -> None:
        self._rows: dict[int, Candidate] = {}
        self._texts: dict[int, str] = {}
        self._finished: list[str] = []
        self._region: Region | None = None
        self._is_single = False

    @contextlib.contextmanager
    def shown(self, candidates: Sequence[Candidate]) -> Iterator[None]:
        from tgr_local.console import region

        if candidates:  # else the round goes on
            self._is_single = len(candidates) == 1
        self._rows = {candidate.number: candidate for candidate in candidates}
        self._texts = {candidate.number: "" for candidate in candidates}
        self._console = region.make_console()
        self._region = region.Region(self._console, self._picture)
        with self._region:
            yield
        self._region = None

    def update(self, candidate: Candidate, text: str) -> None:
        if self._region is None:
            return
        with self._region.lock:
            self._rows[candidate.number] = candidate
            so_far = self._texts.get(candidate.number, "") + text
            if self._is_single:
                *lines, so_far = so_far.split("\n")
                self._finished += lines
            self._texts[candidate.number] = so_far[-_SHOWN:]

    def _picture(self) -> tuple[list[Piece], list[RenderableType]]:
        from rich.text import Text

        from tgr_local.console.growing import Piece

        lines, self._finished = self._finished, []
        pieces = [Piece(Text(printable_line(line)), True) for line in lines]
        width = self._console.width
        style = "" if self._console.no_color else "cyan"
        rows = [
            Text(self._row(candidate, width), style, no_wrap=True, overflow="crop")
            for candidate in list(self._rows.values())[-max(self._console.height // 2 - 1, 1) :]
        ]
        return pieces, [*rows]

    def _row(self, candidate: Candidate, width: int) -> str:
        last = next(
            (line for line in reversed(self._texts[candidate.number].split("\n")) if line), ""
        )
        text = f"{candidate.number:3}  {table.result(candidate):12}  {candidate.n_tokens:6,} tokens"
        row = f"{text}  {printable_line(last.strip())}" if candidate.state == "writing" else text
        return row[:width]
