"""A report as one HTML file, without scripts and without anything from elsewhere.

It follows the system's light or dark colours, and its figures and tables fit a phone: panels stand
below each other, and tables scroll within themselves.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from tgr_local.lab.eval import cases, plot_panels, plots
from tgr_local.lab.eval.cases import SideBySide
from tgr_local.lab.eval.plots import Plot
from tgr_local.lab.eval.report import CANDIDATE, Page, Section, fields
from tgr_local.lab.eval.table_cells import Table

LIGHT = {
    "text": "#1d2126", "soft": "#565f6b", "line": "#d9dde3", "page": "#ffffff",
    "chosen": "#e6f4e0", "missing": "#fbf1dd",
    **{f"s{i}": color for i, color in enumerate(plot_panels.COLORS)},
}  # fmt: skip
"""Colours of a light page, as CSS variables."""
DARK = {
    "text": "#e6e8eb", "soft": "#a3abb5", "line": "#3a4048", "page": "#15181c",
    "chosen": "#20331d", "missing": "#3b3017",
    "s0": "#6cb2f2", "s1": "#ff9d5c", "s2": "#5fcf86", "s3": "#ff8585", "s4": "#bd9cf5",
    "s5": "#c9a28d", "s6": "#f28bd3", "s7": "#a9b2bd", "s8": "#d6d052", "s9": "#4fd3e6",
}  # fmt: skip
"""Colours of a dark page, as CSS variables."""

_INTERVAL = re.compile(r"(\[[-+0-9., ]+\])$")  # at the end of a cell


def _variables(colors: dict[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


_STYLE = (
    f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""
    + """
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; } h2 { border-top: 1px solid var(--line); padding-top: 1rem; }
.verdict { font-size: 1.15rem; border-left: 4px solid var(--s0); padding-left: .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--page); max-width: 45vw; white-space: normal; }
td small { color: var(--soft); }
.text { text-align: left; white-space: pre-wrap; font-family: ui-monospace, monospace; }
.note, figcaption, details { color: var(--soft); font-size: 14px; }
figure { margin: 1.5rem 0; }
.panels { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.panels svg { width: 100%; height: auto; }
.panels svg:only-child { max-width: 42rem; justify-self: center; }
.panels svg text { fill: currentColor; font-family: system-ui, sans-serif !important; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: .3rem 0; padding: 0;
  list-style: none; font-size: 14px; }
.key { width: 28px; height: 12px; margin-right: .4rem; vertical-align: -1px; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 0; }
.chosen, .chosen td:first-child { background: var(--chosen); }
.missing { background: var(--missing); padding: .25rem .6rem; }
.columns { display: grid; gap: 0 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }
.columns section { border-top: 4px solid var(--s3); font-size: 14px; }
.columns .right { border-color: var(--s2); }
h5 { font-size: 1rem; margin: .4rem 0; } .columns p { margin: .2rem 0; }
.facts { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: 0 1rem; }
.facts dd { margin: 0; }
"""
)
_KEYS = {
    "o": '<circle cx="14" cy="6" r="4"/>',
    "s": '<path d="M10 2h8v8h-8z"/>',
    "D": '<path d="M14 1l5 5-5 5-5-5z"/>',
    "^": '<path d="M14 1l5 9H9z"/>',
    "v": '<path d="M14 11l5-9H9z"/>',
}


def as_html(page: Page) -> str:
    """The whole page. Raises InstallError without matplotlib."""
    return "\n".join(_html(page, [plots.of_task(s.compared) for s in page.sections])) + "\n"


def _html(page: Page, plots_of: Sequence[Sequence[Plot]]) -> Iterator[str]:
    title = html.escape(page.title)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    for section in page.sections:
        task = "" if len(page.sections) == 1 else f"{html.escape(section.task)}: "
        sentence = f"<strong>Verdict.</strong> {task}{html.escape(section.verdict)}"
        yield f'<p class="verdict">{sentence}</p>'
    for facts in page.facts:
        yield '<details><summary>What was run</summary><dl class="facts">'
        yield from (f"<dt>{html.escape(n)}</dt><dd>{html.escape(text)}</dd>" for n, text in facts)
        yield "</dl></details>"
    for table in page.all_tasks:
        yield from _table(table)
    for section, pictures in zip(page.sections, plots_of, strict=True):
        yield from _section(section, pictures)
    yield "</body>\n</html>"


def _section(section: Section, pictures: Sequence[Plot]) -> Iterator[str]:
    yield f"<h2>{html.escape(section.task)}</h2>"
    for note in section.notes:
        yield f'<p class="missing">{html.escape(note)}</p>'
    for table in section.tables[: section.n_first]:
        yield from _table(table)
    for picture in pictures:
        yield from _figure(picture)
    for table in section.tables[section.n_first :]:
        yield from _table(table)
    for case in section.cases:
        yield f"<h3>Case: {html.escape(case.title)}</h3>\n<dl>"
        for name, text in fields(case):
            yield f'<dt>{name}</dt><dd class="text">{html.escape(text)}</dd>'
        yield "</dl>"
        yield from _rows(CANDIDATE, case.candidates, text_column=len(CANDIDATE) - 1)

    yield from _side_by_side(section.side_by_side)


def _side_by_side(problems: Sequence[SideBySide]) -> Iterator[str]:
    if problems:
        yield f'<h3>Side by side</h3>\n<p class="note">{html.escape(cases.RULE)}</p>'
    for problem in problems:
        yield f"<h4>Problem {html.escape(problem.problem)}</h4>"
        yield f'<p class="text">{html.escape(problem.prompt)}</p><div class="columns">'
        for reply in problem.replies:
            kind, mark = ("right", "✓") if reply.correct else ("wrong", "✗")
            yield f'<section class="{kind}"><h5>{mark} {html.escape(reply.system)}</h5>'
            yield f'<p class="note">{html.escape(reply.result)}</p>'
            yield f'<div class="text">{html.escape(reply.text)}</div></section>'
        yield "</div>"


def _table(table: Table) -> Iterator[str]:
    yield f"<h3>{html.escape(table.title)}</h3>"
    yield from _rows(table.columns, table.rows)
    yield f'<p class="note">{html.escape(table.note)}</p>'


def _figure(picture: Plot) -> Iterator[str]:
    caption = html.escape(picture.caption)
    yield f'<figure role="group" aria-label="{caption}"><div class="panels">'
    yield from picture.panels
    yield "</div>"
    if picture.legend:
        yield '<ul class="legend">'
        for label, number in picture.legend:
            color, mark = plot_panels.color(number), _KEYS[plot_panels.marker(number)]
            yield (
                f'<li><svg class="key" viewBox="0 0 28 12" style="fill: {color}; stroke: {color}">'
                f'<path d="M0 6h28"/>{mark}</svg>{html.escape(label)}</li>'
            )
        yield "</ul>"
    yield f"<figcaption>{caption}</figcaption></figure>"


def _rows(
    columns: list[str], rows: list[list[str]], text_column: int | None = None
) -> Iterator[str]:
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = (_cell(cell, is_text=i == text_column) for i, cell in enumerate(row))
        yield f"<tr{' class=chosen' if row[0] == 'chosen' else ''}>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _cell(text: str, *, is_text: bool) -> str:
    if is_text:
        return f'<td class="text">{html.escape(text)}</td>'
    cell = _INTERVAL.sub(r"<small>\1</small>", html.escape(text))
    return f"<td>{cell}</td>"
