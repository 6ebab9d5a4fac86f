"""What the gateway answers when it does not answer with a completion.

GatewayError
├── InvalidRequest 400            the body, or a value in it, is wrong
│   ├── UnsupportedFeature        known to OpenAI, not done here
│   └── ContextLengthExceeded     prompt longer than the model's context
├── KeyMissing, KeyInvalid 401    who calls is not known
├── Forbidden 403                 the key may not do this
├── ModelNotFound 404
├── FileNotFound, BatchNotFound 404
├── RouteNotFound 404, MethodNotAllowed 405
├── FileInUse, BatchOver 409      what runs, or runs no more, can't be changed so
├── StorageFull 413               the tenant's files have too many bytes
├── BodyTimeout 408               half a body came, and no more
│   └── HeadTimeout               not even the headers came
├── BodyTooLarge 413
├── QueueFull 429                 Triton's queue limit; try again
├── LimitExceeded 429             a limit of the key or of the service
├── ClientGone 499                nobody is left to read the answer; only logged
├── InternalError 500
│   └── UpstreamFailed            Triton or the engine broke, or a stream was cut
├── NotServedHere 501             known to OpenAI's API, nothing here does it
├── UpstreamUnavailable 503       nothing serves the model now; try again
│   ├── ModelNotLoaded            it has no instance in Triton
│   └── ModelAsleep               it was waited for, and none came in time
├── ServiceSaturated 503          at its maximum, and the wait for it is over
├── LimitsUnavailable 503         their store does not answer, and the gateway is to fail closed
└── DeadlineExceeded 504
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar

import grpc
import msgspec

from contracts.triton_key import REFUSAL

MAX_SHOWN_CHARS = 80


class GatewayError(Exception):
    """Base: every error that a client sees. `param` names the part of the body that is wrong."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    type: ClassVar[str] = "server_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers: Mapping[str, str] = {}
        """Beside Retry-After."""

    def body(self) -> bytes:
        """In OpenAI's shape."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class InvalidRequest(GatewayError):
    status = 400
    grpc_code = grpc.StatusCode.INVALID_ARGUMENT
    type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedFeature(InvalidRequest):
    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class KeyMissing(GatewayError):
    status = 401
    grpc_code = grpc.StatusCode.UNAUTHENTICATED
    type = "invalid_request_error"
    code = "missing_api_key"


class KeyInvalid(GatewayError):
    """Unknown, revoked and expired keys look alike from outside."""

    status = 401
    grpc_code = grpc.StatusCode.UNAUTHENTICATED
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(GatewayError):
    status = 403
    grpc_code = grpc.StatusCode.PERMISSION_DENIED
    type = "permission_error"
    code = "permission_denied"


class ModelNotFound(GatewayError):
    status = 404
    grpc_code = grpc.StatusCode.NOT_FOUND
    type = "invalid_request_error"
    code = "model_not_found"


class RouteNotFound(GatewayError):
    status = 404
    grpc_code = grpc.StatusCode.UNIMPLEMENTED
    type = "invalid_request_error"
    code = "unknown_url"


class FileNotFound(GatewayError):
    """Another tenant's file is not there either."""

    status = 404
    type = "invalid_request_error"
    code = "file_not_found"


class BatchNotFound(FileNotFound):
    code = "batch_not_found"


class FileInUse(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "file_in_use"


class BatchOver(FileInUse):
    code = "batch_over"


class StorageFull(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "storage_full"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTimeout(GatewayError):
    status = 408
    type = "timeout_error"
    code = "body_timeout"


class HeadTimeout(BodyTimeout):
    code = "head_timeout"


class BodyTooLarge(GatewayError):
    status = 413
    grpc_code = grpc.StatusCode.RESOURCE_EXHAUSTED
    type = "invalid_request_error"
    code = "body_too_large"


class QueueFull(GatewayError):
    status = 429
    grpc_code = grpc.StatusCode.RESOURCE_EXHAUSTED
    type = "rate_limit_error"
    code = "queue_full"
    retry_after_s = 1


class LimitExceeded(GatewayError):
    status = 429
    grpc_code = grpc.StatusCode.RESOURCE_EXHAUSTED
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        retry_after_s: float = 1.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, param)
        self.retry_after_s = max(1, math.ceil(retry_after_s))
        self.headers = headers or {}


class ClientGone(GatewayError):
    status = 499
    grpc_code = grpc.StatusCode.CANCELLED
    type = "client_closed_request"
    code = "client_closed_request"


class InternalError(GatewayError):
    status = 500
    code = "internal_error"


class NotServedHere(GatewayError):
    """Known to OpenAI's API, and there is nothing here yet that does it."""

    status = 501
    type = "invalid_request_error"
    code = "not_served"


class UpstreamFailed(InternalError):
    code = "upstream_failed"


class UpstreamUnavailable(GatewayError):
    status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    code = "upstream_unavailable"
    retry_after_s = 1


class ServiceSaturated(GatewayError):
    status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    code = "service_saturated"
    retry_after_s = 5


class LimitsUnavailable(GatewayError):
    status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    code = "limits_unavailable"
    retry_after_s = 1


class ModelNotLoaded(UpstreamUnavailable):
    """Triton knows the model and has no instance of it now."""


class ModelAsleep(UpstreamUnavailable):
    code = "model_asleep"
    retry_after_s = 5


class DeadlineExceeded(GatewayError):
    status = 504
    grpc_code = grpc.StatusCode.DEADLINE_EXCEEDED
    type = "timeout_error"
    code = "deadline_exceeded"


def shown(value: object) -> str:
    """The value as JSON, cut: an error text must not carry a megabyte back."""
    try:
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


# The bridge starts every error text with one of these; Triton passes the text on and, on a stream, no code.
_BY_PREFIX: dict[str, type[GatewayError]] = {
    "invalid argument": InvalidRequest,
    "unavailable": UpstreamUnavailable,
    "deadline exceeded": DeadlineExceeded,
    "cancelled": UpstreamFailed,
    "internal": UpstreamFailed,
}
_PREFIX = re.compile(r"^\s*(" + "|".join(_BY_PREFIX) + r"): (.*)", re.DOTALL)

BROKEN_WRITE = "Internal error from Core"
"""What gRPC's client says, as INTERNAL, where a connection broke under a write to a stream (grpc#36066)."""

# Texts of Triton itself. Its codes alone would mislead: a dead stub is INTERNAL, a full queue UNAVAILABLE.
_BY_TRITON_TEXT: tuple[tuple[re.Pattern[str], type[GatewayError]], ...] = (
    (re.compile(r"stub process .*is not healthy", re.IGNORECASE | re.DOTALL), UpstreamUnavailable),
    (re.compile(r"exceeds maximum queue size", re.IGNORECASE), QueueFull),
    (re.compile(r"has no available versions|is not ready", re.IGNORECASE), ModelNotLoaded),
    # Not for the client to mend, and not to be tried again: our key is not the one this Triton was started with.
    (re.compile(re.escape(REFUSAL)), UpstreamFailed),
    (re.compile(r"server exiting", re.IGNORECASE), UpstreamUnavailable),
    (re.compile(r"unknown model.*is not found", re.IGNORECASE | re.DOTALL), ModelNotFound),
    (re.compile(re.escape(BROKEN_WRITE)), UpstreamUnavailable),
)

_BY_STATUS: dict[grpc.StatusCode, type[GatewayError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.UNAVAILABLE: UpstreamUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BodyTooLarge,
    grpc.StatusCode.UNIMPLEMENTED: UpstreamFailed,
}


def from_triton(text: str, status: grpc.StatusCode | None = None) -> GatewayError:
    """Triton's error text, and its gRPC code where there is one -> ours."""
    if match := _PREFIX.match(text):
        return _BY_PREFIX[match[1]](match[2])
    for pattern, error in _BY_TRITON_TEXT:
        if pattern.search(text):
            return error(text)
    kind = _BY_STATUS.get(status, UpstreamFailed) if status is not None else UpstreamFailed
    return kind(f"Triton: {text}" if text else f"Triton answered {status}")


def from_http_status(status: int) -> GatewayError:
    """The router's own refusals (unknown path, wrong method) in our shape."""
    if status == HTTPStatus.NOT_FOUND:
        return RouteNotFound(
            "unknown URL; the gateway serves /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models, "
            "/v1/files, /v1/batches, /v1/usage and /health/{live,ready}; /openapi.json describes them"
        )
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowed("this URL does not take that method")
    return InternalError(f"request refused with status {status}")
