"""When reserved instances are due: windows from wall clock times, and the floor from the windows. Pure.

Three rules:

- **Windows of one model add up.** Two teams that each reserve 3 get 6 while both windows are open, never more than
  the model's maximum. Windows that follow on one another do not: what counts is the highest sum at any one moment.
- **Instances serve when the window opens**, so the floor looks `lead_s` + 30 s ahead.
- **A wall clock time that daylight saving skips or repeats has two readings.** A window starts at the earlier and
  ends at the later one: it is never shorter than what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from pydantic import ValidationError

from contracts.checked_yaml import in_words
from scaler.deciding.decision import Floor
from scaler.deciding.policy import MAX_INSTANCES, WEEKDAYS, Reservation
from scaler.errors import PolicyInvalid

MARGIN_S = 30.0
"""Beyond the lead time: a start that is a little slower than all those measured is still in time."""
DAY_S = 86400.0
DAYS_BEFORE = 2
"""A window of an earlier local day has ended: it has 24 h, an hour of daylight saving, and the zone's offset."""
WEEK_S = 8 * DAY_S
"""A window on one day of the week is open or starts within it."""


@dataclass(frozen=True)
class Window:
    """One opening of a reservation, from start to before end."""

    name: str
    num_instances: int
    start_unix_s: float
    end_unix_s: float

    def is_open(self, at_s: float) -> bool:
        return self.start_unix_s <= at_s < self.end_unix_s


def floors(
    reservations: Sequence[Reservation], now: float, lead_s: float, max_instances: int = MAX_INSTANCES
) -> Floor | None:
    """How many instances must serve or be starting at `now`; None: nothing is reserved so soon."""
    until_s = now + lead_s + MARGIN_S
    near = [window for item in reservations for window in windows(item, now, until_s)]
    if not near:
        return None
    # The sum only grows where a window opens, so those moments are all that need a look.
    moments = sorted({max(now, window.start_unix_s) for window in near})
    at_s = max(moments, key=lambda moment: _total(near, moment))
    due = [window for window in near if window.is_open(at_s)]
    return Floor(min(_total(near, at_s), max_instances), _reason(due, now, max_instances))


def windows(item: Reservation, from_s: float, until_s: float) -> list[Window]:
    """Those that are open at any moment from `from_s` to `until_s`, in order."""
    around = _windows_of_days(item, int(from_s // DAY_S) - DAYS_BEFORE, int(until_s // DAY_S) + 1)
    return [window for window in around if window.end_unix_s > from_s and window.start_unix_s <= until_s]


def next_window(item: Reservation, now: float) -> Window | None:
    """The open one, else the next; None: it is over."""
    if item.is_recurring:
        return windows(item, now, now + WEEK_S)[0]
    once = _once(item)
    return once if once.end_unix_s > now else None


@lru_cache(maxsize=1024)
def _windows_of_days(item: Reservation, first_day: int, last_day: int) -> tuple[Window, ...]:
    """Of the local days with these numbers (0 is 1970-01-01). Kept, because it is asked for at every tick."""
    if not item.is_recurring:
        return (_once(item),)
    days = (date(1970, 1, 1) + timedelta(days=number) for number in range(first_day, last_day + 1))
    return tuple(_on(item, day) for day in days if WEEKDAYS[day.weekday()] in item.days)


def _on(item: Reservation, day: date) -> Window:
    start, end = item.time_of("start"), item.time_of("end")
    last_day = day if end > start else day + timedelta(days=1)
    return _window(item, _at(item, day, start), _at(item, last_day, end))


def _at(item: Reservation, day: date, clock: time) -> datetime:
    return datetime.combine(day, clock, tzinfo=item.tz)


def _once(item: Reservation) -> Window:
    return _window(item, item.moment_of("start"), item.moment_of("end"))


def _window(item: Reservation, start: datetime, end: datetime) -> Window:
    return Window(item.name, item.min_instances, min(_readings(start)), max(_readings(end)))


def _readings(moment: datetime) -> tuple[float, float]:
    """Equal but for a time that the zone's clock skips (02:30 is 01:30 or 03:30) or shows twice."""
    return moment.replace(fold=0).timestamp(), moment.replace(fold=1).timestamp()


def _total(near: Iterable[Window], at_s: float) -> int:
    return sum(window.num_instances for window in near if window.is_open(at_s))


def _reason(due: Sequence[Window], now: float, max_instances: int) -> str:
    """ "reservations launch 3 + batch 4 (in 118 s) = 7, capped at max 6"."""
    total = sum(window.num_instances for window in due)
    text = f"reservation{'s' if len(due) > 1 else ''} {' + '.join(_named(window, now) for window in due)}"
    if len(due) > 1:
        text += f" = {total}"
    return f"{text}, capped at max {max_instances}" if total > max_instances else text


def _named(window: Window, now: float) -> str:
    until_start_s = window.start_unix_s - now
    when = f" (in {until_start_s:.0f} s)" if until_start_s > 0 else ""
    return f"{window.name} {window.num_instances}{when}"


def read_reservation(**values: object) -> Reservation:
    """Raises PolicyInvalid, in the words of a policy."""
    try:
        return Reservation.model_validate(values)
    except ValidationError as exc:
        schemas = Reservation.model_json_schema()["properties"]
        raise PolicyInvalid([in_words(error, schemas) for error in exc.errors()]) from exc
