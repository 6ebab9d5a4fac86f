"""Each row of the launch checklist, decided from evidence that is written down here."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.capacity import Capacity, CapacityUnreadable, ModelCapacity, read_capacity
from contracts.stack import ServedModel
from ledger.revisions import Revision
from loadtest.curve import Curve, Series
from loadtest.planning.launch import Backups
from loadtest.planning.plan import Plan, parse_plan
from loadtest.planning.rates import RateCurve
from loadtest.verdict import Judgement, Row, Verdict
from tests.unit.loadtest.stacks import stack_in
from tidegate.launch_check.alerts import check_alerts
from tidegate.launch_check.backups import InForce, LedgerCopy, check_backups
from tidegate.launch_check.gather import ledger_copy, served_by
from tidegate.launch_check.load_verdict import RunEvidence, check_load
from tidegate.launch_check.memory_room import check_memory
from tidegate.launch_check.row import joined, worst
from tidegate.launch_check.scaling import Bounds, ScalingEvidence, check_scaling, longest_wait_s
from tidegate.launch_check.way_back import RouteEvidence, check_way_back, last_rollback

NOW_S = 1_000_000.0
HOUR_S = 3600.0
PASS, FAIL, INVALID = Verdict.PASS, Verdict.FAIL, Verdict.INVALID

PLAN = """
name: peak
load: {kind: open, shape: {kind: hold, rate_per_s: 5, duration_s: 60}}
users: [{name: chat, kind: openai_chat, service: chat}]
slo: ["errors rate < 1%"]
"""


def plan_of(text: str = PLAN) -> Plan:
    return parse_plan(text, Path())


def judged(verdict: Verdict, expression: str = "errors rate < 1%", why: str = "0 of 300") -> Row:
    return Row(expression, 0.0, 0.01, "ratio", None, None, 300, None, verdict, why)


# --- how rows come together ---


def test_a_row_has_its_worst_finding_and_says_only_what_is_wrong():
    """A list with one FAIL among passes names that one."""
    row = joined("x", [(PASS, "fine"), (FAIL, "broken"), (PASS, "fine too")])
    assert (row.verdict, row.evidence) == (FAIL, "broken")


def test_nothing_looked_at_is_invalid_and_invalid_comes_before_fail():
    """Doubt is not better than a known fault: both must be seen to."""
    assert worst([]) is INVALID
    assert worst([PASS, FAIL, INVALID]) is INVALID
    assert worst([PASS, PASS]) is PASS


# --- load ---


def run_of(verdict: Verdict = PASS, age_h: float = 1.0, plan: str = PLAN, commit: str = "abc") -> RunEvidence:
    started = NOW_S - age_h * HOUR_S
    return RunEvidence(
        Path("runs/peak-1"), plan_of(plan), started, commit, "f1", Judgement((judged(verdict),))
    )


@pytest.mark.parametrize(
    ("run", "verdict", "says"),
    [
        (run_of(), PASS, "ended PASS"),
        (run_of(FAIL), FAIL, r"errors rate < 1%: 0 of 300"),
        (run_of(INVALID), INVALID, "ended INVALID"),
        (run_of(age_h=25), INVALID, "older than verdict_max_age_h = 24"),
        (run_of(plan=PLAN.replace("rate_per_s: 5", "rate_per_s: 4")), INVALID, r"another plan \(load differ"),
        (run_of(plan=PLAN.replace("1%", "9%")), INVALID, r"another plan \(slo differ"),
        (run_of(commit="old"), INVALID, "commit was old and is abc"),
        (run_of(commit=""), INVALID, "commit of the run is not known"),
        (None, INVALID, "no run of peak was found"),
    ],
)
def test_only_a_fresh_run_of_this_plan_on_this_code_counts(run, verdict, says):
    """What is not known to be the same is INVALID: the evidence may be of something else."""
    row = check_load(plan_of(), run, "abc", "f1", NOW_S)
    assert row.verdict is verdict
    assert re.search(says, row.evidence), row.evidence


def test_two_dirty_checkouts_of_one_commit_are_not_the_same():
    """The name says nothing of what was changed."""
    row = check_load(plan_of(), run_of(commit="abc-dirty"), "abc-dirty", "f1", NOW_S)
    assert row.verdict is INVALID
    assert "commit them" in row.evidence


# --- memory ---


def curve_of(high: float, total: float = 100, preempted: float = 0) -> Curve:
    t_s, labels = np.array([0.0, 1.0, 2.0]), (("model", "chat"),)

    def series(name: str, *values: float, of: tuple[tuple[str, str], ...] = labels) -> Series:
        return Series(name, of, "blocks", t_s, np.array(values))

    return Curve(
        (
            series("kv.high_water_blocks", 0, high, 0),
            series("kv.total_blocks", total, total, total),
            series("pool.high_water_bytes", 0, 10, 0, of=()),
            series("pool.total_bytes", 100, 100, 100, of=()),
            series("kv.preemptions", 0, preempted, preempted),
        ),
        (),
    )


def test_the_highest_moment_decides_however_short_it_was():
    """95 of 100 blocks in one sample, 90 allowed."""
    row = check_memory(curve_of(high=95), 0.10, judged(PASS, "kv.leak <= 0"))
    assert row.verdict is FAIL
    assert "chat: at most 95 of 100 blocks (95.0%), leaving less than memory_margin = 0.1" in row.evidence


def test_exactly_the_margin_is_enough():
    """90 of 100."""
    assert check_memory(curve_of(high=90), 0.10, judged(PASS, "kv.leak <= 0")).verdict is PASS


def test_a_preemption_is_a_failure_though_there_was_room_in_the_samples():
    """Two sequences lost their blocks."""
    row = check_memory(curve_of(high=50, preempted=2), 0.10, judged(PASS, "kv.leak <= 0"))
    assert (row.verdict, "2 sequences lost" in row.evidence) == (FAIL, True)


def test_a_leak_fails_and_an_unjudged_one_is_invalid():
    """What the load test found of blocks that did not come back."""
    leak = judged(FAIL, "kv.leak <= 0", "300 blocks did not come back after 300 requests")
    assert "300 blocks did not come back" in check_memory(curve_of(high=50), 0.10, leak).evidence
    assert check_memory(curve_of(high=50), 0.10, None).verdict is INVALID


def test_without_samples_nothing_is_said_of_memory():
    """A run against a server of others."""
    assert check_memory(Curve((), ()), 0.10, None).verdict is INVALID


# --- scaling ---

HOLD = RateCurve.through([(0, 5), (60, 5)])
STEP = RateCurve.through([(0, 2), (30, 2), (30, 6), (90, 6)])


def evidence(low: int = 1, high: int = 3, lead_s: float | None = 4.0) -> ScalingEvidence:
    capacity = Capacity(
        plan="peak",
        measured_unix_s=NOW_S,
        models={"chat": ModelCapacity(rates_per_s={1: 2.5, 2: 4.5, 3: 6.0})},
    )
    return ScalingEvidence({"chat": Bounds(low, high, 3.0, lead_s)}, capacity)


def test_a_maximum_that_does_not_bear_the_peak_names_the_one_that_does():
    """2 instances bear 4.5/s, 5/s are expected."""
    row = check_scaling(evidence(low=2, high=2), HOLD, 5.0, 1e9)
    assert row.verdict is FAIL
    assert "max_instances: 3 bears it" in row.evidence


def test_beyond_what_was_measured_nothing_is_made_up():
    """8 instances are allowed, 3 were measured: their 6/s are all that is known."""
    row = check_scaling(evidence(low=3, high=8), HOLD, 7.0, 1e9)
    assert row.verdict is FAIL
    assert "bear up to 6/s as measured" in row.evidence
    assert "no measured count bears it (up to 3)" in row.evidence


def test_a_step_queues_for_the_hold_and_the_lead_and_a_higher_minimum_ends_that():
    """From 2/s to 6/s with one instance (2.5/s): for 7 s 3.5/s too many, 24.5 requests, 24.5 / 2.5 = 9.8 s of wait
    when the others come."""
    found = evidence()
    bounds, capacity = found.bounds["chat"], found.capacity.models["chat"]
    assert longest_wait_s(capacity, bounds, STEP, 1) == pytest.approx(9.8, rel=0.05)
    row = check_scaling(found, STEP, 6.0, 2.0)
    assert row.verdict is FAIL
    assert "min_instances: 3 would do" in row.evidence


def test_a_slow_rise_makes_nobody_wait():
    """One more request a second every 100 s; 7 s of lead are nothing to it."""
    slow = RateCurve.through([(0, 1), (500, 6)])
    assert check_scaling(evidence(), slow, 6.0, 2.0).verdict is PASS


def test_an_unknown_lead_time_and_an_unnamed_model_are_said():
    """No start was ever seen; and a policy that forgot chat."""
    assert check_scaling(evidence(lead_s=None), HOLD, 5.0, 2.0).verdict is INVALID
    forgot = ScalingEvidence({}, evidence().capacity)
    assert "chat has no policy" in check_scaling(forgot, HOLD, 5.0, 2.0).evidence


def test_a_closed_loop_needs_its_peak_said():
    """Its rate is what comes of it."""
    assert check_scaling(evidence(), None, None, 2.0).verdict is INVALID
    assert check_scaling(evidence(high=3), None, 5.5, 2.0).verdict is PASS


def test_a_capacity_file_that_is_none_is_named(tmp_path):
    """A missing one, and one of another tool."""
    with pytest.raises(CapacityUnreadable, match="`tidegate capacity` writes one"):
        read_capacity(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"qps": 3}')
    with pytest.raises(CapacityUnreadable, match="can't be read as a capacity file"):
        read_capacity(tmp_path / "other.json")


# --- rollback ---


def revision(number: int, percent: float | None, age_h: float) -> Revision:
    """chat goes from v1 to v2, which has so many percent; None: no rollout at all."""
    if percent is None:
        text = "services: {chat: {versions: [{name: chat, percent: 100}]}}"
    else:
        old = f"{{name: v1, model: chat, percent: {100 - percent:g}}}"
        new = f"{{name: v2, percent: {percent:g}}}"
        rollout = "{previous: v1, next: v2}"
        text = f"services: {{chat: {{versions: [{old}, {new}], rollout: {rollout}}}}}"
    return Revision("routes", number, NOW_S - age_h * HOUR_S, "ada", "anything", text)


REHEARSED = [revision(4, 100, 1), revision(3, 0, 2), revision(2, 50, 3), revision(1, None, 4)]


def routes(history, served=("chat", "v2"), pinned=("chat",)) -> RouteEvidence:
    return RouteEvidence(history, "no ledger", set(served), None if pinned is None else set(pinned))


@pytest.mark.parametrize(
    ("found", "verdict", "says"),
    [
        (routes(REHEARSED), PASS, "rolled back in revision 3, 2.0 h ago"),
        (routes(REHEARSED, served=("v2",)), FAIL, "v1 is model chat, which is not served"),
        (routes(REHEARSED, pinned=()), FAIL, "not pinned"),
        (routes([revision(2, 100, 1), revision(1, 50, 2)]), FAIL, "no rollback in 2 revisions"),
        (routes([revision(1, None, 1)]), FAIL, "no previous version"),
        (routes([]), FAIL, "no previous version"),
        (routes(None), INVALID, "no ledger"),
    ],
)
def test_a_way_back_is_routed_served_pinned_and_rehearsed(found, verdict, says):
    """What a revision did counts, not what its author called it."""
    row = check_way_back(("chat",), found, 24 * HOUR_S, NOW_S)
    assert row.verdict is verdict
    assert says in row.evidence


def test_a_rehearsal_of_last_year_does_not_count():
    """30 days are allowed, it was 400 ago."""
    history = [revision(3, 100, 1), revision(2, 0, 400 * 24), revision(1, 50, 401 * 24)]
    row = check_way_back(("chat",), routes(history), 30 * 24 * HOUR_S, NOW_S)
    assert row.verdict is FAIL
    assert "400.0 days ago, longer than rehearsed_within_h" in row.evidence


def test_starting_a_rollout_at_nothing_is_no_rollback():
    """v2 begins at 0 %: it never had a call to give back."""
    assert last_rollback("chat", [revision(2, 0, 1), revision(1, None, 2)]) == (0, 0.0)


def test_a_change_of_another_service_after_the_rollback_makes_it_no_younger():
    """chat stays at 0 % in revision 3; it went there in revision 2."""
    history = [revision(3, 0, 1), revision(2, 0, 5), revision(1, 50, 6)]
    assert last_rollback("chat", history) == (2, NOW_S - 5 * HOUR_S)


def test_a_plan_may_say_that_no_way_back_is_wanted():
    """way_back: [] is written down by somebody, and so it passes."""
    assert check_way_back((), routes(None), HOUR_S, NOW_S).verdict is PASS


# --- backups ---


@pytest.fixture
def copies(tmp_path: Path) -> Backups:
    (tmp_path / "routes.yaml").write_text("services: {}\n")
    (tmp_path / "policy.yaml").write_text("models: {chat: {max_instances: 3}}\n")
    database = tmp_path / "ledger.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE revisions (kind TEXT, number INTEGER)")
        connection.execute("CREATE TABLE keys (id TEXT)")
        connection.execute("INSERT INTO revisions VALUES ('routes', 7)")
        connection.execute("INSERT INTO keys VALUES ('k')")
    connection.close()
    return Backups(routes=tmp_path / "routes.yaml", policy=tmp_path / "policy.yaml", ledger=database)


IN_FORCE = InForce("# the same\nservices: {}", "models:\n  chat:\n    max_instances: 3\n", 7)


def check(copies: Backups, in_force: InForce = IN_FORCE, copy: LedgerCopy | None = None):
    found = copy or ledger_copy(copies.ledger)
    made = found.made_unix_s if found else 0.0
    return check_backups(copies, in_force, found, made + HOUR_S)


def test_copies_that_read_as_what_is_in_force_pass_whatever_their_layout(copies):
    """The ledger's copy is opened: whole, one key, routes to revision 7."""
    row = check(copies)
    assert row.verdict is PASS, row.evidence
    assert "whole, 1 keys, routes to revision 7" in row.evidence


def test_a_copy_of_older_routes_fails_by_content_not_by_date(copies):
    """The file is newer than the routes, and of before them."""
    copies.routes.write_text("services: {chat: {versions: [{name: chat, percent: 100}]}}\n")
    row = check(copies)
    assert row.verdict is FAIL
    assert "routes.yaml is not the routes that is in force" in row.evidence


def test_a_copy_that_cannot_be_restored_fails(copies):
    """A ledger cut in half, a policy that is no YAML."""
    data = copies.ledger.read_bytes()
    copies.ledger.write_bytes(data[: len(data) // 2])
    copies.policy.write_text("models: {")
    row = check(copies)
    assert row.verdict is FAIL
    assert "the copy of the policy can't be restored" in row.evidence
    assert "the copy of the ledger can't be restored" in row.evidence


def test_a_ledger_copy_of_before_the_last_change_fails(copies):
    """It has revision 7, 8 is in force."""
    row = check(copies, InForce(IN_FORCE.routes_text, IN_FORCE.policy_text, 8))
    assert "and 8 is in force; copy it anew" in row.evidence


def test_missing_copies_fail_and_what_is_not_in_force_needs_none():
    """No scaler policy and no routes: the ledger alone has something to lose."""
    row = check_backups(Backups(), InForce("", "", 0), None, NOW_S)
    assert row.verdict is FAIL
    assert "no copy of the ledger" in row.evidence
    assert "routes" not in row.evidence.replace("launch.backups", "")


def test_what_is_in_force_must_be_known(copies):
    """No ledger answers, so a copy proves nothing."""
    row = check(copies, InForce(None, IN_FORCE.policy_text, None, "the ledger can't be read: locked"))
    assert row.verdict is INVALID
    assert "locked" in row.evidence


# --- alerts ---


def answer(*rules: tuple[str, str]) -> dict[str, object]:
    entries = [{"type": "alerting", "name": name, "health": health} for name, health in rules]
    return {"data": {"groups": [{"rules": [*entries, {"type": "recording", "name": "r", "health": "ok"}]}]}}


@pytest.mark.parametrize(
    ("found", "wanted", "verdict", "says"),
    [
        (answer(("TtftHigh", "ok")), ("TtftHigh",), PASS, "1 loaded"),
        (answer(("TtftHigh", "ok")), ("TtftHigh", "KvFull"), FAIL, "not loaded: KvFull (there are TtftHigh)"),
        (answer(("TtftHigh", "err")), (), FAIL, "TtftHigh (health err)"),
        (answer(), (), FAIL, "has no alert rule"),
        ({"status": "error"}, (), INVALID, "did not answer as Prometheus does"),
    ],
)
def test_alert_rules_are_loaded_and_healthy(found, wanted, verdict, says):
    """A recording rule wakes nobody."""
    row = check_alerts("http://p:9090", found, "", wanted)
    assert row.verdict is verdict
    assert says in row.evidence


def test_without_prometheus_the_row_says_how_to_name_it():
    """Not silently fine."""
    assert check_alerts(None, None, "", ()).verdict is INVALID
    assert check_alerts("http://p:9090", None, "no answer", ()).evidence == "no answer"


def test_a_model_that_triton_serves_alone_is_served_and_has_no_weights_to_pin(tmp_path):
    """It was called not served, for stack.json names only models with weights of ours."""
    chat = ServedModel(name="chat", kind="generate", weights="chat-weights", path="/models/chat")
    stack = msgspec.structs.replace(stack_in(tmp_path), gateway_http="127.0.0.1:9", models=[chat])
    config = {"triton_grpc": "x:1", "models": [chat], "batch_models": ["echo"]}
    (tmp_path / "gateway.json").write_bytes(msgspec.json.encode(config))

    assert served_by(stack) == ({"chat", "echo"}, {"echo"})
    assert served_by(None) == (set(), set())
