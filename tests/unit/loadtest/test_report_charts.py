"""What the report's charts and tables are made of."""

import numpy as np

from loadtest.curve import Series
from loadtest.records import Request, Status, columns_of
from loadtest.reporting.chart import numbers
from loadtest.reporting.shrink import extremes, grid, points_of
from loadtest.reporting.tables import error_groups
from loadtest.reporting.testing import made_result
from loadtest.reporting.timeline import held, in_flight, memory_chart, process_chart
from loadtest.reporting.wording import figure, tied


def test_a_peak_of_one_sample_survives_the_shrinking():
    """36,000 samples, 800 points: the one that touched the ceiling is among them, and the one at 0."""
    t_s = np.arange(36_000) * 0.1
    values = np.full(36_000, 0.5)
    values[17_777], values[20_001] = 1.0, 0.0
    edges = grid(3600, [0.1])
    drawn = extremes(edges, t_s, values)
    assert len(drawn) == len(points_of(edges)) == 800
    assert drawn.max() == 1.0
    assert drawn.min() == 0.0


def test_a_silent_source_is_a_gap_and_not_zero():
    """No samples between 10 s and 20 s."""
    t_s = np.concatenate([np.arange(0, 10, 0.25), np.arange(20, 30, 0.25)])
    edges = grid(30, [0.25])
    drawn = extremes(edges, t_s, np.ones(len(t_s)))
    middle = (points_of(edges) > 11) & (points_of(edges) < 19)
    assert np.isnan(drawn[middle]).all()
    assert np.nanmin(drawn) == 1.0
    assert None in numbers(drawn)


def test_in_flight_counts_up_when_sent_and_down_when_ended():
    """Two that overlap; one that was never sent counts nowhere."""
    rows = [
        _row(0, 0.0, 1.0, 3.0),
        _row(1, 0.0, 2.0, 4.0),
        _row(2, 1.0, float("nan"), float("nan"), Status.NOT_SENT),
    ]
    t_s, counts = in_flight(columns_of(rows))
    assert t_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert counts.tolist() == [1, 2, 1, 0]


def test_memory_is_drawn_against_all_blocks_with_its_limit():
    """Used and high water as shares; lines at the ceiling and at the plan's 90 %."""
    made = made_result(duration_s=20)
    chart = memory_chart(made.curve, made.judgement.rows, 24.0)
    assert [level.value for level in chart.levels] == [1.0, 0.9]
    assert all(0 <= np.nanmax(line.values) <= 1 for line in chart.lines)


def test_two_workers_are_one_line_with_the_sum_of_their_memory():
    """310 MiB and 300 MiB before the load."""
    made = made_result(duration_s=20)
    chart = process_chart(made.curve, 24.0)
    workers = next(line for line in chart.lines if line.label == "worker")
    assert np.nanmin(workers.values) == 610 * 2**20
    assert len(chart.lines) == 2


def test_a_worker_that_ended_no_longer_counts():
    """Its last sample is not carried on for ever."""
    from loadtest.reporting.timeline import _summed

    one, two = np.arange(0, 10, 1.0), np.arange(0, 4, 1.0)
    labels = (("process", "worker"),)
    summed = _summed(
        [
            Series("pss_bytes", (*labels, ("pid", pid)), "bytes", t, np.full(len(t), 5.0))
            for pid, t in (("1", one), ("2", two))
        ],
        "process",
    )
    assert summed[0].values.tolist() == [10.0] * 6 + [5.0] * 4


def test_what_is_told_at_changes_alone_holds_until_the_next():
    """Two instances are wanted from 5 s on, three from 9 s; before that nobody had said."""
    at = held(np.array([1.0, 5.0, 8.9, 30.0]), np.array([5.0, 9.0]), np.array([2.0, 3.0]))
    assert numbers(at) == [None, 2.0, 2.0, 3.0]


def test_errors_that_differ_in_numbers_are_one_group_and_http_statuses_are_not():
    """Two 503 with other seconds, one 500."""
    texts = ["http 503: no answer in 3 s", "http 503: no answer in 11.5 s", "http 500: no answer in 3 s"]
    rows = [_row(i, float(i), float(i), i + 1.0, Status.ERROR, text) for i, text in enumerate(texts)]
    assert [(one.count, one.example[:8]) for one in error_groups(columns_of(rows))] == [
        (2, "http 503"),
        (1, "http 500"),
    ]


def test_figures_have_three_digits_and_a_dash_for_what_is_not_known():
    """Seconds in the unit that reads well."""
    assert [figure(v, "s") for v in (0.0123, 1.5, 90.0, 4e-5, None, float("nan"))] == [
        "12.3 ms", "1.5 s", "90 s", "0.04 ms", "–", "–",
    ]  # fmt: skip
    assert figure(0.901, "ratio") == "90.1 %"
    assert figure(3 * 2**20, "bytes") == "3 MiB"
    assert figure(float("inf"), "s") == "∞"
    assert tied("at 99 % of 4,603 requests") == "at 99\N{NO-BREAK SPACE}% of 4,603 requests"


def _row(index, t_intended_s, t_sent_s, t_last_s, status=Status.OK, error=""):
    return Request(
        index=index, process=0, user="chat", service="chat", session="", turn=0, status=status, error=error,
        instance="", t_intended_s=t_intended_s, t_sent_s=t_sent_s, t_first_s=float("nan"), t_last_s=t_last_s,
        input_tokens=0, output_tokens=0, cached_tokens=0,
    )  # fmt: skip
