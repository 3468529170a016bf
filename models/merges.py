"""Learns the merges of the vocabulary from the training data and writes `merges.txt`.

A model must be trained anew after that. Run as a module: ``python -m models.merges``.
"""

from models.data import sample_texts
from models.vocab import MERGES_FILE, N_TOKENS, SPECIALS, learn

N_SAMPLES = 20_000


def main() -> None:
    """Learn and write the merges."""
    n_merges = N_TOKENS - 256 - len(SPECIALS)
    merges = learn(sample_texts(seed=0, n_samples=N_SAMPLES), n_merges)
    MERGES_FILE.write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")


if __name__ == "__main__":
    main()
