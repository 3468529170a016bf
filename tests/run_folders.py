"""Run folders with samples made up by hand, and what they compare."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tgr_local.lab.eval import comparison, manifest, run_folder, summary
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.manifest import Manifest
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.samples import Sample, Store
from tgr_local.options.config import SearchConfig
from tgr_local.system.json_values import to_json_value

BOUNDARY = {
    "chunk": 0, "tokens": 4, "chosen": 1, "V": [-0.5, -0.4], "P_bum": [4.0, 4.5],
    "P_uni": [0.1, 0.2], "S": [-2.5, -2.0], "apcs": 0.7, "min_cosine": 0.6, "n_eff": 1.5,
    "n_measured": 2, "similarity": 0.995, "angle": 0.1, "curvature": 2.0,
    "text": "<b>chunk</b>", "rollouts": ["ab<i>c", "ab<u>d"],
}  # fmt: skip


def sample(system: str, problem: str, index: int, **values: Any) -> Sample:
    plain_one = Sample(
        "toy", problem, system, 42, index, "<script>text</script>", "", 10, "stop", False, 0.0,
        "7", "", -0.5 - index, {"query": 20, "chunk": 10}, {"chunk": 0.2, "rollouts": 0.1}, 0.3,
    )  # fmt: skip
    return dataclasses.replace(plain_one, **values)


def write(
    folder: Path, samples: list[Sample], problems: Sequence[str] = "pq", **changes: Any
) -> Path:
    """A run folder, by default with two systems and two problems."""
    config = dataclasses.asdict(SearchConfig())
    about = Manifest(
        format=manifest.FORMAT, created="2026-01-01T00:00:00+00:00",
        model={"name": "toy-1B", "sha256": "0" * 64, "description": "a toy", "parameters": 1},
        versions={"tgr-local": "0"}, engine={}, raw=False,
        systems=[
            {"name": "base", "method": "base", "config": config},
            {"name": "tgr-latent", "method": "tgr-latent", "config": config},
        ],
        tasks=[{"name": "toy", "metric": "pass", "problems": 2, "sha256": ""}],
        seeds=[42], k=[1, 2], budget=0, grading={}, recipe="", reference="", machines=[],
    )  # fmt: skip
    folder.mkdir()
    text = json.dumps(to_json_value(dataclasses.replace(about, **changes)))
    (folder / manifest.NAME).write_text(text, encoding="utf-8")
    lines = [{"task": "toy", "id": p, "prompt": f"<what is {p}?>"} for p in problems]
    (folder / "problems.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    phases = [{"task": "toy", "system": s, "samples": 4, "counted": 120, "positions": 120,
               "seconds": 2.0} for s in ("base", "tgr-latent")]  # fmt: skip
    (folder / "phases.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in phases), encoding="utf-8"
    )
    with Store(folder / "samples.jsonl") as store:
        for drawn in samples:
            store.add(drawn)
    return folder


def both() -> list[Sample]:
    """base: p right once in two, q never; tgr-latent: p always, q once, at twice the cost."""
    dear = {"query": 20, "chunk": 10, "rollouts": 30}
    searched = {"boundaries": [BOUNDARY], "counts": dear}
    return [
        sample("base", "p", 0, correct=False, answer="6"),
        sample("base", "p", 1, correct=True),
        sample("base", "q", 0, answer=None),
        sample("base", "q", 1, answer=None),
        sample("tgr-latent", "p", 0, correct=True, **searched),
        sample("tgr-latent", "p", 1, correct=True, **searched),
        sample("tgr-latent", "q", 0, correct=True, **searched),
        sample("tgr-latent", "q", 1, correct=False, answer="8", **searched),
    ]


def graded(
    folder: Path, systems: Mapping[str, tuple[int, Sequence[str]]], /, **changes: Any
) -> Path:
    """A run folder made of grades: for each system, of method base or tgr-latent, the cost of a
    sample and, for every problem, its samples as text: `1` right, `0` wrong."""
    config = dataclasses.asdict(SearchConfig())
    n_samples = max(len(row) for _, rows in systems.values() for row in rows)
    n_problems = max(len(rows) for _, rows in systems.values())
    samples = [
        sample(name, f"p{i:03}", j, correct=grade == "1", counts={"chunk": cost})
        for name, (cost, rows) in systems.items()
        for i, row in enumerate(rows)
        for j, grade in enumerate(row)
    ]
    entries = [
        {"name": name, "method": "base" if name == "base" else "tgr-latent", "config": config}
        for name in systems
    ]
    ks = [2**i for i in range(n_samples.bit_length())]
    return write(
        folder, samples, [f"p{i:03}" for i in range(n_problems)],
        **{"systems": entries, "k": ks, **changes},
    )  # fmt: skip


def outcomes(*folders: Path) -> list[Outcome]:
    """What became of the systems."""
    return summary.outcomes([run_folder.read(folder) for folder in folders])["toy"]


def compared(*folders: Path) -> Comparison:
    """Their outcomes, compared."""
    return comparison.of(outcomes(*folders))
