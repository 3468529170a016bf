"""Trace files: a run reads back unchanged, a damaged line is named; and the table."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, fake_prompt, fake_step, fake_stream

from tgr_local.console import render
from tgr_local.generation import trace_file
from tgr_local.options.config import SearchConfig
from tgr_local.search.diagnostics import measure
from tgr_local.system.errors import TgrError

ENGINE: Any = FakeEngine("fake.gguf")
CONFIG = SearchConfig(seed=7)


def header() -> trace_file.Header:
    return trace_file.make_header(ENGINE, fake_prompt(ENGINE, "2+2?", CONFIG), CONFIG, "tgr-latent")


def reply(question: str = "2+2?", method: str = "tgr-latent") -> Any:
    return list(fake_stream(ENGINE, question, CONFIG, method=method))[-1]


def written(path: Path, *, vectors: bool = False, method: str = "tgr-latent") -> trace_file.Trace:
    run = trace_file.make_trace(ENGINE, header(), reply(method=method))
    with path.open("w", encoding="utf-8") as file:
        trace_file.write(file, run, vectors)
    return run


def same(a: Any, b: Any) -> bool:
    """Whether two records hold the same types and values; arrays to float32."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, rtol=1e-6)
    if dataclasses.is_dataclass(a):
        names = [spec.name for spec in dataclasses.fields(a)]
        return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in names)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("method", ["tgr-latent", "base"])
def test_a_run_with_vectors_is_read_as_it_was_written(tmp_path, method: str):
    run = written(tmp_path / "t", vectors=True, method=method)
    (again,), _ = trace_file.read(tmp_path / "t")
    assert same(run, again)


def test_without_vectors_everything_else_is_in_the_file(tmp_path):
    run = written(tmp_path / "t")
    (again,), _ = trace_file.read(tmp_path / "t")
    for before, after in zip(run.boundaries, again.boundaries, strict=True):
        assert after.step.origin is after.step.anchor is after.step.state is None
        assert before.step.candidates is not None and after.step.candidates is not None
        assert after.step.candidates.anchors.size == 0
        assert np.array_equal(before.step.logprobs, after.step.logprobs)
        assert same(before.step.candidates.scores, after.step.candidates.scores)
    assert list(render.table(run)) == list(render.table(again))


def test_cosines_are_those_of_each_candidate_to_the_origin():
    (boundary,) = trace_file.make_boundaries(ENGINE, [fake_step(0, "abc", None)])
    assert boundary.cosines == pytest.approx([0.8, 0.96])


def test_the_geometry_of_a_run_is_in_the_file_without_its_vectors(tmp_path):
    steps = [fake_step(0, "abc", None), fake_step(1, "def", None), fake_step(2, "g", "stop")]
    run = trace_file.Trace(header(), trace_file.make_boundaries(ENGINE, steps), None)
    with (tmp_path / "t").open("w") as file:
        trace_file.write(file, run)
    (again,), _ = trace_file.read(tmp_path / "t")
    found = [boundary.geometry for boundary in again.boundaries]
    assert found == [measure(steps[0], None), *map(measure, steps[1:], steps)]
    assert found[0].similarity == pytest.approx(0.8) and found[0].curvature is None
    assert found[1].curvature is not None and found[2].similarity is None


def test_the_table_shows_the_first_rollout_of_each_candidate():
    step = fake_step(0, "abc", None)
    found = dataclasses.replace(
        step.candidates,
        owners=np.array([1, 0, 1]),
        tokens=[np.frombuffer(text, np.uint8).astype(np.int32) for text in (b"B", b"A", b"C")],
    )
    (boundary,) = trace_file.make_boundaries(ENGINE, [dataclasses.replace(step, candidates=found)])
    table = "\n".join(render.boundary_table([boundary]))
    assert re.search(r"0\.8000  A$", table, re.M) and re.search(r"0\.9600  B$", table, re.M)


def test_every_line_is_standard_json(tmp_path):
    step = fake_step(0, "abc", None)
    step.logprobs[:2] = np.nan, -np.inf
    run = trace_file.Trace(header(), list(trace_file.make_boundaries(ENGINE, [step])), None)
    with (tmp_path / "t").open("w") as file:
        trace_file.write(file, run)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for line in (tmp_path / "t").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    (again,), _ = trace_file.read(tmp_path / "t")
    assert np.isnan(again.boundaries[0].step.logprobs[:2]).all()


def test_each_step_is_on_disk_as_soon_as_it_is_finished(tmp_path):
    with (tmp_path / "t").open("w") as file:
        events = trace_file.write_events(
            fake_stream(ENGINE, "break", CONFIG, method="tgr-latent"), file, ENGINE, header()
        )
        with pytest.raises(TgrError, match="it broke"):
            list(events)
        (run,), _ = trace_file.read(tmp_path / "t")
    assert len(run.boundaries) == 1 and run.footer is None
    assert list(render.table(run))[-1] == "incomplete: the run was interrupted after 1 chunk"


def test_a_run_written_event_by_event_equals_one_written_at_the_end(tmp_path):
    out = io.StringIO()
    list(
        trace_file.write_events(
            fake_stream(ENGINE, "2+2?", CONFIG, method="m"), out, ENGINE, header()
        )
    )
    written(tmp_path / "t")
    assert out.getvalue() == (tmp_path / "t").read_text()


def test_a_file_may_hold_several_runs(tmp_path):
    written(tmp_path / "t")
    text = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(text + text)
    assert len(trace_file.read(tmp_path / "t")[0]) == 2


def damaged(**changes: Any) -> list[dict[str, Any]]:
    """The lines of a run with keys of its second line, a boundary, changed."""
    out = io.StringIO()
    trace_file.write(out, trace_file.make_trace(ENGINE, header(), reply()))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    lines[1] |= changes
    return lines


def owners(*values: int) -> dict[str, Any]:
    """The `step` of `damaged` with other owners."""
    step = damaged()[1]["step"]
    step["candidates"]["owners"] = list(values)
    return {"step": step}


def scores(**changes: Any) -> dict[str, Any]:
    """The `step` of `damaged` with other scores."""
    step = damaged()[1]["step"]
    step["candidates"]["scores"] |= changes
    return {"step": step}


NO_MATCH = "line 2 is damaged: its rollouts and their owners do not match"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a trace: line 1 is not a JSON object"),
        (b"GGUF\x03\x00", "is not a trace: line 1 is not a JSON object"),
        (b"{\xff}", "line 1 is damaged: 'utf-8' codec can't decode byte 0xff"),
        (b'{"a": 1}\n', "line 1 is damaged: it has no 'kind'"),
        (b'{"kind": "footer"}\n', "line 1 is damaged: its kind is 'footer', but must be header"),
        (b'{"kind": "header", "format": "x"}', "line 1 is damaged: its format is 'x', but must"),
        ([*damaged()[:1], 5], "line 2 is damaged: 5 is not of type dict"),
        ([*damaged()[:1], {"kind": "x"}], "line 2 is damaged: its kind is 'x', but must be head"),
        (damaged(text=None), "line 2 is damaged: None is not of type str"),
        (damaged(rollouts=[]), "line 2 is damaged: its scores and rollouts do not match"),
        (damaged(cosines=[1.0]), "line 2 is damaged: it has 1 cosines for 2 candidates"),
        (damaged(cosines={}), "line 2 is damaged: it has no 'float32'"),
        (damaged(step={}), "line 2 is damaged: it has no 'index'"),
        (damaged(**owners(0)), NO_MATCH),
        (damaged(**owners(0, 2)), NO_MATCH),
        (damaged(**owners(0, 0)), NO_MATCH),
        (damaged(geometry=None), "line 2 is damaged: None is not of type dict"),
        (damaged(**scores(chosen=2)), "line 2 is damaged: its scores and rollouts do not match"),
        (damaged(**scores(chosen=True)), "line 2 is damaged: True is not of type int"),
        (damaged(**scores(total=[1])), "line 2 is damaged: its scores and rollouts do not match"),
        (damaged(**scores(total=["x", 1])), "line 2 is damaged: could not convert string"),
        (damaged(**scores(total=[[1], 1])), "line 2 is damaged: "),
        (
            [*damaged(), {"kind": "boundary"}],
            "line 5 is damaged: its kind is 'boundary', but must be h",
        ),
        (b'{"kind": ' + b"[" * 100_000, "line 1 is damaged: "),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_with_the_line(tmp_path, data: Any, message: str):
    path = tmp_path / "t"
    path.write_bytes(
        data if isinstance(data, bytes) else "".join(json.dumps(x) + "\n" for x in data).encode()
    )
    _, damage = trace_file.read(path)
    assert str(damage).startswith(f"{path} {message}")


def test_a_trace_cut_anywhere_is_read_or_refused(tmp_path):
    written(tmp_path / "t", vectors=True)
    data = (tmp_path / "t").read_bytes()
    for length in range(1, len(data), 37):
        (tmp_path / "cut").write_bytes(data[:length])
        runs, damage = trace_file.read(tmp_path / "cut")
        for run in runs:
            list(render.table(run))
        assert damage is None or "is damaged: " in str(damage)


def test_the_lines_before_a_damaged_one_are_read(tmp_path):
    written(tmp_path / "t")
    lines = (tmp_path / "t").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "t").write_text("".join(lines[:-1]) + lines[-1][:9], encoding="utf-8")
    (run,), damage = trace_file.read(tmp_path / "t")
    assert len(run.boundaries) == len(lines) - 2 and run.footer is None
    assert f"line {len(lines)} is damaged" in str(damage)


def test_a_file_of_another_kind_is_not_overwritten(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    refused = pytest.raises(TgrError, match="exists and is not a trace; name another file")
    with refused, trace_file.open_file(str(path)):
        pass
    assert path.read_bytes() == b"GGUF"


def test_a_run_that_fails_at_once_leaves_the_old_trace(tmp_path):
    written(tmp_path / "t")
    before = (tmp_path / "t").read_bytes()

    def refused() -> Any:
        raise TgrError("the cache is full")
        yield

    with pytest.raises(TgrError), trace_file.open_file(str(tmp_path / "t")) as file:
        list(trace_file.write_events(refused(), file, ENGINE, header()))
    assert (tmp_path / "t").read_bytes() == before

    events = fake_stream(ENGINE, "2+2?", CONFIG, method="tgr-latent")
    with trace_file.open_file(str(tmp_path / "t")) as file:
        list(trace_file.write_events(events, file, ENGINE, header()))
    assert len(trace_file.read(tmp_path / "t")[0]) == 1


TABLE = """\
tgr-latent, seed 7, fake.gguf
sha256 abababababababababababababababababababababababababababababababab; python 3.11
chunk_len 512, n_candidates 8, rollout_len 32, sigma 0.05, calibration divergence, temperature 0.6
prompt: 10 tokens: <user>2+2?

chunk 1
    candidate        V    P_bum    P_uni    total   cosine  rollout
            0  -1.5000   0.5000   0.0000  -1.7500   0.8000  hm,
  >         1  -1.0000   0.2500   0.1000  -1.1750   0.9600  hm
  spread over the candidates: foresight 0.2500, bumpiness 0.1250, uniformity 0.0500
  candidate 1 won by 0.5750 over candidate 0: V +0.5000, P_bum +0.1250, P_uni -0.0500
  | hm, 2+2?
  8 tokens, 0.06 s (rebuild 0.01, rollouts 0.02, chunk 0.03)
  26 forward tokens (query 7, rebuild 5, rollouts 5, chunk 8, delimiter 1), 20 cells
  APCS 0.6000, least cosine 0.6000, N_eff 1.0000 of 2, move cosine 0.8000, angle 0.6435

stop after 1 chunk: 15 tokens, 0.50 s, 44 forward tokens \
(query 7, rebuild 10, rollouts 10, chunk 15, delimiter 2)
geometry, means over the run: APCS 0.6000, least cosine 0.6000, N_eff 1.0000 of 2, \
move cosine 0.8000, angle 0.6435
  0% of the anchors hardly moved (cosine over 0.99)
#1 2+2?"""


def test_the_table_of_a_run(monkeypatch):
    monkeypatch.setattr(trace_file, "versions", lambda: {"python": "3.11"})
    run = trace_file.make_trace(ENGINE, header(), reply())
    del run.boundaries[1:]
    assert "\n".join(render.table(run, width=90)) == TABLE


def test_a_trace_with_a_former_count_is_printed(tmp_path):
    """Its forward tokens are those without it."""
    path = tmp_path / "t"
    run = written(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines[1:]:
        line.get("step", line)["counts"]["draft_model"] = 90
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (again,), _ = trace_file.read(path)
    assert list(render.table(again)) == list(render.table(run))


def test_control_characters_in_a_trace_file_are_not_printed(tmp_path):
    path = tmp_path / "t"
    written(path)

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: value.get(name) for name in ("kind", "format", "finish")}
            changed = {name: spoilt(one) for name, one in value.items()}
            return changed | {name: old for name, old in kept.items() if old}
        if isinstance(value, list):
            return [spoilt(one) for one in value]
        return f"\x1b]0;owned\x07\x9b\n\r{value}" if isinstance(value, str) else value

    lines = [json.dumps(spoilt(json.loads(line))) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    (run,), _ = trace_file.read(path)
    table = "\n".join(render.table(run))
    assert table.count("owned") > 10 and not set("\x1b\x07\x9b\r") & set(table)
