"""Which charts a report has, and in which order."""

from __future__ import annotations

from loadtest.measuring.metrics import Measured
from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE
from loadtest.reporting import timeline
from loadtest.reporting.chart import Chart
from loadtest.reporting.percentiles import distribution, over_time
from loadtest.reporting.result import Result

LATENCY = {"scheduled": "latency.scheduled", "service": "latency.service"}
TTFT = {"scheduled": "ttft.scheduled", "service": "ttft.service"}
_BAND = (
    f"Bands are {100 * DEFAULT_CONFIDENCE:g} % intervals. A line ends where n can carry no deeper percentile, or "
    "where failed requests begin, which count as infinitely late."
)


def charts_of(result: Result, measured: Measured, end_s: float) -> dict[str, Chart]:
    """By key, those with something to draw."""
    requests, curve, rows = measured.requests, result.curve, result.judgement.rows
    found = [
        distribution(
            measured,
            "latency",
            "Latency by percentile",
            f"Scheduled counts from the intended start, service from the sending. {_BAND}",
            LATENCY,
        ),
        over_time(
            measured,
            "latency-time",
            "Latency over time",
            "From the intended start, by when requests were due.",
            "latency.scheduled",
            end_s,
        ),
        timeline.memory_chart(curve, rows, end_s),
        timeline.load_chart(requests, curve, end_s),
        timeline.preemption_chart(curve, end_s),
        timeline.pool_chart(curve, end_s),
        timeline.process_chart(curve, end_s),
        timeline.arrivals_chart(requests, end_s),
        timeline.dispatch_chart(requests, rows, end_s),
        timeline.instance_chart(curve, end_s),
    ]
    if measured.is_streaming.any():
        found += [
            distribution(
                measured,
                "ttft",
                "Time to first token by percentile",
                f"To the first chunk with a token, of routes that stream. {_BAND}",
                TTFT,
            ),
            over_time(
                measured,
                "ttft-time",
                "Time to first token over time",
                "From the intended start, by when requests were due.",
                "ttft.scheduled",
                end_s,
            ),
        ]
    return {chart.key: chart for chart in found if chart.has_data}
