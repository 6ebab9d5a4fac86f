"""What the console shows, from rows, extents and steps."""

from types import SimpleNamespace

import pytest

from gateway.call import Call
from gateway.console.arena import as_runs, cells
from gateway.console.calls import MAX_SLOWEST, NUM_STEPS, CallBook
from gateway.console.history import History
from gateway.console.sources import pending_of
from gateway.console.tally import Tally, merged, percentile
from ledger.calls import CallRow


def row(**changes):
    values = {
        "request_id": "r", "started_unix_s": 0.0, "door": "http", "operation": "chat", "service": "chat",
        "version": "chat", "model": "chat", "outcome": "ok", "duration_s": 0.5, "ttft_s": 0.1, "output_tokens": 4,
    }  # fmt: skip
    return CallRow(**values | changes)


def test_a_percentile_of_merged_buckets_is_right_within_one_percent():
    """1 ms to 10 s, in two tallies: what averaging their percentiles would miss."""
    fast, slow = Tally(), Tally()
    for ms in range(1, 10_001):
        (fast if ms <= 9_000 else slow).add(row(duration_s=ms / 1000))
    whole = merged([fast, slow])
    for p in (0.5, 0.9, 0.99):
        assert percentile(whole.latencies, p) == pytest.approx(10 * p, rel=0.011)


def test_a_tail_that_so_few_calls_cannot_tell_is_not_said():
    """99 calls have no p99, 100 have; one call has a median; none has nothing."""
    tally = Tally()
    assert percentile(tally.latencies, 0.5) is None
    tally.add(row(duration_s=1.0))
    assert percentile(tally.latencies, 0.5) == pytest.approx(1.0, rel=0.011)
    for _ in range(98):
        tally.add(row(duration_s=1.0))
    assert percentile(tally.latencies, 0.99) is None
    tally.add(row(duration_s=1.0))
    assert percentile(tally.latencies, 0.99) is not None


def test_failed_and_cancelled_calls_tell_no_times():
    """A call that fails at once would make the model look fast."""
    tally = Tally()
    for outcome in ("error", "cancelled", "refused"):
        tally.add(row(outcome=outcome, duration_s=0.001))
    assert (tally.num_calls, tally.num_failed, tally.latencies) == (3, 1, {})


def test_the_window_forgets_what_is_older_than_five_minutes():
    """The step that goes on now is counted too."""
    book = CallBook()
    book.note(row())
    book.end_step()
    book.note(row())
    assert book.of_models()["chat"].num_calls == 2
    for _ in range(NUM_STEPS):
        book.end_step()
    assert "chat" not in book.of_models() or book.of_models()["chat"].num_calls == 1
    book.end_step()
    assert book.of_models() == {}


def test_calls_in_flight_are_listed_oldest_first_until_they_end():
    """Also one that ends without having begun, which changes nothing."""
    book, first, second = (
        CallBook(),
        Call("a", "http", operation="chat"),
        Call("b", "grpc", operation="infer"),
    )
    for call in (first, second):
        call.service = "chat"
        book.begin(call)
    assert [one["request_id"] for one in book.longest(first.started_s + 2)] == ["a", "b"]
    assert book.longest(first.started_s + 2)[0]["age_s"] == 2.0
    book.end(first)
    book.end(Call("c", "http"))
    assert (book.num_in_flight, book.in_flight_of()) == (1, {"chat": 1})
    assert book.end_step() == {"chat": 2}
    assert book.end_step() == {}


def test_versions_are_counted_apart_and_shadows_not_at_all():
    """The numbers beside a rollback button."""
    book = CallBook()
    book.note(row())
    book.note(row(version="v2", model="v2", outcome="error", error="boom"))
    book.note(row(version="v2", model="v2", is_shadow=True))
    found = book.of_versions()
    assert {key: (one.num_calls, one.num_failed) for key, one in found.items()} == {
        ("chat", "chat"): (1, 0),
        ("chat", "v2"): (1, 1),
    }
    assert [one["text"] for one in book.errors()] == ["boom"]


def test_the_slowest_are_those_that_waited_longest_for_their_first_text():
    """Traced ones, as the others have no waterfall to open; failed ones stand among the errors."""
    book = CallBook()
    book.note(row(request_id="long answer", trace_id="t", ttft_s=0.2, duration_s=90.0))
    book.note(row(request_id="waited", trace_id="t", ttft_s=7.0, duration_s=8.0))
    book.end_step()
    book.note(row(request_id="whole", trace_id="t", ttft_s=None, duration_s=6.0))
    book.note(row(request_id="failed", trace_id="t", outcome="error", duration_s=9.0))
    book.note(row(request_id="untraced", ttft_s=9.0, duration_s=9.0))
    assert [one["request_id"] for one in book.slowest()] == ["waited", "whole", "long answer"]


def test_the_slowest_are_few_and_forgotten_with_the_window():
    """However many are traced."""
    book = CallBook()
    for ttft_s in range(100):
        book.note(row(trace_id="t", ttft_s=float(ttft_s)))
    for _ in range(NUM_STEPS):
        assert [one["ttft_s"] for one in book.slowest()] == [99.0 - n for n in range(MAX_SLOWEST)]
        book.end_step()
    book.end_step()
    assert book.slowest() == []


def test_a_page_that_asks_again_gets_only_what_is_new():
    """And all of it when the gateway is another one."""
    history = History()
    for at in range(3):
        history.add(100.0 + at, {"chat": {"queue": float(at)}}, {})
    assert history.since(2) == history.since(2) | {"t": [102.0]}
    assert history.since(0)["models"]["chat"]["queue"] == [0.0, 1.0, 2.0]
    assert history.since(3)["t"] == []
    assert len(history.since(77)["t"]) == 3


def test_what_is_not_known_stays_unknown_in_the_history():
    """A scaler that was silent is no scaler that wanted nothing."""
    history = History()
    history.add(1.0, {"chat": {"wanted": 2}}, {})
    history.add(2.0, {"chat": {"wanted": None}, "embed": {}}, {})
    found = history.since(0)["models"]
    assert found["chat"]["wanted"] == [2.0, None]
    assert found["embed"]["wanted"] == [None, None]


def test_the_history_is_bounded():
    """An hour of steps, and not one more."""
    history = History()
    for at in range(2_000):
        history.add(float(at), {f"m{n}": {} for n in range(100)}, {})
    found = history.since(0)
    assert len(found["t"]) == 720
    assert len(found["models"]) == 64


def extent(offset, size, model="chat", state="leased", tenant=""):
    return SimpleNamespace(offset_bytes=offset, num_bytes=size, model=model, state=state, tenant=tenant)


def test_a_cell_belongs_to_whoever_has_most_of_it():
    """Four cells of 100 bytes; the second is shared, the last is free."""
    found = cells([extent(0, 140), extent(140, 60, "long", tenant="acme"), extent(200, 1)], 400, 4)
    assert [cell and (cell.model, cell.tenant) for cell in found] == [
        ("chat", ""), ("long", "acme"), ("chat", ""), None,
    ]  # fmt: skip
    assert found[2].used_share == 0.01
    assert as_runs(found)["cells"] == [0, 1, 0, -1]


def test_an_arena_without_bytes_has_no_map():
    """A stack of batch models alone."""
    assert cells([], 0) == []


def test_pending_requests_are_added_up_over_a_models_versions():
    """Out of Triton's text."""
    text = (
        "# TYPE nv_inference_pending_request_count gauge\n"
        'nv_inference_pending_request_count{model="chat",version="1"} 3\n'
        'nv_inference_pending_request_count{model="chat",version="2"} 2\n'
        'nv_inference_count{model="chat",version="1"} 900\n'
    )
    assert pending_of(text) == {"chat": 5}
