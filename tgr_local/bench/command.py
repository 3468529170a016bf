"""``tgr-local bench``: arguments in, a table out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tgr_local.options.config import EngineConfig
from tgr_local.options.flags import Parser, configured

if TYPE_CHECKING:
    from tgr_local.bench.measure import Row
    from tgr_local.bench.plan import Plan

SHAPE, TYPE, REPEATS = "0.6b", "q8_0", 5
GROUPS = {
    "decode": "a step of 1 to 32 sequences, against raw llama_decode",
    "prefill": "texts of 128, 512 and 2048 tokens, against raw llama_decode",
    "plain": "plain text, against Llama.generate and a raw loop",
    "capture": "what injection and captured states add to a step",
    "sampling": "the shares of sampling and of all else",
    "boundary": "one boundary of the method in parts, as multiples of a plain chunk",
    "bound": "the share of what memory and multiply-adds allow",
    "runs": "tgr-latent against markov and base, whole chunks",
    "crowd": "64 texts of the embedded model, against raw llama_decode with a stream each",
    "together": "1 to 32 trajectories of the embedded model: speed, memory",
    "startup": "a fresh process to its first token",
    "sweep": "one boundary for other S, K and s; with --full",
}
_EXTRA = {"sweep"}  # not without being asked for


def add_flags(parser: Parser) -> None:
    """The flags of the subcommand beside those of the engine."""
    add = parser.add_argument
    add("--model", metavar="MODEL", help="a GGUF file, or the name of a model that was pulled")
    add("--shape", metavar="SHAPE",
        help="random weights in a shape of Qwen3: tiny, 0.6b, 1.7b, 4b, 8b "
        f"(default: {SHAPE})")  # fmt: skip
    add("--type", metavar="TYPE",
        help="of those weights: f16, q8_0, q6_k, q5_k, q4_k, q3_k, q2_k, q4_0 "
        f"(default: {TYPE})")  # fmt: skip
    add("--only", metavar="NAME,NAME", help=f"groups to measure, of {', '.join(GROUPS)}")
    add("--repeats", metavar="N", help=f"measurements of each (default: {REPEATS})")
    add("--quick", action="store_true", help="fewer sizes and short chunks, in a few minutes")
    add("--full", action="store_true", help="the sweep of S, K and s too")
    add("--json", metavar="FILE", nargs="?", const="-",
        help="write JSON to FILE, or print it instead of the table")  # fmt: skip
    add("--markdown", metavar="FILE", help="write the table as Markdown to FILE")


def run(args: argparse.Namespace) -> int:
    """Measures, and prints each group when it is done."""
    os.environ["PYTHONSAFEPATH"] = "1"  # else the processes started here import what lies around
    names = _names(args.only, args.full)
    repeats = _repeats(args.repeats)
    config = configured(args, EngineConfig)
    path = _model(args)
    files = {
        kind: _writable(name)
        for kind, name in (("json", args.json), ("markdown", args.markdown))
        if name not in (None, "-")
    }
    from tgr_local.bench import machine, table
    from tgr_local.bench.peers import Settings
    from tgr_local.bench.plan import Plan
    from tgr_local.console.progress import ProgressLine
    from tgr_local.engine import Engine

    with ProgressLine(f"loading {path}"):
        engine = Engine(path, config)
    rows: list[Row] = []
    with engine:
        settings = Settings.of(engine)
        about = machine.about(engine, settings)
        plan = Plan(engine, settings, repeats, args.quick)
        say: Callable[[str], None] = (
            (lambda _: None) if args.json == "-" else lambda text: print(text, flush=True)
        )
        for name, fact in table.facts(about):
            say(f"{name:14} {fact}")
        for name in names:
            say(f"\n# {name}: {GROUPS[name]}")
            for row in measured(name, plan):
                rows.append(row)
                say(table.as_text(row))
            if "json" in files:
                files["json"].write_text(table.as_json(about, rows), encoding="utf-8")
            if "markdown" in files:
                files["markdown"].write_text(table.as_markdown(about, rows), encoding="utf-8")
    if args.json == "-":
        print(table.as_json(about, rows))
    return 0


def measured(name: str, plan: Plan) -> Iterator[Row]:
    """The rows of a group, with a sign of life while they come."""
    from tgr_local.bench import boundary, decode, runs
    from tgr_local.bench import concurrency as crowds
    from tgr_local.bench import roofline as bound
    from tgr_local.console.progress import ProgressLine

    groups: dict[str, Callable[[Plan], Iterator[Row]]] = {
        "decode": decode.steps,
        "prefill": decode.prefill,
        "plain": decode.plain,
        "capture": decode.capture,
        "sampling": decode.sampling,
        "boundary": boundary.decomposition,
        "bound": bound.shares,
        "runs": runs.compared,
        "crowd": crowds.plain,
        "together": crowds.together,
        "startup": crowds.startup,
        "sweep": boundary.sweep,
    }
    rows = groups[name](plan)
    while True:
        with ProgressLine(f"measuring {name}"):
            row = next(rows, None)
        if row is None:
            return
        yield row


def _names(only: str | None, full: bool) -> list[str]:
    default = [name for name in GROUPS if full or name not in _EXTRA]
    names = default if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in GROUPS:
            raise ValueError(f"only is {name!r}, but must be of {', '.join(GROUPS)}")
    return list(dict.fromkeys(names))


def _repeats(text: str | None) -> int:
    if text is None:
        return REPEATS
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ValueError(f"repeats is {text!r}, but must be a whole number from 1 to 1000")
    return int(text)


def _model(args: argparse.Namespace) -> Path:
    if args.model is not None:
        for name in ("shape", "type"):
            if getattr(args, name) is not None:
                raise ValueError(f"{name} is of random weights, but --model names a file; drop one")
        from tgr_local.models import library

        return library.find(args.model)
    from tgr_local.bench import shapes

    return shapes.model_file(args.shape or SHAPE, args.type or TYPE)


def _writable(name: str) -> Path:
    """The file, which can be written now. OSError if not: better before than after the work."""
    path = Path(name)
    path.open("a").close()
    return path
