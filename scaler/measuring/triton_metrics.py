"""The one figure that Triton has only on its Prometheus endpoint: how many requests wait for an instance."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import httpx

from scaler.errors import TritonUnreachable

PENDING = "nv_inference_pending_request_count"
_SAMPLE = re.compile(rf'^{PENDING}\{{[^}}]*\bmodel="(?P<model>[^"]*)"[^}}]*\}}\s+(?P<value>\S*)')


def pending_by_model(text: str) -> dict[str, float]:
    """Requests waiting, over all versions of each model. A model that is not named has no such figure.

    NaN and infinity are no counts, so that model is left out. Less than 0 is read as 0.
    """
    pending: dict[str, float] = {}
    broken: set[str] = set()
    for line in text.splitlines():
        if not (match := _SAMPLE.match(line)):
            continue
        model = match["model"]
        try:
            value = float(match["value"])
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            pending[model] = pending.get(model, 0.0) + max(0.0, value)
        else:
            broken.add(model)
    return {model: value for model, value in pending.items() if model not in broken}


class TritonMetrics:
    """Close it. Raises TritonUnreachable, never httpx's own errors."""

    def __init__(self, address: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = address
        # A proxy that the environment names must not stand between this and a port of the same machine.
        self._http = httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    async def pending(self) -> Mapping[str, float]:
        try:
            reply = await self._http.get("/metrics")
            reply.raise_for_status()
        except httpx.HTTPError as exc:
            raise TritonUnreachable(
                f"no metrics from Triton at http://{self.address}/metrics: {exc!r}"
            ) from exc
        return pending_by_model(reply.text)
