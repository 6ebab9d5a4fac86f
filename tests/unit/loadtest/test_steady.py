"""Where the warm-up ends, and whether the rest stood still."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.measuring.asked import asked_load, levels
from loadtest.measuring.slopes import slope_of
from loadtest.measuring.steady import AskedLoad, find_window
from loadtest.measuring.warmup import warm_up_bins
from loadtest.planning.plan import check_plan
from loadtest.planning.rates import RateCurve
from loadtest.records import Request, columns_of
from tests.unit.loadtest.runs import NO_CURVE, a_request, failed, not_sent, unfinished


def load(latency_of, duration_s: float = 300.0, rate_per_s: float = 8.0, seed: int = 1) -> list[Request]:
    """Poisson arrivals; `latency_of(t)` is the mean of gamma-distributed latencies."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, duration_s, int(duration_s * rate_per_s)))
    return [
        a_request(float(t), float(latency_of(t) * rng.gamma(16) / 16), index=i) for i, t in enumerate(times)
    ]


def hold(duration_s: float = 300.0) -> AskedLoad:
    return AskedLoad(duration_s, ((0.0, duration_s),))


def window_of(rows: list[Request], asked: AskedLoad):
    return find_window(columns_of(rows), NO_CURVE, asked)


def test_a_run_that_stood_still_is_measured_whole():
    """Latencies of 0.5 s throughout: nothing is cut off, no drift."""
    window = window_of(load(lambda t: 0.5), hold())
    assert (window.is_steady, window.start_s, window.end_s) == (True, 0.0, 300.0)


def test_the_warm_up_is_cut_where_it_ends():
    """The first 30 s are three times as slow: cut at 30 s, or two bins later."""
    window = window_of(load(lambda t: 1.5 if t < 30 else 0.5), hold())
    assert window.is_steady
    assert window.start_s == pytest.approx(35, abs=5)


def test_at_least_what_the_plan_says_is_cut():
    """least_s = 60."""
    asked = AskedLoad(300.0, ((0.0, 300.0),), least_s=60.0)
    assert window_of(load(lambda t: 0.5), asked).start_s >= 60.0


def test_a_queue_that_never_stops_growing_is_no_steady_state():
    """Latencies from 0.5 to 3.5 s over five minutes."""
    window = window_of(load(lambda t: 0.5 + t / 100), hold())
    assert window.is_steady is False
    assert "drift" in window.why or "settled" in window.why


def test_a_drift_that_is_certain_and_tiny_does_not_matter():
    """From 500 to 510 ms: 2 % over the run."""
    window = window_of(load(lambda t: 0.5 + t / 30_000, rate_per_s=40), hold())
    assert window.is_steady


def test_a_short_run_says_how_long_it_would_have_to_be():
    """Six seconds at one request a second have no trend to test."""
    window = window_of(load(lambda t: 0.5, duration_s=6, rate_per_s=1), hold(6.0))
    assert window.is_steady is False
    assert "s would do" in window.why or "needed at the least" in window.why


def test_steady_runs_are_rarely_called_unsteady():
    """12 seeded Poisson runs of a queue in balance: at most one is refused (two tests at 99 % each)."""
    windows = [window_of(load(lambda t: 0.5, rate_per_s=4, seed=seed), hold()) for seed in range(12)]
    assert sum(window.is_steady is not True for window in windows) <= 1


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_slopes_interval_holds_zero_as_often_as_it_says_in_noise_that_remembers(correlation):
    """500 series of 60 bins without a trend: 99 %, and not below 97 % with neighbours alike."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(500):
        noise = rng.normal(size=90)
        for i in range(1, 90):
            noise[i] += correlation * noise[i - 1]
        slope = slope_of(np.arange(60) * 5.0, 10 + noise[30:])
        held += slope.low <= 0 <= slope.high
    assert held / 500 >= 0.97


def test_a_slope_beside_the_rate_sees_what_the_rate_does_not_explain():
    """In flight follows a wave of the rate; with a leak on top, the slope is the leak's."""
    t_s = np.arange(0, 600, 5.0)
    rate = 10 + 5 * np.sin(t_s / 40)
    noise = np.random.default_rng(1).normal(0, 0.2, len(t_s))
    assert (
        slope_of(t_s, 2 * rate + noise, beside=rate).low
        < 0
        < slope_of(t_s, 2 * rate + noise, beside=rate).high
    )
    leaking = slope_of(t_s, 2 * rate + 0.02 * t_s + noise, beside=rate)
    assert leaking.low < 0.02 < leaking.high
    assert leaking.drifts


def test_noise_has_no_warm_up():
    """200 series of noise: MSER alone would cut nearly all of them somewhere; here one in fifty at most."""
    rng = np.random.default_rng(8)
    cut = [warm_up_bins(rng.normal(10, 1, 60)) for _ in range(200)]
    assert sum(each != 0 for each in cut) <= 4


def test_a_series_that_settles_in_its_second_half_has_not_settled():
    """High for 35 of 60 bins."""
    assert warm_up_bins(np.concatenate((np.full(35, 9.0), np.full(25, 1.0)))) is None


def test_each_stage_is_tested_by_itself():
    """Two levels, 0.5 s and 1.5 s: the step between them is no drift; a stage that drifts is named."""
    asked = AskedLoad(600.0, ((0.0, 300.0), (300.0, 600.0)))
    good = load(lambda t: 0.5 if t < 300 else 1.5, duration_s=600)
    bad = load(lambda t: 0.5 if t < 300 else 1.5 + (t - 300) / 100, duration_s=600)
    assert window_of(good, asked).is_steady
    assert window_of(bad, asked).is_steady is False


def test_a_load_that_changes_by_plan_is_not_asked_unless_the_plan_asks():
    """A day curve: not asked, with the reason; `required`: tested beside the rate."""
    raw = {
        "name": "day",
        "load": {
            "kind": "open",
            "shape": {"kind": "day", "trough_per_s": 1, "peak_per_s": 9, "duration_s": 300},
        },
        "users": [{"name": "chat", "kind": "openai_chat", "service": "chat"}],
    }
    plan = check_plan(raw, None)
    required = check_plan({**raw, "warm_up": {"steady": "required"}}, None)
    rows = load(lambda t: 0.5)
    assert window_of(rows, asked_load(plan)).is_steady is None
    assert "by plan" in window_of(rows, asked_load(plan)).why
    assert window_of(rows, asked_load(required)).is_steady is True


def test_levels_are_found_in_a_rate():
    """A ramp, a hold of two lines, a step, a hold at zero that is no level."""
    curve = RateCurve.through([(0, 0), (10, 5), (20, 5), (30, 5), (30, 8), (40, 8), (40, 0), (50, 0)])
    assert levels(curve) == ((10.0, 30.0), (30.0, 40.0))


@pytest.mark.parametrize(
    "rows",
    [[], [failed(1.0)], [not_sent(1.0)], [unfinished(1.0, 60.0)]],
    ids=["none", "failed", "unsent", "open"],
)
@pytest.mark.parametrize(
    "asked", [hold(0.5), hold(60.0), AskedLoad(60.0), AskedLoad(60.0, ((0.0, 60.0),), least_s=90.0)]
)
def test_a_run_with_next_to_nothing_in_it_is_not_steady(rows, asked):
    """No data is no calm."""
    assert window_of(rows, asked).is_steady is False


def test_a_slope_is_a_drift_when_it_is_certain_and_large():
    """Noise of 0.1 % on a level of 100: 2 % over the span is certain and no drift, 30 % is both."""
    t_s, noise = np.arange(60) * 5.0, np.random.default_rng(6).normal(0, 0.1, 60)
    small, large = (slope_of(t_s, 100 + noise + rise * t_s / t_s[-1]) for rise in (2, 30))
    assert small.low > 0
    assert (small.drifts, large.drifts) == (False, True)


def test_an_overload_that_answers_nobody_is_not_said_to_become_faster():
    """All of 60 s are open when the run ends: the later they came, the shorter they were watched."""
    window = window_of([unfinished(i / 5, 60.0) for i in range(300)], hold(60.0))
    assert window.is_steady is False
    assert "drifts by -" not in window.why
