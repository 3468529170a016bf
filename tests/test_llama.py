"""`TgrLlama` compared with llama-cpp-python's own `Llama`: the same calls, the same text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from engines import is_free
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from surroundings import PACKAGE

from tgr_local import SearchConfig, TgrLlama
from tgr_local.apis.validation import RequestError
from tgr_local.options.model_files import embedded_model

# the arithmetic of llama_cpp.Llama as it comes
SAME: dict[str, Any] = {"flash_attn": False, "n_threads": 1, "n_gpu_layers": 0}
STORIES = ["Once upon a time", "The dog and the", "Lily was very happy.", "One day, Tom"]
SUMS = ["12 + 23 = ", "What is 40 - 7?", "9*"]


def theirs(path: Path, **options: Any) -> llama_cpp.Llama:
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, verbose=False, **options)


@pytest.fixture
def ours(model: Callable[..., Path]) -> Iterator[TgrLlama]:
    with TgrLlama(model(), **SAME) as llama:
        yield llama
        assert is_free(llama.engine)


def agree(path: Path, prompts: list[str]) -> None:
    """The same text, finish reason and usage, greedily."""
    other = theirs(path)
    with TgrLlama(path, method="base", **SAME) as llama:
        for i, prompt in enumerate(prompts):
            options: dict[str, Any] = {"max_tokens": 8 + 20 * (i % 3), "temperature": 0.0}
            options["stop"] = [None, ["."], ["\n", "and"]][i % 3]
            expected, made = other(prompt, **options), llama(prompt, **options)
            for key in ("text", "finish_reason"):
                assert made["choices"][0][key] == expected["choices"][0][key], prompt
            assert expected["usage"].items() <= made["usage"].items()
            assert made.keys() - {"tgr", "timings"} == expected.keys()
            assert made["choices"][0].keys() == expected["choices"][0].keys()
            parts = list(llama(prompt, stream=True, **options))
            assert (
                "".join(part["choices"][0]["text"] for part in parts)
                == (made["choices"][0]["text"])
            )


def test_greedy_text_on_a_foreign_model_is_llama_cpps(stories: Path):
    agree(stories, STORIES)


def test_greedy_text_on_the_embedded_model_is_llama_cpps():
    agree(embedded_model(), SUMS)


def test_a_chat_on_the_embedded_model_is_llama_cpps():
    messages: Any = [{"role": "user", "content": "What is 12 + 5?"}]
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0.0}
    expected = theirs(embedded_model()).create_chat_completion(messages, **options)
    with TgrLlama(**SAME) as llama:
        made = llama.create_chat_completion(messages, method="base", **options)
        message = made["choices"][0]["message"]
        raw: Any = expected["choices"][0]["message"]["content"]  # type: ignore[index]
        thinking, tag, answer = raw.rpartition("</think>")
        assert message["content"] == (answer.lstrip("\n") if tag else raw)
        told = message.get("reasoning_content", "")
        assert told == thinking.removeprefix("<think>").lstrip("\n")
        assert made["choices"][0]["finish_reason"] == expected["choices"][0]["finish_reason"]  # type: ignore[index]
        typed = llama.create_chat_completion_openai_v1(messages, method="base", **options)
        assert isinstance(typed, ChatCompletion)
        assert typed.choices[0].message.content == message["content"]


def test_tokens_and_bytes_are_llama_cpps(stories: Path):
    other = theirs(stories)
    with TgrLlama(stories, **SAME) as llama:
        for text in ("Once upon a time", " two  spaces", "é🦙", "<s>hi</s>", ""):
            data = text.encode()
            for flags in ({}, {"add_bos": False}, {"special": True}):
                tokens = llama.tokenize(data, **flags)
                assert tokens == other.tokenize(data, **flags)
                assert llama.detokenize(tokens) == other.detokenize(tokens)
                assert llama.detokenize(tokens[1:], tokens[:1]) == (
                    other.detokenize(tokens[1:], tokens[:1])
                )
        assert (llama.token_bos(), llama.token_eos()) == (other.token_bos(), other.token_eos())
        assert (llama.n_vocab(), llama.n_embd()) == (other.n_vocab(), other.n_embd())
        assert llama.metadata["general.architecture"] == "llama"


def test_prompt_logprobs_on_a_foreign_model_are_llama_cpps(stories: Path):
    prompt = "Once upon a time"
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0, "logprobs": 2, "echo": True}
    expected: Any = theirs(stories, logits_all=True)(prompt, **options)
    with TgrLlama(stories, method="base", **SAME) as llama:
        made = llama(prompt, **options)
    ours, other = made["choices"][0]["logprobs"], expected["choices"][0]["logprobs"]
    assert made["choices"][0]["text"] == expected["choices"][0]["text"]
    assert "".join(ours["tokens"]) == made["choices"][0]["text"]
    np.testing.assert_allclose(ours["token_logprobs"][1:], other["token_logprobs"][1:], atol=2e-2)
    for a, b in zip(ours["top_logprobs"][1:], other["top_logprobs"][1:], strict=True):
        assert max(a.values()) == pytest.approx(max(b.values()), abs=2e-2)


def test_embeddings_are_llama_cpps(ours: TgrLlama, model: Callable[..., Path]):
    other = theirs(model(), embedding=True)
    for normalize in (False, True):
        expected = [other.embed(text, normalize=normalize) for text in ("hello", "the 🦙")]
        made = ours.embed(["hello", "the 🦙"], normalize=normalize)
        for a, b in zip(made, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=5e-3)
    states, count = ours.embed("hello", return_count=True)
    assert count == len(states) == len(ours.tokenize(b"hello"))
    mean = ours.embed("hello", pooling="mean")
    np.testing.assert_allclose(mean, np.mean(states, axis=0), atol=1e-6)
    assert ours.embed("hello", pooling="last") == states[-1]
    made = ours.create_embedding(["hello", "the"])
    assert len(CreateEmbeddingResponse.model_validate(made, strict=True).data) == 2
    with pytest.raises(ValueError, match="'max', but must be one of none, mean, cls, last"):
        ours.embed("hello", pooling="max")
    with pytest.raises(ValueError, match="the text has 5000 tokens, but must have between 1 and"):
        ours.embed("a" * 5000, truncate=False)


def test_options_of_an_instance_are_defaults_of_its_requests(model: Callable[..., Path]):
    config = SearchConfig(chunk_len=4, max_chunks=2, n_candidates=2, rollout_len=2)
    messages = [{"role": "user", "content": "he"}]
    with TgrLlama(model(), config=config, method="markov", seed=7, **SAME) as llama:
        made = llama.create_chat_completion(messages)
        assert made["tgr"]["method"] == "markov" and made["tgr"]["seed"] == 7
        assert made["usage"]["completion_tokens"] <= 8 and made["model"] == str(model())
        other = llama.create_chat_completion(
            tuple(messages), seed=8, method="tgr-latent", tgr={"max_chunks": 1}, model="me", stop=()
        )
        assert other["tgr"]["method"] == "tgr-latent" and other["tgr"]["seed"] == 8
        assert other["tgr"]["replies"][0]["chunks"] == 1 and other["model"] == "me"
        for unlimited in (None, 0, -1):
            made = llama("he", max_tokens=unlimited, temperature=0.0, method="base")
            assert made["usage"]["completion_tokens"] == 8
        made = llama("he", temperature=0.0)
        assert made["usage"]["completion_tokens"] == 16
        tokens = np.array(llama.tokenize(b"he"))
        assert llama(tokens, temperature=0.0)["choices"][0]["text"] == made["choices"][0]["text"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"typical_p": 1.5}, "typical_p is 1.5, but must be"),
        ({"mirostat_mode": 2}, "mirostat_mode is not supported"),
        ({"logits_processor": [print]}, "logits_processor is not supported"),
        ({"suffix": "x"}, "no fill-in-the-middle tokens"),
        ({"tgr": {"n_ctx": 3}}, "unknown option 'n_ctx'"),
        ({"grammar": llama_cpp.LlamaGrammar.from_string("nonsense")}, "grammar does not parse"),
        ({"prompt": b"bytes"}, "prompt is b'bytes'"),
    ],
)
def test_unsupported_parameters_are_refused(
    ours: TgrLlama, parameters: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match=message):
        ours(**{"prompt": "he"} | parameters)


def test_neutral_values_of_other_samplers_are_accepted(ours: TgrLlama):
    made = ours(
        "he", typical_p=1.0, tfs_z=1.0, mirostat_mode=0, mirostat_tau=5.0, mirostat_eta=0.1,
        suffix="", stop=[], top_k=-1, grammar=llama_cpp.LlamaGrammar.from_string('root ::= "ab"'),
    )  # fmt: skip
    assert made["choices"][0]["text"] == "ab"
    with pytest.raises(RequestError, match="is a function without a name"):
        asked = [{"role": "user", "content": "x"}]
        ours.create_chat_completion(asked, tools=[{"type": "function"}])
    with pytest.raises(ValueError, match="not valid UTF-8 at byte 0"):
        ours.tokenize(b"\xff")
    with pytest.raises(ValueError, match="text is 'he', but must be bytes"):
        ours.tokenize("he")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input is 3, but must be a text or a list of texts"):
        ours.create_embedding(3)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="max_tokens is '3', but must be a whole number"):
        ours("he", max_tokens="3")
    with pytest.raises(ValueError, match="type_k is 99, but must be one of"):
        TgrLlama(type_k=99)


def test_importing_loads_nothing_that_is_optional():
    code = (
        "import sys, tgr_local; from tgr_local import TgrLlama, ControlVector; "
        "from tgr_local.apis import aio; "
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    foreign = {"fastapi", "rich", "matplotlib", "torch", "openai", "llama_cpp", "gguf"}
    assert not set(run.stdout.split()) & foreign
