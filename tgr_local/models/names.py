"""Names of models elsewhere, and the command that downloads such a model.

A name is that of a repository on Hugging Face, ``OWNER/REPO:QUANTIZATION``, or one as ollama writes
it, ``llama3.2:3b``. Nothing here connects.
"""

from __future__ import annotations

import re

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?")
_TAGGED = re.compile(r"(?:library/)?([\w.-]+)(?::([\w.-]+))?")
_FAMILIES = {
    "gemma3": "ggml-org/gemma-3-{small}-it-GGUF",
    "gpt-oss": "ggml-org/gpt-oss-{small}-GGUF",
    "llama3.1": "bartowski/Meta-Llama-3.1-{large}-Instruct-GGUF",
    "llama3.2": "bartowski/Llama-3.2-{large}-Instruct-GGUF",
    "qwen2.5": "Qwen/Qwen2.5-{large}-Instruct-GGUF",
    "qwen2.5-coder": "Qwen/Qwen2.5-Coder-{large}-Instruct-GGUF",
    "qwen3": "Qwen/Qwen3-{large}-GGUF",
}
"""Repositories of families that people name as ollama does; small and large are the size."""
_DEFAULT_SIZES = {"gpt-oss": "20b", "llama3.1": "8b", "llama3.2": "3b", "gemma3": "4b"}
_SIZE = re.compile(r"([\d.]+)b")
_LEAST_Q4 = 2.0  # billions of parameters from which 4 bits are usual; fewer lose too much


def repository(name: str) -> tuple[str, str | None] | None:
    """The repository and the quantization that a name has the form of, or None."""
    match = _REPOSITORY.fullmatch(name)
    if match is None or name.endswith(".gguf") or match[1].split("/")[0] in (".", ".."):
        return None
    return match[1], match[2]


def is_elsewhere(name: str) -> bool:
    """Whether a name has the form of one that can be downloaded: OWNER/REPO, or FAMILY:TAG."""
    tagged = _TAGGED.fullmatch(name)
    return repository(name) is not None or (tagged is not None and tagged[2] is not None)


def pull_hint(name: str) -> str:
    """How to download the model that `name` may mean: the end of a sentence."""
    return f"to download one from Hugging Face, type: tgr-local models pull {_pull_name(name)}"


def _pull_name(name: str) -> str:
    found = repository(name)
    if found is not None and not name.startswith("library/"):
        repo, quantization = found
        repo += "" if "gguf" in repo.lower() else "-GGUF"
        return f"{repo}:{quantization or 'Q4_K_M'}"
    match = _TAGGED.fullmatch(name)
    family = match[1].lower() if match else ""
    if match is None or family not in _FAMILIES:
        return "OWNER/REPO:QUANTIZATION, such as Qwen/Qwen3-4B-GGUF:Q4_K_M"
    size = _SIZE.match(match[2] or "") or _SIZE.match(_DEFAULT_SIZES.get(family, "4b"))
    assert size is not None
    repo = _FAMILIES[family].format(small=size[0], large=size[0].upper())
    if family == "gpt-oss":
        return repo
    return f"{repo}:{'Q4_K_M' if float(size[1]) >= _LEAST_Q4 else 'Q8_0'}"
