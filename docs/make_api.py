"""Writes docs/api.md from the docstrings of what a program may use; with --check it only compares.

A docstring stands as it is, so what is wrong here is mended in the code.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

PAGE = Path(__file__).with_name("api.md")

INTRODUCTION = """\
# The Python API

Made from the docstrings by `python docs/make_api.py`. Programs that run stand in
[examples](../examples); the symbols are those of [method.md](method.md). A bad argument raises
`ValueError`, everything else a `TgrError`; each message says what went wrong and the way out.
Arrays are numpy's; their shapes stand in brackets.
"""

SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Load, write, stream, search": {
        "tgr_local.generation": (
            "load", "generate", "generate_many", "generate_each", "stream", "search", "Reply",
            "Run", "TextDelta",
        ),
        "tgr_local.search.steps": ("Step", "Candidates", "Progress", "Counts", "Seconds"),
        "tgr_local.search.scoring": ("Scores",),
    },
    "The engine": {"tgr_local.engine": ("Engine", "Cancel", "EngineStats")},
    "In the place of llama_cpp.Llama": {"tgr_local.openai.llama": ("TgrLlama",)},
    "Requests and responses in OpenAI's words": {
        "tgr_local.openai.requests": ("chat_request", "completion_request", "Request", "RequestError"),
        "tgr_local.openai.completions": ("respond", "chunks"),
    },
    "asyncio": {"tgr_local.openai.aio": ("generate", "stream", "respond", "chunks")},
    "Steering": {
        "tgr_local.generation.control_vectors": ("ControlVector", "steered", "winning_control_vector", "hidden_states"),
        "tgr_local.engine.steered": ("SteeredEngine",),
    },
    "Options": {"tgr_local.options.config": ("EngineConfig", "SearchConfig")},
    "Errors": {
        "tgr_local.errors": (
            "TgrError", "ModelError", "CapacityError", "CancelledError", "InstallError",
        ),
    },
}  # fmt: skip


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for title, modules in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name, participants in modules.items():
            module = importlib.import_module(name)
            about = inspect.cleandoc(module.__doc__ or "").split("\n\n")
            parts.append(f"`{name}`: {about[0]}\n")
            for participant in participants:
                parts += entry(getattr(module, participant), participant)
    return "\n".join(parts).rstrip() + "\n"


def entry(thing: Any, name: str) -> Iterator[str]:
    """A function or a class with its fields and methods."""
    yield f"### {name}\n"
    if inspect.isclass(thing):
        if not issubclass(thing, Exception):
            yield from signature(thing, name)
        yield from docstring(thing)
        if dataclasses.is_dataclass(thing):
            yield from fields(thing)
        for key, value in vars(thing).items():
            if not key.startswith("_") and inspect.getdoc(value):
                yield from method(key, value)
        return
    yield from signature(thing, name)
    yield from docstring(thing)


def method(name: str, value: Any) -> Iterator[str]:
    """A method or property of a class, as a list item."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, FunctionType):
        if len(line := name + call(value)) > 90:
            yield f"- **`{name}`**\n"
            yield from (textwrap.indent(part, "  ") for part in signature(value, name))
        else:
            yield f"- **`{line}`**\n"
    elif isinstance(value, property) or hasattr(value, "func"):
        yield f"- **`{name}`**\n"
    else:
        return
    yield textwrap.indent(inspect.getdoc(value) or "", "  ") + "\n"


def signature(thing: Any, name: str) -> Iterator[str]:
    """How it is called; a dataclass is told by its fields."""
    if not dataclasses.is_dataclass(thing):
        yield f"```python\n{name}{call(thing, wide=False)}\n```\n"


def call(thing: Any, wide: bool = True) -> str:
    """The parameters and the result, without self; in several lines where one is too narrow."""
    made = inspect.signature(thing)
    parts: list[str] = []
    for parameter in made.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text += parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
    result = made.return_annotation
    arrow = "" if result in (made.empty, "None", None) else f" -> {result}"
    line = f"({', '.join(parts)}){arrow}"
    if wide or len(line) < 80:
        return line
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){arrow}"


def docstring(thing: Any) -> Iterator[str]:
    yield (inspect.getdoc(thing) or "") + "\n"


def fields(thing: Any) -> Iterator[str]:
    """The fields of a dataclass: options as a table, others with their docstrings."""
    specs = dataclasses.fields(thing)
    if all("doc" in spec.metadata for spec in specs):
        yield "| option | default | bounds | meaning |\n|---|---|---|---|"
        for spec in specs:
            low, high, choices = (spec.metadata[key] for key in ("low", "high", "choices"))
            bounds = ", ".join(choices or ())
            if low is not None or high is not None:
                bounds = f"≥ {low}" if high is None else f"{low} to {high}"
            meaning = spec.metadata["doc"].replace("|", "\\|")
            yield f"| `{spec.name}` | `{spec.default!r}` | {bounds} | {meaning} |"
        yield ""
        return
    told = field_docstrings(thing)
    for spec in specs:
        about = " ".join(told.get(spec.name, "").split())
        yield f"- **`{spec.name}: {spec.type}`** {about}".rstrip()
    yield ""


def field_docstrings(thing: Any) -> dict[str, str]:
    """What stands under each field in the source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(body, ast.ClassDef)
    told = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            told[field.target.id] = str(text.value.value)
    return told


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != page():
            print(f"{PAGE} is out of date; run: python docs/make_api.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
