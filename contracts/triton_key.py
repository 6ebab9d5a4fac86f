"""The key of Triton's restricted calls: made anew at each start of a stack, sent by what is ours and nobody else.

It lies in RUN_DIR/triton.key, for this user alone, and stands in no config, log or environment.
"""

from __future__ import annotations

from pathlib import Path

TRITON_KEY_NAME = "triton.key"
GRPC_NAME = "tidegate"
HTTP_NAME = "tidegate-triton-key"
REFUSAL = "This protocol is restricted"
"""How Triton's refusal begins, whose gRPC code is UNAVAILABLE."""


def read_triton_key(path: str | Path) -> str:
    """ "": no path, no key. Raises OSError."""
    return Path(path).read_text().strip() if path else ""


def grpc_metadata(key: str) -> tuple[tuple[str, str], ...]:
    """Triton puts a prefix of its own before the name."""
    return ((f"triton-grpc-protocol-{GRPC_NAME}", key),) if key else ()


def http_headers(key: str) -> dict[str, str]:
    return {HTTP_NAME: key} if key else {}
