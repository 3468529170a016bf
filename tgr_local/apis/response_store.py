"""The responses of /v1/responses that can be continued: in memory, bounded, the latest ones."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any

from tgr_local.system.errors import TgrError

JsonObject = dict[str, Any]
_Key = tuple[bytes, str]  # the owner, the id


class UnknownResponse(TgrError):
    """No such response is kept."""

    param = "previous_response_id"


class Responses:
    """Store of at most `most` responses and their conversations, and `most_bytes` of JSON together;
    the one that was not used for longest goes first. Each owner sees only its own. Any thread."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, tuple[bytes, bytes]] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, owner: bytes) -> ResponseStore:
        """The responses of one owner."""
        return ResponseStore(self, owner)

    def keep(self, key: _Key, response_and_items: tuple[bytes, bytes]) -> None:
        with self._lock:
            self._drop(key)
            self._kept[key] = response_and_items
            self.n_bytes += sum(map(len, response_and_items))
            while self._kept and (len(self._kept) > self.most or self.n_bytes > self.most_bytes):
                self._drop(next(iter(self._kept)))

    def found(self, key: _Key, *, drop: bool = False) -> tuple[bytes, bytes]:
        """Returns a kept response, and forgets it with `drop`. Raises UnknownResponse."""
        with self._lock:
            if kept := self._kept.get(key):
                self._kept.move_to_end(key)
                if drop:
                    self._drop(key)
                return kept
        raise UnknownResponse(
            f"there is no response {key[1]!r:.80} here: at most {self.most} are kept in memory, "
            f"{self.most_bytes >> 20} MiB together; send the whole conversation"
        )

    def _drop(self, key: _Key) -> None:
        if dropped := self._kept.pop(key, None):
            self.n_bytes -= sum(map(len, dropped))


class ResponseStore:
    """The kept responses of one owner. Any thread."""

    def __init__(self, responses: Responses, owner: bytes = b"") -> None:
        self._responses, self._owner = responses, owner

    def keep(self, response: JsonObject, items: list[Any]) -> None:
        """Keeps a response and the items of the conversation up to its end."""
        response_and_items = json.dumps(response).encode(), json.dumps(items).encode()
        self._responses.keep((self._owner, response["id"]), response_and_items)

    def items(self, response_id: str) -> list[Any]:
        """The conversation up to the end of a response. Raises UnknownResponse."""
        items: list[Any] = json.loads(self._responses.found((self._owner, response_id))[1])
        return items

    def response(self, response_id: str) -> JsonObject:
        """A response. Raises UnknownResponse."""
        response: JsonObject = json.loads(self._responses.found((self._owner, response_id))[0])
        return response

    def delete(self, response_id: str) -> None:
        """Forgets a response. Raises UnknownResponse."""
        self._responses.found((self._owner, response_id), drop=True)
