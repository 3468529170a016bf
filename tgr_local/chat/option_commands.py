"""Commands that change how the next reply is written, or show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from tgr_local.chat.session import ChatSession
from tgr_local.generation import METHODS
from tgr_local.options import model_files, settings
from tgr_local.options.config import ChatConfig, SearchConfig
from tgr_local.options.resolve import FOR_PEOPLE
from tgr_local.system.progress import ProgressLine
from tgr_local.system.sanitize import printable_line

_LIMITS = ("max_forward_tokens", "max_seconds", "thinking_budget")
_THINK = {
    "on": ("thinking", "on"),
    "off": ("thinking", "off"),
    "show": ("show_thinking", "on"),
    "hide": ("show_thinking", "off"),
}


def model(session: ChatSession, argument: str) -> Iterator[str]:
    conversation = session.conversation
    if argument:
        path = model_files.find(argument)
        model_files.card(path)  # a file that is not a model is refused before the old one is closed
        session.leave()
        with ProgressLine(f"loading {path}"):
            conversation.load_model(path)
        if file := session.path or next(iter(session.saved.copies), None):
            session.arrive(file, other_model=True)
    engine = conversation.engine
    devices = ", ".join(dict.fromkeys(engine.devices()))
    yield f"{engine.description} ({engine.path}) on {devices}"
    if engine.template_warning:
        yield engine.template_warning
    if not argument:
        yield f"models here: {', '.join(path.stem for path in model_files.local())}"


def method(session: ChatSession, name: str) -> Iterable[str]:
    if name:
        session.conversation.set_method(name)
    chosen = session.conversation.method
    if name:
        return [f"method {chosen.name}: {chosen.about}"]
    marks = {name: "*" if name == chosen.name else " " for name in METHODS}
    return [f"{marks[name]} {name:16}  {known.about}" for name, known in METHODS.items()]


def set_option(session: ChatSession, argument: str) -> Iterable[str]:
    if argument in ("", "changed", "all"):
        return _list_options(session, argument)
    name, _, text = argument.replace("=", " ", 1).partition(" ")
    if name and (text.strip() or name not in _values(session)):
        session.conversation.set_option(name, text.strip())
    return [_option(name, *_values(session)[name])]


def _list_options(session: ChatSession, selection: str) -> Iterator[str]:
    """The options that the method uses, those that are not the default, or all."""
    conversation, values = session.conversation, _values(session)
    default = dataclasses.asdict(SearchConfig()) | dataclasses.asdict(ChatConfig())
    default |= FOR_PEOPLE
    of_search = {spec.name for spec in dataclasses.fields(SearchConfig)}
    n_hidden = n_shown = 0
    for name, (value, doc) in values.items():
        if selection == "changed" and value == default[name]:
            continue
        if not selection and name in of_search and not conversation.method.uses(name):
            n_hidden += 1
            continue
        n_shown += 1
        yield _option(name, value, doc)
    if n_hidden:
        used_by = conversation.method.name
        yield f"/set all shows {n_hidden} more, which {used_by} does not use; /set changed fewer"
    if not n_shown:
        yield "nothing differs from the defaults"


def _values(session: ChatSession) -> dict[str, tuple[Any, str]]:
    """The value and the meaning of every option that can be set here."""
    conversation = session.conversation
    of_chat = dataclasses.asdict(conversation.chat_config)
    values = conversation.resolved.shown() | of_chat
    specs = (*dataclasses.fields(SearchConfig), *dataclasses.fields(ChatConfig))
    return {spec.name: (values[spec.name], spec.metadata["doc"]) for spec in specs}


def _option(name: str, value: Any, doc: str) -> str:
    return f"{name:18}  {printable_line(settings.as_text(value)):10}  {doc}"


def think(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument:
        if argument not in _THINK:
            raise ValueError(f"/think is {argument!r}, but must be on, off, show or hide")
        conversation.set_option(*_THINK[argument])
    state = "shown" if conversation.chat_config.show_thinking else "not shown"
    if conversation.config.thinking:
        return [f"a model that can think does so before its answer; the thinking is {state}"]
    return [f"the model answers without thinking first; thinking, if there is any, is {state}"]


def markdown(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument:
        conversation.set_option("markdown", argument)
    return [f"Markdown is {'formatted' if conversation.chat_config.markdown else 'shown as it is'}"]


def budget(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument in ("off", "none"):
        for name in _LIMITS:
            conversation.set_option(name, "0")
    elif argument.partition(" ")[0] == "thinking":
        conversation.set_option("thinking_budget", argument.removeprefix("thinking").strip())
    elif argument.endswith("s"):
        conversation.set_option("max_seconds", argument[:-1])
    elif argument:
        conversation.set_option("max_forward_tokens", argument)
    config = conversation.config
    limits = [f"{name} {value}" for name in _LIMITS if (value := getattr(config, name))]
    return [f"limits of one reply: {', '.join(limits) or 'none'}"]
