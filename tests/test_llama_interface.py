"""`TgrLlama` has what llama-cpp-python's `Llama` has, or says what is instead; programs of its
README."""

from __future__ import annotations

import fnmatch
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from tgr_local import TgrLlama
from tgr_local.apis.llama import LlamaGrammar
from tgr_local.apis.llama_options import ABSENT, ANY, NEUTRAL, ONLY
from tgr_local.apis.validation import RequestError
from tgr_local.options import model_files
from tgr_local.options.config import SearchConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.system.errors import ModelError

SAME = ("tokenize", "detokenize", "embed")


@pytest.fixture(scope="module")
def llama() -> Iterator[TgrLlama]:
    with TgrLlama(method="base", seed=7) as made:
        yield made


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


# ---- the signatures ----


def test_every_option_of_the_class_is_here_and_its_default_is_accepted():
    theirs, ours = parameters(llama_cpp.Llama.__init__), parameters(TgrLlama.__init__)
    assert theirs.keys() - {"kwargs"} <= ours.keys() | NEUTRAL.keys()
    given = {
        name: one.default
        for name, one in theirs.items()
        if one.default is not inspect.Parameter.empty and name not in ("self", "kwargs")
    }
    with TgrLlama(str(embedded_model()), **given) as llama:
        assert llama.seed is None and llama.config is None
        assert llama("2+2=", max_tokens=1)["usage"]["completion_tokens"] == 1
    assert set(ONLY) | set(ANY) == NEUTRAL.keys() | {"pooling_type"}


@pytest.mark.parametrize("name", ONLY)
def test_an_option_that_is_not_supported_says_what_is_instead(name: str):
    with pytest.raises(ValueError, match=f"{name} is 'other', which is not supported: "):
        TgrLlama(**{name: "other"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_split", 3), ("tensor_split", "12"), ("tensor_split", [None]),
        ("kv_overrides", np.zeros(3)), ("n_batch", None), ("n_batch", "x"), ("n_ubatch", None),
        ("n_ctx", "x"), ("lora_path", 3), ("model_path", b"x"), ("model_path", []), ("config", {}),
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_named_with_its_value(name: str, value: Any):
    with pytest.raises(ValueError, match=f"^{name} is {re.escape(repr(value))}, "):
        TgrLlama(**{name: value})
    with pytest.raises(ValueError, match=r"^lora_scale is 'x', but must be a number"):
        TgrLlama(lora_path="a.gguf", lora_scale="x")  # type: ignore[arg-type]


def test_a_parameter_of_another_type_is_named_with_its_value(llama: TgrLlama):
    for name in ("control_vector", "cancel"):
        with pytest.raises(ValueError, match=f"^{name} is 3, but must be of type "):
            llama("a", max_tokens=1, **{name: 3})
    for given in ((None, "*"), ("a/b", 3), ("a/b", "*", None, 3)):
        with pytest.raises(ValueError, match=r"^(repo_id|filename|local_dir) is "):
            TgrLlama.from_pretrained(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SAME)
def test_the_parameters_of_a_method_are_theirs_in_their_order(name: str):
    theirs, ours = parameters(getattr(llama_cpp.Llama, name)), parameters(getattr(TgrLlama, name))
    assert [*ours][: len(theirs)] == [*theirs]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert all(ours[one].kind == positional for one in theirs)


def test_an_unknown_or_repeated_parameter_is_refused_as_python_does(llama: TgrLlama):
    with pytest.raises(TypeError, match=r"^TgrLlama has no option 'nosuch'$"):
        TgrLlama(nosuch=3)
    with pytest.raises(RequestError, match="max_tokns"):
        llama("a", max_tokns=3)  # type: ignore[call-arg]
    complete: Callable[..., Any] = llama
    with pytest.raises(TypeError, match=r"^TgrLlama.create_completion\(\) missing .* 'prompt'$"):
        complete(max_tokens=1)
    with pytest.raises(TypeError, match="multiple values for argument 'max_tokens'"):
        complete("a", None, 3, max_tokens=1)


def test_the_other_methods_take_what_theirs_take():
    assert TgrLlama.__call__ is TgrLlama.create_completion
    for name in ("create_embedding", "from_pretrained", "set_cache", "set_seed", "reset"):
        theirs = parameters(getattr(llama_cpp.Llama, name))
        assert [*theirs.keys() - {"kwargs"}] <= [*parameters(getattr(TgrLlama, name))] or (
            theirs.keys() - {"kwargs"} <= parameters(getattr(TgrLlama, name)).keys()
        )


def test_every_public_name_is_here_or_says_what_is_instead(llama: TgrLlama):
    unlike = {"logits_to_logprobs", "longest_token_prefix", "pooling_type", "model"}
    for name in dir(llama_cpp.Llama):
        if name.startswith("_") or name in unlike:
            continue
        if name in ABSENT:
            with pytest.raises(AttributeError, match=f"TgrLlama has no {name}: "):
                getattr(llama, name)
        else:
            assert hasattr(llama, name), name
    assert not hasattr(llama, "nosuch")


# ---- the programs of the README ----


def test_a_completion_as_the_readme_has_it(llama: TgrLlama):
    prompt = "Q: Name the planets in the solar system? A: "
    output = llama(prompt, max_tokens=32, stop=["Q:", "\n"], echo=True)
    assert output["object"] == "text_completion"
    assert output["choices"][0]["text"].startswith(prompt)
    assert output["usage"]["total_tokens"] > output["usage"]["completion_tokens"]
    by_place = llama(prompt, None, 8, temperature=0.0)
    assert by_place["choices"] == llama(prompt, max_tokens=8, temperature=0.0)["choices"]


def test_a_chat_as_the_readme_has_it(llama: TgrLlama):
    messages = [
        {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
        {"role": "user", "content": "What is 12 + 5?"},
    ]
    assert llama.create_chat_completion(messages, max_tokens=40)["object"] == "chat.completion"
    schema = {
        "type": "object",
        "properties": {"team_name": {"type": "string", "maxLength": 4}},
        "required": ["team_name"],
    }
    made = llama.create_chat_completion(
        messages=messages, temperature=0.7,
        response_format={"type": "json_object", "schema": schema},
    )  # fmt: skip
    content = made["choices"][0]["message"]["content"]
    assert content is not None and "team_name" in json.loads(content)
    parts = llama.create_chat_completion(messages, stream=True, max_tokens=20)
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    again = llama.create_chat_completion(messages, max_tokens=20)
    assert text == (again["choices"][0]["message"]["content"] or "")


def test_functions_as_the_readme_has_them():
    with TgrLlama(method="base", seed=1, chat_format="chatml-function-calling") as llama:
        tool = {
            "type": "function",
            "function": {
                "name": "UserDetail",
                "parameters": {
                    "type": "object",
                    "title": "UserDetail",
                    "properties": {"age": {"title": "Age", "type": "integer", "maximum": 99}},
                    "required": ["age"],
                },
            },
        }
        made = llama.create_chat_completion(
            messages=[{"role": "user", "content": "Extract Jason is 25 years old"}],
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "UserDetail"}},
        )
    call = made["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["name"] == "UserDetail"
    assert isinstance(json.loads(call["function"]["arguments"])["age"], int)


def test_embeddings_as_the_readme_has_them():
    with TgrLlama(embedding=True, pooling_type=1) as llama:
        made = llama.create_embedding(["Hello, world!", "Goodbye, world!"])
        assert [one["index"] for one in made["data"]] == [0, 1]
        assert len(made["data"][0]["embedding"]) == llama.n_embd() == len(llama.embed("Hello"))
        (vectors, count) = llama.embed(["a", "b"], return_count=True)
        assert len(vectors) == 2 and count >= 2


def test_a_grammar_from_each_source(llama: TgrLlama, tmp_path):
    (file := tmp_path / "g.gbnf").write_text('root ::= "yes"')
    schema = json.dumps({"enum": ["yes"]})
    grammars = [
        LlamaGrammar.from_string('root ::= "yes"', verbose=False), LlamaGrammar.from_file(file),
        LlamaGrammar.from_json_schema(schema), llama_cpp.LlamaGrammar.from_string('root ::= "yes"'),
    ]  # fmt: skip
    for grammar in grammars:
        text = llama("2+2=", grammar=grammar)["choices"][0]["text"]
        assert text.strip('" ') == "yes"
    with pytest.raises(ValueError, match="json_schema is not JSON"):
        LlamaGrammar.from_json_schema("{")
    with pytest.raises(ValueError, match="cannot be followed: type is 'foo'"):
        LlamaGrammar.from_json_schema('{"type": "foo"}')
    with pytest.raises(FileNotFoundError):
        LlamaGrammar.from_file(tmp_path / "nosuch")


@pytest.mark.parametrize("name", ["logits_processor", "stopping_criteria"])
def test_functions_for_each_token_are_refused(llama: TgrLlama, name: str):
    for call in (llama, llama.create_chat_completion):
        with pytest.raises(RequestError, match=f"^{name} is not supported, since tokens are drawn"):
            call([], **{name: [len]})  # type: ignore[operator]
    for empty in ([], None, llama_cpp.LogitsProcessorList()):
        assert llama("1", max_tokens=1, **{name: empty})["object"] == "text_completion"


def test_what_does_nothing(llama: TgrLlama):
    assert llama.detokenize([llama.token_nl()]) == b"\n"
    llama.set_cache(llama_cpp.LlamaRAMCache(capacity_bytes=2 << 30))
    llama.reset()
    llama.set_seed(3)
    assert llama("2+2=", max_tokens=1)["tgr"]["seed"] == 3
    llama.set_seed(7)
    with TgrLlama(last_n_tokens_size=8, seed=llama_cpp.LLAMA_DEFAULT_SEED) as other:
        assert other.config == SearchConfig(repeat_last_n=8) and other.seed is None


# ---- from_pretrained ----


def test_a_model_that_was_pulled_is_found_without_the_network(home: Path):
    folder = home / "data/tgr-local/models/Qwen/Qwen2-0.5B-Instruct-GGUF"
    for name, pulled in (
        ("*q8_0.gguf", "Qwen/Qwen2-0.5B-Instruct-GGUF:q8_0"),
        ("a.gguf", "Qwen/Qwen2-0.5B-Instruct-GGUF/a.gguf"),
        (None, "Qwen/Qwen2-0.5B-Instruct-GGUF"),
    ):
        with pytest.raises(ModelError, match=rf"type: tgr-local models pull {pulled}$"):
            TgrLlama.from_pretrained("Qwen/Qwen2-0.5B-Instruct-GGUF", name)
    for name in ("nosuch", "../../etc", ""):
        with pytest.raises(ValueError, match=f"repo_id is '{re.escape(name)}', but must be OWNER/"):
            TgrLlama.from_pretrained(name, "x.gguf")
    folder.mkdir(parents=True)
    (folder / "qwen2-q8_0.gguf").symlink_to(model_files.embedded_model())
    for name in ("*q8_0.gguf", "*Q8_0.gguf", "qwen2-q8_0.gguf", None):
        with TgrLlama.from_pretrained(
            repo_id="Qwen/Qwen2-0.5B-Instruct-GGUF", filename=name, verbose=False, n_ctx=64
        ) as llama:
            assert fnmatch.fnmatch(llama.model_path, "*/qwen2-q8_0.gguf") and llama.n_ctx() == 64
    with TgrLlama.from_pretrained("x/y", "*q8_0.gguf", local_dir=folder) as llama:
        assert llama.n_vocab() > 0
    (folder / "qwen2-q4_0.gguf").symlink_to(model_files.embedded_model())
    with pytest.raises(ModelError, match="names several models of Qwen/Qwen2"):
        TgrLlama.from_pretrained("Qwen/Qwen2-0.5B-Instruct-GGUF", "*.gguf")
