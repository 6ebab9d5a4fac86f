"""The engine's figures in Triton's /metrics: the worker's counters, and latencies of finished requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import pytest

from python_backend.board import Slot, SlotState
from python_backend.bridge.testing import FakeMetric, FakeRequest, FakeSender, MetricFamily, install

install()

from python_backend.bridge import metrics as bridge_metrics  # noqa: E402
from python_backend.bridge.metrics import EngineFigures, EngineMetrics, Finished  # noqa: E402
from python_backend.bridge.requests import read_generate  # noqa: E402
from python_backend.bridge.responses import Reply, TextReply  # noqa: E402
from python_backend.messages import Delta  # noqa: E402

SLOT = Slot(
    index=0,
    state=SlotState.SERVING,
    model=0,
    in_flight=3,
    cap=64,
    landed=9,
    running=2,
    waiting=1,
    blocks_used=5,
    blocks_leased=8,
    tokens_out=100,
    preemptions=0,
    cached_tokens=0,
)


class Told:
    """An instance whose board says `slot`, and the requests that it has finished."""

    def __init__(self) -> None:
        self.slot = SLOT
        self.finished: deque[Finished] = deque()
        self._figures = EngineFigures("chat", "chat-0")

    def tell(self) -> dict[str, FakeMetric]:
        self._figures.tell(self.slot, self.finished)
        return {name.removeprefix("tidegate_engine_"): metric for name, metric in MetricFamily.made.items()}


@pytest.fixture
def told() -> Iterator[Told]:
    MetricFamily.made.clear()
    yield Told()
    MetricFamily.made.clear()


def test_gauges_are_what_the_board_says(told: Told):
    shown = told.tell()
    assert shown["running_sequences"].value == 2
    assert shown["kv_leased_blocks"].value == 8
    assert shown["running_sequences"].labels == {"model": "chat", "instance": "chat-0"}


def test_a_counter_goes_on_when_the_next_worker_counts_from_0(told: Told):
    """100, then 130, then a new worker's 7: 137 in all."""
    told.tell()
    told.slot = replace(SLOT, tokens_out=130)
    told.tell()
    told.slot = replace(SLOT, tokens_out=7)
    assert told.tell()["output_tokens_total"].value == 137


def test_a_finished_request_is_observed_once(told: Told):
    """First token after 0.5 s, 11 tokens in 2.5 s: 0.2 s a token after the first."""
    told.finished.append(Finished(0.5, 2.5, 11))
    told.tell()
    shown = told.tell()
    assert shown["time_to_first_token_seconds"].observed == [0.5]
    assert shown["time_per_output_token_seconds"].observed == [0.2]


def test_one_token_has_no_time_per_token(told: Told):
    told.finished.append(Finished(0.5, 0.5, 1))
    assert told.tell()["time_per_output_token_seconds"].observed == []


def test_trouble_with_tritons_metrics_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    """An old Triton without histograms: said once in the log, and requests go on."""
    said = []
    monkeypatch.setattr(MetricFamily, "Metric", property(lambda _: 1 / 0))
    monkeypatch.setattr(bridge_metrics.log, "exception", said.append)
    metrics = EngineMetrics("chat", "chat-0", lambda: SLOT)
    metrics.close()
    metrics.finished(Finished(0.5, 2.5, 11))
    assert said == ["no engine metrics of this instance any more"]


@pytest.mark.parametrize(
    ("error_code", "num_tokens", "is_finished"),
    [
        pytest.param(None, 3, True, id="answered"),
        pytest.param("UNAVAILABLE", 3, False, id="its worker died"),
        pytest.param(None, 0, False, id="no token was asked for"),
    ],
)
def test_only_an_answered_request_with_a_token_is_timed(error_code, num_tokens, is_finished):
    reply = TextReply(read_generate(FakeRequest({"text_input": b"hi"}), 0.0), Reply(FakeSender()))
    reply.push(Delta(0, "a", num_tokens))
    reply.push(Delta(0, "", 0, finish_reason=None if error_code else "stop", error_code=error_code))
    assert (reply.finished is not None) is is_finished
