"""A person with a project: tasks, their outcomes, and what is accepted.

In: an engine, options, a workplace, tasks. Out: lines and diffs through a `Report`, changes of the
folder where the person accepts them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tgr_local.code import table
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.test_command import suggest
from tgr_local.code.report import Report, say_on
from tgr_local.code.rounds import CodeTask, Listener, TaskOutcome, solve
from tgr_local.code.workplace import Workplace
from tgr_local.console import dialog
from tgr_local.console.render import plural
from tgr_local.engine import Cancel, Engine
from tgr_local.methods import Method
from tgr_local.options.config import CodeConfig, SearchConfig
from tgr_local.options.fields import parse, updated
from tgr_local.options.resolve import resolve
from tgr_local.system.sanitize import printable_line, visible

_MANY = 8
"""Tested edits, of which one that passes may do so by chance."""


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
    ) -> None:
        """`on_stdout` puts everything on stdout; by default if that is a terminal, else all but
        diffs go to stderr."""
        self.engine, self.method, self.workplace = engine, method, workplace
        self.user_options = dict(user_options)
        self.code = code
        self.named_paths = named_paths
        """The files that may be changed; empty = those that the tests and the task point to."""
        self.outcome: TaskOutcome | None = None
        """Outcome of the last task."""
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
        """Takes files from those. ValueError for one that is not among them."""
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
        self.outcome, self.task = None, text
        if not self.code.test and (suggested := suggest(self.workplace.project)):
            command = printable_line(shlex.quote(suggested))  # it may name folders
            self.say(f"there are tests; --test {command}, or /test, would let them choose")
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

    def _keep(self, outcome: TaskOutcome) -> None:
        """Keeps the outcome so far of a task that may be stopped."""
        self.outcome = outcome

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        """Copies of the folder, and what the person has to know about them."""
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
        known = {c.number: c for c in self.outcome.ranked if c.applies}
        if number not in known:
            some = ", ".join(map(str, sorted(known))) or "none"
            raise ValueError(f"candidate {number} has no edit; those with one: {some}")
        return known[number]

    def accept(self, number: int | None = None) -> str:
        """Changes the folder as a candidate does; says what was changed."""
        text = self.workplace.accept(self.candidate(number).changes)
        self.outcome = None
        return text


def cost_line(outcome: TaskOutcome) -> str:
    """``16 candidates in 2 rounds, 4,120 forward tokens, 12.3 s; 1 passes``."""
    every = [c for some in outcome.rounds for c in some]
    rounds = plural(len(outcome.rounds), "round")
    n_pass = sum(c.passes for c in every)
    ended = f"; {outcome.ended}" if outcome.ended else ""
    return (
        f"{plural(len(every), 'candidate')} in {rounds}, "
        f"{outcome.forward_tokens:,} forward tokens, "
        f"{outcome.seconds:.1f} s; {n_pass} of them pass{'es' if n_pass == 1 else ''}{ended}"
    )


def doubt_line(outcome: TaskOutcome) -> str:
    """Returns a doubt about a pass that only few of many edits reach; else empty. The more edits
    are tested, the likelier one passes by chance."""
    tested = [c for c in outcome.ranked if c.verdict is not None and not c.verdict.is_check]
    n_pass = sum(c.passes for c in tested)
    if not n_pass or len(tested) < _MANY * n_pass:
        return ""
    passes = "passes" if n_pass == 1 else "pass"
    return f"only {n_pass} of {len(tested)} tested edits {passes}, perhaps by chance: read the diff"


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
