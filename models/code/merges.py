"""Learns the merges of the code model's vocabulary and writes `merges.txt`.

A model must be trained anew after that. Run as a module: ``python -m models.code.merges``.
"""

from models.code.data import MERGES_FILE, N_TOKENS, SPECIALS, sample_texts
from models.vocab import learn

N_SAMPLES = 4_000


def main() -> None:
    """Learn and write the merges."""
    merges = learn(sample_texts(seed=0, n_samples=N_SAMPLES), N_TOKENS - 256 - len(SPECIALS))
    MERGES_FILE.write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")


if __name__ == "__main__":
    main()
