"""Every metric, defined once: what SLO lines may name, what the report shows, and the table in docs/loadtest.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a metric is made of, and so how it is measured and judged."""

    REQUEST = "one value a request"
    GAP = "several values a request"
    SHARE = "a share of requests"
    COUNT = "a count"
    RATE = "so many a second"
    LEVEL = "a level over time"
    SLOPE = "change over time"
    CHANGE = "after less before"


class Good(Enum):
    """Which way is better, and so which limits make sense."""

    LOW = "low"
    HIGH = "high"
    EITHER = "either"


PERCENTILES = "p50 ... p99.99"
REQUEST_SCOPE = ("user", "service")
CURVE_SCOPE = ("model", "process")


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry. The first of `statistics` is meant where a line names none."""

    name: str
    unit: str
    """`s`, `ratio`, `1/s`, `bytes`, `bytes/s`, or "" for a count."""
    kind: Kind
    good: Good
    statistics: tuple[str, ...]
    """`PERCENTILES` stands for any percentile; () is shown and never judged."""
    scope: tuple[str, ...]
    meaning: str

    @property
    def of_curve(self) -> bool:
        """Made of the sampled curve, not of requests."""
        return self.scope is CURVE_SCOPE


def _of_requests(name: str, meaning: str, kind: Kind = Kind.REQUEST) -> Metric:
    return Metric(name, "s", kind, Good.LOW, (PERCENTILES, "max"), REQUEST_SCOPE, meaning)


CATALOGUE: tuple[Metric, ...] = (
    _of_requests(
        "dispatch_delay", "sent - intended: how late the generator was. The server has no part in it."
    ),
    _of_requests(
        "latency.scheduled", "last byte - intended start. What a user feels, queueing before us included."
    ),
    _of_requests("latency.service", "last byte - sent."),
    _of_requests("ttft.scheduled", "first chunk with a token - intended start. Routes that stream only."),
    _of_requests("ttft.service", "first chunk with a token - sent. Routes that stream only."),
    _of_requests("tpot", "(last token - first token) / (tokens - 1), of requests with at least 2 tokens."),
    _of_requests("gap.worst", "The longest gap of a request, of requests with at least 2 chunks."),
    _of_requests(
        "gap",
        "Time between neighbouring chunks with tokens, all requests pooled. n counts whole requests, and the "
        "interval comes from resampling whole requests.",
        Kind.GAP,
    ),
    Metric(
        "gap.tokens",
        "",
        Kind.LEVEL,
        Good.EITHER,
        (),
        REQUEST_SCOPE,
        "Tokens in a chunk (mean): above 1, a gap is not the time of one token.",
    ),
    Metric(
        "tokens.rate",
        "1/s",
        Kind.RATE,
        Good.HIGH,
        ("mean",),
        REQUEST_SCOPE,
        "Tokens whose chunk came inside the window, of requests that ended well, / window.",
    ),
    Metric(
        "requests.offered",
        "1/s",
        Kind.RATE,
        Good.EITHER,
        (),
        REQUEST_SCOPE,
        "Intended starts inside the window / window. Every run checks it against the plan.",
    ),
    Metric(
        "requests.achieved",
        "1/s",
        Kind.RATE,
        Good.HIGH,
        ("mean",),
        REQUEST_SCOPE,
        "Requests that ended well inside the window / window.",
    ),
    Metric(
        "goodput",
        "ratio",
        Kind.SHARE,
        Good.HIGH,
        ("share", "rate"),
        REQUEST_SCOPE,
        "Requests that ended well and met every latency line of the plan that covers them: the share of all "
        "(`share`), or so many a second (`rate`).",
    ),
    Metric(
        "errors",
        "ratio",
        Kind.SHARE,
        Good.LOW,
        ("rate", "count"),
        REQUEST_SCOPE,
        "Requests that failed: the share of those sent (`rate`), or how many (`count`).",
    ),
    Metric(
        "censored",
        "",
        Kind.COUNT,
        Good.LOW,
        ("count",),
        REQUEST_SCOPE,
        "Requests that were sent and not done when the run ended.",
    ),
    Metric(
        "not_sent",
        "",
        Kind.COUNT,
        Good.LOW,
        ("count",),
        REQUEST_SCOPE,
        "Requests that were due and not sent: the generator's failure, and INVALID in every run.",
    ),
    Metric(
        "in_flight",
        "",
        Kind.LEVEL,
        Good.LOW,
        ("max", "mean"),
        (),
        "Requests sent and not done, from the rows.",
    ),
    Metric(
        "kv.used_ratio",
        "ratio",
        Kind.LEVEL,
        Good.LOW,
        ("max", "mean"),
        CURVE_SCOPE,
        "KV blocks in use / all, the fullest model. `max` takes the engine's high-water mark into account, which "
        "sees what lies between two samples, over the whole run, warm-up and drain included.",
    ),
    Metric(
        "kv.preemptions",
        "",
        Kind.COUNT,
        Good.LOW,
        ("count",),
        CURVE_SCOPE,
        "Sequences that lost their blocks to others, over the whole run.",
    ),
    Metric(
        "kv.leak",
        "",
        Kind.CHANGE,
        Good.LOW,
        ("blocks",),
        CURVE_SCOPE,
        "Blocks in use after the drain - before the first request.",
    ),
    Metric(
        "pool.used_bytes",
        "bytes",
        Kind.LEVEL,
        Good.LOW,
        ("max", "mean"),
        CURVE_SCOPE,
        "Bytes of the shared pool in use, over the whole run.",
    ),
    Metric(
        "pool.used_ratio",
        "ratio",
        Kind.LEVEL,
        Good.LOW,
        ("max", "mean"),
        CURVE_SCOPE,
        "The same / all bytes of the pool.",
    ),
    Metric("running", "", Kind.LEVEL, Good.LOW, ("max", "mean"), CURVE_SCOPE, "Sequences in batches."),
    Metric(
        "waiting",
        "",
        Kind.LEVEL,
        Good.LOW,
        ("max", "mean"),
        CURVE_SCOPE,
        "Requests that wait in the engine.",
    ),
    Metric(
        "waiting.slope",
        "1/s",
        Kind.SLOPE,
        Good.LOW,
        ("slope",),
        CURVE_SCOPE,
        "Growth of `waiting` in the window; passes unless its interval lies above the limit.",
    ),
    Metric(
        "instances",
        "",
        Kind.LEVEL,
        Good.EITHER,
        ("min", "max", "mean"),
        CURVE_SCOPE,
        "Instances that are ready, in the window.",
    ),
    Metric(
        "rss.slope",
        "bytes/s",
        Kind.SLOPE,
        Good.LOW,
        ("slope",),
        CURVE_SCOPE,
        "Growth of the processes' resident memory in the window.",
    ),
    Metric(
        "pss.slope",
        "bytes/s",
        Kind.SLOPE,
        Good.LOW,
        ("slope",),
        CURVE_SCOPE,
        "The same with shared pages divided among those who share them.",
    ),
    Metric(
        "rss.leak",
        "bytes",
        Kind.CHANGE,
        Good.LOW,
        ("bytes",),
        CURVE_SCOPE,
        "Resident memory after the drain - before the first request.",
    ),
    Metric(
        "pss.leak",
        "bytes",
        Kind.CHANGE,
        Good.LOW,
        ("bytes",),
        CURVE_SCOPE,
        "The same of PSS.",
    ),
    Metric(
        "gpu.used_bytes",
        "bytes",
        Kind.LEVEL,
        Good.LOW,
        ("max", "mean"),
        CURVE_SCOPE,
        "GPU memory in use, over the whole run.",
    ),
)

BY_NAME = {metric.name: metric for metric in CATALOGUE}


def markdown_table() -> str:
    """The table of docs/loadtest.md, section "Metrics"; a test holds the two together."""
    lines = ["| metric | unit | statistics | scope | meaning |", "|---|---|---|---|---|"]
    for metric in CATALOGUE:
        statistics = ", ".join(f"`{each}`" for each in metric.statistics) or "shown, not judged"
        scope = ", ".join(f"`{each}`" for each in metric.scope) or "–"
        lines.append(
            f"| `{metric.name}` | {metric.unit or '–'} | {statistics} | {scope} | {metric.meaning} |"
        )
    return "\n".join(lines) + "\n"
