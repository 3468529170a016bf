"""``tgr-local models``: list, describe, download or delete models."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tgr_local.options.flags import Arguments, Parser
from tgr_local.system.errors import TgrError
from tgr_local.system.sanitize import printable_json, printable_line


def add_to(parser: Parser) -> None:
    """Adds the subcommand, which without one of its own lists."""
    text = "list the models on this machine, describe one, download or delete one"
    models = parser.add_command("models", _list, text, " [list | show | pull | rm]")
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
    text = "delete a model of the folder of models, with its measured strengths"
    every.append(models.add_command("rm", _remove, text, " MODEL"))
    every[-1].add_argument("model", metavar="MODEL", help="a name in the list")
    every[-1].add_argument("--yes", action="store_true", help="delete it without a question")
    for command in every:
        command.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"
        )


def _list(args: Arguments) -> int:
    from tgr_local.options import model_files

    if missing := model_files.missing_folder():
        text = f"there is no folder of models {missing}; make it, or correct models_dir"
        print(f"tgr-local: warning: {printable_line(text)}", file=sys.stderr)
    models = [facts | _memory(facts) for facts in model_files.listed()]
    return _print(args, models, [model_files.as_line(facts) for facts in models])


def _show(args: Arguments) -> int:
    from tgr_local.options import model_files, strength_files

    path = model_files.find(args.model)
    facts = model_files.card(path).facts()
    facts |= _memory(facts) | {
        "strength": {
            f"{of['divergence']:g} wanted with rank {of['rank']}, d_z {of['d_z']}, injection_seed "
            f"{of['injection_seed']}, {of['type_k']}/{of['type_v']}": str(strength)
            for of, strength in strength_files.of_model(path).values()
        }
    }
    return _print(args, facts, model_files.as_table(facts))


def _memory(facts: dict[str, Any]) -> dict[str, Any]:
    """Whether a model fits into the memory that is free, where this can be said."""
    try:
        from tgr_local.engine import check_memory
    except TgrError:  # the engine is broken, which doctor says; files are listed all the same
        return {}

    if "error" in facts:
        return {}
    try:
        return {"fits into memory": check_memory(facts["path"]).fits}
    except (TgrError, OSError):
        return {}


def _remove(args: Arguments) -> int:
    from tgr_local.commands import removal
    from tgr_local.options import model_files

    files = removal.files_of(args.model)
    names = [printable_line(str(file)) for file in files]
    if not args.yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise ValueError(f"deleting {', '.join(names)} needs an answer on a terminal, or --yes")
        size = model_files.size(removal.n_bytes(files))
        print("\n".join(names), file=sys.stderr)
        print(f"delete {size}? yes, no: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("tgr-local: nothing was deleted", file=sys.stderr)
            return 1
    removal.remove(files)
    lines = names if sys.stdout.isatty() else [str(file) for file in files]
    return _print(args, [{"path": str(file)} for file in files], lines)


def _pull(args: Arguments) -> int:
    from tgr_local.commands import download

    files = download.pull(args.name, args.to)
    as_shown = printable_line if sys.stdout.isatty() else str  # a program needs the exact path
    return _print(args, files, [as_shown(file["path"]) for file in files])


def _print(args: Arguments, value: Any, lines: list[str]) -> int:
    print(printable_json(value) if args.json else "\n".join(lines))
    return 0
