"""The picture as one HTML file: nothing is fetched, nothing but a browser is needed.

Under the pointer it tells the moment's figures; below stand all changes with their reasons.
"""

from __future__ import annotations

import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np

from scaler.simulation.figures import Figures
from scaler.simulation.plot import LEFT, RIGHT, draw
from scaler.simulation.queueing import Capacity
from scaler.simulation.replay import Run
from scaler.simulation.series import Span, moment_text
from scaler.simulation.trace import Floats

TEMPLATE = Path(__file__).with_name("page.html")
NUM_COLUMNS = 1000
MAX_CHANGES = 1000
"""Of one policy; Knative's five thousand would only make the page slow."""
HEADERS = ("policy", "cost", "≤ 5 s", "≤ 30 s", "longest wait", "flips", "changes", "most", "mean", "busy")


def save_html(path: Path, runs: Sequence[Run], capacity: Capacity, span: Span) -> None:
    first = runs[0]
    text = Template(TEMPLATE.read_text()).substitute(
        title=html.escape(f"{first.trace.name}, start-up {first.figures.startup_s:g} s"),
        subtitle=(
            "Cost is instance-seconds over those of the static peak. A flip is a change taken back within 300 s. "
            "Point at the picture for the figures of a moment."
        ),
        figures=_table(HEADERS, [_row(run.figures) for run in runs]),
        picture=_svg(runs, capacity, span),
        changes="\n".join(_changes(run) for run in runs),
        # "</script>" in a trace's name must not end the script.
        data=json.dumps(_data(runs, capacity, span)).replace("<", "\\u003c"),
    )
    path.write_text(text, encoding="utf-8")


def _svg(runs: Sequence[Run], capacity: Capacity, span: Span) -> str:
    buffer = io.StringIO()
    draw(runs, capacity, span).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _row(figures: Figures) -> tuple[str, ...]:
    return (
        figures.policy,
        f"{100 * figures.cost_share:.1f} %",
        f"{100 * figures.started_5s_share:.3f} %",
        f"{100 * figures.started_30s_share:.3f} %",
        f"{figures.wait_max_s:.1f} s",
        f"{figures.flips}",
        f"{figures.num_changes}",
        f"{figures.peak_instances} ({figures.peak_over_needed:.2f} × needed)",
        f"{figures.mean_instances:.2f}",
        f"{100 * figures.utilization_mean:.0f} %",
    )


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headers)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _changes(run: Run) -> str:
    if not run.changes:
        return ""
    rows = "".join(
        f'<tr class="{"out" if change.after > change.before else "in"}"><td>{moment_text(run.trace, change.at_s)}'
        f'</td><td>{change.before} → {change.after}</td><td class="reason">{html.escape(change.reason)}</td></tr>'
        for change in run.changes[:MAX_CHANGES]
    )
    left = len(run.changes) - MAX_CHANGES
    more = f"<p>and {left} more</p>" if left > 0 else ""
    return (
        f"<details><summary>{html.escape(run.policy)}: {len(run.changes)} changes</summary>"
        f"<table>{rows}</table>{more}</details>"
    )


def _data(runs: Sequence[Run], capacity: Capacity, span: Span) -> dict[str, object]:
    trace = runs[0].trace
    num = max(1, min(NUM_COLUMNS, int((span.to_s - span.from_s) / runs[0].tick_s)))
    at_s = span.from_s + np.arange(num) * (span.to_s - span.from_s) / num
    rates = [trace.rate_at(at) for at in at_s]
    needs = [capacity.needed(rate) for rate in rates]
    return {
        "left": LEFT,
        "right": RIGHT,
        "times": [moment_text(trace, at) for at in at_s],
        "load": [round(rate, 2) for rate in rates],
        "needed": needs,
        "policies": [
            {
                "name": run.policy,
                "ready": _at(run, run.ready, at_s),
                "starting": _at(run, run.wanted - run.ready, at_s),
                "waiting": _at(run, run.queue, at_s),
            }
            for run in runs
        ],
    }


def _at(run: Run, values: Floats, at_s: Floats) -> list[int]:
    indexes = np.minimum((at_s / run.tick_s).astype(int), len(values) - 1)
    return [round(value) for value in values[indexes].tolist()]
