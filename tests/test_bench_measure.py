"""The arithmetic of the benchmark, on numbers that can be checked by hand."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tgr_local.engine import Engine
from tgr_local.lab.bench import measure, roofline
from tgr_local.lab.bench.measure import Figure, Spread, Target, alternate_timed, shown
from tgr_local.lab.bench.shapes import Shape, write
from tgr_local.options.config import EngineConfig


def test_a_spread_is_the_median_and_the_range():
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)
    assert str(Spread.of([1.0, 2.0, 4.0])) == "2.00 (1.00 to 4.00)"
    assert str(Spread.of([7.0])) == "7.00"
    assert Spread.of([1.0, 3.0]).scaled(1e3) == Spread(2000, 1000, 3000)


def test_numbers_have_three_significant_digits():
    values = (0, 0.0001, 0.0621, 1.184, 28.04, 512.4, 4583.2)
    assert [shown(v) for v in values] == ["0", "0", "0.062", "1.18", "28.0", "512", "4,583"]


def test_contenders_take_turns_and_every_second_round_runs_backwards():
    order: list[int] = []

    def contender(i: int) -> float:
        order.append(i)
        return float(i)

    seconds = alternate_timed(2, [partial(contender, i) for i in range(3)])
    assert order == [0, 1, 2, 0, 1, 2, 2, 1, 0]
    assert seconds.tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(3), 3.0, True),
        (Target(3), 3.01, False),
        (Target(0.98, at_least=True), 0.98, True),
        (Target(0.98, at_least=True), 0.97, False),
    ],
)
def test_a_target_is_a_bound_on_the_median(target: Target, value: float, met: bool):
    row = Figure("group", "what", Spread(value, -100, 100), "%", target=target)
    assert row.met is met
    assert measure.verdict(row) == f"{target}: {'met' if met else 'MISSED'}"


def test_a_row_is_the_same_in_text_markdown_and_json():
    row = Figure(
        "runs", "a / b", Spread(1.25, 1.2, 1.5), "times", {"ms a": Spread(5, 5, 5)},
        Target(1.18), "a note",
    )  # fmt: skip
    text = measure.as_text(row)
    assert "a / b" in text and "1.25 (1.20 to 1.50) times   [at most 1.18: MISSED]" in text
    assert "    ms a 5.00\n    a note" in text
    about = {"cores": {"physical": 2, "logical": 4}, "other devices": ["a", "b"]}
    markdown = measure.as_markdown(about, [row])
    assert "- cores: physical 2, logical 4\n- other devices: a, b\n" in markdown
    assert "| a / b | 1.25 (1.20 to 1.50) times | ms a 5.00; a note |" in markdown
    record = json.loads(measure.as_json(about, [row]))["rows"][0]
    assert record["result"] == {"median": 1.25, "low": 1.2, "high": 1.5}
    assert (record["target"], record["met"]) == ("at most 1.18", False)
    assert measure.verdict(Figure("", "", Spread(1, 1, 1), "")) == ""


@pytest.mark.parametrize("tied", [True, False])
def test_the_work_of_a_token_by_hand(tmp_path, tied: bool):
    path = tmp_path / "model.gguf"
    write(path, Shape(2, 256, 4, 2, 768, tied=tied, n_vocab=1024), "f16")
    # q 512x256, k and v 256x256 each, output 256x512, three of 768x256; norms 256, 256, 128, 128
    layer = 131072 + 2 * 65536 + 131072 + 3 * 196608
    norms = 2 * 768 + 256
    matrices = 2 * layer + 1024 * 256  # the embedding counts once: as the output layer
    with Engine(path, EngineConfig(type_v="f32", flash_attn="off")) as engine:
        work = roofline.TokenCost.of(engine)
    assert work.weights == matrices + norms
    assert work.weight_bytes == 2 * matrices + 4 * norms
    assert work.cell_bytes == 2 * 2 * (128 * 2 + 128 * 4)  # layers, heads, F16 keys, F32 values
    assert work.cell_products == 2 * 4 * 256
    assert work.bytes_read(10) == work.weight_bytes + 10 * 3072
    assert work.products(8, 10) == 8 * (work.weights + 20480)


def test_the_memory_reader_reads_it_all(monkeypatch):
    monkeypatch.setattr(roofline, "SIZE", 1 << 16)
    with roofline.MemoryReader(3, on_cpu=True) as reader:
        assert reader.n_bytes == 1 << 16 and reader.read() == (1 << 16) / 8  # 8-byte ones
