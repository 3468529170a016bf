"""Rows as a table for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tgr_local.lab.bench.measure import Row


def verdict(row: Row) -> str:
    """``at most 3: met``, or nothing."""
    return f"{row.target}: {'met' if row.met else 'MISSED'}" if row.target else ""


def facts(about: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, _fact(value)) for name, value in about.items()]


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_text(row: Row) -> str:
    """One to three lines: the result with its target, the values behind it, the note."""
    lines = [f"{row.what:74}  {row.result} {row.unit}"]
    if row.target:
        lines[0] += f"   [{verdict(row)}]"
    values = "   ".join(f"{name} {spread}" for name, spread in row.values.items())
    return "\n".join([*lines, *(f"    {line}" for line in (values, row.note) if line)])


def as_json(about: dict[str, Any], rows: Iterable[Row]) -> str:
    return json.dumps(
        {"machine": about, "rows": [row.record() for row in rows]}, indent=2, ensure_ascii=False
    )


def as_markdown(about: dict[str, Any], rows: Sequence[Row]) -> str:
    """The machine as a list, then one table."""
    lines = [f"- {name}: {fact}" for name, fact in facts(about)]
    lines += ["", "| measured | median (range) | values | target |", "|---|---|---|---|"]
    for row in rows:
        values = "; ".join(f"{name} {spread}" for name, spread in row.values.items())
        beside = "; ".join(text for text in (values, row.note) if text)
        lines.append(f"| {row.what} | {row.result} {row.unit} | {beside} | {verdict(row)} |")
    return "\n".join(lines) + "\n"
