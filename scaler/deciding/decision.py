"""What a decision is, what it rests on beside the observation, and what is remembered from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from scaler.deciding.policy import ModelPolicy


class Direction(StrEnum):
    HOLD = "hold"
    OUT = "out"
    IN = "in"


class Cause(StrEnum):
    """Why a decision is as it is; its reason says it with the numbers."""

    STEADY = "steady"
    """Nothing is crossed."""
    PRESSURE = "pressure"
    """An out threshold is crossed, and instances are added."""
    HOLDING = "holding"
    """An out threshold is crossed, not for long enough yet."""
    COOLDOWN = "cooldown"
    """A change is due, and the last one is too recent."""
    STARTING = "starting"
    """What is crossed is answered by instances that are starting already."""
    LIMIT = "limit"
    """The maximum is reached."""
    QUIET = "quiet"
    """The in thresholds have held for the whole cooldown."""
    SURPLUS = "surplus"
    """Fewer instances would have borne the highest demand of the window."""
    FLOOR = "floor"
    """The minimum, a reservation or the forecast asks for more."""
    CEILING = "ceiling"
    """There are more than the maximum allows."""
    ZERO = "zero"
    """Nobody has asked for long enough: the last instance goes."""
    WAKE = "wake"
    """There is none, and a request waits."""
    UNKNOWN = "unknown"
    """A figure that the decision needs is missing or stale, or the count is."""
    OVERRIDE = "override"
    PAUSED = "paused"


@dataclass(frozen=True)
class Floor:
    """A lower bound on the count, with who asks for it: "reservation launch", "forecast 12.3 busy at 09:05"."""

    num_instances: int
    reason: str


@dataclass(frozen=True)
class Override:
    """`tidegate scaler scale-to`: exactly so many until then."""

    num_instances: int
    until_unix_s: float
    reason: str


@dataclass(frozen=True)
class Spec:
    """What a decision has to follow."""

    model: str
    policy: ModelPolicy
    lead_s: float
    """From a decision to the instance serving, as measured (a high percentile), or the policy's own."""
    floors: tuple[Floor, ...] = ()
    """Reservations and the forecast, as they stand at `now`."""
    override: Override | None = None
    is_paused: bool = False
    pause_words: str = ""
    """Whose pause it is: "paused by ada: debugging"."""


class Sample(NamedTuple):
    at_s: float
    value: float


@dataclass(frozen=True)
class State:
    """What one decision leaves to the next. A restarted scaler begins with `State.adopted(now)`."""

    since_s: float
    """When this state began; no scale-in before it is a whole window old (knative#4795)."""
    over_since_s: float | None = None
    """Since when an out threshold other than utilisation has been crossed without a break."""
    busy_since_s: float | None = None
    """Since when utilisation has been over its out threshold without a break."""
    quiet_since_s: float | None = None
    """Since when all in thresholds have held without a break."""
    idle_since_s: float | None = None
    """Since when there has been nothing to do, for scale to zero."""
    known_since_s: float | None = None
    """Since when the demand has been known without a break."""
    last_out_s: float | None = None
    last_in_s: float | None = None
    patience: float = 1.0
    """Multiplies the scale-in windows; see `scaler.deciding.patience`."""
    reversed_s: float | None = None
    """When a scale-in last turned out to have come too early, or patience was last lowered."""
    peaks: tuple[Sample, ...] = ()
    """Demand in busy instances, oldest first, only what a later sample has not exceeded: the first one inside a
    window is its maximum."""
    queue: tuple[Sample, ...] = ()
    """Queue lengths of the last seconds, to see whether it still grows."""
    is_saturated: bool = False

    @classmethod
    def adopted(cls, now: float) -> State:
        return cls(since_s=now)


@dataclass(frozen=True)
class Decision:
    """What `decide` returns. `wanted` is a count of ready + starting instances."""

    model: str
    at_s: float
    before: int
    wanted: int
    direction: Direction
    cause: Cause
    reason: str
    """In words with the numbers: "chat 2→4: queue 37 ≥ 20 for 3 s, util 0.91; 1 pending counted; max 6"."""
    is_saturated: bool
    """The maximum is reached and the queue still grows: shed or degrade."""
    state: State
