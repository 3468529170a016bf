"""Prefixes in files: what is loaded is what was saved, and everything else is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import KEEPING, assert_same, exact, greedy_task, vectors
from families import FAMILIES, Family
from fixture_types import Load, Model
from gguf_models import N_PLAIN

from tgr_local.engine import Cancel, Engine, Output, SteeredEngine, Task, prefix_files
from tgr_local.engine.prefix_files import load_prefix, remembered, save_prefix
from tgr_local.options.config import EngineConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.system.errors import CancelledError, PrefixError

PROMPT = [int(t) for t in np.random.default_rng(1).integers(0, N_PLAIN, 100)]
START = struct.Struct("<8sII")


def answer(engine: Engine, prompt: list[int] = PROMPT, **options: Any) -> tuple[Output, Output]:
    """The outputs of reading a prompt without its last token, and of writing after it."""
    norms = options.get("norms", False)
    with engine.session(len(prompt) + 8, 2, prompt=prompt[:-1], norms=norms) as session:
        sequence = session.sequence()
        (reading,) = session.run([Task(sequence, prompt[:-1], reuse=True, **options)])
        session.remember(sequence)
        (written,) = session.run([greedy_task(engine, sequence, prompt[-1:])])
    return reading, written


@pytest.fixture
def engine(model: Model, load: Load) -> Engine:
    """An engine of the default random model that has read nothing and remembers prefixes."""
    return load(model(), **KEEPING)


@pytest.fixture
def saved(model: Model, tmp_path) -> Path:
    """A file with the prompt, read by the default random model with norms."""
    path = tmp_path / "saved"
    with Engine(model(), EngineConfig(**KEEPING)) as engine:
        answer(engine, norms=True)
        assert save_prefix(engine, PROMPT[:-1], path)
    return path


def round_trip(model: Path, path: Path, **options: Any) -> None:
    """A new engine that loads the file writes what the old one writes, and reads nothing again."""
    config = EngineConfig(**KEEPING | options)
    with Engine(model, config) as engine:
        answer(engine)
        again, expected = answer(engine)
        kept = save_prefix(engine, PROMPT[:-1], path)
    assert kept and kept.n_bytes == path.stat().st_size
    assert kept.tokens == PROMPT[:-1]
    with Engine(model, config) as engine:
        assert load_prefix(engine, path) == kept
        reading, written = answer(engine)
        assert (reading.n_reused, reading.n_decoded) == (again.n_reused, again.n_decoded) == (99, 0)
        np.testing.assert_array_equal(written.tokens, expected.tokens)
        assert save_prefix(engine, PROMPT[:-1], path.with_name("again"))
    assert_same(written, expected)
    assert path.read_bytes() == path.with_name("again").read_bytes()


@pytest.mark.parametrize(
    ("which", "kind", "flash_attn"),
    [
        ("random", "f32", "off"),
        ("random", "f16", "off"),
        ("random", "f32", "on"),
        ("random", "f16", "on"),
        ("embedded", "f32", "off"),
        ("embedded", "q8_0", "on"),  # the only way to read such a V cache
    ],
)
def test_a_loaded_prefix_writes_the_same(
    model: Model, tmp_path, which: str, kind: str, flash_attn: str
):
    path = embedded_model() if which == "embedded" else model()
    round_trip(path, tmp_path / "saved", type_k=kind, type_v=kind, flash_attn=flash_attn)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_continues(family: Family, tmp_path):
    round_trip(family.write(tmp_path / "model.gguf"), tmp_path / "saved")


def test_only_the_owner_reads_it(saved: Path):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert list(saved.parent.glob(".*")) == [], "no temporary file is left"


def test_the_longest_common_part_is_saved(model: Model, tmp_path):
    path = tmp_path / "saved"
    with Engine(model(), EngineConfig(**KEEPING)) as engine:
        answer(engine)
        kept = save_prefix(engine, [*PROMPT[:60], *PROMPT[:30]], path)
        assert kept and kept.tokens == PROMPT[:60]
        assert save_prefix(engine, PROMPT[5:], tmp_path / "other") is None
        assert save_prefix(engine, PROMPT, tmp_path / "other", least_tokens=101) is None
    assert not (tmp_path / "other").exists()
    with Engine(model(), EngineConfig(**KEEPING)) as engine:
        load_prefix(engine, path)
        assert answer(engine)[0].n_reused == 60


def test_norms_are_saved_too(model: Model, saved: Path):
    outputs = []
    for file in (saved, None):
        with Engine(model(), EngineConfig(**KEEPING)) as engine:
            if file:
                load_prefix(engine, file)
            outputs.append(answer(engine, norms=True)[0])
    ours, theirs = outputs
    assert (ours.n_reused, theirs.n_reused) == (99, 0)
    np.testing.assert_allclose(ours.norms, theirs.norms, rtol=1e-6)


def test_a_prefix_serves_only_its_control_vector(model: Model, tmp_path):
    path, (some, other) = tmp_path / "saved", vectors(2)
    with Engine(model(), EngineConfig(**KEEPING)) as engine:
        _, expected = answer(SteeredEngine(engine, some))
        ((_, digest),) = remembered(engine)
        assert digest
        assert save_prefix(engine, PROMPT, path) is None
        assert save_prefix(engine, PROMPT[:-1], path, digest=digest)
    with Engine(model(), EngineConfig(**KEEPING)) as engine:
        assert load_prefix(engine, path).digest == digest
        assert answer(engine)[0].n_reused == 0
        assert answer(SteeredEngine(engine, other))[0].n_reused == 0
        reading, written = answer(SteeredEngine(engine, some))
        assert reading.n_reused == 99
        assert_same(written, expected)


# ---- files that are refused ----


def parts(path: Path) -> tuple[list[Any], dict[str, Any], bytes]:
    """Magic, version and header length; the header; the data."""
    content = path.read_bytes()
    start = list(START.unpack_from(content))
    end = START.size + start[2]
    return start, json.loads(content[START.size : end]), content[end:-32]


def write(path: Path, start: list[Any], header: Any, data: bytes) -> Path:
    """A file with a checksum that is right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = START.pack(*start[:2], len(text) if start[2] is None else start[2]) + text + data
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def refused(model: Path, path: Path, words: str = "", **options: Any) -> None:
    with Engine(model, EngineConfig(**KEEPING | options)) as engine:
        with pytest.raises(PrefixError, match=words) as error:
            load_prefix(engine, path)
        assert "\n" not in str(error.value)
        assert remembered(engine) == []
        assert answer(engine)[0].n_decoded == 99, "the text is read again"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("llama_cpp", "0.0.1", "0.0.1"),
        ("model", "00" * 32, "another model"),
        ("layout", "cells f16 1; states", "cache type"),
        ("digest", "xyz", "damaged"),
        ("digest", "00" * 65, "digest"),
        ("n_tokens", 0, "tokens"),
        ("n_tokens", 98, "sizes"),
        ("n_tokens", 1 << 62, "tokens"),
        ("n_tokens", -1, "n_tokens"),
        ("n_tokens", True, "n_tokens"),
        ("n_tokens", 99.0, "n_tokens"),
        ("norms", 1, "sizes"),
        ("norms", 1 << 40, "sizes"),
        ("norms", 0, "bytes"),
        ("state", 8, "sizes"),
        ("cells", 1 << 50, "sizes"),
        ("cells", 0, "sizes"),
        ("cells", "many", "cells"),
    ],
)
def test_a_false_header_is_refused(model: Model, saved: Path, name: str, value: Any, words: str):
    start, header, data = parts(saved)
    write(saved, [*start[:2], None], header | {name: value}, data)
    refused(model(), saved, words)


def test_every_field_of_the_header_is_needed(model: Model, saved: Path):
    start, header, data = parts(saved)
    assert header.keys() == {spec.name for spec in dataclasses.fields(prefix_files.PrefixHeader)}
    for text in (
        *({k: header[k] for k in header if k != name} for name in header),
        header | {"x": 1},
    ):
        refused(model(), write(saved, [*start[:2], None], text, data), "fields")
    for damaged in (b"{", b"[]", b"\xff", b"[" * 60000):
        refused(model(), write(saved, [*start[:2], None], damaged, data), "damaged")


def test_a_newer_or_foreign_file_is_refused(model: Model, saved: Path):
    (magic, version, n), header, data = parts(saved)
    refused(model(), write(saved, [magic, version + 1, n], header, data), "version 2")
    refused(model(), write(saved, [b"GGUF0000", version, n], header, data), "not a saved prefix")
    for length in (0, n - 1, n + 1, 1 << 16, 2**32 - 1):
        refused(model(), write(saved, [magic, version, length], header, data), "damaged")


def test_every_truncation_and_every_longer_file_is_refused(engine: Engine, saved: Path):
    content = saved.read_bytes()
    (_, _, n), header, _ = parts(saved)
    ends = [0, 1, 8, 15, 16, 17, 16 + n - 1, 16 + n]
    for size in (4 * header["n_tokens"], header["norms"], header["state"], header["cells"]):
        ends += [ends[-1] + size // 2, ends[-1] + size]
    ends += [len(content) - 32, len(content) - 1]
    for end in ends:
        saved.write_bytes(content[:end])
        with pytest.raises(PrefixError, match=r"not a saved prefix|damaged"):
            load_prefix(engine, saved)
    saved.write_bytes(content + b"x")
    with pytest.raises(PrefixError, match="damaged"):
        load_prefix(engine, saved)
    assert remembered(engine) == []


def test_every_flipped_bit_is_noticed(engine: Engine, saved: Path):
    content = bytearray(saved.read_bytes())
    places = np.random.default_rng(0).integers(0, len(content), 200)
    for place in [*range(40), *places.tolist()]:
        content[place] ^= 1
        saved.write_bytes(content)
        with pytest.raises(PrefixError):
            load_prefix(engine, saved)
        content[place] ^= 1
    saved.write_bytes(content)
    load_prefix(engine, saved)


def test_data_with_a_right_checksum_are_checked_too(model: Model, saved: Path):
    start, header, data = parts(saved)
    for token in (-1, 2**31 - 1):
        changed = struct.pack("<i", token) + data[4:]
        refused(model(), write(saved, start, header, changed), "token")
    at = 4 * header["n_tokens"]
    changed = data[:at] + struct.pack("<f", float("nan")) + data[at + 4 :]
    refused(model(), write(saved, start, header, changed), "norm")


@exact
def test_another_model_or_cache_is_refused(model: Model, saved: Path):
    refused(model(), saved, "cache type", type_k="f16")
    refused(model(), saved, "cache type", flash_attn="on")
    refused(model("llama"), saved, "another model")
    refused(model(), saved, "prefix_cells", prefix_cells=0)


def test_other_rotations_are_refused(model: Model, load: Load, tmp_path):
    """A model has some for long texts, and `n_ctx` says which."""
    path = model("phi3", n_ctx_original=512)
    short, long, grows = (load(path, **KEEPING | {"n_ctx": n}) for n in (512, 1024, 0))
    for engine in (short, long):
        answer(engine)
        assert save_prefix(engine, PROMPT[:-1], tmp_path / str(engine.n_ctx))
    assert load_prefix(grows, tmp_path / "1024")
    with pytest.raises(PrefixError, match="another model, cache type"):
        load_prefix(grows, tmp_path / "512")
    with pytest.raises(PrefixError, match="another model, cache type"):
        load_prefix(short, tmp_path / "1024")


def test_one_prefix_may_be_longer_than_all_together(model: Model, saved: Path):
    with Engine(model(), EngineConfig(**KEEPING | {"prefix_cells": 40})) as engine:
        load_prefix(engine, saved)
        assert answer(engine)[0].n_reused == 99


def test_a_full_cache_is_no_error_of_the_engine(model: Model, saved: Path):
    with Engine(model(), EngineConfig(**KEEPING, n_ctx=256)) as engine:
        with engine.session(256, 1), pytest.raises(PrefixError, match="no room"):
            load_prefix(engine, saved)
        load_prefix(engine, saved)
        assert answer(engine)[0].n_reused == 99


def test_other_things_than_files_are_refused(engine: Engine, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("precious")
    answer(engine)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(PrefixError, match="regular"):
            load_prefix(engine, path)
    with pytest.raises(OSError):
        load_prefix(engine, tmp_path / "absent")
    for path in (tmp_path / "text", tmp_path / "pipe", tmp_path):
        with pytest.raises(PrefixError, match="not a saved prefix"):
            save_prefix(engine, PROMPT, path)
    assert (tmp_path / "text").read_text() == "precious"


def test_a_limit_or_a_cancel_leaves_the_old_file(engine: Engine, saved: Path):
    content = saved.read_bytes()
    (cancel := Cancel()).cancel()
    answer(engine)
    with pytest.raises(PrefixError, match="MiB"):
        save_prefix(engine, PROMPT, saved, most_bytes=1000)
    with pytest.raises(CancelledError):
        save_prefix(engine, PROMPT, saved, cancel=cancel)
    with pytest.raises(CancelledError):
        load_prefix(engine, saved, cancel=cancel)
    assert saved.read_bytes() == content
    assert list(saved.parent.glob(".*")) == []
