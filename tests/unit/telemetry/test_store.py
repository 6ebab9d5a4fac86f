"""The file of the latest traces."""

import pytest

from contracts.tracing import names
from contracts.tracing import store as store_module
from contracts.tracing.span import Event, Link, Span, SpanKind, SpanStatus
from contracts.tracing.store import StoreError, TraceStore


def span(trace: int, number: int = 1, *, parent: int = 0, took_ns: int = 10, **attributes) -> Span:
    return Span(
        service=names.GATEWAY,
        trace_id=f"{trace:032x}",
        span_id=f"{number:016x}",
        parent_id=f"{parent:016x}" if parent else "",
        name="chat chat",
        kind=SpanKind.SERVER if number == 1 else SpanKind.CLIENT,
        start_unix_ns=trace * 1000 + number,
        end_unix_ns=trace * 1000 + number + took_ns,
        attributes={names.REQUEST_ID: f"request-{trace}", **attributes} if number == 1 else {},
    )


@pytest.fixture
def store(tmp_path):
    made = TraceStore.create(tmp_path / "traces.db")
    yield made
    made.close()


def test_a_span_comes_back_whole(store, tmp_path):
    """Attributes of each type, events, links, status; by another reader of the file."""
    whole = Span(
        service="s",
        trace_id="a" * 32,
        span_id="b" * 16,
        parent_id="c" * 16,
        name="n",
        kind=SpanKind.CLIENT,
        start_unix_ns=1,
        end_unix_ns=2,
        attributes={"text": "é", "flag": True, "count": 3, "share": 0.5, "list": ["x", "y"]},
        events=[Event(1, "e", {"k": 1})],
        links=[Link("d" * 32, "e" * 16)],
        status=SpanStatus.ERROR,
        status_text="why",
    )
    store.add([whole], 1.0)

    reader = TraceStore.open(tmp_path / "traces.db")
    assert reader.spans_of("a" * 32) == [whole]
    reader.close()


def test_a_request_is_found_by_its_id_and_a_repeated_one_oldest_first(store):
    """Two traces of one request id."""
    store.add([span(2, **{names.REQUEST_ID: "again"}), span(1, **{names.REQUEST_ID: "again"})], 1.0)

    assert store.trace_ids_of("again") == [f"{1:032x}", f"{2:032x}"]
    assert store.trace_ids_of("never") == []


def test_spans_of_one_trace_may_come_in_pieces_and_twice(store):
    """Triton's come seconds after the gateway's; an exporter that tries again sends some once more."""
    store.add([span(1)], 1.0)
    store.add([span(1, 2, parent=1), span(1, 2, parent=1)], 2.0)

    assert [each.span_id for each in store.spans_of(f"{1:032x}")] == [f"{1:016x}", f"{2:016x}"]


def test_the_oldest_traces_go_whole_when_there_are_too_many_spans(store):
    """Three traces of two spans, room for four."""
    for trace in (1, 2, 3):
        store.add([span(trace), span(trace, 2, parent=1)], float(trace))
    store.prune(before_unix_s=0.0, max_spans=4)

    assert store.spans_of(f"{1:032x}") == []
    assert [len(store.spans_of(f"{trace:032x}")) for trace in (2, 3)] == [2, 2]


def test_traces_older_than_a_moment_go(store):
    """Seen at 1 and at 3; all before 2 go."""
    store.add([span(1)], 1.0)
    store.add([span(2)], 3.0)
    store.prune(before_unix_s=2.0, max_spans=100)

    assert store.spans_of(f"{1:032x}") == []
    assert len(store.spans_of(f"{2:032x}")) == 1


def test_one_trace_cannot_push_out_all_others(store, monkeypatch):
    """With a limit of 3 of one trace, the fourth and fifth span are not kept."""
    monkeypatch.setattr(store_module, "MAX_SPANS_OF_ONE", 3)
    store.add([span(1, number) for number in range(1, 3)], 1.0)
    store.add([span(1, number) for number in range(3, 6)], 1.0)

    assert len(store.spans_of(f"{1:032x}")) == 3


def test_requests_are_listed_newest_or_slowest_first_or_only_failed(store):
    """Of three, the second was slow and the third failed."""
    failed = span(3)
    failed = Span(
        **{name: getattr(failed, name) for name in failed.__struct_fields__} | {"status": SpanStatus.ERROR}
    )
    store.add([span(1), span(2, took_ns=500), failed], 1.0)

    def ids(found):
        return [each.request_id for each in found]

    assert ids(store.requests("newest", 2)) == ["request-3", "request-2"]
    assert ids(store.requests("slowest", 1)) == ["request-2"]
    assert ids(store.requests("newest", 9, only_errors=True)) == ["request-3"]
    assert ids(store.requests("slowest", 9, since_unix_s=3e-6)) == ["request-3"]


def test_a_reader_of_no_file_is_told_so(tmp_path):
    """And makes none."""
    with pytest.raises(StoreError, match=r"traces\.db"):
        TraceStore.open(tmp_path / "traces.db")

    assert not (tmp_path / "traces.db").exists()


def test_changes_by_the_scaler_are_found_by_their_time(store):
    """Those that ran at some moment from 2,000 to 3,000 ns."""
    changes = [
        Span(names.SCALER, f"{number:032x}", "a" * 16, "", "scale chat", SpanKind.INTERNAL, start, end)
        for number, (start, end) in enumerate([(1000, 1500), (1000, 2500), (2900, 9000), (3100, 3200)])
    ]
    store.add([*changes, span(2)], 1.0)

    assert [each.start_unix_ns for each in store.scalings(2000, 3000)] == [1000, 2900]
