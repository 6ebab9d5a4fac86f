"""Errors of the engine.

WorkerError
├── ModelRefused      the folder or its weights cannot be served
└── RequestRefused    one request cannot be served; carries the code its client gets
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.messages import ErrorCode


class WorkerError(Exception):
    """Base of this package's errors."""


class ModelRefused(WorkerError):
    """The model's folder or its weights cannot be served as they are."""


class RequestRefused(WorkerError):
    """This request cannot be served; others are unharmed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
