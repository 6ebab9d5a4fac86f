"""The language of SLO lines: what is read, and what is refused with a way out."""

from __future__ import annotations

import pytest

from loadtest.judging.expression import ExpressionError, goals_of, parse, parse_all
from loadtest.measuring.catalogue import CATALOGUE, PERCENTILES


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("ttft.scheduled p99 < 2s @99%", ("ttft.scheduled", (), "p99", "<", 2.0, "s", 0.99)),
        ("ttft.scheduled p99.9<200ms@99.5%", ("ttft.scheduled", (), "p99.9", "<", 0.2, "s", 0.995)),
        ("ttft.scheduled{user=chat} p99 < 2s", ("ttft.scheduled", (("user", "chat"),), "p99", "<", 2.0, "s", 0.95)),
        ("errors rate < 0.1%", ("errors", (), "rate", "<", 0.001, "ratio", 0.95)),
        ("errors < 0.001", ("errors", (), "rate", "<", 0.001, "ratio", 0.95)),
        ("errors count == 0", ("errors", (), "count", "==", 0.0, "", 0.95)),
        ("dispatch_delay p99 < 5ms", ("dispatch_delay", (), "p99", "<", 0.005, "s", 0.95)),
        ("kv.used_ratio max < 0.90", ("kv.used_ratio", (), "max", "<", 0.9, "ratio", 0.95)),
        ("kv.preemptions == 0", ("kv.preemptions", (), "count", "==", 0.0, "", 0.95)),
        ("goodput ≥ 0.99", ("goodput", (), "share", ">=", 0.99, "ratio", 0.95)),
        ("goodput rate >= 90/min", ("goodput", (), "rate", ">=", 1.5, "1/s", 0.95)),
        ("waiting.slope <= 0", ("waiting.slope", (), "slope", "<=", 0.0, "1/s", 0.95)),
        ("gpu.used_bytes max < 20GiB", ("gpu.used_bytes", (), "max", "<", 20 * 2**30, "bytes", 0.95)),
        ("pss.slope < 36KiB/h", ("pss.slope", (), "slope", "<", 10.24, "bytes/s", 0.95)),
        ("instances min >= 2", ("instances", (), "min", ">=", 2.0, "", 0.95)),
    ],
)  # fmt: skip
def test_a_line_is_read_with_its_units(text, read):
    """Times in seconds, shares from 0 to 1, rates a second, bytes; 95 % where the line says nothing."""
    line = parse(text)
    name, scope, statistic, operator, limit, unit, confidence = read
    assert (line.metric.name, line.scope, line.statistic, line.operator, line.unit) == (
        name,
        scope,
        statistic,
        operator,
        unit,
    )
    assert line.limit == pytest.approx(limit)
    assert line.confidence == pytest.approx(confidence)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft.scheduled p99 < 5", "5 has no unit, must have one of us, ms, s, min; write 200ms or 2s"),
        ("ttft p99 < 2s", "did you mean ttft.scheduled or ttft.service?"),
        ("kv.usedratio max < 0.9", "did you mean kv.used_ratio"),
        ("quux p99 < 2s", "there are dispatch_delay, latency.scheduled"),
        ("latency.scheduled < 2s", "which statistic? must be one of p50 ... p99.99, max"),
        ("latency.scheduled mean < 2s", "latency.scheduled has no mean, must be one of p50 ... p99.99, max"),
        ("latency.scheduled p100 < 2s", "must be from p1 to p99.999; the largest of all is max"),
        ("latency.scheduled p0.5 < 2s", "must be from p1 to p99.999"),
        ("latency.scheduled p99 > 2s", "must be one of <, <=; less is better"),
        ("latency.scheduled p99 == 2s", "must be one of <, <="),
        ("goodput < 0.9", "must be one of >, >=; more is better"),
        ("latency.scheduled p99 < 0s", "can't be kept, must be above 0"),
        ("latency.scheduled p99 < -1s", "can't be kept, must be above 0"),
        ("latency.scheduled p99 < nan", "nan is no limit, must be a finite number"),
        ("latency.scheduled p99 < inf", "must be a finite number"),
        ("errors rate < 10", "must be from 0 to 1 (or 0% to 100%)"),
        ("errors rate < 5ms", "'ms' does not fit a ratio, must be one of none, %"),
        ("goodput >= 101%", "must be from 0 to 1"),
        ("goodput > 1", "kept never or always"),
        ("goodput >= 0", "is kept by every run, must be above 0"),
        ("kv.preemptions == 3", "must be == 0, or < and <="),
        ("kv.preemptions == 0 @99%", "takes no confidence; percentiles and shares do"),
        ("errors rate < 1% @100%", "must be from @50% to @99.99%"),
        ("gpu.used_bytes max < 20", "must have one of B, kB, MB, GB, KiB, MiB, GiB; write 20GiB"),
        ("requests.offered >= 20", "is shown and not judged"),
        ("ttft.scheduled{route=chat} p99 < 2s", "can't be narrowed by route, must be user, service"),
        ("ttft.scheduled{user=} p99 < 2s", "must be KEY=VALUE"),
        ("ttft.scheduled{user=a,user=b} p99 < 2s", "user stands twice"),
        ("in_flight{user=a} max < 2", "can't be narrowed by user"),
        ("please be fast", "can't be read, must be METRIC"),
        ("latency.scheduled p99 < 2s and more", "can't be read"),
        ("", "can't be read"),
    ],
)  # fmt: skip
def test_what_could_be_meant_otherwise_is_refused_with_what_is_allowed(text, said):
    """Missing units, wrong directions, limits that no run or every run keeps, names that are not there."""
    with pytest.raises(ExpressionError) as refused:
        parse(text)
    assert said in str(refused.value)


def test_all_wrong_lines_are_named_at_once_with_their_numbers():
    """Two of three are wrong; the second limits again, in other words, what the first does."""
    with pytest.raises(ExpressionError) as refused:
        parse_all(
            ["errors rate < 1%", "errors < 0.02", "ttft.scheduled{user=chta} p99 < 1s"], {"user": ["chat"]}
        )
    assert refused.value.findings == (
        "slo line 2: 'errors < 0.02' limits what line 1 does ('errors rate < 1%'), must stand once",
        "slo line 3: {user=chta}: no such user; did you mean chat?",
    )


def test_the_same_statistic_of_two_routes_is_no_repetition():
    """Each user has its own limit, and all together one more."""
    lines = [f"ttft.scheduled{scope} p99 < 1s" for scope in ("", "{user=a}", "{user=b}")]
    assert len(parse_all(lines)) == 3


def test_goodput_asks_for_latency_lines_and_nothing_else():
    """The generator's delay, shares and memory are no goals of a request."""
    lines = [
        "ttft.scheduled p99 < 2s",
        "gap p95 <= 50ms",
        "dispatch_delay p99 < 5ms",
        "errors rate < 1%",
        "kv.leak == 0",
    ]
    assert [(goal.metric, goal.p, goal.limit_itself_is_good) for goal in goals_of(parse_all(lines))] == [
        ("ttft.scheduled", 0.99, False),
        ("gap", 0.95, True),
    ]


def test_every_judged_metric_can_be_written_as_a_line():
    """With its first statistic and a limit of its unit and direction."""
    limits = {"s": "1s", "ratio": "50%", "1/s": "1/s", "bytes": "1GiB", "bytes/s": "1MiB/h", "": "1"}
    for metric in CATALOGUE:
        for statistic in metric.statistics:
            operator = ">=" if metric.good.name == "HIGH" else "<="
            unit = (
                ""
                if statistic == "count"
                else "1/s"
                if (metric.name, statistic) == ("goodput", "rate")
                else metric.unit
            )
            written = "p99" if statistic == PERCENTILES else statistic
            assert parse(f"{metric.name} {written} {operator} {limits[unit]}").metric is metric
