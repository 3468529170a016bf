"""What may come next in an answer of edits is what a plain implementation allows, token for token,
and every answer ends within its limit."""

from __future__ import annotations

import random

import pytest
from plain_edits import PlainEdits

from tgr_local.engine import EditConstraint, Opening

testing = pytest.importorskip("tgr_testing", reason="make test builds it")

LINES = ["", "a", "ab", "  a", "=", "==", "===x", "é", "a", "b`", "<", ">x", "~"]
SPELLED = b"abx: =<>`\n#" + "é".encode() + b"\xc3\xe2\x82\xac\xff"  # each byte is a token


def some_file(draw: random.Random) -> str:
    lines = [draw.choice(LINES) for _ in range(draw.randrange(6))]
    if "====" in lines:
        lines.remove("====")
    return "\n".join(lines) + draw.choice(["", "\n"]) if lines else ""


def some_edits(draw: random.Random) -> EditConstraint:
    """A constraint over one or two small files."""
    files = tuple(some_file(draw) for _ in range(draw.randrange(1, 3)))
    kind = draw.choice(["replace", "replace", "file", "function"])
    if kind == "replace":
        names = [f"{'ab'[i]}\n<<\n" for i in range(len(files))]
        return EditConstraint(
            files,
            tuple(Opening(name, i, quotes=True) for i, name in enumerate(names)),
            closing=">>>",
            separator="====\n",
            again="<<\n",
        )
    if kind == "file":
        openings = [Opening(f"{'ab'[i]}\n```\n", i) for i in range(len(files))]
    else:  # the second is in the first, the third apart
        openings = [Opening("a:x\n```\n", 0, 0, 4), Opening("a:xb\n```\n", 0, 1, 3)]
        openings.append(Opening("a:b\n```\n", 0, 4, 6))
    return EditConstraint(files, tuple(openings), closing="```", banned="~")


def some_tokens(draw: random.Random, edits: EditConstraint) -> tuple[list[bytes], bytes]:
    """A vocabulary: bytes, parts of what an answer may have, and the end, an empty text; and the
    bytes that it cannot spell."""
    unspelled = draw.choice([b"", b"~"])
    parts = [one.text for one in edits.openings] + [*edits.files, edits.separator]
    parts += [f"{edits.closing}\n\n{parts[0]}", f"a\n{edits.closing}", f"\n{edits.closing}\n"]
    joined = "".join(draw.sample(parts, len(parts))) + edits.separator + edits.closing
    texts = joined.encode()
    tokens = [bytes([byte]) for byte in SPELLED]
    for _ in range(60):
        at = draw.randrange(len(texts))
        tokens.append(texts[at : at + draw.randrange(1, 9)])
    tokens += [b"~", b"~\n"]
    kept = [token for token in tokens if token and not set(token) & set(unspelled)]
    return [*kept, b""], unspelled


def next_token(draw: random.Random, tokens: list[bytes], allowed: list[int]) -> int:
    """One of those that are allowed: rather those that lead to other parts."""
    special = [i for i in allowed if set(tokens[i]) & set(b"\n`=>") or not tokens[i]]
    return draw.choice(special if special and draw.random() < 0.6 else allowed)


@pytest.mark.parametrize("seed", range(24))
def test_what_may_come_next_is_what_the_plain_rules_allow(seed: int) -> None:
    draw = random.Random(seed)
    edits = some_edits(draw)
    tokens, unspelled = some_tokens(draw, edits)
    plain = PlainEdits(edits, unspelled)
    text, written = testing.EditText(edits.params, tokens, 0), b""
    for _ in range(24):
        allowed = text.allowed()
        expected = [
            i
            for i, token in enumerate(tokens)
            if (plain.may_begin(written + token) if token else plain.may_end(written))
        ]
        assert allowed == expected, (edits, written)
        token = next_token(draw, tokens, allowed)
        assert text.accept(token)
        if not tokens[token]:
            return
        written += tokens[token]


@pytest.mark.parametrize("seed", range(40))
def test_an_answer_ends_within_its_limit(seed: int) -> None:
    draw = random.Random(seed)
    edits = some_edits(draw)
    tokens, unspelled = some_tokens(draw, edits)
    plain = PlainEdits(edits, unspelled)
    least = testing.EditText(edits.params, tokens, 0).cost()
    limit = least + draw.randrange(12)
    text, free = (testing.EditText(edits.params, tokens, n) for n in (limit, 0))
    written, n = b"", 0
    while True:
        allowed = text.allowed()
        assert allowed and set(allowed) <= set(free.allowed())
        assert text.cost() <= limit - n
        token = next_token(draw, tokens, allowed)
        assert text.accept(token) and free.accept(token)
        n += 1
        if not tokens[token]:
            break
        written += tokens[token]
    assert n <= limit and plain.may_end(written)
