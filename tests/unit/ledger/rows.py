"""Calls to test with."""

from __future__ import annotations

from typing import Any

from ledger.calls import CallRow

NOON = 1_764_590_400.0
"""2025-12-01 12:00:00 UTC."""


def call(number: int = 0, **fields: Any) -> CallRow:
    """One a second from noon on, each with its own request."""
    return CallRow(
        **{
            "request_id": f"request-{number}",
            "started_unix_s": NOON + number,
            "door": "http",
            "operation": "chat",
            "service": "chat",
            "outcome": "ok",
            "duration_s": 0.5,
            **fields,
        }
    )
