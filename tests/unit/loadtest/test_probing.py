"""A probe of a rate: how long it is held, when it is given up, what is kept of it. The run is a stand-in."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.capacity import read_capacity
from loadtest import probing
from loadtest.capacity import RateSearch
from loadtest.generating.collecting import Progress
from loadtest.planning.plan import Plan, parse_plan
from loadtest.probing import Probing
from loadtest.records import Request, Status, columns_of
from loadtest.verdict import Judgement, Row, Verdict
from tests.unit.loadtest.stacks import stack_in

TEXT = """
name: small
load: {kind: open, shape: {kind: wave, base_per_s: 3, times: 3, duration_s: 90}, arrivals: {kind: constant}}
users:
  - {name: chat, kind: openai_chat, service: chat}
slo: [ttft.scheduled p99 < 2s @99%]
"""


def _request(t_sent_s: float, t_last_s: float) -> Request:
    return Request(
        index=0,
        process=0,
        user="chat",
        service="chat",
        session="",
        turn=0,
        status=Status.NOT_SENT if math.isnan(t_sent_s) else Status.OK,
        error="",
        instance="",
        t_intended_s=0.0,
        t_sent_s=t_sent_s,
        t_first_s=math.nan,
        t_last_s=t_last_s,
        input_tokens=0,
        output_tokens=0,
        cached_tokens=0,
    )


class _Runs:
    """In `run_plan`'s place: PASS up to a rate; above it a backlog that grows."""

    def __init__(self, limit_per_s: float) -> None:
        self.limit_per_s = limit_per_s
        self.plans: list[Plan] = []

    def held_s(self, rate_per_s: float) -> float:
        return next(plan.duration_s for plan in self.plans if plan.load.shape.rate_per_s == rate_per_s)

    def __call__(self, plan: Plan, folder: Path, *, plan_text: str, observer: Any, stop: Any) -> Any:
        self.plans.append(plan)
        rate: float = plan.load.shape.rate_per_s
        if rate > 4 * self.limit_per_s:
            observer.progress(Progress(30.0, 900, 900, 100, 0, int(20 * rate)))
            assert stop.is_set()
        verdict = Verdict.PASS if rate <= self.limit_per_s else Verdict.FAIL
        row = Row("ttft.scheduled p99 < 2s", 3.0, 2.0, "s", None, None, 900, 459, verdict, "3 s is above 2 s")
        requests = columns_of([_request(0.0, 10.0), _request(1.0, 21.0), _request(math.nan, 30.0)])
        return SimpleNamespace(plan=plan, requests=requests, judgement=Judgement((row,)))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> _Runs:
    made = _Runs(limit_per_s=8.0)
    monkeypatch.setattr(probing, "run_plan", made)
    monkeypatch.setattr(probing, "describe_stack", lambda stack: {})
    return made


def _probing(folder: Path, probe_s: float = 30.0, longest_probe_s: float = 3600.0) -> Probing:
    plan = parse_plan(TEXT, folder)
    return Probing(plan, TEXT, stack_in(folder), "chat", folder / "out", probe_s, longest_probe_s)


def test_the_first_rate_is_the_plans_mean(runs: _Runs, tmp_path: Path):
    """3, 9, 3 a second for a third each."""
    assert _probing(tmp_path).first_rate() == 5.0


def test_a_probe_holds_the_rate_as_long_as_its_percentile_needs(runs: _Runs, tmp_path: Path):
    """p99 @99% at 2 a second needs hundreds of requests, so minutes; at 200 a second the 30 s are enough."""
    made = _probing(tmp_path)
    made.probe(1, 2.0)
    made.probe(1, 200.0)
    _probing(tmp_path / "short", longest_probe_s=60.0).probe(1, 2.0)

    shapes = [plan.load.shape for plan in runs.plans]
    assert [shape.kind for shape in shapes] == ["hold"] * 3
    assert [shape.rate_per_s for shape in shapes] == [2.0, 200.0, 2.0]
    assert 300 < shapes[0].duration_s < 3600
    assert [shape.duration_s for shape in shapes[1:]] == [30.0, 60.0]
    assert runs.plans[0].load.arrivals.kind == "constant"


def test_a_probe_says_why_it_did_not_pass(runs: _Runs, tmp_path: Path):
    """Its first bad line; and a backlog ends it early, which is a FAIL, not an INVALID."""
    made = _probing(tmp_path)
    passed, failed, given_up = (made.probe(1, rate) for rate in (8.0, 9.0, 40.0))

    assert (passed.verdict, passed.why) == (Verdict.PASS, "")
    assert (failed.verdict, failed.why) == (Verdict.FAIL, "ttft.scheduled p99 < 2s: 3 s is above 2 s")
    assert given_up.verdict is Verdict.FAIL
    assert given_up.why == "800 requests in flight at 40/s, more than 15 s of arrivals"


def test_what_was_found_is_read_back_by_planners(runs: _Runs, tmp_path: Path):
    """The rate with its requests in flight: 30 s of requests in a run of so many seconds."""
    made = _probing(tmp_path)
    search = RateSearch(made.first_rate(), precision=0.2)
    while (rate := search.next_rate()) is not None:
        search.tell(made.probe(2, rate))

    read = read_capacity(made.write({2: search}))

    assert search.passed is not None
    assert read.models["chat"].rates_per_s == {2: search.passed.rate_per_s}
    assert 8.0 / 1.2 <= read.models["chat"].rate(2) <= 8.0
    assert read.models["chat"].concurrency[2] == pytest.approx(30.0 / runs.held_s(search.passed.rate_per_s))
    assert len(read.plan_sha256) == 64
