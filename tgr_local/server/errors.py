"""Errors as clients see them: a status, and a body in OpenAI's format."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tgr_local.errors import CancelledError, CapacityError, TgrError, describe, is_shortage
from tgr_local.openai.message_events import error_object
from tgr_local.openai.response_store import UnknownResponse

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "service_unavailable_error",
}


class ErrorDetail(BaseModel):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of an error, in OpenAI's format."""

    error: ErrorDetail


class ApiError(Exception):
    """Ends a request with a status and a message; `param` names the parameter at fault, if any."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code, self.headers = param, code, headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The body in OpenAI's format."""
        return {
            "error": {
                "message": self.message,
                "type": _KINDS.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The body in Anthropic's format."""
        return error_object(self.body["error"])


def api_error(error: BaseException) -> ApiError:
    """Any error of a request as the client sees it."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, Exception):
        return ApiError(500, type(error).__name__)
    text = describe(error)
    if isinstance(error, UnknownResponse):
        return ApiError(404, text, param=error.param, code="previous_response_not_found")
    if isinstance(error, CapacityError):
        return ApiError(400, text, code="context_length_exceeded")
    if isinstance(error, CancelledError):
        return ApiError(503, text, code="cancelled")
    if type(error) is TgrError:  # of the engine, not of the request
        return ApiError(500, text)
    if isinstance(error, ValueError | TgrError):
        return ApiError(400, text, param=getattr(error, "param", None))
    if is_shortage(error):
        return ApiError(503, text, code="out_of_memory", headers={"Retry-After": "1"})
    return ApiError(500, text)
