"""What samples become: readings of the node's messages, counters that never fall, columns on the run's clock."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from contracts import node_pb2
from loadtest.curve import Source
from loadtest.watching.counting import Accumulated
from loadtest.watching.gpu import GpuSource
from loadtest.watching.node import NodeFigures
from loadtest.watching.recorder import Recorder
from loadtest.watching.source import Reading, Sample, SourceUnreadable, ticks
from loadtest.watching.triton import pending_readings
from loadtest.watching.watch import Watch


def memory_sample(**chat: int) -> node_pb2.MemorySample:
    return node_pb2.MemorySample(
        total_bytes=1000,
        held_bytes=300,
        high_water_bytes=900,
        models=[
            node_pb2.ModelMemory(model="chat", block_bytes=100, limit_bytes=800, **chat),
            node_pb2.ModelMemory(model="embed"),
        ],
        instances=[
            node_pb2.InstanceStatus(
                model="chat", instance="chat-0", worker_pid=7, state="serving", in_flight=5, num_running=3
            ),
            node_pb2.InstanceStatus(model="chat", instance="chat-1", worker_pid=0, state="serving"),
        ],
    )


def values(readings: tuple[Reading, ...], name: str) -> dict[str, float]:
    return {dict(r.labels).get("model", ""): r.value for r in readings if r.name == name}


def test_the_peak_between_two_samples_is_a_reading_beside_what_is_held():
    """9 of 8 allowed blocks would be a defect; 8 of 8 is the ceiling, touched and gone again."""
    readings = NodeFigures().readings(memory_sample(held_bytes=300, high_water_bytes=800))
    assert values(readings, "kv.used_blocks") == {"chat": 3}
    assert values(readings, "kv.high_water_blocks") == values(readings, "kv.total_blocks") == {"chat": 8}
    assert values(readings, "pool.high_water_bytes") == {"": 900}


def test_an_instance_without_a_worker_is_not_ready_and_a_model_without_blocks_has_no_queue_of_ours():
    """chat-1's worker died; embed is queued by Triton."""
    readings = NodeFigures().readings(memory_sample())
    assert values(readings, "instances.ready") == {"chat": 1, "embed": 0}
    assert (values(readings, "running"), values(readings, "waiting")) == ({"chat": 3}, {"chat": 2})


def test_preemptions_are_counted_since_the_watch_began_and_survive_a_worker():
    """100 before the run; 3 more; the worker dies and the next one has 2: 5 in all."""
    figures, seen = NodeFigures(), []
    for pid, count in ((1, 100), (1, 103), (2, 2)):
        sample = memory_sample()
        sample.instances[0].worker_pid, sample.instances[0].num_preempted = pid, count
        seen.append(values(figures.readings(sample), "kv.preemptions")["chat"])
    assert seen == [0, 3, 5]


def test_a_counter_that_fell_began_again_at_nothing():
    """The node was restarted between two samples."""
    counts = Accumulated()
    assert [counts.update({"a": ("chat", n)}).get("chat") for n in (10, 12, 4)] == [0, 2, 6]


def test_triton_pending_requests_are_summed_over_versions_and_nonsense_is_left_out():
    """NaN is no count, and no 0 either."""
    text = (
        'nv_inference_pending_request_count{model="embed",version="1"} 3\n'
        'nv_inference_pending_request_count{model="embed",version="2"} 4\n'
        'nv_inference_pending_request_count{model="chat",version="1"} nan\n'
        'nv_inference_queue_duration_us{model="embed",version="1"} 99\n'
    )
    assert values(pending_readings(text), "triton.pending") == {"embed": 7}


def test_times_are_relative_to_t0_and_the_baseline_has_negative_ones():
    """Two samples before the first request, one after."""
    recorder = Recorder(["node"])
    for t_s, value in ((98.0, 1.0), (99.5, 2.0), (101.0, 3.0)):
        recorder.add("node", Sample(t_s, (Reading("pool.used_bytes", (), "bytes", value),)))
    (series,) = recorder.curve(100.0).named("pool.used_bytes")
    assert series.t_s.tolist() == [-2.0, -0.5, 1.0]
    assert series.values.tolist() == [1.0, 2.0, 3.0]


def test_a_sample_at_the_same_moment_is_left_out():
    """Series ascend."""
    recorder = Recorder(["node"])
    for value in (1.0, 2.0):
        recorder.add("node", Sample(5.0, (Reading("x", (), "1", value),)))
    assert recorder.curve(0.0).named("x")[0].values.tolist() == [1.0]


class Scripted:
    """Gives what it was told to, then waits."""

    period_s = 0.001

    def __init__(self, name: str, script: list[float | Exception]) -> None:
        self.name = name
        self._script = list(script)
        self.done = threading.Event()

    async def samples(self):
        while self._script:
            step = self._script.pop(0)
            if isinstance(step, Exception):
                raise step
            yield Sample(step, (Reading(self.name, (), "1", step),))
        self.done.set()
        await asyncio.Event().wait()


def watched(*sources: Scripted) -> Watch:
    with Watch(sources) as watch:
        assert all(source.done.wait(20) for source in sources)
    return watch


def test_a_source_that_fails_is_counted_and_asked_again_and_the_others_go_on():
    """A hole is an absent sample: 1 and 4 are there, nothing is made up for 2 and 3."""
    watch = watched(
        Scripted("node", [1.0, SourceUnreadable("gone"), ZeroDivisionError("defect"), 4.0]),
        Scripted("triton", [1.0, 2.0, 3.0]),
    )
    curve = watch.curve(0.0)
    assert curve.sources == (Source("node", 2, 2, "ZeroDivisionError: defect"), Source("triton", 3, 0, ""))
    assert curve.named("node")[0].t_s.tolist() == [1.0, 4.0]
    assert watch.latest("triton") == {(): 3.0}


def test_a_watch_that_is_stopped_twice_has_stopped():
    """The second stop is a no-op."""
    watch = watched(Scripted("node", [1.0]))
    watch.stop()
    assert watch.curve(0.0).sources[0].samples == 1


class FakeClock:
    """Sleeping moves it, and takes no time."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


async def test_ticks_that_were_missed_are_left_out_not_made_up_for():
    """A reader that took five and a half periods gets the next tick on the grid, not five at once."""
    clock = FakeClock()
    times = []
    async for at_s in ticks(10.0, clock, clock.sleep):
        times.append(at_s)
        if len(times) == 1:
            clock.now_s += 55.0
        if len(times) == 3:
            break
    assert times == [100.0, 160.0, 170.0]


async def test_a_gpu_in_trouble_is_a_failure_with_its_text():
    """NVML says that the device is lost."""

    class Lost(Exception):
        pass

    def lost():
        raise Lost("GPU is lost")

    source = GpuSource(SimpleNamespace(nvmlDeviceGetCount=lost, NVMLError=Lost), 0.01)
    with pytest.raises(SourceUnreadable, match="GPU is lost"):
        await anext(source.samples())
