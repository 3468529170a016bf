"""``tgr-local eval``: arguments in, a run folder and a report out.

tasks + systems -> runs (JSON lines) -> summary (numbers) -> tables, figures, cases -> report
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgr_local.console.sanitize import printable, printable_line
from tgr_local.errors import TgrError
from tgr_local.eval import walls
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.flags import Parser, add_config_flags, configured, given
from tgr_local.options.flags import flag as flag_of
from tgr_local.options.resolve import resolve

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.eval.manifest import Manifest
    from tgr_local.eval.systems import System
    from tgr_local.eval.task import Problem
    from tgr_local.eval.walls import Wall

METHODS = "base,tgr-latent"
K = "1..8"
SEEDS = "42"
GRADE_SECONDS = 10.0
_OWN = ("recipe", "methods", "variant", "k", "limit", "seeds", "budget", "reference", "data",
        "fetch", "allow_exec", "wall", "judge_url", "grade_seconds", "raw")  # fmt: skip
"""The flags of a run that its samples and grades depend on, beside those of the configs."""


def add_to(parser: Parser) -> None:
    """Adds the subcommand with its own: run, list and report."""
    text = "run benchmarks and compare methods, or report on runs"
    group = parser.add_command("eval", None, text)
    text = "run benchmarks with several methods; an interrupted run is resumed"
    _add_run_arguments(group.add_command("run", run, text, " [TASK...]"))
    group.add_command("list", _list, "list the tasks and the recipes")
    report = group.add_command("report", _report_on, "report on finished runs", " RUN...")
    add = report.add_argument
    add("runs", nargs="+", metavar="RUN", help="the folder of a run")
    text = "report.html or report.md to write (default: report.html in the first folder)"
    add("--out", metavar="FILE", help=text)
    text = "system that the others are compared with (default: that of the runs)"
    add("--reference", metavar="NAME", help=text)
    add(
        "--k",
        metavar="K",
        help="numbers of samples, as 1..64 or 1,8,64 (default: those of the runs)",
    )


def _add_run_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("tasks", nargs="*", metavar="TASK", help="tasks to run, as tgr-local eval list names them")
    add("--recipe", metavar="NAME", help="make a published table: a name of the list, or a file")
    add("--methods", metavar="A,B",
        help=f"methods to compare, instead of a recipe's systems (default: {METHODS})")  # fmt: skip
    add("--variant", action="append", default=[], metavar="METHOD:OPTION=VALUE,…",
        help="one more system; may be given several times")  # fmt: skip
    add("--k", metavar="K", help=f"samples: 1..128 (each doubling), or 1,32,128 (default: {K})")
    add("--limit", metavar="N", help="problems of each task, drawn at random (default: all)")
    add("--seeds", metavar="N,N", help=f"repeat with each of these seeds (default: {SEEDS})")
    add("--budget", metavar="TOKENS",
        help="go on until each problem took so many forward tokens over all seeds")  # fmt: skip
    add("--reference", metavar="NAME",
        help="the system that others are compared with (default: the best base)")  # fmt: skip
    add("--out", metavar="DIR",
        help="the run folder, resumed if it exists (default: runs/TASKS-MODEL)")  # fmt: skip
    add("--data", metavar="PATH", help="the folder with the tasks' files, or the file of one task")
    add("--fetch", action="store_true", help="fetch data that is missing from the Hugging Face hub")
    add("--allow-exec", action="store_true",
        help="run the programs that a model writes, in a sandbox")  # fmt: skip
    add("--wall", metavar="WALL",
        help="the sandbox: bwrap, or, at your risk, unshare or limits, which let programs at your "
             f"files (default: {walls.DEFAULT})")  # fmt: skip
    add("--judge-url", metavar="URL",
        help="an OpenAI-compatible judge of open answers (default: TGR_JUDGE_URL)")  # fmt: skip
    add("--grade-seconds", metavar="X", help=f"time for one grade (default: {GRADE_SECONDS:g})")
    add("--graders", metavar="N", help="processes that grade (default: a quarter of the cores)")
    add("--parallel", metavar="N", help="samples at a time (default: as many as fit)")
    add("--raw", action="store_true", help="use no chat template")
    parser.add_option(
        "model", None, metavar="MODEL", help="a GGUF file, or a name that tgr-local models lists"
    )
    add_config_flags(parser, SearchConfig, "how a reply is generated, by every method")
    add_config_flags(parser, EngineConfig, "how the model is loaded")


@dataclass(frozen=True)
class Request:
    """What was asked for, checked as far as it can be without a model."""

    name: str
    """Of the recipe, or empty."""
    tasks: tuple[str, ...]
    systems: tuple[System, ...]
    ks: tuple[int, ...]
    seeds: tuple[int, ...]
    limit: int
    budget: int
    parallel: int
    reference: str
    options: dict[str, Any]
    """Of all systems: the recipe's, then the user's."""


def run(args: argparse.Namespace) -> int:
    """Makes or resumes a run and reports on it."""
    from tgr_local.engine import load_with_progress
    from tgr_local.eval import grading, report, tasks  # noqa: F401  a long run ends as it began
    from tgr_local.eval.tasks import writingbench
    from tgr_local.models import library

    model = library.model_file(args.model)
    request = _request(args)
    grade_seconds = _number(args, "grade_seconds", GRADE_SECONDS, float, low=0.1)
    n_graders = _number(args, "graders", max(1, (os.cpu_count() or 1) // 4), low=1)
    judge = writingbench.checked(args.judge_url or ""), ""
    wall = _wall(args, [name for name in request.tasks if tasks.get(name).needs_exec])
    problems = _problems(args, request)
    config = configured(args, EngineConfig)
    name = request.name or "+".join(request.tasks)
    folder = Path(args.out or f"runs/{name}-{model.stem}")

    if any(grading.is_judged(tasks.get(name)) for name in request.tasks):
        judge = writingbench.judge(args.judge_url)
    grades = grading.settings(request.tasks, grade_seconds, args.allow_exec, judge, wall)
    grader = grading.Grader(n_graders, grade_seconds, args.allow_exec, *judge, wall)
    with grader, load_with_progress(model, config) as engine:
        raw = args.raw or not engine.chat_template
        wanted = _manifest(engine, request, problems, grades, raw, _typed(args))
        try:
            empty = _run(engine, request, problems, folder, grader, wanted)
        except KeyboardInterrupt:
            print(
                f"kept in {printable_line(str(folder))}; the same command goes on from there",
                file=sys.stderr,
            )
            raise
    code = _report([str(folder)], None, shown=True)
    if empty:
        raise TgrError("; ".join(empty))
    return code


# ---- what is asked for ----


def _wall(args: argparse.Namespace, names: Sequence[str]) -> Wall:
    """What the programs of these tasks run behind; says so, and refuses what is not allowed or
    does not work here."""
    from tgr_local.eval import sandbox

    wall: Wall = args.wall or walls.DEFAULT
    if wall not in walls.WALLS:
        raise ValueError(f"wall is {wall!r}, but must be one of {', '.join(walls.WALLS)}")
    if names and not args.allow_exec:
        raise ValueError(
            f"{names[0]} runs programs that the model writes; add --allow-exec to run them in a "
            "sandbox"
        )
    if names:
        sandbox.check(wall)
        print(f"programs run behind {wall}: {walls.GUARDS[wall]}", file=sys.stderr)
    return wall


def _request(args: argparse.Namespace) -> Request:
    from tgr_local.eval import metrics, recipe, systems

    base = recipe.load(args.recipe) if args.recipe is not None else recipe.Recipe("", "")
    names = tuple(dict.fromkeys(args.tasks or base.tasks))
    if not names:
        raise ValueError(
            "there is nothing to run: name a task or a --recipe; see tgr-local eval list"
        )
    flags = given(args, SearchConfig)
    if flags.pop("seed", None) is not None and args.sources["seed"] == "--seed":
        raise ValueError("an evaluation derives its seeds from --seeds; use that instead of --seed")
    methods = args.methods or ("" if base.systems or args.variant else METHODS)
    texts = [*filter(None, methods.split(",")), *args.variant]
    of_recipe = () if args.methods else base.systems
    found = systems.distinct([*of_recipe, *map(systems.from_text, texts)])
    reference = args.reference or (base.reference if of_recipe else "")
    _check_reference(reference, [system.name for system in found])
    return Request(
        name=base.name,
        tasks=names,
        systems=found,
        ks=_ks(args.k or base.k or K, metrics.doublings),
        seeds=_seeds(args.seeds) if args.seeds else base.seeds or _seeds(SEEDS),
        limit=_number(args, "limit", base.limit),
        budget=_number(args, "budget", base.budget),
        parallel=_number(args, "parallel", base.parallel),
        reference=reference,
        options={**base.options, **flags},
    )


def _check_reference(name: str | None, known: Sequence[str]) -> None:
    if name and name not in known:
        raise ValueError(f"reference is {name!r}, but must be one of {', '.join(known)}")


def _ks(text: str, doublings: Any) -> tuple[int, ...]:
    """``1..128`` doubled, or the numbers of a list, increasing."""
    try:
        low, dots, high = text.partition("..")
        numbers = [int(part) for part in ((low, high) if dots else text.split(","))]
    except ValueError:
        raise ValueError(f"k is {text!r}, but must be as in 1..128 or 1,32,128") from None
    ks = doublings(*numbers) if dots else numbers
    if ks != sorted(set(ks)) or ks[0] < 1:
        raise ValueError(f"k is {text!r}, but must increase from at least 1")
    return tuple(ks)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"seeds is {text!r}, but must be as in 42,1234,3407") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**63:
        raise ValueError(f"seeds is {text!r}, but must be different numbers from 0 to 2^63 - 1")
    return seeds


def _number(
    args: argparse.Namespace, name: str, default: Any, kind: Any = int, low: float = 0
) -> Any:
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


def _problems(args: argparse.Namespace, request: Request) -> dict[str, list[Problem]]:
    """The problems of each task. ValueError where several tasks would read one file, unless it is
    the official file of them all."""
    from tgr_local.eval import tasks
    from tgr_local.eval.tasks.benchmark import Benchmark

    path = Path(args.data).expanduser() if args.data is not None else None
    found = [tasks.get(name) for name in request.tasks]
    sources = [task.source for task in found if isinstance(task, Benchmark)]
    if path and path.is_file() and any(source != sources[0] for source in sources):
        raise ValueError(
            f"data is the file {path}, but {', '.join(request.tasks)} have a file each; name the "
            "folder that holds them, or run one task at a time"
        )
    return {task.name: task.load(path, limit=request.limit, fetch=args.fetch) for task in found}


# ---- doing it ----


def _run(
    engine: Engine,
    request: Request,
    problems: dict[str, list[Problem]],
    folder: Path,
    grader: Any,
    wanted: Manifest,
) -> list[str]:
    """Makes the samples. Returns what is to be said of systems that could make none."""
    from tgr_local.eval import grading, manifest, runs, samples
    from tgr_local.eval.live import Live

    configs = _configs(engine, request)
    for system in request.systems:
        runs.check(engine, system, configs[system.name])
    folder.mkdir(parents=True, exist_ok=True)
    draw = samples.Draw(max(request.ks), request.seeds, request.budget)
    phases = [
        runs.Phase(task, system, configs[system.name], problems[task], wanted.raw)
        for task in request.tasks
        for system in request.systems
    ]
    with samples.Store(folder / "samples.jsonl") as store, Live(len(phases)) as live:
        manifest.settle(folder, wanted, grading.in_use(store.known.values()))
        _keep_prompts(folder, problems)
        for phase in phases:
            took = runs.run_phase(engine, phase, draw, store, grader, live, request.parallel)
            if took["samples"]:
                samples.append(folder / "phases.jsonl", took)
        return [why for phase in phases if (why := runs.why_empty(phase, store))]


def _configs(engine: Engine, request: Request) -> dict[str, SearchConfig]:
    """What each system samples with."""
    config = resolve(engine.metadata, request.options).config
    return {s.name: s.resolve(config, engine.n_embd) for s in request.systems}


def _manifest(
    engine: Engine,
    request: Request,
    problems: dict[str, list[Problem]],
    grading: dict[str, Any],
    raw: bool,
    typed: str,
) -> Manifest:
    from tgr_local.eval import manifest, systems, tasks
    from tgr_local.system.versions import versions
    from tgr_local.trace.json_values import to_json_value

    configs = _configs(engine, request)
    return manifest.Manifest(
        format=manifest.FORMAT,
        created=manifest.now(),
        model=manifest.model_facts(engine),
        versions=manifest.anywhere(versions()),
        engine=manifest.anywhere(to_json_value(engine.config)),
        raw=raw,
        systems=[systems.plain(system, configs[system.name]) for system in request.systems],
        tasks=[
            {
                "name": name,
                "metric": tasks.get(name).metric,
                "problems": len(problems[name]),
                "sha256": manifest.digest(problems[name]),
            }
            for name in request.tasks
        ],
        seeds=list(request.seeds),
        k=list(request.ks),
        budget=request.budget,
        grading=grading,
        recipe=request.name,
        reference=request.reference,
        machines=[manifest.machine(engine)],
        command=typed,
    )


def _typed(args: argparse.Namespace) -> str:
    """The command line that asks for this run, wherever its options came from, without the folders
    of this machine."""
    words = ["tgr-local", "eval", "run", *args.tasks]
    for name in (*_OWN, *args.sources):
        value = getattr(args, name)
        flag = flag_of(name)
        if isinstance(value, bool):
            words += [flag] if value else [] if name in _OWN else [f"--no-{flag[2:]}"]
            continue
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                is_place = name in ("data", "model", "recipe") and os.path.isabs(one)
                words += [flag, Path(one).name if is_place else str(one)]
    return shlex.join(words)


def _keep_prompts(folder: Path, problems: dict[str, list[Problem]]) -> None:
    """The prompts, for the cases that a report shows."""
    with (folder / "problems.jsonl").open("w", encoding="utf-8") as file:
        for task, some in problems.items():
            for problem in some:
                prompt = problem.messages[-1]["content"] if problem.messages else problem.raw
                line = {"task": task, "id": problem.id, "prompt": prompt}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _list(_: argparse.Namespace) -> int:
    from tgr_local.eval import recipe, tasks

    print("tasks")
    for name, task in tasks.TASKS.items():
        print(f"  {name:22}  {task.doc}")
    print("recipes")
    for name in recipe.names():
        print(f"  {name:22}  {printable_line(recipe.load(name).title)}")
    return 0


def _report_on(args: argparse.Namespace) -> int:
    return _report(args.runs, args.out, args.reference, args.k)


def _report(
    folders: Sequence[str],
    out: str | None,
    reference: str | None = None,
    k: str | None = None,
    *,
    shown: bool = False,
) -> int:
    """Writes report.md and report.html beside the first run, or as `out` names it; a name that
    ends in .md has the tables alone. `reference` and `k` stand for those of the runs."""
    from tgr_local.eval import metrics, report, summary

    path = Path(out) if out is not None else Path(folders[0]) / "report.html"
    if path.suffix not in (".html", ".md"):
        raise ValueError(f"out is {out!r}, but a report must end in .html or .md")
    read = [summary.read(Path(folder)) for folder in folders]
    if reference:
        _check_reference(reference, [s["name"] for run in read for s in run.manifest.systems])
        changed = [dataclasses.replace(run.manifest, reference=reference) for run in read]
        read = [dataclasses.replace(r, manifest=m) for r, m in zip(read, changed, strict=True)]
    page = report.build(read, _ks(k, metrics.doublings) if k else ())
    path.with_suffix(".md").write_text(report.as_markdown(page), encoding="utf-8")
    if shown:
        print(printable(report.as_markdown(page, brief=True)))
    try:
        if path.suffix == ".html":
            path.write_text(report.as_html(page), encoding="utf-8")
    except TgrError as error:
        if not shown:
            raise
        print(f"tgr-local: warning: {printable_line(str(error))}", file=sys.stderr)
        path = path.with_suffix(".md")
    print(f"written: {printable_line(str(path))}", file=sys.stderr)
    return 0
