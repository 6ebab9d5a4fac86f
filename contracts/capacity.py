"""What so many instances bear: measured by `tidegate capacity`, read by whoever plans with it."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ModelCapacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one model. The rates are of the plan's whole mix, with so many instances of this model."""

    rates_per_s: dict[int, float]
    """Instances -> the highest open-loop rate at which the plan's SLO passed. 0.0: at no rate."""
    concurrency: dict[int, float] = {}
    """Instances -> requests in flight at that rate, on average; of the plan's whole mix. Absent: not measured."""
    utilization: dict[int, float] = {}
    """Instances -> how busy they were at that rate, 0 to 1, as the scaler reckons it. Absent: not measured."""

    def rate(self, num_instances: int) -> float:
        """Of the most measured instances that are not more; above the last measured count nothing is made up."""
        counts = [count for count in self.rates_per_s if count <= num_instances]
        return self.rates_per_s[max(counts)] if counts else 0.0

    def needed(self, rate_per_s: float) -> int | None:
        """The fewest measured instances that bear the rate; None: none do."""
        enough = [count for count, rate in self.rates_per_s.items() if rate >= rate_per_s]
        return min(enough) if enough else None


class Capacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement."""

    plan: str
    """Its name."""
    measured_unix_s: float
    plan_sha256: str = ""
    """Of its text, as it was run."""
    machine: dict[str, str] = {}
    commit: str = ""
    fingerprint: str = ""
    models: dict[str, ModelCapacity]


class CapacityUnreadable(ValueError):
    """No such file, or none of ours."""


def read_capacity(path: Path) -> Capacity:
    """Raises CapacityUnreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Capacity)
    except FileNotFoundError as exc:
        raise CapacityUnreadable(f"{path}: no such file; `tidegate capacity` writes one") from exc
    except (OSError, msgspec.MsgspecError) as exc:
        raise CapacityUnreadable(f"{path} can't be read as a capacity file: {exc}") from exc
