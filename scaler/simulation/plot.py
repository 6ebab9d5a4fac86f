"""One picture of a replay: the load, and for each policy its instances against what was needed, and who waited.

Read it from the top: where the blue line lies under the grey area there was too little, and the red strip below
shows who waited for that; where it lies far above, it cost too much. Triangles are decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scaler.simulation.figures import Figures
from scaler.simulation.queueing import Capacity
from scaler.simulation.replay import Run
from scaler.simulation.series import (
    NUM_COLUMNS,
    Span,
    columns_of,
    cut,
    moment_text,
    needed_per_minute,
    steps_of,
)
from scaler.simulation.trace import Floats, Trace

INCHES_WIDE, LOAD_INCHES, POLICY_INCHES, GAP_INCHES = 14.0, 1.3, 2.0, 0.42
LEFT, RIGHT = 0.06, 0.985
"""Of the axes, as shares of the picture's width."""
LOAD, NEEDED, READY, STARTING, WAITING = "#5b6770", "#d5d9dd", "#1f5fa8", "#a9cbee", "#c8323f"
OUT, IN, QUIET = "#1e8e3e", "#b06000", "#5f6368"
TICK_STEPS_S = (60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400)
MANY_CHANGES = 400
"""From so many on triangles would hide what they mark: they are drawn small and pale."""


def save_png(path: Path, runs: Sequence[Run], capacity: Capacity, span: Span) -> None:
    figure = draw(runs, capacity, span)
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=110)


def draw(runs: Sequence[Run], capacity: Capacity, span: Span) -> Figure:
    """All runs are of one trace."""
    trace = runs[0].trace
    inches = (LOAD_INCHES, *([POLICY_INCHES] * len(runs)))
    high_in = 1.15 + sum(inches) + GAP_INCHES * len(runs)
    figure = Figure(figsize=(INCHES_WIDE, high_in), facecolor="white")
    grid = figure.add_gridspec(
        len(inches),
        height_ratios=inches,
        left=LEFT,
        right=RIGHT,
        top=1 - 0.7 / high_in,
        bottom=0.45 / high_in,
        hspace=GAP_INCHES * len(inches) / sum(inches),
    )
    top = figure.add_subplot(grid[0])
    _draw_load(top, trace, span)
    axes = [top]
    needed = needed_per_minute(trace, capacity, span)
    most = max([needed[1].max(), *(cut(run, run.wanted, span).max() for run in runs)])
    for row, run in enumerate(runs, 1):
        pair = grid[row].subgridspec(2, 1, height_ratios=(3, 1), hspace=0.12)
        axes += [figure.add_subplot(pair[index], sharex=top) for index in range(2)]
        _draw_instances(axes[-2], run, needed, span, high=1.12 * most + 0.5)
        _draw_queue(axes[-1], run, span)
    _label_time(axes, trace, span)
    _head(figure, runs[0])
    return figure


def _draw_load(axes: Axes, trace: Trace, span: Span) -> None:
    step_s = max(trace.bin_s, 60.0, (span.to_s - span.from_s) / NUM_COLUMNS)
    edges_s = np.arange(span.from_s, span.to_s + 1e-6, step_s)
    if len(edges_s) < 2:
        edges_s = np.array([span.from_s, span.to_s])
    total = np.concatenate(([0.0], np.cumsum(trace.counts)))
    per_s = np.diff(np.interp(edges_s, np.arange(len(total)) * trace.bin_s, total)) / np.diff(edges_s)
    axes.stairs(per_s, edges_s, fill=True, color=LOAD, alpha=0.25, linewidth=0)
    axes.stairs(per_s, edges_s, color=LOAD, linewidth=1.0)
    axes.set_ylim(0, per_s.max() * 1.1 or 1.0)
    each = "a minute" if step_s <= 60.0 else f"{step_s / 60:.0f} min"
    _title(axes, "load", f"requests per second, mean of {each}; {trace.num_requests:,.0f} requests")


def _draw_instances(axes: Axes, run: Run, needed: tuple[Floats, Floats], span: Span, high: float) -> None:
    axes.fill_between(*needed, step="post", color=NEEDED, linewidth=0)
    at_s, ready, wanted = steps_of(run, span)
    axes.fill_between(at_s, ready, wanted, step="post", color=STARTING, linewidth=0)
    axes.step(at_s, ready, where="post", color=READY, linewidth=1.4)
    _mark_changes(axes, run, span, high)
    axes.set_ylim(0, high)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    _title(axes, run.policy, words(run.figures))


def _mark_changes(axes: Axes, run: Run, span: Span, high: float) -> None:
    changes = [change for change in run.changes if span.from_s <= change.at_s < span.to_s]
    is_many = len(changes) > MANY_CHANGES
    size, alpha = (2.0, 0.35) if is_many else (4.5, 1.0)
    for marker, color, is_out in (("^", OUT, True), ("v", IN, False)):
        here = [change for change in changes if (change.after > change.before) == is_out]
        at_s = [change.at_s for change in here]
        heights = [max(change.before, change.after) + 0.04 * high for change in here]
        axes.plot(at_s, heights, marker, color=color, markersize=size, alpha=alpha, markeredgewidth=0)


def _draw_queue(axes: Axes, run: Run, span: Span) -> None:
    at_s, queue = columns_of(run, run.queue, span)
    axes.fill_between(at_s, queue, step="post", color=WAITING, alpha=0.3, linewidth=0)
    axes.step(at_s, queue, where="post", color=WAITING, linewidth=0.9)
    axes.set_ylim(0, max(20.0, 1.15 * queue.max()))
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.set_ylabel("waiting", fontsize=8, color=WAITING)
    axes.tick_params(axis="y", labelsize=8)
    _plain(axes)


def words(figures: Figures) -> str:
    """A replay in one line."""
    late = 1.0 - figures.started_5s_share
    waited = (
        f"{_share(late)} waited over 5 s, the longest {_longest(figures)}"
        if late > 0
        else "nobody waited over 5 s"
    )
    return (
        f"cost {100 * figures.cost_share:.0f} % of the static peak · {waited} · {figures.flips} "
        f"flip{'' if figures.flips == 1 else 's'} · at most {figures.peak_instances} "
        f"({figures.peak_over_needed:.1f} × needed)"
    )


def _share(share: float) -> str:
    return "under 0.001 %" if share < 1e-5 else f"{100 * share:.{1 if share >= 0.001 else 3}f} %"


def _longest(figures: Figures) -> str:
    longest_s = figures.wait_max_s
    if not math.isfinite(longest_s):
        return "for ever"
    return f"{longest_s:.0f} s" if longest_s < 600 else f"{longest_s / 60:.0f} min"


def _title(axes: Axes, name: str, text: str) -> None:
    axes.set_title(name, loc="left", fontsize=11, fontweight="bold", pad=5, parse_math=False)
    axes.set_title(text, loc="right", fontsize=9, color=QUIET, pad=5, parse_math=False)
    _plain(axes)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e8eaed", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0)


def _label_time(axes: Sequence[Axes], trace: Trace, span: Span) -> None:
    length_s = span.to_s - span.from_s
    step_s = next((step for step in TICK_STEPS_S if length_s / step <= 12), TICK_STEPS_S[-1])
    origin = trace.start_unix_s % 86400
    first = np.ceil((span.from_s + origin) / step_s) * step_s - origin
    axes[0].set_xlim(span.from_s, span.to_s)
    # A label at the very edge would be cut off.
    axes[0].set_xticks(np.arange(first, span.to_s - 0.02 * length_s, step_s))
    for each in axes:
        each.tick_params(axis="x", labelbottom=False, length=2)
    axes[-1].tick_params(axis="x", labelbottom=True, labelsize=9)
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: _tick_text(trace, at_s, step_s)))


def _tick_text(trace: Trace, at_s: float, step_s: float) -> str:
    text = moment_text(trace, at_s)
    if not trace.start_unix_s:
        return text
    return text[:-6] if step_s >= 86400 else text[-5:] if text[-5:] != "00:00" else text[:-6]


def _head(figure: Figure, run: Run) -> None:
    zone = ", times in UTC" if run.trace.start_unix_s else ""
    text = f"{run.trace.name}, start-up {run.figures.startup_s:g} s{zone}"

    def mark(marker: str, color: str, label: str) -> Line2D:
        return Line2D([], [], marker=marker, color=color, linestyle="", markersize=6, label=label)

    handles = [
        Patch(color=NEEDED, label="needed (each minute at 70 %)"),
        Line2D([], [], color=READY, linewidth=1.6, label="serving"),
        Patch(color=STARTING, label="starting"),
        mark("^", OUT, "scaled out"),
        mark("v", IN, "scaled in"),
        Patch(color=WAITING, alpha=0.4, label="requests waiting"),
    ]
    figure.legend(handles=handles, loc="upper right", ncols=6, frameon=False, fontsize=9, borderaxespad=0.4)
    figure.text(
        0.012,
        1 - 0.28 / figure.get_figheight(),
        text,
        fontsize=13,
        fontweight="bold",
    )
