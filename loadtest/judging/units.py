"""Limits and their units: read strictly, said back in a unit that people read."""

from __future__ import annotations

from collections.abc import Mapping

_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
_PER = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}

UNITS: Mapping[str, Mapping[str, float]] = {
    "s": {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0},
    "ratio": {"": 1.0, "%": 0.01},
    "1/s": {"": 1.0, **_PER},
    "bytes": _BYTES,
    "bytes/s": {a + b: x * y for a, x in _BYTES.items() for b, y in _PER.items()},
    "": {"": 1.0},
}
"""What may stand behind a number, by the metric's unit, and what it multiplies."""

_EXAMPLES = {"s": "200ms or 2s", "bytes": "20GiB", "bytes/s": "1MiB/h"}


class UnitError(ValueError):
    """The unit does not fit the metric."""


def in_base_unit(number: float, suffix: str, unit: str) -> float:
    """Of `number` with `suffix` behind it. 0 needs no unit. Raises UnitError."""
    allowed = UNITS[unit]
    if suffix in allowed:
        return number * allowed[suffix]
    if not suffix and number == 0:
        return 0.0
    known = ", ".join(each or "none" for each in list(allowed)[:12])
    if not suffix:
        raise UnitError(f"{number:g} has no unit, must have one of {known}; write {_EXAMPLES[unit]}")
    what = {"": "a count", "ratio": "a ratio", "s": "a time", "1/s": "a rate"}.get(unit, unit)
    raise UnitError(f"{suffix!r} does not fit {what}, must be one of {known}")


def in_words(value: float, unit: str) -> str:
    """ "1.73 s", "4.2 ms", "0.41 %", "12.5 GiB", "31"."""
    match unit:
        case "s" if abs(value) < 1:
            return f"{1000 * value:.3g} ms"
        case "s":
            return f"{value:.4g} s"
        case "ratio":
            return f"{100 * value:.4g} %"
        case "1/s":
            return f"{value:.4g}/s"
        case "bytes" | "bytes/s":
            for name in ("GiB", "MiB", "KiB"):
                if abs(value) >= _BYTES[name]:
                    return f"{value / _BYTES[name]:.4g} {name}{unit.removeprefix('bytes')}"
            return f"{value:.4g} B{unit.removeprefix('bytes')}"
        case _:
            return f"{value:.6g}"
