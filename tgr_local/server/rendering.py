"""/render: a reply's Markdown as HTML that is safe in the page.

The work is done by `markup` in the process for untrusted input, with its limits of time and memory.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tgr_local.apis.validation import RequestBody, RequestError
from tgr_local.engine import Cancel
from tgr_local.system import confined
from tgr_local.system.confined import ConfinedError
from tgr_local.system.turnstile import Turnstile

TEXT_MOST = 1 << 16
"""Characters of a text: about a second. The page sends a longer one in parts."""
_TURN = Turnstile(1)  # one text at a time: the other processes are for the templates of chats
_MARKUP = Path(__file__).with_name("markup.py")


class RenderRequest(RequestBody):
    """The body of /render."""

    text: str = Field(max_length=TEXT_MOST, description="Markdown, with LaTeX")


def render(body: RenderRequest, cancel: Cancel) -> bytes:
    """The response to /render, as JSON. Raises RequestError for a text that takes too much."""
    try:
        with _TURN.taken(cancel):
            blocks = confined.call(_MARKUP, {"text": body.text}, cancel)
    except ConfinedError as error:
        raise RequestError(f"text {error}; show it as it is", "text") from None
    return b'{"blocks":' + blocks.encode() + b"}"
