"""`report.html`: one file that opens without a network. Data stands in a JSON element, so no text of a run is code.

A strict Content-Security-Policy names this page's own script and style by hash and allows nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import numpy as np

from contracts import web
from loadtest.records import Float, Status
from loadtest.reporting import percentiles, timeline
from loadtest.reporting.chart import Chart
from loadtest.reporting.percentiles import CONFIDENCE
from loadtest.reporting.result import Result
from loadtest.reporting.tables import MAX_GROUPS, error_groups, groups_by, percentile_rows
from loadtest.reporting.timings import Timings, timings_of
from loadtest.reporting.wording import clock, count, figure, percentile_name, tied
from loadtest.verdict import Row, Verdict

LOOK = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.INVALID: "doubt"}
MARK = {Verdict.PASS: "✓", Verdict.FAIL: "✕", Verdict.INVALID: "?"}
MAX_TABLE_ROWS = 60
"""Of a chart's table: every k-th point of the plot."""


def report_html(result: Result, plan_text: str) -> str:
    """The whole page."""
    window, requests = result.window, result.requests
    end_s = max(result.ended_s, 1e-3)
    timings = timings_of(requests, window.start_s, window.end_s)
    latency = _inside(timings, {"scheduled": timings.scheduled_s, "service": timings.service_s})
    ttft = _inside(timings, {"scheduled": timings.ttft_scheduled_s, "service": timings.ttft_service_s})
    if not _is_streamed(result):
        ttft = {}
    charts = [chart for chart in _charts(result, timings, latency, ttft, end_s) if chart.has_data]
    script = web.scripts() + _file("page.js")
    style = web.styles() + _file("page.css")
    data = {
        "charts": {chart.key: chart.spec() for chart in charts},
        "range": [0, end_s],
        "window": [window.start_s, window.end_s],
        "marks": [
            {"x": one.t_s, "text": f"{one.model}: {one.before} → {one.after}, {one.reason}"}
            for one in result.changes
        ],
    }
    return (
        _environment()
        .get_template("page.html")
        .render(
            result=result,
            verdict=result.judgement.verdict,
            judged=ordered(result.judgement.rows),
            look=LOOK,
            mark=MARK,
            why=verdict_words(result.judgement.rows),
            started=datetime.fromtimestamp(result.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            tiles=_tiles(result, timings),
            charts={chart.key: chart for chart in charts},
            distributions=[
                (key, percentile_rows(samples), list(samples), len(next(iter(samples.values()))))
                for key, samples in (("latency", latency), ("ttft", ttft))
                if samples and len(next(iter(samples.values())))
            ],
            tables={chart.key: _table(chart) for chart in charts if chart.x == "run"},
            routes=groups_by(requests.user, requests, timings, window.start_s, window.end_s),
            services=groups_by(requests.service, requests, timings, window.start_s, window.end_s),
            instances=groups_by(requests.instance, requests, timings, window.start_s, window.end_s),
            errors=error_groups(requests),
            max_groups=MAX_GROUPS,
            plan_text=plan_text,
            confidence=f"{100 * CONFIDENCE:g} %",
            script=script,
            style=style,
            data=web.json_for_html(data),
            policy=(
                f"default-src 'none'; script-src {web.csp_hash(script)}; style-src {web.csp_hash(style)}; "
                "img-src data:; base-uri 'none'; form-action 'none'"
            ),
        )
    )


def verdict_words(rows: tuple[Row, ...]) -> list[str]:
    """Why the verdict is what it is: the rows that decided it, each in its own words."""
    if not rows:
        return ["Nothing was judged, and an empty judgement never passes."]
    for verdict in (Verdict.INVALID, Verdict.FAIL):
        if found := [row for row in rows if row.verdict is verdict]:
            return [f"{row.expression}: {row.why}" for row in found]
    return [f"All {len(rows)} rows hold." if len(rows) > 1 else "The one row holds."]


def ordered(rows: tuple[Row, ...]) -> list[Row]:
    """INVALID and FAIL first, else as the plan has them."""
    rank = {Verdict.INVALID: 0, Verdict.FAIL: 1, Verdict.PASS: 2}
    return sorted(rows, key=lambda row: rank[row.verdict])


def _inside(timings: Timings, samples: dict[str, Float]) -> dict[str, Float]:
    return {name: values[timings.is_inside & np.isfinite(values)] for name, values in samples.items()}


def _is_streamed(result: Result) -> bool:
    """Whether any request had a first token apart from its answer."""
    return bool(np.any(np.diff(result.requests.chunk_offsets) > 1))


def _charts(
    result: Result, timings: Timings, latency: dict[str, Float], ttft: dict[str, Float], end_s: float
) -> list[Chart]:
    requests, curve, rows = result.requests, result.curve, result.judgement.rows
    due_s = requests.t_intended_s
    band = f"Bands are {100 * CONFIDENCE:g} % intervals; a line ends where n can carry no deeper percentile."
    charts = [
        percentiles.distribution(
            "latency", "Latency by percentile", f"Scheduled counts from the intended start. {band}", latency
        ),
        percentiles.over_time(
            "latency-time", "Latency over time", "Scheduled latency of the requests that were due in each bin.",
            due_s, timings.scheduled_s, end_s,
        ),
        timeline.memory_chart(curve, rows, end_s),
        timeline.load_chart(requests, curve, end_s),
        timeline.preemption_chart(curve, end_s),
        timeline.process_chart(curve, end_s),
        timeline.arrivals_chart(requests, end_s),
        timeline.dispatch_chart(requests, rows, end_s),
        timeline.instance_chart(curve, end_s),
    ]  # fmt: skip
    if ttft:
        charts.insert(
            1,
            percentiles.distribution(
                "ttft", "Time to first token by percentile", f"To the first chunk with a token. {band}", ttft
            ),
        )
        charts.append(
            percentiles.over_time(
                "ttft-time", "Time to first token over time", "From the intended start, by when requests were due.",
                due_s, timings.ttft_scheduled_s, end_s,
            )
        )  # fmt: skip
    return charts


def _tiles(result: Result, timings: Timings) -> list[tuple[str, str, str]]:
    """(label, value, note): the run in one glance."""
    requests, window = result.requests, result.window
    span_s = max(window.end_s - window.start_s, 1e-9)
    inside = timings.is_inside
    num = int(np.count_nonzero(inside))
    num_ok = int(np.count_nonzero(inside & timings.is_ok))
    errors = int(np.count_nonzero(inside & (requests.status == Status.ERROR)))
    open_ = int(np.count_nonzero(inside & timings.is_censored))
    arrived = (requests.chunk_times_s >= window.start_s) & (requests.chunk_times_s < window.end_s)
    tokens = int(requests.chunk_tokens[arrived].sum())
    tiles = [
        ("asked /s", f"{num / span_s:.4g}", f"{num:,} requests in {span_s:.0f} s"),
        (
            "answered /s",
            f"{num_ok / span_s:.4g}",
            f"{100 * num_ok / num:.4g} % of them" if num else "no requests",
        ),
        ("errors", count(errors), f"{open_:,} unfinished" if open_ else "none unfinished"),
    ]
    if tokens:
        tiles.append(("tokens/s", f"{tokens / span_s:,.4g}", f"{tokens:,} tokens"))
    for label, values in (("TTFT p99", timings.ttft_scheduled_s), ("latency p99", timings.scheduled_s)):
        kept = np.sort(values[inside & np.isfinite(values)])
        if label == "TTFT p99" and not _is_streamed(result):
            continue
        at = percentiles.quantile(kept, 0.99)
        note = (
            f"{figure(at.low, 's')} … {figure(at.high, 's')}"
            if at.value is not None
            else f"n {len(kept)} of {at.n_needed}"
        )
        tiles.append((label, figure(at.value, "s"), note))
    return tiles


def _table(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Headers and rows; each row a moment of the plot, each k-th when there are many."""
    stride = max(1, -(-len(chart.xs) // MAX_TABLE_ROWS))
    headers = ["time", *(line.label for line in chart.lines)]
    rows = [
        [clock(float(chart.xs[at])), *(figure(float(line.values[at]), chart.unit) for line in chart.lines)]
        for at in range(0, len(chart.xs), stride)
    ]
    return headers, rows


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "figure": figure,
        "count": count,
        "clock": clock,
        "percentile_name": percentile_name,
        "tied": tied,
    }
    environment.filters.update(filters)
    return environment


def _file(name: str) -> str:
    return resources.files(__package__ or "loadtest.reporting").joinpath(name).read_text(encoding="utf-8")
