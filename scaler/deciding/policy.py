"""The policy: what the scaler may do to each model, and when. Checked whole before any of it is used.

A policy file is YAML: `models: {NAME: {...}}`, with `defaults:` for what all share. Every key has a default; an
unknown key is refused with the nearest one that exists.
"""

from __future__ import annotations

import difflib
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from contracts.checked_yaml import in_words, load_yaml
from scaler.errors import PolicyInvalid

MAX_INSTANCES = 1000
"""Of one model over all nodes; a node has a limit of its own."""
MAX_SECONDS = 7 * 86400.0

Count = Annotated[int, Field(ge=0, le=MAX_INSTANCES)]
Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ScaleOut(_Strict):
    """Any one of these, for its hold, and there are too few instances. None: not looked at."""

    utilization: Share | None = 0.70
    queue: Annotated[float, Field(gt=0, le=1e6)] | None = 20
    queue_per_instance: bool = False
    """`queue` (here and in scale_in) counts per instance instead of in total."""
    queue_time_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    concurrency: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Requests waiting or running, per instance."""
    kv_occupancy: Share | None = None
    hold_s: Seconds = 3.0
    """Of all but utilisation: requests wait, so act."""
    utilization_hold_s: Seconds = 30.0
    """Full instances are no emergency while nothing waits, and utilisation is noisy: at 3 s that noise costs a
    tenth of the instance hours of Azure's code week."""


class ScaleIn(_Strict):
    """All of these for the whole `cooldown_in_s`, and there are too many; or what the survivors' rule says."""

    utilization: Share = 0.30
    queue: Annotated[float, Field(ge=0, le=1e6)] = 5
    survivors_utilization: Share | None = 0.60
    """Also scale in when, after the highest demand of the last `window_s`, those that stay would be busy at most so
    much. None: only the thresholds above."""
    window_s: Seconds = 300.0


class Forecast(_Strict):
    """A floor one lead time ahead. It only ever raises."""

    enabled: bool = True
    season_s: Annotated[float, Field(ge=60, le=MAX_SECONDS)] = 86400.0
    bin_s: Annotated[float, Field(ge=1, le=3600)] = 60.0


class Reservation(_Strict):
    """At least `min_instances` from `start` to `end`: every day or on `days`, or once.

    `start` and `end` are both times of the day ("09:00"; an end before the start is on the next day), or both dates
    with a time ("2026-12-24T18:00"). Wall clock times of `zone`.
    """

    name: Annotated[str, Field(min_length=1, max_length=64)] = "unnamed"
    start: str
    end: str
    zone: str = "UTC"
    days: tuple[Weekday, ...] = WEEKDAYS
    min_instances: Annotated[int, Field(ge=1, le=MAX_INSTANCES)]

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value not in available_timezones():
            near = difflib.get_close_matches(value, available_timezones(), n=1)
            raise ValueError(f"no such time zone{f'; did you mean {near[0]}?' if near else ''} (IANA names)")
        return value

    @model_validator(mode="after")
    def _window_is_one(self) -> Self:
        if self.is_recurring:
            if self.time_of("start") == self.time_of("end"):
                raise ValueError(f"start and end are both {self.start}; the window is empty")
            if not self.days:
                raise ValueError("days is empty; leave it out for every day")
        elif self.moment_of("start") >= self.moment_of("end"):
            raise ValueError(f"end {self.end} is not after start {self.start}")
        return self

    @property
    def is_recurring(self) -> bool:
        return "T" not in self.start.upper() and " " not in self.start.strip()

    @property
    def tz(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    def time_of(self, key: Literal["start", "end"]) -> time:
        text = getattr(self, key)
        try:
            clock = time.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{key} {text!r} is no time of the day; write 09:00") from None
        if clock.tzinfo is not None:
            raise ValueError(f"{key} {text!r} has an offset; write 09:00 and name the zone in `zone`")
        return clock

    def moment_of(self, key: Literal["start", "end"]) -> datetime:
        """With the zone; a time that is written with an offset keeps it."""
        text = getattr(self, key)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{key} {text!r} is no date with a time; write 2026-12-24T18:00") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=self.tz)


class ModelPolicy(_Strict):
    """How one model scales."""

    min_instances: Count = 1
    max_instances: Annotated[int, Field(ge=1, le=MAX_INSTANCES)] = 8
    scale_out: ScaleOut = ScaleOut()
    scale_in: ScaleIn = ScaleIn()
    cooldown_out_s: Seconds = 60.0
    """After a scale-out, before the next one."""
    cooldown_in_s: Seconds = 120.0
    """How long it must be quiet, and after any change, before a scale-in."""
    step: Literal["proportional", "one"] = "proportional"
    """To the count that the demand needs, or one at a time."""
    target_utilization: Share = 0.65
    """What a proportional step aims at."""
    lead_time_s: Seconds | None = None
    """From a decision to serving. None: as measured."""
    start_deadline_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 300.0
    """A start that takes longer is given up, and no longer counted."""
    drain_timeout_s: Seconds = 60.0
    longest_stream_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = None
    """Of a decoupled model that is not of our node: no answer takes longer. Triton shows no stream in flight, and a
    removal under one never ends it; without this such a model is never scaled in."""
    zero_after_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 1200.0
    """With `min_instances: 0`: this long without a request, and the last instance goes; weights stay."""
    stale_after_s: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 10.0
    """A figure older than this counts as unknown."""
    forecast: Forecast = Forecast()
    reservations: tuple[Reservation, ...] = ()

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"min_instances = {self.min_instances}, must be from 0 to max_instances = {self.max_instances}"
            )
        for item in self.reservations:
            if item.min_instances > self.max_instances:
                raise ValueError(
                    f"reservations[{item.name}].min_instances = {item.min_instances}, must be from 1 to "
                    f"max_instances = {self.max_instances}"
                )
        return self

    @model_validator(mode="after")
    def _thresholds_do_not_cross(self) -> Self:
        out, into = self.scale_out, self.scale_in
        if out.utilization is not None:
            _check_below("scale_in.utilization", into.utilization, "scale_out.utilization", out.utilization)
            _check_at_most(
                "target_utilization", self.target_utilization, "scale_out.utilization", out.utilization
            )
            if into.survivors_utilization is not None:
                _check_below(
                    "scale_in.survivors_utilization",
                    into.survivors_utilization,
                    "scale_out.utilization",
                    out.utilization,
                )
        if out.queue is not None:
            _check_below("scale_in.queue", into.queue, "scale_out.queue", out.queue)
        thresholds = (out.utilization, out.queue, out.queue_time_s, out.concurrency, out.kv_occupancy)
        if all(value is None for value in thresholds):
            raise ValueError(
                "scale_out: every threshold is off, so it could never scale out; set at least one"
            )
        return self


def _check_below(low_key: str, low: float, high_key: str, high: float) -> None:
    if low >= high:
        raise ValueError(f"{low_key} = {low:g}, must be below {high_key} = {high:g}")


def _check_at_most(low_key: str, low: float, high_key: str, high: float) -> None:
    if low > high:
        raise ValueError(f"{low_key} = {low:g}, must be at most {high_key} = {high:g}")


class Policy(_Strict):
    """All models. A model that is not named is observed and never changed."""

    models: dict[str, ModelPolicy] = {}

    @classmethod
    def parse(cls, text: str) -> Policy:
        """YAML. Raises PolicyInvalid, which names each key, its value and what is allowed."""
        try:
            raw = load_yaml(text)
        except ValueError as exc:
            raise PolicyInvalid([str(exc)]) from exc
        return cls.check(raw)

    @classmethod
    def check(cls, raw: Any) -> Policy:
        """A decoded document. `defaults` are merged into each model. Raises PolicyInvalid."""
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            raise PolicyInvalid([f"policy is a {type(raw).__name__}, must be a mapping with the key models"])
        raw = dict(raw)
        defaults = raw.pop("defaults", None) or {}
        models = raw.get("models")
        if not isinstance(defaults, dict):
            raise PolicyInvalid([f"defaults = {defaults!r}, must be a mapping"])
        if isinstance(models, dict):
            raw["models"] = {
                name: merge(defaults, given if given is not None else {}) for name, given in models.items()
            }
        try:
            return cls.model_validate(raw)
        except ValidationError as exc:
            raise PolicyInvalid(
                [in_words(item, _schemas_beside(item["loc"])) for item in exc.errors()]
            ) from exc

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Raises PolicyInvalid, and OSError when there is no such file."""
        return cls.parse(path.read_text())


def merge(defaults: Any, given: Any) -> Any:
    """`given` over `defaults`, key by key down the mappings; everything else is taken whole."""
    if not isinstance(defaults, dict) or not isinstance(given, dict):
        return given
    return {
        key: merge(defaults.get(key), given[key]) if key in given else defaults[key]
        for key in {**defaults, **given}
    }


def _schemas_beside(location: tuple[str | int, ...]) -> dict[str, Any]:
    """JSON schemas of the keys that may stand where `location` points."""
    sections: dict[str | int, type[_Strict]] = {
        "scale_out": ScaleOut,
        "scale_in": ScaleIn,
        "forecast": Forecast,
        "reservations": Reservation,
    }
    inner = [sections[part] for part in location[2:-1] if part in sections]
    if not inner and len(location) < 3:
        return {"models": {}, "defaults": {}}
    schemas: dict[str, Any] = (inner[-1] if inner else ModelPolicy).model_json_schema()["properties"]
    return schemas
