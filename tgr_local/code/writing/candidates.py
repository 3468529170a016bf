"""k candidates, written in one batch, each judged as soon as it is complete.

In: the messages of a round, the documents, a function that judges an edit. Out: the candidates.
If tests fail, each answer departs from the code at another place; else all are free. The replies
share the prompt's KV cells and advance together. The tests of a complete candidate run while the
others are still written; when one passes, the others are stopped. Answers that depart are short. So
further waves of k follow, until the answers have taken as many tokens as k whole answers, or the
tests of a candidate get further. The third wave departs from answers of the first two; half of the
last wave is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tgr_local import generation
from tgr_local.code.edits import Change, EditError, read_edits
from tgr_local.code.edits.inner_tests import keep_tests
from tgr_local.code.judging.candidate import Candidate, syntax_error
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.losses import loss
from tgr_local.code.judging.ranking import effect
from tgr_local.code.reading.asking import Stage
from tgr_local.code.reading.prompt import Copy
from tgr_local.code.writing import departures
from tgr_local.code.writing.branches import branches
from tgr_local.code.writing.departures import Departure
from tgr_local.code.writing.imports import add_imports
from tgr_local.code.writing.merging import keep_docstring
from tgr_local.code.writing.natural import codes, is_whole, read_answer
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Event, Method, Progress, Prompt, Query, Reply, TextDelta
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import CancelledError, CapacityError

Judge = Callable[[Sequence[Change], Cancel], Verdict]
"""Applies changes to a copy of the project and runs the tests there; ends when cancelled."""
OnUpdate = Callable[[Candidate, str], None]
"""Called with a candidate as it is now and the text that is new, from several threads."""


_LONGER, _MORE = 1.25, 1024
"""A departing answer is cut at `_LONGER` times the characters of the copy plus `_MORE`."""
_BRANCHES = 4
"""Likeliest tokens at each place of an answer, of which another answer may take one."""
_WAVES = 4
"""The most waves of k candidates in a stage."""


@dataclass(frozen=True)
class Batch:
    """Inputs for writing the candidates of a round."""

    query: Sequence[int]
    """The tokens of the messages in the model's chat template."""
    stage: Stage
    """Stage that the candidates begin with."""
    is_learnt: bool
    """Whether the model was trained to write this form; else any answer is searched for code."""
    config: SearchConfig
    """Search settings; the seed is that of the first candidate, the others follow."""
    answer_tokens: int
    """New tokens kept for an answer while a model thinks; 0 = as many as for any reply."""
    method: Method
    k: int
    first: int = 1
    """The number of the first candidate."""
    n_judges: int = 2
    """Tests that run at a time."""
    stops_early: bool = True
    """Whether a candidate that passes ends the others."""
    copies: tuple[Copy, ...] = ()
    """The code as it is, from which the candidates depart; empty = they are free."""
    n_free: int = 0
    """How many of the first k candidates are free nevertheless: the last ones."""
    allowance: int = 0
    """New tokens after which no further wave begins; 0 = there is one wave."""
    task: str = ""
    """Text of the task, which tells whether an edit may delete code."""
    goes_on: bool = False
    """Whether this batch continues a round. Then none of the first k is free, even if there are
    fewer than k departures."""


def write_candidates(
    engine: Engine,
    batch: Batch,
    judge: Judge,
    on_update: OnUpdate,
    cancel: Cancel,
) -> list[Candidate]:
    """Writes and judges the candidates of a round; those that were stopped are among them.

    Raises CancelledError by `cancel`, and the errors of `generate_many` and of `judge`.
    """
    return _CandidateWriter(engine, batch, judge, on_update, cancel).write()


class Remembered:
    """A judge that judges equal changes only once, also when several threads ask at the same time.
    Where the verdict of the unchanged files is one of tests, changes with the same `effect` count
    as equal."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self._known: dict[object, Future[Verdict]] = {}
        self._by_effect = False

    def __call__(self, changes: Sequence[Change], cancel: Cancel) -> Verdict:
        key = effect(changes) if self._by_effect else tuple(changes)
        with self._lock:
            is_first = key not in self._known
            future = self._known.setdefault(key, Future())
        if is_first:
            try:
                verdict = self._judge(changes, cancel)
                self._by_effect = self._by_effect or (not changes and verdict.counts_tests)
                future.set_result(verdict)
            except BaseException as error:
                with self._lock:
                    del self._known[key]  # a later round may ask again
                future.set_exception(error)
        return future.result()


@dataclass
class _CandidateAnswer:
    """State of a candidate's answer while it is written."""

    departure: Departure | None = None
    """None = it is free."""
    alike: Sequence[Copy] = ()
    """The copies from which the answer may depart."""
    text: str = ""
    is_cut: bool = False
    """Whether it was stopped because it is much longer than the code."""
    rejoined: str = ""
    """The answer completed with the rest of the copy, once it has rejoined the copy."""


@dataclass
class _CandidateWriter:
    engine: Engine
    batch: Batch
    judge: Judge
    on_update: OnUpdate
    cancel: Cancel

    def __post_init__(self) -> None:
        self._stop = Cancel(self.cancel)
        self._passed = threading.Event()
        self._failure: BaseException | None = None  # of a judge
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._tests: list[Future[None]] = []
        self._n_looked = 0
        self._candidates: list[Candidate] = []
        self._answers: list[_CandidateAnswer] = []
        self._later: list[Departure] = []  # of further waves, the next ones first
        self._branches: list[Departure] = []  # from answers, as many as all waves can take
        self._n_waves = 0
        self._has_free = False  # a wave after the first one

    def write(self) -> list[Candidate]:
        pool = ThreadPoolExecutor(self.batch.n_judges, "tests")
        try:
            wave = self._first()
            while wave:
                self._generate(wave, pool)
                for test in self._tests:
                    test.result()
                wave = self._more()
        except CancelledError:
            if self._failure:
                raise self._failure from None
            raise
        finally:
            self._stop.cancel()
            pool.shutdown(cancel_futures=True)
        if self._failure:
            raise self._failure
        self.cancel.check("cancelled while the candidates were written")
        for index, candidate in enumerate(self._candidates):
            if candidate.state == "testing":  # its tests never began
                self._update(index, state="stopped")
        return self._candidates

    def _generate(self, wave: range, pool: ThreadPoolExecutor) -> None:
        """Writes the candidates of these indices."""
        batch = self.batch

        def on_event(index: int, event: Event) -> None:
            index += wave.start
            if isinstance(event, Reply):
                self._complete(index, event)
                if self._candidates[index].state == "testing" and not self._stop.is_set():
                    self._tests.append(pool.submit(self._test, index))
            elif isinstance(event, TextDelta | Progress):
                self._follow(index, event)

        def is_whole(index: int, text: str) -> bool:
            return self._is_whole(wave.start + index, text)

        try:
            generation.generate_each(
                self.engine, [self._prompt(i) for i in wave],
                dataclasses.replace(
                    batch.config, seed=batch.config.seed + wave.start,
                    top_logprobs=max(batch.config.top_logprobs, _BRANCHES * bool(batch.copies)),
                ),
                apart=True,
                method=batch.method, answer_tokens=batch.answer_tokens,
                # a think tag within the code is text
                verbatim=bool(batch.stage.grammar) and not batch.answer_tokens,
                until=None if batch.is_learnt else is_whole, on_event=on_event, cancel=self._stop,
            )  # fmt: skip
        except CancelledError as error:
            if not self._passed.is_set():
                raise
            self._count_stopped(error.replies, wave)

    def _first(self) -> range:
        """The indices of the first k candidates. The last ones are free where there are too few
        ways to depart from the code."""
        batch = self.batch
        n = batch.k - batch.n_free
        if batch.copies:
            most = n + (_WAVES - 1) * batch.k if batch.allowance else n
            with contextlib.suppress(CapacityError):
                tried = {candidate.begun for candidate in batch.stage.candidates}
                result = departures.find(self.engine, batch.copies, most, tried, self._stop)
                self._later, self._n_looked = list(result.departures), result.n_positions
        return self._begin(n, min(n, len(self._later)) if batch.goes_on else batch.k)

    def _more(self) -> range:
        """The indices of up to k further candidates; empty if no departures or tokens are left, or
        if a candidate passes or gets further."""
        batch = self.batch
        n_tokens = sum(candidate.n_tokens for candidate in self._candidates)
        departs = any(answer.departure for answer in self._answers)
        is_enough = n_tokens >= batch.allowance or self._n_waves == _WAVES or self._is_beyond
        if not departs or self._stop.is_set() or is_enough:
            return range(0)
        if self._n_waves > 1:  # a right beginning may have been continued wrongly
            self._later = self._best_branches(batch.k) + self._later
        elif len(self._later) < batch.k:
            self._later += self._best_branches(batch.k)
        is_last = self._n_waves == _WAVES - 1 or len(self._later) < batch.k
        n_free = (batch.k + 1) // 2 if is_last and not self._has_free else 0
        self._has_free = self._has_free or n_free > 0
        n = batch.k - n_free
        return self._begin(n, min(n, len(self._later)) + n_free)

    def _best_branches(self, n: int) -> list[Departure]:
        """The n likeliest departures from answers, without those with which an answer began."""
        return self._unknown(self._branches)[:n]

    def _unknown(self, new: Sequence[Departure]) -> list[Departure]:
        """Departures with which no answer began yet, the likeliest first."""
        known = {candidate.begun for candidate in self._candidates}
        known |= {candidate.begun for candidate in self.batch.stage.candidates}
        known |= {departure.text for departure in self._later}
        by_text: dict[str, Departure] = {}
        for each in sorted(new, key=lambda each: (each.is_unreached, -each.logprob)):
            if each.text not in known:
                by_text.setdefault(each.text, each)
        return list(by_text.values())

    @property
    def _is_beyond(self) -> bool:
        """Whether the tests of a candidate get further than those of the code that it began
        with."""
        baseline = self.batch.stage.verdict
        verdicts = [candidate.verdict for candidate in self._candidates]
        return baseline is not None and any(v and v.is_beyond(baseline) for v in verdicts)

    def _begin(self, n_departures: int, n: int) -> range:
        """The indices of n candidates that begin, the first of them with the next departures."""
        batch, first = self.batch, len(self._candidates)
        next_departures, self._later = self._later[:n_departures], self._later[n_departures:]
        self._n_waves += 1
        for index in range(first, first + n):
            self._candidates.append(Candidate(batch.first + index, batch.config.seed + index))
            departure = (
                next_departures[index - first] if index - first < len(next_departures) else None
            )
            begun = departure.text if departure else ""
            copies = departures.alike(departure, batch.copies) if departure else ()
            self._answers.append(_CandidateAnswer(departure, copies, begun))
            self._update(index, begun, begun=begun)
        return range(first, first + n)

    def _prompt(self, index: int) -> Prompt:
        """Returns the prompt of a candidate."""
        departure = self._answers[index].departure
        if departure is None:
            return self.batch.query
        return Query(list(departure.tokens), departure.text, "answer")

    # ---- one candidate ----

    def _update(self, index: int, text: str = "", **changes: object) -> None:
        with self._lock:
            self._candidates[index] = self._candidates[index].but(**changes)
            self.on_update(self._candidates[index], text)

    def _follow(self, index: int, event: TextDelta | Progress) -> None:
        if isinstance(event, TextDelta):
            self._update(index, event.text, state="writing")
        elif event.tokens:
            n = self._candidates[index].n_tokens + len(event.tokens)
            self._update(index, n_tokens=n, state="writing")

    def _is_whole(self, index: int, text: str) -> bool:
        """Whether the edit of the answer is complete with this piece, so that writing may stop."""
        mine = self._answers[index]
        mine.text += text
        answer, departure = mine.text, mine.departure
        if "\n" not in text:
            return False
        if departure is None:
            return is_whole(answer, self.batch.stage.context.documents)
        if len(mine.alike) > 1:
            departure = departures.nearest(departure, mine.alike, answer)
        if len(answer) > _LONGER * len(departure.copy.code) + _MORE:
            mine.is_cut = True
            return True
        if any(code.is_closed for code in codes(answer)):
            return True
        rejoined = departures.rejoined(departure, answer)
        mine.rejoined = rejoined + self.batch.stage.context.fence if rejoined else ""
        return rejoined is not None

    def _complete(self, index: int, reply: Reply) -> None:
        """Takes the edit from a complete answer."""
        mine = self._answers[index]
        answer = mine.rejoined or self._candidates[index].begun + reply.text.rstrip()
        is_cut = mine.is_cut or reply.finish in ("length", "budget", "loop")
        is_cut = is_cut and not mine.rejoined
        departure = mine.departure
        if departure and len(mine.alike) > 1:
            departure = departures.nearest(departure, mine.alike, answer)
        if departure:
            n_same = departures.BACK if mine.rejoined else 0
            others = branches(self.engine, departure, reply, n_same, self.batch.k)
            with self._lock:
                self._branches = self._unknown([*self._branches, *others])[: _WAVES * self.batch.k]
        changes, problem = _read(answer, self.batch, departure, is_cut)
        if is_cut and departure:
            blocks = codes(answer)
            if departure.copy.function and not (blocks and blocks[0].is_closed):
                changes, problem = (), "the answer has no end"  # and would cut the function off
        if why := loss(changes, self.batch.task):
            changes, problem = (), why
        error = syntax_error(changes)
        self._update(
            index,
            state="testing" if changes and not error else "done",
            answer=answer,
            thinking=reply.thinking,
            changes=changes,
            problem=problem or error,
            parses=bool(changes) and not error,
            n_tokens=reply.n_tokens,
            forward_tokens=reply.counts.total + self._looked_share(index),
            logprob=_mean_logprob(reply),
            seconds=time.monotonic() - self._start,
        )

    def _test(self, index: int) -> None:
        """Judges a candidate, and stops the others if it passes."""
        if self._stop.is_set():
            self._update(index, state="stopped")
            return
        try:
            verdict = self.judge(self._candidates[index].changes, self._stop)
        except CancelledError:
            self._update(index, state="stopped")
            return
        except EditError as error:
            self._update(index, state="done", changes=(), parses=False, problem=str(error))
            return
        except BaseException as error:
            self._failure = error
            self._stop.cancel()
            return
        seconds = time.monotonic() - self._start
        self._update(index, verdict=verdict, state="done", seconds=seconds)
        if verdict.passes and self.batch.stops_early:
            self._passed.set()
            self._stop.cancel()

    def _looked_share(self, index: int) -> int:
        """Returns the positions that a candidate counts for finding the departures: the first one
        counts all of them."""
        return self._n_looked if index == 0 else 0

    def _count_stopped(self, replies: Sequence[Reply], wave: range) -> None:
        """Adds what was spent on the candidates that were stopped."""
        by_seed: Mapping[int, Reply] = {reply.seed: reply for reply in replies}
        for index in wave:
            candidate = self._candidates[index]
            if candidate.answer or candidate.problem:
                continue
            reply = by_seed.get(candidate.seed)
            self._update(
                index,
                state="stopped",
                n_tokens=reply.n_tokens if reply else 0,
                forward_tokens=(reply.counts.total if reply else 0) + self._looked_share(index),
                seconds=time.monotonic() - self._start,
            )


def _read(
    answer: str, batch: Batch, departure: Departure | None, is_cut: bool = False
) -> tuple[tuple[Change, ...], str]:
    """The changes of an answer, or why there are none. `is_cut`: a limit ended the answer."""
    stage, documents = batch.stage, batch.stage.context.documents
    try:
        if departure is not None and departure.copy.function:
            blocks = codes(answer)
            changes = departures.change_of(departure.copy, blocks[0].text) if blocks else ()
        elif departure is not None:
            changes = read_answer(answer, [departure.copy.document], is_cut)
        elif batch.is_learnt:
            changes = read_edits(answer, documents, stage.form, functions=stage.functions)
        else:
            changes = read_answer(answer, documents, is_cut)
    except EditError as error:
        return (), str(error)
    changes = add_imports(changes, documents)
    if "docstring" not in batch.task.lower():
        changes = tuple(map(keep_docstring, changes))
    if batch.stops_early:
        changes = tuple(keep_tests(change, batch.task) for change in changes)
    changes = merge_changes(stage.changes, changes)
    if changes == stage.changes:
        return (), "it changes nothing"
    counts_tests = stage.verdict is not None and stage.verdict.counts_tests
    if batch.stops_early and counts_tests and effect(changes) == effect(stage.changes):
        return (), "it changes comments or layout alone"
    return changes, "" if changes else "it restores the files"


def merge_changes(first: Sequence[Change], then: Sequence[Change]) -> tuple[Change, ...]:
    """The changes `first` and, after them, `then`, as one change for each file."""
    old_texts = {change.path: change.before for change in (*then, *first)}
    new_texts = {change.path: change.after for change in (*first, *then)}
    return tuple(
        Change(path, old_texts[path], new_texts[path])
        for path in dict.fromkeys([change.path for change in (*first, *then)])
        if old_texts[path] != new_texts[path]
    )


def _mean_logprob(reply: Reply) -> float:
    """Nats for each token of the reply; -inf without one."""
    values = np.concatenate([np.empty(0, np.float32), *(step.logprobs for step in reply.steps)])
    return float(np.mean(values)) if len(values) else -math.inf
