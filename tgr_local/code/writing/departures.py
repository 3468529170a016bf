"""Departures: the likeliest first changes of the code, with which answers begin.

In: an engine, the code that an answer may change, as tokens behind the request. Out: departures,
the likeliest first. A small model that is asked for corrected code mostly repeats the code, so k
answers would be k copies. Here the copy is read in one pass, which gives the probability of each of
its tokens. At a position where another token is likely, an answer departs: it begins with the copy
up to there and the other token, and the model continues until the text rejoins the copy. No two
departures are alike, and none begins like the copy.
"""

from __future__ import annotations

import dataclasses
import io
import math
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tgr_local.code.edits import Change, inner_tests, syntax
from tgr_local.code.edits.document import n_equal, patched
from tgr_local.code.edits.function import parsed, replacing
from tgr_local.code.reading import evidence
from tgr_local.code.reading.prompt import Copy
from tgr_local.engine import Cancel, Engine, Output, Sampling
from tgr_local.engine import Sequence as Cells
from tgr_local.engine import Task as EngineTask

_LOOKED_AT, _MOST_LOOKS = 3, 48
"""Positions at which other tokens are examined: for each requested departure, and in all at
most."""
_MOST_TOKENS = 16
"""Other tokens that are examined at one position."""
_READ_WHOLE = 6
"""Number of copies that are read to their end: those with the likeliest heads."""
_MOST_COPIES = 48
_HEAD = 0.5
"""Weight of the log-probability of a copy's head. It is below 1, because the head tells which file
an answer would begin with, and less which file has the defect."""
_OF_A_LINE = 3
"""Departures from one line that come before those of other lines."""
BACK = 2
"""Number of successive non-blank lines that the answer and the copy must share to count as
rejoined."""
_TESTS = re.compile(r"def test|class Test|if __name__|import (?:unittest|pytest)\b")
_CHECKS = re.compile(r"assert\b|print\(|# (?:test|example)", re.IGNORECASE)
"""Lines that small models write after the code: tests, in any place; calls and asserts, at the
end."""
_MARGIN = re.compile(r"[^\s)\]}]")
_NOTES = ("#", "//", "/*", "```", '"""', "'''")
"""Beginnings of comments and of what ends the code."""
_QUOTES = str.maketrans("'", '"')


@dataclass(frozen=True, eq=False)
class Departure:
    """The beginning of an answer that changes the code."""

    copy: Copy
    tokens: Sequence[int]
    """Tokens of the request and the beginning. The last token is the first that differs from the
    copy."""
    text: str
    """The beginning."""
    logprob: float
    """Log-probability of the head of its copy, weighted, and of the last token, in nats; comparable
    within one search."""
    is_unreached: bool = False
    """Whether it departs in lines that no failing test reaches."""


@dataclass(frozen=True)
class FoundDepartures:
    """The departures, best first, and what it took to find them."""

    departures: tuple[Departure, ...] = ()
    n_positions: int = 0
    """Number of positions that passed through the model."""


@dataclass(frozen=True)
class _CopyPosition:
    """A place where an answer may differ from a copy."""

    index: int
    """Index of the token there; the number of the copy's tokens = behind all of them."""
    at: int
    """Bytes of the code before it."""
    is_unreached: bool = False
    """Whether it lies in lines that no failing test reaches."""


def find(
    engine: Engine,
    copies: Sequence[Copy],
    n: int,
    tried: Collection[str] = (),
    cancel: Cancel | None = None,
) -> FoundDepartures:
    """Finds up to `n` departures from any of the copies, which share their first tokens, without
    those whose text is in `tried`. There are none for a model whose cache cannot be rolled back.

    The cache keeps the copies that were read as prefixes for the answers. Raises CapacityError if
    the copies do not fit, and CancelledError.
    """
    placed = [(copy, places) for copy in copies if (places := _places(engine, copy))][:_MOST_COPIES]
    n_looked = min(_LOOKED_AT * n, _MOST_LOOKS, engine.n_seq_max - len(placed) - 1)
    if n_looked < 1 or not placed or not engine.rolls_back:
        return FoundDepartures()
    first = min(places[0].index for _, places in placed)
    tokens = [list(copy.tokens) for copy, _ in placed]
    start = min(first, *(n_equal(tokens[0], ids) for ids in tokens)) - 1
    n_cells = start + sum(len(ids) - start for ids in tokens) + 2 * n_looked + 8
    prompt, n_seqs = tokens[0][:start], len(placed) + n_looked + 1
    best: dict[str, Departure] = {}
    with engine.session(n_cells, n_seqs, prompt=prompt, cancel=cancel) as session:
        n_positions = 0

        def run(tasks: list[EngineTask]) -> list[Output]:
            nonlocal n_positions
            outputs = session.run(tasks, cancel=cancel)
            n_positions += sum(output.n_decoded for output in outputs)
            return outputs

        root = session.sequence()
        run([EngineTask(root, prompt, reuse=True)])
        # reads the heads of all copies, then the rest of those with the likeliest heads
        firsts = [places[0].index for _, places in placed]
        cells = [root.fork() for _ in placed]
        heads = run([
            EngineTask(own, ids[start:end], feed_logprobs=True)
            for own, ids, end in zip(cells, tokens, firsts, strict=True)
        ])  # fmt: skip
        weights = [_HEAD * float(np.sum(head.feed_logprobs, dtype=np.float64)) for head in heads]
        chosen = sorted(range(len(placed)), key=lambda i: -weights[i])[:_READ_WHOLE]
        bodies = run([_body(cells[i], tokens[i], firsts[i]) for i in chosen])
        # the places where another token is likeliest
        scored: list[tuple[float, int, _CopyPosition]] = []
        for i, body in zip(chosen, bodies, strict=True):
            for place in placed[i][1]:
                is_end = place.index == len(tokens[i])
                same = -math.inf if is_end else float(body.feed_logprobs[place.index - firsts[i]])
                differs = math.log(max(1e-9, -math.expm1(same)))
                scored.append((weights[i] + differs, i, place))
        scored.sort(key=lambda each: (each[2].is_unreached, -each[0]))
        scored = scored[:n_looked]
        n_top = min(n, _MOST_TOKENS, engine.n_vocab - 1) + 1
        looks = run([_look(cells[i], tokens[i], place, n_top) for _, i, place in scored])
        for i in chosen:
            session.remember(cells[i])
        for (_, i, place), look in zip(scored, looks, strict=True):
            for token, logprob in zip(look.top_ids[0], look.top_logprobs[0], strict=True):
                weight = weights[i] + float(logprob)
                departure = _departure(engine, placed[i][0], place, int(token), weight)
                if departure is None or departure.text in tried:
                    continue
                # equal functions of two classes have equal departures
                if departure.text not in best or best[departure.text].logprob < departure.logprob:
                    best[departure.text] = departure
    return FoundDepartures(tuple(_spread(list(best.values()))[:n]), n_positions)


def _spread(departures: Sequence[Departure]) -> list[Departure]:
    """The departures, likeliest first. After `_OF_A_LINE` departures of one line its others come
    later. Those in lines that no failing test reaches come last."""
    times: Counter[tuple[Copy, int]] = Counter()
    parts: dict[tuple[bool, bool], list[Departure]] = defaultdict(list)
    for departure in sorted(departures, key=lambda departure: -departure.logprob):
        line = (departure.copy, departure.text.count("\n"))
        times[line] += 1
        parts[departure.is_unreached, times[line] > _OF_A_LINE].append(departure)
    return [departure for _, group in sorted(parts.items()) for departure in group]


def rejoined(departure: Departure, answer: str) -> str | None:
    """The opening and the code of an answer, which is complete: it has rejoined the copy after its
    departure, whose rest is added, or it continues after the end of the copy, where it is cut. None
    for other answers."""
    copy = departure.copy
    *new, last = answer[len(copy.opening) :].split("\n")
    old = copy.code.split("\n")[:-1]
    n_same = n_equal(old, new)
    if (end := _past_the_end(copy, old[n_same:], [*new, last], n_same + 1)) is not None:
        code = "\n".join(new[:end]).rstrip() + "\n"
    elif (back := _back(old, new, n_same + 1)) is not None:
        code = "".join(f"{line}\n" for line in [*new, *old[back:]])
    else:
        return None
    return copy.opening + code if _is_read(copy, code) else None


def _is_read(copy: Copy, code: str) -> bool:
    """Whether code has no syntax error. In languages other than Python an error that the copy has
    too counts as none, and so does a missing parser."""
    if copy.is_python:
        return parsed(code) is not None
    name = syntax.language(copy.document.path)
    return not syntax.has_error(code, name) or syntax.has_error(copy.code, name)


def alike(departure: Departure, copies: Sequence[Copy]) -> list[Copy]:
    """Returns the copies to which an answer may belong: that of its departure, and functions of the
    same name whose lines before the departure are the same."""
    own = departure.copy
    before = departure.text.rpartition("\n")[0]
    head = own.code[: own.n_head]
    others = (
        copy for copy in copies
        if copy is not own and copy.n_head and copy.code.startswith(head)
        and (copy.opening + copy.code).startswith(before)
    )  # fmt: skip
    return [own, *others] if own.function and own.n_head else [own]


def nearest(departure: Departure, copies: Sequence[Copy], answer: str) -> Departure:
    """Returns the departure, from the copy that has most lines of the answer; the first of equal
    ones."""
    new = {line.strip() for line in answer[len(departure.copy.opening) :].split("\n")}
    copy = max(copies, key=lambda copy: len(new & {line.strip() for line in copy.code.split("\n")}))
    return dataclasses.replace(departure, copy=copy)


def change_of(copy: Copy, code: str) -> tuple[Change, ...]:
    """The change of the copied function to `code`; empty if that is the same."""
    assert copy.function is not None
    document, place = copy.document, copy.function
    after = patched(document, [replacing(document, place.first, place.last, code)])
    return (Change(document.path, document.text, after),) if after != document.text else ()


def _past_the_end(copy: Copy, copied: Sequence[str], new: Sequence[str], first: int) -> int | None:
    """Index of the first new line after the end of the copy: a line without indentation after all
    its lines, or the first line of tests that small models add. None without one. `copied` are the
    lines of the copy from the departure on."""
    expected = [line for line in copied if line.strip()]
    departed = expected[:1]
    drops_tests = copy.is_python and not evidence.is_test(copy.document.path)
    for index in range(first, len(new)):
        line = new[index]
        if line in expected:
            expected = expected[expected.index(line) + 1 :]
        elif drops_tests and _TESTS.match(line):
            return index
        elif expected in ([], departed):
            if copy.function and _MARGIN.match(line):
                return index
            if drops_tests and _CHECKS.match(line):
                return index
    return None


def _back(old: Sequence[str], new: Sequence[str], first: int) -> int | None:
    """Index of the copy's line that follows the last `BACK` lines of the answer; None if the copy
    does not have these lines after the departure."""
    mine = [line for line in new[first:] if line.strip()][-BACK:]
    theirs = [i for i in range(first - 1, len(old)) if old[i].strip()]
    if len(mine) < BACK or not new[-1].strip():
        return None
    ends = range(BACK, len(theirs) + 1)
    same = (end for end in ends if [old[i] for i in theirs[end - BACK : end]] == mine)
    return next((theirs[end - 1] + 1 for end in same), None)


# ---- places ----


def _places(engine: Engine, copy: Copy) -> list[_CopyPosition]:
    """Returns the places where an answer may differ: the tokens after the head and the end of the
    code. Comments, docstrings, imports and the beginnings of top-level statements are no places.
    Empty if the tokens do not end with the code."""
    code = copy.code.rstrip().encode()
    pieces: list[bytes] = []
    n_bytes = 0
    for token in reversed(copy.tokens):
        if n_bytes >= len(code):
            break
        pieces.append(engine.detokenize([token]))
        n_bytes += len(pieces[-1])
    pieces.reverse()
    text = b"".join(pieces)
    head = text.rstrip().removesuffix(code)
    if len(text.rstrip()) - len(head) != len(code):
        return []
    fixed = [(0, len(copy.code[: copy.n_head].encode())), *_fixed_ranges(copy)]
    first, at = len(copy.tokens) - len(pieces), -len(head)
    positions = []
    for index, piece in enumerate(pieces, first):
        visible = at + len(piece) - len(piece.lstrip())
        if at > 0 and not any(a <= visible < b for a, b in fixed):
            positions.append(_CopyPosition(index, at, _is_unreached(copy, code[:visible])))
        at += len(piece)
    return [*positions, _CopyPosition(len(copy.tokens), len(code))]


def _is_unreached(copy: Copy, code: bytes) -> bool:
    """Whether the line after these bytes of the code is one that no failing test reaches."""
    line = code.count(b"\n") + (copy.function.first if copy.function else 1)
    return any(first <= line <= last for first, last in copy.unreached)


def _fixed_ranges(copy: Copy) -> list[tuple[int, int]]:
    """Returns the ranges of code that no departure changes, as first and last byte."""
    if not copy.is_python:
        path, code = copy.document.path, copy.code
        tests = [
            (len(code[:start].encode()), len(code[:end].encode()))
            for start, end in inner_tests.ranges(path, code)
        ]
        name = syntax.language(path)
        return [*tests, *(syntax.fixed_ranges(code, name) if name else [])]
    lines = copy.code.split("\n")
    starts = list(accumulate((len(line.encode()) + 1 for line in lines), initial=0))

    def at(place: tuple[int, int]) -> int:
        return starts[place[0] - 1] + len(lines[place[0] - 1][: place[1]].encode())

    ranges = []
    layout = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT)
    ended, word = 0, ""  # the end of the statement before this one; the first word of this one
    try:
        for token in tokenize.generate_tokens(io.StringIO(copy.code).readline):
            if token.type == tokenize.COMMENT:
                ranges.append((at(token.start), at(token.end)))
            elif token.type == tokenize.NEWLINE:
                if word in ("import", "from"):
                    ranges.append((ended, at(token.start)))
                ended, word = at(token.start), ""
            elif token.type in layout:
                continue
            elif not word:
                word = token.string
                if token.type == tokenize.STRING:
                    ranges.append((at(token.start), at(token.end)))
                if token.start[1] == 0:
                    ranges.append((ended, at(token.end)))
            elif word in ("def", "class", "async", "@") and token.string.isidentifier():
                ranges.append((at(token.start), at(token.end)))
                word = "." if token.string != "def" else "def"
    except (tokenize.TokenError, SyntaxError):
        pass  # what comes before it is known
    return ranges


# ---- tasks of the engine ----


def _body(cells: Cells, tokens: list[int], first: int) -> EngineTask:
    """The task that reads a copy after its head, from the token before the first place."""
    cells.truncate(first - 1)
    return EngineTask(cells, tokens[first - 1 :], feed_logprobs=True)


def _look(cells: Cells, tokens: list[int], place: _CopyPosition, n: int) -> EngineTask:
    """The task that finds the likeliest tokens at a place."""
    prefix = cells.fork()
    prefix.truncate(place.index - 1)
    plain = Sampling(temperature=0.0)
    return EngineTask(prefix, [tokens[place.index - 1]], 1, n_top=n, sampling=plain)


def _departure(
    engine: Engine, copy: Copy, place: _CopyPosition, token: int, logprob: float
) -> Departure | None:
    """The departure with a token; None if it is the copy's token, or changes only layout, quotes or
    a comment."""
    code = copy.code.rstrip().encode()
    is_end = place.index == len(copy.tokens)
    known = [] if is_end else [copy.tokens[place.index]]
    new, old = engine.detokenize([token]), engine.detokenize(known)
    if [token] == known or not new or code[place.at :].startswith(new) != is_end:
        return None
    try:
        said, was = new.decode(), old.decode()
        text = copy.opening + code[: place.at].decode() + said
    except UnicodeDecodeError:
        return None  # a part of a character
    if is_note(said):
        return None
    if is_end and not copy.function and said.isspace() and said.count("\n") > 1:
        pass  # something new at the end of the file
    elif said.isspace():
        indent = said.rpartition("\n")[2]
        if not indent or not (is_end or was.isspace()) or indent == was.rpartition("\n")[2]:
            return None
    elif says_the_same(said, was):
        return None
    return Departure(copy, [*copy.tokens[: place.index], token], text, logprob, place.is_unreached)


def is_note(text: str) -> bool:
    """Whether a token begins a comment or a docstring, or ends the code."""
    return text.strip().startswith(_NOTES)


def says_the_same(new: str, old: str) -> bool:
    """Whether two tokens differ in quotes and space alone."""
    return new.translate(_QUOTES).split() == old.translate(_QUOTES).split()
