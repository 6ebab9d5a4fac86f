"""How busy a model's instances are while a run lasts, as the scaler reckons it: what its policy's targets mean."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import grpc

from contracts import scaler_pb2, scaler_pb2_grpc

PERIOD_S = 2.0
CALL_TIMEOUT_S = 2.0


class UtilizationWatch:
    """A context manager around a run; then `mean` is of its second half, when load and figure have settled.

    `address`: the scaler's; "" and there is no figure. A scaler that is silent costs samples and nothing else.
    """

    def __init__(self, address: str, model: str) -> None:
        self._address = address
        self._model = model
        self._values: list[float] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="utilization", daemon=True)

    def __enter__(self) -> UtilizationWatch:
        if self._address:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=PERIOD_S + CALL_TIMEOUT_S)

    @property
    def mean(self) -> float | None:
        """0 to 1; None without a sample."""
        settled = self._values[len(self._values) // 2 :]
        return sum(settled) / len(settled) if settled else None

    def _sample(self) -> None:
        request = scaler_pb2.GetStatusRequest(models=[self._model])
        with grpc.insecure_channel(self._address) as channel:
            stub: Any = scaler_pb2_grpc.ScalerStub(channel)  # type: ignore[no-untyped-call]  # generated
            while not self._end.wait(PERIOD_S):
                try:
                    found = stub.GetStatus(request, timeout=CALL_TIMEOUT_S).models
                except grpc.RpcError:
                    continue
                readings = [each.signals.utilization for each in found]
                self._values += [reading.value for reading in readings if reading.quality == "good"]
