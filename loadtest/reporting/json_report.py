"""`verdict.json`: the verdict for programs. Its keys are stable within a `schema`; what is not known is null.

{"schema": 1, "verdict": "FAIL", "name", "started_unix_s", "duration_s",
 "window": {"start_s", "end_s", "is_steady", "why"},
 "requests": {"total", "ok", "errors", "unfinished", "not_sent"},
 "rows": [{"expression", "verdict", "value", "limit", "unit", "low", "high", "n", "n_needed", "why"}],
 "problems": ["..."], "machine": {"commit": "...", ...}}
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from loadtest.records import Status
from loadtest.reporting.result import Result
from loadtest.verdict import Row

SCHEMA = 1


def verdict_json(result: Result) -> str:
    """Ends with a newline; never holds NaN or infinity, which JSON does not have."""
    return json.dumps(as_dict(result), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def as_dict(result: Result) -> dict[str, Any]:
    status = result.requests.status
    counts = {
        name: int(np.count_nonzero(status == value))
        for name, value in (
            ("ok", Status.OK),
            ("errors", Status.ERROR),
            ("unfinished", Status.CENSORED),
            ("not_sent", Status.NOT_SENT),
        )
    }
    window = result.window
    return {
        "schema": SCHEMA,
        "verdict": result.judgement.verdict.value,
        "name": result.name,
        "started_unix_s": _known(result.started_unix_s),
        "duration_s": _known(result.ended_s),
        "window": {
            "start_s": _known(window.start_s),
            "end_s": _known(window.end_s),
            "is_steady": None if window.is_steady is None else bool(window.is_steady),
            "why": window.why,
        },
        "requests": {"total": len(result.requests), **counts},
        "rows": [_row(row) for row in result.judgement.rows],
        "problems": list(result.problems),
        "machine": dict(result.machine),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "expression": row.expression,
        "verdict": row.verdict.value,
        "value": _known(row.value),
        "limit": _known(row.limit),
        "unit": row.unit,
        "low": _known(row.low),
        "high": _known(row.high),
        "n": int(row.n),
        "n_needed": None if row.n_needed is None else int(row.n_needed),
        "why": row.why,
    }


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
