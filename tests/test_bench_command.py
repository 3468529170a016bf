"""``tgr-local bench`` from the outside, on the tiny shape, and every group of rows."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from surroundings import ROOT

from tgr_local.commands import cli
from tgr_local.engine import Engine
from tgr_local.engine.prefix_files import fill_prefix
from tgr_local.lab.bench import (
    boundary,
    command,
    concurrency,
    long_reply,
    roofline,
    shapes,
    subject,
)
from tgr_local.lab.bench.measure import Figure, Spread
from tgr_local.lab.bench.peers import ContextSettings, Subprocess
from tgr_local.lab.bench.plan import Plan
from tgr_local.lab.eval import paper
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.system.errors import TgrError

MEASURED = {"tokens", "positions", "seconds", "resident", "cells"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    shapes.write(path, shapes.SHAPES["tiny"], "q8_0")
    return path


@pytest.fixture(scope="module")
def plan(tiny: Path) -> Iterator[Plan]:
    with Engine(tiny, EngineConfig(prefix_cells=1)) as engine:
        yield Plan(engine, ContextSettings.of(engine), repeats=1, quick=True, long_tokens=512)


@pytest.mark.parametrize("name", command.GROUPS)
def test_every_group_has_rows_with_sound_numbers(name: str, plan: Plan, monkeypatch):
    monkeypatch.setattr(roofline, "SIZE", 1 << 20)
    for size, value in {"N": 4, "PREFIX": 8, "TOKENS": 4}.items():
        monkeypatch.setattr(concurrency, size, value)
    monkeypatch.setattr(concurrency, "cold_start", lambda k, _: dict.fromkeys(MEASURED, 10.0 * k))
    monkeypatch.setattr(boundary, "CHUNKS", (32,))
    rows = list(command.measured(name, plan))
    assert rows
    for row in rows:
        assert row.group == name
        spreads = [*row.values.values(), row.result]
        assert all(s.low <= s.median <= s.high and abs(s.median) < 1e9 for s in spreads), row
        assert all(s.low >= 0 for s in row.values.values()), row


def test_the_papers_cost_row_has_the_numbers_of_its_table():
    with paper.PAPER.open(encoding="utf-8", newline="") as file:
        reported = {
            r["measure"]: r["value"] for r in csv.DictReader(file) if r["table"] == "overhead"
        }
    rollouts, scoring, reset, chunk, naive, optimized, batched = (
        f"{float(reported[name]):.2f}"
        for name in (
            "rollout", "scoring", "kv reset", "chunk", "total naive", "total optimized",
            "rollout batched (s=32)",
        )
    )  # fmt: skip
    assert (
        f"the paper: rollouts {rollouts} ({batched} batched), scoring {scoring}, KV reset {reset}, "
        f"chunk {chunk}; {naive} naive, {optimized} optimized"
    ) == boundary.PAPER
    assert boundary.PAPER in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_a_run_prints_a_table_and_writes_both_files(tiny: Path, tmp_path, capsys):
    record, page = tmp_path / "bench.json", tmp_path / "page.md"
    arguments = ["bench", "--model", str(tiny), "--only", "plain,sampling", "--repeats", "2"]
    assert cli.main([*arguments, "--json", str(record), "--markdown", str(page)]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^speed +reading [\d,]+ tokens/s, writing [\d,.]+ tokens/s$", out, re.MULTILINE
    )
    assert out.index("reading") < out.index("\n# ")
    found = json.loads(record.read_text())
    assert "flash_attn off" in out and found["machine"]["settings"]["flash_attn"] == "off"
    assert len(found["machine"]["model sha256"]) == 64
    assert [row["group"] for row in found["rows"]] == ["plain"] * 2 + ["sampling"] * 2
    for row in found["rows"]:
        verdict = f"{row['target']}: {'met' if row['met'] else 'MISSED'}"
        assert row["what"] in out and row["what"] in page.read_text() and verdict in out


def program(path: Path, source: str) -> Path:
    """A program of Python's source."""
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)
    return path


LLAMA_BENCH = """
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert flags["-rtr"] == "1" and flags["-t"] == "1" and flags["-m"].endswith(".gguf")
json.dump([{"avg_ns": 1e7 * (int(flags["-p"]) + int(flags["-n"]))}], sys.stdout)
"""
OPENVINO = """
import runpy, sys, time, types
assert sys.argv[1] == "-I"
del sys.argv[:2]
class Pipeline:
    def __init__(self, path, device, INFERENCE_NUM_THREADS):
        assert path.endswith(".gguf") and (device, INFERENCE_NUM_THREADS) == ("CPU", 1)
        print("a library that prints")
    def generate(self, tokens, config):
        assert len(tokens.shape) == 2 and config.ignore_eos and config.max_new_tokens in (1, 32)
        time.sleep(1e-3 * tokens.size * config.max_new_tokens)
sys.modules["openvino"] = types.SimpleNamespace(Tensor=lambda array: array)
sys.modules["openvino_genai"] = types.SimpleNamespace(
    LLMPipeline=Pipeline, GenerationConfig=types.SimpleNamespace)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_other_programs_are_measured_in_the_same_rows(tiny: Path, tmp_path, capsys):
    ik = program(tmp_path / "llama-bench", LLAMA_BENCH)
    openvino = program(tmp_path / "python", OPENVINO)
    arguments = ["bench", "--model", str(tiny), "--quick", "--only", "plain,prefill", "--json"]
    peers = ["--peer", f"ik={ik}", "--peer", f"openvino={openvino}"]
    assert cli.main([*arguments, "--repeats", "1", *peers]) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for what in ("plain reply of 32 tokens", "prefill of 128 tokens"):
        by_ik = rows[f"{what}: tgr-local / ik"]
        own, rate = (by_ik["values"][f"tokens/s {name}"] for name in ("tgr-local", "ik"))
        assert rate == {"median": 100, "low": 100, "high": 100}
        assert by_ik["result"]["median"] == pytest.approx(own["median"] / 100)
        slept = rows[f"{what}: tgr-local / openvino"]["values"]["tokens/s openvino"]
        assert 0 < slept["low"] <= slept["high"] <= 1000


@pytest.mark.parametrize("kind", ["ik", "openvino"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit('one\\nunknown quantity 7\\n')", "its last line is: unknown quantity 7"),
        ("print('no number')", "it said nothing"),
        ("", "it said nothing"),
        ("print('[]')", "it said nothing"),
    ],
)
def test_a_program_that_measures_nothing_is_one_line(
    kind: str, source: str, message: str, tiny: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    broken = program(tmp_path / "broken", source)
    arguments = ["bench", "--model", str(tiny), "--quick", "--only", "prefill"]
    assert cli.main([*arguments, "--peer", f"{kind}={broken}"]) == 1
    error = capsys.readouterr().err
    assert error == f"tgr-local: the peer {broken} gives no measurement; {message}\n"


@pytest.mark.parametrize(("flags", "n_threads"), [([], 1), (["--n-threads", "2"], 2)])
def test_the_engine_computes_with_as_many_threads_as_its_peers(
    tiny: Path, flags: list[str], n_threads: int, monkeypatch
):
    configs = []

    def load(path: Path, config: EngineConfig, **_: bool) -> None:
        configs.append(config)
        raise TgrError("the config is known")

    monkeypatch.setattr("tgr_local.engine.installation.load_with_progress", load)
    assert cli.main(["bench", "--model", str(tiny), *flags]) == 1
    assert [config.n_threads for config in configs] == [n_threads]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python itself cannot do it before 3.11")
def test_nothing_is_imported_from_the_current_folder(tiny: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # put back after the test
    for name in ("struct", "json"):
        Path(f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit(1)\n")

    def measured(name: str, plan: Plan) -> Iterator[Figure]:
        with Subprocess(io.StringIO):
            yield from ()

    monkeypatch.setattr(command, "measured", measured)
    assert cli.main(["bench", "--model", str(tiny), "--only", "plain"]) == 0
    assert not Path("imported").exists()


def test_with_json_stdout_is_json_only(tiny: Path, capsys):
    arguments = ["bench", "--model", str(tiny), "--only", "sampling", "--repeats", "1", "--json"]
    assert cli.main([*arguments, "--type-k", "q8_0", "--flash-attn", "on"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["settings"]["cache"] == "q8_0, f16"
    assert len(found["rows"]) == 2


def test_roofline_alone_reserves_enough_cells(tiny: Path, monkeypatch):
    monkeypatch.setattr(roofline, "SIZE", 1 << 20)
    with Engine(tiny) as engine:
        alone = Plan(engine, ContextSettings.of(engine), repeats=1, quick=True, long_tokens=512)
        assert len(list(command.measured("roofline", alone))) == 4


def test_help_names_every_shape_type_and_group(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for names in (shapes.SHAPES, shapes.TYPES, command.GROUPS):
        assert ", ".join(names) in text


def test_a_search_in_a_process_of_its_own_reports_its_cost():
    found = concurrency.cold_start(1, 0)
    assert set(found) == MEASURED
    assert 0 < found["tokens"] <= found["positions"] and 0 < found["cells"] < 2000
    assert 10e6 < found["resident"] < 2e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "repeats is '0', but must be a whole number from 1 to 1000"),
        (["--repeats", "two"], "repeats is 'two', but must be a whole number"),
        (["--only", "decode,nothing"], "only is 'nothing', but must be one of decode, prefill,"),
        (["--only", ""], "only is '', but must be one of decode"),
        (["--shape", "70b"], "shape is '70b', but must be one of tiny, 0.6b"),
        (["--shape", "tiny", "--type", "q9"], "type is 'q9', but must be one of f16, q8_0"),
        (["--model", "MODEL", "--shape", "tiny"], "--shape is for random weights, but --model"),
        (["--model", "MODEL", "--type", "f16"], "--type is for random weights, but --model"),
        (["--model", "absent-model"], "there is no model absent-model"),
        (["--model", "NOTHING"], "is not a GGUF file"),
        (["--model", "MODEL", "--json", "no/folder/x.json"], "no/folder/x.json: No such file"),
        (["--model", "MODEL", "--n-ctx", "256", "--only", "capture"], "256"),
        (["--n-threads", "-1"], "n_threads is -1"),
        (["--quik"], "did you mean --quick?"),
        (["--long-tokens", "9"], "long_tokens is '9', but must be a whole number from 256 to"),
        (["--peer", "vllm=python"], "--peer is 'vllm=python', but must be ik=PROGRAM or openvino="),
        (["--peer", "ik"], "--peer is 'ik', but '' is not a program; give its path"),
        (["--peer", "ik=/no/such/llama-bench"], "but '/no/such/llama-bench' is not a program"),
        (["--peer", f"ik={sys.executable}", "--only", "decode"], "--peer takes part in plain and"),
        (["--long-tokens", "512"], "--long-tokens is for the group long; add --only long"),
        (["--figure", "x.svg"], "--figure draws the group long; add --only long"),
        (["--only", "long,runs"], "but long is measured alone; run it on its own"),
        (["--figure", "x.doc", "--only", "long"], "--figure is 'x.doc', but must end in .svg"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], message: str, tiny: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    nothing = tmp_path / "nothing.gguf"
    nothing.write_bytes(b"not a model at all, but long enough to be read as one")
    names = {"MODEL": str(tiny), "NOTHING": str(nothing)}
    assert cli.main(["bench", *(names.get(a, a) for a in arguments)]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "bug" not in error


def test_quick_begins_with_the_speeds_and_ends_in_time(tiny: Path, monkeypatch, capsys):
    now, plans = [1000.0], []

    def measured(name: str, plan: Plan) -> Iterator[Figure]:
        now[0] += 40
        plans.append(plan)
        yield Figure(name, "a row", Spread.of([1.0]), "times")

    monkeypatch.setattr(command, "measured", measured)
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(subject, "speeds", lambda engine: (456.0, 31.0))
    assert cli.main(["bench", "--quick", "--model", str(tiny)]) == 0
    out = capsys.readouterr().out
    first, *_, rows = out.split("\n\n# ")[0].splitlines()
    assert first.startswith("measures       the speed of this engine") and "2 minutes" in first
    assert rows == "speed          reading 456 tokens/s, writing 31.0 tokens/s"
    assert len(plans) == 3 and all(plan.repeats == 2 and plan.quick for plan in plans)
    assert "left out after 120 s: capture,sampling,roofline (--only capture" in out
    plans.clear()
    every = ",".join(command.QUICK)
    assert cli.main(["bench", "--quick", "--only", every, "--model", str(tiny)]) == 0
    assert len(plans) == 6 and all(plan.repeats == 5 for plan in plans)
    assert [command.quick_repeats(speed) for speed in (0.5, 18.0, 50.0, 1e4)] == [1, 1, 3, 5]


def test_a_long_reply_has_lengths_crossings_and_memory(plan: Plan, tmp_path, monkeypatch):
    assert long_reply.doubling(128, 512) == [128, 256, 512]
    assert long_reply.doubling(128, 300) == [128, 256, 300]
    assert long_reply.doubling(1024, 512) == [512]

    def seconds(plan: Plan, config: SearchConfig, lengths: list[int]) -> Any:
        return [np.array([[0.01 + 1e-5 * n] * 2, [0.02] * 2, [0.03] * 2]) for n in lengths]

    monkeypatch.setattr(long_reply, "seconds_at", seconds)
    rows = {row.what: row for row in command.measured("long", plan)}
    chunks = [what for what in rows if what.startswith("chunk ")]
    assert [what.split()[1] for what in chunks] == ["2", "3", "4"]
    row = rows["time per token after 512 tokens: tgr-latent / base"]
    assert row.result.median == pytest.approx(0.03 / 0.01512)
    assert row.values["resident MB base"].median > 10
    crossing = "reply length from which the {} takes less time with tgr-latent than with base"
    assert rows[crossing.format("next token")].result.median == pytest.approx(2000)
    # 0.01 + 1e-5 · n/2 = 0.03
    assert rows[crossing.format("whole reply")].result.median == pytest.approx(4000)
    page = tmp_path / "long.svg"
    long_reply.draw(rows.values(), page)
    assert page.read_text().lstrip().startswith("<?xml")
    long_reply.draw([], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_a_long_context_is_made_without_decoding_it(plan: Plan):
    tokens = subject.prompt(plan.engine, 700)
    plan.engine.grow_cache(2 * len(tokens))
    fill_prefix(plan.engine, tokens, 100)
    before = plan.engine.stats().n_positions
    with subject.Forks(plan.engine, tokens, 1, 16) as forks:
        assert len(forks.prefix) == len(tokens)
        assert plan.engine.stats().n_positions == before
        (output,) = forks.steps(1, 16)
        assert len(output.tokens) == 16 and np.isfinite(output.logprobs).all()


def test_the_computed_memory_is_that_of_the_shapes():
    rows = list(long_reply.computed_memory([32768], n_cells=1000))
    values = {row.what.split()[1]: row.values for row in rows}
    # Qwen3-4B and 8B: 36 layers, 8 heads of keys and values, 128 numbers, 2 bytes: 147,456 a token
    for name, billions in (("4b", 4.02), ("8b", 8.19)):
        weights = values[name]["GB weights"].median
        assert weights == pytest.approx(billions * 34 / 32, rel=0.02)
        grown = values[name]["GB base"].median - weights
        assert grown == pytest.approx((32768 + 72) * 147_456 / 1e9)
        assert values[name]["GB tgr-latent"].median - weights == pytest.approx(0.147456)
