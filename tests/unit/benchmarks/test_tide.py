"""The tide bench's day, its sender's honesty, and the figures taken from a day."""

import random

import pytest

from benchmarks.clients import Streamed
from benchmarks.tide import report
from benchmarks.tide_chat import Waves
from benchmarks.tide_chat import figures as chat_figures
from benchmarks.tide_day import Day, Stage
from benchmarks.tide_decisions import Event, crossed_since_s, reactions
from benchmarks.tide_figures import Sample, Side, waiting_at
from benchmarks.tide_load import Call, Sent
from benchmarks.tide_sides import ScaledSide

DAY = Day(10.0, (Stage(60), Stage(100, crest=10), Stage(40)))


def call(due_s: float, started_s: float, ended_s: float, pid: int = 1, rows: int = 1) -> Call:
    return Call(due_s, started_s, ended_s, ended_s + 0.001, pid, rows)


def test_a_wave_rises_from_the_valley_to_its_crest_and_back():
    """10/s, 100/s in the middle of the wave, 10/s again; 55/s a quarter into it."""
    rates = [DAY.rate_per_s(at_s) for at_s in (0, 59.9, 85, 110, 160, 199)]
    assert rates == pytest.approx([10, 10, 55, 100, 10, 10])
    assert DAY.seconds == 200


def test_valley_and_peak_are_told_by_the_rate():
    """The slopes are neither."""
    assert [DAY.is_valley(at_s) for at_s in (10, 85, 110, 190)] == [True, False, False, True]
    assert [DAY.is_peak(at_s) for at_s in (10, 85, 110, 190)] == [False, False, True, False]


def test_arrivals_follow_the_rate_and_the_seed():
    """600 in the first valley's minute, 5,500 in the wave, the same ones for the same seed."""
    times = Day(100.0, DAY.stages).arrivals(random.Random(7))
    assert times == Day(100.0, DAY.stages).arrivals(random.Random(7))
    assert times == sorted(times)
    assert sum(at_s < 60 for at_s in times) == pytest.approx(6000, rel=0.05)
    assert sum(60 <= at_s < 160 for at_s in times) == pytest.approx(55000, rel=0.02)


def test_the_seconds_of_a_batch_count_once_however_many_requests_were_in_it():
    """Two requests in one batch of 2 s and one alone for 1 s, on one instance for 10 s: 30 % busy."""
    calls = [call(0, 1, 3, rows=2), call(0.5, 1, 3, rows=2), call(4, 5, 6)]
    side = Side(Day(1.0, (Stage(10),)), Sent(calls), [Sample(0, 1, 1), Sample(10, 1, 1)])
    assert side.utilization == pytest.approx(0.3)
    assert side.mean_rows == pytest.approx(1.5)


def test_what_runs_past_the_days_end_does_not_count_for_it():
    """A batch from 9 s to 12 s of a day of 10 s: 1 s of it, of 10 instance-seconds."""
    side = Side(Day(1.0, (Stage(10),)), Sent([call(9, 9, 12)]), [Sample(0, 1, 1), Sample(14, 1, 1)])
    assert side.utilization == pytest.approx(0.1)


def test_an_instance_costs_until_it_is_gone():
    """One for 4 s, three for 2 s of which one drains, one for 4 s: 14 instance-seconds, 4 in the second half."""
    samples = [Sample(0, 1, 1), Sample(4, 3, 2), Sample(6, 1, 1), Sample(10, 1, 1)]
    side = Side(Day(1.0, (Stage(10),)), Sent(), samples)
    assert side.instance_seconds() == pytest.approx(14)
    assert side.instance_seconds(lambda at_s: at_s >= 5) == pytest.approx(4)
    assert side.most_instances == 3


def test_waiting_counts_from_when_a_request_was_due():
    """Due at 1 s, on the device at 3 s: it waited 2 s, whenever it was sent."""
    calls = [call(1, 3, 4), call(2, 3, 4), call(5, 5, 6)]
    side = Side(Day(1.0, (Stage(10),)), Sent(calls), [])
    assert side.p99_wait_s() == 2
    assert side.p99_wait_s(lambda due_s: due_s > 4) == 0
    assert waiting_at(calls, [0, 1, 2.5, 3, 5]) == [0, 1, 2, 0, 0]


def test_a_late_sender_makes_the_day_invalid():
    """2 of 100 requests 50 ms late: the 99th percentile is; 1 of 100 is borne."""
    on_time = Side(DAY, Sent(late_s=[0.001] * 99 + [0.050]), [])
    late = Side(DAY, Sent(late_s=[0.001] * 98 + [0.050] * 2), [])
    assert on_time.invalid_because() is None
    assert (late.invalid_because() or "").startswith(
        "INVALID: the sender itself was late, 50.0 ms at the 99th percentile; at most 10 ms"
    )


def event(at_s: float, before: int, wanted: int, cause: str, words: str = "") -> Event:
    direction = "out" if wanted > before else "in" if wanted < before else "hold"
    return Event(at_s, before, wanted, direction, cause, words)


HELD = event(11, 1, 1, "holding", "tide stays 1: util 0.90 ≥ 0.84 for 0 s of 1 s")
OUT = event(12, 1, 3, "pressure", "tide 1→3: util 0.90 ≥ 0.84 for 1 s")


def test_a_reaction_is_from_the_holds_end_to_the_last_new_instances_first_batch():
    """Crossed at 11 s, held for 1 s, two instances that begin at 12.3 and 12.4 s: 400 ms."""
    calls = [
        call(1, 1, 2, pid=1),
        call(12, 12.3, 13, pid=2),
        call(12, 12.4, 13, pid=3),
        call(12, 13, 14, pid=2),
    ]
    (reaction,) = reactions([event(5, 1, 1, "steady"), HELD, OUT], calls, hold_s=1.0, cooldown_out_s=3.0)
    assert (reaction.due_s, reaction.decided_s, reaction.serving_s) == (12, 12, 12.4)
    assert reaction.seconds == pytest.approx(0.4)


def test_a_cooldown_that_is_not_over_puts_off_when_a_scale_out_is_due():
    """Out at 10 s, crossed again at 11 s, cooldown 3 s: due at 13 s."""
    again = event(13.2, 2, 3, "pressure", "tide 2→3: util 0.90 ≥ 0.84 for 2 s")
    calls = [call(12, 12.3, 13, pid=2), call(13, 13.5, 14, pid=3)]
    found = reactions([event(10, 1, 2, "pressure"), HELD, again], calls, hold_s=1.0, cooldown_out_s=3.0)
    assert [reaction.due_s for reaction in found] == [11, 13]
    assert found[1].seconds == pytest.approx(0.5)


def test_a_scale_out_whose_instances_never_served_before_the_next_change_is_no_reaction():
    """Taken back at 14 s, before the second new instance had anything to do."""
    taken_back = event(14, 3, 2, "surplus")
    calls = [call(12, 12.3, 13, pid=2), call(15, 15, 16, pid=3)]
    assert reactions([HELD, OUT, taken_back], calls, hold_s=1.0, cooldown_out_s=3.0) == []


def test_a_threshold_that_was_uncrossed_in_between_is_crossed_since_the_last_time():
    """Holding at 5 s, steady at 6 s, holding at 11 s: since 11 s."""
    events = [event(5, 1, 1, "holding", "util 0.85 ≥ 0.84"), event(6, 1, 1, "steady"), HELD, OUT]
    assert crossed_since_s(events, OUT) == 11


def side(num_instances: int, waited_s: float, late_s: float = 0.001) -> Side:
    """200 s of `DAY`, one request a second that waited so long and took 0.5 s."""
    calls = [call(at_s, at_s + waited_s, at_s + waited_s + 0.5) for at_s in range(190)]
    samples = [Sample(0, num_instances, num_instances), Sample(200, num_instances, num_instances)]
    return Side(DAY, Sent(calls, late_s=[late_s] * 190), samples)


def test_the_report_compares_both_sides():
    """Eight instances against two: a quarter of the instance-seconds, four times as busy, 1.5 times the waiting."""
    made = report(side(8, 0.2), ScaledSide(side(2, 0.3), []), ScaledSide(side(2, 0.3), []), {}, {})
    values = {name: figure["value"] for name, figure in made["figures"].items()}
    assert values["valley_saving"] == pytest.approx(0.75)
    assert values["instance_seconds_share"] == pytest.approx(0.25)
    assert values["utilization_mean"] == pytest.approx(4 * values["utilization_static"])
    assert values["p99_wait_over_static"] == pytest.approx(1.5)
    assert values["failed_requests"] == 0
    assert made["skipped"] == {}
    assert "threshold_to_serving_p95_ms" not in values


def test_a_report_of_a_late_sender_says_nothing_of_waiting():
    """50 ms late on one side: neither side's waiting is told, and why not."""
    late = ScaledSide(side(2, 0.3, late_s=0.05), [])
    made = report(side(8, 0.2), late, ScaledSide(side(2, 0.3), []), {}, {})
    assert not [name for name in made["figures"] if "wait" in name]
    assert made["skipped"]["waiting, scaled"].startswith("INVALID")


def streamed(text: str, num_tokens: int = 48, error: str = "") -> Streamed:
    return Streamed(0.0, texts=[text], num_tokens=num_tokens, finish_reason="length", error=error)


def test_chats_are_compared_answer_by_answer():
    """Two answers, one of them another: 0.96 of the speed, 1.25 of the CPU, one differs, none failed."""
    fixed = Waves([streamed("a"), streamed("b")], seconds=1.0, cpu_s=2.0)
    scaled = Waves([streamed("a"), streamed("c")], seconds=1.0 / 0.96, cpu_s=2.5, num_changes=3)
    values = {name: figure.value for name, figure in chat_figures([fixed], [scaled]).items()}
    assert values["chat_throughput_over_fixed"] == pytest.approx(0.96)
    assert values["chat_cpu_over_fixed"] == pytest.approx(1.25)
    assert (values["chat_answers_differing"], values["chat_failed_requests"]) == (1, 0)
    assert values["chat_changes"] == 3
