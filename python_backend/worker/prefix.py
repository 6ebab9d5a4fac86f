"""Names for full blocks: a hash chain over their tokens, from a root that says whose and what they are.

Two blocks have the same name only if everything that decides their K and V is the same: the weights, how both are
stored, the tokens before them, and the tenant, whose prompts nobody else may even find (vllm#12621). Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np

DIGEST_BYTES = 16


@dataclass(frozen=True)
class PrefixIdentity:
    """What the K and V of the same tokens depend on."""

    fingerprint: str
    """Of the weights."""
    precision: str
    kv_precision: str
    block_tokens: int

    def root(self, tenant: str) -> bytes:
        """The digest before the first block of a tenant's prompts."""
        parts = [self.fingerprint, self.precision, self.kv_precision, self.block_tokens, tenant]
        return _digest(json.dumps(parts).encode())


def token_bytes(tokens: Tokens[int]) -> bytes:
    """int32, little-endian."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def extend_chain(chain: list[bytes], root: bytes, tokens: Tokens[int], block_tokens: int) -> None:
    """Append the digests of the full blocks of `tokens` that the chain lacks."""
    for start in range(len(chain) * block_tokens, len(tokens) // block_tokens * block_tokens, block_tokens):
        before = chain[-1] if chain else root
        chain.append(_digest(before + token_bytes(tokens[start : start + block_tokens])))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]
