"""Draws the pictures of the documentation, each of a real run: docs/run.svg, a reply of a model and
the scores of the candidates next to each chunk, and docs/code.svg, the code assistant at work on
copies of projects in bench/projects.

    python docs/picture.py --seed 2 --chunk-len 96 qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
    python docs/picture.py --seed 43 --code trip,rsspans,cppdates \\
        qwen2.5-coder-1.5b-instruct-q4_k_m.gguf

It fails and writes nothing when the reply has no answer or no search, or an edit does not pass the
tests or the hidden programs of its project.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

import tgr_local
from tgr_local.console import render
from tgr_local.generation import Reply
from tgr_local.generation.text import TextDelta
from tgr_local.options.config import CodeConfig, SearchConfig
from tgr_local.options.resolve import resolve
from tgr_local.search import strength
from tgr_local.search.steps import Progress
from tgr_local.system.sanitize import printable

FOLDER = Path(__file__).parent
PROJECTS = FOLDER.parent / "bench"
TARGET, CODE_TARGET = FOLDER / "run.svg", FOLDER / "code.svg"
QUESTION = (
    "A shop sells pens at 3 dollars and books at 12 dollars. Ann buys 4 pens and 2 books, and pays "
    "with 50 dollars. How much change does she get?"
)
WIDTH, TEXT_WIDTH = 110, 54
MAX_ROWS, HEAD = 26, 18  # a longer reply is drawn without its middle
CODE_ROWS = 2  # of the table after a round


class Row(NamedTuple):
    text: str
    style: str
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="a trained model")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--chunk-len", type=int, default=48)
    parser.add_argument("--seed", type=int, default=SearchConfig().seed)
    parser.add_argument("--code", metavar="NAME,…", help="draw repairs of these projects instead")
    args = parser.parse_args()
    if args.code:
        drawing = drawn_code(args.code.split(","), args.model, args.seed)
        CODE_TARGET.write_text(drawing, encoding="utf-8")
        print(CODE_TARGET)
        return
    user_options = {"chunk_len": args.chunk_len, "seed": args.seed}
    with tgr_local.load(args.model) as engine:
        config = resolve(engine.metadata, user_options).config
        # what a model has measured for its injection is measured once, here before the picture
        strength.prepare(engine, config)
        rows, reply = recorded(engine, args.question, config)
        name = engine.path.name
    if not reply.text or not any(row.note for row in rows):
        raise SystemExit(f"the reply has no answer or no search ({reply.finish}); ask another")
    flags = "".join(f" --{key.replace('_', '-')} {value}" for key, value in user_options.items())
    command = f'tgr-local run -m {name} --method tgr-latent{flags} "{args.question}"'
    TARGET.write_text(drawn(command, rows, reply), encoding="utf-8")
    print(f"{TARGET}: {render.summary([reply])}")


def recorded(
    engine: tgr_local.Engine, question: str, config: SearchConfig
) -> tuple[list[Row], Reply]:
    """The lines of a reply, each with the scores of the boundaries that were decided during it."""
    rows: list[Row] = []
    line, style, notes = "", "dim", []

    def end_line() -> None:
        nonlocal line
        pieces = textwrap.wrap(printable(line), TEXT_WIDTH) or [""]
        for i in range(max(len(pieces), len(notes))):
            text = pieces[i] if i < len(pieces) else ""
            rows.append(Row(text, style, notes[i] if i < len(notes) else ""))
        line = ""
        notes.clear()

    for event in tgr_local.stream(engine, question, config, method="tgr-latent"):
        if isinstance(event, TextDelta):
            wanted = "dim" if event.kind == "thinking" else "bold"
            if wanted != style and line:
                end_line()
            style = wanted
            first, *rest = event.text.split("\n")
            line += first
            for text in rest:
                end_line()
                line = text
        elif isinstance(event, Progress) and event.candidates is not None:
            scores = event.candidates.scores
            winner = render.winner(scores.total, scores.chosen)
            notes.append(f"chunk {event.chunk + 1:2}: {render.score_bars(scores.total)} {winner}")
        elif isinstance(event, Reply):
            end_line()
            return rows, event
    raise RuntimeError("the reply has no end")


def drawn(command: str, rows: list[Row], reply: Reply) -> str:
    """The picture of a reply."""
    pieces = textwrap.wrap(command, WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    lines = [Text.assemble(("$ ", "bold green"), " \\\n    ".join(pieces))]
    left_out = len(rows) - MAX_ROWS
    if left_out > 0:
        middle = Row(f"… {left_out} more lines …", "italic")
        rows = [*rows[:HEAD], middle, *rows[HEAD + left_out :]]
    for row in rows:
        lines.append(Text.assemble((row.text.ljust(TEXT_WIDTH + 2), row.style), (row.note, "cyan")))
    lines.append(Text(render.cost_line([reply], WIDTH), "dim"))
    return svg(lines, "tgr-local on a CPU")


def drawn_code(names: list[str], model: str, seed: int) -> str:
    """The picture of a run of the assistant on each project; of each table the best rows."""
    sys.path.insert(0, str(PROJECTS))
    import small_projects

    projects = {project.name: project for project in small_projects.read(PROJECTS / "projects")}
    lines = []
    for name in names:
        project = projects[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, name)
            small_projects.write(project.files, folder)
            arguments = ["code", project.task, "--test", project.test, "--yes", "--seed", str(seed)]
            printed = code_run([*arguments, "-m", str(Path(model).resolve())], folder)
            if not small_projects.is_right(project, folder, (), CodeConfig().sandbox):
                raise SystemExit(f"{name}: the edit is wrong by the hidden programs:\n{printed}")
        arguments += ["-m", Path(model).name]
        asked = " ".join(f'"{part}"' if " " in part else part for part in arguments)
        asked = asked.replace(" --yes", " \\\n    --yes")
        prompt = Text.assemble((f"{name} $ ", "bold green"), f"tgr-local {asked}")
        lines += [*([Text("")] if lines else []), prompt, *code_lines(printed)]
    return svg(lines, "the code assistant, on a CPU")


def code_run(arguments: list[str], folder: Path) -> str:
    """What the assistant prints while it repairs a folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["tgr-local", *arguments],
        cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": str(WIDTH)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"no edit passes the tests:\n{done.stdout}")
    return done.stdout


def code_lines(printed: str) -> list[Text]:
    """The lines of the picture: without progress and what the model sees, and of each table the
    best rows."""
    lines = []
    n_rows = 0
    seen = re.compile(r"^context .*\n(?:^ {10}.*\n)*(?:^room .*\n)?", re.MULTILINE)
    for text in map(printable, seen.sub("", printed).splitlines()):
        is_row = re.match(r"[> ] +\d+  ", text)
        n_rows = n_rows + 1 if is_row else 0
        if re.match(r" +… |(\d+ )?(writing|testing|done|waiting)", text) or n_rows > CODE_ROWS + 1:
            continue
        if n_rows > CODE_ROWS:
            text = "   …"
        style = {"+": "green", "-": "red", "@": "cyan", ">": "bold"}.get(text[:1], "")
        lines.append(Text(text, style or ("dim" if is_row else "")))
    return lines


def svg(lines: list[Text], title: str) -> str:
    """A picture of a terminal as SVG, without fonts from the network."""
    console = Console(
        record=True, width=WIDTH, highlight=False, force_terminal=True, file=io.StringIO()
    )
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis")
    text = console.export_svg(title=title)
    text = re.sub(r"@font-face \{.*?\}", "", text, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    main()
