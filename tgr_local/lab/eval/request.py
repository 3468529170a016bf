"""The input of an evaluation run: the command line and a recipe, checked without a model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.lab.eval import metrics, recipe, systems, tasks
from tgr_local.lab.eval.arguments import K_OF_ONE, METHODS, METRIC, OWN, SEEDS, K
from tgr_local.lab.eval.manifest import RunMetric, read_metric
from tgr_local.lab.eval.systems import System
from tgr_local.lab.eval.task import Problem
from tgr_local.lab.eval.tasks.benchmark import Benchmark
from tgr_local.lab.eval.tasks.data import only_file
from tgr_local.options.flags import Arguments
from tgr_local.options.flags import flag as flag_of
from tgr_local.system import paths


@dataclass(frozen=True)
class EvaluationRequest:
    """The input of a run."""

    name: str
    """Name of the recipe, or empty."""
    tasks: tuple[str, ...]
    systems: tuple[System, ...]
    ks: tuple[int, ...]
    seeds: tuple[int, ...]
    limit: int
    budget: int
    parallel: int
    reference: str
    metric: RunMetric
    options: dict[str, Any]
    """Options of all systems: those of the recipe, overridden by the user's."""


def from_arguments(args: Arguments) -> EvaluationRequest:
    """The request of a command line. ValueError for an invalid value."""
    for name in ("methods", "metric", "k", "seeds", "injection_seeds", "reference"):
        text = getattr(args, name)
        if text is not None and not text.strip(", "):
            raise ValueError(f"{name} is {text!r}; name some, or leave {flag_of(name)} out")
    base = recipe.load(args.recipe) if args.recipe is not None else recipe.Recipe("", "")
    names = tuple(dict.fromkeys(args.tasks or base.tasks))
    if not names:
        raise ValueError("no task to run: name a task or a --recipe; see tgr-local eval list")
    flags = dict(args.user_options)
    if flags.pop("seed", None) is not None and args.sources["seed"] == "--seed":
        raise ValueError("an evaluation derives its seeds from --seeds; use that instead of --seed")
    methods = args.methods or ("" if base.systems or args.variant else METHODS)
    texts = [*filter(None, methods.split(",")), *args.variant]
    of_recipe = () if args.methods else base.systems
    chosen = systems.distinct([*of_recipe, *map(systems.from_text, texts)])
    reference = args.reference or (base.reference if of_recipe else "")
    seeds = base.injection_seeds
    if args.injection_seeds:
        seeds = _seeds(args.injection_seeds, "injection_seeds")
    if seeds:
        chosen = systems.at_injection_seeds(chosen, seeds)
        first = f"{reference}{systems.SEED_IN_NAME}{seeds[0]}"
        reference = first if first in [system.name for system in chosen] else reference
    check_reference(reference, [system.name for system in chosen])
    metric = read_metric(args.metric or base.metric or METRIC)
    return EvaluationRequest(
        name=base.name,
        tasks=names,
        systems=chosen,
        ks=read_ks(args.k or base.k or (K_OF_ONE if metric == "one" else K)),
        seeds=_seeds(args.seeds) if args.seeds else base.seeds or _seeds(SEEDS),
        limit=number(args, "limit", base.limit),
        budget=number(args, "budget", base.budget),
        parallel=number(args, "parallel", base.parallel),
        reference=reference,
        metric=metric,
        options={**base.options, **flags},
    )


def load_problems(args: Arguments, request: EvaluationRequest) -> dict[str, list[Problem]]:
    """The problems of each task. ValueError where several tasks would read one file, unless it is
    the official file of all of them."""
    path = paths.expanded("data", args.data) if args.data is not None else None
    some = [tasks.get(name) for name in request.tasks]
    sources = [task.source for task in some if isinstance(task, Benchmark)]
    if path and path.is_file() and any(source != sources[0] for source in sources):
        raise ValueError(
            f"data is the file {path}, but {', '.join(request.tasks)} have a file each; name the "
            "folder with these files, or run one task at a time"
        )
    if sources and all(source == sources[0] for source in sources):
        path = only_file(sources[0], path)
    return {task.name: task.load(path, limit=request.limit, fetch=args.fetch) for task in some}


def command_line(args: Arguments) -> str:
    """The command line of this run with all options, also those from files and the environment,
    without the folders of this machine."""
    words = ["tgr-local", "eval", "run", *args.tasks]
    parsed = vars(args.engine) | args.user_options
    for name in (*OWN, *args.sources):
        value = getattr(args, name)
        meant = parsed.get(name, value) if name in args.sources else value
        flag = flag_of(name)
        if isinstance(meant, bool):
            words += [flag] if meant else [] if name in OWN else [f"--no-{flag[2:]}"]
            continue
        if isinstance(meant, tuple) and any(isinstance(part, float) for part in meant):
            value = ",".join(map(str, meant))
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                is_path = name in ("data", "model", "recipe") and os.path.isabs(item)
                words += [flag, Path(item).name if is_path else str(item)]
    return shlex.join(words)


def check_reference(name: str | None, known: Sequence[str]) -> None:
    """ValueError where a reference is given that is not one of these systems."""
    if name and name not in known:
        raise ValueError(f"reference is {name!r}, but must be one of {', '.join(known)}")


def read_ks(text: str) -> tuple[int, ...]:
    """The numbers of ``1..128`` (doubling) or of an increasing list. ValueError for other texts."""
    try:
        low, dots, high = text.partition("..")
        numbers = [int(part) for part in ((low, high) if dots else text.split(","))]
    except ValueError:
        raise ValueError(f"k is {text!r}, but must have the form 1..128 or 1,32,128") from None
    ks = metrics.doublings(*numbers) if dots else numbers
    if ks != sorted(set(ks)) or ks[0] < 1:
        raise ValueError(f"k is {text!r}, but must increase from at least 1")
    return tuple(ks)


def _seeds(text: str, name: str = "seeds") -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} is {text!r}, but must have the form 42,1234,3407") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**63:
        raise ValueError(f"{name} is {text!r}, but must be different numbers from 0 to 2^63 - 1")
    return seeds


def number(args: Arguments, name: str, default: Any, kind: Any = int, low: float = 0) -> Any:
    """The value of a flag, or the default. ValueError unless it is a number from `low` to 2^31."""
    text = getattr(args, name)
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} is {text!r}, but must be {wanted}") from None
    if not low <= value < 2**31:
        raise ValueError(f"{name} is {text}, but must be between {low} and {2**31 - 1}")
    return value
