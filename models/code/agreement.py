"""Compares an exported file of tgr-mini-code with the PyTorch model; see `models.agreement`."""

from __future__ import annotations

import random
from itertools import islice

from models.agreement import run
from models.code.data import shared_vocabulary, stream
from models.data import turn
from tgr_local.lab.eval.bugs.problem import bug, output, task, user_message


def transcripts(seed: int, n: int) -> list[list[int]]:
    """Token ids of n fresh conversations."""
    made = (one for one in stream(seed, 1000) if one.task in ("repair", "second"))
    return [one.ids.tolist() for one in islice(made, n)]


def questions(seed: int, n: int) -> list[list[int]]:
    """Token ids of n fresh questions, open for the answer."""
    rng, vocabulary = random.Random(f"agreement {seed}"), shared_vocabulary()
    found = []
    for _ in range(n):
        made = bug(rng, "test")
        asked = user_message(made.path, made.file, task(rng, made), output(rng, made))
        found.append(vocabulary.encode(turn("user", asked) + "<|im_start|>assistant\n"))
    return found


def main() -> None:
    """Compare tgr-mini-code."""
    run(__doc__, transcripts, questions, shared_vocabulary().special("<|im_end|>"))


if __name__ == "__main__":
    main()
