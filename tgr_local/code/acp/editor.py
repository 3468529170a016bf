"""Messages and requests from the thread of a prompt to the client.

In: updates of the protocol, from any thread. Out: they are sent, in their order. A client that does
not read makes the thread wait, until its prompt is cancelled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, TypeVar

from acp import RequestError, helpers, schema
from acp.connection import Connection
from pydantic import ValidationError

from tgr_local.engine import Cancel
from tgr_local.system.errors import CancelledError
from tgr_local.system.sanitize import printable

ALLOW, REJECT = "allow", "reject"
_LOOK = 0.1  # seconds between two looks at the flag
_Result = TypeVar("_Result")


class Editor:
    """The client, for one prompt."""

    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        session_id: str,
        cancel: Cancel,
    ) -> None:
        self._connection, self._loop, self._session_id = connection, loop, session_id
        self.cancel = cancel

    def say(self, text: str) -> None:
        """A paragraph of the answer."""
        self.send(helpers.update_agent_message_text(f"{printable(text)}\n\n"))

    def think(self, text: str) -> None:
        """A piece of the thoughts before the answer."""
        self.send(helpers.update_agent_thought_text(printable(text)))

    def send(self, update: Any) -> None:
        """An update. It is lost where the prompt is cancelled and the client does not read."""
        value = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        params = {"sessionId": self._session_id, "update": value}
        try:
            self._wait(self._connection.send_notification("session/update", params))
        except CancelledError:
            return
        except ConnectionError:
            self.cancel.cancel()

    def update_call(
        self, number: str, text: str = "", status: schema.ToolCallStatus | None = None
    ) -> None:
        """A tool call's content and status, as far as they are given."""
        content = [helpers.tool_content(helpers.text_block(text))] if text else None
        self.send(helpers.update_tool_call(number, status=status, content=content))

    def allows(self, call: schema.ToolCallUpdate) -> bool:
        """Whether the person allows a tool call. Raises CancelledError."""
        request = schema.RequestPermissionRequest(
            session_id=self._session_id,
            tool_call=call,
            options=[
                schema.PermissionOption(option_id=ALLOW, name="Accept", kind="allow_once"),
                schema.PermissionOption(option_id=REJECT, name="Reject", kind="reject_once"),
            ],
        )
        params = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            answer = self._wait(self._connection.send_request("session/request_permission", params))
            outcome = schema.RequestPermissionResponse.model_validate(answer).outcome
        except (RequestError, ValidationError) as error:
            why = str(error) if isinstance(error, RequestError) else "its answer is no outcome"
            raise ValueError(f"the editor cannot ask: {why}; /accept takes the edit") from None
        except ConnectionError:
            raise CancelledError("the client is gone") from None
        if isinstance(outcome, schema.DeniedOutcome):
            raise CancelledError("cancelled instead of an answer")
        return outcome.option_id == ALLOW

    def _wait(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of a coroutine in the event loop. Raises CancelledError."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(_LOOK)
            except concurrent.futures.TimeoutError:
                if self.cancel.is_set():
                    future.cancel()
                    raise CancelledError("cancelled while the client was waited for") from None
