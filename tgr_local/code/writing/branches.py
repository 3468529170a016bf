"""Branches: departures from an answer that has departed from the code.

In: an engine, an answer. Out: departures. An answer may depart at the right place, and yet go on
wrongly. So other answers begin as this one does, up to a token, and take another likely token
there.
"""

from __future__ import annotations

import codecs
import dataclasses

from tgr_local.code.writing.departures import Departure, is_note, says_the_same
from tgr_local.engine import Engine
from tgr_local.generation import Reply


def branches(
    engine: Engine, departure: Departure, reply: Reply, n_same: int, most: int
) -> list[Departure]:
    """The `most` likeliest departures from the reply to a departure: the reply up to a token, and
    another token there. None is in the last `n_same` lines of the reply, which are the copy's.
    Empty if the reply has no likeliest tokens (`top_logprobs`)."""
    n_lines = len(reply.text.rstrip().split("\n")) - n_same
    # log-probability, index, token, bytes of the text before it, and its own
    places: list[tuple[float, int, int, int, bytes]] = []
    total, text, index = departure.logprob, bytearray(), 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    n_newlines = 0
    for step in reply.steps:
        tops = zip(step.top_ids or (), step.top_logprobs or (), strict=True)
        for token, logprob, (ids, logprobs) in zip(step.tokens, step.logprobs, tops, strict=False):
            if n_newlines >= n_lines:
                break
            piece, (begun, _) = engine.detokenize([int(token)]), decoder.getstate()
            for other, other_logprob in zip(ids, logprobs, strict=True):
                new = engine.detokenize([int(other)])
                if other != token and _differs(new, piece) and _is_text(begun + new):
                    score = total + float(other_logprob)
                    places.append((score, index, int(other), len(text), new))
            try:
                n_newlines += decoder.decode(piece).count("\n")
            except UnicodeDecodeError:
                n_newlines = n_lines  # what follows is no text
            text += piece
            total, index = total + float(logprob), index + 1
    places.sort(key=lambda place: -place[0])
    return [
        dataclasses.replace(
            departure, tokens=[*departure.tokens, *reply.tokens[:index], token],
            text=departure.text + (text[:n_bytes] + new).decode(), logprob=logprob,
        )
        for logprob, index, token, n_bytes, new in places[:most]
    ]  # fmt: skip


def _differs(new: bytes, old: bytes) -> bool:
    """Whether a token changes the code: it is no end, comment, fence or mere space, and differs
    from the old token in more than quotes."""
    said, was = (piece.decode("utf-8", "replace") for piece in (new, old))
    return bool(said.strip()) and not is_note(said) and not says_the_same(said, was)


def _is_text(data: bytes) -> bool:
    """Whether data has no part of a character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
