"""A program that loads every file named on its command line and prints, for each, a JSON line with
the path and the message of the error, or null. A file that crashes it ends the output."""

from __future__ import annotations

import json
import sys

from tgr_local.engine import Engine
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import TgrError

CHEAP = EngineConfig(n_threads=1, n_seq_max=2, n_batch=32, n_ubatch=32, n_gpu_layers=0)


def refusal(path: str) -> str | None:
    """The message that refuses a file, None for one that loads."""
    try:
        Engine(path, CHEAP).close()
    except TgrError as error:
        return str(error)
    return None


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps([path, refusal(path)]), flush=True)
