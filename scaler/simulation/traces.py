"""Recorded load as the simulation takes it. The files and their forms are those of `contracts.recorded`."""

from __future__ import annotations

from pathlib import Path

from contracts.recorded import FILES, TraceNotFound, find_trace
from contracts.recorded_bins import holds_requests, read_bins
from contracts.recorded_rows import TraceUnreadable, read_rows
from scaler.simulation.trace import Trace, TraceError, TraceMissing, of_arrivals

NAMES = tuple(FILES)
"""Short names; any other name is a file."""


def load(name: str) -> Trace:
    """One of NAMES, or a file in any of their forms, or `seconds,count`. Raises TraceMissing and TraceError."""
    try:
        path = find_trace(name, Path())
        return _read(path, name if name in FILES else path.stem)
    except TraceNotFound as exc:
        raise TraceMissing(f"no trace {name!r}: {exc}") from exc
    except TraceUnreadable as exc:
        raise TraceError(str(exc)) from exc


def _read(path: Path, name: str) -> Trace:
    if holds_requests(path):
        rows = read_rows(path)
        return of_arrivals(name, rows.t_s, rows.start_unix_s)
    bins = read_bins(path)
    return Trace(name, bins.start_unix_s, bins.bin_s, bins.counts, bins.known)
