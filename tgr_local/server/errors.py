"""Errors as clients see them: a status, and a body in OpenAI's or Anthropic's format."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tgr_local.apis.message_events import error_object
from tgr_local.apis.response_store import UnknownResponse
from tgr_local.system.errors import (
    CancelledError,
    CapacityError,
    ContextError,
    TgrError,
    describe,
    is_shortage,
)

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
    """Description of an invalid request."""

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
        facts: dict[str, int] | None = None,
        anthropic: str = "",
    ) -> None:
        """`facts` are further fields of the body; `anthropic` is the message in Anthropic's API,
        where that is another one."""
        super().__init__(message)
        self._facts, self._anthropic = facts or {}, anthropic
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
                **self._facts,
            }
        }

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The body in Anthropic's format."""
        error = self.body["error"]
        return error_object(error | ({"message": self._anthropic} if self._anthropic else {}))

    @property
    def ollama_body(self) -> dict[str, Any]:
        """The body in Ollama's format."""
        return {"error": self.message}


def no_model(message: str, status: int = 404) -> ApiError:
    """The error for a request whose `model` names none."""
    return ApiError(status, message, param="model", code="model_not_found")


def out_of_memory(message: str) -> ApiError:
    """The error for a lack of memory, which may be over soon."""
    return ApiError(503, message, code="out_of_memory", headers={"Retry-After": "1"})


def _too_long(error: ContextError) -> ApiError:
    """The error with the words by which clients know it, and then shorten their conversation: those
    of llama-server, and in Anthropic's API those of Anthropic."""
    n_tokens, n_ctx, why = error.n_tokens, error.n_ctx, describe(error)
    room = "" if n_tokens > n_ctx else " with the room for its reply"
    return ApiError(
        400,
        f"request ({n_tokens} tokens{room}) exceeds the available context size ({n_ctx} tokens): "
        f"{why}",
        code="context_length_exceeded",
        facts={"n_prompt_tokens": n_tokens, "n_ctx": n_ctx},
        anthropic=f"prompt is too long: {n_tokens} tokens{room} > {n_ctx} maximum: {why}",
    )


def api_error(error: BaseException) -> ApiError:
    """Any error of a request as the client sees it."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, Exception):
        return ApiError(500, type(error).__name__)
    text = describe(error)
    if isinstance(error, UnknownResponse):
        return ApiError(404, text, param=error.param, code="previous_response_not_found")
    if isinstance(error, ContextError):
        return _too_long(error)
    if isinstance(error, CapacityError):
        return ApiError(400, text, code="context_length_exceeded")
    if isinstance(error, CancelledError):
        return ApiError(503, text, code="cancelled")
    if type(error) is TgrError:  # of the engine, not of the request
        return ApiError(500, text)
    if isinstance(error, ValueError | TgrError):
        return ApiError(400, text, param=getattr(error, "param", None))
    if is_shortage(error):
        return out_of_memory(text)
    return ApiError(500, text)
