"""What the sampled curve says: peaks between samples, counters, growth, leaks."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.curve import Series
from loadtest.measuring import memory
from loadtest.verdict import Verdict
from tests.unit.loadtest.runs import curve_of, even_run, judged, measured_of, row_of, series, unfinished


def kv_curve(used: list[float], high_water: list[float] | None = None, total: float = 100.0):
    return curve_of(
        series("kv.used_blocks", used),
        series("kv.high_water_blocks", high_water or used),
        series("kv.total_blocks", [total] * len(used)),
    )


def test_a_ceiling_that_was_touched_between_two_samples_is_seen():
    """50 ms at 97 of 100 blocks lie between samples that all say 40; only the high-water mark knows."""
    used = [40.0] * 260
    high_water = [40.0] * 100 + [97.0] + [40.0] * 159
    row = row_of(
        judged(even_run(), "kv.used_ratio max < 0.90", curve=kv_curve(used, high_water)),
        "kv.used_ratio max < 0.90",
    )
    assert (row.value, row.verdict) == (0.97, Verdict.FAIL)


def test_a_peak_in_the_warm_up_counts():
    """A ceiling that was touched was touched, measured window or not."""
    measured = measured_of(even_run(), kv_curve([95.0] + [40.0] * 259))
    assert measured.level("kv.used_ratio", "max") == 0.95
    assert measured.level("kv.used_ratio", "mean") == pytest.approx(0.40)


def test_a_leak_of_one_block_a_request_is_flagged_in_one_run():
    """600 requests, each leaves a block: nothing was asked of the leak, and the run fails all the same."""
    used = [0.0] * 8 + [min(600.0, 10.0 * i / 4) for i in range(240)] + [600.0] * 12
    row = row_of(
        judged(even_run(), "errors rate < 1%", curve=kv_curve(used, total=10_000)), "kv back to baseline"
    )
    assert row.verdict is Verdict.FAIL
    assert "(1 a request)" in row.why


def test_blocks_that_return_late_are_no_leak():
    """Still 50 in use when the last request ends, none two seconds later."""
    used = [0.0] * 8 + [50.0] * 245 + [0.0] * 8
    row = row_of(judged(even_run(), "errors rate < 1%", curve=kv_curve(used)), "kv back to baseline")
    assert (row.value, row.verdict) == (0.0, Verdict.PASS)


def test_a_run_that_was_not_watched_to_its_end_can_not_say_that_nothing_leaked():
    """The last sample lies before the last answer."""
    row = row_of(judged(even_run(), "errors rate < 1%", curve=kv_curve([0.0] * 200)), "kv back to baseline")
    assert row.verdict is Verdict.INVALID


def test_a_look_half_a_second_after_the_last_answer_is_too_early_for_a_leak():
    """The last request ends at 60.4 s, the last sample is of 60.75 s: an idle worker still has its blocks."""
    used = [0.0] * 8 + [50.0] * 244
    row = row_of(judged(even_run(), "errors rate < 1%", curve=kv_curve(used)), "kv back to baseline")
    assert (row.verdict, row.value) == (Verdict.INVALID, None)


def test_what_is_still_in_use_by_unfinished_requests_is_no_leak():
    """One request was open when the run ended, and so were its blocks: nobody knows."""
    used = [0.0] * 8 + [50.0] * 400
    rows = [*even_run(), unfinished(59.95, end_s=80.0)]
    judgement = judged(rows, "kv.leak <= 0", curve=kv_curve(used))
    verdicts = {row_of(judgement, name).verdict for name in ("kv.leak <= 0", "kv back to baseline")}
    assert verdicts == {Verdict.INVALID}


def test_a_counter_that_began_again_is_not_counted_backwards():
    """0, 3, 5, then a new process: 0, 2. Seven in all."""
    curve = curve_of(series("kv.preemptions", [0, 3, 5, 0, 2]))
    assert memory.counted(curve, "kv.preemptions", ()) == 7


def test_a_counter_that_was_seen_once_says_nothing():
    """One sample has no rise; it is not 0."""
    assert memory.counted(curve_of(series("kv.preemptions", [4])), "kv.preemptions", ()) is None


def test_the_ratio_is_that_of_the_fullest_model():
    """One at 20 of 100, one at 9 of 10: 0.9, and 0.2 where the line asks for the first."""
    curve = curve_of(
        series("kv.used_blocks", [20.0] * 5, model="chat"),
        series("kv.total_blocks", [100.0] * 5, model="chat"),
        series("kv.used_blocks", [9.0] * 5, model="small"),
        series("kv.total_blocks", [10.0] * 5, model="small"),
    )
    measured = measured_of(even_run(20), curve)
    assert measured.level("kv.used_ratio", "max") == pytest.approx(0.9)
    assert measured.level("kv.used_ratio", "max", (("model", "chat"),)) == pytest.approx(0.2)


def test_processes_that_came_and_went_add_up_moment_by_moment():
    """A worker of 5 that is replaced by one of 6: never 11, except where both were there."""
    old = Series("rss_bytes", (("process", "worker"), ("pid", "1")), "bytes", np.arange(5.0), np.full(5, 5.0))
    new = Series(
        "rss_bytes", (("process", "worker"), ("pid", "2")), "bytes", np.arange(10.0, 15.0), np.full(5, 6.0)
    )
    _, total = memory.level(curve_of(old, new), "rss_bytes", (("process", "worker"),), 0.0, 20.0)
    assert set(total) == {5.0, 6.0}


def test_memory_that_grows_is_told_from_memory_that_is_noisy():
    """1 MiB/s for 120 s against noise of 1 MiB on 1 GiB."""
    noise = np.random.default_rng(1).normal(0, 2**20, 600)
    t_s = np.arange(600) / 4
    still, growing = 2**30 + noise, 2**30 + noise + 2**20 * t_s
    verdicts = []
    for values in (still, growing):
        curve = curve_of(Series("rss_bytes", (("process", "node"),), "bytes", t_s, values))
        judgement = judged(even_run(1200), "rss.slope <= 0", curve=curve)
        verdicts.append(row_of(judgement, "rss.slope <= 0").verdict)
    assert verdicts == [Verdict.PASS, Verdict.FAIL]


def test_a_queue_that_grows_fails_and_one_that_swings_passes():
    """Waiting requests: half a second's growth each second, against 0 to 4 at random."""
    rng = np.random.default_rng(2)
    swings = rng.integers(0, 5, 520).astype(float)
    grows = swings + np.arange(520) / 8
    verdicts = [
        row_of(
            judged(even_run(1200), "waiting.slope <= 0", curve=curve_of(series("waiting", list(values)))),
            "waiting.slope <= 0",
        ).verdict
        for values in (swings, grows)
    ]
    assert verdicts == [Verdict.PASS, Verdict.FAIL]


def test_a_source_that_fell_silent_makes_its_metrics_invalid():
    """The node was not heard from 20 to 40 s: a maximum of what was heard proves nothing."""
    whole = series("kv.used_blocks", [10.0] * 260)
    heard = (whole.t_s < 20) | (whole.t_s > 40)
    broken = Series(whole.name, whole.labels, whole.unit, whole.t_s[heard], whole.values[heard])
    total = series("kv.total_blocks", [100.0] * 260)
    row = row_of(
        judged(even_run(), "kv.used_ratio max < 0.9", curve=curve_of(broken, total)),
        "kv.used_ratio max < 0.9",
    )
    assert row.verdict is Verdict.INVALID
    assert "no sample from 19.8 to 40.2 s" in row.why


def test_a_mean_is_of_samples_and_not_of_marks():
    """Always 40 of 100 when looked at, 90 in between: on average 40 are used, at most 90."""
    measured = measured_of(even_run(), kv_curve([40.0] * 260, [90.0] * 260))
    assert measured.level("kv.used_ratio", "mean") == pytest.approx(0.4)
    assert measured.level("kv.used_ratio", "max") == pytest.approx(0.9)
