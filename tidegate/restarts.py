"""When a process that died is started again, and when that is given up. Decides; `node_process` acts."""

from __future__ import annotations

from dataclasses import dataclass

STEADY_S = 60.0
"""A process that lived so long has not died of its start."""
FIRST_PAUSE_S = 0.5
MAX_QUICK_DEATHS = 5
"""In a row; then a restart would change nothing."""


@dataclass
class RestartPlan:
    """Of one process. It comes back at once after a steady life, and ever later after quick deaths."""

    num_quick_deaths: int = 0

    def died(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None: give up."""
        if lived_s >= STEADY_S:
            self.num_quick_deaths = 0
            return 0.0
        self.num_quick_deaths += 1
        if self.num_quick_deaths >= MAX_QUICK_DEATHS:
            return None
        return float(FIRST_PAUSE_S * 2 ** (self.num_quick_deaths - 1))


@dataclass
class Silence:
    """Probes in a row that were not answered. Counted, not timed: a launcher that was itself stopped for a minute
    must not take the others for dead."""

    max_probes: int
    num_probes: int = 0

    def probed(self, is_answered: bool) -> bool:
        """True: it hangs."""
        self.num_probes = 0 if is_answered else self.num_probes + 1
        return self.num_probes >= self.max_probes
