"""Does a new version do worse than the one before it, in the same minutes? Then back to the old one."""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from gateway import rollout
from gateway.route_table import KIND, RouteTable
from gateway.routes import AutoRollback, ServiceRoute
from ledger.calls import CallRow
from ledger.errors import LedgerError
from ledger.revisions import RevisionStore

logger = logging.getLogger("gateway.routes")

AUTO = "auto-rollback"
LOOK_S = 2.0
_GRPC_FAULTS = frozenset(
    code.value[0]
    for code in (
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
)

MAX_CALLS = 10_000
"""Of each version; the oldest are forgotten first."""


class _Seen(NamedTuple):
    ended_unix_s: float
    is_error: bool
    ttft_s: float | None


@dataclass(frozen=True)
class _Figures:
    num_calls: int
    error_share: float
    median_ttft_s: float | None


class RollbackWatch:
    """Feed it every row of the call log."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, str], deque[_Seen]] = defaultdict(lambda: deque(maxlen=MAX_CALLS))

    def note(self, row: CallRow) -> None:
        """Refused and cancelled calls, and those that asked for what cannot be, tell nothing of the version."""
        is_fault = row.outcome == "error" and _is_servers_fault(row)
        if (row.outcome == "ok" or is_fault) and row.version and not row.is_shadow:
            ended = row.started_unix_s + row.duration_s
            self._seen[row.service, row.version].append(_Seen(ended, is_fault, row.ttft_s))

    def verdict(self, service: str, route: ServiceRoute, now_unix_s: float) -> str | None:
        """Why the rollout should be taken back, with the numbers; None: it should not, or nobody can tell yet."""
        rules, rollout = route.auto_rollback, route.rollout
        if rules is None or rollout is None:
            return None
        if not any(version.name == rollout.next and version.percent > 0 for version in route.versions):
            return None
        new = self._figures(service, rollout.next, rules, now_unix_s)
        old = self._figures(service, rollout.previous, rules, now_unix_s)
        if new.num_calls < rules.min_calls:
            return None
        # The whole may be in trouble, so the new version has to be worse than the old one as well.
        if new.error_share > max(rules.max_error_share, 2 * old.error_share):
            return (
                f"{rollout.next}: {new.error_share:.1%} of {new.num_calls} calls failed in {rules.window_s:g} s "
                f"(at most {rules.max_error_share:.1%}); {rollout.previous}: {old.error_share:.1%} of "
                f"{old.num_calls}"
            )
        if new.median_ttft_s is None or old.median_ttft_s is None or old.num_calls < rules.min_calls:
            return None
        if new.median_ttft_s > rules.max_ttft_ratio * old.median_ttft_s:
            return (
                f"{rollout.next}: median time to first token {new.median_ttft_s:.3f} s, {rollout.previous}: "
                f"{old.median_ttft_s:.3f} s in {rules.window_s:g} s (at most {rules.max_ttft_ratio:g} times that)"
            )
        return None

    def _figures(self, service: str, version: str, rules: AutoRollback, now_unix_s: float) -> _Figures:
        calls = [
            seen for seen in self._seen[service, version] if seen.ended_unix_s >= now_unix_s - rules.window_s
        ]
        ttfts = [seen.ttft_s for seen in calls if seen.ttft_s is not None]
        return _Figures(
            num_calls=len(calls),
            error_share=sum(seen.is_error for seen in calls) / len(calls) if calls else 0.0,
            median_ttft_s=statistics.median(ttfts) if ttfts else None,
        )


def _is_servers_fault(row: CallRow) -> bool:
    return row.status >= 500 if row.door == "http" else row.status in _GRPC_FAULTS


async def watch_rollouts(table: RouteTable, watch: RollbackWatch, revisions: RevisionStore) -> None:
    """Until cancelled: take back what does worse, once, with the evidence as the revision's reason."""
    while True:
        await asyncio.sleep(LOOK_S)
        for service, route in table.routes.services.items():
            if (why := watch.verdict(service, route, time.time())) is None:
                continue
            logger.warning("%s: rolling back by itself: %s", service, why)
            try:
                await asyncio.to_thread(_take_back, revisions, service, why)
            except (LedgerError, rollout.RolloutRefused) as exc:
                logger.error("%s: could not be rolled back: %s", service, exc)


def _take_back(revisions: RevisionStore, service: str, why: str) -> None:
    latest = revisions.latest(KIND)
    if latest is None:
        return
    before = rollout.read(latest.text)
    after = rollout.roll_back(before, service)
    if after != before:  # another gateway may have been first
        revisions.put(KIND, rollout.write(after), AUTO, why=why, expected=latest.number)
