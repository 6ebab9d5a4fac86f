"""Whole runs against a scripted server and a scripted node: what went wrong ends INVALID or FAIL, never PASS.

Each keeps what was measured. Real processes, no Triton.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from loadtest.mock_server import Script
from loadtest.planning.plan import parse_plan
from loadtest.records import Request, Status
from loadtest.run import Quiet, run_plan
from loadtest.running.result import RunResult, conclude
from loadtest.running.stopping import stopped_by_signals
from loadtest.testing import RunningMock, running_mock
from loadtest.verdict import Row, Verdict
from tests.integration.fake_node import NUM_BLOCKS, fake_node

pytestmark = pytest.mark.integration

RATE_PER_S = 40
FILES = {
    "plan.yaml",
    "requests.parquet",
    "curve.parquet",
    "run.json",
    "verdict.json",
    "junit.xml",
    "report.html",
}

PLAN = """
name: mock
load: {{kind: open, shape: {{kind: hold, rate_per_s: {rate}, duration_s: {duration_s}}}}}
users: [{{name: chat, kind: openai_chat, service: chat, output_tokens: 4}}]
target: {{http: "{http}"{node}}}
warm_up: {{steady: "off"}}
drain_s: 2
generator: {{processes: 1, request_timeout_s: 5}}
memory: {{baseline_s: 0.3, settle_s: {settle_s}, hz: 20}}
slo: [{slo}]
"""
SLO = '"latency.scheduled p50 < 1s", "errors rate < 50%"'


def plan_text(
    mock: RunningMock,
    *,
    rate: float = RATE_PER_S,
    duration_s: float = 2,
    node: Path | None = None,
    slo: str = SLO,
) -> str:
    socket = f", node_socket: '{node}'" if node else ""
    return PLAN.format(
        rate=rate, duration_s=duration_s, http=mock.http, node=socket, slo=slo, settle_s=2 if node else 0
    )


class AtRequest(Quiet):
    """Does something when so many requests have ended."""

    def __init__(self, number: int, then: Callable[[], None]) -> None:
        self._left, self._then = number, then

    def request(self, request: Request) -> None:
        self._left -= 1
        if self._left == 0:
            self._then()


def run(text: str, folder: Path, observer: Quiet | None = None) -> RunResult:
    return run_plan(parse_plan(text, folder), folder, plan_text=text, observer=observer)


def row(result: RunResult, name: str) -> Row:
    return next(each for each in result.judgement.rows if each.expression.startswith(name))


@pytest.fixture(scope="module")
def mock():
    with running_mock(Script()) as started:
        yield started


def test_a_run_in_which_all_went_well_passes_and_leaves_its_folder(mock, tmp_path):
    """Beside all that follow: the same plan, an honest server. Judged again from its files it is the same.

    How late the generator was is this machine's affair at the moment, so the two rows about that may be INVALID.
    """
    result = run(plan_text(mock), tmp_path / "run")
    others = [
        each for each in result.judgement.rows if each.expression not in ("generator", "dispatch on time")
    ]
    assert {each.verdict for each in others} == {Verdict.PASS}, others
    assert {path.name for path in result.folder.iterdir()} == FILES
    assert conclude(result.folder).judgement == result.judgement


def test_a_run_in_which_every_request_failed_is_not_judged(tmp_path):
    """The figures describe an error path."""
    with running_mock(Script(fail_every=1)) as broken:
        result = run(plan_text(broken, duration_s=1), tmp_path / "run")
    assert result.judgement.verdict is Verdict.INVALID
    assert set(result.requests.status) == {Status.ERROR}
    assert row(result, "every route answered").verdict is Verdict.INVALID
    assert row(result, "errors rate").verdict is Verdict.FAIL


def test_a_run_without_a_single_request_is_not_judged(mock, tmp_path):
    """One request in a thousand seconds; in one second none."""
    result = run(plan_text(mock, rate=0.001, duration_s=1), tmp_path / "run")
    assert (result.judgement.verdict, len(result.requests)) == (Verdict.INVALID, 0)
    assert {path.name for path in result.folder.iterdir()} == FILES


def test_a_server_that_dies_never_passes(tmp_path):
    """After 0.7 s of 2; its requests from then on are errors."""
    with running_mock(Script(dies_at_s=0.7)) as dying:
        result = run(plan_text(dying, slo='"errors rate < 10%"'), tmp_path / "run")
    assert row(result, "errors rate").verdict is Verdict.FAIL
    assert result.judgement.verdict is not Verdict.PASS
    assert (result.requests.status == Status.OK).any()


def test_a_generator_that_dies_is_told_and_its_rows_are_kept(mock, tmp_path):
    """kill -9 after 20 answers: what it should have sent is not sent, and nobody takes that for a quiet server."""

    def kill_it() -> None:
        for child in psutil.Process().children(recursive=True):
            if "loadtest.generating.process" in child.cmdline():
                child.kill()

    result = run(plan_text(mock), tmp_path / "run", AtRequest(20, kill_it))
    assert result.judgement.verdict is Verdict.INVALID
    assert "died" in row(result, "generator").why
    assert (result.requests.status == Status.OK).sum() >= 20
    assert row(result, "arrivals as drawn").verdict is Verdict.INVALID


def test_a_target_that_is_not_there_is_invalid_before_anything_is_sent(mock, tmp_path):
    """Nobody listens; the folder says why."""
    with running_mock(Script()) as gone:
        text = plan_text(gone)
    result = run(text, tmp_path / "run")
    assert result.judgement.verdict is Verdict.INVALID
    assert "is the target up, and target.http right?" in row(result, "generator").why
    assert json.loads((result.folder / "verdict.json").read_text())["verdict"] == "INVALID"


def test_an_slo_that_cannot_be_read_is_invalid_before_anything_is_sent(mock, tmp_path):
    """Not ten minutes later."""
    result = run(plan_text(mock, slo='"ttft.scheduld p99 < 1s"'), tmp_path / "run")
    assert (result.judgement.verdict, len(result.requests)) == (Verdict.INVALID, 0)
    assert "did you mean ttft.scheduled" in result.problems[0]


def test_ctrl_c_keeps_what_was_measured_and_ends_invalid(mock, tmp_path):
    """A run of a minute, interrupted at the twentieth answer; a second Ctrl-C would end the process as ever."""
    text, said = plan_text(mock, duration_s=60), []
    before = signal.getsignal(signal.SIGINT)
    with stopped_by_signals(said.append) as stop:
        interrupt = AtRequest(20, lambda: os.kill(os.getpid(), signal.SIGINT))
        result = run_plan(
            parse_plan(text, tmp_path), tmp_path / "run", plan_text=text, observer=interrupt, stop=stop
        )
        assert signal.getsignal(signal.SIGINT) == before
    assert result.judgement.verdict is Verdict.INVALID
    assert "the run was stopped by hand" in result.problems
    assert (result.requests.status == Status.OK).sum() >= 20
    assert result.ended_s < 60
    assert {path.name for path in result.folder.iterdir()} == FILES
    assert len(said) == 1


# --- memory ---

MEMORY_SLO = '"kv.used_ratio max < 90%"'


@pytest.fixture
def node(tmp_path):
    with fake_node(tmp_path) as (started, socket):
        yield started, socket


def test_a_ceiling_that_is_touched_for_50_ms_is_seen(mock, node, tmp_path):
    """All 100 blocks between two samples, once in the run; before and after none."""
    started, socket = node

    def touch() -> None:
        started.lease(NUM_BLOCKS)
        threading.Timer(0.05, started.release_all).start()

    text = plan_text(mock, node=socket, slo=MEMORY_SLO).replace("hz: 20", "hz: 4")
    result = run(text, tmp_path / "run", AtRequest(30, touch))
    assert row(result, "kv.used_ratio").value == 1.0
    assert row(result, "kv.used_ratio").verdict is Verdict.FAIL
    assert row(result, "kv back to baseline").verdict is Verdict.PASS


def test_a_leak_of_one_block_a_request_is_flagged_in_one_run(mock, node, tmp_path):
    """80 requests, 80 blocks that never come back; the ceiling is not even near."""
    started, socket = node

    class Leaking(Quiet):
        def request(self, request: Request) -> None:
            started.lease(1)

    text = plan_text(mock, node=socket, slo='"errors rate < 50%"')
    result = run(text, tmp_path / "run", Leaking())
    leak = row(result, "kv back to baseline")
    assert leak.verdict is Verdict.FAIL
    assert leak.value == len(result.requests)
    assert "(1 a request)" in leak.why


def test_a_node_that_goes_silent_makes_the_run_doubtful(mock, tmp_path):
    """Its socket is closed in the middle: whether the ceiling was touched after that, nobody knows."""
    with fake_node(tmp_path) as (_, socket):
        stop = threading.Event()

        def go() -> None:
            stop.set()

        text = plan_text(mock, node=socket, duration_s=4, slo=MEMORY_SLO)
        done: list[RunResult] = []
        thread = threading.Thread(target=lambda: done.append(run(text, tmp_path / "run", AtRequest(20, go))))
        thread.start()
        assert stop.wait(30)
    thread.join(60)
    (result,) = done
    assert result.judgement.verdict is Verdict.INVALID
    assert "memory source node was silent" in row(result, "generator").why
