"""What files and batches need; the ledger keeps them, so without one there are none."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import NotServedHere
from ledger.batches import BatchStore
from ledger.files import FileStore

MAX_PAGE, DEFAULT_PAGE = 100, 20
"""Of lists of files and batches."""
MIB = 1024 * 1024
MAX_FILE_BYTES = 32 * MIB
MAX_TENANT_BYTES = 512 * MIB
"""Uploads of one tenant and what its batches have written; a batch that runs writes its answers in any case."""


@dataclass(frozen=True)
class BatchParts:
    files: FileStore
    batches: BatchStore
    max_file_bytes: int = MAX_FILE_BYTES


def batches_of(parts: BatchParts | None) -> BatchParts:
    """Raises NotServedHere."""
    if parts is None:
        raise NotServedHere("files and batches lie in the ledger, and this gateway has none (ledger_url)")
    return parts
