"""Texts that a grammar allows, drawn at random, for tests that ask what they are."""

from __future__ import annotations

import random
import re
from typing import Any

_TOKENS = re.compile(
    r'\s+|(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|(?P<times>\{\d+(?:,\d*)?\})'
    r"|(?P<name>[A-Za-z][\w-]*)|(?P<sign>[()|*+?])"
)
_CODES = re.compile(r"\\x(..)|\\u(....)|\\U(.{8})|\\(.)|(.)", re.DOTALL)
_FREE = "`<=>| \t\fxé日"  # drawn of a set that says what is not in it
_ENDS = {"n": "\n", "r": "\r", "t": "\t"}


def _characters(text: str) -> list[str]:
    """The characters of a quoted text or a set; a plain ``-`` in a set is ``None`` before it."""
    letters = []
    for x, u, big, escaped, plain in _CODES.findall(text):
        code = x or u or big
        letters.append(chr(int(code, 16)) if code else _ENDS.get(escaped, escaped) or plain)
    return letters


class Texts:
    """A grammar; every `draw` is a text of its root."""

    def __init__(self, grammar: str) -> None:
        self._rules: dict[str, Any] = {}
        for line in grammar.strip().split("\n"):
            name, _, body = line.partition(" ::= ")
            tokens = [match for match in _TOKENS.finditer(body) if match.lastgroup]
            self._rules[name] = self._choices(tokens, [0])

    def _choices(self, tokens: list[re.Match[str]], at: list[int]) -> Any:
        choices: list[list[Any]] = [[]]
        while at[0] < len(tokens) and tokens[at[0]].group() != ")":
            token = tokens[at[0]]
            at[0] += 1
            kind, text = token.lastgroup, token.group()
            if text == "|":
                choices.append([])
            elif text == "(":
                choices[-1].append(("group", self._choices(tokens, at), 1, 1))
                at[0] += 1
            elif kind == "times" or text in "*+?":
                low, _, high = text.strip("{}").partition(",")
                bounds = {"*": (0, 99), "+": (1, 99), "?": (0, 1)}.get(text) or (
                    int(low),
                    int(low) if "," not in text else int(high or int(low) + 99),
                )
                choices[-1][-1] = (*choices[-1][-1][:2], *bounds)
            elif kind == "text":
                choices[-1].append(("text", "".join(_characters(text[1:-1])), 1, 1))
            elif kind == "set":
                choices[-1].append(("set", text[1:-1], 1, 1))
            else:
                choices[-1].append(("name", text, 1, 1))
        return choices

    def draw(self, source: random.Random) -> str:
        """A text, short where the grammar lets it be."""
        return self._drawn(self._rules["root"], source, 0)

    def _drawn(self, choices: Any, source: random.Random, depth: int) -> str:
        if depth > 60:
            raise RecursionError
        texts = []
        for kind, part, low, high in source.choice(choices):
            most = min(high, low + (2 if depth < 12 else 0))
            for _ in range(source.randint(low, most)):
                if kind == "text":
                    texts.append(part)
                elif kind == "set":
                    texts.append(self._member(part, source))
                else:
                    inner = part if kind == "group" else self._rules[part]
                    texts.append(self._drawn(inner, source, depth + (kind == "name")))
        return "".join(texts)

    @staticmethod
    def _member(body: str, source: random.Random) -> str:
        parts = re.findall(
            r"(\\x..|\\U.{8}|\\u....|\\.|[^\\])(?:-(\\x..|\\U.{8}|\\u....|\\.|[^\\]))?", body
        )
        if body.startswith("^"):
            excluded = {_characters(low)[0] for low, _ in parts[1:]}
            return source.choice([c for c in _FREE if c not in excluded])
        low, high = source.choice(parts)
        first = ord(_characters(low)[0])
        last = ord(_characters(high)[0]) if high else first
        return chr(source.choice((first, last, source.randint(first, min(last, first + 90)))))
