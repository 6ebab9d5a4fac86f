"""When `execute` may return: the spread-and-drain rule. Pure.

Triton gives the next request to the free instance with the fewest executions ever, so a new instance would get
everything. An instance inside `execute` gets nothing. So the bridge submits at once, and returns only when its
instance should get more (ARCHITECTURE.md, fact 5). A draining instance returns only with nothing in flight:
Triton deadlocks if it removes an instance that still owes decoupled responses (fact 4).
"""

from __future__ import annotations

from python_backend.board import SlotState


def may_return(state: SlotState, in_flight: int, cap: int, least_sibling: int | None) -> bool:
    """`least_sibling`: requests in flight on the least-loaded serving sibling; None: there is none."""
    if state is not SlotState.SERVING:
        return in_flight == 0
    return in_flight < cap and (least_sibling is None or in_flight <= least_sibling)


def waits_for_own(state: SlotState, in_flight: int, cap: int) -> bool:
    """Until one of its own requests ends, or its state changes, `execute` may not return, whatever siblings do."""
    return in_flight > 0 if state is not SlotState.SERVING else in_flight >= cap
