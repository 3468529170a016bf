"""A person's session with a project: tasks, their outcomes, and accepted edits.

In: an engine, options, a workplace, tasks. Out: lines and diffs through a `Report`, changes of the
folder where the person accepts them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tgr_local.code import table
from tgr_local.code.closing import cost_line, doubt_line, failure_lines, second_line
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.test_command import suggest
from tgr_local.code.report import Report, last_lines, say_on
from tgr_local.code.rounds import CodeTask, Listener, TaskOutcome, solve
from tgr_local.code.workplace import Workplace
from tgr_local.console import dialog
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Method
from tgr_local.options.config import CodeConfig, SearchConfig
from tgr_local.options.fields import parse, updated
from tgr_local.options.resolve import resolve
from tgr_local.system.sanitize import printable_line, visible

_LINES = 12
"""Lines shown of the output of tests that do not pass."""
_ABOUT_TESTS = re.compile(
    r"\b(?:fail\w*|pass(?:es|ing)?|broken|red|green)\b.{0,60}\btests?\b"
    r"|\btests?\b.{0,60}\b(?:fail\w*|pass(?:es|ing)?|broken|red|green)\b",
    re.IGNORECASE | re.DOTALL,
)
"""A task that only tests can judge."""


class CodeSession:
    """One person with one project."""

    def __init__(
        self,
        engine: Engine,
        user_options: Mapping[str, Any],
        method: Method,
        code: CodeConfig,
        workplace: Workplace,
        named_paths: tuple[str, ...] = (),
        *,
        on_stdout: bool | None = None,
        has_commands: bool = True,
    ) -> None:
        """`on_stdout` puts everything on stdout; by default if that is a terminal, else all but
        diffs go to stderr. `has_commands` tells whether the person can type slash commands."""
        self.engine, self.method, self.workplace = engine, method, workplace
        self.user_options = dict(user_options)
        self.code = code
        self.named_paths = named_paths
        """The files that may be changed; empty = those that the tests and the task point to."""
        self.outcome: TaskOutcome | None = None
        """Outcome of the last task."""
        self.accepted: int | None = None
        """Number of the candidate of the last task that the folder has."""
        self.does_without_tests = False
        """Whether the person wants no tests."""
        self._has_commands = has_commands
        self.is_live = dialog.is_live() and on_stdout is not False
        is_stdout = sys.stdout.isatty() if on_stdout is None else on_stdout
        self.say = say_on(is_stdout)
        self._on_terminal = (sys.stdout if is_stdout else sys.stderr).isatty()
        self.task = ""
        """The last task."""
        self._n_tasks = 0
        self._said: set[str] = set()  # notes that were shown

    # ---- options ----

    @property
    def config(self) -> SearchConfig:
        """The options of a reply: the person's, else the model file's, else the default."""
        return resolve(self.engine.metadata, self.user_options).config

    def options(self) -> dict[str, Any]:
        """The options that a session may change, with their values."""
        return dataclasses.asdict(self.code) | dataclasses.asdict(self.config)

    def set_option(self, name: str, text: str) -> None:
        """Sets an option as a person writes it; none empties one. ValueError for a bad value."""
        config_type: type[CodeConfig | SearchConfig] = SearchConfig
        if name in {spec.name for spec in dataclasses.fields(CodeConfig)}:
            config_type = CodeConfig
        default = getattr(config_type(), name)
        value = default if text == "none" and not default else parse(config_type, name, text)
        if config_type is CodeConfig:
            self.code = self.workplace.code = updated(self.code, {name: value})
        else:
            resolve(self.engine.metadata, self.user_options | {name: value})
            self.user_options[name] = value

    def add(self, paths: Sequence[str]) -> None:
        """Names further files that may be changed."""
        self.named_paths = tuple(dict.fromkeys((*self.named_paths, *paths)))

    def drop(self, paths: Sequence[str]) -> None:
        """Removes files from `named_paths`. ValueError for a file that is not among them."""
        for path in paths:
            if path not in self.named_paths:
                known = ", ".join(self.named_paths)
                raise ValueError(f"{path} is not among the named files: {known}")
        self.named_paths = tuple(path for path in self.named_paths if path not in paths)

    # ---- work ----

    def run_tests(self, cancel: Cancel | None = None) -> Verdict:
        """The tests of the project as it is. ValueError without tests."""
        if not self.code.test:
            raise ValueError("there are no tests: /test COMMAND names them")
        with self._copying():
            return self.workplace.judge((), cancel or Cancel())

    def last_task(self) -> str:
        """The last task. ValueError without one."""
        if not self.task:
            raise ValueError("there is no task yet: say what to do")
        return self.task

    def carry_out(
        self,
        text: str,
        cancel: Cancel | None = None,
        listener: Listener | None = None,
        named_paths: Sequence[str] = (),
        *,
        can_stop: bool = True,
    ) -> TaskOutcome:
        """Carries out a task, and changes nothing in the folder. Without a `listener` it prints its
        progress. `named_paths` are further files that may be changed, for this task. If it is
        stopped, `outcome` has the candidates that were judged. `can_stop` tells whether a person is
        there who may stop it; else it ends with TgrError where the tests cannot be started."""
        self.outcome, self.task, self.accepted = None, text, None
        self._look_for_tests(text)
        with self._copying(), contextlib.ExitStack() as stack:
            task = CodeTask(
                text=text,
                paths=self.workplace.paths(),  # of now, as the copies have them
                links=self.workplace.project.links,
                read=self.workplace.read,
                judge=self.workplace.judge,
                tests=self.code.test,
                needs_tests=not can_stop,
                named_paths=tuple(dict.fromkeys((*self.named_paths, *named_paths))),
                refusal=self.workplace.refusal,
                keep=self._keep,
            )
            report = Report(
                self.say, self.code.test, self.is_live, can_stop, is_log=not self._on_terminal
            )
            listener = listener or stack.enter_context(report)
            self.outcome = solve(
                self.engine, task, self._next_seeds(), self.method, self.code, listener, cancel
            )
        self._n_tasks += 1
        if listener is report:
            report.ends(self.outcome)
        self.say(cost_line(self.outcome))
        if doubt := doubt_line(self.outcome):
            self.say(doubt)
        return self.outcome

    def _look_for_tests(self, text: str) -> None:
        """Tells how to name the tests of a folder without a command for them. Raises ValueError
        where the task is about failing tests: nothing else can tell whether an edit fixes them."""
        if self.code.test or self.does_without_tests:
            return
        suggested = suggest(self.workplace.project)
        command = printable_line(shlex.quote(suggested))  # it may name folders
        if _ABOUT_TESTS.search(text):
            how = f"--test {command if suggested else 'COMMAND'}"
            if self._has_commands:
                how = f"/test {printable_line(suggested) or 'COMMAND'}; /test off goes on without"
            raise ValueError(f"the task is about tests, but no command runs them; name it: {how}")
        if suggested:
            self.say(f"there are tests; --test {command}, or /test, would let them choose")

    def ask_for_tests(self) -> None:
        """Asks the person on a terminal, once, which command runs the tests, if none is named and
        the folder has some."""
        suggested = suggest(self.workplace.project)
        if self.code.test or self.does_without_tests or not suggested:
            return
        question = f"run the tests with {printable_line(suggested)}? yes, no, or another command: "
        try:
            answer = input(question).strip()
        except EOFError:
            print()
            answer = "no"
        if answer.lower() in ("n", "no"):
            self.does_without_tests = True
        else:
            self.set_option("test", suggested if answer.lower() in ("", "y", "yes") else answer)

    def explain(self, *, shows_output: bool = True) -> None:
        """Says how sure the pass of the last task is. Where no edit passes, it says what the tests
        print with the best one, what was tried, and what may help."""
        outcome = self.outcome
        if outcome is None:
            return
        if line := second_line(outcome):
            self.say(line)
            if outcome.second and shows_output:
                for line in visible(table.diff(outcome.second.changes)).splitlines():
                    self.say(f"  {line}")
        best = outcome.best
        is_open = best is not None and not best.passes and shows_output
        if best and best.verdict and is_open and (lines := last_lines(best.verdict.output, _LINES)):
            self.say(f"with candidate {best.number} the tests print, at their end:")
            for line in lines:
                self.say(f"  {line}")
        for line in failure_lines(outcome, self.code, flags=not self._has_commands):
            self.say(line)

    def _keep(self, outcome: TaskOutcome) -> None:
        """Keeps the outcome so far of a task that may be stopped."""
        self.outcome = outcome

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        """Makes copies of the folder for the block, and prints notes about them."""
        with self.workplace.copied() as notes:
            for note in notes:
                if note not in self._said:
                    self.say(f"note: {printable_line(note)}")
            self._said.update(notes)
            yield

    def _next_seeds(self) -> SearchConfig:
        """Each further task of a session has other seeds, so that asking again may help."""
        config, n = self.config, self._n_tasks
        return dataclasses.replace(config, seed=(config.seed + 1000 * n) % (1 << 62))

    def candidate(self, number: int | None = None) -> Candidate:
        """A candidate of the last task, by default the best one. ValueError without it."""
        if self.outcome is None:
            raise ValueError("there is no edit yet: say what to do")
        if number is None:
            if self.outcome.best is None:
                raise ValueError("no candidate has an edit; say what to do in other words")
            return self.outcome.best
        by_number = {c.number: c for c in self.outcome.ranked if c.applies}
        if number not in by_number:
            numbers = ", ".join(map(str, sorted(by_number))) or "none"
            raise ValueError(f"candidate {number} has no edit; those with one: {numbers}")
        return by_number[number]

    def accept(self, number: int | None = None) -> str:
        """Changes the folder as a candidate does; says what was changed. ValueError for the best
        one if it gains nothing, and where another one was accepted."""
        candidate, outcome = self.candidate(number), self.outcome
        if self.accepted is not None:
            raise ValueError(f"candidate {self.accepted} was accepted; /undo takes it back first")
        if number is None and outcome is not None and outcome.offered is None:
            raise ValueError(
                f"no edit gains anything; /accept {candidate.number} takes the best one even so"
            )
        text = self.workplace.accept(candidate.changes)
        self.accepted = candidate.number
        return text

    def undo(self, force: bool = False) -> str:
        """Restores the folder as it was before the last edit, as `Workplace.undo`."""
        text = self.workplace.undo(force)
        self.accepted = None
        return text


def print_diff(candidate: Candidate) -> None:
    """Prints the edit of a candidate on stdout, coloured on a terminal. Names its invisible
    characters on stderr."""
    text = table.diff(candidate.changes)
    if sys.stdout.isatty():
        no_colour = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        text = visible(text) if no_colour else table.coloured(candidate.changes)
    print(text, end="", flush=True)
    for line in table.unseen(candidate.changes):
        print(f"note: {line}", file=sys.stderr)
