"""Waves of load: how the arrivals lie, who is late, what the search finds."""

import asyncio
import random

import pytest

from benchmarks.wave import MEAN_OVER_CREST, arrivals, highest_bearable, send_wave, steady_arrivals


def test_the_crest_has_three_times_the_arrivals_of_the_trough():
    """Poisson, by the thousand."""
    times = arrivals(3000.0, 9.0, random.Random(1))
    thirds = [sum(low <= at < low + 3 for at in times) for low in (0, 3, 6)]
    assert times == sorted(times)
    assert abs(thirds[1] - 9000) < 400
    assert abs(thirds[0] - 3000) < 250
    assert abs(thirds[2] - 3000) < 250


def test_the_mean_of_a_wave_is_five_ninths_of_its_crest():
    """So a steady load of that rate sends as many calls."""
    wave, steady = (
        arrivals(3000.0, 9.0, random.Random(1)),
        steady_arrivals(3000.0 * MEAN_OVER_CREST, 9.0, random.Random(2)),
    )
    assert pytest.approx(5 / 9) == MEAN_OVER_CREST
    assert abs(len(wave) - len(steady)) < 500
    assert steady == sorted(steady)


def test_latencies_are_counted_from_when_a_call_was_due():
    """A sender that comes late hides nothing; a failed call has no latency."""

    async def call(index: int) -> None:
        if index == 1:
            raise ConnectionError

    outcome = asyncio.run(send_wave([-1.0, 0.0, 0.0], call, bound_s=60.0))
    assert len(outcome.latencies_s) == 2
    assert max(outcome.latencies_s) >= 1.0


def test_one_late_call_in_a_hundred_is_borne_and_two_are_not():
    """Failed calls count as late."""

    def wave_with(num_failing: int):
        async def call(index: int) -> None:
            if index < num_failing:
                raise ConnectionError

        return asyncio.run(send_wave([0.0] * 100, call, bound_s=60.0))

    assert (wave_with(1).num_late, wave_with(1).has_held) == (1, True)
    assert not wave_with(2).has_held


def test_the_search_ends_just_below_what_is_not_borne():
    """From either side; at the low end when nothing is."""
    assert 95 < highest_bearable(lambda rate: rate <= 100, 10, 1000, 10) <= 100
    assert highest_bearable(lambda rate: False, 10, 1000, 10) == 10
