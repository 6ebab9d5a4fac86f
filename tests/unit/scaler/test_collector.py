"""What the collector makes of its sources' answers, and of their silence."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from scaler.deciding.observation import Counts, Quality, Reading, Signals
from scaler.measuring.collector import Collector
from scaler.measuring.gpu import GpuFigures
from scaler.testing import FakeClock, FakeNode, FakeTriton

FIGURES = ("utilization", "queue", "queue_time_s", "concurrency", "arrivals_per_s", "busy_s_per_request")


@dataclass
class FakeGpu:
    utilization: float = 0.9

    def read(self) -> GpuFigures:
        return GpuFigures("GPU-a", self.utilization, 1, 2)


@dataclass
class Rig:
    """A collector over fakes, looked at once a second."""

    clock: FakeClock = field(default_factory=FakeClock)
    triton: FakeTriton = field(default_factory=FakeTriton)
    node: FakeNode = field(default_factory=FakeNode)
    said: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {"metrics": self.triton, "node": self.node, **self.options}
        self.collector = Collector(self.triton, clock=self.clock, say=self.said.append, **given)

    async def look(self, model: str = "slow", ready: int | None = 1, after_s: float = 1.0) -> Signals:
        now = self.clock.advance(after_s)
        return await self.collector.signals(model, Counts(ready) if ready is not None else None, now)


def rig(*, decoupled: bool = False, on_gpu: bool = False, **options: Any) -> tuple[Rig, Any]:
    made = Rig(options=options)
    return made, made.triton.model("slow", decoupled=decoupled, on_gpu=on_gpu)


def good(value: float, age_s: float = 0.0) -> Reading:
    return Reading(Quality.GOOD, pytest.approx(value), age_s)


async def test_a_batch_counts_once_however_many_requests_are_in_it():
    """5 batches of 8 of 0.1 s in 1 s, one instance: busy 0.5, not 4."""
    made, model = rig()
    await made.look()
    model.execute(8, 0.1, times=5)
    signals = await made.look()
    assert signals.utilization == good(0.5)
    assert signals.busy_s_per_request == good(0.5 / 40)
    assert signals.arrivals_per_s == good(40)


async def test_utilization_is_a_share_of_the_instances_that_are_ready_now():
    """2 busy seconds a second over 4 instances: 0.5."""
    made, model = rig()
    await made.look(ready=4)
    model.execute(8, 0.1, times=20)
    assert (await made.look(ready=4)).utilization == good(0.5)


async def test_work_of_instances_that_are_gone_is_not_more_than_all():
    """3 of 4 were busy, then 2 are left: the 2 are busy, not one and a half times."""
    made, model = rig()
    await made.look(ready=4)
    model.execute(1, 0.1, times=30)
    assert (await made.look(ready=2)).utilization == good(1.0)


async def test_no_work_over_no_instances_is_no_load():
    """The last instance has just gone, Triton still answers: idle, so scale to zero goes on."""
    made, _ = rig()
    await made.look(ready=1)
    assert (await made.look(ready=0)).utilization == Reading(Quality.IDLE)


async def test_requests_that_failed_have_arrived_too():
    """10 answered and 5 failed in 1 s: 15."""
    made, model = rig()
    await made.look()
    model.execute(1, 0.01, times=10)
    model.stats.inference_stats.fail.count += 5
    assert (await made.look()).arrivals_per_s == good(15)


async def test_a_late_look_is_measured_over_the_time_that_passed():
    """2 s of work, looked at after 4 s instead of 1: 0.5."""
    made, model = rig()
    await made.look()
    model.execute(1, 0.1, times=20)
    assert (await made.look(after_s=4.0)).utilization == good(0.5)


async def test_missing_and_zero_and_a_ratio_of_nothing_are_three_things():
    """The first look knows no rates; the second measures 0 and has no request to take a mean of."""
    made, _ = rig()
    first = await made.look()
    assert first.utilization.quality is Quality.MISSING
    assert first.queue == good(0)
    second = await made.look()
    assert second.utilization == good(0)
    assert second.busy_s_per_request == Reading(Quality.IDLE)
    assert second.queue_time_s == Reading(Quality.IDLE)


async def test_a_figure_ages_then_turns_stale_and_is_not_zero():
    """Triton's gRPC port is silent from the third look on; stale after 10 s."""
    made, model = rig()
    await made.look()
    model.execute(1, 0.5)
    await made.look()
    made.triton.is_down = True
    aging = await made.look(after_s=4.0)
    assert aging.utilization == good(0.5, age_s=4.0)
    stale = await made.look(after_s=7.0)
    assert stale.utilization == Reading(Quality.STALE, 0.5, 11.0)
    assert not stale.utilization.is_usable


async def test_a_dead_metrics_endpoint_makes_only_the_queue_unusable():
    """10 min without it: utilisation goes on; the queue is stale, never 0."""
    made, model = rig()
    model.pending = 7
    await made.look()
    made.triton.metrics_down = True
    for _ in range(600):
        model.execute(1, 0.5)
        signals = await made.look()
    assert signals.utilization == good(0.5)
    assert signals.queue.quality is Quality.STALE
    assert "the metrics endpoint" in made.collector.troubles
    assert len(made.said) == 1


async def test_a_source_that_comes_back_is_used_at_once():
    """Metrics at the next look; rates, which need two looks, at the second."""
    made, model = rig()
    await made.look()
    await made.look()
    made.triton.is_down = True
    for _ in range(600):
        await made.look()
    made.triton.is_down = False
    model.pending = 3
    model.execute(1, 0.25)
    back = await made.look()
    assert back.queue == good(3)
    model.execute(1, 0.25)
    assert (await made.look()).utilization == good(0.25)
    assert made.collector.troubles == {}
    assert made.said[-1].endswith("answers again")


async def test_a_restart_of_triton_is_neither_negative_nor_huge():
    """900 s of work counted, then a new process counts from 0."""
    made, model = rig()
    model.execute(1, 0.9, times=1000)
    await made.look()
    model.execute(1, 0.5)
    await made.look()
    model.reload()
    model.execute(1, 0.2)
    after = await made.look()
    assert not after.utilization.is_usable
    model.execute(1, 0.3)
    assert (await made.look()).utilization == good(0.3)


async def test_an_instance_in_a_long_execution_is_busy_before_it_ends():
    """One execution takes 30 s; requests wait and nothing ends for 15 s: busy, not idle."""
    made, model = rig()
    model.pending = 4
    for _ in range(16):
        signals = await made.look(ready=2)
    assert signals.utilization == good(1.0)
    assert signals.queue_time_s == good(15.0)


async def test_long_executions_lengthen_the_window():
    """One of 10 s every 20 s: half busy at every look, where 15 s would show 0.67 and 0 by turns."""
    made, model = rig()
    seen = []
    for second in range(1, 121):
        if second % 20 == 0:
            model.execute(1, 10.0)
        signals = await made.look()
        if second > 80:
            seen.append(signals.utilization.value)
    assert min(seen) == pytest.approx(0.5, abs=0.05)
    assert max(seen) == pytest.approx(0.5, abs=0.05)


async def test_queue_and_concurrency_of_a_batch_model():
    """32 pending, 5 batches of 8 x 0.1 s a second: 4 requests are executing at any time."""
    made, model = rig()
    model.pending = 32
    await made.look()
    model.execute(8, 0.1, times=5, queued_s=0.4)
    signals = await made.look()
    assert signals.queue == good(32)
    assert signals.queue_time_s == good(0.4)
    assert signals.concurrency == good(36)


async def test_a_queue_that_grows_is_part_of_the_arrivals():
    """10 answered and 5 more pending in 1 s: 15 arrived."""
    made, model = rig()
    await made.look()
    model.pending = 5
    model.execute(1, 0.01, times=10)
    assert (await made.look()).arrivals_per_s == good(15)


async def test_without_a_metrics_address_the_queue_is_reckoned_from_the_time_in_it():
    """Little: 10 requests left after 0.5 s each in 1 s, so 5 were waiting at any time."""
    made, model = rig(metrics=None)
    await made.look()
    model.execute(1, 0.01, times=10, queued_s=0.5)
    signals = await made.look()
    assert signals.queue == good(5)
    assert signals.concurrency == good(5.1)


async def test_a_generate_model_is_measured_by_its_places():
    """Two instances of cap 64 with 64 and 32 in flight: 0.75 of the places; 14 of them do not run; 36 in Triton.

    What a request costs is not known while only 4 have landed of 96 that run, and is once 96 have."""
    made, model = rig(decoupled=True)
    model.pending = 36
    made.node.serve("slow")
    full = made.node.attach("slow", "slow-0", in_flight=64, num_running=50, landed=100)
    made.node.attach("slow", "slow-1", in_flight=32, num_running=32, landed=100)
    await made.look(ready=2)
    full.landed += 4
    signals = await made.look(ready=2)
    assert signals.utilization == good(0.75)
    assert signals.queue == good(50)
    assert signals.concurrency == good(132)
    assert signals.arrivals_per_s == good(4)
    assert signals.queue_time_s == good(50 / 4)
    assert signals.busy_s_per_request.quality is Quality.MISSING
    full.landed += 92
    signals = await made.look(ready=2)
    assert signals.busy_s_per_request == good(1.5 / (96 / 2))


async def test_an_instance_over_its_cap_does_not_fill_another_ones_places():
    """96 in flight of 64 on one and none on the other: half of the places, and another model's are no matter."""
    made, _ = rig(decoupled=True)
    made.node.serve("slow")
    made.node.attach("slow", "slow-0", in_flight=96, num_running=96)
    made.node.attach("slow", "slow-1")
    made.node.attach("other", "other-0", in_flight=64)
    signals = await made.look(ready=2)
    assert signals.utilization == good(0.5)
    assert signals.concurrency == good(96)


async def test_a_queue_that_does_not_move_has_waited_since_it_last_did():
    """64 streams run, 36 wait, and none has landed for 5 s: 5 s of queue time; 36 more arrived in the last look."""
    made, model = rig(decoupled=True)
    made.node.serve("slow")
    made.node.attach("slow", "slow-0", in_flight=64, num_running=64, landed=64)
    await made.look()
    model.pending = 36
    assert (await made.look()).arrivals_per_s == good(36)
    for _ in range(4):
        signals = await made.look()
    assert signals.queue_time_s == good(5.0)
    assert signals.queue == good(36)


async def test_an_instance_that_drains_is_no_capacity_of_a_generate_model():
    """One serving half full, one draining full: 0.5 of the one that is ready."""
    made, _ = rig(decoupled=True)
    made.node.serve("slow")
    made.node.attach("slow", "slow-0", in_flight=32, num_running=32)
    made.node.attach("slow", "slow-1", in_flight=64, num_running=64, state="draining")
    assert (await made.look(ready=1)).utilization == good(0.5)


async def test_kv_occupancy_is_of_what_the_model_could_have_and_a_refusal_is_full():
    """25 blocks leased, 75 usable: 0.25. A lease that was refused since the last look: 1, for 5 s."""
    made, _ = rig(decoupled=True)
    entry = made.node.serve("slow")
    entry.kv_leased_bytes, entry.usable_blocks = 25_000, 75
    assert (await made.look()).kv_occupancy == good(0.25)
    entry.num_refused += 1
    assert (await made.look()).kv_occupancy == good(1.0)
    for _ in range(6):
        signals = await made.look()
    assert signals.kv_occupancy == good(0.25)


async def test_cached_blocks_that_nobody_reads_are_not_occupied():
    """10 blocks leased, 30 published of which 20 are cached, 80 usable: 20 of 100."""
    made, _ = rig(decoupled=True)
    entry = made.node.serve("slow")
    entry.kv_leased_bytes, entry.kv_published_bytes, entry.kv_cached_bytes = 10_000, 30_000, 20_000
    entry.usable_blocks = 80
    assert (await made.look()).kv_occupancy == good(0.2)


async def test_a_dead_node_makes_a_generate_model_unknown_and_never_idle():
    """Its own figures go stale; Triton's statistics, which see nothing, do not take their place."""
    made, _ = rig(decoupled=True)
    made.node.serve("slow")
    made.node.attach("slow", "slow-0", in_flight=64, num_running=64)
    await made.look()
    await made.look()
    made.node.is_down = True
    for _ in range(600):
        signals = await made.look()
    assert signals.utilization == Reading(Quality.STALE, 1.0, 600.0)
    assert signals.queue.quality is Quality.STALE


async def test_a_decoupled_model_that_is_not_ours_has_no_utilization_rather_than_zero():
    """`execute` returns at once, so Triton's compute time is no measure; what waits in Triton is."""
    made, model = rig(decoupled=True)
    model.pending = 9
    await made.look()
    signals = await made.look()
    assert signals.utilization.quality is Quality.MISSING
    assert signals.busy_s_per_request.quality is Quality.MISSING
    assert signals.queue == good(9)


async def test_a_batch_model_of_the_node_is_measured_by_triton():
    """Kind "embed": the node has no more to say than Triton has."""
    made, model = rig()
    made.node.serve("slow", kind="embed", block_bytes=0)
    made.node.attach("slow", "slow-0", in_flight=1)
    await made.look()
    model.execute(1, 0.5)
    assert (await made.look()).utilization == good(0.5)


async def test_a_model_that_is_not_loaded_is_no_trouble():
    """At zero instances Triton does not know it: figures are missing, Triton answers, wakes are passed on."""
    made = Rig(options={"wakes": lambda model: 2})
    signals = await made.look(ready=0)
    assert {getattr(signals, name).quality for name in FIGURES} == {Quality.MISSING}
    assert signals.wakes == 2
    assert made.collector.troubles == {}


async def test_a_source_that_hangs_costs_its_deadline_and_no_more():
    """Triton takes the call and never answers; the metrics are read all the same."""
    made, model = rig(ask_timeout_s=0.01)
    model.pending = 3
    made.triton.hangs = True
    signals = await asyncio.wait_for(made.look(), timeout=5)
    assert signals.queue == good(3)
    assert "no answer within 0.01 s" in made.collector.troubles["Triton (statistics of slow)"]


async def test_one_late_answer_is_not_worth_a_line():
    """The endpoint is silent at every second look for a minute: shown as trouble while it is, never said."""
    made, _ = rig()
    for number in range(60):
        made.triton.metrics_down = bool(number % 2)
        await made.look()
        assert bool(made.collector.troubles) == made.triton.metrics_down
    assert made.said == []


async def test_models_of_one_tick_share_one_look_at_node_and_metrics():
    """Three models, one `now`: one GetStatus, one page."""
    made, _ = rig()
    for name in ("other", "third"):
        made.triton.model(name)
    now = made.clock.advance(1.0)
    await asyncio.gather(*(made.collector.signals(name, Counts(1), now) for name in made.triton.models))
    assert (made.node.num_calls, made.triton.num_metrics_calls) == (1, 1)


async def test_a_models_config_is_asked_for_once_and_again_after_a_reload():
    """It says whether Triton sees the work; only a reload changes it."""
    made, model = rig()
    for _ in range(5):
        model.execute(1, 0.1)
        await made.look()
    assert made.triton.num_config_calls == 1
    model.reload()
    await made.look()
    await made.look()
    assert made.triton.num_config_calls == 2


async def test_on_a_gpu_the_device_says_how_busy_it_is_and_each_model_has_its_part():
    """Device 0.9 busy, compute times 3 to 1: 0.675 and 0.225."""
    made, model = rig(on_gpu=True, gpu=FakeGpu(0.9))
    other = made.triton.model("other", on_gpu=True)
    for _ in range(3):
        now = made.clock.advance(1.0)
        model.execute(1, 0.3)
        other.execute(1, 0.1)
        first, second = await asyncio.gather(
            *(made.collector.signals(name, Counts(1), now) for name in ("slow", "other"))
        )
    assert first.utilization == good(0.675)
    assert second.utilization == good(0.225)
    assert made.collector.gpu_figures == GpuFigures("GPU-a", 0.9, 1, 2)


async def test_a_gpu_that_does_not_answer_leaves_the_duty_cycle():
    """The device is silent: 0.3 of the time in executions."""

    class DeadGpu:
        def read(self) -> GpuFigures:
            raise OSError("lost")

    made, model = rig(on_gpu=True, gpu=DeadGpu())
    for _ in range(2):
        model.execute(1, 0.3)
        signals = await made.look()
    assert signals.utilization == good(0.3)


async def test_a_model_on_the_cpu_is_not_measured_by_the_gpu():
    """The other models' device says nothing about it."""
    made, model = rig(gpu=FakeGpu(0.9))
    for _ in range(2):
        model.execute(1, 0.3)
        signals = await made.look()
    assert signals.utilization == good(0.3)
