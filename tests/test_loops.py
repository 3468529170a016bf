"""What counts as a loop: never a text that repeats itself as it should."""

from __future__ import annotations

import re
from typing import Any

import pytest
from loop_texts import HONEST, LOOPS

from tgr_local.generation.loops import is_loop
from tgr_local.options.resolve import FOR_PEOPLE

N: int = FOR_PEOPLE["loop_guard"]


class Words:
    """Words with the space before them, digits and punctuation as tokens, as trained models have
    them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}

    def tokenize(self, text: str) -> list[int]:
        return [self._id(word) for word in re.findall(r" ?[^\W\d]+|\d|\s+|[^\w\s]|_", text)]

    def detokenize(self, tokens: list[int]) -> bytes:
        return "".join(self.texts[token] for token in tokens).encode()

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self.texts)
            self.texts.append(word)
        return self._ids[word]


@pytest.fixture
def words() -> Any:
    return Words()


@pytest.mark.parametrize(
    ("tokens", "parts", "loops"),
    [
        ([1, 2, 3, 4] * 16, 4, True),
        ([9, 9, *[1, 2, 3, 4] * 16], 4, True),
        ([1, 2, 3, 4] * 15, 4, False),  # too short
        ([*[1, 2, 3, 4] * 16, 5], 4, False),
        ([7] * 64, 2, True),
        (list(range(40)) * 2, 2, True),
        (list(range(40)) * 2, 3, False),
        (list(range(200)), 2, False),
        ([7], 2, False),
        ([], 2, False),
    ],
)
def test_a_loop_is_an_end_of_equal_parts(words: Any, tokens: list[int], parts: int, loops: bool):
    words.tokenize(" ".join(map(chr, range(0x4E00, 0x4E00 + 200))))  # so many tokens have a text
    assert is_loop(words, tokens, parts) is loops


def ends(words: Any, text: str, step: int, **kind: Any) -> int | None:
    """The number of tokens after which the text ends, where it is looked at so often."""
    tokens = words.tokenize(text)
    for n in range(step, len(tokens) + step, step):
        before = words.detokenize(tokens[:n]).decode()
        if is_loop(words, tokens[:n], N, text_before=before, **kind):
            return n
    return None


@pytest.mark.parametrize("name", HONEST)
def test_the_guard_of_people_leaves_tables_lists_and_code(words: Any, name: str):
    assert ends(words, HONEST[name], 64) is None


@pytest.mark.parametrize("name", LOOPS)
def test_the_guard_of_people_ends_what_never_ends(words: Any, name: str):
    text, latest = LOOPS[name]
    assert ends(words, text, 512) in range(1, latest + 1)


def test_few_copies_of_a_long_part_are_enough(words: Any):
    """Five of prose; eight of code; in a fence and with markup prose is code."""
    prose = " ".join(f"{one}{other}ment" for one in "abcdefgh" for other in "abcdefghijk") + ".\n"
    size = len(words.tokenize(prose))
    assert 64 < size < 256
    for n, loops in ((4, False), (5, True)):
        assert is_loop(words, words.tokenize("begins\n" + prose * n), N) is loops
    code = prose.replace(" ", "; ")
    for text, before in ((code, ""), (prose, "```\n" + prose)):
        n = max(8, -(-64 * N // len(words.tokenize(text))))
        assert not is_loop(words, words.tokenize(text * (n - 1)), N, text_before=before)
        assert is_loop(words, words.tokenize(text * n), N, text_before=before)
    assert is_loop(words, words.tokenize(code * 5), N, thinks=True)  # nobody asked for its form
    closed = "```\n" + code + "```\n" + prose
    assert is_loop(words, words.tokenize(prose * 5), N, text_before=closed)


def test_a_list_may_count_its_rounds(words: Any):
    """The numbers of items alone may differ, and only in a list of sentences."""
    item = "The pump is to be switched off before anybody opens the lid of the large green tank "
    item += "on the roof of the house next to the old mill"
    assert ends(words, "".join(f"{i}. {item}.\n" for i in range(99)), 64)
    assert ends(words, "".join(f"  {i}) {item}.\n\n" for i in range(99)), 64)
    for form in ("{0}. {1} number {0}.\n", "{0}, {1}.\n", "Test {0}: {1}.\n", "{0}. {{{1}}}\n"):
        assert ends(words, "".join(form.format(i, item) for i in range(99)), 64) is None
