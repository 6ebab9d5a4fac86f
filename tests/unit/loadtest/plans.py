"""Plans for tests, as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest.planning.plan import Plan, PlanError, check_plan, parse_plan

CHAT = {"name": "chat", "kind": "openai_chat", "service": "chat"}


def plan_of(
    load: dict[str, Any], *users: dict[str, Any], seed: int = 7, folder: Path = Path(), **more: Any
) -> Plan:
    """A checked plan with one chat user unless others are given."""
    return check_plan(
        {"name": "test", "seed": seed, "load": load, "users": list(users or [CHAT]), **more}, folder
    )


def held(rate_per_s: float, duration_s: float, arrivals: str = "poisson") -> dict[str, Any]:
    shape = {"kind": "hold", "rate_per_s": rate_per_s, "duration_s": duration_s}
    return {"kind": "open", "shape": shape, "arrivals": {"kind": arrivals}}


def findings_of(text: str) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, Path())
    return caught.value.findings
