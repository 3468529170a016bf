"""A conversation with a model: questions in, events out. It knows no terminal and no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tgr_local import generation, methods
from tgr_local.generation import Event, Reply
from tgr_local.generation.text import TextDelta
from tgr_local.options.config import (
    ChatConfig,
    EngineConfig,
    SearchConfig,
)
from tgr_local.options.fields import parse, updated
from tgr_local.options.resolve import Resolved, resolve
from tgr_local.search.steps import Step

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.trace.live import Events

_SEEDS = 2**63


@dataclass(frozen=True)
class Turn:
    """A question and what came of it; an answer that never began is empty."""

    question: str
    answer: str = ""
    thinking: str = ""


class Chat:
    """The turns so far, and the model, method and options of the next one.

    `chosen` are the search options that the user set: they hold for any model, and over what a
    model file advises.
    """

    def __init__(
        self,
        engine: Engine,
        chosen: Mapping[str, Any],
        method: str,
        options: ChatConfig | None = None,
    ) -> None:
        self.engine, self.method = engine, method
        self.options = options or ChatConfig()
        self.chosen = dict(chosen)
        self.system = ""
        self.turns: list[Turn] = []
        self.replies: list[Reply] = []
        """All that were finished, whether kept or not: what the conversation has cost."""
        self.steps: list[Step] = []
        """Of the last reply."""
        self._attempts = 0  # replies to the last question so far, each with a seed of its own

    @property
    def config(self) -> SearchConfig:
        """The options of the next reply."""
        return self.resolved.config

    @property
    def resolved(self) -> Resolved:
        """The same with the origin of each."""
        return resolve(self.engine.metadata, self.chosen, dict.fromkeys(self.chosen, "set here"))

    @property
    def messages(self) -> list[dict[str, str]]:
        """What the next question follows. Thinking is no part of it, nor a turn that has no
        answer."""
        return self._messages(self.turns)

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        found = [{"role": "system", "content": self.system}] if self.system else []
        for turn in turns:
            if turn.answer:
                found.append({"role": "user", "content": turn.question})
                found.append({"role": "assistant", "content": turn.answer})
        return found

    # --- replies ---

    def turn(self, question: str) -> Events:
        """The events of the reply to a new question. What was written stays when it is
        interrupted; a question without an answer stays until the next one."""
        before = [turn for turn in self.turns if turn.answer]
        self.turns = [*before, Turn(question)]
        self._attempts = 0
        return self._reply(before, question)

    def again(self) -> Events:
        """Another reply to the last question, in the place of the first as soon as it answers."""
        question = self.last.question
        self._attempts += 1
        return self._reply(self.turns[:-1], question)

    def _reply(self, before: list[Turn], question: str) -> Events:
        written = {"answer": "", "thinking": ""}
        self.steps = []
        events = generation.stream(
            self.engine, self._prompt(before, question), self._seeded(), method=self.method
        )
        try:
            for event in events:
                if isinstance(event, TextDelta):
                    written[event.kind] += event.text
                elif isinstance(event, Step):
                    self.steps.append(event)
                elif isinstance(event, Reply):
                    self.replies.append(event)
                yield event
        finally:
            answer, thinking = written["answer"].strip(), written["thinking"].strip()
            if answer or not self.last.answer:
                self.turns = [*before, Turn(question, answer, thinking)]

    def several(self, k: int, on_event: Callable[[int, Event], None]) -> list[Reply]:
        """k other replies to the last question, written together; `keep` takes one of them."""
        prompt = self._prompt(self.turns[:-1], self.last.question)
        self._attempts += 1
        replies = generation.generate_many(
            self.engine, prompt, self._seeded(), k, method=self.method, on_event=on_event
        )
        self._attempts += k - 1
        self.replies += replies
        return replies

    def keep(self, reply: Reply) -> None:
        """Puts a reply in the place of the last one."""
        self.turns[-1] = Turn(self.last.question, reply.text, reply.thinking)
        self.steps = reply.steps

    @property
    def last(self) -> Turn:
        """The last turn. ValueError if there is none."""
        if not self.turns:
            raise ValueError("there is no question yet: ask something first")
        return self.turns[-1]

    def _prompt(self, before: Sequence[Turn], question: str) -> list[dict[str, str]]:
        return [*self._messages(before), {"role": "user", "content": question}]

    def _seeded(self) -> SearchConfig:
        config = self.config
        return dataclasses.replace(config, seed=(config.seed + self._attempts) % _SEEDS)

    # --- what the next reply depends on ---

    def undo(self) -> Turn:
        """Takes the last turn back and returns it."""
        last = self.last
        self.turns = self.turns[:-1]
        self.steps, self._attempts = [], 0
        return last

    def clear(self) -> None:
        """Forgets the turns; the system prompt stays."""
        self.turns, self.steps, self._attempts = [], [], 0

    def use(self, method: str) -> None:
        """Replies by another method. ValueError for an unknown one."""
        methods.get(method)
        self.method = method

    def set(self, name: str, text: str) -> None:
        """Sets an option to what a person wrote; `none` empties one that may be empty. ValueError
        for a bad one."""
        if name in _names(EngineConfig):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{name} is fixed when the model is loaded: start again with {flag}")
        if name in _names(ChatConfig):
            self.options = updated(self.options, {name: parse(ChatConfig, name, text)})
            return
        empty = getattr(SearchConfig(), name, None)
        value = empty if text == "none" and empty in ("", ()) else parse(SearchConfig, name, text)
        updated(self.config, {name: value})
        self.chosen[name] = value

    def load(self, path: Any) -> None:
        """Goes on with another model. If that cannot be loaded the old one stays; ModelError."""
        from tgr_local.engine import Engine

        old = self.engine
        old.close()  # two may not fit
        try:
            self.engine = Engine(path, old.config)
        except Exception:
            self.engine = Engine(old.path, old.config)
            raise
        self.steps = []


def _names(config_type: Any) -> set[str]:
    return {spec.name for spec in dataclasses.fields(config_type)}
