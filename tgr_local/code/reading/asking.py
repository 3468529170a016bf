"""The request to the model: the messages, the code that answers may depart from, and the limits of
an answer.

In: an engine, options, what the tests said. Out: messages, tokens, limits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from tgr_local import generation
from tgr_local.code.edits import Change, Function
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import ranked
from tgr_local.code.reading import lacking, prompt
from tgr_local.code.reading.context import Context
from tgr_local.code.reading.evidence import Lines
from tgr_local.code.reading.prompt import Copy, Form
from tgr_local.engine import Cancel, Engine
from tgr_local.options.config import CodeConfig, SearchConfig
from tgr_local.system.errors import CapacityError, TgrError

_OUTPUT_MOST, _OUTPUT_SHARE = 1024, 0.25  # tokens, of the length that the model was trained for
_THINKING = 2048  # tokens, where the user sets no limit
_SMALL_FILE, _MIDDLE_FILE = 512, 1536  # tokens
_NEW_FILE = 768  # tokens of a file that is empty so far
_COPIED = 4096  # tokens of the code that answers depart from
_PROSE = 256  # tokens, around the code
_REPAIRS = "tgr-mini-code"
"""The embedded model, which has learnt repairs by failing tests and no other tasks."""
LEAST_ANSWER = 32
"""The fewest tokens that an answer must have room for."""


@dataclass(frozen=True)
class Stage:
    """Common state of candidates that begin with the same edit."""

    changes: tuple[Change, ...]
    """Changes of the project's files that all candidates of the stage begin with."""
    verdict: Verdict | None
    """Verdict of the tests with them; None without tests."""
    output: str
    """The end of what failing tests print."""
    context: Context
    form: Form
    grammar: str
    """Grammar of the answers of a model that has learnt a form of edits; empty = they are free."""
    unreached: Mapping[str, tuple[Lines, ...]] = field(default_factory=dict)
    """The functions of each file that the failing tests do not reach."""
    lacks_names: bool = False
    """Whether tests cannot begin because a name or a file that they import is not there."""
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def functions(self) -> tuple[Function, ...] | None:
        """Functions that may be changed, with the form ``function``; None = all of Python files."""
        return self.context.functions if self.form == "function" else None


def choose_form(context: Context, count: prompt.CountTokens) -> Form:
    """Returns the form of answers about these documents: whole files if they are short or have no
    known functions, else whole functions."""
    if any(file.changeable and file.how != "whole" for file in context.shown):
        return "function"
    n_tokens = sum(count(document.text) for document in context.documents)
    is_new = any(not document.text for document in context.documents)
    if n_tokens <= (_MIDDLE_FILE if is_new else _SMALL_FILE):
        return "file"
    return "function" if context.functions else "file"


def whole_answer(copies: Sequence[Copy], query: Sequence[int]) -> int:
    """The tokens of an answer that repeats all files that are copied whole, or the longest
    function."""
    sizes = [(copy, len(copy.tokens) - len(query)) for copy in copies]
    files = sum(n for copy, n in sizes if copy.function is None)
    return max([files, *(n for _, n in sizes)])


class Asker:
    """Makes the request to a model for a task, by the options of a reply and of the assistant."""

    def __init__(
        self, engine: Engine, task: str, config: SearchConfig, code: CodeConfig, cancel: Cancel
    ) -> None:
        self._engine, self._task, self._cancel = engine, task, cancel
        self._config, self._code = config, code

    def count(self, text: str) -> int:
        """The number of tokens of a text."""
        return len(self._engine.tokenize(text, parse_special=False))

    def tail(self, verdict: Verdict | None) -> str:
        """The end of the output of tests that do not pass."""
        if verdict is None or verdict.passes:
            return ""
        most = min(_OUTPUT_MOST, math.floor(_OUTPUT_SHARE * self._engine.n_ctx_train))
        return prompt.tail(verdict.output, most, self.count)

    @property
    def has_learnt(self) -> bool:
        """Whether the model file says that its model has learnt a form of edits, so that it needs
        no instructions and can be held to the form."""
        return self._engine.metadata.get("tgr.edit_format") in get_args(Form)

    def check(
        self, context: Context, form: Form, verdict: Verdict | None, named_paths: Sequence[str] = ()
    ) -> None:
        """Raises TgrError for a task that the model cannot do, where it has learnt to write Python
        functions and nothing else."""
        if self._engine.metadata.get("tgr.edit_format") != "function":
            return
        name = self._engine.metadata.get("general.name") or self._engine.path.stem
        known = {f.path for f in context.functions if f.path.endswith((".py", ".pyi"))}
        unknown = [d.path for d in context.documents if d.path not in known]
        mixed = {f.path for f in context.functions} - known
        wanted = [path for path in unknown if path in named_paths]
        why = ""
        if unknown and (not known or mixed or wanted or form == "file"):
            why = f"{(wanted or unknown)[0]} has no Python function"
        elif name == _REPAIRS and (verdict is None or verdict.passes):
            why = "no test fails here" if verdict else "no tests are named (--test)"
        if why:
            raise TgrError(
                f"{name} repairs small Python functions by their failing tests, and can do nothing "
                f"else, but {why}; name another model with -m MODEL (tgr-local models lists them)"
            )

    @property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers."""
        return self._config.thinking and "<think>" in self._engine.chat_template

    def form(self, context: Context) -> Form:
        """The form that the user asks for, or the model file, or that suits the documents."""
        form = self._code.edit_format
        if form == "auto":
            form = self._engine.metadata.get("tgr.edit_format", form)
        if form == "function" and context.functions:
            return "function"
        if self._code.edit_format == "function":
            raise ValueError(
                "edit_format is 'function', but the files have no function whose lines are known; "
                "use 'file'"
            )
        return "file" if form == "file" else choose_form(context, self.count)

    def needed_tokens(self, stage: Stage) -> int:
        """The new tokens that an answer may take: enough for the largest edit of its form, and for
        prose around the code."""
        prose, documents = 0 if self.has_learnt else _PROSE, stage.context.documents
        if stage.form == "file":
            sizes = [self.count(document.text) or _NEW_FILE for document in documents]
            return prose + 64 + math.ceil(1.25 * sum(sizes)) + 96 * len(sizes)
        lines = {document.path: document.text.split("\n") for document in documents}
        functions = stage.context.functions
        sources = ("\n".join(lines[f.path][f.first - 1 : f.last]) for f in functions)
        return prose + 192 + math.ceil(1.5 * max(map(self.count, sources)))

    def with_limits(self, needed: int, room: int) -> SearchConfig:
        """The options of a reply with the limit of an answer, and of thinking before it, where the
        user sets none."""
        if self._config.max_tokens:
            return self._config
        limit = min(room, needed + (_THINKING if self.thinks else 0))
        return dataclasses.replace(self._config, max_tokens=limit)

    def messages(self, stage: Stage) -> list[prompt.Message]:
        """The messages of a round. The best attempt of the stage follows the first two messages, if
        there is room for it. It is left out where candidates depart from the code, because the
        models for which that is done would copy it."""
        lacks = stage.verdict.lacks if stage.verdict is not None else ()
        said = lacking.sentence(lacks) if len(lacks) > 1 else ""
        user = prompt.user_message(stage.context.text, self._task, stage.output, said)
        plain = prompt.conversation(user)
        best = next(iter(ranked(stage.candidates)), None)
        if best is None or not best.answer or any(c.begun for c in stage.candidates):
            return plain
        if self.has_learnt and not best.applies:
            return plain  # what has learnt a form has learnt nothing of answers that are no edit
        again = prompt.conversation(
            user, best.answer, self.tail(best.verdict), best.problem or "it changes nothing"
        )
        n_tokens = len(self.tokens(again, stage.grammar))
        return again if n_tokens + self.needed_tokens(stage) <= self._engine.n_ctx_train else plain

    def copies(
        self, stage: Stage, messages: list[prompt.Message], query: Sequence[int]
    ) -> tuple[Copy, ...]:
        """The code that a round's answers may depart from: each file that is shown whole, and each
        function of the other files, as long as the total of their tokens is not too large. None
        where a file is to be written, or for a model that has learnt a form or thinks before it
        answers."""
        is_new = any(not document.text for document in stage.context.documents)
        if self.has_learnt or self.thinks or is_new:
            return ()
        config, copies, n_tokens = dataclasses.replace(self._config, thinking=False), [], 0
        context = stage.context
        whole_files = {file.path for file in context.shown if file.how == "whole"}
        if self._code.edit_format == "function":
            whole_files = set()
        long = {d.path for d in context.documents if self.count(d.text) > _COPIED}
        functions = [f for f in context.functions if f.path not in whole_files - long]
        for copy in prompt.copies(context.documents, functions, context.fence):
            begun = {"role": "assistant", "content": copy.opening + copy.code.rstrip()}
            try:
                tokens = generation.query_tokens(
                    self._engine, [*messages, begun], config, cancel=self._cancel
                )
            except CapacityError:
                continue
            n_more = max(0, len(tokens) - len(query))
            room = self._engine.n_ctx_train - LEAST_ANSWER
            if n_tokens + n_more > _COPIED or len(tokens) > room:
                continue
            n_tokens += n_more
            unreached = stage.unreached.get(copy.document.path, ())
            copies.append(dataclasses.replace(copy, tokens=tokens, unreached=unreached))
        return tuple(copies)

    def tokens(self, messages: list[prompt.Message], grammar: str) -> list[int]:
        """Returns the tokens of messages in the model's chat template, before answers of a
        grammar."""
        config = self.with_grammar(self._config, grammar)
        return generation.query_tokens(self._engine, messages, config, cancel=self._cancel)

    def with_grammar(self, config: SearchConfig, grammar: str) -> SearchConfig:
        """Returns the options of a reply that follows a grammar of edits; only the end of the
        grammar ends it. Without a grammar the options are unchanged."""
        ends: dict[str, Any] = {"grammar": grammar, "stop": (), "loop_guard": 0}
        return dataclasses.replace(config, **ends) if grammar else config
