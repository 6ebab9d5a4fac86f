"""Recorded traces: read strictly, replayed whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.recorded import TraceNotFound, find_trace
from contracts.recorded_rows import TraceUnreadable, read_rows
from loadtest.planning.plan import Plan, PlanError
from loadtest.planning.replay import ks_distance, rows_of
from loadtest.planning.schedule import plan_schedule
from tests.unit.loadtest.plans import plan_of

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def _written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def _mooncake(at_ms: float, *blocks: int, tokens: int = 600) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": 9, "hash_ids": blocks})


def _plan(path: Path | str, **load: Any) -> Plan:
    return plan_of({"kind": "replay", "trace": str(path), **load})


def test_azure_burstgpt_and_mooncake_are_read_alike(tmp_path: Path):
    """Two requests 1.5 s apart in each form; second 0 is the first one."""
    azure = _written(
        tmp_path / "a", AZURE, "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:05.4799600,3180,8"
    )
    burst = _written(
        tmp_path / "b", BURST, "5,s1,2,ChatGPT,4808,10,4818,API log", "6.5,,2,GPT-4,3180,8,3188,API log"
    )
    moon = _written(
        tmp_path / "m",
        '{"timestamp": 100, "input_length": 4808, "output_length": 10, "hash_ids": [1]}',
        '{"timestamp": 1600, "input_length": 3180, "output_length": 8, "hash_ids": [1, 2]}',
    )

    for path in (azure, burst, moon):
        rows = read_rows(path)
        assert rows.t_s == pytest.approx([0, 1.5], abs=1e-6)
        assert rows.input_tokens.tolist() == [4808, 3180]
        assert rows.output_tokens.tolist() == [10, 8]
    assert read_rows(azure).start_unix_s == pytest.approx(1700158623.97996)
    assert read_rows(moon).blocks == ((1,), (1, 2))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(
            (AZURE, "2023-11-16 18:17:05,1,1", "2023-11-16 18:17:03,1,1"), "line 3: .*sort it", id="unsorted"
        ),
        pytest.param((AZURE, ",1,1"), "line 2: TIMESTAMP is missing", id="no stamp"),
        pytest.param((AZURE, "yesterday,1,1"), "line 2: .*yesterday", id="no date"),
        pytest.param(
            (AZURE, "2023-11-16 18:17:05,-1,1"), "line 2: ContextTokens = '-1'", id="negative length"
        ),
        pytest.param((AZURE, "2023-11-16 18:17:05,1"), "line 2: GeneratedTokens is missing", id="no length"),
        pytest.param(
            (BURST, "nan,,1,m,1,1,2,x"), "line 2: Timestamp = 'nan', must be a number from 0", id="NaN"
        ),
        pytest.param((BURST, "1,,1,m,1,1,2,x", "-4,,1,m,1,1,2,x"), "line 3: Timestamp = '-4'", id="negative"),
        pytest.param((_mooncake(0), _mooncake(float("nan"))), "line 2: timestamp = nan", id="NaN in JSON"),
        pytest.param(
            (_mooncake(0), '{"input_length": 1}'), "line 2: timestamp is missing", id="no stamp in JSON"
        ),
        pytest.param(
            (_mooncake(5), _mooncake(4)), "line 2: the stamp 0.004 s is earlier", id="unsorted JSON"
        ),
        pytest.param((_mooncake(5), "{"), "line 2: ", id="half a line"),
        pytest.param((_mooncake(5), "[]"), "line 2: is a list, must be an object", id="a list"),
        pytest.param(
            (_mooncake(5).replace("[]", "7"),), "line 1: hash_ids must be a list", id="blocks of no list"
        ),
        pytest.param((AZURE,), "no request in it", id="a header alone"),
        pytest.param(("a,b", "1,2"), "begins 'a,b'; a row a request is", id="another form"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, lines: tuple[str, ...], words: str):
    """Nothing is sorted, guessed or taken as 0."""
    with pytest.raises(TraceUnreadable, match=words):
        read_rows(_written(tmp_path / "bad", *lines))


def test_a_bad_trace_is_an_error_of_the_plan(tmp_path: Path):
    """With file and line, when its schedule is drawn."""
    plan = _plan(_written(tmp_path / "bad.jsonl", _mooncake(5), _mooncake(4)))

    with pytest.raises(PlanError, match=r"load: .*bad.jsonl, line 2"):
        plan_schedule(plan)


def test_a_replay_is_each_request_at_its_moment(tmp_path: Path):
    """Four rows, in order, each with its own row."""
    path = _written(tmp_path / "t.jsonl", *(_mooncake(at) for at in (0, 500, 500, 4000)))

    schedule = plan_schedule(_plan(path))

    assert schedule.t_intended_s.tolist() == [0, 0.5, 0.5, 4.0]
    assert schedule.row.tolist() == [0, 1, 2, 3]
    assert schedule.duration_s == 4.0


def test_a_window_is_what_lies_in_it_from_its_start_on(tmp_path: Path):
    """Rows at 0 to 9 s, the window 3 to 6 s."""
    path = _written(tmp_path / "t.jsonl", *(_mooncake(at * 1000) for at in range(10)))

    schedule = plan_schedule(_plan(path, from_s=3, span_s=3))

    assert schedule.t_intended_s.tolist() == [0, 1, 2, 3]
    assert schedule.row.tolist() == [3, 4, 5, 6]


def test_a_window_without_a_request_is_refused(tmp_path: Path):
    """The trace ends at 1 s."""
    path = _written(tmp_path / "t.jsonl", _mooncake(0), _mooncake(1000))

    with pytest.raises(PlanError, match=r"no request from second 5 .*it is 1 s long"):
        plan_schedule(_plan(path, from_s=5))


def _sessions(path: Path, count: int = 400) -> Path:
    """Each session has three requests 2 s apart; a new one begins every 0.25 s."""
    turns = [(start * 250 + turn * 2000, start, turn) for start in range(count) for turn in range(3)]
    return _written(path, *(_mooncake(at, 0, start * 10 + 1, turn + 7) for at, start, turn in sorted(turns)))


def _gaps_inside(plan: Plan) -> set[tuple[float, ...]]:
    schedule = plan_schedule(plan)
    sessions = rows_of(plan.load.trace).session[schedule.row]
    gaps = set()
    for copy in np.unique(schedule.copy):
        for session in np.unique(sessions):
            times_s = schedule.t_intended_s[(sessions == session) & (schedule.copy == copy)]
            gaps.add(tuple(np.round(np.diff(times_s), 9).tolist()))
    return gaps


def test_time_scale_moves_sessions_together_and_never_squeezes_one(tmp_path: Path):
    """At half the time sessions begin every 0.125 s, and their turns are 2 s apart as before."""
    plan = _plan(_sessions(tmp_path / "s.jsonl"), time_scale=0.5)

    schedule = plan_schedule(plan)

    assert schedule.t_intended_s[:3].tolist() == [0, 0.125, 0.25]
    assert _gaps_inside(plan) <= {(2.0, 2.0), (2.0,), ()}  # those that begin last are cut by the end


def test_thinning_keeps_whole_sessions(tmp_path: Path):
    """0.3 of 400 sessions: about 120 of them, none in part."""
    plan = _plan(_sessions(tmp_path / "s.jsonl"), rate_scale=0.3)

    schedule = plan_schedule(plan)
    sessions = rows_of(plan.load.trace).session[schedule.row]

    assert 90 <= len(np.unique(sessions)) <= 150
    assert len(schedule) == 3 * len(np.unique(sessions))
    assert _gaps_inside(plan) == {(2.0, 2.0)}


def test_superposing_adds_copies_that_are_moved_and_whole(tmp_path: Path):
    """2.5 times: the first copy as recorded, the others each session moved by up to 5 s; none squeezed."""
    plan = _plan(_sessions(tmp_path / "s.jsonl"), rate_scale=2.5, spread_s=5)

    schedule = plan_schedule(plan)
    first = schedule.t_intended_s[schedule.copy == 0]

    assert first.tolist() == plan_schedule(_plan(tmp_path / "s.jsonl")).t_intended_s.tolist()
    assert len(schedule) == pytest.approx(2.5 * len(first), rel=0.06)
    assert _gaps_inside(plan) <= {(2.0, 2.0), (2.0,), ()}
    assert (np.diff(schedule.t_intended_s) >= 0).all()
    assert schedule.t_intended_s.min() >= 0
    assert schedule.t_intended_s.max() <= schedule.duration_s


def test_ks_distance_is_the_largest_gap_of_the_two_shares():
    """Equal: 0. One of four arrivals a second late: a quarter. Nothing: refused."""
    recorded = np.array([0.0, 1.0, 2.0, 3.0])

    assert ks_distance(recorded, recorded) == 0
    assert ks_distance(np.array([0.0, 1.0, 2.0, 4.0]), recorded) == 0.25
    with pytest.raises(ValueError, match="0 offered and 4 recorded"):
        ks_distance(np.empty(0), recorded)


@pytest.mark.parametrize("name", ["conv23", "code23", "mooncake", "mooncake-synthetic"])
@pytest.mark.parametrize(("scale", "limit"), [(1.0, 0.0), (3.0, 0.01)])
def test_what_is_offered_of_a_real_trace_has_its_arrivals(name: str, scale: float, limit: float):
    """KS distance of offered and recorded arrivals: 0 as recorded, below 0.01 with two copies moved by 10 s."""
    try:
        find_trace(name, Path())
    except TraceNotFound as exc:
        pytest.skip(str(exc))
    plan = _plan(name, rate_scale=scale)

    schedule = plan_schedule(plan)

    assert len(schedule) == pytest.approx(scale * len(rows_of(plan.load.trace)), rel=0.01)
    assert ks_distance(schedule.t_intended_s, rows_of(plan.load.trace).t_s) <= limit
