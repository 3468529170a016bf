"""An evaluation on several Ray nodes of this machine, compared with the same one without Ray.

    python bench/ray_nodes.py [--workers 1,2,4] [--limit 8]

Every node has one engine, which makes one sample at a time on one thread. A last run loses a node
by SIGKILL once half of its samples are on the disk. Samples must be equal in all but their seconds,
each must be stored once, and the reports must be equal. Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kill_resume import compared

from tgr_local.lab.eval import run_folder

COMMAND = [
    "eval", "run", "arithmetic3", "equations", "--k", "1..2", "--methods",
    "base,markov,random-anchor,tgr-latent,tgr-token", "--max-chunks", "3", "--parallel", "1",
    "--n-threads", "1",
]  # fmt: skip


@contextlib.contextmanager
def cluster(n_nodes: int) -> Iterator[Any]:
    """A Ray cluster of so many nodes with one processor each, on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ |= {"RAY_worker_niceness": "0"}  # Ray's own 15 gives way to everything else here
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        for _ in range(n_nodes - 1):
            nodes.add_node(num_cpus=1)
        yield nodes
    finally:
        nodes.shutdown()


def start(folder: Path, limit: int, address: str = "") -> subprocess.Popen[str]:
    words = [*COMMAND, "--limit", str(limit), "--out", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "tgr_local", *words, *(["--ray", address] if address else [])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said = process.communicate()[1]
    if process.returncode:
        sys.exit(f"the evaluation failed: {said}")
    return said


def n_lines(folder: Path) -> int:
    path = folder / "samples.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def row(name: str, folder: Path, whole: Path) -> tuple[str, bool]:
    """A row of the table, and whether the run equals the one without Ray."""
    n, differing, more, same = compared(whole, folder)
    seconds = sum(phase["seconds"] for phase in run_folder.read(folder).phases)
    text = f"| {name} | {60 * n / seconds:.0f} | {len(differing)} of {n} | {more} | "
    return text + f"{'equal' if same else 'NOT equal'} |", same and not differing and not more


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--limit", type=int, default=8, help="problems of each task")
    options = parser.parse_args()
    rows, right = [], True
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        finish(start(whole, options.limit))
        rows.append(row("without Ray, one engine", whole, whole)[0])
        numbers = [int(part) for part in options.workers.split(",")]
        for n_workers in numbers:
            folder = Path(place) / str(n_workers)
            with cluster(n_workers) as nodes:
                finish(start(folder, options.limit, nodes.address))
            text, is_right = row(f"{n_workers} nodes", folder, whole)
            rows, right = [*rows, text], right and is_right
        folder, n_workers = Path(place) / "killed", max(2, *numbers)
        with cluster(n_workers) as nodes:
            process = start(folder, options.limit, nodes.address)
            while n_lines(folder) < n_lines(whole) // 2 and process.poll() is None:
                time.sleep(0.05)
            nodes.remove_node(sorted(nodes.worker_nodes, key=str)[0], allow_graceful=False)
            said = finish(process)
        text, is_right = row(f"{n_workers} nodes, one killed half-way", folder, whole)
        rows, right = [*rows, text], right and is_right and "is lost" in said
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}\n")
    print("| run | samples a minute | samples that differ | stored twice | report |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))
    print(
        "\n" + next((line for line in said.splitlines() if "is lost" in line), "no node was lost")
    )
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
