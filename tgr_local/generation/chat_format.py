"""A chat in the model's template: the query, and how the replies to it are written and read.

In: messages, functions that the model may call, a config. Out: a `ChatQuery`. llama.cpp's chat code
makes all of it, from the template; `tgr_local.system.confined` runs it with limits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tgr_local.engine import Cancel, Engine, GrammarTrigger, PromptText
from tgr_local.engine.templates.forms import applied as applied_template
from tgr_local.engine.templates.messages import Part, begun_parts
from tgr_local.generation.prompt import Query, check_begun, opening, tokens_within
from tgr_local.generation.request import ReplyFormat
from tgr_local.generation.schemas import followable
from tgr_local.generation.text import KINDS
from tgr_local.options.config import SearchConfig
from tgr_local.system import confined
from tgr_local.system.errors import ModelError
from tgr_local.system.think_tags import AFTER_THINK, CLOSE_THINK, CLOSING, OPEN_THINK

_PROBE = "The answer is 42."


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call."""

    functions: Sequence[Mapping[str, Any]] = ()
    """Each with a name, and perhaps a description and the JSON schema of its parameters."""
    choice: str = "auto"
    """"none", "auto" or "required"."""
    named: str = ""
    """The function that must be called; empty = any."""
    parallel: bool | None = None
    """Whether one reply may have several calls; None = as the template has it."""

    @property
    def callable(self) -> bool:
        return bool(self.functions) and self.choice != "none"


@dataclass(frozen=True)
class ChatQuery(Query):
    """A query, and the format of the replies to it. With a `form`, that has what is `begun`."""

    form: ReplyFormat | None = None
    """None: a reply is plain text, its thinking within ``<think>`` tags."""
    grammar: str = ""
    """GBNF that an answer must follow from its beginning; empty = none."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""
    unfollowed: tuple[str, ...] = ()
    """Places in the schemas of functions that the calls do not follow."""


def chat_query(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    config: SearchConfig,
    *,
    tools: Tools | None = None,
    variables: Mapping[str, Any] | None = None,
    as_text: bool = False,
    continued: Part | None = None,
    bounded: bool = True,
    cancel: Cancel | None = None,
) -> ChatQuery:
    """The messages in the model's template. `variables` are given to the template. With `as_text`
    a reply is not read in a format unless it may have calls. `continued` is the part of the last
    message that the replies go on with. A query that is not `bounded` may be of any length.

    Raises ModelError for a model without a template, ValueError for functions that make no usable
    grammar, CapacityError for a prompt that is far too long, and CancelledError by `cancel`.
    """
    tools = tools or Tools()
    request: dict[str, Any] = {
        "messages": [template_message(message) for message in messages],
        "thinking": config.thinking,
        "variables": dict(variables or {}),
    }
    thinking, content = begun_parts(messages, continued)
    kind = KINDS[continued] if continued else None
    if continued:
        request["continued"] = continued
        request["thinking"] = bool(thinking) and (config.thinking or kind == "thinking")
    if tools.functions:
        request["tools"] = _listed(tools.functions)
        request["tool_choice"] = "required" if tools.named else tools.choice
        if tools.parallel is not None:
            request["parallel"] = tools.parallel
    is_text = as_text or is_plain(engine, cancel)
    if not tools.callable and is_text:
        applied = applied_template(
            engine, request["messages"], {**request, "only_prompt": True}, cancel
        )
        if continued:
            if config.grammar and content:
                check_begun(engine, config.grammar, content)
            tokens = tokens_within(engine, applied["text"], bounded=bounded)
            return ChatQuery(tokens, content, kind)
        opened = opening(engine.chat_template, applied["prompt"], config, bool(config.grammar))
        return ChatQuery(tokens_within(engine, applied["text"] + opened, bounded=bounded))
    # the prompt describes all functions as they are given; the calls have shapes of their schemas
    callable_ones = [f for f in tools.functions if f["name"] == tools.named or not tools.named]
    shapes = followable(callable_ones, cancel.check if cancel else None)
    if tools.functions:
        read = {**request, "tools": _listed(shapes.functions)}
        applied = applied_template(engine, request["messages"], read, cancel)
        applied["text"] = _prompt(engine, request, applied, cancel)
        applied["grammar"] = shapes.complete(applied["grammar"])
    else:
        applied = applied_template(engine, request["messages"], request, cancel)
    if tools.callable and not applied["grammar"] and request.get("tool_choice") == "required":
        raise ValueError("no call can be forced in this model's template; use tool_choice auto")
    if request.get("tool_choice") == "required":
        # a call that is forced comes first, or a weak model would never begin it
        applied["grammar"] = _TEXT_BEFORE.sub(r"\1\2", applied["grammar"])
    if tools.parallel is False:
        applied["grammar"] = _SEVERAL.sub(r"\1", applied["grammar"])
    if config.grammar and applied["lazy"]:  # an answer follows it, or is a call
        calls = _NO_CALL.sub(r"\1", applied["grammar"])
        applied["grammar"], applied["lazy"] = _either(config.grammar, calls), False
    is_forced = bool(config.grammar or (applied["grammar"] and not applied["lazy"]))
    opened = (
        "" if continued else opening(applied["think_tag"], applied["text"].text, config, is_forced)
    )
    form = _format(engine, applied, opened, content)
    is_free = tools.callable and not config.grammar
    names = tuple(str(function["name"]) for function in callable_ones) if is_free else ()
    if config.grammar and content and not form.grammar_prefix:
        check_begun(engine, config.grammar, content)
        grammar = applied["grammar"] or config.grammar
        form = dataclasses.replace(form, grammar=grammar, grammar_prefix=content)
    return ChatQuery(
        tokens=tokens_within(engine, applied["text"] + opened, bounded=bounded),
        form=dataclasses.replace(
            form, begun=(thinking, content), names=names, parallel=tools.parallel is not False
        ),
        continued=kind,
        grammar="" if applied["lazy"] else applied["grammar"],
        stop=tuple(text for text in applied["stop"] if text),
        unfollowed=tuple(shapes.unfollowed if tools.callable else ()),
    )


def _listed(functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": dict(function)} for function in functions]


def _prompt(
    engine: Engine, request: dict[str, Any], applied: Mapping[str, Any], cancel: Cancel | None
) -> PromptText:
    """The prompt with the functions as they are given, as far as the template takes them."""
    text: PromptText = applied["text"]
    for more in ({}, {"only_prompt": True}):  # the first makes a grammar too, and may fail at that
        try:
            rendered = applied_template(engine, request["messages"], {**request, **more}, cancel)
            text = rendered["text"]
            break
        except ModelError:
            continue
    return text


def is_plain(engine: Engine, cancel: Cancel | None = None) -> bool:
    """Whether the template's replies are plain text, with thinking within ``<think>`` tags."""
    key = (engine.chat_template, engine.bos, engine.eos)
    if key not in _plain:
        request = {"messages": [{"role": "user", "content": "hi"}]}
        try:
            applied = engine.apply_template(request, cancel=cancel)
            prefix = applied["generation_prompt"]
            closing = CLOSE_THINK + AFTER_THINK if _is_open(prefix) else ""
            parser = (applied["format"], applied["parser"], prefix)
            read = confined.parse(parser, closing + _PROBE, partial=False, cancel=cancel)
            tags = applied["think_tag"] in ("", OPEN_THINK)
            is_plain = tags and read["content"].strip() == _PROBE
        except confined.FailedError:
            is_plain = True
        except confined.ConfinedError:
            return True  # perhaps not the next time
        if len(_plain) >= _PLAIN_MOST:
            _plain.clear()
        _plain[key] = is_plain
    return _plain[key]


_plain: dict[tuple[str, int | None, int | None], bool] = {}
_PLAIN_MOST = 64


def template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what is null, its calls complete."""
    cleaned = {key: value for key, value in message.items() if value is not None}
    if "content" not in cleaned:
        cleaned["content"] = ""
    calls = cleaned.pop("tool_calls", None)
    if calls:
        cleaned["tool_calls"] = [_call(call) for call in calls]
    return cleaned


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = value = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # it was cut off
            value = json.loads(arguments)
    if not isinstance(value, dict):  # a template that wants an object gets one
        arguments = json.dumps({} if value is None else {"arguments": value})
    function["arguments"] = arguments
    rebuilt = {"type": "function", "function": function}
    return rebuilt | ({"id": call["id"]} if call.get("id") else {})


def _is_open(text: str) -> bool:
    return text.rstrip().endswith(OPEN_THINK)


def _format(
    engine: Engine, applied: Mapping[str, Any], opened: str, begun: str = ""
) -> ReplyFormat:
    prefix, grammar = applied["generation_prompt"] + opened, applied["grammar"]
    grammar_prefix, trigger = "", None
    if grammar and applied["lazy"]:
        engine.check_grammar(grammar)
        trigger = GrammarTrigger(
            words=tuple(text for kind, text in applied["triggers"] if kind == "word"),
            patterns=tuple(text for kind, text in applied["triggers"] if kind == "pattern"),
            think_tag=applied["think_tag"] if applied["think_ends"] else "",
            think_ends=tuple(text for text in applied["think_ends"] if text),
        )
    elif grammar:
        grammar_prefix = _grammar_prefix(engine, grammar, prefix, begun)
    return ReplyFormat(
        prefix=prefix,
        parser=applied["parser"],
        kind=applied["format"],
        shown=_shown(engine, applied["shown"]),
        grammar=grammar,
        grammar_prefix=grammar_prefix,
        trigger=trigger,
    )


# in the root: the rule of any text that may come before the call, up to its first tag
_TEXT_BEFORE = re.compile(r"^(root ::= .*) until-\d+\??((?: space)? [\w-]+)$", re.MULTILINE)


# the calls: in some formats llama.cpp allows several always, and none where a trigger comes first
_SEVERAL = re.compile(r"^(tool-calls(?:-\d+)* ::= \(.*\))\+$", re.MULTILINE)
_NO_CALL = re.compile(r"^(tool-calls(?:-\d+)* ::= \(tool-call(?:-\d+)*)\?", re.MULTILINE)


def _either(first: str, second: str) -> str:
    """A grammar of what either allows."""
    rules = [_renamed(first, "a-"), _renamed(second, "b-")]
    return "\n".join(["root ::= a-root | b-root", *rules])


def _renamed(grammar: str, prefix: str) -> str:
    """A grammar whose rules have other names."""
    return _NAMES.sub(lambda match: prefix + match[1] if match[1] else match[0], grammar)


# texts, classes of characters, comments and tokens, which stay, and names
_NAMES = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|<[^>\n]*>|([A-Za-z][\w-]*)')


def _grammar_prefix(engine: Engine, grammar: str, prefix: str, begun: str = "") -> str:
    """Returns the text before an answer as far as the grammar covers it: the thinking has ended
    there, and the answer may have begun."""
    closed = f"{prefix}{CLOSING}" if _is_open(prefix) else prefix
    engine.check_grammar(grammar)
    ends = [prefix.removesuffix(begun), begun] if begun else []  # or nothing of its text is of it
    for text in (closed, prefix, *ends):
        try:
            engine.check_grammar(grammar, text)
        except ValueError:
            continue
        return text
    return ""


def _shown(engine: Engine, texts: Sequence[str]) -> tuple[int, ...]:
    """The control tokens among some texts."""
    tokens = [engine.tokenize(text) for text in dict.fromkeys(texts)]
    return tuple(ids[0] for ids in tokens if len(ids) == 1 and ids[0] not in engine.end_tokens)
