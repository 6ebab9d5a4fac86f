"""Triton's RPCs by what they may do. What is in none of the lists is not served."""

from __future__ import annotations

from enum import StrEnum

from tritonclient.grpc import service_pb2

SERVICE = "inference.GRPCInferenceService"


class Kind(StrEnum):
    HEALTH = "health"
    """Needs no key."""
    INFER = "infer"
    READ = "read"
    """Tells of models; needs a key where keys are on."""
    MANAGE = "manage"
    """Changes the server, or shows what others do; needs the admin role."""


_HEALTH = frozenset({"ServerLive", "ServerReady", "ModelReady"})
_INFER = frozenset({"ModelInfer", "ModelStreamInfer"})
NAMES_A_MODEL = frozenset({"ModelMetadata", "ModelConfig", "ModelStatistics"})
"""Reading RPCs that tell of one model, by the first field of their request; ModelStatistics without it of all."""
_READ = NAMES_A_MODEL | {"ServerMetadata"}


def kind_of(method: str) -> Kind | None:
    """`method`: "ModelInfer". None: Triton has no such RPC."""
    if method in _HEALTH:
        return Kind.HEALTH
    if method in _INFER:
        return Kind.INFER
    if method in _READ:
        return Kind.READ
    return Kind.MANAGE if method in METHODS else None


METHODS = frozenset(
    method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
)
"""All of the protocol that the installed tritonclient knows."""
