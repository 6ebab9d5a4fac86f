"""Reservations: windows from wall clock times, daylight saving included, and the floor that they ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.deciding.policy import WEEKDAYS, Reservation
from scaler.deciding.reservations import MARGIN_S, Window, floors, next_window, read_reservation, windows
from scaler.errors import PolicyInvalid

BERLIN = "Europe/Berlin"
HOUR_S = 3600.0
DAY_S = 86400.0


def unix(text: str) -> float:
    """Of a moment that is written with its offset."""
    return datetime.fromisoformat(text).timestamp()


def reserved(start: str, end: str, num: int = 3, name: str = "launch", **more: object) -> Reservation:
    return read_reservation(start=start, end=end, min_instances=num, name=name, **more)


def opened(item: Reservation, day: str) -> list[tuple[str, str]]:
    """The windows that start on that UTC day, in UTC."""
    from_s = unix(f"{day}T00:00Z")
    starting = [each for each in windows(item, from_s, from_s + DAY_S) if from_s <= each.start_unix_s]
    return [(clock(each.start_unix_s), clock(each.end_unix_s)) for each in starting]


def clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%dT%H:%M")


# --- windows ---


def test_a_daily_window_is_in_its_own_zone() -> None:
    """09:00 to 17:00 in Berlin is 08:00 to 16:00 UTC in winter and an hour earlier in summer."""
    item = reserved("09:00", "17:00", zone=BERLIN)
    assert opened(item, "2026-12-01") == [("01T08:00", "01T16:00")]
    assert opened(item, "2026-07-01") == [("01T07:00", "01T15:00")]


def test_a_window_that_ends_before_it_starts_ends_on_the_next_day() -> None:
    """22:00 to 06:00 on fridays: open on saturday at 05:59, not on sunday."""
    item = reserved("22:00", "06:00", days=["fri"])
    assert opened(item, "2026-12-04") == [("04T22:00", "05T06:00")]
    assert floors([item], unix("2026-12-05T05:59:00Z"), 0) is not None
    assert floors([item], unix("2026-12-05T06:00:00Z"), 0) is None
    assert floors([item], unix("2026-12-06T05:59:00Z"), 0) is None


def test_days_are_those_of_the_zone() -> None:
    """Monday 08:00 in Auckland is sunday 19:00 UTC."""
    item = reserved("08:00", "09:00", zone="Pacific/Auckland", days=["mon"])
    assert opened(item, "2026-11-29") == [("29T19:00", "29T20:00")]
    assert opened(item, "2026-11-30") == []


def test_a_window_of_almost_a_day_far_west_is_found_on_its_last_minute() -> None:
    """23:59 to 23:58 on the 1st in Honolulu is open at 09:57 UTC on the 3rd."""
    item = reserved("23:59", "23:58", zone="Pacific/Honolulu", days=["tue"])
    assert floors([item], unix("2026-12-03T09:57:00Z"), 0) is not None
    assert floors([item], unix("2026-12-03T09:58:00Z"), 0) is None


def test_once_is_once() -> None:
    """Open on the 24th, over afterwards; an offset in the text wins over the zone."""
    item = reserved("2026-12-24T18:00", "2026-12-26T02:00", zone=BERLIN)
    assert opened(item, "2026-12-24") == [("24T17:00", "26T01:00")]
    assert next_window(item, unix("2026-12-26T00:59Z")) is not None
    assert next_window(item, unix("2026-12-26T01:00Z")) is None
    with_offset = reserved("2026-12-24T18:00+00:00", "2026-12-24T19:00+00:00", zone=BERLIN)
    assert opened(with_offset, "2026-12-24") == [("24T18:00", "24T19:00")]


def test_a_start_that_the_clock_skips_is_read_early_and_an_end_late() -> None:
    """2026-03-29 in Berlin has no 02:30: as a start it is 00:30 UTC (01:30 CET), as an end 01:30 (03:30 CEST)."""
    assert opened(reserved("02:30", "05:00", zone=BERLIN), "2026-03-29") == [("29T00:30", "29T03:00")]
    assert opened(reserved("00:30", "02:30", zone=BERLIN), "2026-03-28") == [("28T23:30", "29T01:30")]
    assert opened(reserved("02:15", "02:45", zone=BERLIN), "2026-03-29") == [("29T00:15", "29T01:45")]


def test_a_time_that_the_clock_shows_twice_starts_at_the_first_and_ends_at_the_second() -> None:
    """2026-10-25 in Berlin: 02:30 is 00:30 UTC and again 01:30 UTC."""
    assert opened(reserved("02:30", "05:00", zone=BERLIN), "2026-10-25") == [("25T00:30", "25T04:00")]
    assert opened(reserved("00:30", "02:30", zone=BERLIN), "2026-10-24") == [("24T22:30", "25T01:30")]
    assert opened(reserved("02:15", "02:45", zone=BERLIN), "2026-10-25") == [("25T00:15", "25T01:45")]


def test_once_follows_the_same_rule() -> None:
    """From 02:15 to 02:45 on the day that has 02:15 twice."""
    item = reserved("2026-10-25T02:15", "2026-10-25T02:45", zone=BERLIN)
    assert opened(item, "2026-10-25") == [("25T00:15", "25T01:45")]


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-12-01", 24)])
def test_a_day_of_23_or_25_hours_is_covered_whole(day: str, hours: int) -> None:
    """00:00 to 12:00 and 12:00 to 00:00 meet at noon and at midnight, whatever the clock does at night."""
    morning, rest = reserved("00:00", "12:00", zone=BERLIN), reserved("12:00", "00:00", zone=BERLIN)
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN))
    next_midnight = midnight + timedelta(days=1)
    assert (next_midnight.timestamp() - midnight.timestamp()) / HOUR_S == hours
    for minute in range(hours * 60):
        floor = floors([morning, rest], midnight.timestamp() + 60 * minute, -MARGIN_S)
        assert floor is not None
        assert floor.num_instances == 3, minute


def test_a_night_window_is_an_hour_shorter_or_longer_when_the_clock_changes() -> None:
    """22:00 to 06:00 in Berlin: 7, 9 and 8 hours."""
    item = reserved("22:00", "06:00", zone=BERLIN)
    for day, hours in (("2026-03-28", 7), ("2026-10-24", 9), ("2026-11-30", 8)):
        (window,) = windows(item, unix(f"{day}T12:00Z"), unix(f"{day}T23:00Z"))
        assert (window.end_unix_s - window.start_unix_s) / HOUR_S == hours


ZONES = st.sampled_from(
    [BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "UTC"]
)
MINUTES = st.integers(0, 1439)
MOMENTS = st.floats(unix("2026-01-01T00:00Z"), unix("2027-12-31T00:00Z"))


def hhmm(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


@given(ZONES, MINUTES, MINUTES, st.sets(st.sampled_from(WEEKDAYS), min_size=1), MOMENTS)
@settings(deadline=None, max_examples=300)
def test_whenever_the_wall_clock_is_inside_the_window_is_open(
    zone: str, start: int, end: int, days: set[str], moment: float
) -> None:
    """Read off the wall clock; and never open more than 61 minutes (a changed clock) outside of it."""
    if start == end:
        return
    item = reserved(hhmm(start), hhmm(end), zone=zone, days=sorted(days))
    is_open = any(each.is_open(moment) for each in windows(item, moment, moment))
    if is_inside(item, start, end, moment):
        assert is_open
    elif is_open:
        assert any(is_inside(item, start, end, moment + 60 * off) for off in range(-61, 62))


def is_inside(item: Reservation, start: int, end: int, moment: float) -> bool:
    local = datetime.fromtimestamp(moment, item.tz)
    minute = local.hour * 60 + local.minute
    today, yesterday = WEEKDAYS[local.weekday()], WEEKDAYS[local.weekday() - 1]
    if start < end:
        return today in item.days and start <= minute < end
    return (today in item.days and start <= minute) or (yesterday in item.days and minute < end)


@given(ZONES, MINUTES, MINUTES, st.sets(st.sampled_from(WEEKDAYS), min_size=1), MOMENTS)
@settings(deadline=None, max_examples=200)
def test_a_recurring_reservation_always_has_a_next_window(
    zone: str, start: int, end: int, days: set[str], moment: float
) -> None:
    """Once a week at least: it is open or opens within 7 days and the hour of a changed clock."""
    if start == end:
        return
    window = next_window(reserved(hhmm(start), hhmm(end), zone=zone, days=sorted(days)), moment)
    assert window is not None
    assert window.end_unix_s > moment
    assert window.start_unix_s - moment <= 7 * DAY_S + HOUR_S


# --- the floor ---


def test_the_floor_rises_the_lead_time_and_30_s_before_the_window() -> None:
    """Start-up 120 s, window at 09:00:00: nothing at 08:57:29, 3 at 08:57:30, 3 until 10:00:00."""
    item = reserved("09:00", "10:00")
    assert floors([item], unix("2026-12-01T08:57:29Z"), 120) is None
    floor = floors([item], unix("2026-12-01T08:57:30Z"), 120)
    assert floor is not None
    assert (floor.num_instances, floor.reason) == (3, "reservation launch 3 (in 150 s)")
    floor = floors([item], unix("2026-12-01T09:59:59Z"), 120)
    assert floor is not None
    assert floor.reason == "reservation launch 3"
    assert floors([item], unix("2026-12-01T10:00:00Z"), 120) is None


def test_overlapping_windows_add_up() -> None:
    """Two teams that each reserve 3 get 6 from 09:30 to 10:00."""
    items = [reserved("09:00", "10:00"), reserved("09:30", "10:30", name="batch")]
    counts = []
    for minute in (15, 45, 75, 90):
        floor = floors(items, unix("2026-12-01T09:00:00Z") + 60 * minute, 0)
        counts.append(floor.num_instances if floor else 0)
    assert counts == [3, 6, 3, 0]
    floor = floors(items, unix("2026-12-01T09:29:50Z"), 0)
    assert floor is not None
    assert (floor.num_instances, floor.reason) == (6, "reservations launch 3 + batch 3 (in 10 s) = 6")


def test_the_sum_stops_at_the_maximum_and_says_so() -> None:
    """4 + 4 of at most 6."""
    items = [reserved("09:00", "10:00", 4), reserved("09:00", "10:00", 4, name="batch")]
    floor = floors(items, unix("2026-12-01T09:30:00Z"), 0, max_instances=6)
    assert floor is not None
    assert floor.num_instances == 6
    assert floor.reason == "reservations launch 4 + batch 4 = 8, capped at max 6"


def test_windows_that_follow_on_one_another_do_not_add_up() -> None:
    """08:00 to 09:00 and 09:00 to 10:00, lead time 5 minutes: 3 at 08:58, not 6; 5 where the second needs 5."""
    early, late = reserved("08:00", "09:00"), reserved("09:00", "10:00", 5, name="late")
    floor = floors([early, reserved("09:00", "10:00")], unix("2026-12-01T08:58:00Z"), 300)
    assert floor is not None
    assert floor.num_instances == 3
    floor = floors([early, late], unix("2026-12-01T08:58:00Z"), 300)
    assert floor is not None
    assert (floor.num_instances, floor.reason) == (5, "reservation late 5 (in 120 s)")


SPANS = st.tuples(st.integers(0, 60), st.integers(1, 15), st.integers(1, 5))


@given(st.lists(SPANS, min_size=1, max_size=5), st.floats(0, 4500), st.floats(0, 1200))
@settings(deadline=None, max_examples=200)
def test_the_floor_is_the_highest_sum_from_now_to_the_lead_time_ahead(
    spans: list[tuple[int, int, int]], offset_s: float, lead_s: float
) -> None:
    """Windows of 1 to 15 minutes within an hour, checked against adding up at every second."""
    items = [reserved(hhmm(start), hhmm(start + length), num) for start, length, num in spans]
    now = unix("2026-12-01T00:00Z") + offset_s
    last_s = now + lead_s + MARGIN_S
    every = [window for item in items for window in windows(item, now, last_s)]
    moments = [now, *range(int(now) + 1, int(last_s) + 1)]
    floor = floors(items, now, lead_s)
    assert (floor.num_instances if floor else 0) == max(total(every, moment) for moment in moments)


def total(every: list[Window], moment: float) -> int:
    return sum(window.num_instances for window in every if window.is_open(moment))


def test_a_reservation_over_the_api_is_refused_in_a_policys_words() -> None:
    """Key, value and what is allowed."""
    with pytest.raises(PolicyInvalid) as caught:
        reserved("09:00", "17:00", 0, zone="Asia/Shangai")
    assert "min_instances = 0, must be a whole number from 1 to 1000" in caught.value.problems
    assert any(
        "zone = 'Asia/Shangai'" in problem and "Asia/Shanghai" in problem for problem in caught.value.problems
    )
