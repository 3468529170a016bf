"""A chat template applied to messages whose texts stay texts.

In: a template, a request for `confined.apply_template`, the texts of control tokens. Out: the
result of the template, its prompt with cuts (`PromptText`). Before the template runs, a mark (one
character) is put into every text of a control token in messages, tools and variables. Marks survive
what templates do with texts (trim, split, replace, JSON), and become the cuts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tgr_local.engine.templates.prompt_text import ControlTexts, PromptText
from tgr_local.system import confined
from tgr_local.system.cancel import Cancel
from tgr_local.system.think_tags import CLOSING, OPEN_THINK

_ROLES = {"system", "developer", "user", "assistant", "tool", "function", "ipython"}


def render(
    template: str,
    bos: str,
    eos: str,
    request: Mapping[str, Any],
    controls: ControlTexts,
    cancel: Cancel | None = None,
) -> dict[str, Any]:
    """Renders as `confined.apply_template`; ``text`` is the prompt as PromptText. A request that is
    ``continued`` (true, "content" or "reasoning_content") has a prompt that is open at the end of
    its last message, of that part. Raises as `confined.apply_template` does."""
    try:
        marker = _Marker(template, (bos, eos), controls, request)
        marked = marker.marked(request)
    except RecursionError:
        raise confined.FailedError("messages or tools are nested too deeply") from None

    def apply(given: Mapping[str, Any]) -> dict[str, Any]:
        return confined.apply_template(template, bos, eos, dict(given), cancel)

    result = _continued(template, marked, apply) if request.get("continued") else apply(marked)
    if marker.in_tools:  # how replies are read is made of the tools, too
        shown = {key: result[key] for key in ("prompt", "generation_prompt")}
        result = apply(_before_last(request)) | shown
    text = PromptText.of_marked(marker.unescaped(result["prompt"]), marker.used)
    generation_prompt = marker.unescaped(result["generation_prompt"]).replace(marker.mark, "")
    return {**result, "prompt": text.text, "text": text, "generation_prompt": generation_prompt}


def _continued(
    template: str, request: Mapping[str, Any], apply: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The prompt up to the last message, and the beginning of that message.

    llama.cpp knows what a format needs before the content; the template knows its own thinking.
    """
    last, result = request["messages"][-1], apply(_before_last(request))
    prompt, opening = result["prompt"], result["generation_prompt"]
    content, thinking = last.get("content") or "", last.get("reasoning_content") or ""
    try:
        read = apply({k: v for k, v in request.items() if k != "only_prompt"})
    except confined.FailedError:  # the format of this template is not understood
        read = {}
    begun = read.get("generation_prompt", opening + content)
    if read and not thinking:
        start, ends = read["think_tag"], [end for end in read["think_ends"] if end]
        added = "".join(begun.removeprefix(opening).removesuffix(content).split())
        is_foreign = start not in template and added in [start + end for end in ends]
        if is_foreign or opening.rstrip().endswith(tuple(ends) or "\0"):
            begun = opening + content
    elif thinking and not read.get("think_tag") and OPEN_THINK in template:  # which it never shows
        is_open = opening.rstrip().endswith(OPEN_THINK)
        begun = opening + ("" if is_open else f"{OPEN_THINK}\n") + thinking
        if request["continued"] != "reasoning_content" and content:
            begun += f"{CLOSING}{content}"
    if prompt.endswith(opening):
        prompt = prompt.removesuffix(opening) + begun
    else:
        prompt += begun.removeprefix(opening)
    return {**result, "prompt": prompt, "generation_prompt": begun}


def _before_last(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request without the message that is continued, if one is."""
    rest = {key: value for key, value in request.items() if key != "continued"}
    return rest | {"messages": request["messages"][:-1]} if request.get("continued") else rest


class _Marker:
    """Puts a mark, a character that is in none of the texts, into the texts of control tokens."""

    def __init__(
        self,
        template: str,
        ends: tuple[str, str],
        controls: ControlTexts,
        request: Mapping[str, Any],
    ) -> None:
        self._template, self._controls = template, controls
        given = [request.get(key) for key in ("messages", "tools", "variables")]
        texts = [template, *(text for value in given for text in _texts(value))]
        taken = {mark for text in texts for mark in _MARK.findall(text)}
        taken |= {chr(int(mark[2:], 16)) for mark in taken if len(mark) > 1}
        mark = next((mark for mark in map(chr, _MARKS) if mark not in taken), None)
        if mark is None:
            raise confined.FailedError("messages have every private character of Unicode")
        self.mark = mark
        self.used = ""
        """The mark, if it was needed."""
        self.in_tools = False
        """Whether it was needed in the tools."""
        self._rewrites = list(_rewrites(template, *ends))
        self._divided = frozenset(text for text in map(_unquoted, _SPLIT.findall(template)))

    def marked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with marks in its messages, tools and variables."""
        if not self._controls.texts:
            return dict(request)
        marked = dict(request)
        marked["messages"] = [self._message(message) for message in request["messages"]]
        if request.get("tools"):
            used_before, self.used = self.used, ""
            marked["tools"] = self._value(request["tools"])
            self.in_tools = bool(self.used)
            self.used = self.used or used_before
        if request.get("variables"):  # their names are the template's own
            marked["variables"] = {
                name: self._word(value) if isinstance(value, str) else self._value(value)
                for name, value in request["variables"].items()
            }
        return marked

    def unescaped(self, text: str) -> str:
        """A rendered text, in which JSON may have escaped the mark."""
        return text.replace(f"\\u{ord(self.mark):04x}", self.mark) if self.used else text

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        role = message.get("role")
        # what the template itself divides at is not part of what it writes
        spared = self._divided if role == "assistant" else frozenset()
        marked: dict[str, Any] = {}
        for key, value in message.items():
            if key == "role" and isinstance(value, str):
                marked[key] = self._word(value)
            elif key == "content" and isinstance(value, str):
                marked[key] = self._text(value, spared)
            elif key == "tool_calls" and isinstance(value, list):
                marked[key] = [self._call(call) for call in value]
            else:
                marked[key] = self._value(value)
        return marked

    def _word(self, word: str) -> str:
        """A role or a variable that the template does not name must not complete a control token's
        text. Templates reckon with numbers, and ask whether there is a text."""
        marked = self._text(word)
        is_known = not word or word.isdecimal() or word in _ROLES
        is_known = is_known or any(f"{q}{word}{q}" in self._template for q in "'\"")
        if is_known or not any(word.lower() in text.lower() for text in self._controls.texts):
            return marked
        self.used = self.mark
        return self.mark + marked

    def _call(self, call: Any) -> Any:
        """A call, whose arguments are JSON as text: it may escape what it holds."""
        result = self._value(call)
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if not isinstance(arguments, str) or "\\" not in arguments:
            return result
        try:
            value = json.loads(arguments)
            marked = self._value(value)
            text = json.dumps(marked, ensure_ascii=False)
        except (ValueError, RecursionError):
            return result
        if marked != value:
            result = {**result, "function": {**result["function"], "arguments": text}}
        return result

    def _value(self, value: Any) -> Any:
        """Any value with marks in its texts, those of keys too."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._value(key): self._value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(inner) for inner in value]
        return value

    def _text(self, text: str, spared: frozenset[str] = frozenset()) -> str:
        cuts = [at + 1 for at, token in self._controls.within(text) if token not in spared]
        if self._may_grow(text, len(cuts)):
            beginnings = {token[0] for token in self._controls.texts}
            cuts = [i + 1 for i, char in enumerate(text) if char in beginnings]
        if not cuts:
            return text
        self.used = self.mark
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        return self.mark.join(pieces)

    def _may_grow(self, text: str, n_found: int) -> bool:
        """Whether the template may make texts of control tokens by what it replaces in this one."""
        most = _GROWTH * len(text) + _GROWTH_FREE
        if len(self._rewrites) > _MOST_REWRITES:
            return True
        whole = text
        for old, new in self._rewrites:
            if old not in text:
                continue
            rewritten = []
            for version in (text, whole):
                if len(version) + version.count(old) * (len(new) - len(old)) > most:
                    return True
                rewritten.append(version.replace(old, new))
                if len(self._controls.within(rewritten[-1])) > n_found:
                    return True
            whole = rewritten[-1]
        return False


_MARKS = (0x7F, *range(0xE000, 0xF8FF))  # one that no JSON need escape, then private ones
_MARK = re.compile(r"[\x7f\ue000-\uf8fe]|\\u(?:007[fF]|[eE][0-9a-fA-F]{3}|[fF][0-8][0-9a-fA-F]{2})")
_GROWTH, _GROWTH_FREE, _MOST_REWRITES = 4, 4096, 64  # characters of a text that is tried; how often
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_SPLIT = re.compile(rf"\bsplit\(\s*{_QUOTED}")
_REPLACE = re.compile(rf"\breplace\(\s*(?:{_QUOTED}|(\w+))\s*,\s*(?:{_QUOTED}|(\w+))")


def _rewrites(template: str, bos: str, eos: str) -> Iterator[tuple[str, str]]:
    """Yields each text that a template replaces and its replacement, as far as its text says."""
    names = {"bos_token": bos, "eos_token": eos}
    for old, old_name, new, new_name in _REPLACE.findall(template):
        replaced = _unquoted(old) if old else names.get(old_name, "")
        if replaced:
            yield replaced, _unquoted(new) if new else names.get(new_name, "")
    for quoted in _SPLIT.findall(template):  # and may put the pieces together again
        if replaced := _unquoted(quoted):
            yield replaced, ""


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def _texts(value: Any) -> Iterator[str]:
    """All texts within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
