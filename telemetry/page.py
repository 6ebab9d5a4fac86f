"""A trace's waterfall as one HTML file: nothing is fetched, nothing but a browser is needed."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from string import Template

from contracts.tracing.span import Event, Span, SpanStatus
from contracts.tracing.tree import Row, notes_of, scaling_text

TEMPLATE = Path(__file__).with_name("page.html")
SERVICES = 6
"""Colours that the page has; services take turns."""


def page_of(title: str, rows: Sequence[Row], scalings: Sequence[Span] = ()) -> str:
    """`rows` must not be empty. `scalings`: what the scaler did meanwhile."""
    total_s = max(row.ends_s for row in rows) or 1e-9
    services = list(dict.fromkeys(row.span.service for row in rows))
    legend = " ".join(
        f'<span class="key s{index % SERVICES}"></span>{html.escape(service)}'
        for index, service in enumerate(services)
    )
    lines = "\n".join(_line(row, total_s, services.index(row.span.service) % SERVICES) for row in rows)
    since_ns = rows[0].span.start_unix_ns
    done = "".join(f"<li>{html.escape(scaling_text(each, since_ns))}</li>" for each in scalings)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        total=f"{total_s * 1000:,.1f} ms",
        legend=legend,
        rows=lines,
        scalings=f"<h2>Scaler</h2><ul>{done}</ul>" if done else "",
    )


def _line(row: Row, total_s: float, color: int) -> str:
    span = row.span
    left, width = 100 * row.starts_s / total_s, 100 * (row.ends_s - row.starts_s) / total_s
    failed = " failed" if span.status is SpanStatus.ERROR else ""
    marks = "".join(
        f'<i style="left:{100 * (event.at_unix_ns - span.start_unix_ns) / 1e9 / total_s + left:.3f}%" '
        f'title="{html.escape(_event(event))}"></i>'
        for event in span.events
        if span.start_unix_ns <= event.at_unix_ns <= span.end_unix_ns
    )
    details = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in {
            "service": span.service,
            **span.attributes,
            "span": span.span_id,
            "parent": span.parent_id or "none",
        }.items()
    )
    return (
        f'<details class="row{failed}"><summary>'
        f'<span class="name" style="padding-left:{row.depth * 1.1:.1f}em">{html.escape(span.name)}</span>'
        f'<span class="time">{(row.ends_s - row.starts_s) * 1000:,.1f} ms</span>'
        f'<span class="lane"><b class="s{color}" style="left:{left:.3f}%;width:{max(width, 0.15):.3f}%"></b>'
        f"{marks}</span>"
        f'<span class="notes">{html.escape(notes_of(span))}</span>'
        f"</summary><table>{details}</table></details>"
    )


def _event(event: Event) -> str:
    return " ".join([event.name, *(f"{name}={value}" for name, value in event.attributes.items())])
