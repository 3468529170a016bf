"""The chat template of a loaded model: its file's, one that the user names, or a plain one.

The file of a base model has none. The plain template marks questions and answers with words, so
that any model can hold a conversation. Its stop text ends a reply before the model writes the next
question itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tgr_local.system import paths
from tgr_local.system.errors import ModelError
from tgr_local.system.files import utf8_text

MOST_BYTES = 1 << 20
_PLAIN = """\
{%- if messages[0].role != 'system' -%}
{{ 'A chat between a user and an assistant. The assistant gives correct, helpful answers.\n\n' }}\
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}
{%- elif message.role == 'assistant' -%}{{ 'Assistant: ' + message.content + '\n' }}
{%- else -%}{{ 'User: ' + message.content + '\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""
_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""


class ChatTemplate(NamedTuple):
    """A template in Jinja, and what goes with it."""

    text: str
    stop: str = ""
    """Text that ends a reply, for a model that writes no end token; empty = none."""
    warning: str = ""
    """Warning for the user."""


NAMED = {"plain": ChatTemplate(_PLAIN, "\nUser:"), "chatml": ChatTemplate(_CHATML, "<|im_end|>")}
"""The templates that can be named."""


def named(name: str) -> ChatTemplate | None:
    """The template of that name in `NAMED`, or in the file of that path; None for an empty name.
    Raises ValueError if there is neither, ModelError for a file that is not a template."""
    if not name:
        return None
    if name in NAMED:
        return NAMED[name]
    path = paths.expanded("chat_template", name)
    try:
        if not path.is_file():
            raise ValueError(
                f"chat_template is {name!r:.200}, but must be {' or '.join(NAMED)}, or a file"
            )
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ModelError(f"{path} has more than {MOST_BYTES} bytes, too many for a template")
        if not data.strip():
            raise ModelError(f"{path} is empty; write a template in it, or name another file")
        return ChatTemplate(utf8_text(data))
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path} is not UTF-8 text: byte {error.start}; save it as UTF-8"
        ) from None


def of_model(of_file: str, path: Path) -> ChatTemplate:
    """The template of the model file at `path`, or if it has none the plain one."""
    if of_file.strip():
        return ChatTemplate(of_file)
    return NAMED["plain"]._replace(
        warning=f"{path.name} has no chat template, as base models have none; questions and "
        "answers are marked with User: and Assistant:; --chat-template names another template"
    )
