"""Addresses as clients write them, and what a wrong one is answered.

Programs join a base address and a path in their own ways, so slashes are doubled or trail; monitors
ask with HEAD. Both mean the endpoint without.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SHOWN = 200  # characters of a path


class Addresses:
    """ASGI middleware that makes `//v1//models/` the endpoint /v1/models, and answers HEAD as GET
    without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = re.sub("^https?://[^/]+", "", scope["path"])  # a whole address, as for a proxy
        path = re.sub("//+", "/", path)
        scope = {**scope, "path": path.rstrip("/") or "/"}
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_over = False

        async def without_body(message: Message) -> None:
            nonlocal is_over
            if message["type"] == "http.response.body":
                if is_over:
                    return
                is_over, message = True, {"type": message["type"], "body": b"", "more_body": False}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


def unknown(path: str, known: Iterable[str]) -> str:
    """The message for a path that is none of the known ones."""
    paths = [one for one in known if "{" not in one]
    ends = [one for one in paths if len(one) > 1 and path.endswith(one)]
    like = functools.partial(difflib.get_close_matches, path[:_SHOWN], paths, n=1)
    near = like(cutoff=0.9) or ends or like()
    hint = f"did you mean {max(near, key=len)}?" if near else "the API is below /v1"
    return f"there is no {path:.{_SHOWN}}; {hint}"
