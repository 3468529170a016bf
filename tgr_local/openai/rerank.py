"""/v1/rerank, as Jina's and llama-server's clients ask for it: how relevant documents are to a
query. The body and the response, without a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from tgr_local.engine import Cancel, Engine
from tgr_local.generation.pooling import relevances, rerank_tokens
from tgr_local.openai.client_parameters import Ignored, Ignoring
from tgr_local.openai.search_options import INT_MAX

DOCUMENTS_MAX = 1024


class Document(TypedDict):
    """A document with further fields, which the model does not see."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]
    text: str


class RerankRequest(Ignoring):
    """The body of /v1/rerank."""

    wanted: ClassVar[Mapping[str, str]] = {"documents": "a list of texts"}
    query: str
    documents: Annotated[
        list[str | Document], Field(min_length=1, max_length=DOCUMENTS_MAX, fail_fast=True)
    ]
    top_n: int | None = Field(
        None, ge=1, le=INT_MAX, description="results at most, the most relevant; all if absent"
    )
    return_documents: bool | None = Field(None, description="the results have the documents too")
    model: str | None = Field(None, description="the model, where there are several")
    user: Ignored = None
    max_chunks_per_doc: Ignored = None
    max_tokens_per_doc: Ignored = None
    rank_fields: Ignored = None
    truncation: Ignored = None
    priority: Ignored = None

    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one["text"] for one in self.documents]


def rerank_response(
    engine: Engine, body: RerankRequest, model: str, cancel: Cancel | None = None
) -> dict[str, Any]:
    """The response: the documents' numbers and scores, the most relevant first. Raises as
    `rerank_tokens` does."""
    texts = body.texts()
    prompts = rerank_tokens(engine, body.query, texts, cancel)
    found = list(relevances(engine, prompts, cancel))
    order = sorted(range(len(found)), key=lambda i: (-found[i].score, i))
    results = [
        {"index": i, "relevance_score": found[i].score}
        | ({"document": {"text": texts[i]}} if body.return_documents else {})
        for i in order[: body.top_n]
    ]
    n_tokens = sum(one.n_tokens for one in found)
    return {
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    } | ({"tgr": {"ignored": list(ignored)}} if (ignored := body.ignored()) else {})
