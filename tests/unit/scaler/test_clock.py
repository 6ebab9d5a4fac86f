"""The clock under the control loop."""

from __future__ import annotations

from dataclasses import dataclass

from scaler.clock import steady_unix_clock


@dataclass
class Times:
    wall_s: float = 1000.0
    steady_s: float = 5.0

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


def test_a_wall_clock_set_back_by_an_hour_never_makes_time_stand_still() -> None:
    """After the step, 100 s are 95 s: cooldowns end, a little later."""
    times = Times()
    now = steady_unix_clock(lambda: times.wall_s, lambda: times.steady_s)
    times.pass_s(10)
    assert now() == 1010
    times.wall_s -= 3600
    times.pass_s(100)
    assert now() == 1105


def test_it_catches_up_with_a_small_step_and_stays() -> None:
    """2 s forward are caught up within 40 s."""
    times = Times()
    now = steady_unix_clock(lambda: times.wall_s, lambda: times.steady_s)
    times.wall_s += 2
    for _ in range(45):
        times.pass_s(1)
        now()
    assert now() == times.wall_s
