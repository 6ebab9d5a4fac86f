"""The scaler's decisions while a run lasts: what it wanted, when, and why."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from contracts import scaler_pb2, scaler_pb2_grpc
from loadtest.watching.source import Reading, Sample, SourceUnreadable

PERIOD_S = 1.0
"""Between two tries; the decisions themselves come as they are made."""


@dataclass(frozen=True, slots=True)
class WantedChange:
    """`t_s` on CLOCK_MONOTONIC."""

    t_s: float
    model: str
    before: int
    after: int
    reason: str


class ScalerSource:
    """`address`: HOST:PORT of a scaler without TLS and token; another one is a source that fails."""

    name = "scaler"
    period_s = PERIOD_S

    def __init__(self, address: str) -> None:
        self._address = address
        self.changes: list[WantedChange] = []

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """A sample per decision that is told: the last one of each model at once, then those that change."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub: Any = scaler_pb2_grpc.ScalerStub(channel)  # type: ignore[no-untyped-call]  # generated
            call = stub.WatchDecisions(scaler_pb2.WatchDecisionsRequest())
            began_s = time.monotonic()
            try:
                async for decision in call:
                    now_s = time.monotonic()
                    # On one machine both clocks are the scaler's too; a decision is told some ms after it was made.
                    made_s = now_s - max(0.0, time.time() - decision.at_unix_s)
                    if decision.before != decision.wanted and made_s >= began_s:
                        self.changes.append(
                            WantedChange(
                                made_s, decision.model, decision.before, decision.wanted, decision.reason
                            )
                        )
                    labels = (("model", decision.model),)
                    yield Sample(now_s, (Reading("instances.wanted", labels, "1", decision.wanted),))
            except grpc.aio.AioRpcError as exc:
                raise SourceUnreadable(
                    f"no decisions from the scaler at {self._address}: {exc.code().name.lower()}: {exc.details()}"
                ) from exc
            finally:
                call.cancel()
        raise SourceUnreadable(f"the scaler at {self._address} ended the stream of decisions")
