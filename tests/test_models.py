"""Models on this machine, and what their headers say."""

from __future__ import annotations

import io
import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from fixture_types import Model
from gguf_edit import ARRAY, BOOL, F32, STRING, U32, U64, Array, Gguf

from tgr_local import load
from tgr_local.engine import Engine, check_memory, memory_check
from tgr_local.engine.installation import load_with_progress
from tgr_local.options import model_files, strength_files
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.resolve import resolve
from tgr_local.search import strength
from tgr_local.system.errors import ModelError

# ---- files ----


def test_a_header_is_read_as_it_was_written(model: Model):
    path = model()
    facts = model_files.card(path).facts()
    assert facts["architecture"] == "qwen3" and facts["bytes"] == path.stat().st_size
    with Engine(path) as engine:
        assert facts["parameters"] == engine.n_params
        assert facts["layers"] == engine.n_layer and facts["width"] == engine.n_embd
        assert facts["vocabulary"] == engine.n_vocab
        assert facts["trained context"] == engine.n_ctx_train
        card = model_files.card(path).metadata
        plain = {k: v for k, v in engine.metadata.items() if not v.startswith("[")}
        same = {k for k, v in plain.items() if card[k] == v}
        assert all(float(card[k]) == pytest.approx(float(plain[k])) for k in plain.keys() - same)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8, "0.8"), (0.95, "0.95"), (1e-6, "1e-06"), (1.0, "1.0"), (1 / 3, "0.33333334"),
     (16777217.5, "16777218.0"), (-0.0, "-0.0"), (1e-45, "1e-45"),
     (3.4028234663852886e38, "3.4028235e+38"), (float("inf"), "inf"), (float("nan"), "nan")],
)  # fmt: skip
def test_a_number_is_the_shortest_decimal_of_its_float32(
    model: Model, tmp_path, value: float, text: str
):
    path = changed(tmp_path / "m.gguf", model(), {"tgr.temperature": (F32, value)})
    assert model_files.card(path).facts()["advice"]["temperature"] == text
    same = np.float32(text) == np.float32(value)
    assert same or np.isnan(value)


def test_memory_is_checked_before_a_model_is_loaded(model: Model, tmp_path):
    path = model()
    check = check_memory(path, EngineConfig(n_gpu_layers=0))
    assert check.need.ram == path.stat().st_size and check.need.gpu == 0 and check.fits
    huge = tmp_path / "huge.gguf"
    huge.write_bytes(path.read_bytes())
    os.truncate(huge, 1 << 42)  # a sparse file of 4 TiB: more memory than a machine has
    assert check_memory(huge).free.ram is None or not check_memory(huge).fits
    with pytest.raises(ModelError, match="is not a file"):
        check_memory(tmp_path)


def test_file_types_are_those_of_llama_cpp():
    names = vars(pytest.importorskip("llama_cpp")).items()
    kinds = {str(number): name for name, number in names if name.startswith("LLAMA_FTYPE_")}
    del kinds["1024"]  # guessed, in no file
    for prefix in ("LLAMA_FTYPE_", "MOSTLY_", "ALL_"):
        kinds = {number: name.removeprefix(prefix) for number, name in kinds.items()}
    assert kinds == model_files.FILE_TYPES


def test_a_damaged_header_is_one_sentence(model: Model, tmp_path):
    data = model().read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "bad.gguf"
    refused = 0
    for _ in range(200):
        broken = bytearray(data[: int(rng.integers(0, 40_000))])
        for at in rng.integers(0, max(1, min(len(broken), 2000)), 3):
            broken[at : at + 1] = bytes([int(rng.integers(256))])
        path.write_bytes(broken)
        try:
            model_files.card(path).facts()
        except ModelError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 50


def test_deeply_nested_arrays_are_refused(tmp_path):
    path = tmp_path / "deep.gguf"
    nested = struct.pack("<IQ", 9, 1) * 50_000
    start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1)
    path.write_bytes(start + b"k" + struct.pack("<I", 9) + nested)
    with pytest.raises(ModelError, match="damaged"):
        model_files.card(path)


def changed(path: Path, source: Path, values: dict[str, tuple[int, Any]]) -> Path:
    """`source` at `path` with other metadata, as (type, value) by key."""
    file = Gguf.parse(source.read_bytes())
    for key, (kind, value) in values.items():
        file.set(key, value, kind)
    path.write_bytes(file.to_bytes())
    return path


def test_known_keys_of_other_types_are_unknown(model: Model, tmp_path, capsys):
    values = {
        "qwen3.block_count": (STRING, b"1" * 5_000),
        "qwen3.embedding_length": (STRING, "\u0664\u0662".encode()),
        "qwen3.context_length": (F32, 8.5),
        "tokenizer.ggml.tokens": (STRING, b"many"),
        "general.file_type": (ARRAY, Array(U32, [1, 2])),
        "tgr.n_mc": (STRING, b"1" * 5_000),
    }
    path = changed(tmp_path / "odd.gguf", model(), values)
    facts = model_files.card(path).facts()
    names = ("layers", "width", "trained context", "vocabulary")
    assert [facts[name] for name in names] == [None] * 4 and facts["quantization"] == "unknown"
    assert run("models", "show", str(path)) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 1100
    assert run("run", "--show-config", "--model", str(path)) == 1
    err = capsys.readouterr().err
    assert "bad advice in its tgr.* metadata: n_mc is '111" in err and len(err) < 2100


def test_advice_about_a_former_option_is_a_warning(model: Model, tmp_path, capsys):
    values = {"tgr.vote_weight": (STRING, b"probe"), "tgr.probe": (STRING, b"p.json")}
    path = changed(tmp_path / "old.gguf", model(), values)
    assert run("run", "--show-config", "--method", "vote", "--model", str(path)) == 0
    assert re.search("^vote_weight +likelihood +default$", capsys.readouterr().out, re.MULTILINE)
    with load_with_progress(path, EngineConfig(n_gpu_layers=0), chats=False) as engine:
        assert resolve(engine.metadata).config == SearchConfig()
    said = capsys.readouterr().err
    for what in ("vote_weight = probe", "probe"):
        warning = f"warning: the model file: tgr.{what} has left the search and has no effect\n"
        assert warning in said


KEY = struct.pack("<QQQ", 0, 1, 1) + b"k"
TEXT = struct.pack("<Q", 1 << 20) + bytes(1 << 20)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (struct.pack("<QQ", 0, 1 << 23), r"it has 8388608 entries, but at most 4194304 are read"),
        (struct.pack("<QQ", 1 << 63, 0), "it has .* entries, but at most"),
        (KEY + struct.pack("<IIQ", 9, 8, 1 << 23), "it has .* entries, but at most"),
        (KEY + struct.pack("<IIQ", 9, 8, 1 << 21), "it ends too early"),
        (KEY + struct.pack("<I", 13), "a value is of type 13, but"),
        (KEY + struct.pack("<IIQ", 9, 77, 1), "a value is of type 77, but must be of 0 to 12"),
        (
            struct.pack("<QQQ", 1, 0, 1) + b"t" + struct.pack("<I4QIQ", 4, *[1 << 63] * 4, 0, 0),
            "a tensor has .* elements",
        ),
        (
            struct.pack("<QQ", 0, 20) + 20 * (TEXT + struct.pack("<I", 8) + TEXT),
            "its texts have more than 16777216 characters together",
        ),
    ],
    ids=["keys", "tensors", "texts", "end", "type", "items", "elements", "characters"],
)  # fmt: skip
def test_a_header_that_claims_too_much_is_refused(tmp_path, header: bytes, message: str):
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + header + bytes(1 << 20))
    with pytest.raises(ModelError, match=f"damaged header: {message}"):
        model_files.card(path)


def test_a_long_text_is_read_in_part(model: Model, tmp_path):
    text = b"x" * ((1 << 20) + 9)
    path = changed(tmp_path / "long.gguf", model(), {"general.name": (STRING, text)})
    facts = model_files.card(path).facts()
    assert len(facts["general.name"]) == 1 << 20 and facts["vocabulary"] and facts["parameters"]
    assert max(map(len, model_files.as_table(facts))) < 1100


ESCAPES = "\x1b]0;owned\x07\x9b2J\x7f\r"


def test_no_control_character_of_a_model_file_reaches_the_terminal(
    home: Path, model: Model, capsys
):
    text = (STRING, f"{ESCAPES}\nfake line".encode())
    keys = ("general.name", "general.architecture", "tgr.eoc_token", "tgr.\x1b")
    folder = home / "data" / "tgr-local" / "models"
    folder.mkdir(parents=True)
    name = f"{ESCAPES}.gguf".replace("/", "")
    path = changed(folder / name, model(), dict.fromkeys(keys, text))
    (folder / f"{ESCAPES}broken.gguf").write_bytes(b"GGUF")
    commands = [
        ("models",),
        ("models", "show", str(path)),
        ("run", "--show-config", "--model", str(path)),
        ("run", "q", "--model", str(path)),
        ("doctor", "--model", str(path)),
        ("models", "show", f"/nowhere/{name}"),
        ("models", "show", f"no{ESCAPES}"),
        ("models", ESCAPES),
    ]
    for command in commands:
        for more in ((), ("--json",)) if command[0] != "run" else ((),):
            run(*command, *more)
            out, err = capsys.readouterr()
            assert (out or err) and not set("\x1b\x07\x9b\x7f\r") & {*out, *err}, command
            assert "\nfake line" not in out


def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("pipe.gguf", "."):
        assert run("models", "show", str(tmp_path / name)) == 1
        assert "is not a file; name a GGUF file" in capsys.readouterr().err


def test_every_key_may_have_every_type(model: Model, tmp_path):
    source = model().read_bytes()
    values: list[tuple[int, Any]] = [
        (U32, 2**32 - 1), (F32, float("nan")), (BOOL, 2), (U64, 2**64 - 1), (STRING, b""),
        (STRING, b"\xff\x1b" * 99), (STRING, b"9" * 5_000), (ARRAY, Array(STRING, [b"\x9b"])),
        (ARRAY, Array(U32, [], 2**63)), (ARRAY, Array(ARRAY, [])), (99, b"xxxx"),
    ]  # fmt: skip
    path = tmp_path / "odd.gguf"
    refused = 0
    for key in Gguf.parse(source).metadata:
        for kind, value in values:
            file = Gguf.parse(source)
            file.metadata[key] = (kind, value)
            path.write_bytes(file.to_bytes())
            try:
                facts = model_files.card(path).facts()
            except ModelError as error:
                assert str(error).startswith(f"{path} has a damaged header: ")
                refused += 1
                continue
            lines = [model_files.as_line(facts), *model_files.as_table(facts)]
            assert all(line.isprintable() and len(line) < 2000 for line in lines)
    assert refused == 2 * len(Gguf.parse(source).metadata)


@pytest.fixture
def shelf(home: Path, model: Model) -> Path:
    """The user's folder of models with one model in it, and a file that is not a model."""
    folder = home / "data" / "tgr-local" / "models" / "someone" / "repo"
    folder.mkdir(parents=True)
    (folder / "small.gguf").write_bytes(model().read_bytes())
    (folder / "broken.gguf").write_bytes(b"GGUF")
    (folder / "big-00001-of-00002.gguf").write_bytes(b"GGUF")
    (folder / "big-00002-of-00002.gguf").write_bytes(b"GGUF")
    return folder


def test_a_local_model_is_found_by_name(shelf: Path):
    assert model_files.find("small") == model_files.find("small.gguf") == shelf / "small.gguf"
    assert model_files.find("./small.gguf") == Path("small.gguf")
    with pytest.raises(ModelError, match=r"no model smal; did you mean small\? to download one "):
        model_files.find("smal")
    (shelf.parent / "small.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="names several models"):
        model_files.find("small")
    found = [model_files.find(facts["name"]) for facts in model_files.listed()]
    assert found == model_files.local()  # each by the name that the list has


def test_a_name_may_have_the_folders_of_the_model_and_an_ending_in_capitals(
    shelf: Path, tmp_path, monkeypatch
):
    (shelf / "small.gguf").rename(shelf / "SMALL.GGUF")
    for name in ("SMALL", "SMALL.GGUF", "someone/repo/SMALL", "someone/repo/SMALL.gguf"):
        assert model_files.find(name) == shelf / "SMALL.GGUF"
    assert shelf / "SMALL.GGUF" in model_files.local()
    assert model_files.find("big") == shelf / "big-00001-of-00002.gguf"
    monkeypatch.chdir(tmp_path)
    (near := Path("someone/repo/SMALL")).parent.mkdir(parents=True)
    near.write_bytes(b"GGUF")
    assert model_files.find(str(near)) == near  # a path comes first


def test_a_file_in_the_current_folder_does_not_hide_a_model_of_its_name(
    shelf: Path, home: Path, monkeypatch
):
    monkeypatch.chdir(home)
    Path("other").write_bytes(b"GGUF")
    assert model_files.find("other") == Path("other")
    Path("small").write_bytes(b"GGUF")
    message = f"names several models: {home}/small, {shelf}/small.gguf; give the path of one"
    with pytest.raises(ModelError, match=message):
        model_files.find("small")
    assert model_files.find("./small") == Path("small")
    monkeypatch.chdir(shelf)
    assert model_files.find("small.gguf") == shelf / "small.gguf"


def test_an_embedded_model_is_found_by_its_name():
    assert (
        model_files.find("tgr-mini") == model_files.model_file(None) == model_files.embedded_model()
    )
    with pytest.raises(ModelError, match=r"did you mean tgr-mini"):
        model_files.find("tgr-minni")


def test_the_list_has_every_model_once(shelf: Path, capsys):
    assert run("models", "--json") == 0
    found = {Path(one["path"]).stem: one for one in json.loads(capsys.readouterr().out)}
    embedded = model_files.embedded_model().stem
    assert found.keys() >= {embedded, "small", "broken", "big-00001-of-00002"}
    assert "big-00002-of-00002" not in found
    assert found["small"]["architecture"] == "qwen3" and "damaged" in found["broken"]["error"]
    assert run("models", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found) and any(line.startswith("small  ") for line in lines)
    assert [line.split("  ")[0] for line in lines] == [one["name"] for one in found.values()]
    assert all(str(model_files.find(one["name"])) == one["path"] for one in found.values())
    assert found["small"]["general.name"] != found["small"]["name"] == "small"
    assert found[embedded]["name"] == "tgr-mini"


def test_a_folder_that_the_user_names_and_is_not_there_is_said_so(home: Path, monkeypatch, capsys):
    assert run("models") == 0
    out, err = capsys.readouterr()
    assert err == ""  # the default folder need not exist
    (home / "file").touch()
    for command, name in ((("models",), "nowhere"), (("models", "list", "--json"), "file")):
        monkeypatch.setenv("TGR_MODELS_DIR", str(home / name))
        assert run(*command) == 0
        said = f"no folder of models {home}/{name}; make it, or correct models_dir"
        assert capsys.readouterr().err == f"tgr-local: warning: there is {said}\n"
    monkeypatch.setenv("TGR_MODELS_DIR", str(home))
    assert run("models") == 0
    assert capsys.readouterr() == (out, "")


def test_show_describes_a_file(shelf: Path, capsys):
    assert run("models", "show", "small") == 0
    rows = dict(
        re.split(r"\s{2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()
    )
    assert rows["architecture"] == "qwen3" and rows["path"] == str(shelf / "small.gguf")
    assert rows["strength"] == "none"


def test_show_names_the_strengths_that_were_measured(small: Path, capsys):
    with load(small) as engine:
        measured = strength.prepare(engine, SearchConfig(rank=2, d_z=4))
    assert run("models", "show", str(small)) == 0
    assert f"rank 2, d_z 4, injection_seed 42, f16/f16 {measured}" in capsys.readouterr().out


def test_the_list_says_what_does_not_fit_into_memory(shelf: Path, capsys, monkeypatch):
    assert run("models", "show", "small", "--json") == 0
    assert json.loads(capsys.readouterr().out)["fits into memory"] is True
    assert run("models") == 0
    assert "too large" not in capsys.readouterr().out
    monkeypatch.setattr(memory_check, "available_memory", lambda: 1000)
    monkeypatch.setattr(memory_check, "backend_devices", lambda: [])
    assert run("models") == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert ", too large for the memory that is free  " in lines["small"]
    assert "too large" not in lines["broken"]
    assert run("models", "show", "small") == 0
    assert re.search("^fits into memory  no$", capsys.readouterr().out, re.MULTILINE)


# ---- rm ----


def test_a_model_is_deleted_with_what_belongs_to_it(shelf: Path, capsys):
    (shelf / "smaller.gguf").write_bytes(b"GGUF")
    with load(shelf / "small.gguf") as engine:
        strength.prepare(engine, SearchConfig(rank=2, d_z=4))
    (measured,) = strength_files.of_model(shelf / "small.gguf")
    belongs = [shelf / "small.gguf", measured]
    assert run("models", "rm", "small") == 2  # nobody can be asked here
    said = f"deleting {', '.join(map(str, belongs))} needs an answer on a terminal, or --yes"
    assert capsys.readouterr().err == f"tgr-local: {said}\n"
    assert all(file.exists() for file in belongs)
    assert run("models", "rm", "small", "--yes") == 0
    assert capsys.readouterr().out.splitlines() == [*map(str, belongs)]
    assert not any(file.exists() for file in belongs) and (shelf / "smaller.gguf").exists()
    assert run("models", "rm", "--yes", "--json", "big-00001-of-00002") == 0
    assert [Path(one["path"]).name for one in json.loads(capsys.readouterr().out)] == [
        "big-00001-of-00002.gguf", "big-00002-of-00002.gguf",
    ]  # fmt: skip
    for name in ("smaller", "broken"):
        assert run("models", "rm", name, "--yes") == 0
    assert not shelf.parent.exists() and model_files.folder().is_dir()


def test_an_answer_decides(shelf: Path, capsys, monkeypatch):
    for answer, code in (("", 1), ("no\n", 1), ("what\n", 1), ("yes\n", 0)):
        stdin = io.StringIO(answer)
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        assert (shelf / "small.gguf").exists()
        assert run("models", "rm", "small") == code
        assert "MB? yes, no: " in capsys.readouterr().err
    assert not (shelf / "small.gguf").exists()


def test_nothing_outside_of_the_folder_is_deleted(
    shelf: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "own.gguf").write_bytes(model().read_bytes())
    (shelf / "link.gguf").symlink_to(outside / "own.gguf")
    (shelf / "way").symlink_to(outside)
    monkeypatch.chdir(outside)
    for name, message in (
        ("own.gguf", "is not in the folder of models"),
        (str(outside / "own.gguf"), "is not in the folder of models"),
        (str(shelf / "way/own.gguf"), "is not in the folder of models"),
        (str(shelf / "../../../../../outside/own.gguf"), "is not in the folder of models"),
        ("tgr-mini", "belongs to the installation, and is not deleted"),
        (str(shelf / "big-00002-of-00002.gguf"), "is a later part of a model; name its first"),
        (str(shelf), "is a folder, which is not deleted"),
        ("nosuch", "there is no model nosuch"),
        (str(shelf / "gone.gguf"), "there is no file"),
    ):
        assert run("models", "rm", name, "--yes") == 1, name
        assert message in capsys.readouterr().err
    assert run("models", "rm", "link", "--yes") == 0
    assert not (shelf / "link.gguf").is_symlink() and (outside / "own.gguf").is_file()
    assert (shelf / "small.gguf").is_file() and model_files.embedded_model().is_file()


def test_an_empty_name_is_said_so(capsys):
    """As an unset variable of a shell gives it."""
    said = "the name of the model is empty; tgr-local models lists those here\n"
    for arguments in (["run", "q", "-m", ""], ["models", "show", ""]):
        assert run(*arguments) == 1
        assert capsys.readouterr().err == f"tgr-local: {said}"
    assert run("run", "q", "--file", "") == 2
    assert capsys.readouterr().err.startswith("tgr-local: the name of the file is empty; ")
    assert run("trace", "") == 1
    assert capsys.readouterr().err == "tgr-local: an empty name: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("models show", 2, "the following arguments are required: MODEL; see tgr-local models sh"),
        ("models list x", 2, "unknown argument 'x'"),
        ("models pull", 2, "the following arguments are required: OWNER/REPO:QUANTIZATION; see"),
        ("models show nosuch", 1, "there is no model nosuch; tgr-local models lists those here; t"),
        ("models pull nosuch", 2, "'nosuch' is not the name of a model; write OWNER/REPO:QUANTIZ"),
        ("models show /nowhere/x.gguf", 1, "/nowhere/x.gguf: No such file or directory"),
        ("models throw", 2, "argument COMMAND: invalid choice: 'throw'"),
    ],
)
def test_an_error_is_one_line(capsys, arguments: str, code: int, message: str):
    assert run(*arguments.split()) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"tgr-local: {message}") and err.count("\n") == 1
