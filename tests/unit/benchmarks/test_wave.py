"""Waves of load: how the arrivals lie, who is late, what the search finds."""

import asyncio
import random

from benchmarks.wave import arrivals, highest_bearable, send_wave


def test_the_crest_has_three_times_the_arrivals_of_the_trough():
    """Poisson, by the thousand."""
    times = arrivals(3000.0, 9.0, random.Random(1))
    thirds = [sum(low <= at < low + 3 for at in times) for low in (0, 3, 6)]
    assert times == sorted(times)
    assert abs(thirds[1] - 9000) < 400
    assert abs(thirds[0] - 3000) < 250
    assert abs(thirds[2] - 3000) < 250


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
