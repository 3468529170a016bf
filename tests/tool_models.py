"""Random models whose chat template knows tools, and functions to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf_edit import STRING, Gguf
from gguf_models import write_model

TOOL_TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Return calls as JSON within <tool_call></tool_call> tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{%- for message in messages %}{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Describes tools and calls as Qwen's templates do."""
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CLOCK: dict[str, Any] = {"name": "clock", "parameters": {"type": "object", "properties": {}}}


def write_tool_model(path: Path, template: str = "") -> Path:
    """A random model with a chat template; empty = TOOL_TEMPLATE. Returns path."""
    write_model(path, n_ctx_train=32768)
    file = Gguf.parse(path.read_bytes())
    file.set("tokenizer.chat_template", (template or TOOL_TEMPLATE).encode(), STRING)
    path.write_bytes(file.to_bytes())
    return path


def tool(function: dict[str, Any]) -> dict[str, Any]:
    """A function as OpenAI's API has it."""
    return {"type": "function", "function": function}
