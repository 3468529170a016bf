"""A byte-level BPE vocabulary of 512 tokens: every byte, single digits, merges of common words.

`learn` makes the merges from texts; `Vocabulary` encodes and decodes with them exactly as
llama.cpp does for a vocabulary of type `gpt2` with the pre-tokenizer `qwen2`. Specials are tokens
of their own, which plain text never encodes to. `models.merges` writes `merges.txt` again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

MERGES_FILE = Path(__file__).parent / "merges.txt"
N_TOKENS = 512
"""Size of the vocabulary: 256 bytes, the merges, the specials."""
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<think>", "</think>")

LETTER, OTHER = r"[^\W\d_]", r"(?:[^\s\w]|_)"
PRE_TOKEN = re.compile(
    rf"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    rf"|(?:(?![\r\n])(?:[^\w]|_))?{LETTER}+|\d| ?{OTHER}+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The `qwen2` pre-tokenizer: no merge crosses the borders that it sets; digits stand alone."""


@lru_cache(maxsize=1)
def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in GPT-2's vocabulary format."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    for n, byte in enumerate(b for b in range(256) if b not in letters):
        letters[byte] = chr(256 + n)
    return letters


def letters_of(part: str) -> tuple[str, ...]:
    """The bytes of a text as vocabulary letters."""
    return tuple(byte_letters()[byte] for byte in part.encode())


def merged(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """The symbols with every occurrence of the pair joined, from the left."""
    out: list[str] = []
    i = 0
    while i < len(symbols):
        if symbols[i : i + 2] == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return tuple(out)


def learn(texts: Iterable[str], n_merges: int) -> list[tuple[str, str]]:
    """The `n_merges` most frequent merges, greedily; ties go to the smaller pair."""
    words = Counter(part for text in texts for part in PRE_TOKEN.findall(text))
    split = {letters_of(word): count for word, count in words.items()}
    pairs: Counter[tuple[str, str]] = Counter()
    holders: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for symbols in split:
        _count(symbols, split[symbols], pairs, holders)
    merges = []
    for _ in range(n_merges):
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        # Only the words that hold the pair change.
        for symbols in list(holders[best]):
            count = split.pop(symbols)
            _count(symbols, -count, pairs, holders)
            shorter = merged(symbols, best)
            split[shorter] = count
            _count(shorter, count, pairs, holders)
    return merges


def _count(
    symbols: tuple[str, ...],
    count: int,
    pairs: Counter[tuple[str, str]],
    holders: dict[tuple[str, str], set[tuple[str, ...]]],
) -> None:
    """Add a word that occurs `count` times to the counts of pairs, or take it out if negative."""
    for pair in pairwise(symbols):
        pairs[pair] += count
        if count > 0:
            holders.setdefault(pair, set()).add(symbols)
        else:
            holders[pair].discard(symbols)
            if pairs[pair] <= 0:
                del pairs[pair]


class Vocabulary:
    """Encoding and decoding with a list of merges.

    `tokens[i]` is the text of token i in GPT-2's byte letters; specials are at the end.
    """

    def __init__(self, merges: list[tuple[str, str]], specials: tuple[str, ...] = SPECIALS) -> None:
        self.merges, self.specials = merges, specials
        self.tokens = [*byte_letters().values(), *(a + b for a, b in merges), *specials]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self._rank = {pair: rank for rank, pair in enumerate(merges)}
        self._bytes = {letter: byte for byte, letter in byte_letters().items()}
        self._cache: dict[str, list[int]] = {}
        self._special = re.compile("(" + "|".join(re.escape(s) for s in specials) + ")")

    @classmethod
    def load(cls, file: Path = MERGES_FILE, specials: tuple[str, ...] = SPECIALS) -> Vocabulary:
        """The vocabulary with the merges of a file; by default that of tgr-mini."""
        lines = file.read_text(encoding="utf-8").splitlines()
        return cls([(a, b) for a, b in (line.split(" ") for line in lines)], specials)

    def __len__(self) -> int:
        return len(self.tokens)

    def special(self, name: str) -> int:
        """The id of a special token."""
        return self.ids[name]

    def encode(self, text: str) -> list[int]:
        """Token ids; the names of specials in the text become their tokens."""
        ids: list[int] = []
        for i, part in enumerate(self._special.split(text)):
            if i % 2:
                ids.append(self.ids[part])
            else:
                for word in PRE_TOKEN.findall(part):
                    ids += self._cache.get(word) or self._word(word)
        return ids

    def _word(self, word: str) -> list[int]:
        """The ids of one pre-token, the lowest-ranked pair merged first."""
        symbols = letters_of(word)
        while len(symbols) > 1:
            best = min(pairwise(symbols), key=lambda p: self._rank.get(p, len(self._rank)))
            if best not in self._rank:
                break
            symbols = merged(symbols, best)
        self._cache[word] = [self.ids[symbol] for symbol in symbols]
        return self._cache[word]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; bytes that are no UTF-8 become replacement characters."""
        data = b""
        for i in ids:
            token = self.tokens[i]
            data += (
                token.encode()
                if token in self.specials
                else bytes(self._bytes[letter] for letter in token)
            )
        return data.decode(errors="replace")
