"""The memory curve: what the stack's own counters said, at least four times a second, on the run's clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity over time. A sample that could not be taken is absent, never 0."""

    name: str
    """`kv.used_blocks`, `kv.high_water_blocks`, `kv.total_blocks`, `kv.preemptions`, `pool.used_bytes`, `running`,
    `waiting`, `triton.pending`, `instances.ready`, `rss_bytes`, `pss_bytes`, `gpu.used_bytes`."""
    labels: tuple[tuple[str, str], ...]
    """`(("model", "chat"),)`, `(("process", "worker"), ("pid", "412"))`; () for the whole node."""
    unit: str
    t_s: Float
    """Shape [n], seconds since the run's t0, ascending."""
    values: Float


@dataclass(frozen=True, slots=True)
class Curve:
    """All series of a run. `sources` says of each source how often it answered, and why it failed."""

    series: tuple[Series, ...]
    sources: tuple[Source, ...]

    def named(self, name: str) -> tuple[Series, ...]:
        return tuple(one for one in self.series if one.name == name)


@dataclass(frozen=True, slots=True)
class Source:
    """Where series come from: `node`, `triton`, `processes`, `gpu`."""

    name: str
    samples: int
    failures: int
    last_error: str
