"""Figures of one Triton as those of all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from scaler.deciding.observation import Counts, Quality, Reading, Signals
from scaler.errors import TritonUnreachable
from scaler.measuring.sampled import Sampled, Served, for_all

SIGNALS = Signals(
    utilization=Reading(Quality.GOOD, 0.9),
    queue=Reading(Quality.GOOD, 6),
    queue_time_s=Reading(Quality.GOOD, 1.5),
    concurrency=Reading(Quality.IDLE),
    kv_occupancy=Reading(Quality.GOOD, 0.5),
    arrivals_per_s=Reading(Quality.STALE, 4, 20),
    wakes=1,
)


def test_amounts_grow_with_the_instances_and_shares_do_not() -> None:
    """2 of 6 ready instances are measured: a queue of 6 is one of 18, a utilisation of 0.9 stays. Idle and stale
    stay what they are."""
    told = for_all(SIGNALS, Counts(2, starting=1), Counts(6, starting=2))
    assert told.queue == Reading(Quality.GOOD, 18)
    assert (told.utilization, told.queue_time_s) == (SIGNALS.utilization, SIGNALS.queue_time_s)
    assert (told.concurrency, told.arrivals_per_s) == (SIGNALS.concurrency, SIGNALS.arrivals_per_s)
    assert (told.kv_occupancy, told.wakes) == (SIGNALS.kv_occupancy, 1)


def test_what_cannot_be_told_is_left_as_it_was_measured() -> None:
    """Nothing ready here, or nobody can count."""
    for here, everywhere in ((None, Counts(6)), (Counts(0), Counts(6)), (Counts(2), None)):
        assert for_all(SIGNALS, here, everywhere) is SIGNALS


class FakeTriton:
    async def config(self, model: str) -> ModelConfig:
        config = ModelConfig(name=model)
        config.instance_group.add(count=2)
        config.instance_group.add(count=1)
        return config


async def test_a_triton_that_is_only_measured_is_counted_by_its_config() -> None:
    """Two groups of 2 and 1 instances."""
    assert await Served(FakeTriton()).counts("chat") == Counts(3)


@dataclass
class FakeCollector:
    given: list[Counts | None] = field(default_factory=list)

    async def signals(self, model: str, counts: Counts | None, now: float) -> Signals:
        self.given.append(counts)
        return SIGNALS

    def forget(self, model: str) -> None: ...


@dataclass
class Here:
    found: Counts | Exception | None = None

    async def counts(self, model: str) -> Counts | None:
        if isinstance(self.found, Exception):
            raise self.found
        if self.found is None:
            await asyncio.Event().wait()
        return self.found


async def test_the_collector_divides_by_the_instances_that_it_measures() -> None:
    """3 busy instances of 3 here are a utilisation of 1, not of 3/5; a count that fails or hangs is unknown."""
    collector, here = FakeCollector(), Here(Counts(3))
    sampled = Sampled(collector, here, timeout_s=0)
    assert (await sampled.signals("chat", Counts(6), 0)).queue.value == 12
    here.found = TritonUnreachable("gone")
    assert await sampled.signals("chat", Counts(6), 0) is SIGNALS
    here.found = None
    assert await sampled.signals("chat", Counts(6), 0) is SIGNALS
    assert collector.given == [Counts(3), None, None]
