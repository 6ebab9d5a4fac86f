"""Little's law: requests in flight = rate x mean latency. Where it fails, a run counts something wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtest.curve import Curve
from loadtest.measuring import bins, memory
from loadtest.records import Requests, Status


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """Over the window. The rows' two sides differ by what hangs over its edges; the server's count is its own."""

    in_flight: float
    """Mean, from the rows: sent and not done."""
    rate_per_s: float
    """Requests sent in the window."""
    mean_latency_s: float
    """Of those: last byte - sent; the unfinished as long as they were watched."""
    server_in_flight: float | None
    """Running and waiting in the engines, mean; None without samples."""

    @property
    def expected(self) -> float:
        return self.rate_per_s * self.mean_latency_s

    @property
    def mismatch(self) -> float | None:
        """(in flight - expected) / expected; None when nothing was expected."""
        return (self.in_flight - self.expected) / self.expected if self.expected > 0 else None

    @property
    def server_mismatch(self) -> float | None:
        """(server's - expected) / expected: above 0 it has load that is not ours, below it queues elsewhere."""
        if self.server_in_flight is None or self.expected <= 0:
            return None
        return (self.server_in_flight - self.expected) / self.expected


def littles_law(requests: Requests, curve: Curve, start_s: float, end_s: float) -> LittlesLaw | None:
    """None when nothing was sent in [start_s, end_s)."""
    sent = (requests.status != Status.NOT_SENT) & (requests.t_sent_s >= start_s) & (requests.t_sent_s < end_s)
    latencies = (requests.t_last_s - requests.t_sent_s)[sent]
    latencies = latencies[np.isfinite(latencies)]
    if not len(latencies) or end_s <= start_s:
        return None
    _, running = memory.level(curve, "running", (), start_s, end_s)
    _, waiting = memory.level(curve, "waiting", (), start_s, end_s)
    return LittlesLaw(
        in_flight=float(bins.in_flight(requests, np.array([start_s, end_s]))[0]),
        rate_per_s=float(sent.sum() / (end_s - start_s)),
        mean_latency_s=float(latencies.mean()),
        server_in_flight=float(running.mean() + (waiting.mean() if len(waiting) else 0.0))
        if len(running)
        else None,
    )
