"""What stands around a run: where it goes, what the plan would send, what the folder keeps, what is said of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.stack import Stack
from loadtest.curve import Curve, Series, Source
from loadtest.planning.plan import Plan, PlanError, parse_plan
from loadtest.planning.schedule import plan_schedule
from loadtest.records import columns_of
from loadtest.running.errors import FolderTaken, FolderUnreadable, TargetUnknown
from loadtest.running.folder import Facts, create_folder, default_folder, read_raw, write_raw
from loadtest.running.forecast import forecast
from loadtest.running.machine import fingerprint
from loadtest.running.overrides import override
from loadtest.running.preflight import num_streams
from loadtest.running.target import resolve_target
from loadtest.watching.gaps import source_notes, source_problems

PLAN = """
name: peak
load: {kind: open, shape: {kind: hold, rate_per_s: 5, duration_s: 60}, arrivals: {kind: constant}}
users:
  - {name: chat, kind: openai_chat, service: chat}
  - {name: embed, kind: grpc_tensors, service: embed}
"""


def plan_of(text: str = PLAN) -> Plan:
    return parse_plan(text, Path())


# --- the target ---


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """Written as `tidegate up` does, with this process as its launcher."""
    written = Stack(
        pid=os.getpid(),
        run_dir=str(tmp_path),
        node_socket=str(tmp_path / "control.sock"),
        triton_http="127.0.0.1:8000",
        triton_grpc="127.0.0.1:8001",
        triton_metrics="127.0.0.1:8002",
        gateway_http="127.0.0.1:9000",
        gateway_grpc="127.0.0.1:9001",
        models=[],
        pids={},
        started_unix_s=0.0,
    )
    (tmp_path / "stack.json").write_bytes(msgspec.json.encode(written))
    return written


def with_target(target: str) -> Plan:
    return plan_of(f"{PLAN}target: {target}\n")


def test_what_the_plan_leaves_out_is_the_running_stacks(stack):
    """The gateway's two doors, Triton's metrics, the node's socket."""
    plan, found = resolve_target(with_target(f"{{run_dir: {stack.run_dir}}}"))
    assert (plan.target.http, plan.target.grpc) == ("http://127.0.0.1:9000", "127.0.0.1:9001")
    assert plan.target.triton_metrics == "127.0.0.1:8002"
    assert str(plan.target.node_socket) == stack.node_socket
    assert found == stack


def test_an_address_that_the_plan_gives_stays(stack):
    """gRPC past the gateway."""
    plan, _ = resolve_target(with_target(f"{{run_dir: {stack.run_dir}, grpc: '127.0.0.1:8001'}}"))
    assert plan.target.grpc == "127.0.0.1:8001"


def test_another_servers_run_has_none_of_the_local_stacks_memory(stack, monkeypatch):
    """Its KV curve would be shown beside the wrong server's latencies."""
    monkeypatch.setenv("TIDEGATE_RUN_DIR", stack.run_dir)
    plan, found = resolve_target(with_target("{http: 'http://10.0.0.7:80', grpc: '10.0.0.7:81'}"))
    assert (plan.target.node_socket, found) == (None, None)


def test_the_local_stack_is_known_by_its_own_address(stack, monkeypatch):
    """The plan writes out what it would have found."""
    monkeypatch.setenv("TIDEGATE_RUN_DIR", stack.run_dir)
    plan, found = resolve_target(with_target("{http: 'http://127.0.0.1:9000'}"))
    assert found == stack
    assert plan.target.grpc == "127.0.0.1:9001"


def test_a_target_that_nobody_names_says_which_key_and_which_command(tmp_path, monkeypatch):
    """No stack, no address."""
    monkeypatch.setenv("TIDEGATE_RUN_DIR", str(tmp_path))
    with pytest.raises(TargetUnknown, match=r"user chat needs target\.http.*`tidegate up`"):
        resolve_target(plan_of())


def test_a_stack_whose_launcher_is_gone_does_not_count(stack, tmp_path):
    """It was killed and left its file."""
    left = msgspec.structs.replace(stack, pid=2**22 + 1)
    (tmp_path / "stack.json").write_bytes(msgspec.json.encode(left))
    with pytest.raises(TargetUnknown):
        resolve_target(with_target(f"{{run_dir: {stack.run_dir}}}"))


# --- one value changed for one run ---


def test_settings_change_one_value_each_and_stand_in_the_plans_first_line():
    """A number deep down, an entry of a list, a section that was not there."""
    text = override(PLAN, ["load.shape.rate_per_s=7.5", "users.1.service=other", "memory.hz=20"])
    plan = plan_of(text)
    assert (plan.load.shape.rate_per_s, plan.users[1].service, plan.memory.hz) == (7.5, "other", 20)
    assert text.startswith("# with load.shape.rate_per_s=7.5, users.1.service=other, memory.hz=20\n")


def test_without_settings_the_plan_stays_letter_by_letter():
    """Comments and all."""
    assert override("# mine\nname: x\n", []) == "# mine\nname: x\n"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("load.shape", "must read like load.shape.rate_per_s=5"),
        ("users.9.service=x", "9 is no place in a list of 2"),
        ("name.first=x", "name has no keys"),
    ],
)
def test_a_setting_that_cannot_be_made_is_refused(setting, says):
    """With the setting's own text."""
    with pytest.raises(PlanError, match=says):
        override(PLAN, [setting])


# --- what would be sent ---


def test_a_plan_that_is_too_short_for_its_percentile_says_how_long_would_do():
    """300 requests; p99 at 99 % needs 459, so 92 s at 5/s; at 95 %, the default, 299 are enough."""
    found = forecast(plan_of(f"{PLAN}slo: ['latency.scheduled p99 < 1s @99%', 'latency.service p99 < 1s']\n"))
    assert found.num_requests == 300
    assert [demand.is_met for demand in found.demands] == [False, True]
    assert found.demands[0].needed_duration_s == pytest.approx(91.8)
    assert not found.is_long_enough
    assert "92 s at this rate would do" in found.lines()[1]


def test_time_to_first_token_counts_streams_alone():
    """About half of the users' requests are embeddings, which have none."""
    found = forecast(plan_of(f"{PLAN}slo: ['ttft.scheduled p90 < 1s']\n"))
    assert found.demands[0].expected == found.by_user["chat"] < 200


def test_a_share_needs_as_many_requests_as_the_percentile_that_it_is():
    """Under 1 % errors is p99 of "went well": 299 at 95 %; none at all, or a count, needs no sample size."""
    lines = "['errors rate < 1%', 'goodput >= 0.99', 'errors count == 0', 'kv.used_ratio max < 0.9']"
    found = forecast(plan_of(f"{PLAN}slo: {lines}\n"))
    assert [demand.needed for demand in found.demands] == [299, 299]


def test_how_many_requests_a_closed_loop_sends_is_not_made_up():
    """Its rate is what comes of it."""
    closed = PLAN.replace(PLAN.splitlines()[2], "load: {kind: closed, concurrency: 4, duration_s: 60}")
    found = forecast(plan_of(f"{closed}slo: ['latency.scheduled p90 < 1s']\n"))
    assert (found.num_requests, found.demands[0].expected, found.is_long_enough) == (None, None, True)


def test_open_requests_are_reckoned_from_the_busiest_ten_seconds():
    """5 a second, evenly: 50 or 51 begin within any ten."""
    plan = plan_of()
    assert num_streams(plan_schedule(plan), plan) in (50, 51)


# --- the folder ---


def test_a_run_without_rows_and_samples_is_read_as_one(tmp_path):
    """It was given up before the first request."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    write_raw(tmp_path, None, None, Facts(name="peak", started_unix_s=1.0, problems=["the target is down"]))
    plan, requests, curve, facts = read_raw(tmp_path)
    assert (plan.name, len(requests), curve.series) == ("peak", 0, ())
    assert facts.problems == ["the target is down"]


def test_facts_with_figures_that_are_none_come_back(tmp_path):
    """A generator process that sent nothing has no delay: NaN, which JSON does not have."""
    (tmp_path / "plan.yaml").write_text(PLAN)
    facts = Facts(name="peak", started_unix_s=1.0, processes=[{"dispatch_delay_p99_s": float("nan")}])
    write_raw(tmp_path, columns_of([]), Curve((), ()), facts)
    assert json.loads((tmp_path / "run.json").read_text())["processes"] == [{"dispatch_delay_p99_s": None}]
    assert read_raw(tmp_path)[3].name == "peak"


def test_a_folder_of_something_else_is_refused(tmp_path):
    """No run.json; rows that are none; a folder that is in use is not taken."""
    with pytest.raises(FolderUnreadable, match=r"is .* the folder of a `tidegate loadtest` run"):
        read_raw(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    write_raw(tmp_path, None, None, Facts(name="peak", started_unix_s=1.0))
    (tmp_path / "requests.parquet").write_bytes(b"no rows")
    with pytest.raises(FolderUnreadable, match="can't be read as a run"):
        read_raw(tmp_path)
    with pytest.raises(FolderTaken, match="is not empty"):
        create_folder(tmp_path)


def test_a_runs_folder_has_the_plans_name_and_the_time():
    """`runs/peak-YYYYMMDD-HHMMSS`; a plan may name its own."""
    assert default_folder(plan_of(), 0.0).parent == Path("runs")
    assert default_folder(plan_of(), 0.0).name.startswith("peak-19")
    assert default_folder(plan_of(f"{PLAN}run: there\n"), 0.0) == Path("there")


def test_a_fingerprint_is_of_what_is_said_not_of_its_order():
    """And of nothing it is nothing, which equals nothing."""
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})
    assert fingerprint({}) == ""


# --- samples that are missing ---


def node_curve(t_s: list[float], failures: int = 0, error: str = "") -> Curve:
    series = Series("pool.used_bytes", (), "bytes", np.array(t_s), np.zeros(len(t_s)))
    return Curve((series,) if t_s else (), (Source("node", len(t_s), failures, error),))


def test_a_node_that_was_silent_for_three_seconds_makes_the_run_doubtful():
    """From 4 to 7.5 s nobody saw the KV cache."""
    times = [*np.arange(-2, 4.1, 0.5), *np.arange(7.5, 10.1, 0.5)]
    (problem,) = source_problems(node_curve(times, 3, "no answer"), ended_s=10.0)
    assert "node was silent from 4.0 to 7.5 s: no answer" in problem


def test_silence_before_the_load_and_after_it_is_no_doubt():
    """It answered at -3 s, from 0.5 to 9.5 s of 10, and again at 15 s."""
    assert source_problems(node_curve([-3.0, *np.arange(0.5, 9.6, 0.5), 15.0]), ended_s=10.0) == []


def test_a_node_that_never_answered_is_a_problem_and_other_sources_are_notes():
    """Triton's metrics were off: its one figure is missing, and no more."""
    assert "gave no sample" in source_problems(node_curve([], 9, "refused"), 10.0)[0]
    triton = Curve((), (Source("triton", 0, 5, "connection refused"),))
    assert source_problems(triton, 10.0) == []
    assert source_notes(triton) == ["source triton: 5 of 5 tries failed: connection refused"]
