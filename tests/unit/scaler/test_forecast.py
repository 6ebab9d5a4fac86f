"""The forecaster on days that were made for the purpose."""

from __future__ import annotations

import random
from collections.abc import Callable

from scaler.deciding.forecast import Forecaster
from scaler.deciding.policy import Forecast, ModelPolicy

DAY_S = 86400
OPENS_S = 9 * 3600
BIN_S = 300.0


def office(at_s: float) -> float:
    """1 busy at night, 6 from 9 to 17, with ten minutes between."""
    time_s = at_s % DAY_S
    opening = min(max((time_s - OPENS_S) / 600, 0.0), 1.0)
    return 1 + 5 * opening * (time_s < 17 * 3600)


def fed(demand: Callable[[float], float], until_s: float, lead_s: float = 300) -> Forecaster:
    """Bins of five minutes."""
    forecaster = Forecaster(Forecast(bin_s=BIN_S))
    for index in range(int(until_s // BIN_S)):
        forecaster.observe(index * BIN_S, demand(index * BIN_S))
        forecaster.floor(index * BIN_S, lead_s, ModelPolicy())
    return forecaster


def test_a_morning_that_was_seen_twice_is_met_before_it_begins() -> None:
    """Third day, five minutes before opening, lead 900 s: a floor above the 2 that the night needs."""
    noise = random.Random(7)
    forecaster = fed(lambda at_s: office(at_s) + noise.gauss(0, 0.1), 2 * DAY_S + OPENS_S - 300, 900)
    assert forecaster.status().startswith("on (season)")
    floor = forecaster.floor(2 * DAY_S + OPENS_S - 300, 900, ModelPolicy())
    assert floor is not None
    assert floor.num_instances >= 4
    assert "(season)" in floor.reason


def test_at_night_it_asks_for_no_more_than_the_night_needs() -> None:
    """Third day, 3 o'clock: 1 busy is 2 at 70 %."""
    forecaster = fed(office, 2 * DAY_S + 3 * 3600)
    floor = forecaster.floor(2 * DAY_S + 3 * 3600, 300, ModelPolicy())
    assert floor is None or floor.num_instances <= 2


def test_a_load_without_a_pattern_switches_it_off_with_the_reason() -> None:
    """Two days of noise: nothing beats the level."""
    noise = random.Random(7)
    forecaster = fed(lambda _: noise.uniform(0, 8), 2 * DAY_S)
    assert forecaster.floor(2 * DAY_S, 300, ModelPolicy()) is None
    assert "off: its backtest is not clearly better" in forecaster.status()


def test_it_is_off_until_enough_forecasts_have_come_due() -> None:
    """An hour of life."""
    forecaster = fed(office, 3600)
    assert forecaster.floor(3600, 60, ModelPolicy()) is None
    assert forecaster.status() == "off: 8 of 30 forecasts have come due"


def test_a_steady_climb_is_followed_by_the_trend() -> None:
    """1 busy an hour for nine hours: 9 now, more than that in 900 s."""
    forecaster = fed(lambda at_s: at_s / 3600, 9 * 3600, 900)
    floor = forecaster.floor(9 * 3600, 900, ModelPolicy(max_instances=64))
    assert floor is not None
    assert floor.num_instances > 9 / 0.7


def test_a_trend_is_not_followed_into_the_sky() -> None:
    """9 more every five minutes: no more than a quarter above the highest."""
    forecaster = fed(lambda at_s: at_s / BIN_S * 9, 150 * BIN_S, lead_s=20 * BIN_S)
    floor = forecaster.floor(150 * BIN_S, 20 * BIN_S, ModelPolicy(max_instances=1000))
    assert floor is not None
    assert floor.num_instances <= 1.25 * 149 * 9 / 0.7 + 1


def test_a_gap_keeps_the_season_in_step() -> None:
    """Four hours without a figure in the second night: the third morning is still met."""
    forecaster = Forecaster(Forecast(bin_s=BIN_S))
    now = 2 * DAY_S + OPENS_S - 300
    for at_s in range(0, now, 300):
        if not DAY_S + 3600 <= at_s < DAY_S + 5 * 3600:
            forecaster.observe(at_s, office(at_s))
        forecaster.floor(at_s, 900, ModelPolicy())
    floor = forecaster.floor(now, 900, ModelPolicy())
    assert floor is not None
    assert floor.num_instances >= 4


def test_a_policy_may_switch_it_off() -> None:
    """`forecast: {enabled: false}`."""
    forecaster = Forecaster(Forecast(enabled=False))
    for minute in range(200):
        forecaster.observe(minute * 60.0, minute)
    assert forecaster.floor(12000, 60, ModelPolicy()) is None
    assert forecaster.status() == "off: disabled by the policy"
