"""How long a plan must run for what its SLO lines ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.judging.expression import parse_all
from loadtest.judging.lengths import needs_of, steady_needs_s
from loadtest.planning.plan import check_plan

HERE = Path()
CHAT = {"name": "chat", "kind": "openai_chat", "service": "chat", "weight": 3}
EMBED = {"name": "embed", "kind": "openai_embeddings", "service": "embed", "weight": 1}


def plan_of(**changes):
    load = {
        "kind": "open",
        "shape": {"kind": "hold", "rate_per_s": 20, "duration_s": 60},
        "arrivals": {"kind": "constant"},
    }
    return check_plan({"name": "peak", "load": load, "users": [CHAT, EMBED], **changes}, HERE)


def test_a_plan_is_told_how_long_it_must_run():
    """p99.9 at 99 % needs 4,603 requests: 230 s at 20 a second, and the minute has 1,200."""
    (need,) = needs_of(plan_of(), parse_all(["latency.scheduled p99.9 < 2s @99%"]))
    assert (need.n_needed, need.n_expected, need.is_enough) == (4603, 1200, False)
    assert need.run_needed_s == pytest.approx(4603 / 20, rel=0.01)
    assert need.n_likely > 2 * need.n_needed


def test_a_scope_has_its_share_of_the_requests():
    """Three of four are chat; what is cut off the beginning counts for nobody."""
    plan = plan_of(warm_up={"least_s": 30})
    needs = needs_of(
        plan, parse_all(["ttft.scheduled{user=chat} p99 < 2s", "latency.scheduled{service=embed} p50 < 2s"])
    )
    assert needs[0].n_expected == pytest.approx(450, rel=0.1)
    assert needs[1].n_expected == pytest.approx(150, rel=0.2)


def test_every_turn_of_a_conversation_is_a_request():
    """Conversations of three turns."""
    plan = plan_of(users=[{**CHAT, "turns": 3}])
    assert needs_of(plan, parse_all(["errors rate < 1%"]))[0].n_expected == 3600


def test_lines_that_speak_of_one_run_need_no_number():
    """Peaks, counts and `== 0`."""
    assert (
        needs_of(
            plan_of(), parse_all(["kv.preemptions == 0", "errors rate == 0", "latency.service max < 9s"])
        )
        == ()
    )


def test_a_closed_loop_sends_as_many_as_the_server_lets_it():
    """The need is known, the number is not."""
    plan = plan_of(load={"kind": "closed", "concurrency": 8, "duration_s": 60})
    (need,) = needs_of(plan, parse_all(["goodput >= 99%"]))
    assert (need.n_needed, need.n_expected, need.is_enough, need.run_needed_s) == (299, None, None, None)


def test_steady_state_needs_twelve_bins_where_it_is_asked():
    """A minute has bins of 2.5 s."""
    assert steady_needs_s(plan_of()) == 30.0
    assert steady_needs_s(plan_of(warm_up={"steady": "off"})) is None
