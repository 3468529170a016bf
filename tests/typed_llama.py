"""A program that uses `TgrLlama`, for mypy alone: it checks the types, and that each comment stands
beside an error."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import assert_type

from tgr_local import TgrLlama
from tgr_local.apis.llama_types import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    EmbeddingResponse,
)


def use(llama: TgrLlama, flag: bool) -> None:
    assert_type(llama("a", max_tokens=3), Completion)
    assert_type(llama("a", None, 3)["choices"][0]["text"], str)
    assert_type(llama.create_completion("a", stream=True), Iterator[CompletionChunk])
    assert_type(llama("a", stream=flag), Completion | Iterator[CompletionChunk])
    chat = llama.create_chat_completion([{"role": "user", "content": "x"}], temperature=0.0)
    assert_type(chat, ChatCompletion)
    assert_type(chat["choices"][0]["message"]["content"], str | None)
    assert_type(chat["usage"]["total_tokens"], int)
    for chunk in llama.create_chat_completion([{"role": "user", "content": "x"}], stream=True):
        assert_type(chunk, ChatCompletionChunk)
    assert_type(llama.create_embedding("a"), EmbeddingResponse)
    assert_type(llama.tokenize(b"a"), list[int])
    assert_type(llama.generate([1]), Iterator[int])
    llama("a", max_tokns=3)  # type: ignore[call-overload]
    llama.eval([1])  # type: ignore[attr-defined]
