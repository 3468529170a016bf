"""The responses of /v1/responses that can be continued: in memory, bounded, the latest ones."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any

from tgr_local.errors import TgrError

JsonObject = dict[str, Any]


class UnknownResponse(TgrError):
    """No such response is kept."""

    param = "previous_response_id"


class ResponseStore:
    """At most `most` responses with their conversations, and `most_bytes` of JSON together; the one
    that was not used for longest goes first. Any thread."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: JsonObject, items: list[Any]) -> None:
        """Keeps a response and the items of the conversation up to its end."""
        made = json.dumps(response).encode(), json.dumps(items).encode()
        with self._lock:
            self._drop(response["id"])
            self._kept[response["id"]] = made
            self.n_bytes += sum(map(len, made))
            while self._kept and (len(self._kept) > self._most or self.n_bytes > self._most_bytes):
                self._drop(next(iter(self._kept)))

    def items(self, response_id: str) -> list[Any]:
        """The conversation up to the end of a response. Raises UnknownResponse."""
        found: list[Any] = json.loads(self._found(response_id)[1])
        return found

    def response(self, response_id: str) -> JsonObject:
        """A response. Raises UnknownResponse."""
        found: JsonObject = json.loads(self._found(response_id)[0])
        return found

    def delete(self, response_id: str) -> None:
        """Forgets a response. Raises UnknownResponse."""
        self._found(response_id)
        with self._lock:
            self._drop(response_id)

    def _found(self, response_id: str) -> tuple[bytes, bytes]:
        with self._lock:
            if response_id not in self._kept:
                raise UnknownResponse(
                    f"there is no response {response_id!r:.80} here: at most {self._most} are kept "
                    f"in memory, {self._most_bytes >> 20} MiB together; send the whole conversation"
                )
            self._kept.move_to_end(response_id)
            return self._kept[response_id]

    def _drop(self, response_id: str) -> None:
        if dropped := self._kept.pop(response_id, None):
            self.n_bytes -= sum(map(len, dropped))
