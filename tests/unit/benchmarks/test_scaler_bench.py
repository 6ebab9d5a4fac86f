"""The scaler's benchmark: which replays, and what it does without traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scaler
from benchmarks.scaler import BURSTS, OURS, PEAK, RESERVED, WEEKS, Job


def test_each_week_is_replayed_at_four_start_up_times_and_against_each_rival():
    """Ours at 30, 60, 120 and 300 s, seven rivals at 120 s; quick is 120 s alone."""
    jobs = list(scaler.jobs(quick=False))

    for week in WEEKS:
        assert {job.startup_s for job in jobs if job.trace == week and job.policy == OURS} == {
            30,
            60,
            120,
            300,
        }
        assert len({job.policy for job in jobs if job.trace == week}) == 8
    assert len(set(jobs)) == len(jobs)
    assert all(job.startup_s == 120 for job in scaler.jobs(quick=True) if job.trace in WEEKS)


def test_a_trace_that_is_not_here_is_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty folder: all three, each with its file."""
    monkeypatch.setenv("TIDEGATE_TRACES", str(tmp_path))

    for name in (*WEEKS, BURSTS):
        assert "no such file" in (scaler.missing(name) or "")


@pytest.mark.parametrize("startup_s", [60.0, 300.0])
def test_nobody_is_late_in_a_reserved_peak(startup_s: float):
    """×3 for half an hour, with the start-up time measured before: 0 late; without the reservation some are."""
    reserved = scaler.measured(Job(PEAK, RESERVED, startup_s))
    unreserved = scaler.measured(Job(PEAK, OURS, startup_s))

    assert reserved == {f"late_share_reserved_{startup_s:g}s": (0.0, "share")}
    assert unreserved[f"late_share_unreserved_{startup_s:g}s"][0] > 0.01
