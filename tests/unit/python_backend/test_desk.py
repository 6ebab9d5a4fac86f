"""Who is asked before a lease is refused, and that the asker is answered once, in time."""

import pytest

from python_backend.channel import ProtocolError
from python_backend.messages import (
    BlocksReclaimed,
    ExtentLeased,
    LeaseBlocks,
    ModelBound,
    PoolExhausted,
    ReclaimBlocks,
    ReleaseExtent,
)
from python_backend.node.desk import RECLAIM_TIMEOUT_S, LeaseDesk
from python_backend.node.instances import WorkerId
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota
from python_backend.node.spares import Worker


class FakeTimer:
    def __init__(self, call, argument) -> None:
        self.call, self.argument, self.is_cancelled = call, argument, False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def call_later(self, delay_s, call, argument):
        assert delay_s == RECLAIM_TIMEOUT_S
        self.timers.append(FakeTimer(call, argument))
        return self.timers[-1]

    def time_out(self) -> None:
        for timer in self.timers:
            if not timer.is_cancelled:
                timer.call(timer.argument)


class Office:
    """A desk over eight blocks of a byte, with what it said to whom."""

    def __init__(self, quota: ModelQuota | None = None) -> None:
        self.pool = Pool(8)
        self.pool.add_model("m", 1, quota or ModelQuota())
        self.workers = [Worker(WorkerId(number), "m") for number in range(3)]
        self.idle: list[Worker] = []
        self.said: list = []
        self.loop = FakeLoop()
        bound = {"m": ModelBound("m", 1, 1, 0)}
        self.desk = LeaseDesk(self.pool, bound, self.say, lambda: self.idle, self.loop)

    def say(self, worker: Worker, message) -> None:
        self.said.append((int(worker.id), message))

    def hear(self, number: int, message) -> list:
        """What is said in answer."""
        self.said = []
        self.desk.serve(self.workers[number], message)
        self.pool.check()
        return self.said


def test_idle_workers_are_asked_before_anyone_is_refused() -> None:
    """One holds all eight blocks and serves nobody: it gives them back, and the other gets what it wanted."""
    office = Office()
    office.hear(0, LeaseBlocks(8))
    office.idle = [office.workers[0]]
    assert office.hear(1, LeaseBlocks(3)) == [(0, ReclaimBlocks(3))]
    assert office.hear(0, ReleaseExtent(0, 8)) == []
    assert office.hear(0, BlocksReclaimed()) == [(1, ExtentLeased(0, 3))]
    assert [timer.is_cancelled for timer in office.loop.timers] == [True]


@pytest.mark.parametrize("quota", [ModelQuota(ceiling_bytes=6), ModelQuota(tenant_ceiling_bytes=6)])
def test_what_idle_workers_hold_counts_under_a_ceiling(quota: ModelQuota) -> None:
    """They are asked when their leases are what fills it."""
    office = Office(quota)
    office.hear(0, LeaseBlocks(6, "acme"))
    office.idle = [office.workers[0]]
    assert office.hear(1, LeaseBlocks(1, "acme")) == [(0, ReclaimBlocks(1))]
    office.hear(0, ReleaseExtent(0, 6))
    ((to, answer),) = office.hear(0, BlocksReclaimed())
    assert (to, type(answer)) == (1, ExtentLeased)


def test_a_busy_worker_is_not_asked() -> None:
    """What it holds it uses; the answer comes at once, with what could be had in pieces."""
    office = Office()
    office.hear(0, LeaseBlocks(6))
    ((to, answer),) = office.hear(1, LeaseBlocks(3))
    assert (to, answer.largest_free_blocks, answer.obtainable_blocks) == (1, 2, 2)
    assert "2 bytes are free" in answer.reason


def test_an_idle_worker_that_does_not_answer_holds_nobody_up() -> None:
    """After 50 ms the asker has its answer; what comes later is no answer to anybody."""
    office = Office()
    office.hear(0, LeaseBlocks(8))
    office.idle = [office.workers[0]]
    office.hear(1, LeaseBlocks(3))
    office.said = []
    office.loop.time_out()
    ((to, answer),) = office.said
    assert (to, type(answer)) == (1, PoolExhausted)
    office.loop.time_out()
    assert office.hear(0, BlocksReclaimed()) == []
    assert len(office.said) == 0


def test_an_idle_worker_that_dies_answers_by_that() -> None:
    """Its blocks are free with it."""
    office = Office()
    office.hear(0, LeaseBlocks(8))
    office.idle = [office.workers[0]]
    office.hear(1, LeaseBlocks(8))
    office.said = []
    assert office.desk.worker_gone(office.workers[0]) == 8
    assert office.said == [(1, ExtentLeased(0, 8))]


def test_two_that_wait_are_not_asked_for_each_other() -> None:
    """Both look idle on the board and hold blocks; the second asker is told no, the first is not asked in vain."""
    office = Office()
    for number in (0, 1):
        office.hear(number, LeaseBlocks(4))
    office.idle = list(office.workers)
    assert office.hear(0, LeaseBlocks(5)) == [(1, ReclaimBlocks(5))]
    ((to, answer),) = office.hear(1, LeaseBlocks(5))
    assert (to, type(answer)) == (1, PoolExhausted)
    assert [(to, type(answer)) for to, answer in office.hear(1, BlocksReclaimed())] == [(0, PoolExhausted)]


def test_nonsense_is_refused_with_its_numbers() -> None:
    """The worker is broken and has to go."""
    office = Office()
    with pytest.raises(ProtocolError, match="asks for 0 blocks"):
        office.hear(0, LeaseBlocks(0))


def test_nobody_is_asked_for_what_is_free_in_pieces() -> None:
    """Smaller leases get it at once; idle workers keep what they have."""
    office = Office()
    office.hear(0, LeaseBlocks(8))
    office.idle = [office.workers[0]]
    for block in (1, 3, 5):
        office.hear(0, ReleaseExtent(block, 1))
    ((to, answer),) = office.hear(1, LeaseBlocks(3))
    assert (to, answer.largest_free_blocks, answer.obtainable_blocks) == (1, 1, 3)
