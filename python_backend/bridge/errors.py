"""Errors of the bridge, and the words by which clients know them.

    BridgeError
    ├── InvalidRequest      what the client sent is wrong; INVALID_ARG at Triton
    ├── WorkerUnavailable   no worker serves this instance now; UNAVAILABLE, worth a retry
    └── AttachFailed        the node cannot be reached or refused; the model does not load

Errors of a stream reach the client as text only, so each text begins with its class (`PREFIXES`).
"""

from __future__ import annotations

from python_backend.messages import ErrorCode

PREFIXES: dict[ErrorCode, str] = {
    "INVALID_ARGUMENT": "invalid argument: ",
    "UNAVAILABLE": "unavailable: ",
    "DEADLINE_EXCEEDED": "deadline exceeded: ",
    "CANCELLED": "cancelled: ",
    "INTERNAL": "internal: ",
}


class BridgeError(Exception):
    """Base of this package's errors."""

    code: ErrorCode = "INTERNAL"


class InvalidRequest(BridgeError):
    """The request cannot be served as it is."""

    code = "INVALID_ARGUMENT"


class WorkerUnavailable(BridgeError):
    """No worker serves this instance at the moment."""

    code = "UNAVAILABLE"


class AttachFailed(BridgeError):
    """The node daemon cannot be reached, or it refused this instance."""
