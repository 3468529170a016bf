"""Other forms of a chat's messages, for a template that refuses them or leaves some of them out."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tgr_local.engine.engine import Engine
from tgr_local.engine.templates.messages import plainer
from tgr_local.system import confined
from tgr_local.system.cancel import Cancel
from tgr_local.system.errors import ModelError


def applied(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    request: Mapping[str, Any],
    cancel: Cancel | None = None,
) -> dict[str, Any]:
    """Applies the template to messages, as `Engine.apply_template` does. Where the template refuses
    them, or leaves out a system message, a call or a result, it tries other forms of the messages.
    Raises as `Engine.apply_template` does if none helps."""
    first: dict[str, Any] | ModelError | None = None
    for form in _forms(messages):
        try:
            applied = engine.apply_template({**request, "messages": form}, cancel=cancel)
        except ModelError as error:
            first = first or error
            if not isinstance(error.__context__, confined.FailedError):  # a limit was met
                break
            continue
        if all(word in applied["text"].text for word in _words(messages)):
            return applied
        first = first if isinstance(first, dict) else applied
    if isinstance(first, ModelError):
        raise first from None
    assert first is not None
    return first


def _forms(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The messages as they are, and then as more templates take them."""
    last = list(map(dict, messages))
    yield last
    with contextlib.suppress(KeyError, TypeError):  # a content that is not text
        for form in plainer(messages):
            if form != last:
                yield (last := form)


def _words(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One word of each text that a template may leave out: a word that no template rewrites, so
    that its absence from the prompt tells."""
    for message in messages:
        texts: list[str] = []
        for call in message.get("tool_calls") or ():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                arguments = call["function"]["arguments"]
                texts += _leaves(json.loads(arguments) if isinstance(arguments, str) else arguments)
        if message.get("role") in ("system", "developer", "tool"):
            texts.append(str(message.get("content") or ""))
        for text in texts:
            yield max(_WORD.findall(text), key=len, default="")


_WORD = re.compile(r"(?<![\\A-Za-z0-9])[A-Za-z0-9]+")  # and no end of what JSON has escaped


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)
