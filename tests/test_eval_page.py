"""The HTML page: self-contained, the figures of the tables, light and dark, on every screen."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import BOUNDARY, both, compared, graded, write

from tgr_local.lab.eval import page, plot_panels, plots, report, run_folder, tables
from tgr_local.lab.eval.report import Page
from tgr_local.options.config import SearchConfig

pytest.importorskip("matplotlib")


def built(folder: Path) -> Page:
    return report.build([run_folder.read(folder)])


def test_the_page_has_no_external_files(tmp_path):
    found = built(write(tmp_path / "run", both()))
    text = page.as_html(found)
    assert text.count("<figure") == 8  # no systems that differ in s or K, no seeds, one model
    assert text.count("<svg") == text.count("</svg>")
    assert not re.search(r"<(script|link|img|iframe|object)\b|@import", text)
    links = re.findall(r"(?:href|src)=[\"']([^\"']*)|url\(([^)]*)\)", text)
    assert all("".join(link).startswith("#") for link in links)
    assert "&lt;what is p?&gt;" in text and "<what" not in text and "<u>d" not in text
    assert page.as_html(found) == text  # the same samples, the same page


def test_the_verdict_comes_first(tmp_path):
    text = page.as_html(built(write(tmp_path / "run", both())))
    (sentence,) = re.findall(r'<p class="verdict"><strong>Verdict.</strong> (.*?)</p>', text)
    assert sentence.startswith("At equal cost (60 forward tokens a problem), tgr-latent solves ")
    assert text.index(sentence) < text.index("<details>") < text.index("<h2>")


def test_sensitivity_is_drawn_from_systems_that_differ_in_one_option(tmp_path):
    config = dataclasses.asdict(SearchConfig())
    some = [
        {"name": name, "method": "tgr-latent", "config": config | {"rollout_len": s}}
        for name, s in (("tgr-latent", 32), ("base", 16))
    ]
    samples = [dataclasses.replace(s, boundaries=[BOUNDARY]) for s in both()]
    text = page.as_html(built(write(tmp_path / "run", samples, systems=some)))
    assert text.count("<figure") == 9


def captions(folders: list[Path]) -> dict[str, plots.Plot]:
    """The plots of the toy task by the first words of their captions."""
    found = plots.of_task(compared(*folders))
    return {" ".join(plot.caption.split()[:4]): plot for plot in found}


def test_the_aucs_of_the_seeds_are_points_beside_their_box(tmp_path):
    grades = {1: "correct", 2: "wrong", 3: "correct"}
    samples = [
        dataclasses.replace(one, seed=seed, correct=one.correct and grades[seed] == "correct")
        for seed in grades
        for one in both()
    ]
    found = captions([write(tmp_path / "run", samples, seeds=[1, 2, 3])])
    (svg,) = found["AUC of each seed"].panels
    assert len(points(svg, 0)) == len(points(svg, 1)) == 3
    first, second, third = points(svg, 1)
    assert first == third != second
    two = write(tmp_path / "two", [one for one in samples if one.seed < 3], seeds=[1, 2])
    assert "AUC of each seed" not in captions([two])


def points(svg: str, number: int) -> list[float]:
    """The x of the markers of a system, in their order."""
    uses = re.findall(r'<use xlink:href="[^"]*" x="([^"]*)" y="[^"]*" style="([^"]*)"', svg)
    return [float(x) for x, style in uses if f"fill: {plot_panels.color(number)}" in style]


def test_the_bars_are_as_long_as_the_aucs(tmp_path):
    """37.5 and 87.5."""
    (svg,) = captions([write(tmp_path / "run", both())])["AUC of each system,"].panels
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: var\(--s(\d)\)"', svg)
    spans = {}
    for path, number in paths:
        xs = [float(x) for x in re.findall(r"[ML] (\S+) ", path)]
        spans[number] = max(xs) - min(xs)
    assert spans["1"] / spans["0"] == pytest.approx(87.5 / 37.5, rel=1e-3)


def test_models_of_several_sizes_have_a_line_of_their_gains(tmp_path):
    def of_model(n: int) -> Path:
        about = {"name": f"toy-{n}B", "sha256": str(n) * 64, "description": "", "parameters": n}
        return write(tmp_path / str(n), both(), model=about)

    folders = [of_model(4), of_model(1)]
    plot = captions(folders)["Gain of each model"]
    assert plot.legend == [("tgr-latent", 0)]
    (svg,) = plot.panels
    assert len(points(svg, 0)) == 2 and len(error_bars(svg, 0)) == 2
    assert "Gain of each model" not in captions(folders[:1])


def test_the_figures_draw_the_systems_the_places_and_the_intervals_of_the_tables(tmp_path):
    """Also where a cell is `-`: a budget that buys less than one sample has no point."""
    systems: dict[str, Any] = {
        "base": (10, ["11000000", "10000000", "11110000", "00000000"] * 3),
        "dear": (35, ["1110", "1000", "1111", "0001"] * 3),
        "dearer": (50, ["0110", "0000", "1111", "0000"] * 3),
    }
    found = compared(graded(tmp_path / "run", systems, k=[1, 2, 4]))
    at_k, at_tokens, *_ = tables.of_task(found, [])
    (curves,) = (plot for plot in plots.of_task(found) if plot.caption.startswith("Pass@k"))
    assert [label for label, _ in curves.legend] == list(systems)
    n_hidden = 0
    for table, svg in zip((at_k, at_tokens), curves.panels, strict=True):
        places = sum(name.startswith("Pass@") or name.endswith(" tokens") for name in table.columns)
        wanted, drawn = [], []
        for number, row in enumerate(table.rows):
            cells = [cell for cell in row[1 : 1 + places] if cell != "-"]
            n_hidden += places - len(cells)
            points, bars = markers(svg, number), error_bars(svg, number)
            assert len(points) == len(bars) == len(cells), (table.title, row)
            for cell, point, bar in zip(cells, points, bars, strict=True):
                mean, *edges = (float(n) for n in re.findall(r"[\d.]+", cell))
                wanted += [mean, *(edges or [mean, mean])]
                drawn += [point, *bar]
        # y in the picture is a straight line of the percentages
        slope, shift = np.polyfit(wanted, drawn, 1)
        assert slope < 0
        np.testing.assert_allclose(slope * np.array(wanted) + shift, drawn, atol=0.25)
    assert n_hidden >= 3


def test_the_picture_of_one_answer_draws_its_table_and_names_the_frontier(tmp_path):
    systems: dict[str, Any] = {
        "base": (400, ["1", "1", "0", "0"] * 3),
        "cheap": (100, ["1", "0", "0", "0"] * 3),
        "as good as cheap": (100, ["0", "0", "1", "0"] * 3),
        "worse": (800, ["1", "0", "0", "0"] * 3),
        "best of all": (1600, ["1", "1", "1", "0"] * 3),
    }
    found = compared(graded(tmp_path / "run", systems, k=[1], metric="one"))
    (table, *_), (picture, _) = tables.of_task(found, []), plots.of_task(found)
    assert [label for label, _ in picture.legend] == [row[0] for row in table.rows]
    (svg,) = picture.panels
    wanted, drawn = [], []
    for (_, _, accuracy, *_), (_, number) in zip(table.rows, picture.legend, strict=True):
        wanted += [float(n) for n in re.findall(r"[\d.]+", accuracy)]
        drawn += [*markers(svg, number), *error_bars(svg, number)[0]]
    slope, shift = np.polyfit(wanted, drawn, 1)
    assert slope < 0
    np.testing.assert_allclose(slope * np.array(wanted) + shift, drawn, atol=0.25)
    names = re.findall(r'<text style="[^"]*" x="([^"]*)" y="([^"]*)"[^>]*>([^<]*)</text>', svg)
    where = {name: (float(x), float(y)) for x, y, name in names if name in systems}
    assert set(where) == {row[0] for row in table.rows if row[-1]} and len(where) == 4
    heights = sorted(y for _, y in where.values())
    assert min(np.diff(heights)) >= 9  # each in a line of its own
    ((line, _),) = re.findall(r'<path d="(M [^"]*)" [^>]*stroke-opacity: 0.6(;[^"]*)?"', svg)
    ys = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", line)]
    ours = [number for label, number in picture.legend if label in where]
    assert ys == pytest.approx([markers(svg, number)[0] for number in ours], abs=0.01)


def test_a_page_of_one_answer_has_its_picture_after_its_table(tmp_path):
    folder = graded(tmp_path / "run", {"base": (9, "10"), "best": (19, "11")}, k=[1], metric="one")
    text = page.as_html(built(folder))
    assert text.count("<figure") == 2 and "var(--page)" in text[text.index("<figure") :]
    assert text.index("<h3>One answer") < text.index("<figure") < text.index("<h3>Cost of a sample")


def markers(svg: str, number: int) -> list[float]:
    """The y of the markers of a system, from left to right."""
    uses = re.findall(r'<use xlink:href="[^"]*" x="[^"]*" y="([^"]*)" style="([^"]*)"', svg)
    return [float(y) for y, style in uses if f"fill: {plot_panels.color(number)}" in style]


def error_bars(svg: str, number: int) -> list[tuple[float, float]]:
    """The y of the lower and upper end of the intervals of a system."""
    bars = re.findall(r'<path d="M (\S+) (\S+) \nL (\S+) (\S+) \n" ([^>]*)/>', svg)
    return [
        (float(y0), float(y1))
        for x0, y0, x1, y1, rest in bars
        if x0 == x1 and f"stroke: {plot_panels.color(number)}" in rest
    ]


def test_pictures_take_their_colours_from_the_page(tmp_path):
    text = page.as_html(built(write(tmp_path / "run", both())))
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b(?=;)", pictures)
    assert "var(--s0)" in pictures and "currentColor" in pictures
    used = set(re.findall(r"var\((--\w+)\)", text))
    for colors in (page.LIGHT, page.DARK):
        assert used <= {f"--{name}" for name in colors}


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colors", [page.LIGHT, page.DARK], ids=["light", "dark"])
def test_everything_can_be_read_on_a_light_and_on_a_dark_page(colors: dict[str, str]):
    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(colors[a]), luminance(colors[b])))
        return (high + 0.05) / (low + 0.05)

    for paper in ("page", "chosen", "missing"):  # 4.5 is WCAG's bound for text, 3 for pictures
        assert min(contrast(ink, paper) for ink in ("text", "soft")) >= 4.5, paper
    assert min(contrast(f"s{i}", "page") for i in range(len(plot_panels.COLORS))) >= 3


def test_systems_differ_in_marker_or_colour():
    looks = {(plot_panels.color(i), plot_panels.marker(i)) for i in range(50)}
    assert len(looks) == 50
