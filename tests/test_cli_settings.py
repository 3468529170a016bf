"""The value of an option: from default, model file, settings files, variables, flags."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run, shown_config
from fake_engine import FakeEngine
from gguf_edit import F32, I32, Gguf

from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.model_files import embedded_model


def test_defaults_give_way_to_the_models_advice_and_that_to_flags(double: None, capsys):
    assert run("run", "q", "--model", "f.gguf", "--json", "--chunk-len", "9") == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert FakeEngine("f").metadata == {"tgr.temperature": "0.25", "tgr.chunk_len": "100"}
    assert config["temperature"] == 0.25  # the model's
    assert config["chunk_len"] == 9  # the flag's
    assert config["sigma"] == SearchConfig().sigma  # the default


def test_the_makers_sampling_is_used_and_named(model: Callable[..., Path], tmp_path, capsys):
    file = Gguf.parse(model().read_bytes())
    file.set("general.sampling.temp", 1.5, F32)
    file.set("general.sampling.top_k", 20, I32)
    file.set("general.sampling.top_p", 0.8, F32)
    path = tmp_path / "sampling.gguf"
    path.write_bytes(file.to_bytes())
    flags = ["-m", str(path), "--top-k", "7"]
    shown = shown_config(capsys, *flags)
    assert shown["temperature"] == (1.5, "general.sampling.temp of the model file")
    assert shown["top_p"] == (0.8, "general.sampling.top_p of the model file")
    assert shown["top_k"] == (7, "--top-k")
    assert run("run", "hello", *flags, "--raw", "--method", "base", "-n", "2", "--json") in (0, 1)
    config = json.loads(capsys.readouterr().out)["config"]
    assert {name: config[name] for name in ("temperature", "top_p", "top_k")} == {
        "temperature": 1.5, "top_p": 0.8, "top_k": 7,
    }  # fmt: skip
    assert run("models", "show", str(path)) == 0
    assert "temperature 1.5, top_k 20, top_p 0.8" in capsys.readouterr().out


def settings_from(
    home: Path,
    monkeypatch,
    *,
    user: str = "",
    project: str = "",
    environment: dict[str, str] | None = None,
) -> None:
    """A user's file, a project's file in the working folder, and variables."""
    folder = home / "config" / "tgr-local"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(user)
    (home / "tgr-local.toml").write_text(project)
    monkeypatch.chdir(home)
    for name, value in (environment or {}).items():
        monkeypatch.setenv(name, value)


def test_flags_override_variables_and_those_override_files(home: Path, monkeypatch, capsys):
    settings_from(
        home,
        monkeypatch,
        user='sigma = 0.1\ndelta = 0.1\nseed = 1\nthinking = false\nstop = ["a", "b"]\n'
        'keys = "vi"\nn_ctx = 64\ntensor_split = [3, 1]',
        project='delta = 0.2\nseed = 2\nmethod = "base"',
        environment={"TGR_SEED": "3", "TGR_N_CTX": "128", "TGR_RANK": ""},
    )
    config = shown_config(capsys, "--n-ctx", "256")
    user = str(home / "config" / "tgr-local" / "config.toml")
    assert config["sigma"] == (0.1, user)
    assert config["thinking"] == (False, user)
    assert config["stop"] == (["a", "b"], user)
    assert config["delta"] == (0.2, "tgr-local.toml")
    assert config["method"] == ("base", "tgr-local.toml")
    assert config["tensor_split"] == ([3.0, 1.0], user)
    assert config["seed"] == (3, "TGR_SEED")
    assert config["n_ctx"] == (256, "--n-ctx")
    assert config["rank"] == (SearchConfig().rank, "default")
    assert {source for _, source in config.values()} >= {"default", "the model file"}
    assert shown_config(capsys, "--stop", "c", "--thinking")["stop"] == (["c"], "--stop")


def test_the_strength_is_of_what_the_method_injects(home: Path, capsys):
    for method, said in (
        ("tgr-latent", "calibration residual"),
        ("tgr-think", "calibration residual"),  # into the thinking
        ("base", "nothing is injected"),
    ):
        assert shown_config(capsys, "--method", method)["strength"][1] == said


def test_a_run_uses_the_settings(double: None, home: Path, monkeypatch, capsys):
    settings_from(
        home, monkeypatch, user='model = "f.gguf"', project='sigma = 0.5\nmethod = "markov"'
    )
    model = home / "config" / "tgr-local" / "f.gguf"
    model.touch()
    assert run("run", "q", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["method"], result["config"]["sigma"]) == ("markov", 0.5)
    assert result["config"]["temperature"] == 0.25  # the model's advice
    assert result["model"]["path"] == str(model)


@pytest.mark.parametrize(
    ("project", "variables", "message"),
    [
        ("sigm = 1", {}, "tgr-local.toml: unknown option 'sigm'; did you mean sigma"),
        ("zzzz = 1", {}, "tgr-local.toml: unknown option 'zzzz'; tgr-local run --help-all has all"),
        ("[search]\nsigma = 1", {}, "tgr-local.toml: search is a table, but tables are not used"),
        ("[sigma]\nx = 1", {}, "tgr-local.toml: sigma is a table, but tables are not used; write"),
        ("[[stop]]\nx = 1", {}, "tgr-local.toml: stop is a table, but tables are not used; write"),
        ("top_k = true", {}, "top_k is 'true', but must be a whole number (set in tgr-local.toml)"),
        ('method = ["base"]', {}, "tgr-local.toml: method is ['base'], but must be a text"),
        ("method = true", {}, "tgr-local.toml: method is true, but must be a text"),
        ("sigma = -1", {}, "sigma is -1.0, but must be at least 0 (set in tgr-local.toml)"),
        ("sigma = [1, 2]", {}, "sigma is a list, but must be one value (set in tgr-local.toml)"),
        ("top_k = 1.5", {}, "top_k is '1.5', but must be a whole number (set in tgr-local.toml)"),
        ("sigma = 1979-05-27", {}, "tgr-local.toml: sigma must be one value"),
        ("sigma", {}, "tgr-local.toml: "),
        ("", {"TGR_SEED": "x"}, "seed is 'x', but must be a whole number (set in TGR_SEED)"),
    ],
)
def test_a_bad_setting_is_reported_with_its_place(
    double: None,
    home: Path,
    monkeypatch,
    capsys,
    project: str,
    variables: dict[str, str],
    message: str,
):
    settings_from(home, monkeypatch, project=project, environment=variables)
    assert run("run", "q", "--model", "f.gguf") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1].startswith(f"tgr-local: {message}")


@pytest.mark.parametrize(
    ("user", "variables", "place"),
    [
        ('method = "nope"', {}, "config.toml"),
        ('model = "~/nope.gguf"', {}, "config.toml"),
        ('model = "nope"', {}, "config.toml"),
        ("", {"TGR_METHOD": "nope"}, "TGR_METHOD"),
        ("", {"TGR_MODEL": "nope"}, "TGR_MODEL"),
    ],
)
def test_an_unknown_method_or_model_is_reported_with_its_place(
    small: Path, home: Path, monkeypatch, capsys, user: str, variables: dict[str, str], place: str
):
    settings_from(home, monkeypatch, user=user, environment=variables)
    assert run("chat") == (2 if "METHOD" in place or "method" in user else 1)  # as with flags
    err = capsys.readouterr().err
    assert "nope" in err and err.endswith(f"{place})\n") and err.count("\n") == 1
    assert run("run", "--show-config", "--method", "base", "--model", str(small)) == 0


def test_a_settings_file_that_cannot_be_read_is_an_error(
    double: None, home: Path, monkeypatch, capsys
):
    monkeypatch.chdir(home)
    Path("tgr-local.toml").symlink_to("tgr-local.toml")
    assert run("run", "q", "--model", "f.gguf") == 1
    assert capsys.readouterr().err.startswith("tgr-local: tgr-local.toml: Too many levels of sym")


def test_a_misspelt_variable_is_a_warning(double: None, monkeypatch, capsys):
    monkeypatch.setenv("TGR_ROLLOUT_LENGTH", "4")
    monkeypatch.setenv("TGR_SOMETHING_ELSE", "4")
    assert run("run", "q", "--model", "f.gguf") == 0
    warning = "TGR_ROLLOUT_LENGTH is not an option; did you mean TGR_ROLLOUT_LEN?\n"
    assert capsys.readouterr().err.startswith(f"tgr-local: warning: {warning}")


def test_a_former_option_or_value_is_a_warning(double: None, home: Path, monkeypatch, capsys):
    user = 'draft_model = "small"\nprobe = "p.json"\nvote_weight = "count"'
    variables = {"TGR_MIN_GAP": "0", "TGR_VOTE_WEIGHT": "auto"}
    settings_from(
        home, monkeypatch, user=user, project='vote_weight = "probe"', environment=variables
    )
    place = home / "config" / "tgr-local" / "config.toml"
    assert run("run", "q", "--model", "f.gguf", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["config"]["vote_weight"] == "count"
    for what in (
        "TGR_MIN_GAP has left the search", f"{place}: draft_model has left the engine",
        f"{place}: probe has left the search", "TGR_VOTE_WEIGHT = auto has left the search",
        "tgr-local.toml: vote_weight = probe has left the search",
    ):  # fmt: skip
        assert f"tgr-local: warning: {what} and has no effect; remove it\n" in err


@pytest.mark.parametrize("command", ["code", "acp"])
def test_the_assistant_shows_the_options_of_its_own_model(capsys, command: str):
    assert run(command, "--show-config", "--changed") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["chunk_len", "96", "the", "model", "file"] in rows
    assert run(command, "--show-config", "--all") == 0
    out, err = capsys.readouterr()
    path = str(embedded_model("tgr-mini-code"))
    assert out.splitlines()[0].split() == ["model", path, "default"] and "--all" not in err


def test_show_config_is_a_table_for_people(capsys):
    assert run("doctor", "--show-config") == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows.keys() == {"model", *EngineConfig.__dataclass_fields__}
    assert rows["n_batch"] == ["n_batch", "512", "default"]
    assert rows["tensor_split"] == ["tensor_split", "none", "default"]
