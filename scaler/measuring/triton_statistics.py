"""Triton's own statistics of a model as counters in seconds and requests. Pure.

A batch counts once in `busy_s`: it is taken from `batch_stats`, one entry per batch size. `inference_stats` counts
a batch's time once per request in it: 8 requests in 101 ms are 0.8 s there, on one instance. All of it is counted
when an execution ends, so one that runs is not seen; and an `execute` that only hands its request on (decoupled
models) ends long before the work does: see `engine_figures`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NS = 1e-9


def counters_of(stats: Any) -> Mapping[str, float]:
    """Of a tritonclient ModelStatistics."""
    of_requests = stats.inference_stats
    return {
        "requests": of_requests.success.count + of_requests.fail.count,
        "inferences": stats.inference_count,
        "executions": stats.execution_count,
        "left_queue": of_requests.queue.count,
        "queue_s": of_requests.queue.ns * NS,
        "executing_s": NS * _compute_ns(of_requests),
        "busy_s": NS * sum(_compute_ns(batch) for batch in stats.batch_stats),
    }


def _compute_ns(stats: Any) -> int:
    return int(stats.compute_input.ns + stats.compute_infer.ns + stats.compute_output.ns)
