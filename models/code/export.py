"""Writes a checkpoint of tgr-mini-code as a GGUF file; see `models.export`.

The chat template leaves the system message out: the model knows the assistant's user message and
its own answers, nothing else, and it does not think.
"""

from models.code.data import shared_vocabulary
from models.export import Identity, run

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role != 'system' %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- endif %}"
)
SEARCH = {
    "tgr.chunk_len": 96, "tgr.rollout_len": 16, "tgr.max_chunks": 4, "tgr.temperature": 0.8,
    "tgr.edit_format": "function", "tgr.instructions": "none",
}  # fmt: skip
"""A chunk holds a whole answer of the usual length."""


def main() -> None:
    """Export tgr-mini-code."""
    run(
        __doc__,
        Identity(
            "tgr-mini-code",
            "A very small model that repairs small Python functions by their failing tests.",
            shared_vocabulary(),
            CHAT_TEMPLATE,
            SEARCH,
        ),
    )


if __name__ == "__main__":
    main()
