"""The text of a chat's prompt, in which users' text never becomes a control token.

A template puts the texts of control tokens around the messages. A message may hold the same texts;
read as control tokens, they would end its turn and begin another. So every such text in a message
gets a `cut`, a position that no control token may span. A prompt without cuts is tokenized as
usual.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Detokenize = Callable[[Sequence[int], bool], bytes]
"""Tokens to text; the flag also prints control tokens."""


@dataclass(frozen=True)
class PromptText:
    """A text, and the positions in it that no control token may span, in order."""

    text: str
    cuts: tuple[int, ...] = ()

    @classmethod
    def of_marked(cls, text: str, mark: str) -> PromptText:
        """The text without its marks, which are the cuts."""
        pieces = text.split(mark) if mark else [text]
        ends, end = [], 0
        for piece in pieces[:-1]:
            end += len(piece)
            ends.append(end)
        return cls("".join(pieces), tuple(ends))

    def __add__(self, text: str) -> PromptText:
        return PromptText(self.text + text, self.cuts)

    def beginning(self, n_chars: int) -> PromptText:
        return PromptText(self.text[:n_chars], tuple(cut for cut in self.cuts if cut < n_chars))


class ControlTexts:
    """The texts of a vocabulary's control tokens, which are read where they are first needed."""

    def __init__(self, n_vocab: int, detokenize: Detokenize) -> None:
        self._n_vocab, self._detokenize = n_vocab, detokenize
        self._within_one: dict[str, bool] = {}

    def is_within_one(self, text: str) -> bool:
        """Whether any token of the vocabulary has this text, or has it as a part."""
        if text not in self._within_one:
            part = text.encode()
            with_part = self._tokens(lambda tokens: part in self._detokenize(tokens, True))
            self._within_one[text] = next(with_part, None) is not None
        return self._within_one[text]

    @functools.cached_property
    def texts(self) -> frozenset[str]:
        """Texts of two characters or more: a text of one cannot be cut."""

        def has_control(tokens: range) -> bool:  # a text only where control tokens are printed
            return len(self._detokenize(tokens, True)) != len(self._detokenize(tokens, False))

        texts = (
            self._detokenize([token], True).decode("utf-8", "replace")
            for token in self._tokens(has_control)
        )
        return frozenset(text for text in texts if len(text) > 1)

    def _tokens(self, any_is_one: Callable[[range], bool]) -> Iterator[int]:
        """Yields the tokens for which `any_is_one` is true. It tests ranges of the vocabulary, and
        halves a range only where it is true, so few tokens are tested one by one."""
        ranges = [range(self._n_vocab)]
        while ranges:
            tokens = ranges.pop()
            if not any_is_one(tokens):
                continue
            if len(tokens) == 1:
                yield tokens[0]
            else:
                middle = len(tokens) // 2
                ranges += [tokens[:middle], tokens[middle:]]

    @functools.cached_property
    def _exact(self) -> re.Pattern[str] | None:
        return re.compile(_any_of(self.texts)) if self.texts else None

    @functools.cached_property
    def _lower(self) -> re.Pattern[str] | None:
        texts = {text.lower() for text in self.texts}
        return re.compile(_any_of(texts), re.IGNORECASE) if texts else None

    @functools.cached_property
    def _lower_alone(self) -> re.Pattern[str] | None:  # many times as fast
        return re.compile(self._lower.pattern) if self._lower else None

    def within(self, text: str) -> list[tuple[int, str]]:
        """Finds the texts of control tokens in a text: position and spelling of each. Upper and
        lower case are alike, since a template may change them. Occurrences may overlap."""
        lower = text.lower()
        is_aligned = len(lower) == len(text)
        pattern = self._lower_alone if is_aligned else self._lower
        searched = lower if is_aligned else text
        matches, start = [], 0
        while pattern and (match := pattern.search(searched, start)):
            matches.append((match.start(), text[match.start() : match.end()]))
            start = match.start() + 1
        return matches

    def runs(self, prompt: PromptText) -> list[tuple[str, bool]]:
        """The prompt in parts, to be tokenized one by one, and whether control tokens are read in
        each. A part in which they are not lies between two control tokens, or at an end of the
        prompt, so that no token would reach across its ends."""
        text, cuts = prompt.text, prompt.cuts
        if not cuts:
            return [(text, True)]
        parts: list[tuple[str, bool]] = []
        begun = last_end = 0  # the part that is read with control tokens; the end of the last one
        for start, end in [*self._spans(prompt), (len(text), len(text))]:
            if bisect.bisect_left(cuts, start) > bisect.bisect_right(cuts, last_end):
                parts += [(text[begun:last_end], True), (text[last_end:start], False)]
                begun = start
            last_end = end
        parts.append((text[begun:], True))
        return [part for part in parts if part[0]]

    def _spans(self, prompt: PromptText) -> Iterator[tuple[int, int]]:
        """Yields the spans of control tokens that no cut divides. Of several that begin at one
        position it takes the longest that is not divided."""
        start = 0
        while self._exact and (match := self._exact.search(prompt.text, start)):
            first, end = match.span()
            i = bisect.bisect_right(prompt.cuts, first)
            if i < len(prompt.cuts) and prompt.cuts[i] < end:
                match = self._exact.match(prompt.text, first, prompt.cuts[i])
            if match:
                yield match.span()
            start = match.end() if match else first + 1


def _any_of(texts: Iterable[str]) -> str:
    """A pattern of the longest of the texts: thousands that begin alike cost no more than one."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(tree: dict[str, Any]) -> str:
    prefix = ""
    while len(tree) == 1 and "" not in tree:
        char, tree = next(iter(tree.items()))
        prefix += re.escape(char)
    choices = [re.escape(char) + _pattern(tree[char]) for char in sorted(tree) if char]
    if not choices:
        return prefix
    return f"{prefix}(?:{'|'.join(choices)}){'?' if '' in tree else ''}"
