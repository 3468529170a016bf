"""Names of models that are not on this machine, and the command that downloads each.

A name is that of a repository at Hugging Face, ``OWNER/REPO:QUANTIZATION``, its address, or one as
ollama writes it, ``llama3.2:3b``. Nothing here connects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/", re.I)
_OLLAMA = re.compile(r"(?:https?://)?(?:(?:www|registry)\.)?ollama\.(?:com|ai)/", re.I)
_OF_PAGE = re.compile(r"/(?:(?:resolve|blob)/[^/]+(?=/.)|tree/[^/]+/?$)")
_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+)|/([\w./-]+(?i:\.gguf)))?")
_TAGGED = re.compile(r"(?:library/)?([\w.-]+)(?::([\w.-]+))?")
_SIZE = re.compile(r"([\d.]+)b(?![a-z])")
_LEAST_Q4 = 2.0  # billions of parameters from which 4 bits are usual; fewer lose too much
_FAMILIES = {
    "deepseek-r1": ("bartowski/DeepSeek-R1-Distill-Qwen-{large}-GGUF", "7b 1.5b 14b 32b"),
    "gemma2": ("bartowski/gemma-2-{small}-it-GGUF", "9b 2b 27b"),
    "gemma3": ("ggml-org/gemma-3-{small}-it-GGUF", "4b 1b 12b 27b"),
    "gpt-oss": ("ggml-org/gpt-oss-{small}-GGUF", "20b 120b"),
    "llama3": ("bartowski/Meta-Llama-3-{large}-Instruct-GGUF", "8b 70b"),
    "llama3.1": ("bartowski/Meta-Llama-3.1-{large}-Instruct-GGUF", "8b 70b"),
    "llama3.2": ("bartowski/Llama-3.2-{large}-Instruct-GGUF", "3b 1b"),
    "mistral": ("bartowski/Mistral-{large}-Instruct-v0.3-GGUF", "7b"),
    "phi4": ("bartowski/phi-4-GGUF", "14b"),
    "qwen2.5": ("Qwen/Qwen2.5-{large}-Instruct-GGUF", "7b 0.5b 1.5b 3b 14b 32b 72b"),
    "qwen2.5-coder": ("Qwen/Qwen2.5-Coder-{large}-Instruct-GGUF", "7b 0.5b 1.5b 3b 14b 32b"),
    "qwen3": ("Qwen/Qwen3-{large}-GGUF", "4b 0.6b 1.7b 8b 14b 32b"),
}
"""Families that people name as ollama does: the repository, where small and large are the size,
and the sizes, the usual one first."""


@dataclass(frozen=True)
class Name:
    """Parts of the name of a model at Hugging Face."""

    repo: str
    quantization: str | None
    """None = that of the only file."""
    file: str | None
    """The file's path in the repository, if the name has it."""


def plain(name: str) -> str:
    """The name without what makes an address of it: ``OWNER/REPO/FILE.gguf`` for the address of a
    file at Hugging Face, ``llama3.2`` for one of ollama's pages."""
    if match := _OLLAMA.match(name):
        return name[match.end() :].removeprefix("library/").rstrip("/")
    if match := _ADDRESS.match(name):
        path = re.split("[?#]", name[match.end() :])[0]
        return _OF_PAGE.sub("", path).rstrip("/")
    return name


def parsed(name: str) -> Name | None:
    """The parts of a name of a repository, or None for another text. Without an address a name
    that ends with ``.gguf`` may be a path, and is None."""
    parts = at_hub(name)
    if parts is None or parts.repo.split("/")[0] in (".", ".."):
        return None
    return None if plain(name) == name and name.lower().endswith(".gguf") else parts


def at_hub(name: str) -> Name | None:
    """The parts of a name that is meant for Hugging Face, or None for another text."""
    match = _NAME.fullmatch(plain(name))
    return Name(*match.groups()) if match else None


def is_elsewhere(name: str) -> bool:
    """Whether a name has the form of one that can be downloaded: an address, OWNER/REPO, or one
    that ollama has, FAMILY or FAMILY:TAG."""
    tagged = _TAGGED.fullmatch(name)
    has_tag = tagged is not None and tagged[2] is not None
    return has_tag or parsed(name) is not None or is_unmistakable(name)


def is_unmistakable(name: str) -> bool:
    """Whether a word can hardly be anything but such a name: not so ``yes/no``."""
    parts = parsed(name)
    in_form = parts is not None and (plain(name) != name or "gguf" in parts.repo.lower())
    return in_form or _family(plain(name))[0] in _FAMILIES


def pull_hint(name: str) -> str:
    """How to download the model that `name` may mean: the end of a sentence."""
    return f"to download one from Hugging Face, type: tgr-local models pull {pull_name(name)}"


def pull_name(name: str) -> str:
    """Returns the argument of ``models pull`` for the model that `name` may mean."""
    name = plain(name)
    parts = at_hub(name)
    if parts is not None and not name.startswith("library/"):
        if parts.file is not None:
            return name
        if not name.lower().endswith(".gguf"):
            ending = "" if "gguf" in parts.repo.lower() else "-GGUF"
            return f"{parts.repo}{ending}:{parts.quantization or 'Q4_K_M'}"
    return (
        _of_family(*_family(name)) or "OWNER/REPO:QUANTIZATION, such as Qwen/Qwen3-4B-GGUF:Q4_K_M"
    )


def _family(name: str) -> tuple[str, str]:
    """The family and the tag that a name in ollama's form has; empty = none."""
    match = _TAGGED.fullmatch(name)
    return (match[1].lower(), match[2] or "") if match else ("", "")


def _of_family(family: str, tag: str) -> str:
    """The repository of a family with a quantization; empty where it is not known."""
    repo, listed = _FAMILIES.get(family, ("", ""))
    sizes = listed.split()
    named = _SIZE.match(tag.lower())
    size = named[0] if named else sizes[0] if sizes else ""
    if size not in sizes:
        return ""
    repo = repo.format(small=size, large=size.upper())
    if family == "gpt-oss":
        return repo
    return f"{repo}:{'Q4_K_M' if float(size[:-1]) >= _LEAST_Q4 else 'Q8_0'}"
