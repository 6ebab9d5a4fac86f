"""The spans of one trace as a tree, in the order in which a waterfall shows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.tracing import names
from contracts.tracing.span import Span, SpanKind


@dataclass(frozen=True)
class Row:
    """One span of a waterfall. Times in seconds since the waterfall's left edge."""

    span: Span
    depth: int
    starts_s: float
    ends_s: float
    is_orphan: bool
    """Its parent is not among the spans, though it has one: a client's, or one that was lost."""


def rows_of(spans: Sequence[Span]) -> list[Row]:
    """Each parent before its children, siblings by their start."""
    if not spans:
        return []
    left_ns = min(span.start_unix_ns for span in spans)
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start_unix_ns, -span.end_unix_ns)):
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)
    rows: list[Row] = []
    waiting = [(span, 0) for span in reversed(children.get("", []))]
    while waiting:
        span, depth = waiting.pop()
        rows.append(
            Row(
                span,
                depth,
                (span.start_unix_ns - left_ns) / 1e9,
                (span.end_unix_ns - left_ns) / 1e9,
                bool(span.parent_id) and span.parent_id not in known,
            )
        )
        waiting += [(child, depth + 1) for child in reversed(children.get(span.span_id, []))]
    return rows


def is_lost(row: Row) -> bool:
    """An orphan that ought to have a parent here. The gateway's own may come from a client that keeps its spans."""
    return row.is_orphan and not (row.span.service == names.GATEWAY and row.span.kind is SpanKind.SERVER)


def models_of(spans: Sequence[Span]) -> set[str]:
    """Triton's models that answered."""
    return {
        str(span.attributes[names.RESPONSE_MODEL])
        for span in spans
        if names.RESPONSE_MODEL in span.attributes
    }


def scaling_text(span: Span, since_unix_ns: int) -> str:
    """ "0.4 s after it came: chat 1→2: queue 37 ≥ 20 (+chat-1), took 0.3 s"."""
    at_s = (span.start_unix_ns - since_unix_ns) / 1e9
    when = f"{at_s:.1f} s after it came" if at_s >= 0 else f"{-at_s:.1f} s before it came"
    changed = span.attributes.get(names.SCALE_CHANGED, "")
    made = f" ({changed})" if changed else ""
    failed = f", failed: {span.status_text}" if span.status_text else ""
    return f"{when}: {span.attributes[names.SCALE_REASON]}{made}, took {span.duration_s:.1f} s{failed}"


_NOTES = (
    (names.INPUT_TOKENS, "{} tokens in"),
    (names.CACHE_READ_TOKENS, "{} cached"),
    (names.COMPUTED_TOKENS, "{} computed"),
    (names.OUTPUT_TOKENS, "{} out"),
    (names.NUM_AHEAD, "{} ahead"),
    (names.NUM_SHORT_STEPS, "no KV blocks for {} steps"),
    (names.BATCH_SIZE, "batch {}"),
    (names.NUM_STEPS, "{} steps"),
    (names.KV_BLOCKS, "{} KV blocks"),
    (names.NUM_PREEMPTIONS, "{} preemptions"),
    (names.INSTANCE, "{}"),
    (names.NUM_IN_FLIGHT, "{} in flight before"),
    (names.ATTEMPT_NUMBER, "attempt {}"),
    (names.WHY_VERSION, "{}"),
    (names.KEPT_BECAUSE, "kept: {}"),
)


def notes_of(span: Span) -> str:
    """What a reader of a waterfall wants to know of a span, in a few words."""
    words = [
        form.format(_short(span.attributes[name]))
        for name, form in _NOTES
        if span.attributes.get(name) not in (None, 0, "")
    ]
    return ", ".join([span.status_text, *words] if span.status_text else words)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
