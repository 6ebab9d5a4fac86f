"""Recorded load as counts in even bins: Azure 2024, ServeGen, an own CSV, or single requests counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contracts.recorded_rows import TraceUnreadable, read_rows

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Bins:
    """Requests in each bin."""

    start_unix_s: float
    """When second 0 was; 0 where the file does not say."""
    bin_s: float
    counts: Float
    """Shape [n]."""
    known: Bool
    """Shape [n]. False: nothing was recorded in this bin, and `counts` bridges it."""


def read_bins(path: Path) -> Bins:
    """Which form it is says the first line; a file of single requests is counted in bins of 1 s.

    Raises TraceUnreadable, and OSError when there is no such file.
    """
    if holds_requests(path):
        return _count_rows(path)
    first = _first_line(path)
    read = next((reader for start, reader in _HEADERS if first.startswith(start)), _read_counts)
    try:
        return read(path)
    except (ValueError, IndexError) as exc:
        raise (
            exc if isinstance(exc, TraceUnreadable) else TraceUnreadable(f"{path} can't be read: {exc}")
        ) from exc


def holds_requests(path: Path) -> bool:
    """A row of the file is a request, so `read_rows` reads it."""
    return _first_line(path).startswith(("{", "TIMESTAMP,", "Timestamp,"))


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as lines:
        return lines.readline(200)


def _count_rows(path: Path) -> Bins:
    rows = read_rows(path)
    counts = np.bincount(rows.t_s.astype(np.int64)).astype(np.float64)
    return Bins(rows.start_unix_s, 1.0, counts, np.ones(len(counts), dtype=bool))


def _read_azure(path: Path) -> Bins:
    """Azure 2024 in bins of 10 s: columns Time and TIMESTAMP, and the latter is the count.

    The bins were rounded, so the first and the last have half the width: the first is doubled, the last dropped.
    """
    rows = [row.split(",") for row in rows_after(path, "Time,TIMESTAMP")]
    counts = np.array([float(row[1]) for row in rows])[:-1]
    if not len(counts):
        raise TraceUnreadable(f"{path}: needs two bins at least")
    counts[0] *= 2
    start = datetime.fromisoformat(rows[0][0]).replace(tzinfo=UTC)
    return Bins(start.timestamp(), 10.0, counts, np.ones(len(counts), dtype=bool))


def _read_servegen(path: Path) -> Bins:
    """ServeGen in windows of 10 minutes: t_s, rate_rps. A window of rate 0 is missing data, not an idle hour."""
    rows = [row.split(",") for row in rows_after(path, "t_s,rate_rps")]
    rates = np.array([float(row[1]) for row in rows])
    known = rates > 0
    if not known.any():
        raise TraceUnreadable(f"{path}: every window is empty")
    window_s = 600.0
    at = np.array([float(row[0]) for row in rows]) / window_s
    bins = np.arange(round(at[-1]) + 1)
    bridged = np.interp(bins, at[known], rates[known])
    return Bins(0.0, window_s, bridged * window_s, np.isin(bins, at[known]))


def _read_counts(path: Path) -> Bins:
    """A CSV of your own: `seconds,count`, evenly spaced, with or without that header."""
    rows = [row.split(",") for row in path.read_text().splitlines() if row.strip()]
    if rows and not _is_number(rows[0][0]):
        rows = rows[1:]
    try:
        table = np.array([(float(row[0]), float(row[1])) for row in rows])
    except (ValueError, IndexError) as exc:
        raise TraceUnreadable(f"{path}: {exc}; each line must read seconds,count") from exc
    if len(table) < 2:
        raise TraceUnreadable(f"{path}: {len(table)} bins, needs two at least")
    steps = np.diff(table[:, 0])
    if steps.min() <= 0 or not np.allclose(steps, steps[0], rtol=1e-3):
        raise TraceUnreadable(
            f"{path}: bins are {steps.min():g} to {steps.max():g} s apart, must be even and rising; "
            "write 0 for empty bins"
        )
    if table[:, 1].min() < 0 or not np.isfinite(table).all():
        raise TraceUnreadable(f"{path}: counts must be numbers from 0 on")
    return Bins(float(table[0, 0]), float(steps[0]), table[:, 1], np.ones(len(table), dtype=bool))


_HEADERS: tuple[tuple[str, Callable[[Path], Bins]], ...] = (
    ("Time,TIMESTAMP", _read_azure),
    ("t_s,rate_rps", _read_servegen),
)


def rows_after(path: Path, header: str) -> list[str]:
    """The lines without the header, which must begin so. Raises TraceUnreadable."""
    first, *rows = path.read_text().splitlines() or [""]
    if not first.startswith(header):
        raise TraceUnreadable(f"{path} begins {first[:40]!r}, expected {header!r}")
    return [row for row in rows if row.strip()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
