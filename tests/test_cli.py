"""The command line: flags, output, exit codes, exact messages; then on the real engine."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from command_line import finished, loaded, process, run
from surroundings import HANG, environment

from tgr_local.commands import cli
from tgr_local.options import model_files, settings
from tgr_local.options.config import ChatConfig, EngineConfig, SearchConfig
from tgr_local.options.resolve import resolve
from tgr_local.system.errors import ModelError

SUMMARY = (
    "tgr-think: 2 chunks, 15 tokens, 44 forward tokens (query 7, rebuild 10, rollouts 10, "
    "chunk 15, delimiter 2), 0.50 s, 30.6 tokens/s, stop, seed 5\n"
)


# ---- output ----


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["models", "models show tgr-mini", "--version", "run --help"])
def test_a_full_disk_is_said_of_stdout(command: str, unbuffered: str):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tgr_local", *command.split()],
            env=environment() | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full, stderr=subprocess.PIPE, timeout=HANG,
        )  # fmt: skip
    assert done.returncode == 1
    where = "" if unbuffered else "stdout: "  # without a buffer the lost text cannot be tried again
    assert done.stderr.decode() == f"tgr-local: {where}No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sh")
@pytest.mark.parametrize("command", ["models --json", "run --help", "--version", "chat --help"])
def test_output_to_a_closed_stdout_is_missed(command: str):
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "tgr_local", *command.split()],
        env=environment() | {"PYTHONUNBUFFERED": ""}, capture_output=True, timeout=HANG,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"tgr-local: stdout: Bad file descriptor\n")


def test_a_missing_file_named_stdout_is_no_error_of_stdout(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert run("trace", "stdout") == 1
    os.write(1, b"still open")
    said = "tgr-local: stdout: No such file or directory\n"
    assert capfd.readouterr() == ("still open", said)


# ---- flags ----


@pytest.mark.parametrize("config_type", [EngineConfig, SearchConfig, ChatConfig])
def test_every_field_is_a_flag_of_its_name(config_type: Any):
    def value(*words: str) -> Any:
        args = cli.arguments(["chat", *words])
        assert args.sources == {spec.name: flag}
        configs: dict[Any, Any] = {EngineConfig: args.engine, ChatConfig: args.chat}
        values = vars(configs[config_type]) if config_type in configs else args.user_options
        return values[spec.name]

    for spec in dataclasses.fields(config_type):
        flag = "--" + spec.name.replace("_", "-")
        if isinstance(spec.default, bool):
            assert value(flag) is True and value(flag.replace("--", "--no-", 1)) is False
        else:
            many = spec.default if isinstance(spec.default, tuple) else (str(spec.default),)
            words = [word for text in many or ("1",) for word in (flag, text or "1")]
            assert value(*words) == spec.default or not any(many)


def test_one_word_names_no_breaker():
    words = cli.arguments(["chat", "--dry-sequence-breakers", "none"]).user_options
    assert SearchConfig(**words).dry_sequence_breakers == ()


def test_help_gives_meaning_default_and_bounds(capsys):
    assert run("run", "--help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--sigma X proposal radius (σ) (default: 0.05; at least 0)" in text
    assert "--n-mc N rollouts for each candidate (N_MC) (default: 1; 1 to 64)" in text
    assert "--use-mmap, --no-use-mmap" in text and "(default: on)" in text


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_help_shows_the_everyday_flags_first(capsys, command: str):
    assert run(command, "--help") == 0
    short = capsys.readouterr().out
    assert run(command, "--help-all") == 0
    full = capsys.readouterr().out
    everyday = (" -m", " --model", " -n", " --max-tokens", " --temperature", " --method", " -ngl")
    assert all(name in short and name in full for name in everyday)
    assert "--sigma" not in short and "--sigma" in full
    n_more = int(re.findall(r"(\d+) more options: tgr-local \w+ --help-all", short)[0])
    flags_of = [len(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))) for text in (short, full)]
    assert n_more > 50 and flags_of[1] - flags_of[0] >= n_more


def test_short_flags_are_those_of_llama_cpp():
    words = "run q -m x -c 512 -n 9 -t 2 -ngl 3 -sys brief"
    args = cli.arguments(words.split())
    assert (args.model, args.system, args.user_options) == ("x", "brief", {"max_tokens": 9})
    assert args.engine == EngineConfig(n_ctx=512, n_threads=2, n_gpu_layers=3)
    assert cli.arguments(["run", "q", "-c4096", "-n5"]).engine.n_ctx == 4096


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        *((theirs, f"did you mean {ours}?") for theirs, ours in (
            ("--ctx-size", "--n-ctx"), ("--temp", "--temperature"), ("-s", "--seed"),
            ("-fa", "--flash-attn"), ("-b", "--n-batch"), ("-ub", "--n-ubatch"),
            ("--mlock", "--use-mlock"), ("-ctk", "--type-k"), ("-tb", "--n-threads"),
            ("-j", "--json-schema"), ("-mg", "--device"), ("-dev", "--device"),
            ("--think", "--thinking"),
        )),
        ("--quantum", "tgr-local run --help-all has all flags"),
        ("-p", 'the question needs no flag: tgr-local run "..."'),
        *((one, "tgr-local run answers one question and ends; --raw leaves the chat template out")
          for one in ("-st", "-no-cnv")),
        *((one, "tgr-local chat holds a conversation") for one in ("-i", "-cnv")),
        ("-hf", "download the model with tgr-local models pull OWNER/REPO:QUANTIZATION, then name "
         "it with -m"),
        ("--color", "a terminal gets colours, unless NO_COLOR=1 is set; leave it out"),
        ("--no-mmap", "it is --no-use-mmap here"),
        ("--context-shift", "--when-full reset goes on where the context is full"),
        ("--no-warmup", "it has no effect here; leave it out"),
        ("--ignore-eos", "it is not supported; leave it out"),
    ],
)  # fmt: skip
def test_a_flag_of_llama_cpp_gets_its_name_here_or_what_to_do(capsys, flag: str, hint: str):
    for words in ([f"{flag}=1"], [flag, "1"]):
        assert run("run", "x", *words) == 2
        assert capsys.readouterr().err == f"tgr-local: unknown argument '{words[0]}'; {hint}\n"


def test_an_answer_follows_a_schema_or_a_grammar(tmp_path, capsys):
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    (file := tmp_path / "schema.json").write_text(json.dumps(schema))
    (grammar := tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"')
    for given in (str(file), json.dumps(schema)):
        assert run("run", "What is 2+3?", "--json-schema", given, "--method", "base") == 0
        assert isinstance(json.loads(capsys.readouterr().out)["sum"], int)
    assert run("run", "What is 2+3?", "--grammar-file", str(grammar), "--method", "base") == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")
    assert run("run", "What is 2+3?", "--grammar-file", str(file)) == 2
    assert "the grammar does not parse" in capsys.readouterr().err


def test_no_limit_of_tokens_is_what_the_model_was_trained_for():
    metadata = {"general.architecture": "a", "a.context_length": "1000"}
    for given in (-1, -2):
        config = resolve(metadata, {"max_tokens": given, "chunk_len": 64, "max_chunks": 2}).config
        assert config.token_limit == config.max_tokens == 1000 and config.max_chunks == 16
    assert resolve({}, {"max_tokens": -1}).config == resolve({}, {"max_tokens": 0}).config
    assert SearchConfig(max_tokens=-1).token_limit == SearchConfig().token_limit


def test_texts_to_stop_at_may_be_several():
    words = ["--stop", "a, b", "--stop", "c", "--tensor-split", "3,1"]
    args = cli.arguments(["run", "q", *words])
    assert args.user_options == {"stop": ("a, b", "c")}
    assert args.engine == EngineConfig(tensor_split=(3.0, 1.0))


def test_the_first_prompt_waits_for_nothing_that_it_does_not_need():
    # everything up to the prompt, and the prompt itself
    start = (
        "from tgr_local.commands.cli import main; from tgr_local.chat import terminal\n"
        "terminal.run = lambda conversation, start: terminal.Terminal(conversation) and 0\n"
        "sys.stdin.isatty = sys.stdout.isatty = lambda: True\n"
        "main(['chat'])"
    )
    found = loaded(start)
    assert {"prompt_toolkit", "tgr_local._engine"} <= found
    late = {"llama_cpp", "rich", "huggingface_hub", "fastapi", "pydantic", "gguf", "matplotlib"}
    assert not found & late


# ---- output ----


def test_run_prints_the_answer_and_a_summary(double: None, capsys):
    assert run("run", "2+2?", "--model", "f.gguf", "--seed", "5") == 0
    line = "15 tokens, 0.5 s, 31 tokens/s, seed 5\n"
    assert tuple(capsys.readouterr()) == ("#1 2+2?\n", line)
    assert run("run", "2+2?", "--model", "f.gguf", "--seed", "5", "--stats") == 0
    assert tuple(capsys.readouterr()) == ("#1 2+2?\n", SUMMARY)


def test_run_prints_the_thinking_on_request(double: None, capsys):
    assert run("run", "2+2?", "--model", "f.gguf", "--show-thinking") == 0
    assert capsys.readouterr().out == "hm, 2+2?\n\n#1 2+2?\n"


def test_several_trajectories_are_numbered(double: None, capsys):
    assert run("run", "2+2?", "--model", "f.gguf", "-k", "2", "--seed", "5") == 0
    out, err = capsys.readouterr()
    assert out == "[1] #1 2+2?\n[2] #1 2+2?\n"
    assert err == "2 replies, 30 tokens, 0.5 s, 61 tokens/s, seeds from 5\n"
    assert run("run", "2+2?", "--model", "f.gguf", "-k", "2", "--seed", "5", "--stats") == 0
    err = capsys.readouterr().err
    assert err.startswith("tgr-think x 2: 4 chunks, 30 tokens, 88 forward tokens")
    assert err.endswith("stop x 2, seeds from 5\n")


def test_json_has_everything_that_a_result_depends_on(double: None, capsys):
    assert run("run", "2+2?", "--model", "f.gguf", "--json", "--seed", "5") == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err == ""
    kinds = {"query": 7, "rebuild": 10, "rollouts": 10, "chunk": 15, "delimiter": 2}
    kinds |= {"guard": 0, "calibration": 0, "discarded": 0, "reused": 0, "refused": 0, "total": 44}
    assert result.pop("versions").keys() - {"llama-cpp-python"} == {"tgr-local", "python", "numpy"}
    assert result.pop("config").keys() == {spec.name for spec in dataclasses.fields(SearchConfig)}
    assert result.pop("engine").keys() == EngineConfig.__dataclass_fields__.keys()
    assert result == {
        "text": "#1 2+2?",
        "thinking": "hm, 2+2?",
        "finish": "stop",
        "tokens": 15,
        "counts": kinds,
        "seconds": 0.5,
        "limit": None,
        "closed_by": None,
        "tokens_per_second": 15 / 0.49,
        "chunks": 2,
        "plain_boundaries": 0,
        "figures": {},
        "method": "tgr-think",
        "seed": 5,
        "prompt": "<user>2+2?",
        "prompt_tokens": 10,
        "model": {"path": "f.gguf", "sha256": "ab" * 32, "description": "fake 1B"},
    }


def test_json_of_several_trajectories_is_a_list_with_their_seeds(double: None, capsys):
    assert run("run", "2+2?", "--model", "f.gguf", "--json", "-k", "3", "--seed", "5") == 0
    results = json.loads(capsys.readouterr().out)
    assert [(one["seed"], one["config"]["seed"]) for one in results] == [(5, 5), (6, 6), (7, 7)]


@pytest.mark.parametrize(("k", "vectors"), [("1", False), ("2", True)])
def test_a_trace_is_written_and_shown(double: None, capsys, tmp_path, k: str, vectors: bool):
    path = str(tmp_path / "t")
    flags = ["--trace-vectors"] if vectors else []
    assert run("run", "2+2?", "--model", "f.gguf", "-k", k, "--trace", path, *flags) == 0
    capsys.readouterr()
    assert run("trace", path) == 0
    out = capsys.readouterr().out
    assert out.count("candidate 1 won") == 2 * int(k) and out.count("stop after 2 chunks") == int(k)
    assert ('"float32"' in (tmp_path / "t").read_text()) == vectors


def test_the_version(capsys):
    from tgr_local import __version__

    assert run("--version") == 0
    assert capsys.readouterr().out == f"tgr-local {__version__}\n"


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ("", False),
        ("-c 128", False),
        ("-c 129", True),
        ("-c 256 -k 2", False),
        ("-c 257 -k 2", True),
    ],
)
def test_more_cells_than_a_text_can_have_are_a_warning(
    double: None, capsys, flags: str, warned: bool
):
    assert run("run", "q", "--model", "f.gguf", *flags.split()) == 0  # trained for 128 tokens
    found = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    said = (
        f"tgr-local: warning: n_ctx is {flags[3:6]}, but the model was trained for 128 tokens and"
    )
    assert len(found) == warned and all(line.startswith(said) for line in found)


# ---- stdin ----


@pytest.fixture
def piped(monkeypatch, capsys, double: None) -> Callable[..., tuple[int, str, str]]:
    """`piped(b"2+2?", "run")`: exit code, stdout and stderr of a command with this on stdin."""

    def ask(data: bytes, *arguments: str) -> tuple[int, str, str]:
        read_end, write_end = os.pipe()
        os.write(write_end, data)
        os.close(write_end)
        with os.fdopen(read_end) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            return run(*arguments, "--model", "f.gguf"), *capsys.readouterr()

    return ask


def test_the_question_may_come_from_stdin(piped: Any):
    assert finished("run", "--model", "f.gguf", data=b"2+2?\n")[:2] == (0, "#1 2+2?\n")
    assert piped(b"2+2?\n", "run", "-")[:2] == (0, "#1 2+2?\n")
    assert piped(b"2+2?\n", "run", "--raw")[:2] == (0, "#1 2+2?\n")  # the line end is read too


def test_files_stdin_and_the_argument_are_one_question(piped: Any, tmp_path):
    (tmp_path / "a").write_text("first\n\n")
    (tmp_path / "b").write_text("second")
    files = ["-f", str(tmp_path / "a"), "--file", str(tmp_path / "b")]
    code, out, _ = piped(b"3\n4\n", "run", "sum these", *files)
    assert (code, out) == (0, "#1 first\n\nsecond\n\n3\n4\n\nsum these\n")
    _, out, said = piped(b"3\n", "run", "sum these")
    assert out == "#1 3\n\nsum these\n"
    assert "tgr-local: 2 characters from stdin come before the question; < /dev/null" in said
    _, out, said = piped(b"", "run", "alone")
    assert out == "#1 alone\n" and "stdin" not in said
    assert piped(b"", "run", *files)[1] == "#1 first\n\nsecond\n"
    raw = piped(b"x\n", "run", "end", "--raw", *files)[1]
    assert raw == "#1 first\n\n\n\nsecond\n\nx\n\n\nend\n"


def test_dev_null_is_no_text():
    started = process("run", "2+2?", "--model", "f.gguf")  # its stdin
    out, _ = started.communicate(timeout=HANG)
    assert out == b"#1 2+2?\n"


def test_the_system_prompt_is_a_message(capsys, double: None):
    assert run("run", "2+2?", "--model", "f.gguf", "--system", "be brief", "--json") == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "<user>be brief|2+2?"
    assert run("run", "2+2?", "--model", "f.gguf", "-sys", "x", "--raw") == 2
    err = capsys.readouterr().err
    assert err == "tgr-local: raw text has no system prompt; leave out --system, or --raw\n"


def test_a_file_that_is_too_long_is_refused(capsys, double: None, tmp_path):
    path = tmp_path / "long"
    path.touch()
    os.truncate(path, (16 << 20) + 1)
    assert run("run", "x", "--model", "f.gguf", "-f", str(path)) == 2
    assert "has 16777217 bytes, but may have 16777216; shorten it" in capsys.readouterr().err


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
        ("run x --min-gap=0", 2, "--min-gap has left the search; remove it"),
        ("run x --no-common-noise", 2, "--no-common-noise has left the search; remove it"),
        ("run x --draft-model small", 2, "--draft-model has left the engine; remove it"),
        ("serve --draft-tokens=4", 2, "--draft-tokens has left the engine; remove it"),
        ("serve --slot-save-path=x", 2, "--slot-save-path has left the server; remove it"),
        ("run x --sigma", 2, "argument --sigma: expected one argument; see tgr-local run --help"),
        (
            "run x --quantum",
            2,
            "unknown argument '--quantum'; tgr-local run --help-all has all flags",
        ),
        ("run -3+4", 2, "unknown argument '-3+4'; a text that begins with - goes after --"),
        ("run x -k 0", 2, "replies is 0, but must be between 1 and 256"),
        (
            "run x -k 100000",
            2,
            "replies is 100000, but must be between 1 and 256; run it again for more",
        ),
        ("run x -n -3", 2, "max_tokens is -3, but must be between -2 and 2147483647"),
        (
            "run x --json-schema {",
            2,
            "the JSON schema is not JSON: Expecting property name "
            "enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (
            "run x --json-schema [" + "9" * 4301 + "]",
            2,
            "the JSON schema is not JSON: it has a number of more than 4300 digits",
        ),
        (
            "run x --json-schema [1]",
            2,
            "the JSON schema cannot be followed: it is [1], but must be an object, true or false",
        ),
        ("run x --json-schema nosuch.json", 1, "nosuch.json: No such file or directory"),
        ("run x --grammar-file nosuch", 1, "nosuch: No such file or directory"),
        (
            "run x --json-schema {} --grammar a",
            2,
            "--json-schema and --grammar exclude each other; leave one out",
        ),
        ("run x --trace /nowhere/t", 1, "/nowhere/t: No such file or directory"),
        ("run x --check-seconds 5", 2, "check_seconds needs a check; name it with --check COMMAND"),
        ("run x --trace-vectors", 2, "trace_vectors needs a trace file; name it with --trace FILE"),
        ("--verison", 2, "unknown argument '--verison'; did you mean --version?"),
        ("--no-such=1", 2, "unknown argument '--no-such=1'; tgr-local --help has all flags"),
        ("--verison run x", 2, "unknown argument '--verison'; did you mean --version?"),
        (
            "--seed=4 run x",
            2,
            "unknown argument '--seed=4'; flags stand behind the command: tgr-local COMMAND --seed",
        ),
        (
            "eval --limit 3 run",
            2,
            "unknown argument '--limit'; flags stand behind the command: "
            "tgr-local eval COMMAND --limit",
        ),
        (
            "serve -m ./gone.gguf",
            1,
            "there is no file gone.gguf; correct the path, or download the model",
        ),
        ("run fail", 1, "the prompt has 999 tokens, but the context has 64"),
        ("trace /nowhere/t", 1, "/nowhere/t: No such file or directory"),
        ("trace", 2, "the following arguments are required: FILE; see tgr-local trace --help"),
    ],
)
def test_an_error_is_one_line(double: None, capsys, arguments: str, code: int, message: str):
    model = ["--model", "f.gguf"] if arguments.startswith("run") else []
    assert run(*arguments.split(), *model) == code
    assert tuple(capsys.readouterr()) == ("", f"tgr-local: {message}\n")


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused(capsys, question: str):
    assert run("run", question) == 2
    text = "tgr-local: the question is empty; give it as an argument or on stdin\n"
    assert capsys.readouterr().err == text


def test_an_unknown_method_is_refused_before_the_model_is_loaded(capsys):
    assert run("run", "x", "--model", "/nowhere/f.gguf", "--method", "tgr-latnet") == 2
    err = capsys.readouterr().err
    assert err.startswith("tgr-local: unknown method 'tgr-latnet'; did you mean tgr-latent")


def test_a_bug_is_one_line_too_unless_debugging(double: None, capsys, monkeypatch):
    from tgr_local import generation

    monkeypatch.setattr(generation, "stream", Mock(side_effect=KeyError("x")))
    assert run("run", "x", "--model", "f.gguf") == 1
    text = "tgr-local: KeyError: 'x' (this is a bug; TGR_DEBUG=1 shows where)\n"
    assert capsys.readouterr().err == text
    monkeypatch.setenv("TGR_DEBUG", "1")
    with pytest.raises(KeyError):
        run("run", "x", "--model", "f.gguf")


def test_an_answer_before_an_error_is_printed():
    done = finished("run", "break", "--model", "f.gguf")
    assert done == (1, "#1\n", "tgr-local: it broke\n")


def test_a_closed_pipe_ends_the_run_quietly():
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


def test_control_c_keeps_what_is_written_and_exits_130(tmp_path):
    path = str(tmp_path / "t")
    done = interrupted(process("run", "wait", "--model", "f.gguf", "--trace", path))
    assert done == (130, b"#1\n", b"tgr-local: interrupted\n")
    assert run("trace", path) == 0


def test_control_c_exits_130_where_it_ends_the_reader_of_the_pipe_too():
    started = process("run", "wait", "--model", "f.gguf")
    assert started.stdout and started.stderr
    assert started.stdout.read(2) == b"#1"
    started.stdout.close()
    started.send_signal(signal.SIGINT)
    assert (started.wait(timeout=HANG), started.stderr.read()) == (130, b"tgr-local: interrupted\n")
    started.stderr.close()


ENTRY = """
import signal, sys
from tgr_local import __main__ as program
from tgr_local.commands import cli
def command():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return 130
    return 0
signal.signal(signal.SIGINT, {handler})
cli.main = command
sys.exit(program.main())
"""


@pytest.mark.parametrize(
    ("handler", "code"), [("signal.default_int_handler", 130), ("signal.SIG_IGN", 0)]
)
def test_a_command_gets_control_c_unless_it_is_ignored(handler: str, code: int):
    start = [sys.executable, "-c", ENTRY.format(handler=handler)]
    assert subprocess.run(start, timeout=HANG, env=environment()).returncode == code


@pytest.mark.parametrize("when", ["it begins", "it ends"])
def test_control_c_shows_no_traceback_while_the_program(when: str):
    start = (
        "import atexit, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tgr_local import __main__ as program\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tgr_local.commands.cli': signal.raise_signal(signal.SIGINT)\n"
        f"if {when == 'it begins'}: sys.meta_path.insert(0, Finder())\n"
        "else: atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "sys.argv[1:] = ['help-of-nothing']; sys.exit(program.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, timeout=HANG, env=environment()
    )
    assert done.returncode == -signal.SIGINT and b"Traceback" not in done.stderr


# ---- names of models ----


@pytest.mark.parametrize(
    ("name", "pulled"),
    [
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
        ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"),
        ("qwen3:latest", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen2.5", "Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"),
        ("llama3:8b-instruct-q4_0", "bartowski/Meta-Llama-3-8B-Instruct-GGUF:Q4_K_M"),
        ("phi4", "bartowski/phi-4-GGUF:Q4_K_M"),
        ("qwen3:5b", "OWNER/REPO:QUANTIZATION, such as Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("huggingface.co/Qwen/Qwen3-4B-GGUF/tree/main", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("https://hf.co/a/b-GGUF/blob/main/q/c.gguf?download=true", "a/b-GGUF/q/c.gguf"),
        ("nosuch:7b", "OWNER/REPO:QUANTIZATION, such as Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("nosuch", "OWNER/REPO:QUANTIZATION, such as Qwen/Qwen3-4B-GGUF:Q4_K_M"),
    ],
)
def test_a_name_that_is_no_file_says_what_to_type(capsys, name: str, pulled: str):
    assert run("run", "x", "-m", name) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"tgr-local: there is no model {name}") and err.count("\n") == 1
    assert err.endswith(f" from Hugging Face, type: tgr-local models pull {pulled}\n")


def test_a_downloaded_model_has_the_name_that_it_was_pulled_by(small: Path, home: Path):
    folder = home / "data/tgr-local/models/Owner/Repo-GGUF"
    folder.mkdir(parents=True)
    for kind in ("Q8_0", "Q4_K_M"):
        (folder / f"repo-{kind}.gguf").symlink_to(small)
    assert model_files.find("Owner/Repo-GGUF:q4_k_m").name == "repo-Q4_K_M.gguf"
    with pytest.raises(ModelError, match="names several models: repo-Q4_K_M, repo-Q8_0"):
        model_files.find("Owner/Repo-GGUF")
    with pytest.raises(ModelError, match="models pull Owner/Repo-GGUF:Q2_K"):
        model_files.find("Owner/Repo-GGUF:Q2_K")
    assert model_files.find("./Owner/x") == Path("Owner/x")


def test_all_commands_have_one_folder_of_models(
    small: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By variable, by the user's file, and for the server by a flag."""
    mine = tmp_path / "my models"
    mine.mkdir()
    (mine / "special.gguf").symlink_to(small)
    assert run("doctor", "-m", "special") == 1
    monkeypatch.setenv("TGR_MODELS_DIR", str(mine))
    capsys.readouterr()
    assert model_files.folder() == mine and model_files.find("special") == mine / "special.gguf"
    assert run("models") == 0 and "special  " in capsys.readouterr().out
    assert run("run", "x", "-m", "special", "--show-config") == 0
    assert str(mine / "special.gguf") in capsys.readouterr().out
    monkeypatch.delenv("TGR_MODELS_DIR")
    assert model_files.folder() == home / "data/tgr-local/models"
    settings.user_file().parent.mkdir(parents=True)
    settings.user_file().write_text(f'models_dir = "{mine}"\n', encoding="utf-8")
    assert model_files.folder() == mine
    settings.user_file().unlink()
    assert run("serve", "-m", "special", "--models-dir", str(mine), "--show-config") == 0
    assert str(mine / "special.gguf") in capsys.readouterr().out
    assert run("run", "x", "-m", "special", "--show-config") == 1


# ---- the real engine ----

SHORT = ("--max-chunks", "2", "--chunk-len", "8", "--rollout-len", "4", "--n-candidates", "3")


def test_a_run_on_a_model_leaves_a_trace(small: Path, tmp_path):
    path = str(tmp_path / "t")
    flags = ["--model", str(small), *SHORT, "--method", "tgr-latent", "--trace", path, "--json"]
    code, out, err = finished("run", "hello", *flags, double=False)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert 0 < result["tokens"] <= 16 and result["counts"]["rollouts"] > 0
    code, out, err = finished("trace", path, double=False)
    assert code == 0 and "candidate" in out and f"{result['tokens']} token" in out


def test_the_same_seed_gives_the_same_answers(small: Path):
    flags = ["hello", "--model", str(small), *SHORT, "-k", "2", "--json", "--raw", "--seed", "42"]
    first, second = (json.loads(finished("run", *flags, double=False)[1]) for _ in range(2))
    assert [one["text"] for one in first] == [one["text"] for one in second]


def test_a_conversation_with_a_model(small: Path):
    lines = b"hello\n/set n_candidates 0\nand again\n/stats\n"
    code, out, err = finished("chat", "--model", str(small), *SHORT, data=lines, double=False)
    assert (code, err) == (1, "tgr-local: n_candidates is 0, but must be between 1 and 255\n")
    assert "last reply: tgr-think: " in out


def test_control_c_ends_a_model_at_once(small: Path):
    endless = ["--method", "markov", "--chunk-len", "1000", "--max-chunks", "100000"]
    flags = ["--model", str(small), *endless, "--temperature", "0", "--show-thinking"]
    started = process("run", "hello", *flags, double=False)
    code, _, err = interrupted(started)
    assert (code, err) == (130, b"tgr-local: interrupted\n")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model"])
def test_a_file_that_is_not_a_model_is_one_line(tmp_path, content: bytes):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    code, out, err = finished("run", "hello", "--model", str(path), double=False)
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith("tgr-local: ")
    assert str(path) in err


def test_an_address_of_ollama_is_the_name_in_it(capsys):
    assert run("run", "x", "-m", "https://ollama.com/library/llama3.2:1b") == 1
    err = capsys.readouterr().err
    assert err.startswith("tgr-local: there is no model llama3.2:1b; ")
    assert err.endswith("models pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0\n")
