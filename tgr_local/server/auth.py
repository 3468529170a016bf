"""Access to the server: for clients with a key, if keys are set, and for no foreign site's page.

A browser sends a page's request to this machine even if the page may not read the answer, so a
request with a foreign `Origin` is refused before it costs anything, and so is one without
`Origin`, as for an image or a script, of which the browser says that its site is another one; only
the page itself may be opened by a link. A foreign host name that resolves to this machine gives a
page the right `Origin`, so a local server without keys answers only to local names.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tgr_local.server.errors import ApiError
from tgr_local.server.page_files import PATHS
from tgr_local.server.wire import failure

LOCAL_ORIGIN = r"https?://([\w.-]+\.)?(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
OWNER = "tgr.owner"
"""Entry of a request's scope: the digest of its API key; absent unless there are several keys."""
OPEN = {*PATHS, "/health", "/v1/health"}  # the page contains no data, and monitoring needs no key


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached only from this machine."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def origin_pattern(origins: Sequence[str]) -> str:
    """A regular expression of the origins that are trusted, as is this server's own: local pages
    and `origins`, in which * stands for any text and an end of :// for any host of that scheme."""
    wild = [f"{origin}*" if origin.endswith("://") else origin for origin in origins]
    escaped = [".*".join(map(re.escape, origin.split("*"))) for origin in wild]
    return "|".join(f"(?:{origin})" for origin in (LOCAL_ORIGIN, *escaped))


class Auth:
    """ASGI middleware that refuses requests without a key and those of foreign pages.

    A server on a loopback address trusts local pages and `origins`; another one also its own pages.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], host: str, origins: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]
        self._owners = len(set(self._digests)) > 1
        self._local = is_loopback(host)
        self._origins = re.compile(origin_pattern(origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await failure(refusal, scope["path"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "localhost")  # browsers always send it
        if self._local and not self._digests and not is_loopback(_hostname(f"//{host}")):
            return ApiError(
                403,
                f"this server answers to localhost, not to {host}; set an API key to let other "
                "names through",
            )
        origin = headers.get("origin")
        if origin is not None and not self._trusts(origin, headers.get("host", "")):
            return ApiError(
                403,
                f"pages of {origin:.200} may not use this server; --allow-origin {origin:.200} "
                "allows them",
            )
        if origin is None and not self._may_fetch(scope["path"], headers):
            return ApiError(
                403,
                "pages of other sites may not use this server; --allow-origin ORIGIN allows those "
                "of an origin, which must ask with CORS",
            )
        if scope["path"] in OPEN or not self._digests:
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = [key if kind.lower() == "bearer" else "", headers.get("x-api-key", "")]
        known = [key.strip() for key in given if self._is_known(key.strip())]
        if known:
            if self._owners:
                scope[OWNER] = _digest(known[0].encode("latin-1", "replace"))
            return None
        fault = "is not one of this server's" if any(given) else "is missing"
        return ApiError(
            401,
            f"the API key {fault}: send it as Authorization: Bearer KEY, or as X-Api-Key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _may_fetch(self, path: str, headers: Headers) -> bool:
        """Whether a request without `Origin` is of no page, of an own one, or opens the page."""
        site = headers.get("sec-fetch-site", "none").lower()
        if site in ("none", "same-origin"):
            return True
        opens = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
        if path == "/" and opens == ("navigate", "document"):
            return True
        # of a name of this machine: another port of it
        return site == "same-site" and is_loopback(_hostname(f"//{headers.get('host', '')}"))

    def _trusts(self, origin: str, host: str) -> bool:
        if is_loopback(_hostname(origin)) or self._origins.fullmatch(origin):
            return True
        return not self._local and bool(host) and origin.partition("://")[2] == host

    def _is_known(self, key: str) -> bool:
        # every key is compared, each in constant time, so that timing reveals nothing
        digest = _digest(key.encode("latin-1", "replace"))
        return any([hmac.compare_digest(digest, known) for known in self._digests])


def _hostname(url: str) -> str:
    """The host of a URL; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
