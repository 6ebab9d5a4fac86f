"""`tidegate loadtest` as a command: its words, its exit codes, what is shown while it runs."""

from __future__ import annotations

import math
import sys

import pytest

from loadtest.generating.collecting import Progress
from loadtest.records import Request, Status
from tidegate.cli import run
from tidegate.commands.loadtest_live import Figures, LiveDisplay, fullest

PLAN = """
name: peak
load: {kind: open, shape: {kind: hold, rate_per_s: 5, duration_s: 60}}
users: [{name: chat, kind: openai_chat, service: chat}]
slo: ["latency.scheduled p90 < 1s"]
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def test_a_plan_that_lasts_long_enough_is_told_so(plan, capsys):
    """About 300 requests where 29 are needed: exit 0."""
    assert run(["loadtest", "check", str(plan)]) == 0
    assert "needs at least 29" in capsys.readouterr().out


def test_a_plan_that_is_too_short_exits_2(plan, capsys):
    """--set makes it 4 s long."""
    assert run(["loadtest", "check", str(plan), "--set", "load.shape.duration_s=4", "--json"]) == 2
    assert '"is_long_enough":false' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PLAN.replace("name: peak", "nmae: peak"), "nmae = 'peak': no such key; did you mean name?"),
        (PLAN.replace("p90", "p90 p91"), "slo line 1"),
        ("name: [", "no valid YAML"),
    ],
)
def test_a_plan_that_cannot_be_used_is_named_with_its_key_and_exits_2(plan, text, says, capsys):
    """2 is both "wrong command line" and INVALID: nothing can be said."""
    plan.write_text(text)
    assert run(["loadtest", "check", str(plan)]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_plan_and_a_folder_that_is_no_run_are_one_line_each(tmp_path, capsys):
    """Never a traceback."""
    assert run(["loadtest", str(tmp_path / "none.yaml")]) == 2
    assert run(["loadtest", "report", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert ["no such plan" in said[0], "`tidegate loadtest` run" in said[1], len(said)] == [True, True, 2]


def test_without_the_extra_the_way_to_it_is_said(plan, monkeypatch, capsys):
    """aiohttp is missing."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert run(["loadtest", str(plan)]) == 1
    assert "aiohttp is not installed; pip install 'tidegate[loadtest]'" in capsys.readouterr().err


def request(status: Status = Status.OK, first_s: float = 1.25, sent_s: float = 1.0) -> Request:
    return Request(0, 0, "chat", "chat", "", 0, status, "", "", 1.0, sent_s, first_s, 2.0, 0, 0, 0)


def test_the_display_tells_times_from_the_intended_start_and_never_makes_one_up():
    """Before the first answer there is none; an error has no first token."""
    figures = Figures()
    assert "p50 not known yet" in figures.times()
    figures.add(request(Status.ERROR, math.nan))
    assert "p50 not known yet" in figures.times()
    figures.add(request(sent_s=1.004))
    assert "p50 250.0 ms" in figures.times()


def test_rates_are_of_the_time_that_has_passed():
    """60 due in 10 s, 58 of them sent."""
    text = Figures().rates(Progress(10.0, 60, 58, 50, 2, 8))
    assert text == "offered 6.0/s, sent 5.8/s, done 50, in flight 8, failed 2"


def test_the_bar_is_the_fullest_models():
    """chat at 1/4, code at 3/4; one without blocks is left out."""
    chat, code, none = ((("model", name),) for name in ("chat", "code", "none"))
    used = {chat: 25.0, code: 3.0, none: 0.0}
    assert fullest(used, {chat: 100.0, code: 4.0, none: 0.0}) == ("code", 0.75)
    assert fullest({}, {}) is None


def test_without_a_terminal_a_line_says_how_far_it_is(capsys):
    """And none before the first request is due."""
    with LiveDisplay() as display:
        display.progress(Progress(-0.4, 0, 0, 0, 0, 0))
        display.progress(Progress(10.0, 60, 58, 50, 2, 8))
        display.progress(Progress(10.1, 60, 58, 50, 2, 8))
    assert capsys.readouterr().err.count("offered 6.0/s") == 1
