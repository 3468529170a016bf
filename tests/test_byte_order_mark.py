"""A byte order mark before UTF-8 text, as programs on Windows write it, is not part of the text."""

from __future__ import annotations

import codecs
import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from command_line import finished, run, shown_config
from eval_doubles import exercise

from tgr_local.chat.terminal import Terminal
from tgr_local.engine.templates import choice
from tgr_local.generation import trace_file
from tgr_local.lab.eval import recipe, tasks
from tgr_local.options.config import ServerConfig
from tgr_local.server import serve
from tgr_local.system import text_files
from tgr_local.system.errors import TgrError
from tgr_local.system.files import utf8_text

BOM = codecs.BOM_UTF8


def marked(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BOM + text.encode())
    return path


def test_one_mark_at_the_beginning_goes_and_positions_count_it():
    assert utf8_text(BOM + b"a\n") == "a\n" and utf8_text(b"") == ""
    assert utf8_text(BOM + BOM + b"a" + BOM) == "\ufeffa\ufeff"
    with pytest.raises(UnicodeDecodeError) as raised:
        utf8_text(BOM + b"a\xff")
    assert raised.value.start == 4


def test_a_question_from_a_file_and_from_stdin(tmp_path):
    first = str(marked(tmp_path / "first", "first\n"))
    asked = finished("run", "end", "-f", first, "--model", "f.gguf", data=BOM + b"second\n")
    assert asked[:2] == (0, "#1 first\n\nsecond\n\nend\n")
    assert finished("run", BOM.decode() + "2+2?", "--model", "f.gguf", data=b"")[1] == "#1 2+2?\n"
    refused = finished("run", "--model", "f.gguf", data=BOM + b"ab\xffc")
    assert refused == (1, "", "tgr-local: stdin is not UTF-8 text: invalid byte at offset 5\n")


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_utf_16_is_named(tmp_path, mark: bytes):
    path = tmp_path / "wide.txt"
    path.write_bytes(mark + b"2\x00")
    with pytest.raises(
        TgrError, match=r"wide\.txt is not UTF-8 text: invalid byte at offset 0; it is"
    ):
        text_files.read_file(str(path))


def test_a_command_in_the_first_line_of_a_piped_chat():
    lines = BOM + b"/method base\r\n2+2?\r\n" + BOM + b"3+3?\r\n"
    code, out, err = finished("chat", "--model", "f.gguf", data=lines)
    assert (code, err) == (0, "") and out.startswith("method base: ")
    assert out.endswith("#1 2+2?\n#3 \ufeff3+3?\n")  # inside a text it is a character


def test_settings_of_a_user_and_of_a_project(home: Path, monkeypatch, capsys):
    user = marked(home / "config" / "tgr-local" / "config.toml", "sigma = 0.1\n")
    marked(home / "tgr-local.toml", "temperature = 0.3\n")
    monkeypatch.chdir(home)
    shown = shown_config(capsys)
    assert shown["sigma"] == (0.1, str(user))
    assert shown["temperature"] == (0.3, "tgr-local.toml")


def test_the_keys_of_a_server(tmp_path):
    file = marked(tmp_path / "keys", "one\r\ntwo\r\n")
    assert serve.api_keys(ServerConfig(api_key_file=str(file))) == ("one", "two")


def test_a_chat_template(tmp_path):
    file = marked(tmp_path / "t.jinja", "{{ messages[0].content }}")
    found = choice.named(str(file))
    assert found is not None and found.text == "{{ messages[0].content }}"


def test_a_question_that_an_editor_saved(monkeypatch):
    code = "import sys; open(sys.argv[1], 'wb').write(b'\\xef\\xbb\\xbfedited')"
    monkeypatch.setenv("VISUAL", shlex.join([sys.executable, "-c", code]))
    assert Terminal.edit(object.__new__(Terminal), "before") == "edited"


def test_a_recipe_and_the_files_of_tasks(tmp_path):
    text = (recipe.FOLDER / "ablation.toml").read_text("utf-8")
    file = marked(tmp_path / "ablation.toml", text)
    assert recipe.load(str(file)) == recipe.load("ablation")
    exercise(tmp_path / "exercises", "twice")
    before = tasks.get("aider-edit").load(tmp_path / "exercises")
    for path in (tmp_path / "exercises").rglob("*.*"):
        if path.is_file():
            path.write_bytes(BOM + path.read_bytes())
    assert tasks.get("aider-edit").load(tmp_path / "exercises") == before


def test_a_trace_that_an_editor_saved(tmp_path, double: None, capsys):
    path = tmp_path / "t.jsonl"
    assert run("run", "2+2?", "--model", "f.gguf", "--trace", os.fspath(path)) == 0
    whole, _ = trace_file.read(path)
    path.write_bytes(BOM + path.read_bytes())
    assert json.dumps(trace_file.read(path)[0], default=repr) == json.dumps(whole, default=repr)
