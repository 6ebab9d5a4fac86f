from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, models: _Optional[_Iterable[str]] = ...) -> None: ...

class ScalerStatus(_message.Message):
    __slots__ = ("now_unix_s", "policy_revision", "tick_age_s", "tick_s", "target", "models", "problems")
    NOW_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_REVISION_FIELD_NUMBER: _ClassVar[int]
    TICK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    TICK_S_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    now_unix_s: float
    policy_revision: int
    tick_age_s: float
    tick_s: float
    target: str
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, now_unix_s: _Optional[float] = ..., policy_revision: _Optional[int] = ..., tick_age_s: _Optional[float] = ..., tick_s: _Optional[float] = ..., target: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("model", "is_managed", "wanted", "counts", "signals", "decision", "is_saturated", "pause", "override", "floors", "min_instances", "max_instances", "lead_s", "change", "forecast", "last_error", "last_error_unix_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IS_MANAGED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    IS_SATURATED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MAX_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    LEAD_S_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    is_managed: bool
    wanted: int
    counts: Counts
    signals: Signals
    decision: Decision
    is_saturated: bool
    pause: Pause
    override: Override
    floors: _containers.RepeatedCompositeFieldContainer[Floor]
    min_instances: int
    max_instances: int
    lead_s: float
    change: Change
    forecast: str
    last_error: str
    last_error_unix_s: float
    def __init__(self, model: _Optional[str] = ..., is_managed: _Optional[bool] = ..., wanted: _Optional[int] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ..., signals: _Optional[_Union[Signals, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ..., is_saturated: _Optional[bool] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., override: _Optional[_Union[Override, _Mapping]] = ..., floors: _Optional[_Iterable[_Union[Floor, _Mapping]]] = ..., min_instances: _Optional[int] = ..., max_instances: _Optional[int] = ..., lead_s: _Optional[float] = ..., change: _Optional[_Union[Change, _Mapping]] = ..., forecast: _Optional[str] = ..., last_error: _Optional[str] = ..., last_error_unix_s: _Optional[float] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("ready", "starting", "draining", "room")
    READY_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    ready: int
    starting: int
    draining: int
    room: int
    def __init__(self, ready: _Optional[int] = ..., starting: _Optional[int] = ..., draining: _Optional[int] = ..., room: _Optional[int] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("quality", "value", "age_s")
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    quality: str
    value: float
    age_s: float
    def __init__(self, quality: _Optional[str] = ..., value: _Optional[float] = ..., age_s: _Optional[float] = ...) -> None: ...

class Signals(_message.Message):
    __slots__ = ("utilization", "queue", "queue_time_s", "concurrency", "kv_occupancy", "arrivals_per_s", "busy_s_per_request", "wakes")
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_S_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    KV_OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    WAKES_FIELD_NUMBER: _ClassVar[int]
    utilization: Reading
    queue: Reading
    queue_time_s: Reading
    concurrency: Reading
    kv_occupancy: Reading
    arrivals_per_s: Reading
    busy_s_per_request: Reading
    wakes: int
    def __init__(self, utilization: _Optional[_Union[Reading, _Mapping]] = ..., queue: _Optional[_Union[Reading, _Mapping]] = ..., queue_time_s: _Optional[_Union[Reading, _Mapping]] = ..., concurrency: _Optional[_Union[Reading, _Mapping]] = ..., kv_occupancy: _Optional[_Union[Reading, _Mapping]] = ..., arrivals_per_s: _Optional[_Union[Reading, _Mapping]] = ..., busy_s_per_request: _Optional[_Union[Reading, _Mapping]] = ..., wakes: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("model", "at_unix_s", "before", "wanted", "direction", "cause", "reason", "is_saturated", "trouble")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_SATURATED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    model: str
    at_unix_s: float
    before: int
    wanted: int
    direction: str
    cause: str
    reason: str
    is_saturated: bool
    trouble: str
    def __init__(self, model: _Optional[str] = ..., at_unix_s: _Optional[float] = ..., before: _Optional[int] = ..., wanted: _Optional[int] = ..., direction: _Optional[str] = ..., cause: _Optional[str] = ..., reason: _Optional[str] = ..., is_saturated: _Optional[bool] = ..., trouble: _Optional[str] = ...) -> None: ...

class Floor(_message.Message):
    __slots__ = ("num_instances", "reason")
    NUM_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    num_instances: int
    reason: str
    def __init__(self, num_instances: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("num_before", "num_wanted", "since_unix_s", "reason", "is_given_up")
    NUM_BEFORE_FIELD_NUMBER: _ClassVar[int]
    NUM_WANTED_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    num_before: int
    num_wanted: int
    since_unix_s: float
    reason: str
    is_given_up: bool
    def __init__(self, num_before: _Optional[int] = ..., num_wanted: _Optional[int] = ..., since_unix_s: _Optional[float] = ..., reason: _Optional[str] = ..., is_given_up: _Optional[bool] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("who", "why", "since_unix_s", "is_of_all")
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    IS_OF_ALL_FIELD_NUMBER: _ClassVar[int]
    who: str
    why: str
    since_unix_s: float
    is_of_all: bool
    def __init__(self, who: _Optional[str] = ..., why: _Optional[str] = ..., since_unix_s: _Optional[float] = ..., is_of_all: _Optional[bool] = ...) -> None: ...

class Override(_message.Message):
    __slots__ = ("num_instances", "until_unix_s", "reason")
    NUM_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    num_instances: int
    until_unix_s: float
    reason: str
    def __init__(self, num_instances: _Optional[int] = ..., until_unix_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class WatchDecisionsRequest(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, models: _Optional[_Iterable[str]] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("text", "who", "why", "expected_revision")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    text: str
    who: str
    why: str
    expected_revision: int
    def __init__(self, text: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., expected_revision: _Optional[int] = ...) -> None: ...

class PolicyRevision(_message.Message):
    __slots__ = ("revision", "at_unix_s", "who", "why")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    revision: int
    at_unix_s: float
    who: str
    why: str
    def __init__(self, revision: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("revision", "text", "history")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    revision: PolicyRevision
    text: str
    history: _containers.RepeatedCompositeFieldContainer[PolicyRevision]
    def __init__(self, revision: _Optional[_Union[PolicyRevision, _Mapping]] = ..., text: _Optional[str] = ..., history: _Optional[_Iterable[_Union[PolicyRevision, _Mapping]]] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("model", "who", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    who: str
    why: str
    def __init__(self, model: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScaleToRequest(_message.Message):
    __slots__ = ("model", "num_instances", "duration_s", "who", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_instances: int
    duration_s: float
    who: str
    why: str
    def __init__(self, model: _Optional[str] = ..., num_instances: _Optional[int] = ..., duration_s: _Optional[float] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("model", "name", "start", "end", "zone", "days", "min_instances", "who", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    DAYS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    start: str
    end: str
    zone: str
    days: _containers.RepeatedScalarFieldContainer[str]
    min_instances: int
    who: str
    why: str
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ..., start: _Optional[str] = ..., end: _Optional[str] = ..., zone: _Optional[str] = ..., days: _Optional[_Iterable[str]] = ..., min_instances: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Reservation(_message.Message):
    __slots__ = ("model", "name", "start", "end", "zone", "days", "min_instances", "is_of_policy", "who", "why", "next_start_unix_s", "next_end_unix_s", "floor_rises_unix_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    DAYS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    IS_OF_POLICY_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    NEXT_END_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    FLOOR_RISES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    start: str
    end: str
    zone: str
    days: _containers.RepeatedScalarFieldContainer[str]
    min_instances: int
    is_of_policy: bool
    who: str
    why: str
    next_start_unix_s: float
    next_end_unix_s: float
    floor_rises_unix_s: float
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ..., start: _Optional[str] = ..., end: _Optional[str] = ..., zone: _Optional[str] = ..., days: _Optional[_Iterable[str]] = ..., min_instances: _Optional[int] = ..., is_of_policy: _Optional[bool] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., next_start_unix_s: _Optional[float] = ..., next_end_unix_s: _Optional[float] = ..., floor_rises_unix_s: _Optional[float] = ...) -> None: ...

class ListReservationsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListReservationsResponse(_message.Message):
    __slots__ = ("reservations",)
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    reservations: _containers.RepeatedCompositeFieldContainer[Reservation]
    def __init__(self, reservations: _Optional[_Iterable[_Union[Reservation, _Mapping]]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeRequest(_message.Message):
    __slots__ = ("model", "num_waiting")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_waiting: int
    def __init__(self, model: _Optional[str] = ..., num_waiting: _Optional[int] = ...) -> None: ...

class WakeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
