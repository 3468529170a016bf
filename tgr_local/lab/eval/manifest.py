"""Everything that a run depends on, written before its first sample and checked before it is
resumed.

A run folder holds the samples of one manifest. The same command resumes it; a command that would
change a sample is refused. More samples (`k`, `budget`) are possible at any time, and other grading
as long as no grade on the disk depends on it.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import typing
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tgr_local.lab.eval.samples import Sample
from tgr_local.lab.eval.task import EvalTask, Metric, Problem
from tgr_local.lab.eval.tasks import get
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import types_of
from tgr_local.options.former import FORMER, FORMER_VALUES, departed
from tgr_local.options.strength_files import Strength
from tgr_local.system import cores, json_checks
from tgr_local.system.errors import TgrError, describe
from tgr_local.system.files import naming
from tgr_local.system.json_checks import Count
from tgr_local.system.json_values import from_json_value, to_json_value
from tgr_local.system.sandbox import backends
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.versions import processor, version

if TYPE_CHECKING:
    from tgr_local.engine import Engine

FORMAT = "tgr-eval 1"
NAME = "manifest.json"
RunMetric = Literal["samples", "one"]
"""Metric of a report: Pass@k and AUC of many samples, or the accuracy of one answer."""
_MAY_CHANGE = ("k", "budget", "recipe", "machines", "reference", "metric", "created", "command")
_OF_THE_MACHINE = (
    "n_threads", "n_batch", "n_ubatch", "n_seq_max", "n_gpu_layers", "n_cpu_moe", "device",
    "main_gpu", "tensor_split", "rpc", "use_mmap", "use_mlock", "python", "draft_model",
    "draft_tokens",
)  # fmt: skip
"""Settings and versions that change the speed of a run, but not its samples."""


@dataclass(frozen=True)
class Manifest:
    """One run folder. Only the fields in `_MAY_CHANGE` may change."""

    format: str
    created: str
    model: dict[str, Any]
    """name, sha256, description, parameters."""
    versions: dict[str, Any]
    engine: dict[str, Any]
    """Engine options; those that depend on the machine only are in `machines`."""
    raw: bool
    systems: list[dict[str, Any]]
    """name, method, config without its seed; in the order of the tables. Old ones may have the
    sha256 of a probe, which has left."""
    tasks: list[dict[str, Any]]
    """name, metric, problems, sha256 of all of them; rollout_len by system, where it is not that of
    its config."""
    seeds: list[int]
    k: list[int]
    """The k of the tables; the largest is the number of samples for each seed."""
    budget: int
    """Forward tokens that the samples of a problem reach at least, for each system and all seeds
    together; 0 = k determines the samples."""
    grading: dict[str, Any]
    """See `grading_settings`."""
    recipe: str
    """Name of the recipe, or empty."""
    reference: str
    """The system that the others are compared with; empty = the best `base`."""
    machines: list[dict[str, Any]]
    """Every machine that made samples."""
    command: str = ""
    """The last command line, without the folders of that machine."""
    metric: RunMetric = "samples"


_CONFIG = {f"{name}?": hint for name, hint in types_of(SearchConfig).items()}
_CONFIG |= {"rollout_len": int, "n_candidates": int}  # the axes of plots
_SHAPE: dict[str, Any] = {
    **typing.get_type_hints(Manifest),
    "model": {"name": str, "sha256": str, "description": str, "parameters": Count},
    "versions": dict[str, str],
    "systems": [{"name": str, "method": str, "config": _CONFIG, "probe?": str}],
    "tasks": [{"name": str, "metric": Metric, "problems": Count, "sha256": str,
               "rollout_len?": dict[str, int]}],
    "seeds": list[Count],
    "k": list[Annotated[int, 1]],
    "budget": Count,
    "grading": dict[str, str | int | float | bool | None],
    "machines": [
        {
            "system?": str, "processor?": str, "cores?": Count, "devices?": list[str],
            "threads?": Count, "python?": str, "settings?": dict,
            "strengths?": dict[str, dict[str, float]],
        }
    ],
    "command?": str,
    "metric?": RunMetric,
}  # fmt: skip
del _SHAPE["command"], _SHAPE["metric"]


def read_metric(name: str) -> RunMetric:
    """The metric of that name. ValueError for an unknown one."""
    known = typing.get_args(RunMetric)
    if name not in known:
        raise ValueError(f"metric is {name!r:.40}, but must be one of {', '.join(known)}")
    return typing.cast(RunMetric, name)


def model_facts(engine: Engine) -> dict[str, Any]:
    """The entry `model`."""
    return {
        "name": engine.path.stem,
        "sha256": engine.model_hash,
        "description": engine.description,
        "parameters": engine.n_params,
    }


def machine(engine: Engine, strengths: Mapping[str, Strength] | None = None) -> dict[str, Any]:
    """An entry of `machines`, without the name of the machine or the user. `strengths` are those
    that were measured there for the injections of systems."""
    settings = to_json_value(engine.config)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": cores.usable(),
        "devices": sorted(set(engine.devices())),
        "threads": engine.n_threads,
        "python": platform.python_version(),
        "settings": {name: settings[name] for name in _OF_THE_MACHINE if name in settings},
        "strengths": {
            name: {"zeta": strength.zeta, "divergence": strength.divergence}
            for name, strength in (strengths or {}).items()
        },
    }


def anywhere(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without those that depend on the machine only."""
    return {name: value for name, value in facts.items() if name not in _OF_THE_MACHINE}


def digest(problems: Sequence[Problem]) -> str:
    """sha256 of the problems with their expected answers, without their groups."""
    facts = [dataclasses.asdict(problem) for problem in problems]
    for fact in facts:
        del fact["groups"]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def read(folder: Path) -> Manifest:
    """The manifest of a run folder, without former options that changed nothing. TgrError where it
    is missing or damaged."""
    path = folder / NAME
    try:
        data = json_checks.loads(path.read_bytes())
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')!r:.40}, but must be {FORMAT!r}")
        json_checks.check(_SHAPE, data)
        if "wall" in data["grading"]:
            raise ValueError('grading has the former key "wall", which is now "sandbox"')
        for name in ("systems", "tasks", "seeds", "k"):
            items = [item["name"] if isinstance(item, dict) else item for item in data[name]]
            if not items or len(set(items)) < len(items):
                raise ValueError(f"{name} is {items!r:.60}, but must be a list without repetition")
        for system in data["systems"]:
            system["config"] = without_former(system["config"])
            if system.get("probe") == "none":
                del system["probe"]
        for machine in data["machines"]:
            if "settings" in machine:
                machine["settings"] = without_former(machine["settings"])
        manifest: Manifest = from_json_value(Manifest, data)
    except OSError as error:
        raise TgrError(
            f"{folder} is not a run folder of tgr-local eval ({describe(error)})"
        ) from None
    except ValueError as error:
        raise TgrError(
            f"{path} is damaged: {error}; restore it, or name another folder (eval run: --out)"
        ) from None
    return manifest


def without_former(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the former ones that have their default, and so change nothing; and with
    the present ones in the place of former values."""
    return {
        name: FORMER_VALUES[name].get(value, value) if name in FORMER_VALUES else value
        for name, value in options.items()
        if name not in FORMER or value != FORMER[name]
    }


def settle(folder: Path, wanted: Manifest, in_use: Set[str]) -> Manifest:
    """Writes the manifest of a new run, or merges it with that of a resumed run. The caller has the
    folder's `Store` open, so that no other run writes one. `in_use` are the settings of `grading`
    on which grades on the disk depend; the new manifest provides those that an old one lacks.

    Raises TgrError with the differences where the folder has a run with other options.
    """
    if not (folder / NAME).exists():
        if (folder / "samples.jsonl").stat().st_size:
            raise TgrError(f"{folder} holds samples but no {NAME}; name another folder with --out")
        return _write(folder, wanted)
    known = read(folder)
    same_file = known.model["sha256"] == wanted.model["sha256"]
    known = dataclasses.replace(
        known,
        model=wanted.model if same_file else known.model,  # its name and words may change
        engine=anywhere(known.engine),
        versions=anywhere(known.versions),
        grading={k: v for k, v in known.grading.items() if k in in_use and v != ""},
    )
    fixed = [f.name for f in dataclasses.fields(Manifest) if f.name not in _MAY_CHANGE]
    plain = json.loads(json.dumps(to_json_value(wanted)))
    plain["grading"] = {name: plain["grading"].get(name, "absent") for name in known.grading}
    changes = [
        change for name in fixed for change in _differences(name, getattr(known, name), plain[name])
    ]
    if changes:
        more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
        raise TgrError(
            f"{folder} has a run with other options: {'; '.join(changes[:4])}{more}; repeat its "
            "options to resume it, or name another folder with --out"
        )
    machines = known.machines + [m for m in wanted.machines if m not in known.machines]
    return _write(folder, dataclasses.replace(wanted, machines=machines, created=known.created))


def _write(folder: Path, manifest: Manifest) -> Manifest:
    path = folder / NAME
    new = path.with_suffix(".new")
    text = json.dumps(to_json_value(manifest), ensure_ascii=False, indent=1)
    with naming(new), new.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    return manifest


def _differences(name: str, known: Any, wanted: Any) -> list[str]:
    """Lists the differences of two JSON values: ``systems.base.temperature was 0.6 and is 0.8``."""
    if name in ("systems", "tasks"):
        known, wanted = ({item["name"]: item for item in items} for items in (known, wanted))
    if isinstance(known, Mapping) and isinstance(wanted, Mapping):
        keys = [*known, *(key for key in wanted if key not in known)]
        pairs = ((key, known.get(key, "absent"), wanted.get(key, "absent")) for key in keys)
        return [change for key, a, b in pairs for change in _differences(f"{name}.{key}", a, b)]
    if known == wanted:
        return []
    now = departed(name.rpartition(".")[2]) or f"is {wanted!r:.60}"
    return [f"{name} was {known!r:.60} and {now}"]


# ---- what grades depend on: time, sandbox, judge, versions of packages ----


def grading_settings(
    tasks: Iterable[str],
    seconds: float,
    allow_exec: bool,
    judge: tuple[str, str],
    backend: Backend = backends.DEFAULT,
) -> dict[str, Any]:
    """The entry `grading` of a manifest: what the grades of these tasks may depend on. `judge` is a
    URL and a model."""
    url, model = judge
    tasks = list(tasks)
    settings = {"seconds": seconds, "allow_exec": allow_exec, "judge": url}
    if allow_exec and any(get(task).needs_exec for task in tasks):
        settings["sandbox"] = backend
    if model:
        settings["judge_model"] = model
    return settings | {name: version(name) for task in tasks for name in _packages(get(task))}


def is_judged(task: EvalTask) -> bool:
    """Whether a judge grades its answers."""
    return task.metric == "score"


def grading_in_use(samples: Iterable[Sample]) -> set[str]:
    """The names of the settings that the grades of these samples depend on. A timeout gives no
    grade, except for a program, which is then wrong."""
    names: set[str] = set()
    for sample in samples:
        if sample.correct is not None:
            task = get(sample.task)
            names.update(_packages(task))
            if task.needs_exec:
                names |= {"seconds", "allow_exec", "sandbox"}
            if is_judged(task) and sample.answer is not None:
                names |= {"judge", "judge_model"}
    return names - {"sacrebleu"}  # every report computes it again


def _packages(task: EvalTask) -> list[str]:
    """The packages that compute its numbers."""
    own = [name.replace("_", "-") for name in task.packages]
    return own if task.metric == "pass" else [*own, "sacrebleu"]
