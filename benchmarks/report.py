"""What a benchmark hands back: the one shape of them all, with the machine and the commit it was measured on.

A figure that could not be measured is left out, never 0; a peer that is not installed is `skipped` with the reason.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Figure:
    """One measured number. `low` and `high`: the least and the greatest of the runs, where there were several."""

    value: float | list[float] | dict[str, float]
    unit: str
    low: float | None = None
    high: float | None = None

    @classmethod
    def of_runs(cls, values: Sequence[float], unit: str) -> Figure:
        """The median of several runs. Raises ValueError when there was none: leave the figure out then."""
        if not values:
            raise ValueError("a figure of no runs; leave it out")
        return cls(statistics.median(values), unit, min(values), max(values))

    def to_dict(self) -> dict[str, Any]:
        bounds = {"min": self.low, "max": self.high}
        return {"value": self.value, "unit": self.unit, **{k: v for k, v in bounds.items() if v is not None}}


@dataclass(frozen=True)
class Report:
    """One benchmark's figures."""

    bench: str
    runs: int
    figures: Mapping[str, Figure]
    peers: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    """Peer -> the same figures' names -> what it did on this machine in the same go."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Peer -> why it was not measured."""

    def to_dict(self) -> dict[str, Any]:
        """As BENCHES.md has it, `commit` and `machine` of here and now."""
        return {
            "bench": self.bench,
            "commit": git_commit(),
            "machine": machine(),
            "runs": self.runs,
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "peers": {
                peer: {name: figure.to_dict() for name, figure in figures.items()}
                for peer, figures in self.peers.items()
            },
            "skipped": dict(self.skipped),
        }


def machine() -> dict[str, Any]:
    return {"cpus": len(os.sched_getaffinity(0)), "cpu": cpu_name(), "gpu": gpu_name()}


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str | None:
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def gpu_name() -> str | None:
    """The first GPU that the driver knows, or None."""
    return _first_line(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])


def git_commit() -> str | None:
    """Of the tree that this file lies in, with '+' when it was changed since; None outside of a repository."""
    tree = str(Path(__file__).resolve().parent)
    commit = _first_line(["git", "-C", tree, "rev-parse", "--short=12", "HEAD"])
    if commit is None:
        return None
    is_changed = _first_line(["git", "-C", tree, "status", "--porcelain", "--untracked-files=no"])
    return f"{commit}+" if is_changed else commit


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None
