"""The known names that an unknown one was meant as, for the end of an error."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MOST = 3
_LENGTH = 64  # characters of a name that is compared
_WORSE = 0.15  # how much less like it than the best one


def near_names(name: str, known: Collection[str], least: float = 0.7) -> list[str]:
    """Up to three known names that begin like `name`; else those that are like it, and almost as
    like it as the best one is. The `least` likeness that counts is a share of 1."""
    near = [known_name for known_name in known if known_name.startswith(name)]
    if near and any(map(str.isalnum, name)):
        return near[:_MOST]
    matcher = difflib.SequenceMatcher(None, "", name[:_LENGTH])

    def likeness(known_name: str) -> float:
        matcher.set_seq1(known_name)
        return matcher.ratio()

    near = difflib.get_close_matches(name[:_LENGTH], known, _MOST, least)
    return [known_name for known_name in near if likeness(known_name) > likeness(near[0]) - _WORSE]


def did_you_mean(name: str, known: Collection[str], otherwise: str) -> str:
    """The end of an error about an unknown name: the names that it was meant as, else where all
    are."""
    near = near_names(name, known)
    return f"did you mean {', '.join(near)}?" if near else otherwise
