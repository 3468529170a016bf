"""``tgr-local models``: list, describe or download models."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tgr_local.options.flags import Parser
from tgr_local.system.sanitize import printable_json, printable_line


def add_to(parser: Parser) -> None:
    """Adds the subcommand, which without one of its own lists."""
    text = "list the models on this machine, describe one, or download one"
    models = parser.add_command("models", _list, text, " [list | show | pull]")
    models.add_argument("--json", action="store_true", help="print JSON")
    every = [models.add_command("list", _list, "list the models on this machine")]
    text = "print what the header of a model file says"
    every.append(models.add_command("show", _show, text, " MODEL"))
    every[-1].add_argument("model", metavar="MODEL", help="a GGUF file, or a name in the list")
    text = "download a model from Hugging Face"
    every.append(models.add_command("pull", _pull, text, " OWNER/REPO:QUANTIZATION"))
    text = "such as Qwen/Qwen3-0.6B-GGUF:Q8_0; a file is OWNER/REPO/FILE.gguf"
    every[-1].add_argument("name", metavar="OWNER/REPO:QUANTIZATION", help=text)
    every[-1].add_argument("--to", metavar="FOLDER", help="folder to download to")
    for command in every:
        command.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"
        )


def _list(args: argparse.Namespace) -> int:
    from tgr_local.options import model_files

    if missing := model_files.missing_folder():
        text = f"there is no folder of models {missing}; make it, or correct models_dir"
        print(f"tgr-local: warning: {printable_line(text)}", file=sys.stderr)
    found = model_files.listed()
    return _print(args, found, [model_files.as_line(one) for one in found])


def _show(args: argparse.Namespace) -> int:
    from tgr_local.options import model_files
    from tgr_local.search import strength_files

    path = model_files.find(args.model)
    found = strength_files.of_model(path)
    facts = model_files.card(path).facts() | {
        "strength": {
            f"{of['divergence']:g} wanted with rank {of['rank']}, d_z {of['d_z']}, injection_seed "
            f"{of['injection_seed']}, {of['type_k']}/{of['type_v']}": str(strength)
            for of, strength in found
        }
    }
    return _print(args, facts, model_files.as_table(facts))


def _pull(args: argparse.Namespace) -> int:
    from tgr_local.commands import download

    files = download.pull(args.name, args.to)
    shown = printable_line if sys.stdout.isatty() else str  # a program needs the exact path
    return _print(args, files, [shown(one["path"]) for one in files])


def _print(args: argparse.Namespace, value: Any, lines: list[str]) -> int:
    print(printable_json(value) if args.json else "\n".join(lines))
    return 0
