"""The figures of a run, each from its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.measuring import bins
from loadtest.measuring.catalogue import BY_NAME, CATALOGUE
from loadtest.measuring.gaps import gap_quantile
from loadtest.measuring.metrics import measure
from loadtest.measuring.order_statistics import OrderStatistics
from loadtest.measuring.rows import in_time_order
from loadtest.measuring.steady import Window
from loadtest.records import columns_of
from tests.unit.loadtest.runs import (
    NO_CURVE,
    a_request,
    even_run,
    failed,
    measured_of,
    not_sent,
    shuffled,
    unfinished,
)


def test_a_request_that_waited_in_the_generator_is_slow_for_its_user_and_not_for_the_server():
    """Due at 0, sent at 2, first token at 2.5, done at 3."""
    late = a_request(
        0.0, t_sent_s=2.0, t_first_s=2.5, t_last_s=3.0, chunk_times_s=(2.5, 3.0), chunk_tokens=(1, 1)
    )
    measured = measured_of([late])
    figures = {
        name: measured.samples(name).values[0]
        for name in BY_NAME
        if name.endswith((".scheduled", ".service"))
    }
    assert figures == {
        "latency.scheduled": 3.0,
        "latency.service": 1.0,
        "ttft.scheduled": 2.5,
        "ttft.service": 0.5,
    }
    assert measured.samples("dispatch_delay").values[0] == 2.0


def test_time_per_token_leaves_the_first_one_out_and_does_not_arise_for_a_single_one():
    """Five tokens in two chunks over 1 s: 0.25 s; one token: nothing, not 0 and not minus the latency (B8)."""
    several = a_request(0.0, chunk_times_s=(1.0, 2.0), chunk_tokens=(1, 4), output_tokens=5)
    single = a_request(1.0, chunk_times_s=(1.5,), chunk_tokens=(1,), output_tokens=1)
    assert measured_of([several, single]).samples("tpot").values.tolist() == [0.25]


def test_gaps_lie_inside_requests_only():
    """Two requests of three chunks: four gaps, the worst of each, and no gap from one request to the next."""
    one = a_request(0.0, chunk_times_s=(1.0, 1.1, 1.4), chunk_tokens=(1, 1, 2))
    other = a_request(5.0, chunk_times_s=(6.0, 6.2, 6.3), chunk_tokens=(1, 3, 1))
    measured = measured_of([one, other])
    assert measured.gaps().values == pytest.approx([0.1, 0.3, 0.2, 0.1])
    assert measured.samples("gap.worst").values == pytest.approx([0.3, 0.2])
    assert measured.level("gap.tokens", "mean") == pytest.approx((1 + 2 + 3 + 1) / 4)


def test_gaps_of_requests_without_chunks_between_them_are_right():
    """Failed, single and unfinished ones stand among the good ones: an infinite gap, none, and the open one."""
    rows = [
        a_request(0.0, chunk_times_s=(0.1, 0.3), chunk_tokens=(1, 1)),
        failed(1.0),
        a_request(2.0, chunk_times_s=(2.1,), chunk_tokens=(1,)),
        unfinished(3.0, end_s=13.0),
        a_request(4.0, chunk_times_s=(4.1, 4.2), chunk_tokens=(1, 1)),
    ]
    gaps = measured_of(rows).gaps()
    assert gaps.values == pytest.approx([0.2, np.inf, 10.0, 0.1])
    assert gaps.is_lower_bound.tolist() == [False, False, True, False]
    assert gaps.rows.tolist() == [0, 1, 3, 4]


def test_gaps_of_one_slow_request_are_one_event():
    """30 requests with 100 gaps each, all slow ones in one: a wide interval, though 3,000 gaps are many."""
    rng, rows = np.random.default_rng(2), []
    for i in range(30):
        pace = 0.5 if i == 3 else 0.01
        times = 1.0 + i + np.cumsum(rng.gamma(20, pace / 20, 101))
        rows.append(a_request(float(i), chunk_times_s=tuple(times), chunk_tokens=(1,) * 101))
    gaps = measured_of(rows).gaps()
    found = gap_quantile(gaps, 0.96, 0.95)
    independent = np.sort(gaps.values)[[2850, 2910]]
    assert found.low is not None
    assert found.low < 0.03
    assert found.high is None or found.high > 0.4
    assert independent[0] < found.high if found.high else True


def test_embeddings_have_no_time_to_first_token():
    """A unary route beside a streaming one would make the first tokens of the mix look fast."""
    unary = a_request(1.0, user="embed", t_first_s=1.001, chunk_times_s=(), chunk_tokens=())
    measured = measured_of([a_request(0.0), unary])
    assert len(measured.samples("ttft.scheduled")) == 1
    assert len(measured.samples("latency.scheduled")) == 2


def test_a_route_that_never_answered_counts_against_first_tokens():
    """Whether it would have streamed nobody knows."""
    measured = measured_of([a_request(0.0), replace(failed(1.0), user="other")])
    assert measured.samples("ttft.scheduled").values.tolist()[1] == np.inf


def test_a_failed_request_is_infinitely_slow_and_an_unfinished_one_at_least_as_slow_as_it_was_seen():
    """Two good ones of 0.5 s, a refusal in 1 ms, one that was still open after 9 s, one that was never sent."""
    rows = [a_request(0.0), a_request(1.0), failed(2.0), unfinished(3.0, end_s=12.0), not_sent(4.0)]
    samples = measured_of(rows).samples("latency.scheduled")
    assert samples.values.tolist() == [0.5, 0.5, np.inf, 9.0]
    assert samples.is_lower_bound.tolist() == [False, False, False, True]
    assert samples.exact.tolist() == [0.5, 0.5]


def test_a_percentile_that_unfinished_requests_decide_is_a_lower_bound():
    """100 of 1,000 were open for 3 s when the run ended: p50 is known, p95 is at least 3 s and has no upper end."""
    rows = [*even_run(900), *(unfinished(90 + i / 10, end_s=90 + i / 10 + 3) for i in range(100))]
    measured = measured_of(rows)
    median, tail = measured.quantile("latency.scheduled", 0.5), measured.quantile("latency.scheduled", 0.95)
    assert (median.is_lower_bound, tail.is_lower_bound) == (False, True)
    assert tail.value == pytest.approx(3.0)
    assert tail.high is None


def test_latency_belongs_to_the_window_by_intended_start_and_throughput_by_token_time():
    """Due at 9.9 and slow: its latency counts, its tokens after 10 s do not; one due before 0 brings tokens."""
    early = a_request(-1.0, 3.0, chunk_times_s=(-0.5, 1.0, 2.0), chunk_tokens=(1, 1, 1))
    late = a_request(9.9, 5.0, chunk_times_s=(9.95, 12.0), chunk_tokens=(1, 9))
    after = a_request(10.0, 7.0)
    measured = measure(columns_of([early, late, after]), NO_CURVE, Window(0.0, 10.0, True, "", ()))
    assert measured.samples("latency.scheduled").values.tolist() == pytest.approx([5.0])
    assert measured.rate("tokens.rate") == pytest.approx(3 / 10)
    assert measured.rate("requests.offered") == pytest.approx(1 / 10)
    assert measured.rate("requests.achieved") == pytest.approx(1 / 10)


def test_goodput_asks_every_goal_of_each_request():
    """One is slow to start, one has a long gap in most of its tokens, one failed: one of four is good."""
    slow = a_request(1.0, t_first_s=4.0, t_last_s=4.5, chunk_times_s=(4.0, 4.1, 4.5), chunk_tokens=(1, 1, 1))
    jerky = a_request(2.0, chunk_times_s=(2.1, 2.9, 3.7), chunk_tokens=(1, 1, 1), t_last_s=3.7)
    rows = [a_request(0.0), slow, jerky, failed(3.0)]
    measured = measured_of(rows, lines=("ttft.scheduled p99 < 2s", "gap p50 < 500ms", "errors rate < 50%"))
    share = measured.share("goodput")
    assert (share.count, share.n) == (1, 4)


def test_a_goal_of_one_route_asks_nothing_of_another():
    """The slow batch route keeps its own limit."""
    slow = a_request(1.0, 5.0, user="batch")
    lines = ("latency.scheduled{user=chat} p99 < 1s", "latency.scheduled{user=batch} p99 < 10s")
    assert measured_of([a_request(0.0), slow], lines=lines).share("goodput").count == 2


def test_littles_law_holds_in_a_run_that_counts_rightly():
    """10 a second for 0.5 s each are 5 in flight."""
    law = measured_of(even_run(3000)).littles_law
    assert law is not None
    assert law.in_flight == pytest.approx(5.0, rel=0.01)
    assert abs(law.mismatch) < 0.01


def test_requests_in_flight_are_counted_exactly():
    """Two overlap from 1 to 2 s: 1, 2 and 1 in flight in the three seconds, never three."""
    requests = columns_of([a_request(0.0, 2.0), a_request(1.0, 2.0)])
    assert bins.in_flight(requests, np.array([0.0, 1.0, 2.0, 3.0])) == pytest.approx([1, 2, 1])
    assert bins.most_in_flight(requests, 0.0, 3.0) == 2


def test_large_samples_have_the_same_order_statistics_as_small_ones(monkeypatch):
    """The neighbourhood of a rank, against sorting; with ties, infinite values and the ends."""
    rng = np.random.default_rng(11)
    values = np.concatenate((rng.exponential(1.0, 300_000), np.full(50_000, 0.25), np.full(500, np.inf)))
    rng.shuffle(values)
    ordered = np.sort(values)
    monkeypatch.setattr("loadtest.measuring.order_statistics.SORTED_BELOW", 1000)
    monkeypatch.setattr("loadtest.measuring.order_statistics.PROBES", 1000)
    ranked = OrderStatistics(values)
    for rank in (1, 2, 70_000, 100_000, 175_250, 347_000, 350_000, 350_001, len(values)):
        assert ranked.at(rank) == ordered[rank - 1]


def test_the_order_in_which_rows_come_changes_no_figure():
    """Rows of several processes, merged in any order, are the same run."""
    rng = np.random.default_rng(4)
    rows = [a_request(i / 10, float(rng.exponential(1)), index=i) for i in range(400)] + [failed(41.0)]
    requests = columns_of(rows)
    again = in_time_order(shuffled(requests, seed=9))
    assert again.index.tolist() == requests.index.tolist()
    assert again.chunk_times_s.tolist() == requests.chunk_times_s.tolist()
    window = Window(0.0, 60.0, True, "", ())
    first, second = (measure(each, NO_CURVE, window) for each in (requests, shuffled(requests, seed=10)))
    for name in ("latency.scheduled", "ttft.service", "gap", "gap.worst", "tpot"):
        assert first.quantile(name, 0.9) == second.quantile(name, 0.9)


def test_merging_is_of_rows_and_never_of_percentiles():
    """A slow process with few requests and a fast one with many: the p99 is that of all rows, no mean of two."""
    fast = [a_request(i / 100, 0.1, process=0) for i in range(990)]
    slow = [a_request(i / 100 + 0.001, 1.0, process=1) for i in range(20)]
    both = measured_of(fast + slow).quantile("latency.scheduled", 0.99)
    assert both.value == pytest.approx(1.0)


def test_every_metric_can_be_asked_for():
    """An entry of the catalogue that nothing computes would be INVALID for ever."""
    measured = measured_of(even_run(50))
    for metric in CATALOGUE:
        match metric.kind.name:
            case "REQUEST" | "GAP":
                measured.quantile(metric.name, 0.5)
            case "SHARE":
                measured.share(metric.name)
            case "COUNT":
                measured.count(metric.name)
            case "RATE":
                measured.rate(metric.name)
            case "LEVEL":
                measured.level(metric.name, "max")
            case "SLOPE":
                measured.slope(metric.name)
            case "CHANGE":
                measured.change(metric.name)


def test_a_stall_is_felt_by_everyone_who_was_due_in_it():
    """20 a second for 10 s, 7 ms each, a stall of 2 s: p90 is 1,007 ms and p95 1,507 ms, in closed form.

    Locust's `constant_throughput` said 9 ms for that p95, because its users waited with the server.
    """
    rows = []
    for i in range(200):
        due_s = i / 20
        waits_s = 6.0 - due_s if 4.0 <= due_s < 6.0 else 0.0
        rows.append(a_request(due_s, waits_s + 0.007, index=i))
    measured = measured_of(rows)
    assert measured.quantile("latency.scheduled", 0.90).value == pytest.approx(1.007, rel=1e-6)
    assert measured.quantile("latency.scheduled", 0.95).value == pytest.approx(1.507, rel=1e-6)


def test_without_latency_lines_goodput_is_what_ended_well():
    """One of three failed, one was unfinished."""
    assert measured_of([a_request(0.0), failed(1.0), unfinished(2.0, 9.0)]).share("goodput").count == 1


def test_a_line_on_a_percentile_of_gaps_forgives_a_request_that_share_of_its_own():
    """Of 20 gaps one is long, of 20 others five are: p90 forgives two."""
    rows = []
    for i, long_ones in enumerate((1, 5)):
        gaps = [0.3] * long_ones + [0.01] * (20 - long_ones)
        times = tuple(i + 0.1 + np.concatenate(([0.0], np.cumsum(gaps))))
        rows.append(a_request(float(i), 5.0, chunk_times_s=times, chunk_tokens=(1,) * 21))
    assert measured_of(rows, lines=("gap p90 < 100ms",)).share("goodput").count == 1
