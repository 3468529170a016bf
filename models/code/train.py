"""Trains tgr-mini-code on the stream of `models.code.data`; see `models.train`.

Run as a module: ``python -m models.code.train --folder runs/code``.
"""

from models.code.copying import start_with_copying
from models.code.data import N_TOKENS, stream
from models.model import Shape
from models.train import Options, read_options, train

SHAPE = Shape(
    n_vocab=N_TOKENS, n_embd=256, n_layer=4, n_head=4, n_head_kv=2, head_dim=64, n_ff=640,
    n_ctx=1024, is_fast=True,
)  # fmt: skip
OPTIONS = Options(
    folder="code", steps=6_500, decay=3_500, warmup=40, lr=4e-3, micro_tokens=1024, accumulate=2,
    pool=256, threads=1, workers=2,
)  # fmt: skip


def main() -> None:
    """Read the options from the command line and train."""
    train(read_options(__doc__, OPTIONS), SHAPE, stream, start_with_copying)


if __name__ == "__main__":
    main()
