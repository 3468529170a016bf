"""Fits the probe of the embedded model on generated problems that no evaluation uses.

Expressions of 5, 7, 8 and 9 numbers, drawn with a seed of their own: the evaluation draws those of
arithmetic8 with seed 0, and has no tasks with 5, 7 or 9 numbers that a table uses; no question of
its first 1,000 is among these. Run as ``python -m models.probe``, from the root of the source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tgr_local.lab.eval.tasks.generated import arithmetic

OPERANDS = (5, 7, 8, 9)
SEED = 20261
PROBLEMS, SAMPLES = 500, 12
KNOWN = 1000
"""Problems of an evaluation, in its order, that are left out."""
MODEL = Path("models/tgr-mini-q8_0.gguf")


def write_questions(folder: Path, n: int) -> list[Path]:
    """A file of questions and answers for each number of operands."""
    files = []
    for operands in OPERANDS:
        task = arithmetic(operands)
        known = {p.raw for p in task.load(limit=KNOWN)}
        fresh = [p for p in task.load(limit=2 * n, seed=SEED) if p.raw not in known][:n]
        files.append(folder / f"arithmetic{operands}.jsonl")
        files[-1].write_text(
            "".join(
                json.dumps({"question": p.messages[-1]["content"], "answer": str(p.reference)})
                + "\n"
                for p in fresh
            )
        )
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--out", type=Path, default=MODEL.with_name("tgr-mini-q8_0.probe.json"))
    args = parser.parse_args()
    draft = args.out.with_name(f"new-{args.out.name}")  # a fit overwrites nothing
    draft.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        files = write_questions(Path(folder), args.problems)
        command = [
            sys.executable, "-m", "tgr_local", "probe", "fit", *map(str, files),
            "--model", str(MODEL), "--problems", str(args.problems),
            "--samples", str(args.samples), "--out", str(draft),
        ]  # fmt: skip
        subprocess.run(command, check=True)
    draft.replace(args.out)


if __name__ == "__main__":
    main()
