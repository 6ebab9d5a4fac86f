"""`report.html`: one file that opens without a network. Data stands in a JSON element, so no text of a run is code.

A strict Content-Security-Policy names this page's own script and style by hash and allows nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2

from contracts import web
from loadtest.measuring.metrics import Measured
from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE
from loadtest.reporting import percentiles
from loadtest.reporting.chart import Chart
from loadtest.reporting.charts import LATENCY, TTFT, charts_of
from loadtest.reporting.result import Result
from loadtest.reporting.tables import MAX_GROUPS, error_groups, groups_by, token_rows
from loadtest.reporting.tiles import tiles_of
from loadtest.reporting.wording import clock, count, figure, percentile_name, tied
from loadtest.verdict import Row, Verdict

LOOK = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.INVALID: "doubt"}
MARK = {Verdict.PASS: "✓", Verdict.FAIL: "✕", Verdict.INVALID: "?"}
MAX_TABLE_ROWS = 60
"""Of a chart's table: every k-th point of the plot."""


def report_html(result: Result, plan_text: str) -> str:
    """The whole page."""
    end_s = max(result.ended_s, 1e-3)
    measured = Measured(result.requests, result.curve, result.window)
    charts = charts_of(result, measured, end_s)
    script, style = web.scripts() + _file("page.js"), web.styles() + _file("page.css")
    return (
        _environment()
        .get_template("page.html")
        .render(
            **_words(result, plan_text),
            **_figures(measured, charts),
            script=script,
            style=style,
            data=web.json_for_html(_data(result, charts, end_s)),
            policy=(
                f"default-src 'none'; script-src {web.csp_hash(script)}; style-src {web.csp_hash(style)}; "
                "img-src data:; base-uri 'none'; form-action 'none'"
            ),
        )
    )


def _words(result: Result, plan_text: str) -> dict[str, Any]:
    rows = result.judgement.rows
    return {
        "result": result,
        "verdict": result.judgement.verdict,
        "judged": ordered(rows),
        "why": verdict_words(rows),
        "look": LOOK,
        "mark": MARK,
        "started": datetime.fromtimestamp(result.started_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "plan_text": plan_text,
    }


def _figures(measured: Measured, charts: dict[str, Chart]) -> dict[str, Any]:
    return {
        "charts": charts,
        "tables": {key: _table(chart) for key, chart in charts.items() if chart.x == "run"},
        "distributions": {
            key: (list(metrics), percentiles.table(measured, metrics))
            for key, metrics in (("latency", LATENCY), ("ttft", TTFT))
            if key in charts
        },
        "tiles": tiles_of(measured),
        "tokens": token_rows(measured),
        "tokens_per_chunk": measured.gaps().tokens_per_chunk,
        "law": measured.littles_law,
        "routes": groups_by(measured, "user", measured.users),
        "services": groups_by(measured, "service", measured.services),
        "instances": groups_by(measured, "instance", measured.instances),
        "errors": error_groups(measured.requests),
        "max_groups": MAX_GROUPS,
        "confidence": f"{100 * DEFAULT_CONFIDENCE:g} %",
    }


def _data(result: Result, charts: dict[str, Chart], end_s: float) -> dict[str, Any]:
    return {
        "charts": {key: chart.spec() for key, chart in charts.items()},
        "range": [0, end_s],
        "window": [result.window.start_s, result.window.end_s],
        "marks": [
            {"x": one.t_s, "text": f"{one.model}: {one.before} → {one.after}, {one.why}"}
            for one in result.changes
        ],
    }


def verdict_words(rows: Sequence[Row]) -> list[str]:
    """Why the verdict is what it is: the rows that decided it, each in its own words."""
    if not rows:
        return ["Nothing was judged, and an empty judgement never passes."]
    for verdict in (Verdict.INVALID, Verdict.FAIL):
        if found := [row for row in rows if row.verdict is verdict]:
            return [f"{row.expression}: {row.why}" for row in found]
    return [f"All {len(rows)} rows hold." if len(rows) > 1 else "The one row holds."]


def ordered(rows: Sequence[Row]) -> list[Row]:
    """INVALID and FAIL first, else as they were judged."""
    rank = {Verdict.INVALID: 0, Verdict.FAIL: 1, Verdict.PASS: 2}
    return sorted(rows, key=lambda row: rank[row.verdict])


def _table(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Headers and rows; each row a moment of the plot, each k-th when there are many."""
    stride = max(1, -(-len(chart.xs) // MAX_TABLE_ROWS))
    headers = ["time", *(line.label for line in chart.lines)]
    rows = [
        [
            clock(float(chart.xs[at])),
            *(figure(float(line.values[at]), chart.unit) for line in chart.lines),
        ]
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
    return resources.files("loadtest.reporting").joinpath(name).read_text(encoding="utf-8")
