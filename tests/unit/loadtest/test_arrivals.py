"""Moments of requests: rates over time, and arrivals around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from loadtest.planning.arrivals import draw_arrivals
from loadtest.planning.load import Constant, Gamma, Poisson
from loadtest.planning.rates import RateCurve
from loadtest.planning.schedule import plan_schedule
from loadtest.planning.shapes import curve_of
from tests.unit.loadtest.plans import CHAT, held, plan_of

TENT = RateCurve.through([(0, 0), (50, 40), (100, 0)])
"""2,000 requests expected in 100 s."""


def _curve(**shape: Any) -> RateCurve:
    return curve_of(plan_of({"kind": "open", "shape": shape}).load.shape)


def test_poisson_gaps_are_exponential():
    """12,000 gaps at 200 a second: Kolmogorov-Smirnov against the exponential of the same mean."""
    times_s = plan_schedule(plan_of(held(200, 60))).t_intended_s

    assert stats.kstest(np.diff(times_s, prepend=0.0), "expon", args=(0, 1 / 200)).pvalue > 0.01
    assert abs(len(times_s) - 12_000) < 4 * 12_000**0.5


def test_gamma_gaps_have_the_coefficient_of_variation_that_was_asked():
    """Burstiness 0.25 is 1 / sqrt(0.25) = 2, and the gaps are of that gamma."""
    curve = RateCurve.through([(0, 100), (200, 100)])
    times_s = draw_arrivals(curve, Gamma(kind="gamma", burstiness=0.25), np.random.default_rng(3))
    gaps_s = np.diff(times_s)

    assert gaps_s.std() / gaps_s.mean() == pytest.approx(2.0, rel=0.05)
    assert stats.kstest(gaps_s, "gamma", args=(0.25, 0, 0.04)).pvalue > 0.01


def test_constant_arrivals_are_even_and_counted_exactly():
    """200 a second for 600 s are 120,000 requests, 5 ms apart, the last inside the time."""
    times_s = plan_schedule(plan_of(held(200, 600, "constant"))).t_intended_s

    assert len(times_s) == 120_000
    assert np.allclose(np.diff(times_s), 0.005, rtol=0, atol=1e-9)
    assert times_s[0] == pytest.approx(0.0025)
    assert times_s[-1] < 600


def test_arrivals_follow_a_rate_that_changes():
    """A tent: through the integral of the rate, moments are those of a process with rate 1."""
    times_s = draw_arrivals(TENT, Poisson(), np.random.default_rng(5))

    assert stats.kstest(TENT.expected_until(times_s) / TENT.total, "uniform").pvalue > 0.01
    assert abs(len(times_s) - 2000) < 4 * 2000**0.5
    assert (np.diff(times_s) >= 0).all()


def test_the_integral_and_its_inverse_undo_each_other():
    """On ramps, flats, a step and a stretch of rate 0, in which nothing comes."""
    curve = RateCurve.through([(0, 0), (10, 20), (20, 20), (20, 5), (30, 0), (40, 0), (50, 1e-9), (60, 30)])
    wanted = np.linspace(0, curve.total * (1 - 1e-9), 1001)

    moments_s = curve.moment_of(wanted)

    assert curve.expected_until(moments_s) == pytest.approx(wanted, abs=1e-6)
    assert not ((moments_s > 30) & (moments_s < 40)).any()
    assert curve.total == pytest.approx(100 + 200 + 25 + 150, abs=1e-6)


def test_the_same_seed_is_the_same_schedule_and_another_seed_another():
    """Moments and users."""
    first, again, other = (plan_schedule(plan_of(held(50, 20), seed=seed)) for seed in (7, 7, 8))

    assert first.t_intended_s.tolist() == again.t_intended_s.tolist()
    assert first.user.tolist() == again.user.tolist()
    assert first.t_intended_s[:10].tolist() != other.t_intended_s[:10].tolist()


def test_users_come_by_their_weights_and_leave_the_moments_alone():
    """3 to 1 of 10,000; the same moments as with one user."""
    embed = {"name": "embed", "kind": "openai_embeddings", "service": "embed"}
    mixed = plan_schedule(plan_of(held(100, 100), {**CHAT, "weight": 3}, embed))

    assert (mixed.user == 0).mean() == pytest.approx(0.75, abs=0.02)
    assert mixed.t_intended_s.tolist() == plan_schedule(plan_of(held(100, 100))).t_intended_s.tolist()


def test_stages_ramp_from_the_rate_before_and_then_hold():
    """10 s up to 8, 20 s there, at once down to 2."""
    curve = _curve(
        kind="stages",
        stages=[{"rate_per_s": 8, "ramp_s": 10, "hold_s": 20}, {"rate_per_s": 2, "hold_s": 5}],
    )

    assert curve.rate_at(np.array([5.0, 10.0, 29.9, 30.0, 34.0])).tolist() == pytest.approx([4, 8, 8, 2, 2])
    assert curve.duration_s == 35


def test_a_spike_rises_and_falls_back_to_its_base():
    """5, then 50 for 30 s, then 5."""
    curve = _curve(kind="spike", base_per_s=5, peak_per_s=50)

    assert curve.rate_at(np.array([10.0, 61.0, 90.0, 100.0])).tolist() == pytest.approx([5, 50, 50, 5])
    assert curve.duration_s == 152


def test_a_wave_is_three_times_its_base_for_a_third_of_the_time():
    """10, 30, 10 over 90 s: 1,500 requests."""
    curve = _curve(kind="wave", base_per_s=10, duration_s=90)

    assert curve.rate_at(np.array([29.0, 31.0, 59.0, 61.0])).tolist() == [10, 30, 30, 10]
    assert curve.total == pytest.approx(1500)


def test_a_day_has_its_trough_at_both_ends_and_its_peak_where_it_was_asked():
    """2 to 20, the peak at 0.6 of an hour; half way up at 0.3."""
    curve = _curve(kind="day", trough_per_s=2, peak_per_s=20, duration_s=3600)

    assert curve.rate_at(np.array([0.0, 1080.0, 2160.0, 3600.0])) == pytest.approx([2, 11, 20, 2], abs=0.01)


def test_a_recorded_curve_has_the_shape_of_its_bins_and_the_peak_that_was_asked(tmp_path):
    """Counts 10, 40, 20 in 30 s bins, pressed into 9 s with a peak of 8 a second."""
    (tmp_path / "c.csv").write_text("0,10\n30,40\n60,20\n")
    shape = {"kind": "recorded", "trace": "c.csv", "duration_s": 9, "peak_per_s": 8}
    curve = curve_of(plan_of({"kind": "open", "shape": shape}, folder=tmp_path).load.shape)

    assert curve.rate_at(np.array([1.0, 4.0, 8.0])).tolist() == [2, 8, 4]
    assert curve.duration_s == 9


def test_the_slots_of_a_closed_loop_begin_over_its_ramp():
    """Four slots over 2 s."""
    schedule = plan_schedule(plan_of({"kind": "closed", "concurrency": 4, "duration_s": 10, "ramp_s": 2}))

    assert schedule.closed is not None
    assert schedule.closed.starts_s.tolist() == [0, 0.5, 1.0, 1.5]
    assert len(schedule) == 0


def test_a_rate_that_expects_less_than_one_request_draws_none():
    """A constant rate of 0.001 for 10 s."""
    curve = RateCurve.through([(0, 0.001), (10, 0.001)])

    assert len(draw_arrivals(curve, Constant(kind="constant"), np.random.default_rng(1))) == 0
