"""What KEDA and the HPA it makes do with an external scaler's answers, in the few lines that matter here.

After keda pkg/scalers/external_scaler.go and pkg/scaling/executor, and kubernetes' replica calculator for an
external metric with AverageValue. No windows and no rate limits: the example manifests switch them off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import grpc

from tests.integration.proto_client import ProtoClient


def hpa_replicas(current: int, total: float, target: float, tolerance: float = 0.1) -> int:
    """ceil(total / target), unless that is within the tolerance of what runs."""
    ratio = total / (target * current)
    return current if 1 - tolerance <= ratio <= 1 + tolerance else math.ceil(total / target)


@dataclass
class ScaledObject:
    """One poll after the other, against a count that obeys at once."""

    client: ProtoClient
    metadata: dict[str, str]
    min_replicas: int = 1
    tolerance: float = 0.1
    replicas: int = 1

    async def poll(self) -> int:
        try:
            totals, target, is_active = await self._ask()
        except grpc.aio.AioRpcError:
            return self.replicas  # without a fallback, KEDA and the HPA leave everything alone
        if not is_active and self.min_replicas == 0:
            self.replicas = 0
        elif self.replicas == 0:
            self.replicas = max(1, self.min_replicas)
        else:
            wanted = hpa_replicas(self.replicas, sum(totals), target, self.tolerance)
            self.replicas = max(1, self.min_replicas, wanted)
        return self.replicas

    async def _ask(self) -> tuple[list[float], float, bool]:
        ref = self.client.message("ScaledObjectRef")(name="chat", scalerMetadata=self.metadata)
        (spec,) = (await self.client.call("GetMetricSpec", ref)).metricSpecs
        asked = self.client.message("GetMetricsRequest")(scaledObjectRef=ref, metricName=spec.metricName)
        values = (await self.client.call("GetMetrics", asked)).metricValues
        is_active = (await self.client.call("IsActive", ref)).result
        return [_number(value, "metricValue") for value in values], _number(spec, "targetSize"), is_active


def _number(message: Any, name: str) -> float:
    """The Float field where the proto has one and it is above 0, else the whole number: as KEDA reads it."""
    return getattr(message, f"{name}Float", 0) or getattr(message, name)
