"""The names that an error proposes: those that were meant, not all that share some letters."""

from __future__ import annotations

import pytest

from tgr_local.system.near_names import did_you_mean, near_names

KNOWN = [
    "temperature",
    "chat_template",
    "dynatemp_range",
    "top_k",
    "top_p",
    "port",
    "host",
    "delta",
]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("temprature", ["temperature"]),  # chat_template shares as many letters as others once did
        ("temp", ["temperature"]),
        ("top", ["top_k", "top_p"]),
        ("prot", ["port"]),
        ("model", []),  # not delta
        ("", []),
        ("_", []),
        ("t" * 10_000, []),
    ],
)
def test_only_names_that_may_have_been_meant_are_proposed(name: str, near: list[str]):
    assert near_names(name, KNOWN) == near


def test_two_that_are_equally_like_it_are_both_proposed():
    assert did_you_mean("top_x", KNOWN, "none") == "did you mean top_p, top_k?"
    assert did_you_mean("zzz", KNOWN, "/help has all") == "/help has all"
