"""Kills tgr-local at random moments and checks that nothing is lost that was there.

    python bench/kill_resume.py [--kills 25] [--seed 1] [--parts evaluation,chat,code]

Every kill is a SIGKILL to the whole process group, from the first import to the last line. An
evaluation is resumed and compared with an undisturbed one: samples must be equal in all but their
seconds, and so must every table and case of the report. One sample is made at a time
(`--parallel 1`), so that each is computed in the same batch both times. The other parts are in
kill_parts.py: the turns of a conversation, accepted edits of code.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_parts import PARTS

from tgr_local.lab.eval import report, run_folder, samples
from tgr_local.lab.eval.samples import Key, Sample
from tgr_local.lab.eval.table_cells import Table

COMMAND = [
    "eval", "run", "arithmetic3", "equations", "--limit", "4", "--k", "1..4", "--seeds", "42,7",
    "--methods", "base,markov,random-anchor,tgr-latent,tgr-token", "--max-chunks", "3",
    "--parallel", "1", "--n-threads", "1",
]  # fmt: skip
OF_TIME = {"seconds", "tokens/s"}  # columns
TIMED = "Overhead"  # a table, of seconds


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tgr_local", *COMMAND, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    said = process.communicate()[1].decode()
    if process.returncode:
        sys.exit(f"the evaluation failed: {said}")


def killed(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kills the process after that time; False if it ended before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    finish(process)
    return False


def known(folder: Path) -> dict[Key, Sample]:
    """The samples without times."""
    all_samples = samples.read(folder / "samples.jsonl")
    return {s.key: dataclasses.replace(s, seconds=0.0, parts={}) for s in all_samples}


def page_of(folder: Path) -> list[object]:
    """The contents of the report without times. Where several samples are made at a time, it has no
    table of seconds at all."""
    sections = report.build([run_folder.read(folder)]).sections
    return [
        (s.task, s.notes, [timeless(t) for t in s.tables if t.title != TIMED], s.cases)
        for s in sections
    ]


def timeless(table: Table) -> Table:
    keep = [i for i, column in enumerate(table.columns) if column not in OF_TIME]
    rows = [[row[i] for i in keep] for row in table.rows]
    return dataclasses.replace(table, columns=[table.columns[i] for i in keep], rows=rows)


def compared(whole: Path, cut: Path) -> tuple[int, list[Key], int, bool]:
    """Of a run: its samples, those that differ from the whole run's, the superfluous lines, and
    whether the reports are equal."""
    expected, actual = known(whole), known(cut)
    differing = [key for key in expected.keys() | actual if expected.get(key) != actual.get(key)]
    superfluous = (cut / "samples.jsonl").read_bytes().count(b"\n") - len(actual)
    return len(actual), differing, superfluous, page_of(whole) == page_of(cut)


def evaluation(place: Path, kills: int, draw: random.Random) -> list[str]:
    """Prints what was seen; the losses."""
    whole, cut = place / "whole", place / "cut"
    begun = time.monotonic()
    finish(start(whole))
    took = time.monotonic() - begun
    samples_then, n_kills = [], 0
    while n_kills < kills:
        if not killed(start(cut), draw.uniform(0, 3 + took / kills)):
            break
        n_kills += 1
        samples_then.append(len(samples.read(cut / "samples.jsonl")))
    finish(start(cut))
    n, differing, superfluous, same = compared(whole, cut)
    print(f"evaluation: {n} samples in {took:.0f} s; killed {n_kills} times, with")
    print(f"    {' '.join(map(str, samples_then))} samples on disk")
    losses = [f"sample {key} differs" for key in differing]
    losses += [f"{superfluous} superfluous lines"] * bool(superfluous)
    losses += ["the reports are not equal"] * (not same)
    return losses + ["it ended before the last kill"] * (n_kills < kills)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=25, help="of each part (25)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default=",".join(["evaluation", *PARTS]))
    options = parser.parse_args()
    n_losses = 0
    for name in options.parts.split(","):
        draw, begun = random.Random(options.seed), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            if name == "evaluation":
                losses = evaluation(Path(folder), options.kills, draw)
            else:
                seen = PARTS[name](Path(folder), options.kills, draw)
                losses = seen.losses
                print(f"{name}: {seen}")
        print("".join(f"    LOST: {loss}\n" for loss in losses[:10]), end="")
        print(f"    {len(losses)} losses, {time.monotonic() - begun:.0f} s", flush=True)
        n_losses += len(losses)
    return int(n_losses > 0)


if __name__ == "__main__":
    sys.exit(main())
