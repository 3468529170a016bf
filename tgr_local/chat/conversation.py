"""A conversation with a model: questions in, events of replies out; no terminal and no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tgr_local import generation
from tgr_local.generation import Candidates, Method, Progress, Reply, Step, TextDelta
from tgr_local.options.config import ChatConfig, EngineConfig, SearchConfig
from tgr_local.options.fields import parse, updated
from tgr_local.options.resolve import Resolved, resolve

if TYPE_CHECKING:
    from tgr_local.console.live import Events, OnReplyEvent
    from tgr_local.engine import Engine

_N_SEEDS = 2**63


@dataclass(frozen=True)
class Turn:
    """A question and its answer, which is empty if it never began."""

    question: str
    answer: str = ""
    thinking: str = ""


@dataclass
class Unfinished:
    """The chunk that a reply was writing when it was stopped."""

    chunk: int
    stage: str = ""
    """Stage of the work, as in `Progress.stage`."""
    candidates: Candidates | None = None
    """Candidates, once they are scored."""
    tokens: list[int] = field(default_factory=list)

    def update(self, progress: Progress) -> None:
        self.stage = progress.stage
        self.candidates = progress.candidates or self.candidates
        self.tokens += progress.tokens


class Conversation:
    """The turns so far, and the model, method and options of the next reply.

    `user_options` are the fields of `SearchConfig` that the user set. They hold for every model and
    override what a model file advises. Where nobody names a seed, every reply has a random one.
    """

    def __init__(
        self,
        engine: Engine,
        user_options: Mapping[str, Any],
        method: str | Method,
        chat_config: ChatConfig | None = None,
    ) -> None:
        self.engine, self.method = engine, generation.method_named(method)
        self.chat_config = chat_config or ChatConfig()
        self.user_options = dict(user_options)
        self.system = ""
        self.turns: list[Turn] = []
        self.replies: list[Reply] = []
        """All finished replies, also those that were replaced: the cost of the conversation."""
        self.steps: list[Step] = []
        """Steps of the last reply."""
        self.unfinished: Unfinished | None = None
        """The unfinished chunk of the last reply, if it was stopped within one."""
        self._attempts = 0  # further replies to the last question; each has its own seed

    @property
    def config(self) -> SearchConfig:
        """The options of the next reply."""
        return self.resolved.config

    @property
    def resolved(self) -> Resolved:
        """The options of the next reply, with the source of each."""
        sources = dict.fromkeys(self.user_options, "set here")
        return resolve(self.engine.metadata, self.user_options, sources, for_people=True)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages before the next question: without thinking, and without turns that have no
        answer."""
        return self._messages(self.turns)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            if turn.answer:
                messages.append({"role": "user", "content": turn.question})
                messages.append({"role": "assistant", "content": turn.answer})
        return messages

    # ---- replies ----

    def ask(self, question: str) -> Events:
        """The events of the reply to a new question.

        An interrupted reply keeps its text so far; a question without an answer stays in the
        conversation until the next question.
        """
        earlier = [turn for turn in self.turns if turn.answer]
        self.turns = [*earlier, Turn(question)]
        self._attempts = 0
        return self._reply(earlier, question)

    def ask_again(self) -> Events:
        """The events of another reply to the last question. It replaces the last one as soon as its
        answer begins."""
        question = self.last.question
        self._attempts += 1
        return self._reply(self.turns[:-1], question)

    def ask_last(self) -> Events:
        """The events of the reply to the last question, which has none yet."""
        return self._reply(self.turns[:-1], self.last.question)

    def _reply(self, earlier: list[Turn], question: str) -> Events:
        texts = {"answer": "", "thinking": ""}
        self.steps, self.unfinished = [], None
        events = generation.stream(
            self.engine, self.prompt(earlier, question), self._next_config(), method=self.method
        )
        try:
            for event in events:
                if isinstance(event, TextDelta):
                    texts[event.kind] += event.text
                elif isinstance(event, Progress):
                    if self.unfinished is None or self.unfinished.chunk != event.chunk:
                        self.unfinished = Unfinished(event.chunk)
                    self.unfinished.update(event)
                elif isinstance(event, Step):
                    self.steps.append(event)
                    self.unfinished = None
                elif isinstance(event, Reply):
                    self.replies.append(event)
                    self.unfinished = None
                yield event
        finally:
            answer, thinking = texts["answer"].strip(), texts["thinking"].strip()
            if answer or not self.last.answer:
                self.turns = [*earlier, Turn(question, answer, thinking)]

    def ask_many(self, k: int, on_event: OnReplyEvent) -> list[Reply]:
        """k other replies to the last question, written together; `replace_last` accepts one."""
        prompt = self.prompt(self.turns[:-1], self.last.question)
        self._attempts += 1
        replies = generation.generate_many(
            self.engine, prompt, self._next_config(), k, method=self.method, on_event=on_event
        )
        self._attempts += k - 1
        self.replies += replies
        return replies

    def replace_last(self, reply: Reply) -> None:
        """Makes `reply` the reply to the last question."""
        self.turns[-1] = Turn(self.last.question, reply.text, reply.thinking)
        self.steps, self.unfinished = reply.steps, None

    def tokens(self) -> list[int]:
        """Tokens that the prompt of the next question begins with; the last ones may differ."""
        return generation.query_tokens(self.engine, self.prompt(self.turns, ""), self.config)

    @property
    def last(self) -> Turn:
        """The last turn. ValueError if there is none."""
        if not self.turns:
            raise ValueError("there is no question yet: ask something first")
        return self.turns[-1]

    def prompt(self, earlier: Sequence[Turn], question: str) -> list[dict[str, str]]:
        """The messages of a question after some turns."""
        return [*self._messages(earlier), {"role": "user", "content": question}]

    def _next_config(self) -> SearchConfig:
        """The config with the seed of the next attempt."""
        config = self.config
        return dataclasses.replace(config, seed=(config.seed + self._attempts) % _N_SEEDS)

    # ---- what the next reply depends on ----

    def undo(self) -> Turn:
        """Removes the last turn and returns it."""
        last = self.last
        self.turns = self.turns[:-1]
        self._forget_reply()
        return last

    def clear(self) -> None:
        """Removes all turns; the system prompt stays."""
        self.turns = []
        self._forget_reply()

    def _forget_reply(self) -> None:
        self.steps, self.unfinished, self._attempts = [], None, 0

    def set_method(self, method: str) -> None:
        """Sets the method of the next replies. ValueError for an unknown one."""
        self.method = generation.method_named(method)

    def set_option(self, name: str, text: str) -> None:
        """Sets an option of `SearchConfig` or `ChatConfig` from its text; `none` empties an option
        that may be empty. ValueError for an unknown option or a bad value."""
        if name in EngineConfig.__dataclass_fields__:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{name} is fixed when the model is loaded: start again with {flag}")
        if name in ChatConfig.__dataclass_fields__:
            self.chat_config = updated(self.chat_config, {name: parse(ChatConfig, name, text)})
            return
        default = getattr(SearchConfig(), name, None)
        empties = text == "none" and default in ("", ())
        value = default if empties else parse(SearchConfig, name, text)
        updated(self.config, {name: value})
        self.user_options[name] = value

    def load_model(self, path: Any) -> None:
        """Continues with another model. ModelError if it cannot be loaded; then, and after Ctrl-C,
        the old model stays."""
        from tgr_local.engine import Engine

        old = self.engine
        try:
            old.close()  # both together may not fit into memory; Ctrl-C may end the wait
            self.engine = Engine(path, old.config)
        except BaseException:
            self.engine = Engine(old.path, old.config)
            raise
        self.steps, self.unfinished = [], None
