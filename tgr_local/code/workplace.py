"""A project as the assistant works with it: its texts, tests of copies of it, accepted edits.

In: a folder, the options of tests. Out: texts, verdicts, and one sentence on what was changed. Only
`accept` and `undo` change the folder.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tgr_local.code.edits import Change, FileText
from tgr_local.code.edits.forms import check_path
from tgr_local.code.edits.syntax import language
from tgr_local.code.folder import journal
from tgr_local.code.folder.copies import BROKEN, Copies
from tgr_local.code.folder.journal import Accepted
from tgr_local.code.folder.project import Project, RefusedError
from tgr_local.code.interrupts import ignored_once
from tgr_local.code.judging import judge
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.test_command import interpreter, script
from tgr_local.console.render import plural
from tgr_local.engine import Cancel
from tgr_local.options.config import CodeConfig
from tgr_local.system.sandbox import backends, commands
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.sandbox.commands import CommandLimits

_FAST = 10.0
"""Seconds of tests that run once more without an edit, where one passes."""


class Workplace:
    """One project."""

    def __init__(self, folder: Path, code: CodeConfig) -> None:
        self.code = code
        """The options; they may be replaced between two tasks."""
        self.project = Project(folder)
        self._new: set[str] = set()  # named files that do not exist yet
        self._copies: Copies | None = None
        self._baseline: Verdict | None = None
        self._controls: dict[frozenset[str], str] = {}  # changed files: why nothing passes
        self._controlled = threading.Lock()
        self._is_steady: bool | None = None  # whether tests that failed fail again; None = unknown
        self._n_stopped = 0  # edits whose tests did not end

    # ---- files ----

    def describe(self) -> str:
        """The folder in a few words."""
        listing = self.project.listing
        kind = "git repository" if self.project.repository else "folder"
        more = " and more, which are left out" if listing.cut else ""
        return f"{kind} {self.project.folder}, {plural(len(listing.paths), 'file')}{more}"

    def paths(self) -> Sequence[str]:
        """The files of the project, relative to its folder."""
        return self.project.listing.paths

    def read(self, path: str) -> FileText | None:
        """The text of a file; inside `copied`, that of its copy. Empty for a named file that does
        not exist yet; None for a file that is no text."""
        try:
            source = self.project.read(path)
            return self._copies.document(source) if self._copies else source.document
        except RefusedError:
            return FileText(path, "") if path in self._new else None

    def refusal(self, path: str) -> str:
        """Returns why a file that nobody named may not be changed; empty if it may."""
        try:
            check_path(path)
        except ValueError as error:
            return str(error)
        if path == script(self.code.test):
            return f"{path} runs the tests"
        if why := self.project.refusal(path):
            return why
        folder = self.project.folder
        place = Path(os.path.realpath(folder / path)).relative_to(folder).as_posix()
        # an edit of a file under two names could not be accepted
        return f"{path} is a link to {place}" if place != path and place in self.paths() else ""

    def named_paths(self, names: Sequence[str]) -> tuple[str, ...]:
        """The paths of files that a person names. A file that does not exist may be made. Raises
        ValueError for one outside of the folder, RefusedError for one that may not be changed."""
        paths = []
        for name in names:
            place = Path(os.path.abspath(self.project.folder / os.path.expanduser(name)))
            if not place.is_relative_to(self.project.folder):  # perhaps by way of a link
                place = Path(os.path.realpath(place.parent)) / place.name
            if not place.is_relative_to(self.project.folder):
                raise ValueError(f"{name} lies outside of {self.project.folder}; go to its folder")
            path = place.relative_to(self.project.folder).as_posix()
            if place.is_dir():
                raise ValueError(f"{path} is a folder; name files in it")
            if not self.project.changeable_file(path).exists:
                self._new.add(path)
            paths.append(path)
        return tuple(dict.fromkeys(paths))

    # ---- tests ----

    @contextlib.contextmanager
    def copied(self) -> Iterator[list[str]]:
        """Inside, `judge` works on copies of the folder as it was at the beginning. Yields lines
        with notes about the copies for the person."""
        self.project = Project(self.project.folder)  # its files now
        backend = self._backend()
        with Copies(self.project) as self._copies:
            self._baseline = None
            self._controls.clear()
            self._is_steady = None
            self._n_stopped = 0
            warning = judge.warning(backend)
            try:
                yield [*([warning] if warning else []), *self._copies.notes(backend)]
            finally:
                self._copies = None

    def judge(self, changes: Sequence[Change], cancel: Cancel) -> Verdict:
        """The tests, or without tests the check, of a copy with these changes; call it within
        `copied`. Raises CancelledError by `cancel`."""
        assert self._copies is not None
        code, backend = self.code, self._backend()
        patience = math.inf
        if self._baseline:
            patience = judge.patience(code.test, self._baseline, self._n_stopped)
        limits = CommandLimits(
            seconds=min(code.test_seconds, patience), memory=code.test_memory << 20,
            disk=code.test_disk << 20, processes=code.test_processes,
        )  # fmt: skip
        changed = [change.path for change in changes]

        def run_tests(changes: Sequence[Change], broken: Sequence[str] = ()) -> Verdict:
            assert self._copies is not None
            in_place = backend == backends.DEFAULT
            place = self._copies.make(changes, in_place=in_place, broken=broken)
            try:
                if not code.test:
                    python = interpreter(self.project)
                    return judge.check(
                        place, changed, limits, python=python, backend=backend, cancel=cancel
                    )
                return judge.judge(
                    place, code.test, limits, backend=backend, baseline=self._baseline,
                    cancel=cancel,
                )  # fmt: skip
            finally:
                self._copies.remove(place)

        verdict = run_tests(changes)
        if not code.test:
            return verdict
        if not changes:
            self._baseline = verdict
        elif verdict.ended == "timed out":
            self._n_stopped += 1
        elif verdict.passes and self._baseline is not None and not self._baseline.passes:
            verdict = self._again(verdict, changes, run_tests)
        elif (
            # where they failed before, they have seen the edit
            verdict.passes and backend != backends.DEFAULT
            and self._baseline is not None and self._baseline.passes
            and (why := self._elsewhere(changes, run_tests))
        ):  # fmt: skip
            verdict = replace(verdict, ended="elsewhere", remark=why)
        return replace(
            verdict,
            failures=tuple(
                # its lines are not those of before
                replace(failure, reached=0) if failure.reached_in in changed else failure
                for failure in verdict.failures
            ),
        )

    def _again(
        self, verdict: Verdict, changes: Sequence[Change], run_tests: Callable[..., Verdict]
    ) -> Verdict:
        """Returns the verdict of tests that pass with changes and failed without them, after they
        have run once more: flaky tests pass by chance. Where they are fast, they run without the
        changes too, once for all edits."""
        assert self._baseline is not None
        second = run_tests(changes)
        if not second.passes:
            return replace(second, ended="flaky", remark="the tests passed, then failed")
        with self._controlled:
            if self._is_steady is None:
                is_fast = self._baseline.seconds < _FAST
                self._is_steady = not is_fast or not run_tests(()).passes
        if self._is_steady:
            return verdict
        return replace(
            verdict, ended="flaky", remark="the tests failed at first, and pass now without an edit"
        )

    def _elsewhere(self, changes: Sequence[Change], run_tests: Callable[..., Verdict]) -> str:
        """Returns the reason why tests that pass both with and without the changes do not test the
        copies. Empty where they do, or where they do not use the changed files."""
        assert self._copies is not None
        paths = frozenset(change.path for change in changes)
        with self._controlled:  # several candidates change the same files: they are asked once
            if paths not in self._controls:
                self._controls[paths] = self._control(changes, run_tests, self._copies.leads())
        return self._controls[paths]

    def _control(
        self,
        changes: Sequence[Change],
        run_tests: Callable[..., Verdict],
        leads: Sequence[Path],
    ) -> str:
        """Runs the tests in copies in which they must fail: first with the changed files broken,
        then with all code broken. Returns the reason why they do not test the copy; empty where
        they fail."""
        broken = [replace(change, after=BROKEN) for change in changes]
        if not run_tests(broken).passes:
            return ""
        changed = [change.path for change in changes]
        of_code = [path for path in self.paths() if language(path) not in ("", "bash")]
        unchanged = set(of_code) - set(changed)
        if of_code and (not unchanged or run_tests(broken, of_code).passes):
            return (
                "the tests pass in a copy whose code is broken on purpose too: they do not test "
                "the copy, but perhaps your folder itself; name a command that runs in the current "
                "folder, or take --sandbox bwrap"
            )
        for path in changed:
            place = self.project.folder / path
            if path in of_code and (to := next(filter(place.is_relative_to, leads), None)):
                return (
                    f"the tests pass in a copy where {path} is broken on purpose too: an installed "
                    f"package leads to {to}, which may be tested in its place; take --sandbox bwrap"
                )
        return ""

    def weakness(self) -> str:
        """Returns the gaps of the sandbox that the person has to agree to, where bubblewrap does
        not work here and the person named no other sandbox; else empty. Raises InstallError where
        no sandbox works."""
        backend = self._backend()
        return judge.warning(backend) if self.code.sandbox == "auto" else ""

    def _backend(self) -> Backend:
        """The sandbox; none only if the person named that. Raises InstallError if it does not work
        here."""
        for backend in backends.CHOICES:
            if backend == self.code.sandbox:
                commands.check(backend)
                return backend
        return commands.strongest()

    # ---- changes of the folder ----

    def recover(self) -> str:
        """Completes the changes of a killed process; returns a sentence that names them, or an
        empty text."""
        with ignored_once():
            paths = journal.recover(self.project)
        return f"completed an edit that was interrupted: {', '.join(paths)}" if paths else ""

    def accept(self, changes: Sequence[Change]) -> str:
        """Makes the changes in the folder: all of them, or none. Says what was changed."""
        with ignored_once():
            return f"changed {_names(journal.accept(self.project, changes))}"

    def undo(self, force: bool = False) -> str:
        """Restores the folder as it was before the last edit; with `force` also files that were
        changed since. Says what was restored."""
        with ignored_once():
            return f"restored {_names(journal.undo(self.project, force=force))}"


def _names(accepted: Accepted) -> str:
    copies = ", ".join(map(str, accepted.copies))
    return ", ".join(accepted.paths) + (f" (what was there is in {copies})" if copies else "")
