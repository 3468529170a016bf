"""Words without a flag: a model before the question, and what an unknown word or command hints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import finished, run


@pytest.fixture
def folder(tmp_path: Path, model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model in it and another one among the downloaded."""
    for place in (tmp_path, tmp_path / "data/tgr-local/models/Owner/Repo-GGUF"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "tiny q8.gguf").symlink_to(model())
    (tmp_path / "here.gguf").symlink_to(model())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(*words, "--show-config") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("model "))
    value, source = line.removeprefix("model ").strip().rsplit("  ", 1)
    assert source == "--model"
    return Path(value.strip()).name


@pytest.mark.parametrize("command", ["chat", "serve", "doctor", "run"])
def test_the_first_word_may_be_a_model(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for word in ("here.gguf", "./here.gguf", str(folder / "here.gguf"), "./tiny q8.gguf"):
        assert shown(capsys, command, word) in ("here.gguf", "tiny q8.gguf")


@pytest.mark.parametrize(
    ("word", "name"), [("here", "here.gguf"), ("Owner/Repo-GGUF", "tiny q8.gguf")]
)
def test_a_known_name_is_one_where_the_word_cannot_be_the_question(
    folder: Path, capsys: pytest.CaptureFixture[str], word: str, name: str
) -> None:
    if word == "here":
        (folder / "here.gguf").rename(folder / "data/tgr-local/models/here.gguf")
    assert shown(capsys, "chat", word) == name
    assert shown(capsys, "run", word, "2+2?") == name


def test_the_question_comes_after_the_model(
    double: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["here.gguf", "2+2?"], ["-n", "5", "here.gguf", "2+2?"], ["here.gguf", "-n", "5", "2+2?"],
        ["llama3.2:3b", "2+2?"],
    ):  # fmt: skip
        assert run("run", *words) == 0
        assert capsys.readouterr().out == "#1 2+2?\n"
    assert run("run", "tgr-mini") == 0  # alone it may be a question
    assert capsys.readouterr().out == "#1 tgr-mini\n"
    assert run("run", "-m", "f.gguf", "here.gguf") == 0
    assert capsys.readouterr().out == "#1 here.gguf\n"
    asked = finished("run", "here.gguf", data=b"from stdin\n")
    assert asked[:2] == (0, "#1 from stdin\n")
    assert finished("run", "here.gguf", "-", data=b"from stdin\n")[1] == "#1 from stdin\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("chat|What is 2+2?", 2,
         "unknown argument 'What is 2+2?'; name a model with -m; tgr-local run asks one question"),
        ("serve|x", 2, "unknown argument 'x'; name a model with -m"),
        ("run|What|is|it?", 2,
         "unknown argument 'is'; put a text of several words in quotes, and name a model with -m"),
        ("run|here.gguf|What|is", 2,
         "unknown argument 'is'; put a text of several words in quotes, and name a model with -m"),
        ("run|here.gguf|--quantum|x", 2, "unknown argument '--quantum'"),
        ("chat|-m|f.gguf|here.gguf", 2,
         "unknown argument 'here.gguf'; name a model with -m; tgr-local run asks one question"),
        ("acp|x", 2, "unknown argument 'x'; tgr-local acp --help shows what it takes"),
        ("models|list|x", 2, "unknown argument 'x'; tgr-local models list --help shows what it"),
        ("chat|gone.gguf", 1, "there is no model gone.gguf; tgr-local models lists those here; to"),
        ("run|llama3.2:3b|Why?", 1, "there is no model llama3.2:3b; tgr-local models lists"),
        ("run|Qwen/Qwen3-4B|Why?", 1, "there is no model Qwen/Qwen3-4B here; to download one"),
        ("pull|Qwen/Qwen3-4B", 2, "unknown command 'pull'; did you mean tgr-local models pull?"),
        ("list", 2, "unknown command 'list'; did you mean tgr-local models list or tgr-local eval"),
        ("ls", 2, "unknown command 'ls'; did you mean tgr-local models list or"),
        ("server", 2, "unknown command 'server'; did you mean tgr-local serve or"),
        ("here.gguf", 2, "unknown command 'here.gguf'; to talk with a model, type: tgr-local chat "
         "here.gguf;"),
        ("bench|here.gguf", 2,
         "unknown command 'here.gguf'; a model is named with --model here.gguf;"),
        ("\ud800", 2, "argument COMMAND: invalid choice"),
    ],
)  # fmt: skip
def test_a_word_that_belongs_nowhere_says_what_to_type(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    assert run(*arguments.split("|")) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"tgr-local: {message}") and err.count("\n") == 1
