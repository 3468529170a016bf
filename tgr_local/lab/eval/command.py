"""``tgr-local eval``: its subcommands run, list and report."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgr_local.lab.eval.arguments import GRADE_SECONDS, add_run_arguments
from tgr_local.options.config import EngineConfig
from tgr_local.options.flags import Arguments, Parser
from tgr_local.system import cores
from tgr_local.system.errors import TgrError
from tgr_local.system.sandbox import backends
from tgr_local.system.sanitize import printable, printable_line

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.lab.eval.manifest import Manifest
    from tgr_local.lab.eval.ray_nodes import NodePool
    from tgr_local.system.sandbox.backends import Backend


def add_arguments(group: Parser) -> None:
    """Adds the subcommands."""
    text = "run benchmarks with several methods; an interrupted run is resumed"
    add_run_arguments(group.add_command("run", run, text, " [TASK...]"))
    group.add_command("list", _list, "list the tasks and the recipes")
    report = group.add_command("report", _report_on, "report on finished runs", " RUN...")
    add = report.add_argument
    add("runs", nargs="+", metavar="RUN", help="the folder of a run")
    text = "report.html or report.md to write (default: report.html in the first folder)"
    add("--out", metavar="FILE", help=text)
    text = "a system to report on; may be given several times (default: all)"
    add("--system", action="append", metavar="NAME", help=text)
    text = "system that the others are compared with (default: that of the runs)"
    add("--reference", metavar="NAME", help=text)
    text = "samples or one (default: that of the runs)"
    add("--metric", metavar="NAME", help=text)
    add(
        "--k",
        metavar="K",
        help="numbers of samples, as 1..64 or 1,8,64 (default: those of the runs)",
    )


def run(args: Arguments) -> int:
    """Starts or resumes a run and reports on it."""
    from tgr_local.engine.installation import load_with_progress
    from tgr_local.lab.eval import evaluation, manifest, ray_nodes, request, tasks
    from tgr_local.lab.eval.grader import Grader
    from tgr_local.lab.eval.tasks import writingbench
    from tgr_local.options import model_files

    model = model_files.model_file(args.model)
    wanted = request.from_arguments(args)
    if args.ray is not None:
        ray_nodes.check_address(args.ray)
    grade_seconds = request.number(args, "grade_seconds", GRADE_SECONDS, float, low=0.1)
    n_graders = request.number(args, "graders", max(1, cores.usable() // 4), low=1)
    judge = writingbench.checked(args.judge_url or ""), ""
    backend = _backend(args, [name for name in wanted.tasks if tasks.get(name).needs_exec])
    problems = request.load_problems(args, wanted)
    # every sample decodes its whole prompt, so that costs can be compared
    config = dataclasses.replace(args.engine, prefix_cells=0)
    name = wanted.name or "+".join(wanted.tasks)
    folder = Path(args.out or f"runs/{name}-{model.stem}")

    if any(manifest.is_judged(tasks.get(name)) for name in wanted.tasks):
        judge = writingbench.judge(args.judge_url)
    grades = manifest.grading_settings(wanted.tasks, grade_seconds, args.allow_exec, judge, backend)
    grader = Grader(n_graders, grade_seconds, args.allow_exec, *judge, backend)
    # with nodes this engine reads prompts only, and leaves the GPUs to a node on this machine
    own = dataclasses.replace(config, n_gpu_layers=0) if args.ray is not None else config
    with grader, load_with_progress(model, own) as engine, contextlib.ExitStack() as ends:
        raw = args.raw or not engine.chat_template
        command = request.command_line(args)
        about = evaluation.manifest_of(engine, wanted, problems, grades, raw, command)
        maker = None
        if args.ray is not None:
            maker, about = _pool(args, engine, config, about, ends)
        try:
            empty = evaluation.evaluate(engine, wanted, problems, folder, grader, about, maker)
        except KeyboardInterrupt:
            print(
                f"the samples are in {printable_line(str(folder))}; the same command resumes the "
                "run",
                file=sys.stderr,
            )
            raise
    code = _report([str(folder)], None, prints=True)
    if empty:
        raise TgrError("; ".join(empty))
    return code


def _pool(
    args: Arguments,
    engine: Engine,
    config: EngineConfig,
    about: Manifest,
    ends: contextlib.ExitStack,
) -> tuple[NodePool, Manifest]:
    """The engines of the Ray cluster, until `ends` ends, and the manifest with their machines."""
    from tgr_local.lab.eval import ray_nodes

    own = ray_nodes.facts_of(engine)
    cluster = ray_nodes.connected(args.ray, args.model, config, own)
    nodes = ends.enter_context(cluster)
    print(f"{len(nodes)} engines: {', '.join(node.name for node in nodes)}", file=sys.stderr)

    def warn(line: str) -> None:
        text = f"tgr-local: warning: {line}; others make its samples"
        print(printable_line(text), file=sys.stderr, flush=True)

    return ray_nodes.NodePool(nodes, warn), dataclasses.replace(
        about, machines=ray_nodes.machines(nodes)
    )


def _backend(args: Arguments, names: Sequence[str]) -> Backend:
    """The sandbox backend for the programs of these tasks; prints it. ValueError for an unknown one
    or without --allow-exec, InstallError for one that does not work here."""
    from tgr_local.lab.eval import programs

    backend: Backend = args.sandbox or backends.DEFAULT
    backends.check_name(backend)
    if names and not args.allow_exec:
        raise ValueError(
            f"{names[0]} runs programs that the model writes; add --allow-exec to run them in a "
            "sandbox"
        )
    if names:
        programs.check(backend)
        print(f"programs run {backends.where(backend)}", file=sys.stderr)
    return backend


def _list(_: Arguments) -> int:
    from tgr_local.lab.eval import recipe, tasks

    print("tasks")
    for name, task in tasks.TASKS.items():
        print(f"  {name:22}  {task.doc}")
    print("recipes")
    for name in recipe.names():
        print(f"  {name:22}  {printable_line(recipe.load(name).title)}")
    return 0


def _report_on(args: Arguments) -> int:
    return _report(args.runs, args.out, args.reference, args.k, args.metric, args.system)


def _report(
    folders: Sequence[str],
    out: str | None,
    reference: str | None = None,
    k: str | None = None,
    metric: str | None = None,
    systems: Sequence[str] | None = None,
    *,
    prints: bool = False,
) -> int:
    """Writes report.md and report.html to the first run folder, or to `out`; a name that ends in
    .md gets the tables only. `reference`, `k` and `metric` replace those of the runs; `systems`
    leaves the others out."""
    from tgr_local.lab.eval import manifest, page, report, request, run_folder

    changes: dict[str, Any] = {"metric": manifest.read_metric(metric)} if metric else {}
    path = Path(out) if out is not None else Path(folders[0]) / "report.html"
    if path.suffix not in (".html", ".md"):
        raise ValueError(f"out is {out!r}, but a report must end in .html or .md")
    read = [run_folder.read(Path(folder)) for folder in folders]
    if systems:
        read = run_folder.limited(read, systems)
    if reference:
        request.check_reference(
            reference, [s["name"] for run in read for s in run.manifest.systems]
        )
        changes["reference"] = reference
    read = [
        dataclasses.replace(run, manifest=dataclasses.replace(run.manifest, **changes))
        for run in read
    ]
    built = report.build(read, request.read_ks(k) if k else ())
    _write(path.with_suffix(".md"), report.as_markdown(built))
    if prints:
        print(printable(report.as_markdown(built, brief=True)))
    try:
        if path.suffix == ".html":
            _write(path, page.as_html(built))
    except TgrError as error:
        if not prints:
            raise
        print(f"tgr-local: warning: {printable_line(str(error))}", file=sys.stderr)
        path = path.with_suffix(".md")
    print(f"written: {printable_line(str(path))}", file=sys.stderr)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:  # of a full disk it names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
