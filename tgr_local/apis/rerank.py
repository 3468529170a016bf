"""/v1/rerank: how relevant documents are to a query, as clients of Jina, llama-server and Text
Embeddings Inference ask for it. The body and the response, without a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from tgr_local.apis.client_parameters import Ignoring, Only, ignoring
from tgr_local.apis.search_options import optional, whole_field
from tgr_local.apis.validation import OpenObject, RequestError
from tgr_local.engine import Cancel, Engine
from tgr_local.generation.pooling import relevances, rerank_tokens

DOCUMENTS_MAX = 1024
_SEVERAL = Field(None, min_length=1, max_length=DOCUMENTS_MAX, fail_fast=True)


class Document(OpenObject):
    """A document with further fields, which the model does not see."""

    text: str


@ignoring(
    "user", "max_chunks_per_doc", "max_tokens_per_doc", "rank_fields", "truncation", "priority",
    "truncate", "truncation_direction",
)  # fmt: skip
class RerankRequest(Ignoring):
    """The body of /v1/rerank: with `documents` as Jina has it, with `texts` as Text Embeddings
    Inference does, whose response is another one."""

    wanted: ClassVar[Mapping[str, str]] = dict.fromkeys(("documents", "texts"), "a list of texts")
    query: str
    documents: list[str | Document] | None = _SEVERAL
    texts: list[str] | None = _SEVERAL
    top_n: int | None = whole_field("results at most, the most relevant; all if absent", least=1)
    return_documents: bool | None = optional("the results have the documents too")
    return_text: bool | None = optional("the same, beside `texts`")
    model: str | None = optional("the model, where there are several")
    raw_scores: Annotated[Any, Only(False)] = None

    @model_validator(mode="after")
    def _check_documents(self) -> Self:
        if self.documents is None and self.texts is None:
            raise RequestError("documents is missing; add it", "documents")
        if self.documents is not None and self.texts is not None:
            raise RequestError("documents and texts are both there; leave one out", "texts")
        return self

    def all_texts(self) -> list[str]:
        """The text of each document."""
        given = self.texts if self.documents is None else self.documents
        return [
            document if isinstance(document, str) else document["text"] for document in given or ()
        ]


def rerank_response(
    engine: Engine, body: RerankRequest, model: str, cancel: Cancel | None = None
) -> Any:
    """The response: the documents' numbers and scores, the most relevant first, in an object, or
    as a list for a body with `texts`. Raises as `rerank_tokens` does."""
    texts = body.all_texts()
    prompts = rerank_tokens(engine, body.query, texts, cancel)
    scored = list(relevances(engine, prompts, cancel))
    order = sorted(range(len(scored)), key=lambda i: (-scored[i].score, i))
    if body.texts is not None:
        return [
            {"index": i, "score": scored[i].score}
            | ({"text": texts[i]} if body.return_text else {})
            for i in order[: body.top_n]
        ]
    results = [
        {"index": i, "relevance_score": scored[i].score}
        | ({"document": {"text": texts[i]}} if body.return_documents else {})
        for i in order[: body.top_n]
    ]
    n_tokens = sum(document.n_tokens for document in scored)
    return {
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    } | ({"tgr": {"ignored": list(ignored)}} if (ignored := body.ignored()) else {})
