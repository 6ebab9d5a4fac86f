"""Row "scaling": what the policy allows bears the peak, and instances come before too many requests wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from contracts.capacity import Capacity, ModelCapacity
from loadtest.planning.rates import Float, RateCurve
from loadtest.verdict import Verdict
from tidegate.launch_check.row import CheckRow, joined

NAME = "scaling"
LEAST_STEP_S = 0.1
MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the policy says of a model."""

    min_instances: int
    max_instances: int
    hold_s: float
    """How long pressure lasts before a decision."""
    lead_time_s: float | None
    """From the decision to serving; None: not known."""


@dataclass(frozen=True, slots=True)
class ScalingEvidence:
    """`bounds`: of the models that the policy in force names; None: no policy could be read, `trouble` says why."""

    bounds: Mapping[str, Bounds] | None
    capacity: Capacity | None
    trouble: str = ""


def check_scaling(
    evidence: ScalingEvidence, curve: RateCurve | None, peak_per_s: float | None, max_wait_s: float
) -> CheckRow:
    """`curve`: the plan's rate over time, None of a closed loop; `peak_per_s`: what must be borne."""
    if evidence.bounds is None or evidence.capacity is None:
        return CheckRow(NAME, Verdict.INVALID, evidence.trouble)
    if peak_per_s is None:
        return CheckRow(NAME, Verdict.INVALID, "a closed loop has no rate; write launch: {peak_per_s: ...}")
    models = evidence.capacity.models
    if not models:
        return CheckRow(
            NAME, Verdict.INVALID, "the capacity file names no model; `tidegate capacity` measures it anew"
        )
    findings = []
    for model, capacity in models.items():
        bounds = evidence.bounds.get(model)
        if bounds is None:
            findings.append(
                (Verdict.FAIL, f"{model} has no policy, so its count never changes; add it to the policy")
            )
            continue
        findings.append(_peak(model, capacity, bounds, peak_per_s))
        if curve is not None:
            findings.append(_ramp(model, capacity, bounds, curve, max_wait_s))
    return joined(NAME, findings)


def _peak(model: str, capacity: ModelCapacity, bounds: Bounds, peak_per_s: float) -> tuple[Verdict, str]:
    borne = capacity.rate(bounds.max_instances)
    text = (
        f"{model}: {bounds.min_instances} to {bounds.max_instances} instances bear up to {borne:g}/s as measured, "
        f"the peak is {peak_per_s:g}/s"
    )
    if borne >= peak_per_s:
        return Verdict.PASS, text
    needed = capacity.needed(peak_per_s)
    if needed is None:
        most = max(capacity.rates_per_s, default=0)
        return (
            Verdict.FAIL,
            f"{text}; no measured count bears it (up to {most}): more or larger machines are needed",
        )
    return Verdict.FAIL, f"{text}; max_instances: {needed} bears it"


def _ramp(
    model: str, capacity: ModelCapacity, bounds: Bounds, curve: RateCurve, max_wait_s: float
) -> tuple[Verdict, str]:
    if bounds.lead_time_s is None:
        return Verdict.INVALID, (
            f"{model}: how long an instance takes to serve is not known; let the scaler start one, or write "
            f"launch: {{lead_time_s: ...}}"
        )
    wait_s = longest_wait_s(capacity, bounds, curve, bounds.min_instances)
    text = f"{model}: with a lead of {bounds.lead_time_s:g} s after {bounds.hold_s:g} s of pressure "
    if wait_s <= max_wait_s:
        return Verdict.PASS, f"{text}the plan's rise makes nobody wait longer than {wait_s:.1f} s"
    counts = range(bounds.min_instances + 1, bounds.max_instances + 1)
    enough = next((n for n in counts if longest_wait_s(capacity, bounds, curve, n) <= max_wait_s), None)
    way_out = (
        f"min_instances: {enough} would do, or a reservation"
        if enough
        else "measure more instances, or ramp slower"
    )
    return (
        Verdict.FAIL,
        f"{text}requests wait up to {wait_s:.1f} s, more than max_wait_s = {max_wait_s:g}; {way_out}",
    )


def longest_wait_s(capacity: ModelCapacity, bounds: Bounds, curve: RateCurve, min_instances: int) -> float:
    """Of a fluid queue: the rate flows in, what the instances bear flows out, and they are those that the rate one
    lead and one hold ago needed. No scale-in within the plan. `inf`: with no instance at all."""
    lag_s = bounds.hold_s + (bounds.lead_time_s or 0.0)
    step_s = max(LEAST_STEP_S, curve.duration_s / MAX_STEPS)
    t_s = np.arange(0.0, curve.duration_s, step_s)
    rates = curve.rate_at(t_s)
    borne = _borne(capacity, bounds, curve, np.maximum(t_s - lag_s, 0.0), min_instances)
    backlog = longest = 0.0
    for rate, bears in zip(rates.tolist(), borne.tolist(), strict=True):
        backlog = max(0.0, backlog + (rate - bears) * step_s)
        if backlog:
            longest = max(longest, backlog / bears if bears else float("inf"))
    return longest


def _borne(
    capacity: ModelCapacity, bounds: Bounds, curve: RateCurve, seen_s: Float, min_instances: int
) -> Float:
    highest = np.maximum.accumulate(curve.rate_at(seen_s))
    counts = [capacity.needed(rate) or bounds.max_instances for rate in highest.tolist()]
    bounded = [min(bounds.max_instances, max(min_instances, count)) for count in counts]
    return np.array([capacity.rate(count) for count in bounded])
