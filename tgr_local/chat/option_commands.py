"""Commands that change how the next reply is written, or show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from tgr_local import methods
from tgr_local.chat.session import ChatSession
from tgr_local.models import library
from tgr_local.options import settings
from tgr_local.options.config import ChatConfig, SearchConfig

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
        path = library.find(argument)
        library.card(path)  # a file that is no model is refused before the old one is closed
        session.leave()
        conversation.load_model(path)
        if file := session.path or next(iter(session.other_files), None):
            session.arrive(file)
    engine = conversation.engine
    devices = ", ".join(dict.fromkeys(engine.devices()))
    yield f"{engine.description} ({engine.path}) on {devices}"
    if engine.template_warning:
        yield engine.template_warning
    if not argument:
        yield f"models here: {', '.join(path.stem for path in library.local())}"


def method(session: ChatSession, name: str) -> Iterable[str]:
    if name:
        session.conversation.set_method(name)
    return [f"method {session.conversation.method.name}; all methods: {', '.join(methods.METHODS)}"]


def set_option(session: ChatSession, argument: str) -> Iterable[str]:
    name, _, text = argument.replace("=", " ", 1).partition(" ")
    if name and (text.strip() or name not in _values(session)):
        session.conversation.set_option(name, text.strip())
    values = _values(session)
    return [_option(each, *values[each]) for each in ([name] if name else values)]


def _values(session: ChatSession) -> dict[str, tuple[Any, str]]:
    """The value and the meaning of every option that can be set here."""
    conversation = session.conversation
    of_chat = dataclasses.asdict(conversation.chat_config)
    values = conversation.resolved.shown() | of_chat
    specs = (*dataclasses.fields(SearchConfig), *dataclasses.fields(ChatConfig))
    return {spec.name: (values[spec.name], spec.metadata["doc"]) for spec in specs}


def _option(name: str, value: Any, doc: str) -> str:
    return f"{name:18}  {settings.as_text(value):10}  {doc}"


def think(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument:
        if argument not in _THINK:
            raise ValueError(f"/think is {argument!r}, but must be on, off, show or hide")
        conversation.set_option(*_THINK[argument])
    on = "on" if conversation.config.thinking else "off"
    shown = "shown" if conversation.chat_config.show_thinking else "hidden"
    return [f"thinking is {on} and {shown}"]


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
