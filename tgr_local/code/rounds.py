"""A task from its context to the best candidate: rounds of candidates until one passes the tests.

In: an engine, the text of files, a judge. Out: a `TaskOutcome`. A round consists of stages, whose
candidates begin with the same edit. If the tests of a candidate get further than those of its
stage, its edit begins the next stage. If none does, an edit that fixes another test begins it. The
round ends after as many new tokens as k whole answers. Every edit is relative to the project's
unchanged files. Nothing is printed and no file is changed: a `Listener` follows, and the caller
decides.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tgr_local.code import edits
from tgr_local.code.edits import Change, FileText
from tgr_local.code.edits.inner_tests import keep_tests
from tgr_local.code.judging.candidate import Candidate, syntax_error
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import (
    failing,
    furthest,
    is_small,
    meaning,
    ranked,
    sideways,
)  # fmt: skip
from tgr_local.code.judging.test_command import script
from tgr_local.code.reading import evidence, lacking, reach
from tgr_local.code.reading.asking import LEAST_ANSWER, Asker, Stage, whole_answer
from tgr_local.code.reading.context import Context, Wish, make_context
from tgr_local.code.reading.evidence import Lines
from tgr_local.code.reading.prompt import Form
from tgr_local.code.writing import renaming
from tgr_local.code.writing.candidates import Batch, Judge, Remembered, write_candidates
from tgr_local.code.writing.combining import combine
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Method
from tgr_local.options.config import CodeConfig, SearchConfig
from tgr_local.system.errors import CapacityError, TgrError

_CONTEXT_MOST, _CONTEXT_SHARE = 6144, 0.5  # tokens, of the length that the model was trained for
_WAVES = 12
"""The most waves of k candidates in a round."""
_TEST_FILES = 16  # that are read for what failing tests reach
_SECOND_SECONDS = 20.0  # time of tests for finding a second edit that passes
_FREE = 4  # with a budget, one in four candidates of the later rounds is free


@dataclass(frozen=True)
class CodeTask:
    """A task and what it is done with."""

    text: str
    paths: Sequence[str]
    """All files of the project."""
    read: Callable[[str], FileText | None]
    """The text of a file; None if it is no text."""
    judge: Judge
    tests: str = ""
    """The person's test command; empty = none."""
    needs_tests: bool = False
    """Whether a test command that cannot be started is an error, because no person is there to stop
    the task."""
    named_paths: tuple[str, ...] = ()
    """The files that the person names."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Target of each symbolic link to a file or a folder of the project."""
    refusal: Callable[[str], str] = lambda path: ""
    """Reason why a file may not be changed; empty where it may."""
    keep: Callable[[TaskOutcome], None] = lambda outcome: None
    """Called with the outcome so far, which the caller still has if the task is stopped."""


@dataclass
class TaskOutcome:
    """Result of a task."""

    context: Context
    form: Form
    baseline: Verdict | None
    """Verdict of the tests for the unchanged project; None without tests."""
    rounds: list[list[Candidate]] = field(default_factory=list)
    """The candidates of each round, in the order of their numbers."""
    ranked: list[Candidate] = field(default_factory=list)
    """All of them, best first."""
    forward_tokens: int = 0
    """Positions that passed through the model, all rounds together."""
    seconds: float = 0.0
    ended: str = ""
    """Reason why the task ended before its last round; empty where all rounds were written or a
    candidate passes."""

    @property
    def best(self) -> Candidate | None:
        """The best candidate that has an edit."""
        return self.ranked[0] if self.ranked and self.ranked[0].applies else None

    @property
    def offered(self) -> Candidate | None:
        """The best candidate, if it passes, or if more tests pass with it than without it. Without
        tests: if it parses."""
        best = self.best
        if best is None or best.passes or self.baseline is None:
            return best if best and (best.passes or best.parses) else None
        verdict = best.verdict
        gains = verdict and verdict.ended != "flaky" and verdict.passed > self.baseline.passed
        return best if gains else None

    @property
    def second(self) -> Candidate | None:
        """Another candidate that passes, if the change of the best one is so small that it may
        pass by chance; else None."""
        best = self.best
        if best is None or not best.passes or self.baseline is None or not is_small(best.changes):
            return None
        mine = meaning(best.changes)
        others = (c for c in self.ranked if c.passes and meaning(c.changes) != mine)
        return next(others, None)


class Listener(Protocol):
    """Whoever follows a task; `update` is called from several threads."""

    def baseline(self, verdict: Verdict) -> None:
        """Reports the verdict of the tests for the unchanged project."""

    def context(self, context: Context, form: Form) -> None:
        """Reports the contents of the prompt."""

    def round_begins(self, number: int, candidates: Sequence[Candidate]) -> None:
        """Reports the candidates that are about to be written. The list is empty if the round goes
        on with the edit that was adopted last: then each is reported when it begins."""

    def update(self, candidate: Candidate, text: str) -> None:
        """A candidate changed, or has new text."""

    def round_ends(self, outcome: TaskOutcome) -> None:
        """All candidates of a round are ranked."""

    def adopts(self, candidate: Candidate) -> None:
        """The next candidates begin with the edit of this one."""


def solve(
    engine: Engine,
    task: CodeTask,
    config: SearchConfig,
    method: Method,
    code: CodeConfig,
    listener: Listener,
    cancel: Cancel | None = None,
) -> TaskOutcome:
    """Carries out a task. Raises CancelledError by `cancel`, CapacityError for a prompt that leaves
    no room for an answer, TgrError where the task needs tests and they cannot be started, and
    ValueError as `make_context` does."""
    return _Solver(engine, task, config, method, code, listener, cancel or Cancel()).solve()


@dataclass
class _Solver:
    engine: Engine
    task: CodeTask
    config: SearchConfig
    method: Method
    code: CodeConfig
    listener: Listener
    cancel: Cancel

    def __post_init__(self) -> None:
        self._ask = Asker(self.engine, self.task.text, self.config, self.code, self.cancel)
        self._judge = Remembered(self._judge_names)
        # a person may go on working meanwhile; the copies do not change either
        self._read = functools.cache(self.task.read)

    def solve(self) -> TaskOutcome:
        self._start = time.monotonic()
        baseline = self._judge_unchanged()
        stage = self._stage((), baseline)
        self.listener.context(stage.context, stage.form)
        outcome = TaskOutcome(stage.context, stage.form, baseline)
        if self._rename(stage, outcome):
            return outcome
        for number in range(1, self.code.rounds + 1):
            following = self._round(number, stage, outcome)
            if following is None:
                break
            stage = following
        outcome.seconds = time.monotonic() - self._start
        return outcome

    def _rename(self, stage: Stage, outcome: TaskOutcome) -> bool:
        """Judges a rename as the first candidate, without the model, if the task asks only for
        that. Returns whether the tests pass with it."""
        task, verdict = self.task, stage.verdict
        if (wish := renaming.asked(task.text)) is None:
            return False
        keeps_tests = verdict is not None and not verdict.passes and not wish.has_tests

        def keeps(path: str) -> bool:
            is_named = path in task.named_paths
            if (task.named_paths and not is_named) or task.refusal(path):
                return True
            return keeps_tests and not is_named and evidence.is_test(path)

        changes = renaming.renamed(wish, task.paths, self._read, keeps)
        if keeps_tests:
            changes = tuple(keep_tests(change, task.text) for change in changes)
        if not changes or syntax_error(changes):
            return False
        candidate = Candidate(
            1, self.config.seed, "testing", changes=changes, parses=True, logprob=0
        )
        self.listener.round_begins(1, [candidate])
        self.listener.update(candidate, "")
        try:
            said = self._judge(changes, self.cancel)
            candidate = candidate.but(state="done", verdict=said, seconds=said.seconds)
        except edits.EditError as error:
            candidate = candidate.but(state="done", changes=(), parses=False, problem=str(error))
        outcome.seconds = time.monotonic() - self._start
        outcome.rounds.append([candidate])
        outcome.ranked = [candidate]
        stage.candidates.append(candidate)
        task.keep(outcome)
        self.listener.update(candidate, "")
        self.listener.round_ends(outcome)
        return candidate.passes and verdict is not None

    def _round(self, number: int, stage: Stage, outcome: TaskOutcome) -> Stage | None:
        """Writes the candidates of a round. Returns the stage of the next round; None if a
        candidate passes, or if there is no next round for the reason in `outcome.ended`."""
        n_left: int | None = None  # new tokens that the round may still take
        n_whole = n_waves = 0
        last_gain, known_failures = stage, {failing(stage.verdict)}
        while (batch := self._batch(outcome, stage, n_left)) is not None:
            candidates = self._write(number, stage, batch)
            if n_left is None:
                if len(outcome.rounds) < number:  # else it has a rename
                    outcome.rounds.append([])
                n_whole = batch.allowance // batch.k
            outcome.rounds[-1].extend(candidates)
            outcome.forward_tokens += sum(candidate.forward_tokens for candidate in candidates)
            outcome.ranked = ranked(
                [candidate for of_round in outcome.rounds for candidate in of_round]
            )
            outcome.seconds = time.monotonic() - self._start
            self.task.keep(outcome)
            if outcome.best is not None and outcome.best.passes:
                self._look_for_second(stage, outcome)
                self.listener.round_ends(outcome)
                return None
            n_left = batch.allowance - sum(candidate.n_tokens for candidate in candidates)
            n_waves += math.ceil(len(candidates) / batch.k)
            departs = any(candidate.begun for candidate in candidates)
            has_room = departs and n_left >= max(n_whole, 1) and n_waves < _WAVES
            further = furthest(stage.candidates, stage.verdict)
            following = further
            if further is None and has_room:
                following = sideways(stage.candidates, stage.verdict, known_failures)
            if following is None or not has_room:
                self.listener.round_ends(outcome)
                if further is None or number == self.code.rounds:
                    return last_gain
                return self._stage_after(further, outcome)
            known_failures.add(failing(following.verdict))
            next_stage = self._stage_after(following, outcome)
            if next_stage is None:
                self.listener.round_ends(outcome)
                return None
            stage = next_stage
            last_gain = last_gain if further is None else stage
        return None

    def _look_for_second(self, stage: Stage, outcome: TaskOutcome) -> None:
        """Tests the complete edits that the passing edit stopped, if that is very small. If another
        one passes too, the person can choose."""
        best = outcome.best
        tests_decide = stage.verdict is not None and not stage.verdict.passes
        if best is None or not tests_decide or not is_small(best.changes):
            return
        known_meanings, start = {meaning(best.changes)}, time.monotonic()
        last_round = outcome.rounds[-1]
        for index, candidate in enumerate(last_round):
            is_new = candidate.parses and not candidate.problem and candidate.verdict is None
            if not is_new or meaning(candidate.changes) in known_meanings:
                continue
            if outcome.second or time.monotonic() - start > _SECOND_SECONDS:
                break
            known_meanings.add(meaning(candidate.changes))
            verdict = self._judge(candidate.changes, self.cancel)
            last_round[index] = candidate.but(state="done", verdict=verdict)
            self.listener.update(last_round[index], "")
            outcome.ranked = ranked([c for each in outcome.rounds for c in each])

    def _write(self, number: int, stage: Stage, batch: Batch) -> list[Candidate]:
        """Writes the candidates of a batch, and adds those that combine the edits of several."""
        n = 0 if batch.goes_on else batch.k  # a round that goes on may have fewer departures left
        waiting = [Candidate(batch.first + i, batch.config.seed + i) for i in range(n)]
        self.listener.round_begins(number, waiting)
        candidates = write_candidates(
            self.engine, batch, self._judge, self.listener.update, self.cancel
        )
        candidates += self._combine(stage, candidates)
        stage.candidates.extend(candidates)
        return candidates

    def _combine(self, stage: Stage, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Returns candidates that combine the edits of several, if the tests show that it helps."""
        if stage.verdict is None or stage.verdict.passes or not candidates:
            return []

        def judge(candidate: Candidate) -> Verdict:
            self.listener.update(candidate, "")
            verdict = self._judge(candidate.changes, self.cancel)
            self.listener.update(candidate.but(state="done", verdict=verdict), "")
            return verdict

        combinations = []
        first = candidates[-1].number + 1
        for c in combine(candidates, stage.changes, stage.verdict, judge, first, self.task.text):
            self.listener.update(c, "")
            combinations.append(c)
        return combinations

    # ---- stages ----

    def _judge_unchanged(self) -> Verdict | None:
        """Runs the tests of the unchanged project; returns None without tests."""
        if not self.task.tests:
            return None
        verdict = self._judge((), self.cancel)
        if self.task.needs_tests and verdict.ended == "not found" and not verdict.total:
            said = verdict.output.strip().splitlines()[-1:] or [verdict.summary]
            raise TgrError(
                f"the tests cannot be started: {self.task.tests!r:.200} ({said[0]:.200}); install "
                "the command, or name another one with --test"
            )
        self.listener.baseline(verdict)
        return verdict

    def _judge_names(self, changes: Sequence[Change], cancel: Cancel) -> Verdict:
        """Runs the tests. If they cannot begin, the verdict has all names that they lack."""
        task, verdict = self.task, self.task.judge(changes, cancel)
        if verdict.passes:
            return verdict
        there = list(dict.fromkeys([*task.paths, *(change.path for change in changes)]))
        new = evidence.missing_files(verdict.output, there, task.text)
        if not (new or evidence.missing_names(verdict.output)):
            return verdict
        read, paths = self._read_after(changes), evidence.Paths(there, task.links)
        near = dict.fromkeys(place.path for place in evidence.places(verdict.output, paths))
        tests = [text for path in near if evidence.is_test(path) and (text := read(path))]
        lacks = lacking.lacking(tests[:_TEST_FILES], read, paths, new)
        return dataclasses.replace(verdict, lacks=lacks)

    def _read_after(self, changes: Sequence[Change]) -> Callable[[str], FileText | None]:
        """Reads files as they are after `changes`."""
        changed = {change.path: FileText(change.path, change.after) for change in changes}
        return lambda path: changed.get(path) or self._read(path)

    def _stage(self, changes: tuple[Change, ...], verdict: Verdict | None) -> Stage:
        """The stage that begins with `changes`, whose verdict is given."""
        task, output, read = self.task, self._ask.tail(verdict), self._read_after(changes)
        length = self.engine.n_ctx_train
        most = min(_CONTEXT_MOST, math.floor(_CONTEXT_SHARE * length))
        failures = verdict.failures if verdict is not None else ()
        wish = Wish(
            task.text, output, task.named_paths, script(self.code.test), task.links, failures
        )
        context = make_context(
            task.paths, read, wish,
            self.code.context_tokens or most, self._ask.count, task.refusal,
        )  # fmt: skip
        if not context.documents and context.refused:
            raise ValueError(f"no file of the project may be changed: {context.refused[0]}")
        if not context.documents:
            raise ValueError(
                "no file of the project points to the task; name the files that may be changed"
            )
        form, grammar = self._ask.form(context), ""
        if not changes:
            self._ask.check(context, form, verdict, task.named_paths)
        if self._ask.has_learnt and self.code.constrained and not self.config.grammar:
            functions = context.functions if form == "function" else None
            grammar = edits.edit_grammar(context.documents, form, functions=functions)
        lacks_names = verdict is not None and (
            bool(evidence.missing_names(verdict.output)) or evidence.lack_names(verdict.failures)
        )
        unreached = self._unreached(verdict, context.documents, read)
        if lacks_names:  # changing existing functions cannot help
            unreached = {
                d.path: tuple(f.lines for f in reach.functions(d)) for d in context.documents
            }
        return Stage(changes, verdict, output, context, form, grammar, unreached, lacks_names)

    def _unreached(
        self,
        verdict: Verdict | None,
        documents: Sequence[FileText],
        read: Callable[[str], FileText | None],
    ) -> dict[str, tuple[Lines, ...]]:
        """The functions that the failing tests do not reach, of each document."""
        failures = verdict.failures if verdict is not None else ()
        known = evidence.Paths(self.task.paths, self.task.links)
        files = [known.resolve(f.file or f.name.partition("::")[0]) for f in failures]
        shared = [path for path in self.task.paths if path.rpartition("/")[2] == "conftest.py"]
        if not all(f.file for f in failures):  # of some checks only the name is known
            files += [path for path in self.task.paths if evidence.is_test(path)]
        paths = dict.fromkeys([*filter(None, files), *shared])
        tests = [document for path in list(paths)[:_TEST_FILES] if (document := read(path))]
        return reach.out_of_reach(failures, tests, documents)

    def _stage_after(self, candidate: Candidate, outcome: TaskOutcome) -> Stage | None:
        """The stage whose candidates begin with the edit of this one; None if the files no longer
        fit into a prompt."""
        try:
            stage = self._stage(candidate.changes, candidate.verdict)
        except (ValueError, CapacityError) as error:
            outcome.ended = str(error)
            return None
        self.listener.adopts(candidate)
        self.listener.context(stage.context, stage.form)
        return stage

    def _n_free(self, k: int, stage: Stage, outcome: TaskOutcome) -> int:
        """The number of free candidates among k when the others depart: half of them if new code
        must be written. With a budget, later rounds have some too, because a free answer can change
        two files, and a departure cannot."""
        if stage.lacks_names:
            return math.ceil(k / 2)
        return math.ceil(k / _FREE) if outcome.rounds and self.code.budget else 0

    # ---- a round ----

    def _batch(self, outcome: TaskOutcome, stage: Stage, allowance: int | None) -> Batch | None:
        """Returns the batch for the next candidates; None if the budget is spent. `allowance` is
        the number of new tokens that a continued round may still take; None = the round begins."""
        k = self.code.candidates
        messages = self._ask.messages(stage)
        query = self._ask.tokens(messages, stage.grammar)
        needed = self._ask.needed_tokens(stage)
        room = self.engine.n_ctx_train - len(query)
        if room < LEAST_ANSWER:
            why = (
                f"the prompt has {len(query)} tokens, but the model was trained for "
                f"{self.engine.n_ctx_train}; lower context_tokens, or name fewer files"
            )
            if not outcome.rounds:
                raise CapacityError(why)
            outcome.ended = why
            return None
        config = self._ask.with_limits(min(needed, room), room)
        config = self._ask.with_grammar(config, stage.grammar)
        tests_decide = stage.verdict is not None and not stage.verdict.passes
        copies = self._ask.copies(stage, messages, query) if tests_decide else ()
        if self.code.budget:
            n_left = self.code.budget - outcome.forward_tokens - len(query)
            cost = sum(len(copy.tokens) - len(query) + 1 for copy in copies) + 4 * k * bool(copies)
            if n_left - cost < min(needed, config.token_limit):
                copies, cost = (), 0
            n_left -= cost
            while k > 1 and n_left // k < min(needed, config.token_limit):
                k -= 1
            if n_left // k < LEAST_ANSWER:
                outcome.ended = (
                    f"the budget of {self.code.budget:,} forward tokens has no room for another "
                    f"candidate, whose prompt has {len(query):,}"
                )
                return None
            # the prompt is read once, and its cells are shared
            longest = max([len(query), *(len(copy.tokens) for copy in copies)])
            config = dataclasses.replace(
                config,
                max_tokens=min(config.token_limit, n_left // k),
                max_forward_tokens=longest + n_left // k,
            )
        goes_on = allowance is not None
        if allowance is None:  # as many tokens as whole answers would take
            allowance = 0 if self.code.budget else k * whole_answer(copies, query)
        first = 1 + sum(len(some) for some in outcome.rounds)
        return Batch(
            query=query,
            stage=stage,
            is_learnt=self._ask.has_learnt,
            config=dataclasses.replace(config, seed=self.config.seed + first - 1),
            answer_tokens=needed if self._ask.thinks else 0,
            method=self.method,
            k=k,
            first=first,
            n_judges=self.code.test_jobs,
            # without deciding tests, agreement decides, and needs all candidates
            stops_early=tests_decide,
            copies=copies,
            n_free=self._n_free(k, stage, outcome),
            allowance=allowance,
            task=self.task.text,
            goes_on=goes_on,
        )
