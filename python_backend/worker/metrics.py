"""What one engine step did, in numbers, for logs and benchmarks. A worker's sums are on the board."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepMetrics:
    num_decodes: int
    """Sequences that got one token on top of a history."""
    num_prefill_tokens: int
    num_cached_tokens: int
    """Prompt tokens that requests admitted in this step found published."""
    num_preempted: int
    num_running: int
    num_waiting: int
    duration_s: float
