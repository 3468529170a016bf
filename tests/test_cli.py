"""The command line: flags, precedence, exit codes, exact messages; then on the real engine."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import finished, loaded, process, run
from fake_engine import FakeEngine, install
from surroundings import HANG, environment

from tgr_local import cli
from tgr_local.errors import TgrError
from tgr_local.options import flags
from tgr_local.options.config import ChatConfig, EngineConfig, SearchConfig

SUMMARY = (
    "tgr-latent: 2 chunks, 15 tokens, 44 forward tokens (query 7, rebuild 10, rollouts 10, "
    "chunk 15, delimiter 2), 0.50 s, 30.0 tokens/s, stop\n"
)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double of the engine in its place."""
    install(monkeypatch.setattr)


@pytest.fixture
def small(model: Callable[..., Path]) -> Path:
    """A small random model for the real engine."""
    return model()


# ---- flags ----


def parsed(*arguments: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(["run", "q", *arguments])


def parsed_chat(*arguments: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(["chat", *arguments])


@pytest.mark.parametrize("config_type", [EngineConfig, SearchConfig, ChatConfig])
def test_every_field_is_a_flag_of_its_name(config_type: Any) -> None:
    for spec in dataclasses.fields(config_type):
        flag = "--" + spec.name.replace("_", "-")
        if isinstance(spec.default, bool):
            assert flags.given(parsed_chat(flag), config_type) == {spec.name: True}
            assert flags.given(parsed_chat(flag.replace("--", "--no-", 1)), config_type) == {
                spec.name: False
            }
        else:
            default = (
                ",".join(map(str, spec.default))
                if isinstance(spec.default, tuple)
                else str(spec.default)
            )
            values = flags.given(parsed_chat(flag, default or "1"), config_type)
            assert list(values) == [spec.name]
            if default:
                assert values[spec.name] == spec.default


def test_no_field_is_named_like_another_argument() -> None:
    engine, search = ({f.name for f in dataclasses.fields(c)} for c in (EngineConfig, SearchConfig))
    others = set(vars(parsed())) - engine - search
    assert not engine & search
    assert others == {
        "parser", "command", "question", "trajectories", "raw", "json", "show_thinking", "trace",
        "trace_vectors", "show_config",
    }  # fmt: skip
    assert set(cli.build_parser().all_options()) >= {"method", "model", *engine, *search}


def test_help_gives_meaning_default_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--sigma X σ: proposal radius (default: 0.05; at least 0)" in text
    assert "--n-mc N N_MC: rollouts for each candidate (default: 1; 1 to 64)" in text
    assert "--use-mmap, --no-use-mmap" in text and "(default: on)" in text


def test_texts_to_stop_at_may_be_several() -> None:
    values = flags.given(parsed("--stop", "a, b", "--stop", "c"), SearchConfig)
    assert values == {"stop": ("a, b", "c")}
    assert flags.given(parsed("--tensor-split", "3,1"), EngineConfig) == {
        "tensor_split": (3.0, 1.0)
    }


@pytest.mark.parametrize("arguments", [["--help"], ["chat", "--help"], ["--version"]])
def test_help_is_instant_since_nothing_heavy_is_loaded(arguments: list[str]) -> None:
    start = f"from tgr_local.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
    heavy = {"numpy", "llama_cpp", "rich", "prompt_toolkit", "jinja2", "fastapi", "tomllib"}
    assert not loaded(start) & {*heavy, "tgr_local.engine", "tgr_local.generation"}


def test_the_first_prompt_waits_for_nothing_that_it_does_not_need() -> None:
    # all that stands between the command and the prompt, and the prompt itself
    start = (
        "from tgr_local.cli import main; from tgr_local.chat import terminal\n"
        "terminal.run = lambda conversation: terminal.Terminal(conversation) and 0\n"
        "sys.stdin.isatty = sys.stdout.isatty = lambda: True\n"
        "main(['chat'])"
    )
    found = loaded(start)
    assert {"prompt_toolkit", "tgr_local._engine"} <= found
    late = {"llama_cpp", "jinja2", "rich", "huggingface_hub", "fastapi", "gguf", "matplotlib"}
    assert not found & late


# ---- precedence ----


def test_defaults_give_way_to_the_models_advice_and_that_to_flags(
    double: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "q", "--model", "f.gguf", "--json", "--chunk-len", "9") == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert FakeEngine("f").metadata == {"tgr.temperature": "0.25", "tgr.chunk_len": "100"}
    assert config["temperature"] == 0.25  # the model's
    assert config["chunk_len"] == 9  # the flag's
    assert config["sigma"] == SearchConfig().sigma  # nobody's


def settings_from(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
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


def shown_config(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What --show-config tells of the embedded model: (value, source) by name."""
    assert run("run", "--show-config", "--json", *arguments) == 0
    table = json.loads(capsys.readouterr().out)
    return {name: (one["value"], one["source"]) for name, one in table.items()}


def test_flags_override_variables_and_those_override_files(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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


def test_a_run_uses_the_settings(
    double: None,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings_from(
        home, monkeypatch, user='model = "f.gguf"', project='sigma = 0.5\nmethod = "markov"'
    )
    model = home / "config" / "tgr-local" / "f.gguf"
    model.touch()
    assert run("run", "q", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["method"], result["config"]["sigma"]) == ("markov", 0.5)
    assert result["config"]["temperature"] == 0.25  # what nobody set, the model advises
    assert result["model"]["path"] == str(model)


@pytest.mark.parametrize(
    ("project", "variables", "message"),
    [
        ("sigm = 1", {}, "tgr-local.toml: unknown option 'sigm'; did you mean sigma"),
        ("[search]\nsigma = 1", {}, "tgr-local.toml: search is a table, but tables are not used"),
        (
            "[sigma]\nx = 1",
            {},
            "tgr-local.toml: sigma is a table, but tables are not used; write one",
        ),
        (
            "[[stop]]\nx = 1",
            {},
            "tgr-local.toml: stop is a table, but tables are not used; write one",
        ),
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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    project: str,
    variables: dict[str, str],
    message: str,
) -> None:
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
    ],
)
def test_an_unknown_method_or_model_is_reported_with_its_place(
    small: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    user: str,
    variables: dict[str, str],
    place: str,
) -> None:
    settings_from(home, monkeypatch, user=user, environment=variables)
    assert run("chat") == 2
    err = capsys.readouterr().err
    assert "nope" in err and err.endswith(f"{place})\n") and err.count("\n") == 1
    assert run("run", "--show-config", "--method", "base", "--model", str(small)) == 0


def test_a_settings_file_that_cannot_be_read_is_an_error(
    double: None,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    path = Path("tgr-local.toml")
    path.mkdir()
    assert run("run", "q", "--model", "f.gguf") == 2
    assert capsys.readouterr().err.startswith("tgr-local: tgr-local.toml is not a file; ")
    path.rmdir()
    path.symlink_to(path)
    assert run("run", "q", "--model", "f.gguf") == 1
    assert capsys.readouterr().err.startswith("tgr-local: tgr-local.toml: Too many levels of sym")


def test_a_misspelt_variable_is_a_warning(
    double: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TGR_ROLLOUT_LENGTH", "4")
    monkeypatch.setenv("TGR_SOMETHING_ELSE", "4")
    assert run("run", "q", "--model", "f.gguf") == 0
    warning = "TGR_ROLLOUT_LENGTH is not an option; did you mean TGR_ROLLOUT_LEN?\n"
    assert capsys.readouterr().err.startswith(f"tgr-local: warning: {warning}")


def test_show_config_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--show-config") == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows.keys() == {"model", *EngineConfig.__dataclass_fields__}
    assert rows["n_batch"] == ["n_batch", "512", "default"]
    assert rows["tensor_split"] == ["tensor_split", "none", "default"]


# ---- output ----


def test_run_prints_the_answer_and_a_summary(
    double: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "2+2?", "--model", "f.gguf") == 0
    assert tuple(capsys.readouterr()) == ("#1 2+2?\n", SUMMARY)


def test_run_prints_the_thinking_on_request(
    double: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "2+2?", "--model", "f.gguf", "--show-thinking") == 0
    assert capsys.readouterr().out == "hm, 2+2?\n\n#1 2+2?\n"


def test_several_trajectories_are_numbered(
    double: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "2+2?", "--model", "f.gguf", "-k", "2") == 0
    out, err = capsys.readouterr()
    assert out == "[1] #1 2+2?\n[2] #1 2+2?\n"
    assert err.startswith("tgr-latent x 2: 4 chunks, 30 tokens, 88 forward tokens")
    assert err.endswith("stop x 2\n")


def test_json_has_everything_that_a_result_depends_on(
    double: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "2+2?", "--model", "f.gguf", "--json", "--seed", "5") == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err == ""
    kinds = {"query": 7, "rebuild": 10, "rollouts": 10, "chunk": 15, "delimiter": 2}
    kinds |= {"discarded": 0, "total": 44}
    assert result.pop("versions").keys() == {"tgr-local", "python", "llama-cpp-python", "numpy"}
    assert result.pop("config").keys() == SearchConfig.__dataclass_fields__.keys()
    assert result.pop("engine").keys() == EngineConfig.__dataclass_fields__.keys()
    assert result == {
        "text": "#1 2+2?",
        "thinking": "hm, 2+2?",
        "finish": "stop",
        "tokens": 15,
        "counts": kinds,
        "seconds": 0.5,
        "tokens_per_second": 30.0,
        "chunks": 2,
        "method": "tgr-latent",
        "seed": 5,
        "prompt": "<user>2+2?",
        "prompt_tokens": 10,
        "model": {"path": "f.gguf", "sha256": "ab" * 32, "description": "fake 1B"},
    }


def test_json_of_several_trajectories_is_a_list_with_their_seeds(
    double: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "2+2?", "--model", "f.gguf", "--json", "-k", "3", "--seed", "5") == 0
    results = json.loads(capsys.readouterr().out)
    assert [(one["seed"], one["config"]["seed"]) for one in results] == [(5, 5), (6, 6), (7, 7)]


@pytest.mark.parametrize(("k", "vectors"), [("1", False), ("2", True)])
def test_a_trace_is_written_and_shown(
    double: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, k: str, vectors: bool
) -> None:
    path = str(tmp_path / "t")
    flags = ["--trace-vectors"] if vectors else []
    assert run("run", "2+2?", "--model", "f.gguf", "-k", k, "--trace", path, *flags) == 0
    capsys.readouterr()
    assert run("trace", path) == 0
    out = capsys.readouterr().out
    assert out.count("candidate 1 won") == 2 * int(k) and out.count("stop after 2 chunks") == int(k)
    assert ('"float32"' in (tmp_path / "t").read_text()) == vectors


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from tgr_local import __version__

    assert run("--version") == 0
    assert capsys.readouterr().out == f"tgr-local {__version__}\n"


# ---- stdin ----


@pytest.mark.parametrize("arguments", [["run"], ["run", "-"]])
def test_the_question_may_come_from_stdin(arguments: list[str]) -> None:
    code, out, _ = finished(*arguments, "--model", "f.gguf", data=b"2+2?\n")
    assert (code, out) == (0, "#1 2+2?\n")
    code, out, _ = finished(*arguments, "--model", "f.gguf", "--raw", data=b"2+2?\n")
    assert (code, out) == (0, "#1 2+2?\n\n"[:-1])  # raw: the line end is part of the prompt


def test_bytes_that_are_not_text_are_refused_with_their_offset() -> None:
    done = finished("run", "--model", "f.gguf", data=b"ab\xffc")
    assert done == (1, "", "tgr-local: stdin is not UTF-8 text: invalid byte at offset 2\n")


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", 2, "the following arguments are required: COMMAND; see tgr-local --help"),
        ("run x --sigma -1", 2, "sigma is -1.0, but must be at least 0"),
        ("run x --sigma much", 2, "sigma is 'much', but must be a number"),
        ("run x --n-candidates 0", 2, "n_candidates is 0, but must be between 1 and 255"),
        ("run x --flash-attn no", 2, "flash_attn is 'no', but must be one of auto, on, off"),
        ("run x --sigm 1", 2, "unknown argument '--sigm'; did you mean --sigma?"),
        ("run x --sigma", 2, "argument --sigma: expected one argument; see tgr-local run --help"),
        (
            "run x --quantum",
            2,
            "unknown argument '--quantum'",
        ),
        ("run -3+4", 2, "unknown argument '-3+4'; a text that begins with - goes after --"),
        ("run x -k 0", 2, "trajectories is 0, but must be at least 1"),
        ("run x --trace /nowhere/t", 1, "/nowhere/t: No such file or directory"),
        (
            "run x --trace-vectors",
            2,
            "trace_vectors needs a trace file; name it with --trace FILE",
        ),
        ("run fail", 1, "the prompt has 999 tokens, but the context has 64"),
        ("trace /nowhere/t", 1, "/nowhere/t: No such file or directory"),
        ("trace", 2, "the following arguments are required: FILE; see tgr-local trace --help"),
    ],
)
def test_an_error_is_one_line(
    double: None, capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str
) -> None:
    model = ["--model", "f.gguf"] if arguments.startswith("run") else []
    assert run(*arguments.split(), *model) == code
    assert tuple(capsys.readouterr()) == ("", f"tgr-local: {message}\n")


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused(capsys: pytest.CaptureFixture[str], question: str) -> None:
    assert run("run", question) == 2
    text = "tgr-local: the question is empty; give it as an argument or on stdin\n"
    assert capsys.readouterr().err == text


def test_an_unknown_method_is_refused_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("run", "x", "--model", "/nowhere/f.gguf", "--method", "tgr-latnet") == 2
    err = capsys.readouterr().err
    assert err.startswith("tgr-local: unknown method 'tgr-latnet'; did you mean tgr-latent")


def test_a_bug_is_one_line_too_unless_debugging(
    double: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Iterator[Any]:
        raise KeyError("x")

    from tgr_local import generation

    monkeypatch.setattr(generation, "stream", broken)
    assert run("run", "x", "--model", "f.gguf") == 1
    text = "tgr-local: KeyError: 'x' (this is a bug; TGR_DEBUG=1 shows where)\n"
    assert capsys.readouterr().err == text
    monkeypatch.setenv("TGR_DEBUG", "1")
    with pytest.raises(KeyError):
        run("run", "x", "--model", "f.gguf")


def test_an_answer_before_an_error_is_printed() -> None:
    done = finished("run", "break", "--model", "f.gguf")
    assert done == (1, "#1\n", "tgr-local: it broke\n")


def test_a_closed_pipe_ends_the_run_quietly() -> None:
    started = process("run", "flood", "--model", "f.gguf")
    assert started.stdout and started.stderr
    started.stdout.read(1)
    started.stdout.close()
    assert (started.wait(timeout=HANG), started.stderr.read()) == (1, b"")
    started.stderr.close()


def interrupted(started: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Ctrl-C as soon as there is output."""
    assert started.stdout
    first = started.stdout.read(1)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=HANG)
    return started.returncode, first + out, err


def test_control_c_keeps_what_is_written_and_exits_130(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    done = interrupted(process("run", "wait", "--model", "f.gguf", "--trace", path))
    assert done == (130, b"#1\n", b"tgr-local: interrupted\n")
    assert run("trace", path) == 0


# ---- doctor and the embedded model ----


def test_doctor_on_the_double(double: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--model", "f.gguf") == 0
    out = capsys.readouterr().out
    assert "2 on CPU; output on CPU" in out
    assert run("doctor", "--model", "f.gguf", "--json") == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"name": "tokenizer", "status": "ok"}.items() <= findings[-2].items()


@pytest.mark.parametrize("why", ["", "there is no program bwrap"])
def test_doctor_names_the_sandbox(
    double: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    from tgr_local.eval import sandbox

    monkeypatch.setattr(sandbox, "obstacle", lambda kind: why if kind == "bwrap" else "")
    assert run("doctor", "--model", "f.gguf") == 0
    line = next(
        line for line in capsys.readouterr().out.split("\n") if line[2:].startswith("sandbox ")
    )
    if why:
        assert line.startswith("! sandbox           WARNING: eval --allow-exec needs bwrap")
        assert f"({why})" in line and "--sandbox limits: only resources are limited" in line
    else:
        assert line.startswith("  sandbox           eval --allow-exec uses bwrap: no network")


def test_doctor_reports_a_broken_part(
    double: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tgr_local import engine

    def refuse(*_: Any) -> Any:
        raise TgrError("the file is damaged")

    monkeypatch.setattr(engine, "Engine", refuse)
    assert run("doctor", "--model", "f.gguf") == 1
    assert "X model             BROKEN: the file is damaged\n" in capsys.readouterr().out


def test_incompatible_parts_are_one_line_and_doctor_still_reports_versions() -> None:
    code = (
        "import importlib.metadata as m, sys; true = m.version\n"
        "m.version = lambda name: '0.1.2' if name == 'llama-cpp-python' else true(name)\n"
        "from tgr_local.cli import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=HANG
        )

    refused = run("run", "q", "--model", "f.gguf")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        "tgr-local: llama-cpp-python is 0.1.2, but tgr-local was built"
    )
    assert refused.stderr.count("\n") == 1
    examined = run("doctor")
    assert examined.returncode == 1 and examined.stderr == ""
    assert "llama-cpp-python  0.1.2\n" in examined.stdout
    assert "X devices           BROKEN: llama-cpp-python is 0.1.2, but" in examined.stdout


@pytest.mark.parametrize(("layers", "loud"), [(-1, True), (0, False)])
def test_an_unused_gpu_is_a_warning(
    double: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    layers: int,
    loud: bool,
) -> None:
    from tgr_local.engine import installation

    monkeypatch.setattr(installation, "gpu_present", lambda: "an NVIDIA GPU")
    assert run("run", "q", "--model", "f.gguf", "--n-gpu-layers", str(layers)) == 0
    err = capsys.readouterr().err
    assert ("tgr-local: warning: this machine has an NVIDIA GPU, but" in err) == loud


def test_the_embedded_model_beside_the_extension_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tgr_local.models.library import embedded_model

    origin = str(tmp_path / "_engine.so")
    spec = importlib.machinery.ModuleSpec("tgr_local._engine", None, origin=origin)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    (tmp_path / "embedded.gguf").touch()
    assert embedded_model() == tmp_path / "embedded.gguf"


def test_without_an_embedded_model_the_way_out_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    assert run("run", "q") == 1
    assert capsys.readouterr().err.endswith("name one with --model FILE\n")


# ---- the real engine ----

SHORT = ("--max-chunks", "2", "--chunk-len", "8", "--rollout-len", "4", "--n-candidates", "3")


def test_a_run_on_a_model_leaves_a_trace(small: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    flags = ["--model", str(small), *SHORT, "--trace", path, "--json"]
    code, out, err = finished("run", "hello", *flags, double=False)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert 0 < result["tokens"] <= 16 and result["counts"]["rollouts"] > 0
    code, out, err = finished("trace", path, double=False)
    assert code == 0 and "candidate" in out and f"{result['tokens']} token" in out


def test_the_same_seed_gives_the_same_answers(small: Path) -> None:
    flags = ["hello", "--model", str(small), *SHORT, "-k", "2", "--json", "--raw"]
    first, second = (json.loads(finished("run", *flags, double=False)[1]) for _ in range(2))
    assert [one["text"] for one in first] == [one["text"] for one in second]


def test_a_conversation_with_a_model(small: Path) -> None:
    lines = b"hello\n/set n_candidates 0\nand again\n/stats\n"
    code, out, err = finished("chat", "--model", str(small), *SHORT, data=lines, double=False)
    assert (code, err) == (1, "tgr-local: n_candidates is 0, but must be between 1 and 255\n")
    assert "last reply: tgr-latent: " in out


def test_control_c_ends_a_model_at_once(small: Path) -> None:
    endless = ["--method", "markov", "--chunk-len", "1000", "--max-chunks", "100000"]
    flags = ["--model", str(small), *endless, "--temperature", "0", "--show-thinking"]
    started = process("run", "hello", *flags, double=False)
    code, _, err = interrupted(started)
    assert (code, err) == (130, b"tgr-local: interrupted\n")


def test_doctor_examines_a_model(small: Path) -> None:
    code, out, err = finished("doctor", "--model", str(small), "--json", double=False)
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert (code, err) == (0, "")
    assert findings["generation"]["status"] == findings["tokenizer"]["status"] == "ok"


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model"])
def test_a_file_that_is_not_a_model_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    code, out, err = finished("run", "hello", "--model", str(path), double=False)
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith("tgr-local: ")
    assert str(path) in err
