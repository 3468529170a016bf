"""``tgr-local bench``: arguments in, a table out."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tgr_local.options.config import EngineConfig
from tgr_local.options.flags import Arguments, Parser, add_config_flags
from tgr_local.system.sanitize import printable_json

if TYPE_CHECKING:
    from tgr_local.lab.bench.measure import Figure
    from tgr_local.lab.bench.plan import Plan

SHAPE, TYPE, REPEATS, LONG_TOKENS = "0.6b", "q8_0", 5, 32768
FIGURES = (".svg", ".png", ".pdf")
GROUPS = {
    "decode": "a step of 1 to 32 sequences, compared with raw llama_decode",
    "prefill": "prompts of 128, 512 and 2048 tokens, compared with raw llama_decode",
    "plain": "plain replies, compared with Llama.generate and a raw loop",
    "lookup": "texts with drafts of their next tokens, compared with the same texts without",
    "capture": "cost of injection and of captured states in a step",
    "sampling": "share of sampling in a step, and time of everything else",
    "boundary": "one boundary of the method in parts, as multiples of a plain chunk",
    "roofline": "share of the speed that memory and multiply-adds allow",
    "runs": "tgr-latent compared with markov and base, whole chunks",
    "concurrency": "64 replies of the embedded model, compared with raw llama_decode",
    "searches": "1 to 32 searches of the embedded model at a time: speed, memory",
    "startup": "time from the start of a process to its first token",
    "sweep": "one boundary for other S, K and s; only with --full",
    "long": "tgr-latent and markov compared with base while a long reply grows; only on its own",
}
QUICK = ("decode", "prefill", "plain", "capture", "sampling", "roofline")
"""Groups of --quick."""
QUICK_SECONDS = 120.0
_QUICK_LEFT = 30.0  # of them, for a group to begin
_EXTRA = {"sweep"}  # only on request
_BY_NAME = {"long"}  # only with --only


def add_arguments(bench: Parser) -> None:
    """Adds the arguments, and a subcommand."""
    bench.runs(run, " [shapes]")
    _add_shapes(bench)
    add = bench.add_argument
    add("--model", metavar="MODEL", help="a GGUF file, or the name of a pulled model")
    add("--shape", metavar="SHAPE",
        help="random weights in the shape of a Qwen3 model, which are kept: tiny, 0.6b, 1.7b, "
        f"4b, 8b (default: {SHAPE})")  # fmt: skip
    add("--type", metavar="TYPE",
        help="type of the random weights: f16, q8_0, q6_k, q5_k, q4_k, q3_k, q2_k, q4_0 "
        f"(default: {TYPE})")  # fmt: skip
    add("--only", metavar="NAME,NAME", help=f"groups to measure, from {', '.join(GROUPS)}")
    add("--repeats", metavar="N", help=f"number of measurements of each row (default: {REPEATS})")
    add(
        "--quick",
        action="store_true",
        help="few groups, sizes and repeats; about 2 minutes with a 0.5B model",
    )
    add("--full", action="store_true", help="also the sweep of S, K and s")
    add("--long-tokens", metavar="N",
        help=f"length of the reply in the group long (default: {LONG_TOKENS})")  # fmt: skip
    add("--peer", metavar="NAME=PROGRAM", action="append", default=[],
        help="another program in the groups plain and prefill: ik=LLAMA_BENCH of ik_llama.cpp, "
        "openvino=PYTHON that has openvino-genai; may be repeated")  # fmt: skip
    add("--figure", metavar="FILE", help="draw the group long into FILE, such as long.svg")
    add("--json", metavar="FILE", nargs="?", const="-",
        help="write JSON to FILE, or print it instead of the table")  # fmt: skip
    add("--markdown", metavar="FILE", help="write the table as Markdown to FILE")
    add_config_flags(bench, EngineConfig, "how tgr-local and the peers load the model")


def _add_shapes(bench: Parser) -> None:
    text = "list the files of random weights that bench keeps, or delete them"
    shapes = bench.add_command("shapes", _list_shapes, text, " [list | delete]")
    shapes.set_defaults(shape=None, type=None, json=False)
    listing = shapes.add_command("list", _list_shapes, "list them: path and size")
    delete = partial(_list_shapes, delete=True)
    deleting = shapes.add_command("delete", delete, "delete them, and list what is gone")
    for command in (shapes, listing, deleting):
        add = partial(command.add_argument, default=argparse.SUPPRESS)
        add("--shape", metavar="SHAPE", help="only those of this shape")
        add("--type", metavar="TYPE", help="only those of this type")
        add("--json", action="store_true", help="print JSON")


def _list_shapes(args: Arguments, *, delete: bool = False) -> int:
    from tgr_local.lab.bench import shapes
    from tgr_local.options.model_files import size

    files = [(path, path.stat().st_size) for path in shapes.kept(args.shape, args.type)]
    if delete:
        for path, _ in files:
            path.unlink(missing_ok=True)
    if args.json:
        print(printable_json([{"path": str(path), "bytes": n} for path, n in files]))
    else:
        for path, n in files:
            print(f"{'deleted ' * delete}{path}, {size(n)}")
    return 0


def run(args: Arguments) -> int:
    """Measures, and prints each row when it is complete."""
    # subprocesses must not import from the current folder
    os.environ["PYTHONSAFEPATH"] = "1"
    from tgr_local.lab.bench import programs

    started = time.monotonic()
    names = _names(args.only, args.full, args.quick)
    bounded = args.quick and args.only is None
    repeats = _whole("repeats", args.repeats, REPEATS, 1, 1000)
    long_tokens = _whole("long_tokens", args.long_tokens, LONG_TOKENS, 256, 1 << 20)
    if args.figure and "long" not in names:
        raise ValueError("--figure draws the group long; add --only long, or drop it")
    if args.long_tokens and "long" not in names:
        raise ValueError("--long-tokens is for the group long; add --only long, or drop it")
    if args.figure and Path(args.figure).suffix not in FIGURES:
        raise ValueError(f"--figure is {args.figure!r}, but must end in {' or '.join(FIGURES)}")
    peers = programs.parse(args.peer)
    if peers and not {"plain", "prefill"} & {*names}:
        raise ValueError("--peer takes part in plain and prefill; add one to --only, or drop it")
    # a measurement must not find what the one before has read; `long` makes what it finds
    config = dataclasses.replace(args.engine, prefix_cells=int("long" in names))
    path = _model(args)
    files = {
        kind: _writable(name)
        for kind, name in (
            ("json", args.json),
            ("markdown", args.markdown),
            ("figure", args.figure),
        )
        if name not in (None, "-")
    }
    from tgr_local.engine import default_threads
    from tgr_local.engine.installation import load_with_progress
    from tgr_local.lab.bench import long_reply, measure, plan, subject
    from tgr_local.lab.bench.peers import ContextSettings
    from tgr_local.options.model_files import size

    # as llama.cpp, without fewer threads while other programs want the cores
    config = dataclasses.replace(config, n_threads=config.n_threads or default_threads(path))
    if "figure" in files:
        long_reply.matplotlib_figure()
    rows: list[Figure] = []
    with (
        load_with_progress(path, config, chats=False) as engine,
        programs.opened(peers, path, engine.n_threads) as others,
    ):
        settings = ContextSettings.of(engine)
        about = plan.about(engine, settings)
        say: Callable[[str], None] = (
            (lambda _: None) if args.json == "-" else lambda text: print(text, flush=True)
        )
        say(f"{'measures':14} {_purpose(names, bounded)}")
        for name, fact in measure.facts(about):
            say(f"{name:14} {fact}")
        read_speed, write_speed = subject.speeds(engine)  # what most people want to know, at once
        say(f"{'speed':14} reading {read_speed:,.0f} tokens/s, writing {write_speed:,.1f} tokens/s")
        if bounded and args.repeats is None:
            repeats = quick_repeats(write_speed)
        subject.settle(engine)
        conditions = plan.Plan(engine, settings, repeats, args.quick, long_tokens, others)
        for i, name in enumerate(names):
            if bounded and time.monotonic() - started > QUICK_SECONDS - _QUICK_LEFT:
                late = ",".join(names[i:])
                say(f"\nleft out after {time.monotonic() - started:.0f} s: {late} (--only {late})")
                break
            say(f"\n# {name}: {GROUPS[name]}")
            for row in measured(name, conditions):
                rows.append(row)
                say(measure.as_text(row))
            if "json" in files:
                files["json"].write_text(measure.as_json(about, rows), encoding="utf-8")
            if "markdown" in files:
                files["markdown"].write_text(measure.as_markdown(about, rows), encoding="utf-8")
    if "figure" in files:
        long_reply.draw(rows, files["figure"])
    if args.json == "-":
        print(measure.as_json(about, rows))
    if args.model is None:
        model = f"{path}, {size(path.stat().st_size)}"
        print(
            f"kept for the next time: {model}; to delete: tgr-local bench shapes delete",
            file=sys.stderr,
        )
    return 0


def quick_repeats(speed: float) -> int:
    """Measurements of each row that fit into the time of --quick at a writing speed of `speed`
    tokens a second; at 15, one measurement takes about a minute."""
    return min(REPEATS, max(1, int(speed / 15)))


def _purpose(names: Sequence[str], bounded: bool) -> str:
    text = "the speed of this engine, compared with llama.cpp on the same file, in "
    text += f"{len(names)} groups"
    return f"{text}; about {QUICK_SECONDS / 60:.0f} minutes" if bounded else text


def measured(name: str, plan: Plan) -> Iterator[Figure]:
    """The rows of a group, one after the other, with a progress line while it is measured."""
    from tgr_local.lab.bench import boundary, concurrency, decode, long_reply, roofline
    from tgr_local.system.progress import ProgressLine

    groups: dict[str, Callable[[Plan], Iterator[Figure]]] = {
        "decode": decode.steps,
        "prefill": decode.prefill,
        "plain": decode.plain,
        "lookup": decode.lookup,
        "capture": decode.capture,
        "sampling": decode.sampling,
        "boundary": boundary.decomposition,
        "roofline": roofline.shares,
        "runs": boundary.whole_methods,
        "concurrency": concurrency.plain,
        "searches": concurrency.searches,
        "startup": concurrency.startup,
        "sweep": boundary.sweep,
        "long": long_reply.growth,
    }
    rows = groups[name](plan)
    while True:
        with ProgressLine(f"measuring {name}"):
            row = next(rows, None)
        if row is None:
            return
        yield row


def _names(only: str | None, full: bool, quick: bool) -> list[str]:
    default = [name for name in GROUPS if name not in _BY_NAME and (full or name not in _EXTRA)]
    default = [*QUICK] if quick and not full else default
    names = default if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in GROUPS:
            raise ValueError(f"only is {name!r}, but must be one of {', '.join(GROUPS)}")
    if "long" in names and len(names) > 1:
        raise ValueError(f"only is {only!r}, but long is measured alone; run it on its own")
    return list(dict.fromkeys(names))


def _whole(name: str, text: str | None, default: int, least: int, most: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text!r}, but must be a whole number from {least} to {most}")
    return int(text)


def _model(args: Arguments) -> Path:
    if args.model is not None:
        for name in ("shape", "type"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name} is for random weights, but --model is a file; drop one")
        from tgr_local.options import model_files

        return model_files.find(args.model)
    from tgr_local.lab.bench import shapes

    return shapes.model_file(args.shape or SHAPE, args.type or TYPE)


def _writable(name: str) -> Path:
    """The file, after a check that it is writable. OSError before the work if it is not."""
    path = Path(name)
    path.open("a").close()
    return path
