"""Whether a text goes round in a loop.

In: the tokens of a text, and what kind of text it is. Out: yes or no. What repeats itself is not
always a loop: rows of zeros, tables, cards of a page and test data are text. So a short part must
stand there often, code and markup of long parts some times, and prose only a few times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine

Ints = NDArray[np.int64]

_SHORTEST = 64  # tokens; fewer do not count as a loop: rules of dashes and rows of zeros are text
_NEWEST = 8192  # tokens that are searched for a loop
_LONG = 24  # tokens of a long part
_PROSE = 5, 10  # copies of a part of prose at least, with this times n tokens together
_OTHER = 8, 64  # … of anything else
_DIFFERENT = 12  # different tokens in it: rows of equal numbers are text
_LETTERS = 0.75  # of its characters, with the white space
_LINE = 24  # letters in a line of it, on the average
_MARKUP = re.compile(r"[<>{}|;\[\]_\t]")
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_ITEM = re.compile(r"[ \t]*(?:[-*•]|\d+[.)])[ \t]")
_NUMBER = re.compile(r"^([ \t]*)\d+(?=[.)][ \t])", re.MULTILINE)


def is_loop(
    engine: Engine, tokens: Sequence[int], n: int, *, thinks: bool = False, text_before: str = ""
) -> bool:
    """Whether a text ends in a loop: in n equal parts, which are n² tokens together, 64 at least.
    Of a part of 24 tokens or more, 8 copies are enough that are 64·n tokens together, and of prose
    5 with 10·n; the items of such a list may have numbers of their own. For an n above 32 these 8
    and 5 are n/4 and n/6. `thinks` = nobody reads the text for its form: all of it is prose. Else
    `text_before` is the text so far, whose fences show where there is code. Only the newest 8,192
    tokens are searched."""
    text = np.asarray(tokens[-_NEWEST:], np.int64)
    some = min(n, max(_OTHER[0], n // 4)), _OTHER[1] * n
    few = min(n, max(_PROSE[0], n // 6)), _PROSE[1] * n
    may_be_prose = thinks or len(_FENCE.findall(text_before)) % 2 == 0
    for part, run in _parts(text):
        period = len(part)
        if run >= max(n * period, n * n, _SHORTEST):
            return True
        if period < _LONG or run < _least(period, few) or len(np.unique(part)) < _DIFFERENT:
            continue
        if run >= _least(period, some) or (may_be_prose and (thinks or _is_prose(engine, part))):
            return True
    return may_be_prose and not thinks and _is_numbered_loop(engine, text, few)


def _least(period: int, bound: tuple[int, int]) -> int:
    copies, tokens = bound
    return max(copies * period, tokens, _SHORTEST)


def _parts(text: Ints) -> Iterator[tuple[Ints, int]]:
    """The parts that a text ends in twice at least, none of them a repetition itself, the shortest
    first; with the number of tokens that repeat each."""
    seen: list[tuple[int, int]] = []
    for period in (np.flatnonzero(text[-2::-1] == text[-1:]) + 1).tolist():
        if 2 * period > len(text):
            return
        if (text[-period:] != text[-2 * period : -period]).any():
            continue
        if any(run >= period and period % shorter == 0 for shorter, run in seen):
            continue
        differs = np.flatnonzero(text[period:] != text[:-period])
        run = len(text) - (int(differs[-1]) + 1 if len(differs) else 0)
        seen.append((period, run))
        yield text[-period:], run


def _is_numbered_loop(engine: Engine, text: Ints, few: tuple[int, int]) -> bool:
    """Whether the text is a loop of prose once all items of its lists have the same number."""
    words = engine.detokenize(text.tolist()).decode("utf-8", "replace")
    words, n_items = _NUMBER.subn(r"\g<1>0", words)
    if n_items < few[0]:
        return False
    # the last line may have no more than its number; tokens may reach over its beginning
    last = words[words.rfind("\n") + 1 :]
    tokens = engine.tokenize(words)
    tokens = tokens[: len(tokens) - len(engine.tokenize(last)) - 2]
    return any(
        len(part) >= _LONG
        and run >= _least(len(part), few)
        and len(np.unique(part)) >= _DIFFERENT
        and _is_prose(engine, part)
        for part, run in _parts(np.asarray(tokens, np.int64))
    )


def _is_prose(engine: Engine, part: Ints) -> bool:
    """Whether a part is sentences, or a list."""
    text = engine.detokenize(part.tolist()).decode("utf-8", "ignore")
    letters = sum(map(str.isalpha, text))
    if _MARKUP.search(text) or letters + sum(map(str.isspace, text)) < _LETTERS * len(text):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    return letters >= _LINE * len(lines) or _is_list(lines)


def _is_list(lines: list[str]) -> bool:
    # the first and the last line may be the two halves of one
    inner = lines[1:-1]
    return len(inner) > 1 and all(_ITEM.match(line) and ":" not in line for line in inner)
