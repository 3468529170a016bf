"""Draws docs/run.svg, the picture in the README: a real reply of the embedded model, with the
scores of the candidates beside each chunk.

    python docs/picture.py
    python docs/picture.py --seed 7 "Use 3, 7, 9 and 50 to make 141."

Run it again whenever the embedded model changes. It fails and writes nothing when the reply has no
answer or no search.
"""

from __future__ import annotations

import argparse
import io
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

import tgr_local
from tgr_local.console.sanitize import printable
from tgr_local.generation import Reply
from tgr_local.generation.text import TextDelta
from tgr_local.options.config import SearchConfig
from tgr_local.options.resolve import resolve
from tgr_local.search.steps import Progress
from tgr_local.trace import render

TARGET = Path(__file__).parent / "run.svg"
WIDTH, TEXT_WIDTH = 110, 54
MAX_ROWS, HEAD = 26, 18  # a longer reply is drawn without its middle


class Row(NamedTuple):
    text: str
    style: str
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question", nargs="?", default="Use 3, 7, 25 to make 46")
    parser.add_argument("--seed", type=int, default=SearchConfig().seed)
    args = parser.parse_args()
    with tgr_local.load() as engine:
        config = resolve(engine.metadata, {"seed": args.seed}).config
        rows, reply = recorded(engine, args.question, config)
    if not reply.text or not any(row.note for row in rows):
        raise SystemExit(f"the reply has no answer or no search ({reply.finish}); ask another")
    TARGET.write_text(drawn(args.question, rows, reply), encoding="utf-8")
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

    for event in tgr_local.stream(engine, question, config):
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


def drawn(question: str, rows: list[Row], reply: Reply) -> str:
    """The picture as SVG, without fonts from the network."""
    console = Console(
        record=True, width=WIDTH, highlight=False, force_terminal=True, file=io.StringIO()
    )
    console.print(
        Text.assemble(("$ ", "bold green"), f'tgr-local run --show-thinking "{question}"')
    )
    left_out = len(rows) - MAX_ROWS
    if left_out > 0:
        middle = Row(f"… {left_out} more lines …", "italic")
        rows = [*rows[:HEAD], middle, *rows[HEAD + left_out :]]
    for row in rows:
        console.print(
            Text.assemble((row.text.ljust(TEXT_WIDTH + 2), row.style), (row.note, "cyan")),
            no_wrap=True,
            overflow="ellipsis",
        )
    console.print(Text(render.cost_line([reply], WIDTH), "dim"))
    svg = console.export_svg(title="tgr-local and its embedded model, on a CPU")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    main()
