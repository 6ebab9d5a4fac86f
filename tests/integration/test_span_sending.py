"""Spans on their way out of a process: over a real Unix socket, to somebody, nobody, or somebody slow."""

import contextlib
import socket

import pytest

from contracts.tracing.sending import SpanSender
from contracts.tracing.span import Span, SpanKind, decode_spans

pytestmark = pytest.mark.integration


def a_span(name: str = "x") -> Span:
    return Span(
        "tidegate-gateway",
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
        "",
        name,
        SpanKind.SERVER,
        1,
        2,
        {"a": 1, "b": ["c"]},
    )


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def sender(tmp_path, clock):
    with contextlib.closing(SpanSender(str(tmp_path / "spans.sock"), clock=lambda: clock[0])) as made:
        yield made


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(str(tmp_path / "spans.sock"))
        made.listen()
        made.settimeout(5)
        yield made


def test_spans_arrive_as_they_were_sent(listener, sender):
    """One packet, all of them."""
    sender.send([a_span("x"), a_span("y")])

    peer, _ = listener.accept()
    with peer:
        assert decode_spans(peer.recv(65536)) == [a_span("x"), a_span("y")]


def test_a_sender_that_nobody_listens_to_drops_and_counts(sender):
    """No socket there; and it is not tried again at once."""
    sender.send([a_span(), a_span()])
    sender.send([a_span()])

    assert sender.num_dropped == 3


def test_a_listener_that_came_back_gets_the_next_spans(listener, sender):
    """The first connection breaks; the packet that finds it broken goes over the next one."""
    sender.send([a_span("before")])
    first, _ = listener.accept()
    first.close()

    sender.send([a_span("after")])

    second, _ = listener.accept()
    with second:
        assert decode_spans(second.recv(65536)) == [a_span("after")]
    assert sender.num_dropped == 0


def test_a_listener_that_reads_nothing_makes_nobody_wait(listener, sender):
    """Its buffer is full after some packets; the rest is dropped."""
    for _ in range(200):
        sender.send([a_span("x" * 10_000)])

    assert sender.num_dropped > 0


def test_a_span_too_long_for_a_packet_is_dropped(listener, sender):
    """128 KiB."""
    sender.send([a_span("x" * 200_000)])

    assert sender.num_dropped == 1


def test_a_sender_without_a_path_is_off():
    """Nothing is counted as lost that was not wanted."""
    sender = SpanSender("")
    sender.send([a_span()])

    assert not sender.is_on
    assert sender.num_dropped == 0
