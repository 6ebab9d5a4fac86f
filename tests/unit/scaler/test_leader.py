"""Who leads: the rule, a leader over a store in trouble, a file lock, and what a follower may do."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from scaler.acting.target import ScaleResult
from scaler.deciding.decision import Floor, Spec
from scaler.deciding.observation import Counts
from scaler.deciding.policy import ModelPolicy, Policy
from scaler.errors import Conflict, KubernetesUnreachable, NotLeader, WantedUnknown
from scaler.leading.file_leader import FileLeadership
from scaler.leading.kubernetes_lease import to_lease, to_record
from scaler.leading.leader import Record, Step, Timing, may_act, next_step
from scaler.leading.lease import LeaseLeadership, Versioned
from scaler.leading.led import LedBook, LedReplicas, LedTarget

# --- the rule ---


@pytest.mark.parametrize(
    ("record", "age_s", "step"),
    [
        (None, 0, Step.TAKE),
        (Record("", 15), 0, Step.TAKE),
        (Record("me", 15), 1000, Step.RENEW),
        (Record("other", 15), 14.9, Step.FOLLOW),
        (Record("other", 15), 15, Step.TAKE),
        (Record("other", 60), 15, Step.FOLLOW),
    ],
    ids=["no record", "given up", "mine", "fresh", "run out", "the holder's own figure"],
)
def test_a_record_is_held_as_long_as_it_keeps_changing(
    record: Record | None, age_s: float, step: Step
) -> None:
    """`age_s` since this version was first seen here; nobody's wall clock is asked."""
    assert next_step(record, 100.0, "me", 100.0 + age_s) is step


def test_a_leader_stops_before_its_record_can_be_taken() -> None:
    """It acts until 10 s after it sent the renewal; others wait 15 s from when they saw it, which is later."""
    timing = Timing()
    assert not may_act(None, timing, 0)
    assert may_act(100.0, timing, 109.9)
    assert not may_act(100.0, timing, 110.0)
    with pytest.raises(ValueError, match="must rise in this order, or two could lead at once"):
        Timing(lease_s=10, renew_s=10)


# --- over a store in trouble ---


class FakeTime:
    """Time that goes on when nobody has anything to do before it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._ids = itertools.count()

    async def wait(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._ids), woken))
        await woken

    async def moments(self, until_s: float) -> AsyncIterator[float]:
        """Each moment at which something happened, after it has."""
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            yield self.now
            if not self._sleepers or self._sleepers[0][0] > until_s:
                self.now = until_s
                return
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


@dataclass
class FakeStore:
    """Slow, unreliable, versioned. `trouble`: how many of its calls fail, half of them after they took effect."""

    time: FakeTime
    random: random.Random = field(default_factory=lambda: random.Random(7))
    trouble: float = 0.0
    slowest_s: float = 0.0
    found: Versioned | None = None
    quicker: Versioned | None = None
    """Somebody else writes this just before the next write."""
    num_writes: int = 0

    async def read(self) -> Versioned | None:
        await self._delay()
        self._maybe_fail()
        return self.found

    async def write(self, record: Record, over: Versioned | None) -> Versioned:
        await self._delay()
        self._maybe_fail()
        if self.quicker:
            self.found, self.quicker = self.quicker, None
        if (over.version if over else None) != (self.found.version if self.found else None):
            raise Conflict("409")
        self.num_writes += 1
        self.found = made = Versioned(replace(record, stamp=str(self.num_writes)), self.num_writes)
        await self._delay()
        self._maybe_fail()
        return made

    async def _delay(self) -> None:
        if self.slowest_s:
            await self.time.wait(self.random.choice((0.01, self.random.uniform(0, self.slowest_s))))

    def _maybe_fail(self) -> None:
        if self.random.random() < self.trouble / 2:
            raise KubernetesUnreachable("no answer")


def elector(store: FakeStore, name: str, offset_s: float = 0.0) -> LeaseLeadership:
    time = store.time
    return LeaseLeadership(
        store, name, say=lambda text: None, clock=lambda: time.now + offset_s, sleep=time.wait
    )


@pytest.mark.parametrize("seed", range(5))
async def test_never_two_lead_however_bad_the_store_and_the_clocks(seed: int) -> None:
    """Three scalers, an hour: calls take up to 30 s, a third fail, clocks are up to 11 days apart. Then all is
    well, and one leads."""
    time = FakeTime()
    store = FakeStore(time, random.Random(seed), trouble=0.35, slowest_s=30)
    electors = [elector(store, name, store.random.uniform(-1e6, 1e6)) for name in "abc"]
    runs = [asyncio.create_task(each.run()) for each in electors]
    num_led = 0
    leaders = set()
    async for _ in time.moments(until_s=3600):
        leading = [each.me for each in electors if each.is_leader]
        assert len(leading) <= 1
        num_led += len(leading)
        leaders.update(leading)
    assert num_led > 50
    assert len(leaders) > 1
    store.trouble, store.slowest_s = 0, 0.1
    async for _ in time.moments(until_s=3700):
        pass
    assert sum(each.is_leader for each in electors) == 1
    for run in runs:
        run.cancel()


async def test_a_leader_without_its_store_steps_down_and_another_takes_over_later() -> None:
    """Cut off at 4 s: the leader acts until 10 s after its last renewal, the other from 15 s after it saw that."""
    time = FakeTime()
    store, other_store = FakeStore(time), FakeStore(time)
    first, second = elector(store, "first"), elector(other_store, "second")
    runs = [asyncio.create_task(first.run())]
    led = {"first": 0.0, "second": float("inf")}
    async for now in time.moments(until_s=60):
        if len(runs) == 1:
            runs.append(asyncio.create_task(second.run()))
        if now < 4:
            other_store.found = store.found
        else:
            store.trouble = 2.0
        if first.is_leader:
            led["first"] = now
        if second.is_leader:
            led["second"] = min(led["second"], now)
    assert led["first"] < 12
    assert 17 <= led["second"] <= 21
    assert other_store.found
    assert other_store.found.record.num_transitions == 1
    for run in runs:
        run.cancel()


async def test_a_leader_that_stops_in_order_leaves_at_once() -> None:
    """The next one leads at its next look, 2 s later at most, instead of after 15 s."""
    time = FakeTime()
    store = FakeStore(time)
    first, second = elector(store, "first"), elector(store, "second")
    run = asyncio.create_task(first.run())
    async for _ in time.moments(until_s=1):
        pass
    assert first.is_leader
    run.cancel()
    async for _ in time.moments(until_s=2):
        pass
    assert not first.is_leader
    await second.turn()
    assert second.is_leader


async def test_a_follower_reads_the_leaders_word_and_the_next_leader_keeps_it() -> None:
    """chat: 4 stands in the record at once, through a takeover, until the new leader has decided. A follower reads
    it again after 0.2 s."""
    time = FakeTime()
    store = FakeStore(time)
    first, second = elector(store, "first"), elector(store, "second")
    with pytest.raises(WantedUnknown, match="nobody has led yet"):
        await second.published()
    await first.turn()
    await second.turn()
    await first.publish({"chat": 4})
    time.now += 1
    assert await second.published() == {"chat": 4}
    await second.publish({"chat": 1})
    time.now += 1
    assert await second.published() == {"chat": 4}
    time.now += 16
    await second.turn()
    await second.turn()
    time.now += 1
    assert second.is_leader
    assert await first.published() == {"chat": 4}
    await second.publish({"chat": 5})
    time.now += 1
    assert await first.published() == {"chat": 5}
    store.trouble = 2.0
    time.now += 1
    with pytest.raises(WantedUnknown, match="first follows second and cannot read its word: no answer"):
        await first.published()


async def test_a_record_that_was_deleted_is_made_again_and_a_taken_one_is_seen_at_once() -> None:
    """kubectl delete lease: the leader makes a new one; had another been quicker, it would stop in that turn."""
    time = FakeTime()
    store = FakeStore(time)
    first = elector(store, "first")
    await first.turn()
    store.found = None
    await first.turn()
    assert first.is_leader
    store.quicker = Versioned(Record("second", 15, "x"), "x")
    await first.turn()
    assert not first.is_leader
    assert first.leader == "second"


# --- the Lease ---


def test_a_lease_keeps_what_others_wrote_in_it() -> None:
    """Labels, annotations and fields that we do not know; a stamp that is another every time."""
    before = {
        "metadata": {"name": "tidegate", "labels": {"team": "ml"}, "annotations": {"note": "x"}},
        "spec": {"holderIdentity": "old", "acquireTime": "then", "strategy": "OldestEmulationVersion"},
    }
    body = to_lease(Record("me", 15, num_transitions=3, wanted={"chat": 4}), before, "tidegate")
    assert body["metadata"]["labels"] == {"team": "ml"}
    assert body["metadata"]["annotations"] == {"note": "x", "tidegate.dev/wanted": '{"chat": 4}'}
    assert body["spec"]["strategy"] == "OldestEmulationVersion"
    assert body["spec"]["acquireTime"] == body["spec"]["renewTime"]
    record = to_record(body)
    assert (record.holder, record.lease_s, record.num_transitions) == ("me", 15.0, 3)
    assert record.wanted == {"chat": 4}
    assert to_record(to_lease(record, body, "tidegate")).stamp != record.stamp


def test_a_lease_that_was_given_up_has_no_holder_at_all() -> None:
    """An empty holderIdentity is no valid one; and what is no JSON in the annotation is no word."""
    body = to_lease(Record("", 15), {}, "tidegate")
    assert "holderIdentity" not in body["spec"]
    assert to_record(body).holder == ""
    body["metadata"]["annotations"]["tidegate.dev/wanted"] = "four"
    assert to_record(body).wanted == {}
    assert to_record({"metadata": {}, "spec": {"holderIdentity": "x"}}).lease_s == 15.0


# --- the file lock ---


async def test_one_of_two_holds_the_file_and_the_other_reads_its_word(tmp_path: Path) -> None:
    """In one process, as flock is by open file."""
    said: list[str] = []
    first, second = (FileLeadership(tmp_path, me=name, say=said.append) for name in ("first", "second"))
    with pytest.raises(WantedUnknown, match="nobody has led yet"):
        await second.published()
    first.turn()
    second.turn()
    assert (first.is_leader, second.is_leader, second.leader) == (True, False, "first")
    await first.publish({"chat": 4})
    await second.publish({"chat": 1})
    assert await second.published() == {"chat": 4}
    assert said == ["leadership: first leads", "leadership: first leads, not second"]


async def test_a_lock_file_that_was_replaced_is_no_longer_ours(tmp_path: Path) -> None:
    """rm leader.lock: another process locks a new file; the old holder notices at once, and gets in line."""
    first, second = (FileLeadership(tmp_path, me=name, say=lambda text: None) for name in ("first", "second"))
    first.turn()
    (tmp_path / "leader.lock").unlink()
    assert not first.is_leader
    second.turn()
    first.turn()
    assert (first.is_leader, second.is_leader) == (False, True)


async def test_a_cancelled_run_frees_the_file(tmp_path: Path) -> None:
    """The other has it at its next turn, with the first one's word."""
    first, second = (FileLeadership(tmp_path, me=name, say=lambda text: None) for name in ("first", "second"))
    run = asyncio.create_task(first.run())
    await asyncio.sleep(0)
    await first.publish({"chat": 4})
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    second.turn()
    assert second.is_leader
    assert await first.published() == {"chat": 4}


# --- what a follower may do ---


@dataclass
class FakeLeadership:
    is_leader: bool = True
    word: dict[str, int] = field(default_factory=dict)

    @property
    def leader(self) -> str:
        return "me" if self.is_leader else "other"

    async def run(self) -> None: ...

    async def publish(self, wanted: Mapping[str, int]) -> None:
        self.word = dict(wanted)

    async def published(self) -> Mapping[str, int]:
        return self.word


@dataclass
class FakeTarget:
    was_cancelled: bool = False
    ends: asyncio.Event = field(default_factory=asyncio.Event)

    async def counts(self, model: str) -> Counts | None:
        return Counts(2)

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        try:
            await self.ends.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return ScaleResult(model, 2, wanted, 1.0)


class FakeAsked:
    all_wanted = {"chat": 4}  # noqa: RUF012  # nobody changes it

    async def wanted(self, model: str) -> int:
        return self.all_wanted[model]

    async def changes(self) -> AsyncIterator[None]:
        yield


class FakeBook:
    policy = Policy()

    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec:
        return Spec(model, ModelPolicy(), lead_s)


async def test_a_follower_counts_and_changes_nothing() -> None:
    """Its decisions are held, in words; its target refuses all the same."""
    leadership = FakeLeadership(is_leader=False)
    spec = LedBook(FakeBook(), leadership).spec("chat", 0, 1, None)
    assert (spec.is_paused, spec.pause_words) == (True, "other leads, this scaler watches")
    target = LedTarget(FakeTarget(), leadership)
    assert await target.counts("chat") == Counts(2)
    with pytest.raises(NotLeader, match="other leads; this scaler changes nothing"):
        await target.scale("chat", 3, "test")


async def test_the_leader_acts_as_if_there_were_nobody_else() -> None:
    """Book and target go through."""
    inner = FakeTarget()
    inner.ends.set()
    assert not LedBook(FakeBook(), FakeLeadership()).spec("chat", 0, 1, None).is_paused
    assert (await LedTarget(inner, FakeLeadership()).scale("chat", 3, "test")).after == 3


async def test_a_change_is_taken_back_when_leadership_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that runs for minutes ends half a second later at most, here at once."""
    monkeypatch.setattr("scaler.leading.led.LOOK_S", 0)
    leadership, inner = FakeLeadership(), FakeTarget()
    change = asyncio.create_task(LedTarget(inner, leadership).scale("chat", 3, "test"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not inner.was_cancelled
    leadership.is_leader = False
    with pytest.raises(NotLeader, match="lost to other during a change of 'chat' to 3"):
        await asyncio.wait_for(change, 10)
    assert inner.was_cancelled


async def test_a_cancel_goes_through_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop takes a scale-in back that way."""
    inner = FakeTarget()
    change = asyncio.create_task(LedTarget(inner, FakeLeadership()).scale("chat", 1, "test"))
    for _ in range(5):
        await asyncio.sleep(0)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    assert inner.was_cancelled


async def test_leader_and_follower_give_keda_the_same_answer() -> None:
    """The leader's 4, published before it is given; a model without a word is unknown, not 0."""
    leadership = FakeLeadership()
    replicas = LedReplicas(FakeAsked(), leadership)
    assert await replicas.wanted("chat") == 4
    leadership.is_leader = False
    leadership.word["chat"] = 3
    assert await replicas.wanted("chat") == 3
    with pytest.raises(WantedUnknown, match="other leads and has not said what embed should have"):
        await replicas.wanted("embed")
