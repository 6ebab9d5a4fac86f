"""What a KEDA trigger asks for, and the metric that answers it. Pure.

The metric is the wanted count itself with a target of 1, so the autoscaler that KEDA makes computes exactly our
number and needs no thresholds or windows of its own. The trigger's metadata says what it is about:

    model: chat                 required
    instancesPerReplica: "4"    how many instances one pod holds, by default 1; 9 wanted instances are 3 replicas

An HPA ignores differences up to its tolerance, 10 % unless it says otherwise. No metric gets around that without
asking for more than is wanted; deploy/README.md tells what to do from ten replicas on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from contracts import externalscaler_pb2 as pb

TARGET = 1
_INDEX = re.compile(r"^s\d+-")


class BadTrigger(ValueError):
    """The metadata of a ScaledObject's trigger says nothing that we can follow."""


@dataclass(frozen=True)
class Trigger:
    """What the metadata of a ScaledObject asks for."""

    model: str
    instances_per_replica: int = 1

    @classmethod
    def parse(cls, metadata: Mapping[str, str]) -> Trigger:
        model = metadata.get("model", "").strip()
        if not model:
            raise BadTrigger(f"the trigger's metadata has {sorted(metadata)} and no model; add `model: NAME`")
        share = metadata.get("instancesPerReplica", "1").strip()
        if not (share.isascii() and share.isdigit() and 1 <= int(share) <= 1000):
            raise BadTrigger(f"instancesPerReplica = {share!r}, must be a whole number from 1 to 1000")
        return cls(model, int(share))

    @property
    def metric_name(self) -> str:
        """It becomes a path segment of the external metrics API."""
        return "tidegate-" + re.sub(r"[^A-Za-z0-9_.-]", "-", self.model)

    def replicas(self, instances: int) -> int:
        return -(-instances // self.instances_per_replica)


def metric_spec(trigger: Trigger) -> pb.GetMetricSpecResponse:
    spec = pb.MetricSpec(metricName=trigger.metric_name, targetSize=TARGET, targetSizeFloat=TARGET)
    return pb.GetMetricSpecResponse(metricSpecs=[spec])


def metric_value(trigger: Trigger, metric_name: str, instances: int) -> pb.GetMetricsResponse:
    """Raises BadTrigger for a metric that is not the trigger's."""
    if _INDEX.sub("", metric_name) != trigger.metric_name:
        raise BadTrigger(f"metric {metric_name!r} is not {trigger.model}'s, which is {trigger.metric_name!r}")
    count = trigger.replicas(instances)
    value = pb.MetricValue(metricName=trigger.metric_name, metricValue=count, metricValueFloat=count)
    return pb.GetMetricsResponse(metricValues=[value])
