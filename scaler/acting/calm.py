"""When instances of a model without a node can go, by what Triton's statistics tell. Pure.

A model that answers each request once is safe at any time: Triton removes an instance when its batch is done. Yet
without --rate-limit=execution_count the removal starves behind a standing queue, and then holds up every later
update; so it is sent when nothing much waits.

A decoupled model is never safe by what can be seen. Triton counts a request as done when `execute` returns,
before its answers are sent; neither the statistics nor the pending gauge show a stream in flight, and removing
its instance leaves the client waiting for ever (measured). Safe is only: no request began for as long as the
longest answer takes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Of ModelStatistics: all since the model was loaded."""

    at_s: float
    num_requests: int
    """Done, failed or handed to a decoupled model."""
    queue_s: float
    """Time that they spent in the queue, together."""


def is_reset(before: Sample, after: Sample) -> bool:
    """Counters only grow, unless the model was loaded afresh: the proof that an update was in place."""
    return after.num_requests < before.num_requests or after.queue_s < before.queue_s


def mean_waiting(before: Sample, after: Sample) -> float:
    """Requests in the queue, on average (Little's law): time in the queue per time gone by."""
    passed_s = after.at_s - before.at_s
    return (after.queue_s - before.queue_s) / passed_s if passed_s > 0 else 0.0


def is_calm(before: Sample, after: Sample, num_instances: int) -> bool:
    """Less than one request waits for each instance; the batcher's own delay makes some wait always."""
    return mean_waiting(before, after) < num_instances
