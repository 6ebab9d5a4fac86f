"""Charts on the run's clock: memory, requests in flight, arrivals, the generator's own delay, instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from loadtest.curve import Curve, Series
from loadtest.records import Float, Requests, Status
from loadtest.reporting.chart import Chart, Color, Level, Line
from loadtest.reporting.percentiles import bins_of
from loadtest.reporting.shrink import extremes, grid, points_of, step_s
from loadtest.verdict import Row

COLORS: tuple[Color, ...] = ("blue", "teal", "violet", "orange", "grey", "dark-blue", "light-blue")
PROCESS_SERIES = ("pss_bytes", "rss_bytes", "gpu.used_bytes")


def label_of(series: Series) -> str:
    """`chat`, or `worker 412` of a process; empty for the whole node."""
    return " ".join(value for _, value in series.labels)


def memory_chart(curve: Curve, rows: Sequence[Row], end_s: float) -> Chart:
    """Blocks in use and the high-water mark between samples, as shares of all blocks."""
    used, high = curve.named("kv.used_blocks"), curve.named("kv.high_water_blocks")
    edges = grid(end_s, [step_s(one.t_s) for one in (*used, *high)])
    totals = {
        one.labels: float(one.values.max()) for one in curve.named("kv.total_blocks") if len(one.values)
    }
    most = max(totals.values(), default=np.nan)
    lines = []
    for name, found, is_dashed in (("used", used, False), ("high water", high, True)):
        for one, color in zip(found, COLORS, strict=False):
            total = totals.get(one.labels, most)
            label = f"{label_of(one)} {name}".strip()
            shares = extremes(edges, one.t_s, one.values / total)
            lines.append(
                Line(label, shares, "red" if is_dashed and len(used) == 1 else color, dash=is_dashed)
            )
    levels = [Level(1.0, "ceiling: no block left")]
    levels += [
        Level(row.limit, f"limit {100 * row.limit:g} %", "orange")
        for row in rows
        if row.limit is not None and row.unit == "ratio" and row.expression.startswith("kv.used_ratio")
    ]
    note = "KV blocks in use, and the most that were between two samples; peaks of each bucket are kept."
    return Chart(
        "memory", "KV cache against its ceiling", note, "run", points_of(edges), "ratio", lines, levels
    )


def preemption_chart(curve: Curve, end_s: float) -> Chart:
    series = curve.named("kv.preemptions")
    edges = grid(end_s, [step_s(one.t_s) for one in series])
    lines = [
        Line(label_of(one) or "preemptions", extremes(edges, one.t_s, one.values), color)
        for one, color in zip(series, COLORS, strict=False)
    ]
    note = "Sequences thrown out of the KV cache so far."
    return Chart("preemptions", "Preemptions", note, "run", points_of(edges), "", lines)


def pool_chart(curve: Curve, end_s: float) -> Chart:
    """The whole arena in bytes, of all models together."""
    drawn: tuple[tuple[str, str, Color], ...] = (
        ("pool.used_bytes", "held", "blue"),
        ("pool.high_water_bytes", "high water", "red"),
        ("pool.cached_bytes", "cached prefixes", "teal"),
    )
    edges = grid(end_s, [step_s(one.t_s) for one in curve.named("pool.used_bytes")])
    lines = [
        Line(label, extremes(edges, one.t_s, one.values), color, dash=color == "red")
        for name, label, color in drawn
        for one in curve.named(name)[:1]
    ]
    totals = [float(one.values.max()) for one in curve.named("pool.total_bytes") if len(one.values)]
    levels = [Level(total, "all of the pool") for total in totals[:1]]
    note = "Bytes of the shared KV arena; cached prefixes are given up when somebody is short."
    return Chart("pool", "Shared pool", note, "run", points_of(edges), "bytes", lines, levels)


def process_chart(curve: Curve, end_s: float) -> Chart:
    """Resident memory, one line for each kind of process (the sum over its pids at one moment)."""
    names = [
        name
        for name in PROCESS_SERIES
        if curve.named(name) and (name != "rss_bytes" or not curve.named("pss_bytes"))
    ]
    series = [one for name in names for one in _summed(curve.named(name), "process")]
    note = "PSS (shared pages counted once) of each kind of process, and GPU memory where there is one."
    if "rss_bytes" in names:
        note = "Resident set size of each kind of process; pages that are shared are counted in each."
    edges = grid(end_s, [step_s(one.t_s) for one in series])
    lines = [
        Line(label_of(one) or one.name, extremes(edges, one.t_s, one.values), color)
        for one, color in zip(series, COLORS, strict=False)
    ]
    return Chart("processes", "Memory of the processes", note, "run", points_of(edges), "bytes", lines)


def _summed(found: Iterable[Series], label: str) -> list[Series]:
    """Series with the same `label` added up; between its own samples a series holds its last value."""
    groups: dict[str, list[Series]] = {}
    for one in found:
        groups.setdefault(dict(one.labels).get(label, ""), []).append(one)
    return [_sum(name, label, members) for name, members in groups.items()]


def _sum(name: str, label: str, members: Sequence[Series]) -> Series:
    labels = ((label, name),) if name else ()
    if len(members) == 1:
        return Series(members[0].name, labels, members[0].unit, members[0].t_s, members[0].values)
    t_s = np.unique(np.concatenate([one.t_s for one in members]))
    total = np.zeros(len(t_s))
    for one in members:
        at = np.searchsorted(one.t_s, t_s, side="right") - 1
        is_alive = (at >= 0) & (t_s <= one.t_s[-1] + 2 * step_s(one.t_s))
        total += np.where(is_alive, one.values[np.maximum(at, 0)], 0.0)
    return Series(members[0].name, labels, members[0].unit, t_s, total)


def load_chart(requests: Requests, curve: Curve, end_s: float) -> Chart:
    """How many requests were under way, by the client's count and by the engine's."""
    t_s, counts = in_flight(requests)
    engine = [(name, one) for name in ("running", "waiting", "triton.pending") for one in curve.named(name)]
    edges = grid(end_s, [step_s(one.t_s) for _, one in engine])
    lines = [Line("in flight (client)", extremes(edges, t_s, counts), "grey", fill=True)]
    colors: tuple[Color, ...] = ("blue", "orange", "teal", "violet", "dark-blue", "red")
    for (name, one), color in zip(engine, colors, strict=False):
        lines.append(Line(f"{name} {label_of(one)}".strip(), extremes(edges, one.t_s, one.values), color))
    note = "In flight counts sent and not yet ended; running and waiting are the engine's own words."
    return Chart("load", "Requests under way", note, "run", points_of(edges), "", lines)


def in_flight(requests: Requests) -> tuple[Float, Float]:
    """Moments and the count from each on."""
    was_sent = np.isfinite(requests.t_sent_s) & (requests.status != Status.NOT_SENT)
    sent_s = requests.t_sent_s[was_sent]
    ended_s = requests.t_last_s[was_sent]
    ended_s = ended_s[np.isfinite(ended_s)]
    t_s = np.concatenate([sent_s, ended_s])
    change = np.concatenate([np.ones(len(sent_s)), -np.ones(len(ended_s))])
    order = np.argsort(t_s, kind="stable")
    return t_s[order], np.cumsum(change[order])


def arrivals_chart(requests: Requests, end_s: float) -> Chart:
    """Requests a second: as drawn, as sent, and as they ended."""
    width_s, edges = bins_of(end_s)

    def rate(t_s: Float) -> Float:
        return np.histogram(t_s[np.isfinite(t_s)], edges)[0] / width_s

    failed = requests.status == Status.ERROR
    lines = [
        Line("asked", rate(requests.t_intended_s), "light-blue", steps=True, fill=True),
        Line("sent", rate(requests.t_sent_s), "dark-blue", steps=True, dash=True),
        Line("answered", rate(requests.t_last_s[requests.status == Status.OK]), "teal", steps=True),
    ]
    if failed.any():
        lines.append(Line("failed", rate(requests.t_last_s[failed]), "red", steps=True))
    note = f"Per second, in bins of {width_s:g} s. Asked is the schedule; a generator that keeps up sends the same."
    return Chart(
        "arrivals", "Arrivals asked and achieved", note, "run", edges[:-1] + width_s / 2, "/s", lines
    )


def dispatch_chart(requests: Requests, rows: Sequence[Row], end_s: float) -> Chart:
    """How late the generator itself was."""
    delay_s = requests.t_sent_s - requests.t_intended_s
    width_s, edges = bins_of(end_s)
    kept = np.isfinite(delay_s)
    where = np.digitize(requests.t_intended_s[kept], edges) - 1
    bins = [delay_s[kept][where == number] for number in range(len(edges) - 1)]

    def at(p: float) -> Float:
        return np.array([np.quantile(part, p) if len(part) else np.nan for part in bins])

    lines = [
        Line("p50", at(0.5), "light-blue"),
        Line("p99", at(0.99), "dark-blue"),
        Line("largest", at(1.0), "orange", dots=True),
    ]
    levels = [
        Level(row.limit, f"limit {1000 * row.limit:g} ms", "red")
        for row in rows
        if row.expression.startswith("dispatch_delay") and row.limit is not None and row.unit == "s"
    ]
    note = "Sent minus intended: the generator's own delay, which every scheduled latency contains."
    return Chart("dispatch", "Dispatch delay", note, "run", edges[:-1] + width_s / 2, "s", lines, levels)


def instance_chart(curve: Curve, end_s: float) -> Chart:
    """Ready, and wanted where the scaler tells."""
    ready, wanted = curve.named("instances.ready"), curve.named("instances.wanted")
    edges = grid(end_s, [step_s(one.t_s) for one in ready])
    color_of = {one.labels: color for one, color in zip(ready, COLORS, strict=False)}
    lines = [
        Line(f"{label_of(one)} ready", extremes(edges, one.t_s, one.values), color_of[one.labels], steps=True)
        for one in ready
        if one.labels in color_of
    ]
    for one in wanted:
        if one.labels in color_of:
            values = held(points_of(edges), one.t_s, one.values)
            lines.append(Line(f"{label_of(one)} wanted", values, color_of[one.labels], steps=True, dash=True))
    note = "Instances that serve, and that are wanted. Marks are decisions; point at one for its reason."
    return Chart("instances", "Instances", note, "run", points_of(edges), "", lines)


def held(xs: Float, t_s: Float, values: Float) -> Float:
    """What was said last at each of `xs`; NaN before the first word. For series that tell only changes."""
    at = np.searchsorted(t_s, xs, side="right") - 1
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan) if len(t_s) else np.full(len(xs), np.nan)
