"""The mask of a grammar allows the tokens that the grammar reads one by one, whatever way it takes:
by classes of characters, by states, or by stacks where the states are too many."""

from __future__ import annotations

import random

import pytest

testing = pytest.importorskip("tgr_testing", reason="make test builds it")

CHARACTER = r"""
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt/] | "u" [0-9a-fA-F]{4})"""
GRAMMARS = [
    'root ::= "\\"" char* "\\""' + CHARACTER,
    'root ::= "\\"" char{0,40} "\\""' + CHARACTER,
    'root ::= ("\\"" char{2,5} "\\"")*' + CHARACTER,
    'root ::= "\\"" (char* "a" | [b-\\u3000]{3} char) "\\""' + CHARACTER,
    "root ::= [^a]{0,3} [^b]* [\\u00e0-\\u4fff\\U00010000-\\U0001f640]",
    "root ::= [\\u0080-\\u00ff]* | [\\u0800-\\u0fff] [\\U00010000-\\U0010ffff]{2}",
    "root ::= [^\\x00-\\U0010ffff] | [a-\\u0400]+",
    "root ::= ([ -~] | [b-z\\u00e0-\\uffff]+)* <[97]>",
    'root ::= !<[97]> [^"]* <[98]>{1,3}',
    "root ::= [^x]{3} nowhere | [^y]{2}\nnowhere ::= nowhere",
    'root ::= ([a-z]{1,3} [a-m]{0,4} ","?){0,30} "é"',
    'root ::= "a" root "a" | "b" root "b" | "c"',  # a state for every beginning
]
PARTS = ["a", "b", "c", "xy", "the ", " ", "\n", '"', '":', '", "', "\\", "\\u00", "é", "語"]
PARTS += ["😀", "\x7f", "\u07ff", "\u0800", "\uffff", "0f", "Z"]
NO_CHARACTERS = [
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
]


def some_tokens(draw: random.Random) -> list[bytes]:
    """All bytes first, so that a number names each, then parts of texts, some of which begin or end
    within a character; the last ends the text."""
    tokens = [bytes([byte]) for byte in range(256)]
    for _ in range(300):
        text = "".join(draw.choices(PARTS, k=draw.randrange(1, 6))).encode()
        begin = draw.choice([0, 0, 0, 1])
        tokens.append(text[begin : len(text) - draw.choice([0, 0, 0, 1])] or b"?")
    return [*tokens, *NO_CHARACTERS, b""]


def some_class(draw: random.Random) -> str:
    ends = [*' "09Zabmz~', "\\x7f", "\\u0080", "é", "\\u07ff", "\\u0800", "語", "\\U0001f600"]
    ranges = ""
    for _ in range(draw.randrange(1, 4)):
        low, high = sorted(draw.choices(range(len(ends)), k=2))
        ranges += f"{ends[low]}-{ends[high]}"
    return f"[{draw.choice(['', '^'])}{ranges}]"


def some_grammar(draw: random.Random) -> str:
    """Rules that name those after them, or any one behind a character."""
    n = draw.randrange(1, 5)
    rules = []
    for i in range(n):
        alternatives = []
        for _ in range(draw.randrange(1, 4)):
            items = []
            for _ in range(draw.randrange(1, 4)):
                kind = draw.randrange(4)
                if kind == 0:
                    item = draw.choice(['"a"', '"the "', '"\\""', '"é"', '"語x"'])
                elif kind == 1 and i + 1 < n:
                    item = f"r{draw.randrange(i + 1, n)}"
                elif kind == 2:
                    item = f'({some_class(draw)} r{draw.randrange(n)} | "b")'
                else:
                    item = some_class(draw)
                items.append(
                    item + draw.choice(["", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,50}"])
                )
            alternatives.append(" ".join(items))
        rules.append(f"r{i} ::= " + " | ".join(alternatives))
    return "\n".join(["root ::= r0", *rules])


def check(grammar: str, tokens: list[bytes], draw: random.Random, n: int) -> int:
    """How many masks of a random text of n tokens at most were compared."""
    text = testing.GrammarText(grammar, tokens)
    for i in range(n):
        allowed = text.allowed()
        assert allowed == text.readable(), grammar
        going_on = [token for token in allowed if tokens[token]]
        if not going_on:
            return i + 1
        assert text.accept(draw.choice(going_on))
    return n


@pytest.mark.parametrize("grammar", GRAMMARS, ids=range(len(GRAMMARS)))
def test_the_mask_allows_what_can_be_read(grammar: str) -> None:
    draw = random.Random(grammar)
    long = [one * n for n in (39, 40, 41, 254, 255, 256, 300) for one in (b" ", b"x", "é".encode())]
    n = 0
    for _ in range(3):
        *tokens, end = some_tokens(draw)
        n += check(grammar, [*tokens, *long, *(one + b'"' for one in long), end], draw, 12)
    assert n > 3


def test_the_mask_of_random_grammars_allows_what_can_be_read() -> None:
    draw = random.Random(1)
    n = 0
    for _ in range(40):
        try:
            n += check(some_grammar(draw), some_tokens(draw), draw, 8)
        except ValueError as error:  # ambiguous without end
            assert "too much work" in str(error)
    assert n > 100


def test_the_mask_of_a_grammar_with_too_many_states_allows_what_can_be_read() -> None:
    draw = random.Random(2)
    tokens = [b"a", b"b", b"c", b"aca", b"bcb"]
    for _ in range(3000):
        begins = bytes(draw.choices(b"ab", k=draw.randrange(1, 18)))
        tokens.append(begins + draw.choice([b"", b"", b"c", b"c" + begins[:-4:-1], b"ca"]))
    assert check(GRAMMARS[-1], [*tokens, b""], draw, 6) > 1
