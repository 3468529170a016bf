"""The files of a run: other values than a run writes, which are one line and never a crash, lines
that are incomplete, a full disk."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import both, write

from tgr_local.lab.eval import manifest, report, run_folder, samples
from tgr_local.lab.eval.samples import Sample, SamplePlan, Store
from tgr_local.system import json_checks
from tgr_local.system.errors import TgrError

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**70, "", "x", [], [0], [None], ["x"], {}, {"x": None},
    {"x": "y"}, [[]], [{}],
)  # fmt: skip
"""Every type of JSON, with the values that are most often forgotten."""
FILES = ("manifest.json", "samples.jsonl", "phases.jsonl", "problems.jsonl")


@pytest.fixture
def folder(tmp_path) -> Path:
    machine = {"system": "Linux", "processor": "fast", "cores": 2, "devices": ["CPU"],
               "threads": 1, "python": "3.11", "settings": {"n_batch": 8}}  # fmt: skip
    return write(
        tmp_path / "run", both(), machines=[machine], grading={"seconds": 10.0, "sandbox": "bwrap"}
    )


def lines(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return (
        [json.loads(text)]
        if path.suffix == ".json"
        else list(map(json.loads, text.split("\n")[:-1]))
    )


def put(path: Path, found: list[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within a JSON value, itself among them."""
    yield before
    if isinstance(value, dict):
        for key, one in value.items():
            if not (before[-1:] == ("config",) and key not in ("rollout_len", "stop", "eta")):
                yield from places(one, (*before, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*before, 0))


def changed(value: Any, place: tuple[Any, ...], change: Callable[[Any, Any], Any]) -> Any:
    """A copy where `change(parent, key)` was done at a place."""
    outer = [copy.deepcopy(value)]
    parent: Any = outer
    for key in (0, *place)[:-1]:
        parent = parent[key]
    change(parent, (0, *place)[-1])
    return outer[0] if outer else None


def read(folder: Path) -> str:
    """What a report says of a folder, or the error's message."""
    try:
        return report.as_markdown(report.build([run_folder.read(folder)]))
    except (TgrError, ValueError) as error:
        assert str(error) and "\n" not in str(error)
        return str(error)


@pytest.mark.parametrize("name", FILES)
def test_any_value_at_any_place_is_read_or_refused_in_one_line(folder: Path, name: str):
    path = folder / name
    whole = lines(path)
    row = len(whole) - 1  # of the samples, one with boundaries
    n_refused = 0
    for place in places(whole[row]):
        for value in VALUES:

            def put_there(parent: Any, key: Any, value: Any = value) -> None:
                parent[key] = value

            put(path, [*whole[:row], changed(whole[row], place, put_there)])
            n_refused += "is damaged: " in read(folder)
        if place and place[-1] != 0:
            put(
                path,
                [*whole[:row], changed(whole[row], place, lambda parent, key: parent.pop(key))],
            )
            read(folder)
    assert n_refused > 20
    put(path, whole)
    assert read(folder).startswith("# Evaluation")


@pytest.mark.parametrize(
    ("name", "place", "value", "says"),
    [
        ("samples.jsonl", ("counts", "query"), "x",
         'line 8 is damaged: counts.query is "x", but must be a whole number; delete the line'),
        ("samples.jsonl", ("counts",), 3, "counts is 3, but must be an object"),
        ("samples.jsonl", ("tokens",), -1, "tokens is -1, but must be at least 0"),
        ("samples.jsonl", ("correct",), 1, "correct is 1, but must be true or false"),
        ("samples.jsonl", ("extra",), 1, "it has the unknown key 'extra'"),
        ("samples.jsonl", ("boundaries", 0, "chosen"), 2, "boundaries[0].chosen is 2, but must be"),
        ("samples.jsonl", ("boundaries", 0, "S"), [1.0], "boundaries[0] has lists of different"),
        ("samples.jsonl", ("boundaries", 0, "apcs"), "x", 'boundaries[0].apcs is "x", but must'),
        ("samples.jsonl", ("logprob",), float("nan"), "it holds NaN, which is not JSON"),
        ("manifest.json", ("k",), [], "k is [], but must be a list without repetition"),
        ("manifest.json", ("k", 0), 0, "k[0] is 0, but must be at least 1; restore it, or name"),
        ("manifest.json", ("model", "sha256"), None, "model.sha256 is null, but must be a text"),
        ("manifest.json", ("systems", 0, "config"), [], "systems[0].config is [], but must be an"),
        ("manifest.json", ("tasks", 0, "rollout_len"), {"a": "x"}, 'rollout_len.a is "x", but'),
        ("manifest.json", ("tasks", 0, "metric"), "x", 'metric is "x", but must be one of pass, s'),
        ("manifest.json", ("metric",), "both", 'metric is "both", but must be one of samples, one'),
        ("manifest.json", ("grading", "wall"), "bwrap", 'grading has the former key "wall", which'),
        ("phases.jsonl", ("seconds",), "x", 'line 2 is damaged: seconds is "x", but must be a num'),
        ("problems.jsonl", ("prompt",), None, "line 2 is damaged: prompt is null, but must be a t"),
    ],
)  # fmt: skip
def test_the_error_names_key_value_and_way_out(
    folder: Path, name: str, place: tuple[Any, ...], value: Any, says: str
):
    whole = lines(folder / name)

    def put_there(parent: Any, key: Any) -> None:
        parent[key] = value

    put(folder / name, [*whole[:-1], changed(whole[-1], place, put_there)])
    assert says in read(folder) and str(folder / name) in read(folder)
    if name == "samples.jsonl":
        with pytest.raises(TgrError, match="line 8 is damaged"):
            Store(folder / name)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ud800", '{"format": "other"}', "7"])
def test_a_manifest_that_is_none_is_refused(folder: Path, text: str):
    (folder / manifest.NAME).write_bytes(text.encode("utf-8", "surrogatepass") + b"\n")
    with pytest.raises(TgrError, match=r"manifest\.json is damaged: .+; restore it"):
        manifest.read(folder)


def test_a_key_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"^a\[1\].b is missing$"):
        json_checks.check({"a": [{"b": int}]}, {"a": [{"b": 1}, {}]})
    json_checks.check({"a?": int}, {"c": None})


def test_samples_without_cost_fill_no_budget(folder: Path):
    (one, *_) = samples.read(folder / "samples.jsonl")
    for counts, n in (({}, 1), ({"query": 1}, 2**40)):
        free = type(one)(**{**vars(one), "counts": counts})
        assert SamplePlan(1, (1,), 2**40).target(lambda i, free=free: None if i else free) == n  # type: ignore[misc]


# --- while samples are written ---


def test_samples_added_meanwhile_are_not_read_again(tmp_path):
    old = [
        Sample(
            "t", "p", "s", 1, i, "x" * 10_000, "", 1, "stop", None, 0.0, None, "", None, {}, {}, 0.0
        )
        for i in range(3)
    ]
    with Store(tmp_path / "s") as store:
        for sample in old:
            store.add(sample)
        store.flush()
        read = []
        for sample in store.whole({sample.key for sample in old}):
            read.append(sample.index)
            assert len(read) <= 3
            store.add(dataclasses.replace(sample, correct=True))
            store.flush()  # before the next one is read, as on a busy machine
    assert read == [0, 1, 2]


def test_an_incomplete_line_is_replaced_by_the_next(tmp_path):
    path = tmp_path / "phases.jsonl"
    for record in ({"a": 1}, {"b": 2}):
        samples.append(path, record)
    path.write_bytes(path.read_bytes()[:-3])
    samples.append(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "s"
    path.write_bytes(b'{"task": 1}\n')
    with pytest.raises(TgrError, match="line 1 is damaged"):
        list(samples.read(path))
    path.write_bytes(b"\xff\n")
    with pytest.raises(TgrError, match="line 1 is damaged"):
        Store(path)


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    sample = Sample("t", "p", "s", 1, 0, "", "", 0, "stop", True, 1.0, None, "", None, {}, {}, 0.0)
    monkeypatch.setattr(os, "fsync", fail)
    says = "cannot be written .*No space left on device.* free space"
    with pytest.raises(TgrError, match=says), Store(tmp_path / "s") as store:
        store.add(sample)
        with pytest.raises(TgrError, match=says):
            store.flush()
        monkeypatch.undo()
        with pytest.raises(TgrError, match=says):
            store.add(sample)  # what comes after a gap is not written either
        assert store.known == {}
