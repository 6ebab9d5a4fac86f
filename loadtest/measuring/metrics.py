"""All figures of a run, from its raw rows and its curve: `measure` here, the meaning of each in `catalogue`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from loadtest.curve import Curve
from loadtest.measuring import bins, memory
from loadtest.measuring.gaps import Gaps, gap_quantile, gaps_of
from loadtest.measuring.goals import Goal, is_good
from loadtest.measuring.littles_law import LittlesLaw, littles_law
from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE, Quantile, SampleQuantiles
from loadtest.measuring.rows import in_time_order
from loadtest.measuring.sample_sizes import n_effective
from loadtest.measuring.samples import Bool, Samples, Scope, in_scope, request_values, streams
from loadtest.measuring.slopes import Slope
from loadtest.measuring.steady import Window
from loadtest.records import Requests, Status

SHOWN_PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)

SERIES = {
    "kv.used_blocks": "kv.used_blocks",
    "kv.leak": "kv.used_blocks",
    "kv.preemptions": "kv.preemptions",
    "pool.used_bytes": "pool.used_bytes",
    "running": "running",
    "waiting": "waiting",
    "waiting.slope": "waiting",
    "instances": "instances.ready",
    "rss.slope": "rss_bytes",
    "pss.slope": "pss_bytes",
    "rss.leak": "rss_bytes",
    "pss.leak": "pss_bytes",
    "gpu.used_bytes": "gpu.used_bytes",
}
"""The curve's series behind a metric."""

RATIOS = {
    "kv.used_ratio": ("kv.used_blocks", "kv.total_blocks"),
    "pool.used_ratio": ("pool.used_bytes", "pool.total_bytes"),
}
WHOLE_RUN_PEAKS = ("pool.used_bytes", "gpu.used_bytes")
LEAST_WAITING = 1.0
LEAST_BYTES = 2.0**20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `n`; `n_effective` knows that failures come in bursts."""

    count: int
    n: int
    n_effective: float

    @property
    def value(self) -> float | None:
        return self.count / self.n if self.n else None


class Measured:
    """Asks for figures by metric and scope; each is computed when asked for, and kept."""

    def __init__(self, requests: Requests, curve: Curve, window: Window, goals: Sequence[Goal] = ()) -> None:
        self.requests = in_time_order(requests)
        self.curve = curve
        self.window = window
        self.goals = tuple(goals)
        t_s = self.requests.t_intended_s
        self.in_window: Bool = (t_s >= window.start_s) & (t_s < window.end_s)
        self._kept: dict[tuple[object, ...], object] = {}

    @property
    def users(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.requests.user.tolist())))

    @property
    def unfinished(self) -> int:
        """In the whole run."""
        return int((self.requests.status == Status.CENSORED).sum())

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.requests.service.tolist())))

    @property
    def instances(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.requests.instance.tolist()) - {""}))

    def rows(self, scope: Scope = ()) -> Bool:
        """Shape [n], into `requests`: due in the window and in scope."""
        return self.in_window & in_scope(self.requests, scope)

    def samples(self, metric: str, scope: Scope = ()) -> Samples:
        """Raises KeyError for a metric without a value a request."""

        def compute() -> Samples:
            values, is_lower_bound = self._once(
                ("values", metric), lambda: request_values(self.requests, metric, self.is_streaming)
            )
            chosen = self.rows(scope) & ~np.isnan(values)
            return Samples(values[chosen], is_lower_bound[chosen], self.requests.t_intended_s[chosen])

        return self._once(("samples", metric, scope), compute)

    def gaps(self, scope: Scope = ()) -> Gaps:
        return self._once(
            ("gaps", scope), lambda: gaps_of(self.requests, self.rows(scope) & self.is_streaming)
        )

    def quantile(
        self, metric: str, p: float, scope: Scope = (), confidence: float = DEFAULT_CONFIDENCE
    ) -> Quantile:
        """Of a metric with one value a request, or of `gap`. Raises KeyError, ValueError for p outside (0, 1)."""
        if metric == "gap":
            return self._once(
                ("quantile", metric, scope, p, confidence),
                lambda: gap_quantile(self.gaps(scope), p, confidence),
            )
        ranked = self._once(("ranked", metric, scope), lambda: SampleQuantiles(self.samples(metric, scope)))
        return ranked.at(p, confidence)

    def share(self, metric: str, scope: Scope = ()) -> Share:
        """`errors`: of requests sent. `goodput`: of all that were due. Raises KeyError."""
        chosen = self.rows(scope)
        if metric == "goodput":
            counted = self._good[chosen]
        elif metric == "errors":
            sent = chosen & (self.requests.status != Status.NOT_SENT)
            counted = self.requests.status[sent] == Status.ERROR
        else:
            raise KeyError(metric)
        return Share(int(counted.sum()), len(counted), n_effective(counted))

    def count(self, metric: str, scope: Scope = ()) -> float | None:
        """`errors`, `censored`, `not_sent` of the window; `kv.preemptions` of the whole run. Raises KeyError."""
        statuses = {"errors": Status.ERROR, "censored": Status.CENSORED, "not_sent": Status.NOT_SENT}
        if metric in statuses:
            chosen = self.rows(scope)
            return float((self.requests.status[chosen] == statuses[metric]).sum()) if chosen.any() else None
        return memory.counted(self.curve, SERIES[metric], scope)

    def rate(self, metric: str, scope: Scope = ()) -> float | None:
        """Per second of the window; None for an empty window or scope. Raises KeyError."""
        everything = in_scope(self.requests, scope)
        start_s, end_s = self.window.start_s, self.window.end_s
        if self.window.span_s <= 0 or not everything.any():
            return None
        ended_well = everything & (self.requests.status == Status.OK)
        ended_s = self.requests.t_last_s
        match metric:
            case "requests.offered":
                count = float(self.rows(scope).sum())
            case "requests.achieved":
                count = float((ended_well & (ended_s >= start_s) & (ended_s < end_s)).sum())
            case "goodput":
                count = float(self._good[self.rows(scope)].sum())
            case "tokens.rate":
                count = self._tokens_in_window(ended_well)
            case _:
                raise KeyError(metric)
        return count / self.window.span_s

    def level(self, metric: str, statistic: str, scope: Scope = ()) -> float | None:
        """`statistic`: min, max or mean. Peaks of memory are those of the whole run. Raises KeyError."""
        start_s, end_s = self.window.start_s, self.window.end_s
        if metric == "gap.tokens":
            return self.gaps(scope).tokens_per_chunk
        if metric == "in_flight":
            if not self.in_window.any():
                return None
            if statistic == "max":
                return float(bins.most_in_flight(self.requests, start_s, end_s))
            law = self.littles_law
            return law.in_flight if law else None
        if metric in RATIOS:
            return self._fullest(metric, statistic, scope)
        if metric in WHOLE_RUN_PEAKS and statistic == "max":
            return memory.peak(self.curve, SERIES[metric], scope)
        _, values = memory.level(self.curve, SERIES[metric], scope, start_s, end_s)
        reduce: dict[str, Callable[..., np.float64]] = {"min": np.min, "max": np.max, "mean": np.mean}
        return float(reduce[statistic](values)) if len(values) else None

    def _fullest(self, metric: str, statistic: str, scope: Scope) -> float | None:
        """Of the model that is fullest: its peak over the whole run, or its mean over the window."""
        is_peak, tops = statistic == "max", []
        for t_s, ratios in memory.used_ratios(self.curve, *RATIOS[metric], scope, with_high_water=is_peak):
            inside = ratios[(t_s >= self.window.start_s) & (t_s < self.window.end_s)]
            counted = ratios if is_peak else inside
            if len(counted):
                tops.append(float(counted.max() if is_peak else counted.mean()))
        return max(tops, default=None)

    def slope(self, metric: str, scope: Scope = ()) -> Slope | None:
        """Raises KeyError."""
        floor = LEAST_WAITING if metric == "waiting.slope" else LEAST_BYTES
        window = self.window
        return memory.growth(self.curve, SERIES[metric], scope, window.start_s, window.end_s, floor)

    def change(self, metric: str, scope: Scope = ()) -> memory.Returned | None:
        """Before the first request and after the last; None unless there are samples of both. Raises KeyError."""
        sent = self.requests.status != Status.NOT_SENT
        first_s = np.nanmin(self.requests.t_sent_s[sent], initial=np.inf)
        last_s = np.nanmax(self.requests.t_last_s[sent], initial=-np.inf)
        return memory.returned(
            self.curve, SERIES[metric], scope, float(first_s), float(last_s), int(sent.sum())
        )

    def hole_of(self, metric: str, scope: Scope = ()) -> str:
        """Why the samples of a metric of the curve do not cover the run; "" when they do."""
        name = RATIOS[metric][0] if metric in RATIOS else SERIES[metric]
        return memory.hole(self.curve, name, scope, 0.0, self.window.end_s)

    def samples_of(self, metric: str, scope: Scope = ()) -> int:
        """How many samples of the curve are behind a metric, over the whole run."""
        name = RATIOS[metric][0] if metric in RATIOS else SERIES[metric]
        return sum(len(one.t_s) for one in memory.in_scope(self.curve, name, scope))

    @cached_property
    def is_streaming(self) -> Bool:
        return streams(self.requests)

    @cached_property
    def littles_law(self) -> LittlesLaw | None:
        return littles_law(self.requests, self.curve, self.window.start_s, self.window.end_s)

    @cached_property
    def _good(self) -> Bool:
        return is_good(self.requests, self.goals, self.is_streaming)

    def _tokens_in_window(self, chosen: Bool) -> float:
        times, tokens = self.requests.chunk_times_s, self.requests.chunk_tokens
        is_inside = (times >= self.window.start_s) & (times < self.window.end_s)
        is_chosen = np.repeat(chosen, np.diff(self.requests.chunk_offsets))
        return float(tokens[is_inside & is_chosen].sum())

    def _once(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = compute()
        return cast(T, self._kept[key])


def measure(requests: Requests, curve: Curve, window: Window, goals: Sequence[Goal] = ()) -> Measured:
    """`goals`: the plan's latency lines, for goodput (`loadtest.judging.expression.goals_of`)."""
    return Measured(requests, curve, window, goals)
