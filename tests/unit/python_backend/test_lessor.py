"""The worker's side of its leases, on a control channel that is a list."""

from collections import deque

import pytest

from python_backend.channel import MAX_PACKET_BYTES, ProtocolError, _encoder
from python_backend.messages import (
    BlocksPublished,
    BlocksReclaimed,
    DropBlocks,
    ExtentLeased,
    LeaseBlocks,
    MatchPrefix,
    PoolExhausted,
    PrefixMatched,
    PublishBlocks,
    ReclaimBlocks,
    ReleaseExtent,
    StopWorker,
)
from python_backend.worker.lessor import NodeLessor

BLOCK = bytes(64)


class FakeControl:
    """Gives the prepared answers in order; what was sent has the size of a packet."""

    def __init__(self, *answers) -> None:
        self.answers = deque(answers)
        self.sent: list = []
        self.timeouts: list[float] = []

    def send(self, message, fds=()) -> None:
        assert len(_encoder.encode(message)) <= MAX_PACKET_BYTES
        self.sent.append(message)

    def receive_soon(self, timeout_s: float):
        self.timeouts.append(timeout_s)
        if not self.answers:
            raise TimeoutError
        return self.answers.popleft(), []


def test_a_lease_is_an_extent_or_a_number() -> None:
    """Exhausted is an answer: so many could be had in pieces."""
    control = FakeControl(ExtentLeased(5, 3), PoolExhausted(1, "", 2))
    lessor = NodeLessor(control)
    assert lessor.lease(3, "acme") == range(5, 8)
    assert lessor.lease(3, "acme") == 2
    assert control.sent == [LeaseBlocks(3, "acme")] * 2


def test_two_workers_that_are_short_do_not_wait_for_each_other() -> None:
    """Asked to give back while it asks itself, it answers at once, and then gets its own answer."""
    control = FakeControl(ReclaimBlocks(8), ExtentLeased(0, 1))
    lessor = NodeLessor(control)
    assert lessor.lease(1, "") == range(1)
    assert control.sent == [LeaseBlocks(1), BlocksReclaimed()]
    assert not lessor.unread


def test_what_else_arrives_is_kept_for_the_loop() -> None:
    """A stop between question and answer is not lost."""
    lessor = NodeLessor(FakeControl(StopWorker(), ExtentLeased(0, 1)))
    lessor.lease(1, "")
    assert list(lessor.unread) == [(StopWorker(), [])]


def test_a_silent_node_ends_the_wait() -> None:
    """After a bounded time."""
    control = FakeControl()
    with pytest.raises(TimeoutError):
        NodeLessor(control).lease(1, "")
    assert control.timeouts == [5.0]


def test_a_long_prompt_is_matched_in_packets_until_the_chain_ends() -> None:
    """2000 blocks fit no packet; what comes after the first miss is not asked for."""
    digests = [index.to_bytes(16, "little") for index in range(2000)]
    probe = FakeControl(PrefixMatched([]))
    assert NodeLessor(probe).match(digests, BLOCK * 2000) == []
    (asked,) = probe.sent
    size = len(asked.hashes)
    assert size < 2000
    assert len(asked.tokens) == size * len(BLOCK)

    control = FakeControl(PrefixMatched(list(range(size))), PrefixMatched([7]))
    assert NodeLessor(control).match(digests, BLOCK * 2000) == [*range(size), 7]
    assert [type(message) for message in control.sent] == [MatchPrefix, MatchPrefix]
    assert control.sent[1].hashes[0] == digests[size]


def test_many_blocks_are_published_in_packets_with_an_answer_for_each() -> None:
    """The answers are joined in order; a node that answers for fewer is broken."""
    blocks, digests = list(range(1000)), [bytes(16)] * 1000
    probe = FakeControl(*[BlocksPublished([True])] * 50)
    with pytest.raises(ProtocolError, match="blocks of 1000"):
        NodeLessor(probe).publish(blocks, digests, BLOCK * 1000, "acme")
    sizes = [len(message.blocks) for message in probe.sent]
    assert sum(sizes) == 1000

    control = FakeControl(*[BlocksPublished([index == 0] * size) for index, size in enumerate(sizes)])
    accepted = NodeLessor(control).publish(blocks, digests, BLOCK * 1000, "acme")
    assert accepted == [True] * sizes[0] + [False] * (1000 - sizes[0])
    assert all(isinstance(message, PublishBlocks) and message.tenant == "acme" for message in control.sent)


def test_giving_back_waits_for_no_answer() -> None:
    """Runs of leased blocks, and references on published ones, however many."""
    control = FakeControl()
    lessor = NodeLessor(control)
    lessor.release(range(3, 9))
    lessor.drop(range(10_000))
    assert control.sent[0] == ReleaseExtent(3, 6)
    dropped = [block for message in control.sent[1:] for block in message.blocks]
    assert dropped == list(range(10_000))
    assert all(isinstance(message, DropBlocks) for message in control.sent[1:])
