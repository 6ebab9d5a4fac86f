"""Kubernetes' and Knative's autoscalers with their defaults, after `horizontal.go` and `autoscaler.go`."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from scaler.simulation.rival import MAX_INSTANCES, ROUNDING, Plain, Seen, Setting, Wish


@dataclass
class Hpa(Plain):
    """Kubernetes' HPA v2 on utilisation: tolerance 10 %, in by the highest wish of 300 s, out to at most double."""

    name: str = "hpa-like"
    period_s: float = 15.0
    target: float = 0.70
    tolerance: float = 0.10
    window_s: float = 300.0
    minimum: int = 1
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)

    def begin(self, setting: Setting) -> int:
        self._wishes.clear()
        return max(self.minimum, setting.num_at_start)

    def wanted(self, seen: Seen) -> Wish:
        total = seen.total
        # What starts counts as idle on the way out and as fully busy on the way in; it never turns the direction.
        if seen.utilization > self.target:
            ratio = seen.busy / (self.target * total) if total else 1.0
            is_same = ratio > 1.0
        else:
            ratio = (seen.busy + seen.starting) / (self.target * total) if total else 1.0
            is_same = ratio < 1.0
        keeps = not is_same or abs(ratio - 1.0) <= self.tolerance
        wish = total if keeps else math.ceil(ratio * total - ROUNDING)
        wish = min(max(wish, self.minimum), max(2 * total, total + 4), MAX_INSTANCES)
        self._wishes.append((seen.at_s, wish))
        while self._wishes[0][0] < seen.at_s - self.window_s:
            self._wishes.popleft()
        if wish < total:
            wish = min(total, max(wished for _, wished in self._wishes))
        return Wish(wish, f"ratio {ratio:.2f}")


@dataclass
class Kpa(Plain):
    """Knative's KPA on concurrency: a stable window of 60 s, a panic window of 6 s, target 70 % of what one holds.

    Waiting requests are concurrency to it, as they are in its activator. In panic, from twice what is ready on, it
    never scales in, until a whole stable window has passed without.
    """

    name: str = "knative-like"
    period_s: float = 5.0
    target: float = 0.70
    request_s: float = 1.0
    """What one request takes among others: with it follows how many a busy instance has in flight, which is what
    its container concurrency would be set to."""
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_threshold: float = 2.0
    max_down_rate: float = 2.0
    minimum: int = 1
    _seen: deque[tuple[float, float]] = field(default_factory=deque)
    _panic_since_s: float | None = None
    _panic_wish: int = 0
    _container_concurrency: float = 1.0

    def begin(self, setting: Setting) -> int:
        self._seen.clear()
        self._container_concurrency = max(1.0, setting.capacity.per_s * self.request_s)
        self._panic_since_s, self._panic_wish = None, 0
        return max(self.minimum, setting.num_at_start)

    def wanted(self, seen: Seen) -> Wish:
        now, ready = seen.at_s, max(1, seen.ready)
        self._seen.append((now, seen.busy + seen.queue / self._container_concurrency))
        while self._seen[0][0] <= now - self.stable_s:
            self._seen.popleft()
        stable, panic = self._desired(now, self.stable_s, ready), self._desired(now, self.panic_s, ready)
        if panic / ready >= self.panic_threshold:
            self._panic_since_s = now
        elif self._panic_since_s is not None and now - self._panic_since_s > self.stable_s:
            self._panic_since_s, self._panic_wish = None, 0
        wish = stable
        if self._panic_since_s is not None:
            self._panic_wish = max(self._panic_wish, panic, stable, ready)
            wish = self._panic_wish
        return Wish(min(max(wish, self.minimum), MAX_INSTANCES), f"stable {stable}, panic {panic}")

    def _desired(self, now: float, window_s: float, ready: int) -> int:
        values = [value for at_s, value in self._seen if at_s > now - window_s]
        wish = math.ceil(sum(values) / len(values) / self.target - ROUNDING)
        return max(wish, math.floor(ready / self.max_down_rate))
