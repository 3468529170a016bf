"""What a settings file may do; the one in the current folder may be a stranger's."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import finished, run

from tgr_local.commands import cli
from tgr_local.lab.eval import request
from tgr_local.options import settings
from tgr_local.options.config import (
    ChatConfig,
    CodeConfig,
    EngineConfig,
    SearchConfig,
    ServerConfig,
)
from tgr_local.options.model_files import embedded_model

FILE = Path("tgr-local.toml")
ALLOWED = {"method", *(spec.name for spec in dataclasses.fields(SearchConfig))}
REFUSED = sorted(cli.build_parser().all_options().keys() - ALLOWED)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, which belongs to another user."""
    place = tmp_path / "foreign"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def refusal(capsys, *arguments: str) -> str:
    """The only line of a command that is refused as bad usage."""
    assert run(*(arguments or ("run", "--show-config"))) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and len(err) < 3000
    return err


# ---- options that a project's file may set ----


def test_all_options_but_those_of_a_reply_are_refused():
    others = (EngineConfig, ChatConfig, CodeConfig, ServerConfig)
    names = {spec.name for config in others for spec in dataclasses.fields(config)}
    assert set(REFUSED) == names | {"model", "system"}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["run", "serve", "code"])
def test_the_file_of_a_project_sets_only_options_of_a_reply(
    home: Path, capsys, name: str, command: str
):
    FILE.write_text(f"{name} = 1")
    flag = f"--{name.replace('_', '-')}"
    own = home / "config" / "tgr-local" / "config.toml"
    assert refusal(capsys, command) == (
        f"tgr-local: tgr-local.toml sets {name}, but the file of a project may only set the "
        f"method and options of a reply; remove it there, and set it in {own}, with "
        f"TGR_{name.upper()} or with {flag}\n"
    )


def test_a_log_file_named_by_a_strangers_folder_is_never_opened(folder: Path, capsys):
    shell = folder.parent / "bashrc"
    shell.write_text("# start\n")
    FILE.write_text('log_prompts = true\nlog_file = "../bashrc"\nport = 0\n')
    assert "tgr-local.toml sets log_prompts" in refusal(capsys, "serve")
    assert shell.read_text() == "# start\n"


def test_the_users_file_may_set_all_options(home: Path, capsys, small: Path):
    own = settings.user_file()
    own.parent.mkdir(parents=True)
    own.write_text(f'port = 1\nn_ctx = 64\nmodel = "{small}"\nsave = false')
    rows = _rows(capsys, "serve")
    assert rows["port"] == ["1", str(own)] and rows["n_ctx"] == ["64", str(own)]
    assert rows["model"] == [str(small), str(own)]


def test_a_model_path_in_the_users_file_means_the_same_in_every_folder(folder: Path, capsys):
    own = settings.user_file()
    own.parent.mkdir(parents=True)
    own.write_text('model = "models/m.gguf"')
    (folder / "models").mkdir()
    (folder / "models" / "m.gguf").write_bytes(b"GGUF")
    assert run("run", "--show-config") == 1
    err = capsys.readouterr().err
    assert str(own.parent / "models" / "m.gguf") in err and "No such file" in err


def test_paths_in_the_users_file_begin_at_that_file(folder: Path, capsys, small: Path):
    own = settings.user_file()
    (own.parent / "weights").mkdir(parents=True)
    (folder / "weights").mkdir()
    (own.parent / "mine.jinja").write_text("x")
    paths = {
        "models_dir": "weights", "prompt_cache": "../kept",
        "log_file": "log", "api_key_file": "keys",
        "chat_template": "mine.jinja",
    }  # fmt: skip
    lines = [f'{name} = "{value}"' for name, value in paths.items()]
    own.write_text("\n".join([*lines, 'lora = ["a.gguf", "b.gguf:0.5"]', f'model = "{small}"']))
    assert settings.models_dir() == own.parent / "weights"
    for named, names in (
        ("serve", (*paths, "lora")), ("run", ("chat_template", "lora")),
    ):  # fmt: skip
        rows = _rows(capsys, named)
        for name in names:
            if name == "lora":
                wanted = f"{own.parent / 'a.gguf'},{own.parent / 'b.gguf'}:0.5"
            else:
                wanted = str(own.parent / paths[name])
            shown, source = rows[name]  # a long value is shown without its middle
            assert source == str(own)
            assert re.fullmatch(".*".join(map(re.escape, shown.split("…"))), wanted)


def _rows(capsys, command: str) -> dict[str, list[str]]:
    capsys.readouterr()
    assert run(command, "--show-config") == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_a_command_reads_the_options_that_it_has(capsys):
    own = settings.user_file()
    own.parent.mkdir(parents=True)
    own.write_text('port = 99999\nmodels_dir = "."')
    assert run("serve", "--show-config") == 2
    assert (
        f"port is 99999, but must be between 0 and 65535 (set in {own})" in capsys.readouterr().err
    )
    rows = _rows(capsys, "run")
    assert rows["model"] == [str(embedded_model()), "default"]
    own.write_text("system = 5")
    assert refusal(capsys) == f"tgr-local: {own}: system is 5, but must be a text\n"


def test_values_have_the_types_of_toml(capsys):
    own = settings.user_file()
    own.parent.mkdir(parents=True)
    own.write_text('thinking = false\nsigma = 1\nstop = [3, "b"]\nn_ctx = "64"')
    args = cli.arguments(["eval", "run", "gsm8k", "--lora", "a.gguf"])
    assert args.user_options == {"thinking": False, "sigma": 1.0, "stop": ("3", "b")}
    assert args.engine == EngineConfig(n_ctx=64, lora=("a.gguf",))
    words = request.command_line(args)
    for flags in ("--no-thinking", "--sigma 1", "--stop 3 --stop b", "--n-ctx 64"):
        assert flags in words
    assert "options from" in capsys.readouterr().err


def test_names_and_empty_values_in_the_users_file_stay(capsys):
    own = settings.user_file()
    own.parent.mkdir(parents=True)
    own.write_text('chat_template = "chatml"\nprompt_cache = ""\n')
    rows = _rows(capsys, "serve")
    assert rows["chat_template"] == ["chatml", str(own)]
    assert rows["prompt_cache"] == ["none", str(own)]


@pytest.mark.parametrize("name", ["lora", "models_dir", "prompt_cache", "model"])
def test_the_home_of_nobody_is_refused(capsys, name: str):
    file = settings.user_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{name} = "~nobody-here/a"\n')
    line = refusal(capsys, "serve")
    assert f"{file}: {name} is '~nobody-here/a', but" in line and "write the whole path" in line


# ---- every file read is named ----


def test_every_file_that_is_read_is_named_once_on_stderr(capsys):
    FILE.write_text("sigma = 0.5")
    assert run("run", "--show-config", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["sigma"] == {"value": 0.5, "source": "tgr-local.toml"}
    assert err == "tgr-local: options from tgr-local.toml\n"
    own = settings.user_file()
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert run("doctor", "--show-config") == 0
    assert capsys.readouterr().err == f"tgr-local: options from {own} and tgr-local.toml\n"
    FILE.unlink()
    own.unlink()
    assert run("doctor", "--show-config") == 0
    assert capsys.readouterr().err == ""


# ---- files that are not settings files ----


@pytest.mark.parametrize("arguments", [("run", "q"), ("chat",), ("eval", "run")])
def test_a_pipe_is_not_waited_for(arguments: tuple[str, ...]):
    os.mkfifo(FILE)
    code, out, err = finished(*arguments, data=b"")
    assert (code, out) == (2, "")
    assert err.startswith("tgr-local: tgr-local.toml is not a file; ") and err.count("\n") == 1


def test_a_device_behind_a_link_is_not_read(capsys):
    FILE.symlink_to("/dev/zero")
    assert "tgr-local.toml is not a file" in refusal(capsys)


def test_a_huge_file_is_refused_without_being_read(capsys):
    FILE.touch()
    os.truncate(FILE, 1 << 40)
    assert "tgr-local.toml has more than 16384 bytes; keep" in refusal(capsys)


@pytest.mark.parametrize(
    "text",
    [
        "sigma = " + "[" * 15_000,
        "a." * 2_000 + "a = 1",
        "sigma = " + "1" * 5_000,
        "seed = 0x" + "f" * 15_000,
        "seed = " + "9" * 30,
        "sigma = [[1], [2]]",
        "stop = [1979-05-27]",
        "k" * 15_000 + " = 1",
        "sigma = \x1b[2J",
        '"\\u001b[2J" = 1',
        'method = "\\u001b[2J"',
    ],
    ids=range(11),
)
def test_a_malformed_option_is_reported_in_one_printable_line(capsys, text: str):
    FILE.write_text(text)
    assert run("chat", "--show-config") == 2
    out, err = capsys.readouterr()
    *_, last = err.splitlines()
    assert out == "" and "tgr-local.toml" in last and len(last) < 2500 and "\x1b" not in err


def test_escapes_in_values_do_not_reach_the_terminal(capsys):
    FILE.write_text(
        'stop = ["\\u001b]0;owned\\u0007", "\\u009b2J"]\ngrammar = "a\\nb' + "x" * 9000 + '"'
    )
    assert run("run", "--show-config") == 0
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(out) and max(map(len, out.splitlines())) < 400
    assert run("run", "--show-config", "--json") == 0
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(out)
    assert json.loads(out)["stop"]["value"] == ["\x1b]0;owned\x07", "\x9b2J"]


@pytest.mark.parametrize("place", [".", "config", ""])
def test_a_users_folder_that_depends_on_the_current_one_is_ignored(
    folder: Path, home: Path, monkeypatch, place: Any
):
    monkeypatch.setenv("XDG_CONFIG_HOME", place)
    monkeypatch.setenv("HOME", str(home))
    assert settings.user_file() == home / ".config" / "tgr-local" / "config.toml"
