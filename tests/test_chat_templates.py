"""The chat template: that of the file, one that the user names, or a plain one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_edit import BOOL, Gguf

from tgr_local import generation
from tgr_local.apis.requests import chat_request
from tgr_local.commands import cli
from tgr_local.engine import Engine
from tgr_local.options import model_files
from tgr_local.options.config import EngineConfig
from tgr_local.options.resolve import resolve
from tgr_local.system.errors import ModelError

MESSAGES = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "3+3?"},
]
SYSTEM = {"role": "system", "content": "Be brief."}
Use = Callable[[str], Engine]


@pytest.fixture
def base_model(model: Callable[..., Path], tmp_path) -> Path:
    """A model file without a chat template."""
    file = Gguf.parse(model().read_bytes())
    del file.metadata[b"tokenizer.chat_template"]
    path = tmp_path / "base.gguf"
    path.write_bytes(file.to_bytes())
    return path


def test_a_base_model_gets_a_plain_template(base_model: Path, load: Any):
    engine = load(base_model)
    plain = "User: 2+2?\nAssistant: 4\nUser: 3+3?\nAssistant:"
    preface = (
        "A chat between a user and an assistant. The assistant gives correct, helpful answers."
    )
    assert engine.chat_prompt(MESSAGES) == f"{preface}\n\n{plain}"
    assert engine.chat_prompt([SYSTEM, *MESSAGES]) == f"Be brief.\n\n{plain}"
    assert resolve(engine.metadata).config.stop == ("\nUser:",)
    assert resolve(engine.metadata, {"stop": ("x",)}).config.stop == ("x",)
    assert engine.template_warning.startswith("base.gguf has no chat template")


def test_a_stop_text_ends_the_turn(base_model: Path, load: Any):
    engine = load(base_model)
    config = resolve(engine.metadata, {"max_tokens": 4}).config
    reply = generation.generate(engine, MESSAGES, config, method="base")
    assert reply.n_tokens <= 4 and "User:" not in reply.text


def test_a_template_is_named_or_in_a_file(model: Callable[..., Path], load: Any, tmp_path):
    engine = load(model(), chat_template="chatml")
    assert engine.chat_prompt([SYSTEM, *MESSAGES[:1]]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert engine.template_warning == ""
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[-1].content }}!")
    assert load(model(), chat_template=str(path)).chat_prompt(MESSAGES) == "3+3?!"
    assert load(model(), chat_template="plain").chat_prompt(MESSAGES).endswith("Assistant:")
    of_file = model_files.card(model()).metadata["tokenizer.chat_template"]
    assert load(model()).chat_template == of_file


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, ValueError, "but must be plain or chatml, or a file"),
        (b"a\xff", ModelError, "is not UTF-8 text: byte 1"),
        (b" \n", ModelError, "is empty; write a template in it, or name another file"),
        (b"x" * ((1 << 20) + 1), ModelError, "more than 1048576 bytes, too many for a template"),
    ],
)
def test_a_bad_template_is_refused_before_the_model_is_loaded(
    tmp_path, content: bytes | None, error: type[Exception], message: str
):
    path = tmp_path / "mine"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        Engine("/nowhere/f.gguf", EngineConfig(chat_template=str(path)))


def test_the_command_line_says_it_once(base_model: Path, capsys):
    assert cli.main(["run", "hello", "-m", str(base_model), "-n", "4", "--method", "base"]) in (
        0,
        1,
    )
    err = capsys.readouterr().err
    assert err.count("has no chat template") == 1 and "--chat-template names another" in err


ALTERNATING = """{{ bos_token }}{% for m in messages %}
{%- if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('must alternate') }}{% endif %}
{{- m.role + ': ' + m.content + '\n' }}{% endfor %}assistant:"""


def test_messages_that_a_template_refuses_are_put_together(engine: Engine, use_template: Use):
    """Two of the user in a row, and later ones of the system, in chat as in the other APIs."""
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    late = [*two[:1], {"role": "system", "content": "s"}]
    request = chat_request(engine, {"messages": two})  # a template that takes them gets both
    assert engine.detokenize(request.prompts[0], special=True).count(b"user\n") == 2
    use_template(ALTERNATING)
    for messages, expected in ((two, "user: a\n\nb"), (late, "user: a\n\ns")):
        request = chat_request(engine, {"messages": messages})
        text = engine.detokenize(request.prompts[0], special=True).decode()
        assert text.endswith(f"{expected}\nassistant:")
        config = generation.advised(engine)
        tokens = generation.query_tokens(engine, messages, config)
        assert tokens == list(request.prompts[0])
    use_template("{{ raise_exception('never') }}")
    with pytest.raises(ModelError, match="never"):
        chat_request(engine, {"messages": two})


STRICT = """{{ bos_token }}{% set ns = namespace(turn=0, asked=false) %}{% for m in messages %}
{%- if m.role == 'user' %}{% set ns.asked = true %}{% endif %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('late system') }}{% endif %}
{%- if m.role in ('user', 'assistant') and not m.tool_calls %}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}
{%- set ns.turn = ns.turn + 1 %}{% endif %}
{%- if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}
{%- for call in m.tool_calls or [] %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}
{{- 'call ' + call.id + ' ' + call.function.name }}
{%- for name, value in call.function.arguments | items %}{{ ' ' + name + '=' + value | string }}
{%- endfor %}{{ '\n' }}{% endfor %}
{%- if m.role == 'tool' %}{{ 'result ' + m.tool_call_id + ' ' + m.content + '\n' }}
{%- elif m.content or not m.tool_calls %}{{ m.role + ': ' + m.content + '\n' }}{% endif %}
{%- endfor %}{% if not ns.asked %}{{ raise_exception('no user') }}{% endif %}assistant:"""
"""Wants what templates of Mistral, Llama 3.1 and Qwen3.5 want together."""
DEAF = """{% if messages[0].role == 'system' %}{{ 'system: ' + messages[0].content + '\n' }}
{%- endif %}{% for m in messages %}{% if m.role in ('user', 'assistant') %}
{{- m.role + ': ' + m.content + '\n' }}{% endif %}{% endfor %}assistant:"""
"""Leaves later messages of the system out, as that of gpt-oss does, and calls, as many do."""


def _called(*arguments: str) -> dict[str, Any]:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "f", "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(i: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{i}", "content": text}


def _lines(engine: Engine, messages: list[dict[str, Any]]) -> list[str]:
    request = chat_request(engine, {"messages": messages})
    text = engine.detokenize(request.prompts[0], special=True).decode()
    return text.removeprefix("<|endoftext|>").splitlines()


@pytest.mark.parametrize(
    ("history", "lines"),
    [
        (["S", "Q"], ["system: S", "user: Q"]),
        (["S"], ["user: S"]),
        (["A", "Q"], ["user: ", "assistant: A", "user: Q"]),
        (["S", "A", "A"], ["system: S", "user: ", "assistant: A", "user: "]),
        (["Q", "A", "A", "Q"], ["user: Q", "assistant: A", "", "A", "user: Q"]),
        (
            ["Q", _called('{"a": "x"}', '{"a": "y"}'), _result(0, "r"), _result(1, "s")],
            ["user: Q", "call 0 f a=x", "result 0 r", "call 1 f a=y", "result 1 s"],
        ),
        (
            ["Q", _called('{"a": "x"}'), _result(0, "r"), "Q"],
            ["user: Q", "call 0 f a=x", "result 0 r", "assistant: ", "user: Q"],
        ),
        (["Q", _called("{}"), "Q"], ["user: Q", "call 0 f", "assistant: ", "user: Q"]),
        (
            ["S", _called('{"a": "x"}'), _result(0, "r")],
            ["system: S", "user: ", "call 0 f a=x", "result 0 r"],
        ),
        (
            ["Q", _called("[1]"), _result(0, "r")],
            ["user: Q", "call 0 f arguments=[1]", "result 0 r"],
        ),
        (["Q", _called("null"), _result(0, "r")], ["user: Q", "call 0 f", "result 0 r"]),
    ],
)
def test_a_strict_template_gets_any_history(
    use_template: Use, history: list[Any], lines: list[str]
):
    roles = {"S": "system", "Q": "user", "A": "assistant"}
    messages = [
        {"role": roles[one], "content": one} if isinstance(one, str) else one for one in history
    ]
    got = _lines(use_template(STRICT), messages)
    ids = dict.fromkeys(re.findall("(?:call|result) ([0-9a-f]{9}) ", "\n".join(got)))
    for i, name in enumerate(ids):
        got = [line.replace(name, str(i)) for line in got]
    end = "assistant:A" if history[-1] == "A" else "assistant:"  # which the reply goes on with
    assert got == [*lines, end]


def test_what_a_template_leaves_out_reaches_the_model(use_template: Use):
    """Later messages of the system, and calls of a request that names no tools any more."""
    late = [
        {"role": "system", "content": "first"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
        {"role": "system", "content": "second"},
        {"role": "user", "content": "Q"},
    ]
    called = [late[1], _called('{"city": "Orl\\u00e9ans\\n"}'), _result(0, "sunny")]
    old: list[dict[str, Any]] = [
        late[1],
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "sunny"},
    ]
    engine = use_template(DEAF)
    turns = ["user: Q", "assistant: A", "user: second", "", "Q", "assistant:"]
    assert _lines(engine, late) == ["system: first", *turns]
    for history in (called, old):
        text = "\n".join(_lines(engine, history))
        assert '"name": "f"' in text and "<tool_response>\nsunny\n</tool_response>" in text


def test_every_effort_reaches_the_template(use_template: Use):
    engine, budgets = use_template("{{ reasoning_effort }}"), {}
    for effort in ("minimal", "low", "medium", "high", "xhigh", "max"):
        asked = {"messages": MESSAGES[:1], "reasoning_effort": effort}
        request = chat_request(engine, asked)
        assert engine.detokenize(request.prompts[0]).decode() == effort
        budgets[effort] = request.config.thinking_budget
    assert budgets["high"] == budgets["max"]


def test_a_begin_token_that_a_raw_text_has_is_not_added_again(
    model: Callable[..., Path], load: Any, tmp_path
):
    file = Gguf.parse(model().read_bytes())
    file.set("tokenizer.ggml.add_bos_token", True, BOOL)
    (tmp_path / "begins.gguf").write_bytes(file.to_bytes())
    engine = load(tmp_path / "begins.gguf")
    assert engine.tokenize("", add_special=True) == [engine.bos]
    begin = engine.detokenize([engine.bos], special=True).decode()
    config = generation.advised(engine)
    for text in ("hello", f"{begin}hello"):
        tokens = generation.query_tokens(engine, text, config, raw=True)
        assert tokens == [engine.bos, *engine.tokenize("hello")]
    doubled = generation.query_tokens(engine, begin * 2, config, raw=True)
    assert doubled == [engine.bos] * 2  # which the client wants
