"""One picture of the tide: the load, the instances of both sides, and how many requests wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tide_figures import Side, waiting_at

BIN_S = 2.0
WAITING_STEP_S = 0.25
COLOURS = {"load": "#7f8c8d", "static": "#c0762b", "scaled": "#1f77b4"}


def draw(path: Path, static: Side, scaled: Side, title: str, changes_s: Sequence[float]) -> None:
    """A PNG at `path`. `changes_s`: when the scaler decided to change something."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (load, instances, waiting) = pyplot.subplots(
        3, 1, sharex=True, figsize=(11, 8), height_ratios=(2, 2, 1.4), layout="constrained"
    )
    _draw_load(load, scaled)
    for name, side in (("static", static), ("scaled", scaled)):
        instances.step(
            [sample.at_s for sample in side.samples],
            [sample.attached for sample in side.samples],
            where="post",
            color=COLOURS[name],
            label=f"{name}: {side.utilization:.0%} busy, {side.instance_seconds():.0f} instance-seconds",
        )
        times_s = [step * WAITING_STEP_S for step in range(int(side.day.seconds / WAITING_STEP_S))]
        waiting.plot(
            times_s,
            waiting_at(side.sent.calls, times_s),
            color=COLOURS[name],
            linewidth=0.8,
            label=f"{name}: p99 waiting {side.p99_wait_s() * 1000:.0f} ms",
        )
    for at_s in changes_s:
        instances.axvline(at_s, color="black", alpha=0.15, linewidth=0.8)
    instances.set_ylabel("instances")
    waiting.set_ylabel("requests waiting")
    waiting.set_xlabel("seconds of the compressed day")
    waiting.set_xlim(0, scaled.day.seconds)
    for axes in (load, instances, waiting):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_load(axes: Any, side: Side) -> None:
    num_bins = int(side.day.seconds / BIN_S)
    counts = [0] * (num_bins + 1)
    for call in side.sent.calls:
        counts[int(call.due_s / BIN_S)] += 1
    times_s = [(index + 0.5) * BIN_S for index in range(num_bins)]
    axes.bar(
        times_s,
        [count / BIN_S for count in counts[:num_bins]],
        width=BIN_S,
        color=COLOURS["load"],
        alpha=0.4,
        label="sent",
    )
    axes.plot(times_s, [side.day.rate_per_s(at_s) for at_s in times_s], color="black", label="intended")
    axes.set_ylabel("requests/s")
