"""Numbers as people read them. What is not known is a dash, never 0."""

from __future__ import annotations

import math
import re

from loadtest.judging.units import in_words


def figure(value: float | None, unit: str = "") -> str:
    """As the verdict's sentences say it; infinity is a request that failed."""
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else in_words(value, unit)


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
