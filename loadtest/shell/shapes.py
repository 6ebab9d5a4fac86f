"""The plan's shapes as Locust's: how many users there are over the run time. `-u` is the peak, `-t` the time.

Of Locust's own users, who wait for their answers: a slow server slows them down. `--plan` sends by the clock.
"""

from __future__ import annotations

from pathlib import Path

from locust import LoadTestShape

from contracts.recorded import find_trace
from loadtest.planning.load import Day, Hold, Recorded, Shape, Spike, Stage, Stages, Wave
from loadtest.planning.rates import RateCurve
from loadtest.planning.shapes import curve_of
from loadtest.shell.ticks import users_at

DEFAULT_RUN_S = 600.0


class UsersOverTime(LoadTestShape):
    """Users instead of requests a second, on the same curve."""

    abstract = True
    use_common_options = True

    def shape(self, peak: float, run_s: float) -> Shape:
        raise NotImplementedError

    def curve(self) -> RateCurve:
        options = self.runner.environment.parsed_options
        return curve_of(self.shape(float(options.num_users or 1), float(options.run_time or DEFAULT_RUN_S)))

    def reset_time(self) -> None:
        super().reset_time()
        self._curve = self.curve()

    def tick(self) -> tuple[int, float] | None:
        return users_at(self._curve, self.get_run_time())


class HoldShape(UsersOverTime):
    """The peak from beginning to end."""

    def shape(self, peak: float, run_s: float) -> Shape:
        return Hold(kind="hold", rate_per_s=peak, duration_s=run_s)


class StagesShape(UsersOverTime):
    """A quarter, a half, three quarters and all of the peak, a quarter of the time each."""

    def shape(self, peak: float, run_s: float) -> Shape:
        steps = (0.25, 0.5, 0.75, 1.0)
        return Stages(
            kind="stages", stages=tuple(Stage(rate_per_s=peak * step, hold_s=run_s / 4) for step in steps)
        )


class SpikeShape(UsersOverTime):
    """A tenth of the peak, and all of it for a tenth of the time in the middle."""

    def shape(self, peak: float, run_s: float) -> Shape:
        return Spike(
            kind="spike",
            base_per_s=peak / 10,
            peak_per_s=peak,
            before_s=run_s * 0.45,
            rise_s=0,
            peak_s=run_s * 0.1,
            fall_s=0,
            after_s=run_s * 0.45,
        )


class TripleWaveShape(UsersOverTime):
    """A third of the peak, the peak, a third of it again; a third of the time each."""

    def shape(self, peak: float, run_s: float) -> Shape:
        return Wave(kind="wave", base_per_s=peak / 3, times=3, duration_s=run_s)


class DayShape(UsersOverTime):
    """A day's curve, a tenth of the peak at night."""

    def shape(self, peak: float, run_s: float) -> Shape:
        return Day(kind="day", trough_per_s=peak / 10, peak_per_s=peak, duration_s=run_s)


class TraceShape(UsersOverTime):
    """The rate of a recorded trace (`--trace`), its highest minute being the peak."""

    def shape(self, peak: float, run_s: float) -> Shape:
        trace = find_trace(self.runner.environment.parsed_options.trace, Path())
        return Recorded(kind="recorded", trace=trace, duration_s=run_s, peak_per_s=peak)


SHAPES: dict[str, type[UsersOverTime]] = {
    "hold": HoldShape,
    "stages": StagesShape,
    "spike": SpikeShape,
    "wave": TripleWaveShape,
    "day": DayShape,
    "trace": TraceShape,
}
