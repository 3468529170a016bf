"""Draws docs/one-answer.svg from the table of docs/results/one-answer-arithmetic8.md.

    python docs/one_answer.py

In: the rows of "One answer". Out: accuracy of one answer against forward tokens, for plain votes,
votes that a probe weighs, and `auto`.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
LINES = {
    "plain majority": ("self-consistency ", "#888888", "o"),
    "weighed by the probe": ("vote ", "#1f77b4", "s"),
    "in pairs, one of each written on": ("pairs", "#2ca02c", "^"),
    "auto": ("auto", "#d62728", "D"),
}
ROW = re.compile(r"\| (.+?) \| ([\d,]+) \| ([\d.]+) \[([\d.]+), ([\d.]+)\]")


def main() -> None:
    text = (FOLDER / "results" / "one-answer-arithmetic8.md").read_text("utf-8")
    rows = [(m[1], float(m[2].replace(",", "")), float(m[3])) for m in ROW.finditer(text)]
    plt.rcParams.update({"svg.fonttype": "none", "font.size": 11, "svg.hashsalt": "tgr-local"})
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for label, (name, color, marker) in LINES.items():
        points = sorted((x, y) for row, x, y in rows if row.startswith(name))
        axes.plot(*zip(*points, strict=True), color=color, marker=marker, label=label)
    axes.set(xscale="log", xlabel="forward tokens per answer", ylabel="right answers (%)")
    axes.set_title("One answer: arithmetic with eight operands, 120 problems, three seeds", size=11)
    ticks = [350, 700, 1400, 2800]
    axes.minorticks_off()
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    metadata = {"Date": None, "Creator": None}
    figure.savefig(FOLDER / "one-answer.svg", metadata=metadata, facecolor="white")


if __name__ == "__main__":
    main()
