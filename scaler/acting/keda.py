"""KEDA's external scaler (contracts/externalscaler.proto): how many replicas are wanted, pulled and pushed.

GetMetricSpec follows from the trigger alone, so it is answered before the policy is read or a model is known. No
answer is ever a guess: what is wanted stays what was decided last, however old, and a scaler that has no right to
say (see leader.py) answers UNAVAILABLE, upon which KEDA leaves the count alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeAlias

import grpc

from contracts import externalscaler_pb2 as pb
from contracts import externalscaler_pb2_grpc as pb_grpc
from scaler.acting.keda_trigger import BadTrigger, Trigger, metric_spec, metric_value
from scaler.errors import ModelUnknown, ScaleError, WantedUnknown

LOOK_AGAIN_S = 1.0
"""Streams look without being told, too: lost notices then delay a change by so much, not for ever."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ReplicaSource(Protocol):
    """Who knows how many instances KEDA is to run: `KedaTarget`, or `LedReplicas` where several scalers are."""

    async def wanted(self, model: str) -> int:
        """As decided last. 0 only when zero was decided.

        Raises ModelUnknown, or WantedUnknown when nothing is decided yet or this scaler has no right to say.
        """
        ...

    def changes(self) -> AsyncIterator[object]:
        """Yields after anything may have changed. The server alone reads it, once."""
        ...


class ExternalScaler(pb_grpc.ExternalScalerServicer):
    """The five calls. `run` has to be running for pushes to be prompt; `close` ends the streams."""

    def __init__(self, source: ReplicaSource) -> None:
        self._source = source
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Wakes the streams whenever the source says so."""
        async for _ in self._source.changes():
            self._wake()

    def close(self) -> None:
        """Ends every stream with OK: KEDA opens the next one after 2 s instead of backing off."""
        self._closed.set()
        self._wake()

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        async with _refusals(context):
            return metric_spec(Trigger.parse(request.scalerMetadata))

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        async with _refusals(context):
            trigger = Trigger.parse(request.scaledObjectRef.scalerMetadata)
            return metric_value(trigger, request.metricName, await self._source.wanted(trigger.model))

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        async with _refusals(context):
            return await self._activity(Trigger.parse(request.scalerMetadata))

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """The state now, then each other one that is seen. A reader too slow for all of them gets the newest."""
        async with _refusals(context):
            trigger = Trigger.parse(request.scalerMetadata)
            sent: pb.IsActiveResponse | None = None
            while not self._closed.is_set():
                changed = self._changed  # before the look: what happens after it is then not slept through
                with contextlib.suppress(WantedUnknown):  # nothing to say yet: the stream waits
                    if (state := await self._activity(trigger)) != sent:
                        sent = state
                        yield state
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await changed.wait()

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """One message: the spec follows from the trigger, and KEDA opens another stream when that changes."""
        async with _refusals(context):
            yield metric_spec(Trigger.parse(request.scalerMetadata))
            await self._closed.wait()

    async def _activity(self, trigger: Trigger) -> pb.IsActiveResponse:
        return pb.IsActiveResponse(result=await self._source.wanted(trigger.model) > 0)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@contextlib.asynccontextmanager
async def _refusals(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except BadTrigger as exc:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
    except ModelUnknown as exc:
        await context.abort(grpc.StatusCode.NOT_FOUND, str(exc))
    except ScaleError as exc:  # WantedUnknown, and whatever keeps us from knowing
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(exc))
