"""Words without a flag: a model before the question, and what an unknown word or command hints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import finished, run

from tgr_local.code import command


@pytest.fixture
def folder(tmp_path, model: Callable[..., Path], monkeypatch) -> Path:
    """The current folder, with a model in it and another one among the downloaded."""
    for place in (tmp_path, tmp_path / "data/tgr-local/models/Owner/Repo-GGUF"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "tiny q8.gguf").symlink_to(model())
    (tmp_path / "weights").mkdir()
    for place in (tmp_path, tmp_path / "weights"):
        header = b'{"__metadata__":{"format":"pt"}}'.ljust(1024)
        (place / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "here.gguf").symlink_to(model())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys, *words: str) -> str:
    assert run(*words, "--show-config") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("model "))
    value, source = line.removeprefix("model ").strip().rsplit("  ", 1)
    assert source == "--model"
    return Path(value.strip()).name


@pytest.mark.parametrize("command", ["chat", "serve", "doctor", "run"])
def test_the_first_word_may_be_a_model(folder: Path, capsys, command: str):
    for word in ("here.gguf", "./here.gguf", str(folder / "here.gguf"), "./tiny q8.gguf"):
        assert shown(capsys, command, word) in ("here.gguf", "tiny q8.gguf")


@pytest.mark.parametrize(
    ("word", "name"), [("here", "here.gguf"), ("Owner/Repo-GGUF", "tiny q8.gguf")]
)
def test_a_known_name_is_one_where_the_word_cannot_be_the_question(
    folder: Path, capsys, word: str, name: str
):
    if word == "here":
        (folder / "here.gguf").rename(folder / "data/tgr-local/models/here.gguf")
    assert shown(capsys, "chat", word) == name
    assert shown(capsys, "run", word, "2+2?") == name


def test_the_question_comes_after_the_model(double: None, folder: Path, capsys):
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
        ("serve|x", 1, "there is no model x; tgr-local models lists those here; to download one"),
        ("serve|x|y", 2, "unknown argument 'x'; name a model with -m"),
        ("run|What|is|it?", 2,
         "unknown argument 'is'; put a text of several words in quotes, and name a model with -m"),
        ("run|here.gguf|What|is", 2,
         "unknown argument 'is'; put a text of several words in quotes, and name a model with -m"),
        ("run|here.gguf|--quantum|x", 2, "unknown argument '--quantum'"),
        ("chat|-m|f.gguf|here.gguf", 2,
         "unknown argument 'here.gguf'; name a model with -m; tgr-local run asks one question"),
        ("acp|--no-save", 2, "unknown argument '--no-save'; nothing is saved here; leave it out"),
        ("acp|x|y", 2, "unknown argument 'x'; tgr-local acp --help shows what it takes"),
        ("run|x|y", 2, "unknown argument 'y'; put a text of several words in quotes, and name a "
         "model with -m; there is no model x, to download one from Hugging Face, type: tgr-local"),
        ("chat|./no/such", 1, "there is no file no/such; correct the path, or download the model"),
        ("chat|data", 1, "data is a directory; name the GGUF file in it\n"),
        ("chat|.", 1, ". is a directory; name the GGUF file in it: here.gguf, tiny q8.gguf\n"),
        ("run|./data|Why?", 1, "data is a directory; name the GGUF file in it\n"),
        ("chat|w.safetensors", 1, "w.safetensors has weights in another format, not GGUF; convert"),
        ("run|w.safetensors|Why?", 1, "w.safetensors has weights in another format, not GGUF;"),
        ("chat|weights", 1, "weights is a directory; it has weights in another format; convert"),
        ("eval|run|llama3", 2, "unknown task 'llama3'; a model is named with -m llama3, and to d"),
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
    folder: Path, capsys, arguments: str, code: int, message: str
):
    assert run(*arguments.split("|")) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"tgr-local: {message}") and err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "chat {}", "serve {}", "doctor {}", "acp {}", "run {}", "run {} Why?",
        "run {}|Who are you?", "code {}", "code {} mend", "models show {}",
        "chat -m {}", "bench {}", "eval {}", "{}",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("llama3", "bartowski/Meta-Llama-3-8B-Instruct-GGUF:Q4_K_M"),
        ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M"),
        ("hf.co/Qwen/Qwen3-4B-GGUF", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("Qwen/Qwen3-4B-GGUF:Q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
    ],
)
def test_a_name_of_a_model_elsewhere_gets_the_command_that_pulls_it(
    folder: Path, monkeypatch, capsys, words: str, name: str, repository: str
):
    monkeypatch.setenv("TGR_SANDBOX", "none")  # a lack of one is said before
    first, _, question = words.format(name).partition("|")
    assert run(*first.split(), *([question] if question else ())) != 0
    out, err = capsys.readouterr()
    if words.startswith("doctor"):
        err, out = out.splitlines()[-1] + "\n", ""  # the model is the last thing that it looks at
    assert out == "" and err.count("\n") == 1 and f"tgr-local models pull {repository}" in err


def test_a_task_of_code_is_no_model(folder: Path, monkeypatch):
    seen: list[tuple[object, ...]] = []

    def note(args: argparse.Namespace) -> int:
        seen.append((args.model, args.task, *args.files))
        return 0

    monkeypatch.setattr(command, "run", note)
    for words in (["mend", "here.gguf"], ["here", "a.py"], ["yes/no"], ["Use llama3.", "a.py"]):
        assert run("code", *words) == 0
        assert seen.pop() == (None, *words)
    assert run("code", "here.gguf", "mend", "a.py", "--yes", "b.py") == 0
    assert seen.pop() == ("here.gguf", "mend", "a.py", "b.py")
