"""A task from its context to the best candidate: rounds of candidates until one passes the tests.

In: an engine, the text of files, a judge. Out: an `Outcome`. If a candidate gets further in the
tests than the files as they were, the next ones begin with its edit, in the same round while that
has taken fewer new tokens than k whole answers. Every edit is one of the project's files as they
are. Nothing is printed and nothing is changed: a `Listener` follows, and the caller decides.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args

from tgr_local import generation
from tgr_local.code import edits, prompt
from tgr_local.code.candidate import Candidate
from tgr_local.code.candidates import Batch, Judge, Remembered, write_candidates
from tgr_local.code.combining import combine
from tgr_local.code.context import Context, Wish, make_context
from tgr_local.code.departures import Copy
from tgr_local.code.edits import Change, Document
from tgr_local.code.judge import Verdict
from tgr_local.code.prompt import Form
from tgr_local.code.ranking import aside, failing, furthest, ranked
from tgr_local.engine import Cancel, Engine
from tgr_local.errors import CapacityError
from tgr_local.methods import Method
from tgr_local.options.config import CodeConfig, SearchConfig

_CONTEXT_MOST, _CONTEXT_SHARE = 6144, 0.5  # tokens, of the length that the model was trained for
_OUTPUT_MOST, _OUTPUT_SHARE = 1024, 0.25
_THINKING = 2048  # tokens, where the user sets no limit
_SMALL_FILE, _MIDDLE_FILE = 512, 1536  # tokens
_NEW_FILE = 768  # tokens of a file that is empty so far
_LEAST_ANSWER = 32  # tokens
_FREE = 4  # one in so many candidates of the later rounds is free, with a budget
_COPIED = 4096  # tokens of the code that answers depart from
_PROSE = 256  # tokens, around the code


@dataclass(frozen=True)
class Task:
    """What is to be done, and with what."""

    text: str
    paths: Sequence[str]
    """All files of the project."""
    read: Callable[[str], Document | None]
    """The text of a file; None if it is no text."""
    judge: Judge
    tests: str = ""
    """The person's test command; empty = none."""
    named: tuple[str, ...] = ()
    """The files that the person names."""
    refusal: Callable[[str], str] = lambda path: ""
    """Why a file may not be changed; empty where it may."""


@dataclass
class Outcome:
    """What came of a task."""

    context: Context
    form: Form
    before: Verdict | None
    """What the tests say of the project as it is; None without tests."""
    rounds: list[list[Candidate]] = field(default_factory=list)
    """The candidates of each round, in the order of their numbers."""
    ranked: list[Candidate] = field(default_factory=list)
    """All of them, best first."""
    forward_tokens: int = 0
    """Positions that passed through the model, all rounds together."""
    seconds: float = 0.0
    ended: str = ""
    """Why there was no further round; empty after the last one that was asked for, or a pass."""

    @property
    def best(self) -> Candidate | None:
        """The best candidate that has an edit."""
        return self.ranked[0] if self.ranked and self.ranked[0].applies else None


class Listener(Protocol):
    """Whoever follows a task; `update` is called from several threads."""

    def before(self, verdict: Verdict) -> None:
        """The tests of the project as it is."""

    def context(self, context: Context, form: Form) -> None:
        """What the prompt shows."""

    def round_begins(self, number: int, candidates: Sequence[Candidate]) -> None:
        """Candidates of a round are about to be written: its first ones, or those that begin with
        the edit that was adopted last."""

    def update(self, candidate: Candidate, text: str) -> None:
        """A candidate changed, or has new text."""

    def round_ends(self, outcome: Outcome) -> None:
        """These candidates are ranked with all others."""

    def adopts(self, candidate: Candidate) -> None:
        """The next candidates begin with the edit of this one."""


def solve(
    engine: Engine,
    task: Task,
    config: SearchConfig,
    method: Method,
    code: CodeConfig,
    listener: Listener,
    cancel: Cancel | None = None,
) -> Outcome:
    """Carries out a task. Raises CancelledError by `cancel`, CapacityError for a prompt that leaves
    no room for an answer, and ValueError as `make_context` does."""
    return _Solver(engine, task, config, method, code, listener, cancel or Cancel()).solve()


def choose_form(context: Context, count: prompt.CountTokens) -> Form:
    """What an answer about these documents has room for: whole files while they are short, or have
    no functions that are known, else whole functions."""
    if any(one.changeable and one.how != "whole" for one in context.shown):
        return "function"
    n_tokens = sum(count(document.text) for document in context.documents)
    is_new = any(not document.text for document in context.documents)
    if n_tokens <= (_MIDDLE_FILE if is_new else _SMALL_FILE):
        return "file"
    return "function" if context.functions else "file"


def needed_tokens(form: Form, context: Context, count: prompt.CountTokens) -> int:
    """New tokens that an answer may take: what the largest edit of this form should need."""
    if form == "file":
        sizes = [count(document.text) or _NEW_FILE for document in context.documents]
        return 64 + math.ceil(1.25 * sum(sizes)) + 96 * len(sizes)
    lines = {document.path: document.text.split("\n") for document in context.documents}
    sources = ("\n".join(lines[one.path][one.first - 1 : one.last]) for one in context.functions)
    return 192 + math.ceil(1.5 * max(map(count, sources)))


def _whole(copies: Sequence[Copy], query: Sequence[int]) -> int:
    """The tokens of an answer that repeats all files that are copied whole, or the longest
    function."""
    sizes = [(copy, len(copy.tokens) - len(query)) for copy in copies]
    files = sum(n for copy, n in sizes if copy.function is None)
    return max([files, *(n for _, n in sizes)])


@dataclass(frozen=True)
class _Stage:
    """What rounds have in common until a candidate gets further in the tests than its files."""

    changes: tuple[Change, ...]
    """Of the project's files, that all candidates of the stage begin with."""
    verdict: Verdict | None
    """What the tests say with them; None without tests."""
    output: str
    """The end of what failing tests print."""
    context: Context
    form: Form
    engine: Engine
    """With the constraint of the edits, for a model that has learnt a form of them."""
    candidates: list[Candidate] = field(default_factory=list)


class _Solver:
    def __init__(
        self,
        engine: Engine,
        task: Task,
        config: SearchConfig,
        method: Method,
        code: CodeConfig,
        listener: Listener,
        cancel: Cancel,
    ) -> None:
        self._engine, self._task, self._method, self._code = engine, task, method, code
        self._config, self._listener, self._cancel = config, listener, cancel
        self._judge = Remembered(task.judge)
        # a person may go on working meanwhile; the copies do not change either
        self._read = functools.cache(task.read)

    def _count(self, text: str) -> int:
        return len(self._engine.tokenize(text, parse_special=False))

    def solve(self) -> Outcome:
        start = time.monotonic()
        before = self._before()
        stage = self._stage((), before)
        outcome = Outcome(stage.context, stage.form, before)
        number, left = 1, 0  # new tokens that the round may still take
        known = {failing(before)}  # how the files fail that candidates began with
        while number <= self._code.rounds:
            goes_on = len(outcome.rounds) == number
            batch = self._batch(outcome, stage, left if goes_on else None)
            if batch is None:
                break
            waiting = [Candidate(batch.first + i, batch.config.seed + i) for i in range(batch.k)]
            self._listener.round_begins(number, waiting)
            candidates = write_candidates(
                stage.engine, batch, self._judge, self._listener.update, self._cancel
            )
            candidates += self._combined(stage, candidates)
            stage.candidates.extend(candidates)
            if goes_on:
                outcome.rounds[-1].extend(candidates)
            else:
                outcome.rounds.append(candidates)
            outcome.forward_tokens += sum(one.forward_tokens for one in candidates)
            outcome.ranked = ranked([one for some in outcome.rounds for one in some])
            outcome.seconds = time.monotonic() - start
            self._listener.round_ends(outcome)
            if outcome.best is not None and outcome.best.passes:
                break
            left = batch.allowance - sum(one.n_tokens for one in candidates)
            if not any(one.begun for one in candidates):
                left = 0
            further = furthest(stage.candidates, stage.verdict)
            if further is None and left > 0:
                further = aside(stage.candidates, stage.verdict, known)
            if left <= 0 or further is None:
                number += 1
            if further is not None and number <= self._code.rounds:
                stage = self._after(further)
                known.add(failing(further.verdict))
        outcome.seconds = time.monotonic() - start
        return outcome

    def _combined(self, stage: _Stage, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The edits of several candidates in one, where failing tests say that this helps."""
        if stage.verdict is None or stage.verdict.passes:
            return []

        def judged(one: Candidate) -> Verdict:
            self._listener.update(one, "")
            verdict = self._judge(one.changes, self._cancel)
            self._listener.update(one.but(state="done", verdict=verdict), "")
            return verdict

        made = []
        first = candidates[-1].number + 1
        for one in combine(candidates, stage.changes, stage.verdict, judged, first):
            self._listener.update(one, "")
            made.append(one)
        return made

    # ---- stages ----

    def _before(self) -> Verdict | None:
        """The tests of the project as it is; without tests nothing is run."""
        if not self._task.tests:
            return None
        verdict = self._judge((), self._cancel)
        self._listener.before(verdict)
        return verdict

    def _stage(self, changes: tuple[Change, ...], verdict: Verdict | None) -> _Stage:
        """The stage after `changes`, of which the tests say `verdict`."""
        task, output = self._task, self._tail(verdict)
        changed = {change.path: Document(change.path, change.after) for change in changes}

        def read(path: str) -> Document | None:
            return changed.get(path) or self._read(path)

        length = self._engine.n_ctx_train
        most = min(_CONTEXT_MOST, math.floor(_CONTEXT_SHARE * length))
        context = make_context(
            task.paths, read, Wish(task.text, output, task.named),
            self._code.context_tokens or most, self._count, task.refusal,
        )  # fmt: skip
        if not context.documents:
            raise ValueError(
                "no file of the project points to the task; name the files that may be changed"
            )
        form, engine = self._form(context), self._engine
        if self._has_learnt and self._code.constrained:
            functions = context.functions if form == "function" else None
            constraint = edits.constraint(context.documents, form, functions=functions)
            engine = engine.with_edits(constraint)
        self._listener.context(context, form)
        return _Stage(changes, verdict, output, context, form, engine)

    def _after(self, candidate: Candidate) -> _Stage:
        """The stage in which candidates begin with the edit of this one."""
        self._listener.adopts(candidate)
        return self._stage(candidate.changes, candidate.verdict)

    def _tail(self, verdict: Verdict | None) -> str:
        """The end of the output of tests that do not pass."""
        if verdict is None or verdict.passes:
            return ""
        most = min(_OUTPUT_MOST, math.floor(_OUTPUT_SHARE * self._engine.n_ctx_train))
        return prompt.tail(verdict.output, most, self._count)

    @property
    def _has_learnt(self) -> bool:
        """Whether the model file says that its model has learnt a form of edits, so that it needs
        no instructions and can be held to the form."""
        return self._engine.metadata.get("tgr.edit_format") in get_args(Form)

    @property
    def _thinks(self) -> bool:
        return self._config.thinking and "<think>" in self._engine.chat_template

    def _form(self, context: Context) -> Form:
        """The form that the user asks for, or the model file, or that suits the documents."""
        asked = self._code.edit_format
        if asked == "auto":
            asked = self._engine.metadata.get("tgr.edit_format", asked)
        if asked == "function" and context.functions:
            return "function"
        if self._code.edit_format == "function":
            raise ValueError(
                "edit_format is 'function', but the files have no function whose lines are known; "
                "use 'file'"
            )
        return "file" if asked == "file" else choose_form(context, self._count)

    # ---- a round ----

    def _batch(self, outcome: Outcome, stage: _Stage, allowance: int | None) -> Batch | None:
        """What the next candidates are written with; None where the budget is spent. `allowance` is
        the number of new tokens that a round may still take which goes on; None = it begins."""
        context, k = stage.context, self._code.candidates
        messages = self._messages(stage)
        query = self._tokens(stage.engine, messages)
        needed = self._needed(stage)
        room = self._engine.n_ctx_train - len(query)
        if room < _LEAST_ANSWER:
            raise CapacityError(
                f"the prompt has {len(query)} tokens, but the model was trained for "
                f"{self._engine.n_ctx_train}; lower context_tokens, or name fewer files"
            )
        config = self._limited(min(needed, room), room)
        tests_decide = stage.verdict is not None and not stage.verdict.passes
        copies = self._copies(stage, messages, query) if tests_decide else ()
        if self._code.budget:
            left = self._code.budget - outcome.forward_tokens - len(query)
            read = sum(len(copy.tokens) - len(query) + 1 for copy in copies) + 4 * k * bool(copies)
            if left - read < min(needed, config.token_limit):
                copies, read = (), 0
            left -= read
            while k > 1 and left // k < min(needed, config.token_limit):
                k -= 1
            if left // k < _LEAST_ANSWER:
                outcome.ended = (
                    f"the budget of {self._code.budget:,} forward tokens has no room for another "
                    f"candidate, whose prompt has {len(query):,}"
                )
                return None
            # the prompt is read once, and its cells are shared
            longest = max([len(query), *(len(copy.tokens) for copy in copies)])
            config = dataclasses.replace(
                config,
                max_tokens=min(config.token_limit, left // k),
                max_forward_tokens=longest + left // k,
            )
        if allowance is None:  # as many tokens as whole answers would take
            allowance = 0 if self._code.budget else k * _whole(copies, query)
        first = 1 + sum(len(some) for some in outcome.rounds)
        return Batch(
            query=query,
            documents=context.documents,
            changes=stage.changes,
            form=stage.form,
            functions=context.functions if stage.form == "function" else None,
            is_learnt=self._has_learnt,
            config=dataclasses.replace(config, seed=self._config.seed + first - 1),
            method=self._method,
            k=k,
            first=first,
            n_judges=self._code.test_jobs,
            # a candidate that was stopped would be missing where agreement decides
            stops_early=tests_decide,
            copies=copies,
            # what a departure cannot do, such as change two files, has its turn then
            n_free=math.ceil(k / _FREE) if outcome.rounds and self._code.budget else 0,
            allowance=allowance,
            before=stage.verdict,
            tried=frozenset(one.begun for one in stage.candidates),
            fence=context.fence,
        )

    def _needed(self, stage: _Stage) -> int:
        prose = 0 if self._has_learnt else _PROSE
        return prose + needed_tokens(stage.form, stage.context, self._count)

    def _limited(self, needed: int, room: int) -> SearchConfig:
        """The options of a reply with the limits of an answer, and of thinking before it, where the
        user sets none."""
        config = self._config
        if not config.max_tokens:
            limit = min(room, needed + (_THINKING if self._thinks else 0))
            config = dataclasses.replace(config, max_tokens=limit)
        if self._thinks and not config.answer_tokens:
            kept = min(needed, max(1, config.token_limit - 1))
            config = dataclasses.replace(config, answer_tokens=kept)
        return config

    def _messages(self, stage: _Stage) -> list[prompt.Message]:
        """A round's messages. The best attempt of the stage follows the first two messages, if
        there is room for it; not where candidates depart from the code: such models copy it."""
        user = prompt.user_message(stage.context.text, self._task.text, stage.output)
        plain = prompt.conversation(user)
        best = next(iter(ranked(stage.candidates)), None)
        if best is None or not best.answer or any(one.begun for one in stage.candidates):
            return plain
        if self._has_learnt and not best.applies:
            return plain  # what has learnt a form has learnt nothing of answers that are no edit
        again = prompt.conversation(
            user, best.answer, self._tail(best.verdict), best.problem or "it changes nothing"
        )
        n_tokens = len(self._tokens(stage.engine, again))
        return again if n_tokens + self._needed(stage) <= self._engine.n_ctx_train else plain

    def _copies(
        self, stage: _Stage, messages: list[prompt.Message], query: Sequence[int]
    ) -> tuple[Copy, ...]:
        """The code that a round's answers may depart from: each file that is shown whole, and each
        function of the others, as far as their tokens are not too many; none where a file is to be
        written, or for a model that has learnt a form or thinks before it answers."""
        is_new = any(not document.text for document in stage.context.documents)
        if self._has_learnt or self._thinks or is_new:
            return ()
        config, found, n_tokens = dataclasses.replace(self._config, thinking=False), [], 0
        context = stage.context
        shown = {one.path for one in context.shown if one.how == "whole"}
        if self._code.edit_format == "function":
            shown = set()
        long = {one.path for one in context.documents if self._count(one.text) > _COPIED}
        functions = [one for one in context.functions if one.path not in shown - long]
        for document, opening, code, n_head, function in prompt.beginnings(
            context.documents, functions, context.fence
        ):
            begun = {"role": "assistant", "content": opening + code.rstrip()}
            try:
                tokens = generation.query_tokens(
                    stage.engine, [*messages, begun], config, cancel=self._cancel
                )
            except CapacityError:
                continue
            n_more = max(0, len(tokens) - len(query))
            room = self._engine.n_ctx_train - _LEAST_ANSWER
            if n_tokens + n_more > _COPIED or len(tokens) > room:
                continue
            n_tokens += n_more
            found.append(Copy(document, opening, code, tokens, n_head, function))
        return tuple(found)

    def _tokens(self, engine: Engine, messages: list[prompt.Message]) -> list[int]:
        return generation.query_tokens(engine, messages, self._config, cancel=self._cancel)
