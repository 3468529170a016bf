"""Fill-in-the-middle: the tokens around the gap, and `/infill`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_models
import pytest
from engines import EXACT
from serving import events, served_here

from tgr_local.apis.native import infill_request
from tgr_local.apis.requests import completion_request
from tgr_local.engine import Engine
from tgr_local.options.config import EngineConfig


@pytest.fixture
def coder(tmp_path, monkeypatch, request) -> Path:
    """A model with tokens for fill-in-the-middle, and others that a test names."""
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", *getattr(request, "param", ()))
    monkeypatch.setattr(gguf_models, "CONTROL", (*gguf_models.CONTROL, *marks))
    monkeypatch.setattr(gguf_models, "N_VOCAB", gguf_models.N_VOCAB + len(marks))
    return gguf_models.write_model(tmp_path / "coder.gguf")


def test_infill_puts_its_tokens_around_the_gap(coder: Path):
    with Engine(coder, EngineConfig(**EXACT)) as engine:
        body = {"input_prefix": "a<|im_end|>", "input_suffix": "z", "prompt": "b", "n_predict": 9}
        made = infill_request(engine, body | {"temperature": 0})
        text = engine.detokenize(made.prompts[0], special=True).decode()
        assert text == "<|fim_prefix|>a<|im_end|>b<|fim_suffix|>z<|fim_middle|>"
        assert (made.config.max_tokens, made.config.temperature) == (9, 0)
        plain = engine.tokenize("<|im_end|>", parse_special=False)
        assert len(plain) > 1  # a mark inside the text is only text
        suffix = {"prompt": "a<|im_end|>b", "suffix": "z"}
        same = completion_request(engine, suffix).prompts[0]
        assert same == made.prompts[0]
        extra = infill_request(engine, {"input_extra": [{"text": "other"}]})
        assert engine.detokenize(extra.prompts[0]).decode() == "other\n"


def test_infill_takes_what_editors_send(coder: Path):
    body = {
        "input_prefix": "a", "input_suffix": "z", "prompt": "", "n_predict": 4, "n_indent": 2,
        "input_extra": [{"text": "other", "time": [1, 2], "filename": "b.py"}], "top_k": 40,
        "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1, "id_slot": 0,
        "n_cache_reuse": 256, "dry_multiplier": 0.0, "stop": [], "seed": 1,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_n"],
    }  # fmt: skip
    with served_here(coder, prefix_cells=4096) as server:
        answer = server.client.post("/infill", json=body).json()
        assert answer["content"] and answer["timings/predicted_n"] <= 4
        assert set(answer["tgr"]["ignored"]) == {
            "samplers", "cache_prompt", "id_slot", "t_max_prompt_ms", "n_cache_reuse",
        }  # fmt: skip
        warm = body | {"n_predict": 0, "samplers": [], "response_fields": None}
        answer = server.client.post("/infill", json=warm).json()
        assert answer["content"] == "" and answer["tokens_predicted"] == 0
        reads = warm | {"input_prefix": "a text that is read ahead of time"}
        server.client.post("/infill", json=reads).json()
        again = server.client.post("/infill", json=reads | {"n_predict": 2}).json()
        assert again["tokens_cached"] == again["tokens_evaluated"] - 1
        for line in ("x", "xy"):  # after a key, the new character and what follows the cursor
            keys = reads | {"n_predict": 2, "prompt": line}
            typed = server.client.post("/infill", json=keys).json()
        assert typed["tokens_cached"] == typed["tokens_evaluated"] - len(
            ("y", "suffix", "z", "middle")
        )
        refused = server.client.post("/infill", json=body | {"n_indnt": 2}).json()["error"]
        assert "did you mean n_indent" in refused["message"] and refused["param"] == "n_indnt"


def test_chats_of_llama_vscode(coder: Path):
    system = {"role": "system", "content": "You are an expert coder."}
    ahead = {
        "messages": [system, {"role": "user", "content": "some context"}], "n_predict": 0,
        "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1,
    }  # fmt: skip
    edit = {
        "messages": ahead["messages"], "stream": False, "cache_prompt": True,
        "samplers": "edkypmxt", "temperature": 0.8, "dynatemp_range": 0, "dynatemp_exponent": 1,
        "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1, "xtc_probability": 0,
        "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0,
        "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": -1, "max_tokens": -1, "timings_per_token": False,
    }  # fmt: skip
    with served_here(coder, prefix_cells=4096) as server:
        post = server.client.post
        read = post("/v1/chat/completions", json=ahead).json()
        assert read["choices"][0]["message"]["content"] == ""
        assert read["usage"]["completion_tokens"] == 0
        made = post("/v1/chat/completions", json=edit | {"max_tokens": 4}).json()
        usage = made["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
        streamed = post("/v1/chat/completions", json=ahead | {"stream": True})
        assert streamed.status_code == 200 and streamed.text.rstrip().endswith("data: [DONE]")
        both = post("/v1/chat/completions", json=ahead | {"max_tokens": 0})
        assert both.status_code == 200
        del ahead["n_predict"]
        assert post("/v1/chat/completions", json=ahead | {"max_tokens": 0}).status_code == 400


@pytest.mark.parametrize("coder", [("<|repo_name|>", "<|file_sep|>")], indirect=True)
def test_infill_names_other_files_where_the_model_has_tokens_for_them(coder: Path):
    with Engine(coder, EngineConfig(**EXACT)) as engine:
        body: dict[str, Any] = {"input_prefix": "a", "input_suffix": "z"}
        files = [{"text": "one\n", "filename": "1.py"}, {"text": "two\n"}]
        made = infill_request(engine, body | {"input_extra": files})
        assert engine.detokenize(made.prompts[0], special=True).decode() == (
            "<|repo_name|>myproject\n<|file_sep|>1.py\none\n<|file_sep|>tmp\ntwo\n"
            "<|file_sep|>filename\n<|fim_prefix|>a<|fim_suffix|>z<|fim_middle|>"
        )
        made = infill_request(engine, body)
        assert engine.detokenize(made.prompts[0], special=True).decode() == (
            "<|fim_prefix|>a<|fim_suffix|>z<|fim_middle|>"
        )


def test_the_lines_of_a_text_end_it(coder: Path):
    with served_here(coder) as server:

        def ask(path: str, grammar: str, **more: Any) -> Any:
            body = {"input_prefix": "a", "input_suffix": "z"} if path == "/infill" else {}
            body |= {"prompt": "b", "n_predict": 900, "grammar": f"root ::= {grammar}"} | more
            return server.client.post(path, json=body).json()

        block = r'"if x:\n    y\n   z\n"'
        for path in ("/infill", "/completion"):
            made = ask(path, block, n_indent=4)
            assert made["content"] == "if x:\n    y" and made["stop_type"] == "limit"
            assert made["tgr"]["replies"][0]["limit"] == "n_indent"
            assert "ignored" not in made["tgr"]
            made = ask(path, r'"ab\n" root', t_max_predict_ms=1)
            assert made["stop_type"] == "limit" and made["tokens_predicted"] < 900
            assert made["content"] == "ab\n" * (made["tokens_predicted"] // 3)
            assert made["tgr"]["replies"][0]["limit"] == "t_max_predict_ms"
        for off in ({"n_indent": 0}, {"n_indent": 3}, {"t_max_predict_ms": -1}):
            made = ask("/infill", block, **off)
            assert (made["content"], made["stop_type"]) == ("if x:\n    y\n   z\n", "eos")
        made = ask("/infill", '"a" root', t_max_predict_ms=1)  # no line ends
        assert made["tokens_predicted"] == 900 and made["content"] == "a" * 900
        made = ask("/v1/completions", block, n_indent=4)["choices"][0]
        assert (made["text"], made["finish_reason"]) == ("if x:\n    y", "length")
        for name, value in (("n_indent", -1), ("n_indent", 2000), ("t_max_predict_ms", "5")):
            error = ask("/infill", block, **{name: value})["error"]
            assert error["param"] == name and error["message"].startswith(f"{name} is ")
            assert "\n" not in error["message"]


def test_infill_samples_plainly_unless_it_names_a_method(coder: Path):
    gap = {"input_prefix": "a", "input_suffix": "z"}
    with served_here(coder, method="tgr-latent") as server:

        def method(path: str, **body: Any) -> str:
            made = server.client.post(path, json=body | {"n_predict": 2}).json()
            return str(made["tgr"]["method"])

        assert method("/infill", **gap) == "base"
        assert method("/infill", **gap, model="any:tgr-latent") == "tgr-latent"
        assert method("/infill", **gap, method="markov") == "markov"
        assert method("/completion", prompt="a") == "tgr-latent"


def test_infill_over_http(coder: Path):
    body = {"input_prefix": "a", "input_suffix": "z", "n_predict": 9, "seed": 1}
    with served_here(coder) as server:
        whole = server.client.post("/infill", json=body).json()
        assert whole["stop"] and whole["tokens_predicted"] <= 9 and whole["content"]
        *parts, _ = events(server.client.post("/infill", json=body | {"stream": True}))
        texts = [part["content"] for part in parts if type(part) is dict]
        assert "".join(texts) == whole["content"]
