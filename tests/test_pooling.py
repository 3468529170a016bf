"""Embedding models and rerankers: the vectors and scores of llama.cpp, in every front end."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from engines import EXACT, exact
from fixture_types import Model
from gguf_models import RERANK_TEMPLATE, write_model
from numpy.typing import NDArray
from serving import Served, served, served_here

from tgr_local import SearchConfig, TgrLlama, generate
from tgr_local.apis.embeddings import EmbeddingsRequest, input_tokens
from tgr_local.apis.requests import chat_request
from tgr_local.apis.rerank import RerankRequest, rerank_response
from tgr_local.commands import cli, doctor
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import pooling
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError, CapacityError, ContextError, ModelError

TEXTS = ["hello", "the 🦙 said " * 30]
DOCUMENTS = ["he said", "the", "a b c" * 9, "<|im_end|>\n<|im_start|>he", "{query} {document}"]
USER = [{"role": "user", "content": "hi"}]
EXACT_LLAMA: dict[str, Any] = {
    "n_ctx": 512, "n_threads": 1, "n_gpu_layers": 0, "flash_attn": False, "type_k": 0,
    "type_v": 0, "verbose": False, "embedding": True,
}  # fmt: skip


def unit(vector: Any) -> NDArray[np.float64]:
    return np.asarray(vector) / np.linalg.norm(vector)


def pooled_by_llama_cpp(path: Path, tokens: list[int], n: int) -> NDArray[np.float32]:
    """What llama.cpp makes of one text by the pooling of the file, [n]."""
    llm = llama_cpp.Llama(str(path), **EXACT_LLAMA)
    try:
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama_cpp.llama_decode(llm.ctx, batch) == 0
        values = llama_cpp.llama_get_embeddings_seq(llm.ctx, 0)
        made = np.ctypeslib.as_array(ctypes.cast(values, ctypes.POINTER(ctypes.c_float)), (n,))
        llama_cpp.llama_batch_free(batch)
        return made.copy()
    finally:
        llm.close()


@exact
@pytest.mark.parametrize("kind", ["MEAN", "CLS", "LAST"])
def test_embeddings_are_those_of_llama_cpp(model: Model, tmp_path, kind: str):
    path = model(pooling=kind)
    with TgrLlama(path, **_cpu()) as ours:
        assert ours.engine.pooling == kind.lower()
        made = [one["embedding"] for one in ours.create_embedding(TEXTS)["data"]]
        assert ours.embed(TEXTS) == made
        tokens = [ours.tokenize(text.encode()) for text in TEXTS]
        other = ours.embed(TEXTS[0], pooling="none")
        assert np.shape(other) == (len(tokens[0]), ours.n_embd())
    theirs = [pooled_by_llama_cpp(path, one, len(made[0])) for one in tokens]
    np.testing.assert_allclose(made, theirs, atol=2e-4, rtol=0)
    with served(path, tmp_path) if kind == "MEAN" else served_here(path) as server:
        if isinstance(server, Served):
            assert any("is ready, for /v1/embeddings" in line for line in server.lines)
        answer = server.client.post("/v1/embeddings", json={"input": TEXTS}).json()
        for one, wanted in zip(answer["data"], theirs, strict=True):
            np.testing.assert_allclose(one["embedding"], unit(wanted), atol=1e-4)
        refusal = server.client.post("/v1/chat/completions", json={"messages": USER})
        assert refusal.status_code == 400
        assert "an embedding model, which writes no text" in refusal.json()["error"]["message"]
        refusal = server.client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
        assert refusal.status_code == 400
        assert "is not a reranker" in refusal.json()["error"]["message"]


def _cpu() -> dict[str, Any]:
    return {name: EXACT[name] for name in ("type_k", "type_v", "flash_attn", "n_gpu_layers")}


def plain_prompt(document: str, query: str = "he") -> str:
    return RERANK_TEMPLATE.replace("{document}", document).replace("{query}", query)


@exact
@pytest.mark.parametrize("n_classes", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0"])
def test_scores_are_those_of_llama_cpp(model: Model, n_classes: int, dtype: str):
    path = model(pooling="RANK", n_classes=n_classes, dtype=dtype)
    with Engine(path, EngineConfig(**EXACT)) as engine:
        assert engine.pooling == "rank" and engine.classifier.shape == (n_classes, engine.n_embd)
        prompts = pooling.rerank_tokens(engine, "he", DOCUMENTS[:3])
        assert [one.tolist() for one in prompts] == [
            engine.tokenize(plain_prompt(one)) for one in DOCUMENTS[:3]
        ]
        found = list(pooling.relevances(engine, prompts))
        alone = [next(pooling.relevances(engine, [prompt])) for prompt in prompts]
    theirs = [pooled_by_llama_cpp(path, one.tolist(), n_classes)[0] for one in prompts]
    bound = 2e-2 if dtype == "Q8_0" else 2e-3 if dtype == "F16" else 2e-5
    np.testing.assert_allclose([one.score for one in found], theirs, atol=bound, rtol=0)
    np.testing.assert_allclose([one.score for one in alone], theirs, atol=bound, rtol=0)
    assert [one.n_tokens for one in found] == [len(prompt) for prompt in prompts]


def test_a_document_is_text(model: Model):
    """What looks like a control token or a field of the template is read as letters."""
    with Engine(model(pooling="RANK", n_classes=2), EngineConfig(**EXACT)) as engine:
        for document in DOCUMENTS[3:]:
            (tokens,) = pooling.rerank_tokens(engine, "{document}<|im_end|>", [document])
            text = engine.detokenize(tokens, special=True).decode()
            start, rest = RERANK_TEMPLATE.split("{query}")
            assert text == start + "{document}<|im_end|>" + rest.replace("{document}", document)
            control = {engine.tokenize(one)[0] for one in ("<|im_start|>", "<|im_end|>")}
            assert [one for one in tokens if one in control] == [
                engine.tokenize(one)[0] for one in ("<|im_start|>", "<|im_end|>")
            ]


def test_a_server_ranks_documents(model: Model, tmp_path):
    path = model(pooling="RANK", n_classes=2)
    body: dict[str, Any] = {"query": "he", "documents": [*DOCUMENTS[:2], {"text": DOCUMENTS[2]}]}
    with TgrLlama(path, **_cpu()) as llm:
        wanted = llm.rerank("he", DOCUMENTS[:3])
        scores = [one["relevance_score"] for one in wanted["results"]]
        assert scores == sorted(scores, reverse=True) and len(set(scores)) == 3
        assert llm.rerank("he", DOCUMENTS[:3], top_n=1)["results"] == wanted["results"][:1]
    with served(path, tmp_path) as server:
        assert any("is ready, for /v1/rerank" in line for line in server.lines)
        post = server.client.post
        for address in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"):
            made = post(address, json=body).json()
            assert [one["index"] for one in made["results"]] == [
                one["index"] for one in wanted["results"]
            ]
            np.testing.assert_allclose(
                [one["relevance_score"] for one in made["results"]], scores, atol=1e-4
            )
            assert made["usage"] == wanted["usage"] and made["object"] == "list"
        best = post("/v1/rerank", json=body | {"top_n": 1, "return_documents": True}).json()
        (first,) = best["results"]
        assert first["document"] == {"text": DOCUMENTS[first["index"]]}
        for changes, message in (
            ({"documents": []}, "documents"), ({"documents": [3]}, "documents"),
            ({"top_n": 0}, "top_n is 0"), ({"query": None}, "query"), ({"documents": "a"}, "list"),
            ({"documents": ["b", "a" * 5000]}, "document 1 has 50.. tokens with the query"),
            ({"documents": None}, "documents is missing; add it"), ({"texts": []}, "texts is empt"),
            ({"texts": ["a"]}, "documents and texts are both there; leave one out"),
            ({"texts": [{"text": "a"}]}, "texts"), ({"raw_scores": True}, "raw_scores is not supp"),
        ):  # fmt: skip
            answer = post("/v1/rerank", json=body | changes)
            assert answer.status_code == 400
            message_got = answer.json()["error"]["message"]
            assert re.search(message, message_got), message_got
        answer = post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 400
        assert "a reranker, which makes no embeddings" in answer.json()["error"]["message"]


def test_a_text_longer_than_the_cache_is_named_with_its_length(model: Model):
    with Engine(model(), EngineConfig(**EXACT, n_ctx=256)) as engine:
        body = EmbeddingsRequest.parse({"input": [[5] * 256]})
        with pytest.raises(ContextError, match="has 256 tokens, but n_ctx is 256") as refused:
            input_tokens(engine, body)
        assert (refused.value.n_tokens, refused.value.n_ctx) == (256, 256)
    ranker = model(pooling="RANK", n_classes=2)
    with Engine(ranker, EngineConfig(**EXACT, n_ctx=256)) as engine:
        long = r"document 1 has (\d+) tokens with the query, but n_ctx is 256; raise it, or shorten"
        with pytest.raises(ContextError, match=long) as refused:
            pooling.rerank_tokens(engine, "he", ["b", "a" * 300])
        assert refused.value.n_tokens > 300 and refused.value.n_ctx == 256


def test_documents_as_text_embeddings_inference_has_them(model: Model):
    with served_here(model(pooling="RANK", n_classes=2)) as server:

        def post(**body: Any) -> Any:
            answer = server.client.post("/rerank", json={"query": "he"} | body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        texts = DOCUMENTS[:3]
        wanted = [
            {"index": one["index"], "score": one["relevance_score"]}
            for one in post(documents=texts)["results"]
        ]
        assert post(texts=texts) == wanted
        asked = {"raw_scores": False, "truncate": True, "truncation_direction": "right"}
        assert post(texts=texts, top_n=2, **asked) == wanted[:2]
        with_text = [one | {"text": texts[one["index"]]} for one in wanted]
        assert post(texts=texts, return_text=True) == with_text


def test_models_that_write_no_text_say_so(model: Model, capsys):
    path = model(pooling="LAST")
    with Engine(path, EngineConfig(**EXACT)) as engine:
        for ask in (
            lambda: generate(engine, "hi", SearchConfig(max_tokens=2)),
            lambda: chat_request(engine, {"messages": USER}),
        ):
            with pytest.raises(ModelError, match="an embedding model, which writes no text; use"):
                ask()
    assert cli.main(["run", "--model", str(path), "--n-gpu-layers", "0", "hi"]) == 1
    assert "is an embedding model, which writes no text" in capsys.readouterr().err
    found = {one.name: one for one in doctor.examine(str(path), EngineConfig(**EXACT))}
    assert found["pooling"].detail == "last: it makes embeddings, and writes no text"
    assert (
        "generation" not in found and found["pooling"].status == found["tokenizer"].status == "ok"
    )


def test_a_reranker_needs_its_parts(model: Model):
    with (
        Engine(model(pooling="RANK"), EngineConfig(**EXACT)) as engine,
        pytest.raises(ModelError, match=r"no cls.output.weight and no tokenizer.chat_template.re"),
    ):
        pooling.rerank_tokens(engine, "a", ["b"])


def test_a_document_that_is_too_long_is_named(tmp_path):
    path = write_model(tmp_path / "m.gguf", pooling="RANK", n_classes=2, n_ctx_train=64)
    with Engine(path, EngineConfig(**EXACT)) as engine:
        for long in ("a" * 60, "a" * 10_000):
            with pytest.raises(ContextError, match=r"document 1 has .* but the model was trained"):
                pooling.rerank_tokens(engine, "a", ["b", long])
        assert len(pooling.rerank_tokens(engine, "a", ["b" * 20])) == 1


@pytest.fixture
def tokenized(monkeypatch) -> list[Any]:
    """The texts that were tokenized for a reranker."""
    made: list[Any] = []
    tokens_within = pooling.tokens_within

    def noted(engine: Engine, given: Any) -> list[int]:
        made.append(given)
        return tokens_within(engine, given)

    monkeypatch.setattr(pooling, "tokens_within", noted)
    return made


def test_the_documents_of_a_request_have_a_bound_together(
    model: Model, tokenized: list[Any], monkeypatch
):
    monkeypatch.setattr(pooling, "RERANK_TOKENS", 2000)
    with Engine(model(pooling="RANK", n_classes=2), EngineConfig(**EXACT)) as engine:
        with pytest.raises(CapacityError, match=r"once for each of 30, have .* may have 2000 "):
            pooling.rerank_tokens(engine, "q" * 100, ["b"] * 30)
        with pytest.raises(ContextError, match=r"the query has .* tokens, but the model was"):
            pooling.rerank_tokens(engine, "q" * 100_000, ["b"])
        assert tokenized == ["q" * 100, "q" * 100_000]  # and no document
        del tokenized[:]
        with pytest.raises(CapacityError, match=r"documents 0 to 3, .* name fewer documents at"):
            pooling.rerank_tokens(engine, "q", ["b" * 600] * 30)
        assert sum("bbb" in getattr(one, "text", one) for one in tokenized) == 4


TRICKY = (
    "", "he", "he\n", "\n\n", "he?\r\n", " \n ", "<|im_end|>", "a<|im_start|>\n", "{document}",
    "Text: ", "\nText: he", "é漢\t", "{query}", "/he", "he?\n/",
)  # fmt: skip


def test_a_query_is_tokenized_once(model: Model, tokenized: list[Any], monkeypatch):
    """And every prompt has the tokens that it has as a whole."""
    with Engine(model(pooling="RANK", n_classes=2), EngineConfig(**EXACT)) as engine:
        plain = engine.metadata["tokenizer.chat_template.rerank"]
        made = {}
        for template, is_once in (
            (plain, True), ("{query}\n\nText: {document}", True), ("{document}\n{query}", False),
            (plain.replace("\n", " "), False), (plain.replace("Text", " Text"), False),
            (plain.replace("Text", "/Text"), False),
        ):  # fmt: skip
            engine.metadata["tokenizer.chat_template.rerank"] = template
            for query in TRICKY:
                del tokenized[:]
                made[template, query] = pooling.rerank_tokens(engine, query, TRICKY)
                n_queries = sum("Query: he" in getattr(one, "text", one) for one in tokenized)
                assert query != "he" or "Query" not in template or (n_queries == 1) == is_once
        monkeypatch.setitem(engine.metadata, "tokenizer.ggml.model", "t5")  # nothing is read before
        for (template, query), prompts in made.items():
            engine.metadata["tokenizer.chat_template.rerank"] = template
            for one, whole in zip(
                prompts, pooling.rerank_tokens(engine, query, TRICKY), strict=True
            ):
                assert one.tolist() == whole.tolist(), (template, query)
        assert engine.control_texts.is_within_one("im_st")
        assert not engine.control_texts.is_within_one("\nT")


def test_tokenizing_documents_can_be_cancelled(model: Model, tokenized: list[Any]):
    class CancelledSoon(Cancel):
        def is_set(self) -> bool:
            return len(tokenized) > 3

    with Engine(model(pooling="RANK", n_classes=2), EngineConfig(**EXACT)) as engine:
        body = RerankRequest.parse({"query": "q", "documents": ["b"] * 20})
        with pytest.raises(CancelledError):
            rerank_response(engine, body, "m", CancelledSoon())
    assert len(tokenized) == 4
