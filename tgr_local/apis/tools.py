"""The tools of a request and the choice among them, in the forms of every client.

A client sends its whole list with every request, so an entry that is no function (what runs on
another server, what takes a free text) is left out and named. A function is read in the forms of
chats, of responses and of Anthropic's messages, whichever API it is sent to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from tgr_local.apis.validation import AT_FAULT, RequestError, shown

_SCHEMAS = ("parameters", "input_schema")
_WORDS = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


def as_tool(tool: Any) -> Any:
    """A tool in a chat's form where it is a function; anything else as it is. Raises
    PydanticCustomError for a function without a name."""
    if not isinstance(tool, Mapping):
        return tool
    kind, inner = tool.get("type"), tool.get("function")
    if kind in (None, "function") and inner is not None:
        return {**tool, "type": "function"}
    schema = next((tool[key] for key in _SCHEMAS if tool.get(key) is not None), None)
    is_anthropics = tool.get("input_schema") is not None
    if kind == "function" or is_anthropics or (kind is None and schema is not None):
        if tool.get("name") is None:
            raise PydanticCustomError(AT_FAULT, "is a function without a name; add one", {})
        function = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
        return {"type": "function", "function": function | {"parameters": schema}}
    return {key: value for key, value in tool.items() if key != "function"}


def chat_tools(tools: Iterable[Any]) -> list[Any]:
    """The tools of another API, each as by `as_tool`. Raises RequestError."""
    converted = []
    for i, tool in enumerate(tools):
        try:
            converted.append(as_tool(tool))
        except PydanticCustomError as error:
            raise RequestError(f"tools[{i}] {error.message()}", "tools") from None
    return converted


def function_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call of a function in a chat's form."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def functions(tools: Iterable[Mapping[str, Any]]) -> tuple[list[Any], list[str]]:
    """The functions among some tools of `as_tool`, and what the others are called."""
    known, ignored = [], []
    for i, tool in enumerate(tools):
        if "function" in tool:
            known.append(tool)
        else:
            names = (*_own_names(tool), tool.get("type"))
            name = next((name for name in names if name and isinstance(name, str)), None)
            ignored.append(f"tools.{name[:40]}" if name else f"tools[{i}]")
    return known, list(dict.fromkeys(ignored))


def is_other(name: str, tools: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a tool of this name is no function."""
    return any(name in _own_names(tool) for tool in tools if "function" not in tool)


def _own_names(tool: Mapping[str, Any]) -> list[Any]:
    custom = tool.get("custom")
    return [tool.get("name"), custom.get("name") if isinstance(custom, Mapping) else None]


def as_choice(choice: Any) -> Any:
    """A choice of tools in a chat's form. Raises PydanticCustomError for one of another server."""
    if isinstance(choice, str):
        return _WORDS.get(choice, choice)
    if not isinstance(choice, Mapping):
        return choice
    kind = choice.get("type")
    inner = choice.get(kind if kind in ("function", "custom") else "function")
    if inner is None and isinstance(kind, str) and kind in _WORDS:
        return _WORDS[kind]
    if kind not in (None, "function", "tool", "custom"):
        why = f"asks for {shown(kind, 40)}, but only functions are called; leave it out"
        raise PydanticCustomError(AT_FAULT, "{why}", {"why": why})
    if isinstance(inner, Mapping):
        return {"type": "function", "function": inner}
    if inner is None and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice
