"""Recorded load: what the public traces hold, read into one form.

The files are not part of tidegate. They are looked for in $TIDEGATE_TRACES, else in `../shared/traces` beside the
repository; a trace that is not there is a `TraceMissing` that says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from scaler.simulation.trace import Trace, TraceError, TraceMissing, of_arrivals, of_counts

ENVIRONMENT = "TIDEGATE_TRACES"
DEFAULT_FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def read_azure_stamps(path: Path) -> Trace:
    """Azure 2023: a row a request, TIMESTAMP in UTC with 100 ns."""
    rows = _rows(path, "TIMESTAMP,")
    stamps = np.array([datetime.fromisoformat(f"{row[:26]}+00:00").timestamp() for row in rows])
    return of_arrivals(path.stem, stamps, float(stamps.min()) if len(stamps) else 0.0)


def read_azure_bins(path: Path) -> Trace:
    """Azure 2024 in bins of 10 s: columns Time and TIMESTAMP, and the latter is the count.

    The bins were rounded, so the first and the last have half the width: the first is doubled, the last dropped.
    """
    rows = [row.split(",") for row in _rows(path, "Time,TIMESTAMP")]
    counts = np.array([float(row[1]) for row in rows])[:-1]
    if not len(counts):
        raise TraceError(f"{path}: needs two bins at least")
    counts[0] *= 2
    start = datetime.fromisoformat(rows[0][0]).replace(tzinfo=UTC)
    return of_counts(path.stem, counts, 10.0, start.timestamp())


def read_servegen(path: Path) -> Trace:
    """ServeGen in windows of 10 minutes: t_s, rate_rps. A window of rate 0 is missing data, not an idle hour."""
    rows = [row.split(",") for row in _rows(path, "t_s,rate_rps")]
    rates = np.array([float(row[1]) for row in rows])
    known = rates > 0
    if not known.any():
        raise TraceError(f"{path}: every window is empty")
    window_s = 600.0
    at = np.array([float(row[0]) for row in rows]) / window_s
    bins = np.arange(round(at[-1]) + 1)
    bridged = np.interp(bins, at[known], rates[known])
    return Trace(path.stem, 0.0, window_s, bridged * window_s, np.isin(bins, at[known]))


def read_mooncake(path: Path) -> Trace:
    """Mooncake: a JSON object a line, `timestamp` in ms. The conversation trace is quantised to about 3 s."""
    stamps = [float(json.loads(line)["timestamp"]) for line in path.read_text().splitlines() if line.strip()]
    return of_arrivals(path.stem, np.array(stamps) / 1000.0)


def read_counts(path: Path) -> Trace:
    """A CSV of your own: `seconds,count`, evenly spaced, with or without that header."""
    rows = [row.split(",") for row in path.read_text().splitlines() if row.strip()]
    if rows and not _is_number(rows[0][0]):
        rows = rows[1:]
    try:
        table = np.array([(float(row[0]), float(row[1])) for row in rows])
    except (ValueError, IndexError) as exc:
        raise TraceError(f"{path}: {exc}; each line must read seconds,count") from exc
    if len(table) < 2:
        raise TraceError(f"{path}: {len(table)} bins, needs two at least")
    steps = np.diff(table[:, 0])
    if steps.min() <= 0 or not np.allclose(steps, steps[0], rtol=1e-3):
        raise TraceError(
            f"{path}: bins are {steps.min():g} to {steps.max():g} s apart, must be even and rising; "
            "write 0 for empty bins"
        )
    if table[:, 1].min() < 0 or not np.isfinite(table).all():
        raise TraceError(f"{path}: counts must be numbers from 0 on")
    return of_counts(path.stem, table[:, 1], float(steps[0]), float(table[0, 0]))


NAMES: dict[str, tuple[str, Callable[[Path], Trace]]] = {
    "conv24": ("azure2024/invocations_ten_second_Conversation.csv", read_azure_bins),
    "code24": ("azure2024/invocations_ten_second_Coding.csv", read_azure_bins),
    "conv23": ("azure2023/AzureLLMInferenceTrace_conv.csv", read_azure_stamps),
    "code23": ("azure2023/AzureLLMInferenceTrace_code.csv", read_azure_stamps),
    "mooncake": ("mooncake/conversation_trace.jsonl", read_mooncake),
    "mooncake-synthetic": ("mooncake/synthetic_trace.jsonl", read_mooncake),
    "m-large": ("servegen/language_m-large_10min_aggregate.csv", read_servegen),
    "m-mid": ("servegen/language_m-mid_10min_aggregate.csv", read_servegen),
    "m-small": ("servegen/language_m-small_10min_aggregate.csv", read_servegen),
    "deepseek-r1": ("servegen/reason_deepseek-r1_10min_aggregate.csv", read_servegen),
    "mm-image": ("servegen/multimodal_mm-image_10min_aggregate.csv", read_servegen),
}
"""Short name -> file under the traces' folder, and what reads it."""

_HEADERS: tuple[tuple[str, Callable[[Path], Trace]], ...] = (
    ("TIMESTAMP,", read_azure_stamps),
    ("Time,TIMESTAMP", read_azure_bins),
    ("t_s,rate_rps", read_servegen),
    ("{", read_mooncake),
)


def folder() -> Path:
    given = os.environ.get(ENVIRONMENT)
    return Path(given) if given else DEFAULT_FOLDER


def load(name: str) -> Trace:
    """One of NAMES, or a file in any of the forms above. Raises TraceMissing and TraceError."""
    if name in NAMES:
        file, read = NAMES[name]
        trace = _checked(folder() / file, read, f"set ${ENVIRONMENT} to the folder that holds {file}")
        return replace(trace, name=name)
    path = Path(name)
    if not path.is_file():
        raise TraceMissing(f"no trace {name!r}: no such file, and none of {', '.join(NAMES)}")
    with path.open(errors="replace") as lines:
        first = lines.readline(200)
    read = next((reader for start, reader in _HEADERS if first.startswith(start)), read_counts)
    return _checked(path, read, "")


def _checked(path: Path, read: Callable[[Path], Trace], hint: str) -> Trace:
    if not path.is_file():
        raise TraceMissing(f"no trace {path}: no such file; {hint}")
    try:
        return read(path)
    except (ValueError, IndexError, KeyError, TypeError) as exc:
        raise TraceError(f"{path} can't be read: {exc}") from exc


def _rows(path: Path, header: str) -> list[str]:
    """Without the header, which must begin so. Raises TraceError."""
    first, *rows = path.read_text().splitlines() or [""]
    if not first.startswith(header):
        raise TraceError(f"{path} begins {first[:40]!r}, expected {header!r}")
    return [row for row in rows if row.strip()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
