"""The page's own files: HTML, CSS and JavaScript in the folder ``page``, served as they are; and
/render: a reply's Markdown as HTML that is safe in the page.

They contain no data, so they need no key. The page loads nothing from elsewhere and runs no inline
script: its security policy says so to the browser. `markup` makes the HTML in the process for
untrusted input, with its limits of time and memory.

    index.html          its frame
    main.js             … wires the parts together
    conversation.js     a conversation as a tree of messages
    store.js            … in the browser's storage; settings
    api.js              requests, errors, event streams
    reply.js            replies under way
    composer.js         where a question is written: its text, its files, the buttons
    files.js            … text files: read, bounded, fenced
    question.js         … a question on the screen, and its editor
    view.js             messages on the screen
    foot.js             … below a message: variants, how it ended, the ways out
    markdown.js         … their Markdown, made by /render
    search.js           the search behind a reply: bars, tables, the tree
    sidebar.js          the list of conversations
    settings.js         the settings
    dom.js              elements and icons
    theme.js            the colours, before anything is drawn
    style.css           the frame, messages, dialogs
    text.css            rendered Markdown
    search.css          the search
    icon.svg            the icon
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from tgr_local.apis.validation import RequestBody, RequestError
from tgr_local.engine import Cancel
from tgr_local.system import confined
from tgr_local.system.confined import ConfinedError
from tgr_local.system.turnstile import Turnstile

_FOLDER = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types rendered",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser asks every time whether the file is the same
}
PATHS = {
    "/" if file.name == "index.html" else f"/page/{file.name}": file
    for file in sorted(_FOLDER.iterdir())
    if file.suffix in _TYPES
}
"""The file of every address."""


def add_page(app: FastAPI) -> None:
    """Adds a route for every file of the page."""
    for path, file in PATHS.items():
        app.router.routes.append(Route(path, _PageFile(file).respond, methods=["GET"]))


class _PageFile:
    """A file that is read once."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        tag = f'"{hashlib.sha256(self._data).hexdigest()[:32]}"'
        self._headers = {**_HEADERS, "Content-Type": _TYPES[path.suffix], "ETag": tag}

    async def respond(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._data, headers=self._headers)


# ---- Markdown ----

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
