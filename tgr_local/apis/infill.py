"""The prompt for the text between two texts, by the fill-in-the-middle tokens of the model."""

from __future__ import annotations

from collections.abc import Sequence

from tgr_local.apis.bodies import (
    ExtraFile,
)
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Engine
from tgr_local.generation import tokens_within

# the texts of the prefix, suffix and middle tokens, family by family
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder, Refact
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek, in this order
    ("<PRE>", "<SUF>", "<MID>"),  # CodeLlama
)
_REPOSITORY_MARKS = (("<|repo_name|>", "<|file_sep|>"),)  # Qwen
_PROJECT, _THIS_FILE, _NO_NAME = "myproject", "filename", "tmp"  # as llama.cpp has them


def fill_in_tokens(
    engine: Engine, before: str, after: str, *, files: Sequence[ExtraFile] = ()
) -> list[int]:
    """The tokens of a prompt for the text between two texts. Raises RequestError for a model
    without such tokens."""
    marks = _marks(engine, ("pre", "suf", "mid"), _MARKS)
    if marks is None:
        raise RequestError(
            "the model has no fill-in-the-middle tokens; use /v1/completions without a suffix, or "
            "load a code model"
        )
    pre, suf, mid = marks
    first, others = _extra(engine, files)
    prompt = [*first, *[pre, *_plain(engine, others + before)], *[suf, *_plain(engine, after)], mid]
    if engine.metadata.get("tokenizer.ggml.add_bos_token") == "true" and engine.bos is not None:
        prompt.insert(0, engine.bos)
    return prompt


def _extra(engine: Engine, files: Sequence[ExtraFile]) -> tuple[list[int], str]:
    """Other files, as tokens that come before all, or as text before the prefix."""
    marks = _marks(engine, ("rep", "sep"), _REPOSITORY_MARKS)
    if not files or marks is None:
        return [], "".join(f"{file.get('text', '')}\n" for file in files)
    repository, separator = marks
    tokens = [repository, *_plain(engine, f"{_PROJECT}\n")]
    for file in files:
        text = f"{file.get('filename', _NO_NAME)}\n{file.get('text', '')}"
        tokens += [separator, *_plain(engine, text)]
    return [*tokens, separator, *_plain(engine, f"{_THIS_FILE}\n")], ""


def _marks(
    engine: Engine, names: tuple[str, ...], families: tuple[tuple[str, ...], ...]
) -> list[int] | None:
    """The tokens of such names in the file's metadata, or of the first family that the vocabulary
    has; None = there are none."""
    named = [engine.metadata.get(f"tokenizer.ggml.fim_{name}_token_id", "") for name in names]
    if all(text.isdecimal() and int(text) < engine.n_vocab for text in named):
        return [int(text) for text in named]
    for family in families:
        tokens = [engine.tokenize(text) for text in family]
        if all(len(ids) == 1 for ids in tokens):
            return [token for (token,) in tokens]
    return None


def _plain(engine: Engine, text: str) -> list[int]:
    return tokens_within(engine, text, parse_special=False)
