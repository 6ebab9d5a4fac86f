from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ("with_extents",)
    WITH_EXTENTS_FIELD_NUMBER: _ClassVar[int]
    with_extents: bool
    def __init__(self, with_extents: _Optional[bool] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("pid", "pool", "models", "instances", "workers", "weights", "extents")
    PID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    pool: PoolStatus
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    instances: _containers.RepeatedCompositeFieldContainer[InstanceStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    weights: _containers.RepeatedCompositeFieldContainer[WeightsStatus]
    extents: _containers.RepeatedCompositeFieldContainer[Extent]
    def __init__(self, pid: _Optional[int] = ..., pool: _Optional[_Union[PoolStatus, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[InstanceStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[WeightsStatus, _Mapping]]] = ..., extents: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("offset_bytes", "num_bytes", "model", "state", "tenant", "worker_pid")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    num_bytes: int
    model: str
    state: str
    tenant: str
    worker_pid: int
    def __init__(self, offset_bytes: _Optional[int] = ..., num_bytes: _Optional[int] = ..., model: _Optional[str] = ..., state: _Optional[str] = ..., tenant: _Optional[str] = ..., worker_pid: _Optional[int] = ...) -> None: ...

class PoolStatus(_message.Message):
    __slots__ = ("total_bytes", "leased_bytes", "free_bytes", "largest_free_bytes", "high_water_bytes", "weights_bytes", "cached_bytes", "weights_budget_bytes", "recent_high_water_bytes")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECENT_HIGH_WATER_BYTES_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    leased_bytes: int
    free_bytes: int
    largest_free_bytes: int
    high_water_bytes: int
    weights_bytes: int
    cached_bytes: int
    weights_budget_bytes: int
    recent_high_water_bytes: int
    def __init__(self, total_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., largest_free_bytes: _Optional[int] = ..., high_water_bytes: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., cached_bytes: _Optional[int] = ..., weights_budget_bytes: _Optional[int] = ..., recent_high_water_bytes: _Optional[int] = ...) -> None: ...

class WatchMemoryRequest(_message.Message):
    __slots__ = ("period_ms",)
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    period_ms: int
    def __init__(self, period_ms: _Optional[int] = ...) -> None: ...

class MemorySample(_message.Message):
    __slots__ = ("monotonic_s", "total_bytes", "held_bytes", "high_water_bytes", "cached_bytes", "models", "instances")
    MONOTONIC_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    monotonic_s: float
    total_bytes: int
    held_bytes: int
    high_water_bytes: int
    cached_bytes: int
    models: _containers.RepeatedCompositeFieldContainer[ModelMemory]
    instances: _containers.RepeatedCompositeFieldContainer[InstanceStatus]
    def __init__(self, monotonic_s: _Optional[float] = ..., total_bytes: _Optional[int] = ..., held_bytes: _Optional[int] = ..., high_water_bytes: _Optional[int] = ..., cached_bytes: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ModelMemory, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[InstanceStatus, _Mapping]]] = ...) -> None: ...

class ModelMemory(_message.Message):
    __slots__ = ("model", "block_bytes", "held_bytes", "high_water_bytes", "cached_bytes", "limit_bytes", "num_refused")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    model: str
    block_bytes: int
    held_bytes: int
    high_water_bytes: int
    cached_bytes: int
    limit_bytes: int
    num_refused: int
    def __init__(self, model: _Optional[str] = ..., block_bytes: _Optional[int] = ..., held_bytes: _Optional[int] = ..., high_water_bytes: _Optional[int] = ..., cached_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., num_refused: _Optional[int] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("name", "kind", "weights_bytes", "num_spares", "num_instances", "block_bytes", "max_context_tokens", "fingerprint", "precision", "kv_precision", "kv_leased_bytes", "kv_published_bytes", "kv_floor_bytes", "kv_ceiling_bytes", "usable_blocks", "prefix_lookup_tokens", "prefix_hit_tokens", "tenants", "num_refused", "kv_cached_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_SPARES_FIELD_NUMBER: _ClassVar[int]
    NUM_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    KV_PRECISION_FIELD_NUMBER: _ClassVar[int]
    KV_LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_PUBLISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_FLOOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CEILING_BYTES_FIELD_NUMBER: _ClassVar[int]
    USABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LOOKUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    KV_CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    weights_bytes: int
    num_spares: int
    num_instances: int
    block_bytes: int
    max_context_tokens: int
    fingerprint: str
    precision: str
    kv_precision: str
    kv_leased_bytes: int
    kv_published_bytes: int
    kv_floor_bytes: int
    kv_ceiling_bytes: int
    usable_blocks: int
    prefix_lookup_tokens: int
    prefix_hit_tokens: int
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    num_refused: int
    kv_cached_bytes: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., num_spares: _Optional[int] = ..., num_instances: _Optional[int] = ..., block_bytes: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., fingerprint: _Optional[str] = ..., precision: _Optional[str] = ..., kv_precision: _Optional[str] = ..., kv_leased_bytes: _Optional[int] = ..., kv_published_bytes: _Optional[int] = ..., kv_floor_bytes: _Optional[int] = ..., kv_ceiling_bytes: _Optional[int] = ..., usable_blocks: _Optional[int] = ..., prefix_lookup_tokens: _Optional[int] = ..., prefix_hit_tokens: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., num_refused: _Optional[int] = ..., kv_cached_bytes: _Optional[int] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("tenant", "leased_bytes", "published_bytes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    leased_bytes: int
    published_bytes: int
    def __init__(self, tenant: _Optional[str] = ..., leased_bytes: _Optional[int] = ..., published_bytes: _Optional[int] = ...) -> None: ...

class WeightsStatus(_message.Message):
    __slots__ = ("key", "path", "precision", "num_bytes", "is_pinned", "models", "last_used_unix_ms", "fingerprint")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    key: str
    path: str
    precision: str
    num_bytes: int
    is_pinned: bool
    models: _containers.RepeatedScalarFieldContainer[str]
    last_used_unix_ms: int
    fingerprint: str
    def __init__(self, key: _Optional[str] = ..., path: _Optional[str] = ..., precision: _Optional[str] = ..., num_bytes: _Optional[int] = ..., is_pinned: _Optional[bool] = ..., models: _Optional[_Iterable[str]] = ..., last_used_unix_ms: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class InstanceStatus(_message.Message):
    __slots__ = ("model", "instance", "stub_pid", "worker_pid", "state", "in_flight", "landed", "slot", "attached_unix_ms", "worker_restarts", "num_running", "num_waiting", "cap", "num_preempted")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    STUB_PID_FIELD_NUMBER: _ClassVar[int]
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LANDED_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    model: str
    instance: str
    stub_pid: int
    worker_pid: int
    state: str
    in_flight: int
    landed: int
    slot: int
    attached_unix_ms: int
    worker_restarts: int
    num_running: int
    num_waiting: int
    cap: int
    num_preempted: int
    def __init__(self, model: _Optional[str] = ..., instance: _Optional[str] = ..., stub_pid: _Optional[int] = ..., worker_pid: _Optional[int] = ..., state: _Optional[str] = ..., in_flight: _Optional[int] = ..., landed: _Optional[int] = ..., slot: _Optional[int] = ..., attached_unix_ms: _Optional[int] = ..., worker_restarts: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., cap: _Optional[int] = ..., num_preempted: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("pid", "model", "state", "instance", "leased_bytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    model: str
    state: str
    instance: str
    leased_bytes: int
    def __init__(self, pid: _Optional[int] = ..., model: _Optional[str] = ..., state: _Optional[str] = ..., instance: _Optional[str] = ..., leased_bytes: _Optional[int] = ...) -> None: ...

class PrepareSparesRequest(_message.Message):
    __slots__ = ("model", "num_spares")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_SPARES_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_spares: int
    def __init__(self, model: _Optional[str] = ..., num_spares: _Optional[int] = ...) -> None: ...

class PrepareSparesResponse(_message.Message):
    __slots__ = ("num_spares",)
    NUM_SPARES_FIELD_NUMBER: _ClassVar[int]
    num_spares: int
    def __init__(self, num_spares: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("model", "instance")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    model: str
    instance: str
    def __init__(self, model: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("model", "instance")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    model: str
    instance: str
    def __init__(self, model: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class ServeModelRequest(_message.Message):
    __slots__ = ("served_model_json", "num_spares")
    SERVED_MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    NUM_SPARES_FIELD_NUMBER: _ClassVar[int]
    served_model_json: str
    num_spares: int
    def __init__(self, served_model_json: _Optional[str] = ..., num_spares: _Optional[int] = ...) -> None: ...

class DropModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class DropModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EvictWeightsRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class PinWeightsRequest(_message.Message):
    __slots__ = ("key", "is_pinned")
    KEY_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    key: str
    is_pinned: bool
    def __init__(self, key: _Optional[str] = ..., is_pinned: _Optional[bool] = ...) -> None: ...
