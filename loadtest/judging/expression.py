"""The language of SLO lines: `ttft.scheduled{user=chat} p99 < 2s @99%`.

    METRIC [{KEY=VALUE, ...}] [STATISTIC] OPERATOR NUMBER[UNIT] [@CONFIDENCE%]

Whatever could be meant in two ways is refused, with what is allowed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.judging.units import UnitError, in_base_unit
from loadtest.measuring.catalogue import BY_NAME, PERCENTILES, Good, Kind, Metric
from loadtest.measuring.goals import Goal
from loadtest.measuring.quantiles import DEFAULT_CONFIDENCE
from loadtest.measuring.samples import Scope

LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.9999
LEAST_PERCENTILE, MOST_PERCENTILE = 1.0, 99.999

_LINE = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w./]*)\s*(?:\{(?P<scope>[^{}]*)\}\s*)?(?P<statistic>[A-Za-z][\w.]*)?\s*"
    r"(?P<operator><=|>=|==|<|>|≤|≥)\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b)"
    r"\s*(?P<unit>[A-Za-z%/]*)\s*(?:@\s*(?P<confidence>[\d.]+)\s*%)?\s*",
    re.IGNORECASE,
)
_FORM = "METRIC{user=NAME} STATISTIC < LIMIT @99%, such as `ttft.scheduled p99 < 2s @99%`"
_UNICODE = {"≤": "<=", "≥": ">="}


class ExpressionError(ValueError):
    """`findings`: one sentence for each line that can't be used, with its number, the value and what is allowed."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__("; ".join(findings))
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True)
class Expression:
    """One line, read."""

    text: str
    metric: Metric
    scope: Scope
    """Sorted by key."""
    statistic: str
    """`p99`, or one of the metric's own."""
    p: float | None
    """In (0, 1), of a percentile."""
    operator: str
    """<, <=, >, >= or ==."""
    limit: float
    """In `unit`."""
    unit: str
    confidence: float

    @property
    def is_share(self) -> bool:
        """Judged by counting requests on the bad side."""
        return self.metric.kind is Kind.SHARE and self.unit == "ratio"

    def holds(self, value: float) -> bool:
        match self.operator:
            case "<":
                return value < self.limit
            case "<=":
                return value <= self.limit
            case ">":
                return value > self.limit
            case ">=":
                return value >= self.limit
            case _:
                return value == self.limit


def parse(text: str) -> Expression:
    """Raises ExpressionError."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise ExpressionError([f"{text!r} can't be read, must be {_FORM}"])
    metric = _metric_of(match["metric"])
    statistic, p = _statistic_of(metric, match["statistic"])
    operator = _UNICODE.get(match["operator"], match["operator"])
    unit = unit_of(metric, statistic)
    number = float(match["number"])
    if not math.isfinite(number):
        raise ExpressionError([f"{match['number']} is no limit, must be a finite number"])
    try:
        limit = in_base_unit(number, match["unit"], unit)
    except UnitError as exc:
        raise ExpressionError([f"{metric.name} {statistic}: {exc}"]) from exc
    expression = Expression(
        text=" ".join(text.split()),
        metric=metric,
        scope=_scope_of(metric, match["scope"]),
        statistic=statistic,
        p=p,
        operator=operator,
        limit=limit,
        unit=unit,
        confidence=_confidence_of(metric, statistic, p, match["confidence"]),
    )
    _check_operator(expression)
    _check_limit(expression)
    return expression


def parse_all(
    lines: Iterable[str], names: Mapping[str, Collection[str]] | None = None
) -> tuple[Expression, ...]:
    """Numbers lines from 1. `names`: what a scope may name, by its key (`{"user": [...]}`). Raises ExpressionError
    with every line that is wrong, and every pair that limits the same statistic twice."""
    findings: list[str] = []
    read: dict[tuple[str, Scope, str], tuple[int, Expression]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            expression = parse(line)
            _check_names(expression, names or {})
        except ExpressionError as exc:
            findings += [f"slo line {number}: {each}" for each in exc.findings]
            continue
        key = (expression.metric.name, expression.scope, expression.statistic)
        if key in read:
            findings.append(
                f"slo line {number}: {expression.text!r} limits what line {read[key][0]} does "
                f"({read[key][1].text!r}), must stand once"
            )
        else:
            read[key] = (number, expression)
    if findings:
        raise ExpressionError(findings)
    return tuple(expression for _, expression in read.values())


def goals_of(expressions: Iterable[Expression]) -> tuple[Goal, ...]:
    """The latency lines, as goodput asks them of each request. The generator's delay is no goal of the server."""
    return tuple(
        Goal(each.metric.name, each.scope, each.p or 1.0, each.limit, each.operator == "<=")
        for each in expressions
        if each.metric.kind in (Kind.REQUEST, Kind.GAP) and each.metric.name != "dispatch_delay"
    )


def unit_of(metric: Metric, statistic: str) -> str:
    if statistic == "count":
        return ""
    return "1/s" if metric.name == "goodput" and statistic == "rate" else metric.unit


def _metric_of(name: str) -> Metric:
    metric = BY_NAME.get(name)
    judged = [each.name for each in BY_NAME.values() if each.statistics]
    if metric is None:
        longer = [each for each in judged if each.startswith(f"{name}.")]
        near = longer or difflib.get_close_matches(name, judged, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(judged)}"
        raise ExpressionError([f"{name}: no such metric; {hint}"])
    if not metric.statistics:
        raise ExpressionError([f"{name} is shown and not judged; there are {', '.join(judged)}"])
    return metric


def _statistic_of(metric: Metric, name: str | None) -> tuple[str, float | None]:
    takes_percentiles = PERCENTILES in metric.statistics
    allowed = ", ".join(metric.statistics)
    if name is None:
        if takes_percentiles:
            raise ExpressionError([f"{metric.name}: which statistic? must be one of {allowed}"])
        return metric.statistics[0], None
    if takes_percentiles and (match := re.fullmatch(r"p(\d+(?:\.\d+)?)", name)):
        percentile = float(match[1])
        if not LEAST_PERCENTILE <= percentile <= MOST_PERCENTILE:
            way = "; the largest of all is max" if percentile >= 100 else ""
            raise ExpressionError(
                [f"{name}, must be from p{LEAST_PERCENTILE:g} to p{MOST_PERCENTILE:g}{way}"]
            )
        return f"p{percentile:g}", percentile / 100
    if name not in metric.statistics or name == PERCENTILES:
        raise ExpressionError([f"{metric.name} has no {name}, must be one of {allowed}"])
    return name, None


def _scope_of(metric: Metric, text: str | None) -> Scope:
    if text is None:
        return ()
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value:
            raise ExpressionError([f"{{{text}}}, must be KEY=VALUE, such as {{user=chat}}"])
        if key not in metric.scope:
            allowed = ", ".join(metric.scope) or "nothing: it has no parts"
            raise ExpressionError([f"{metric.name} can't be narrowed by {key}, must be {allowed}"])
        if key in pairs:
            raise ExpressionError([f"{{{text}}}: {key} stands twice"])
        pairs[key] = value
    return tuple(sorted(pairs.items()))


def _confidence_of(metric: Metric, statistic: str, p: float | None, text: str | None) -> float:
    if text is None:
        return DEFAULT_CONFIDENCE
    if p is None and not (metric.kind is Kind.SHARE and unit_of(metric, statistic) == "ratio"):
        raise ExpressionError(
            [f"@{text}%: {metric.name} {statistic} takes no confidence; percentiles and shares do"]
        )
    try:
        confidence = float(text) / 100
    except ValueError as exc:
        raise ExpressionError([f"@{text}% is no number"]) from exc
    if not LEAST_CONFIDENCE <= confidence <= MOST_CONFIDENCE:
        raise ExpressionError([f"@{text}%, must be from @50% to @99.99%"])
    return confidence


def _check_operator(expression: Expression) -> None:
    metric, operator = expression.metric, expression.operator
    allowed: tuple[str, ...] = {
        Good.LOW: ("<", "<="),
        Good.HIGH: (">", ">="),
        Good.EITHER: ("<", "<=", ">", ">=", "=="),
    }[metric.good]
    if metric.good is Good.LOW and expression.unit in ("", "ratio") and expression.p is None:
        allowed = (*allowed, "==")
    if operator not in allowed:
        side = {Good.LOW: "; less is better", Good.HIGH: "; more is better"}.get(metric.good, "")
        raise ExpressionError(
            [f"{metric.name} {expression.statistic} {operator}, must be one of {', '.join(allowed)}{side}"]
        )
    if operator == "==" and metric.good is Good.LOW and expression.limit != 0:
        raise ExpressionError([f"{metric.name} == {expression.limit:g}, must be == 0, or < and <="])


def _check_limit(expression: Expression) -> None:
    """What every run keeps, or none can, is a mistake in the line."""
    limit, operator, kind = expression.limit, expression.operator, expression.metric.kind
    if kind is Kind.SLOPE:
        return
    name = f"{expression.metric.name} {expression.statistic} {operator} {limit:g}"
    if limit < 0 or (operator == "<" and limit == 0 and kind is not Kind.CHANGE):
        raise ExpressionError([f"{name} can't be kept, must be above 0"])
    if expression.unit == "ratio" and limit > 1:
        raise ExpressionError([f"{name}, must be from 0 to 1 (or 0% to 100%); for a tenth write 0.1 or 10%"])
    if expression.unit == "ratio" and ((operator == ">" and limit == 1) or (operator == "<=" and limit == 1)):
        raise ExpressionError([f"{name} is kept never or always, must be below 1"])
    if operator == ">=" and limit == 0:
        raise ExpressionError([f"{name} is kept by every run, must be above 0"])
    if expression.unit == "s" and limit == 0:
        raise ExpressionError([f"{name} can't be kept, must be above 0"])


def _check_names(expression: Expression, names: Mapping[str, Collection[str]]) -> None:
    for key, value in expression.scope:
        known = names.get(key)
        if known is not None and value not in known:
            near = difflib.get_close_matches(value, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ExpressionError([f"{{{key}={value}}}: no such {key}; {hint}"])
