"""A trace as rows, as text and as a page."""

import io

from rich.console import Console

from contracts.tracing import names
from contracts.tracing.span import Event, Span, SpanKind, SpanStatus
from contracts.tracing.tree import is_lost, notes_of, rows_of
from telemetry.page import page_of
from tidegate.commands.trace_text import bar, print_waterfall

MS = 1_000_000


def span(name: str, span_id: str, parent_id: str, start_ms: int, end_ms: int, **more) -> Span:
    values = {
        "service": names.GATEWAY,
        "trace_id": "t",
        "span_id": span_id,
        "parent_id": parent_id,
        "name": name,
        "kind": SpanKind.INTERNAL,
        "start_unix_ns": start_ms * MS,
        "end_unix_ns": end_ms * MS,
    }
    return Span(**values | more)


CALL = span("chat chat", "a", "", 100, 200, kind=SpanKind.SERVER)
SPANS = [
    span("decode", "d", "c", 150, 195, service=names.WORKER, attributes={names.BATCH_SIZE: 2.5}),
    span("queue", "q", "c", 120, 150, service=names.WORKER),
    span("triton chat", "c", "a", 110, 198),
    CALL,
]


def test_children_follow_their_parent_in_the_order_of_their_start():
    """Whatever order they came in."""
    rows = rows_of(SPANS)

    assert [(row.span.name, row.depth) for row in rows] == [
        ("chat chat", 0),
        ("triton chat", 1),
        ("queue", 2),
        ("decode", 2),
    ]
    assert (round(rows[2].starts_s, 3), round(rows[2].ends_s, 3)) == (0.02, 0.05)
    assert not any(row.is_orphan for row in rows)


def test_a_span_whose_parent_is_missing_is_shown_and_called_lost():
    """The gateway's own span is none: its parent may be a client's, which keeps its spans itself."""
    rows = rows_of(
        [span("chat chat", "a", "client", 0, 9, kind=SpanKind.SERVER), span("compute", "x", "gone", 1, 2)]
    )

    assert [(row.span.name, row.is_orphan, is_lost(row)) for row in rows] == [
        ("chat chat", True, False),
        ("compute", True, True),
    ]


def test_spans_that_are_each_others_parents_are_no_trap():
    """A circle has no root: nothing to show, and no end of it."""
    assert rows_of([span("x", "a", "b", 0, 1), span("y", "b", "a", 0, 1)]) == []


def test_no_spans_are_no_rows():
    """An empty trace."""
    assert rows_of([]) == []


def test_a_bar_is_as_long_as_its_span_and_never_nothing():
    """10 cells for 100 ms."""
    rows = {row.span.name: row for row in rows_of([*SPANS, span("instant", "i", "a", 150, 150)])}

    assert bar(rows["chat chat"], 0.1, 10) == "█" * 10
    assert bar(rows["queue"], 0.1, 10) == "  ███"
    assert bar(rows["instant"], 0.1, 10) == "     ▏"


def test_the_terminal_shows_names_times_and_why():
    """A failed span says how; a client's control characters do not reach the terminal."""
    failed = span("triton chat", "f", "a", 110, 120, status=SpanStatus.ERROR, status_text="gone\x1b[2J")
    console = Console(file=io.StringIO(), width=160)
    print_waterfall(console, [*SPANS, failed])

    text = console.file.getvalue()
    assert "batch 2.5" in text
    assert "45.0 ms" in text
    assert "gone\ufffd[2J" in text
    assert "\x1b" not in text


def test_the_page_escapes_what_clients_sent():
    """Names, attributes and the title; events are marks on the bar."""
    evil = span(
        "<script>x</script>",
        "e",
        "a",
        110,
        120,
        attributes={"k": "</td><b>"},
        events=[Event(115 * MS, "<e>")],
    )
    page = page_of("<title>", rows_of([CALL, evil]))

    assert "<script>" not in page
    assert "<b>" not in page.replace('<b class="', "")
    assert "&lt;e&gt;" in page
    assert "100.0 ms" in page


def test_notes_leave_out_what_is_nothing():
    """Zero cached tokens are no news."""
    assert notes_of(
        span("x", "a", "", 0, 1, attributes={names.INPUT_TOKENS: 7, names.CACHE_READ_TOKENS: 0})
    ) == ("7 tokens in")


def test_what_the_scaler_did_meanwhile_is_told_in_words():
    """Half a second after the request came, and what came of it."""
    scaling = span(
        "scale chat",
        "s",
        "",
        600,
        900,
        service=names.SCALER,
        attributes={names.SCALE_REASON: "chat 1→2: queue 37 ≥ 20", names.SCALE_CHANGED: "+chat-1"},
    )
    text = "0.5 s after it came: chat 1→2: queue 37 ≥ 20 (+chat-1), took 0.3 s"
    console = Console(file=io.StringIO(), width=160)
    print_waterfall(console, SPANS, [scaling])

    assert f"scaler, {text}" in console.file.getvalue()
    assert text in page_of("t", rows_of(SPANS), [scaling])
