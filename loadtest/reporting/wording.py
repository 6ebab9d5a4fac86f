"""Numbers as people read them. What is not known is a dash, never 0."""

from __future__ import annotations

import math
import re

BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def figure(value: float | None, unit: str = "") -> str:
    """`0.0123, "s"` -> `12.3 ms`; `0.25, "ratio"` -> `25 %`; three significant digits."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "s":
        return _seconds(value)
    if unit == "ratio":
        return f"{_digits(100 * value)} %"
    if unit == "bytes":
        step = min(len(BYTES) - 1, int(math.log(max(abs(value), 1), 1024)))
        return f"{_digits(value / 1024**step)} {BYTES[step]}"
    return f"{_digits(value)} {unit}".rstrip()


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if abs(value) < 1e-3:
        return f"{_digits(1e6 * value)} µs"
    return f"{_digits(1e3 * value)} ms" if abs(value) < 1 else f"{_digits(value)} s"


def _digits(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.2e}"


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def percentile_name(p: float) -> str:
    """0.999 -> `p99.9`."""
    return f"p{100 * p:.10g}"


def clock(t_s: float) -> str:
    """Minutes and seconds of a run: 83 -> `1:23`."""
    return f"{int(t_s) // 60}:{int(t_s) % 60:02d}"


def tied(text: str) -> str:
    """No line breaks between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(%|[mµ]?s|min|/s|[KMGT]?i?B)\b|%)", "\N{NO-BREAK SPACE}", text)
