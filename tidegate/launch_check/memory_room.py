"""Row "memory": what stayed free of the KV cache and the pool at the run's worst moment, and what came back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.curve import Curve, Series
from loadtest.verdict import Row, Verdict
from tidegate.launch_check.row import CheckRow, joined

NAME = "memory"
LEAK_ROWS = ("kv back to baseline", "kv.leak")
"""What the load test calls its judgement of blocks that did not come back: its own check, or a line of the plan."""


def check_memory(curve: Curve, margin: float, leak: Row | None) -> CheckRow:
    """`leak`: how the load test judged what came back; None: it did not."""
    peaks = [
        *_peaks(curve, "kv.high_water_blocks", "kv.total_blocks", "blocks"),
        *_peaks(curve, "pool.high_water_bytes", "pool.total_bytes", "bytes"),
    ]
    if not peaks:
        return CheckRow(
            NAME,
            Verdict.INVALID,
            "the run has no samples of KV memory; run it on the machine of the node daemon, whose socket "
            "target.run_dir or target.node_socket names",
        )
    findings = [_room(name, peak, total, unit, margin) for name, peak, total, unit in peaks]
    findings += _preemptions(curve.named("kv.preemptions"))
    if leak is None:
        findings.append(
            (Verdict.INVALID, "whether memory came back was not judged: the run was too short or broken")
        )
    else:
        findings.append((leak.verdict, leak.why))
    return joined(NAME, findings)


def _peaks(curve: Curve, used: str, total: str, unit: str) -> list[tuple[str, float, float, str]]:
    """(name, most ever used, total then, unit) per series that has both."""
    totals = {series.labels: series for series in curve.named(total)}
    return [
        (
            dict(series.labels).get("model", "the pool"),
            float(series.values.max()),
            float(totals[series.labels].values.min()),
            unit,
        )
        for series in curve.named(used)
        if len(series.values) and series.labels in totals and len(totals[series.labels].values)
    ]


def _room(name: str, peak: float, total: float, unit: str, margin: float) -> tuple[Verdict, str]:
    share = peak / total if total else 1.0
    text = f"{name}: at most {peak:,.0f} of {total:,.0f} {unit} ({share:.1%})"
    if share <= 1 - margin:
        return Verdict.PASS, text
    return (
        Verdict.FAIL,
        f"{text}, leaving less than memory_margin = {margin:g}; raise --pool-bytes or add nodes",
    )


def _preemptions(series: Sequence[Series]) -> list[tuple[Verdict, str]]:
    """The counter never falls and is 0 when the watching began."""
    if not series:
        return []
    total = int(sum(np.max(each.values) for each in series if len(each.values)))
    if total:
        return [
            (Verdict.FAIL, f"{total} sequences lost their blocks to others; raise --pool-bytes or add nodes")
        ]
    return [(Verdict.PASS, "no sequence was preempted")]
