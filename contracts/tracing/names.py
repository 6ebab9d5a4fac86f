"""Every name in our traces, and OpenTelemetry's GenAI conventions in both of their dialects.

Records carry the names of v1.41, the last version in open-telemetry/semantic-conventions, which viewers read today.
The conventions moved to open-telemetry/semantic-conventions-genai and go on changing there (its
docs/gen-ai/non-normative/migration.md); who asks for those by OTEL_SEMCONV_STABILITY_OPT_IN gets them on the way
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from contracts.tracing.span import Value

OPT_IN_VARIABLE = "OTEL_SEMCONV_STABILITY_OPT_IN"
OPT_IN = "gen_ai_latest_experimental"

# --- services and spans ---

GATEWAY, BRIDGE, WORKER, SCALER = (
    "tidegate-gateway",
    "tidegate-bridge",
    "tidegate-worker",
    "tidegate-scaler",
)
LOADTEST = "tidegate-loadtest"
TRITON = "triton-inference-server"
"""Triton's own name for itself."""

START, SCALE = "start", "scale"
ADMIT, ATTEMPT, HELD, QUEUE, PREFILL, DECODE, FORWARD = (
    "admit",
    "triton",
    "bridge",
    "queue",
    "prefill",
    "decode",
    "forward",
)

# --- attributes of the conventions ---

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
OUR_PROVIDER = "tidegate"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_STATUS = "http.response.status_code"
GRPC_STATUS = "rpc.grpc.status_code"

# --- our own ---

REQUEST_ID = "tidegate.request_id"
TENANT = "tidegate.tenant"
SERVICE = "tidegate.service"
VERSION = "tidegate.version"
WHY_VERSION = "tidegate.route"
OUTCOME = "tidegate.outcome"
KEPT_BECAUSE = "tidegate.trace.kept"
"""Why this trace is there: ratio, asked, error, slow."""
ATTEMPT_NUMBER = "tidegate.attempt"
INSTANCE = "tidegate.instance"
PID = "process.pid"
NUM_IN_FLIGHT = "tidegate.instance.in_flight"
"""Requests that the instance had when this one came."""
NUM_AHEAD = "tidegate.queue.ahead"
"""Requests that waited in the engine when this one came."""
NUM_SHORT_STEPS = "tidegate.queue.short_steps"
"""Steps of its wait in which the pool had no KV blocks for the first in the queue."""
BATCH_SIZE = "tidegate.batch.size"
"""Sequences, requests or rows of the step; over several steps their mean."""
MAX_BATCH_SIZE = "tidegate.batch.max_size"
NUM_STEPS = "tidegate.steps"
KV_BLOCKS = "tidegate.kv.blocks"
"""Held at the end of the span."""
NUM_PREEMPTIONS = "tidegate.kv.preemptions"
COMPUTED_TOKENS = "tidegate.prefill.tokens"
"""Prompt tokens that were computed: those that no published block held."""

LOADTEST_INDEX = "tidegate.loadtest.index"
LOADTEST_USER = "tidegate.loadtest.user"
MODEL = "tidegate.model"
"""Triton's."""
INSTANCES = "tidegate.instances"
"""That a change added."""
SCALE_BEFORE = "tidegate.scale.before"
SCALE_WANTED = "tidegate.scale.wanted"
SCALE_AFTER = "tidegate.scale.after"
SCALE_REASON = "tidegate.scale.reason"
SCALE_CHANGED = "tidegate.scale.changed"
"""In words: "+chat-3 +chat-4"."""

_OPERATIONS = {"chat": "chat", "completion": "text_completion", "embedding": "embeddings"}


class Dialect(StrEnum):
    V1_41 = "1.41"
    LATEST = "latest"


def dialect_of(environ: Mapping[str, str]) -> Dialect:
    """OTEL_SEMCONV_STABILITY_OPT_IN is a list with commas, and other conventions' words may stand in it."""
    words = {word.strip() for word in environ.get(OPT_IN_VARIABLE, "").split(",")}
    return Dialect.LATEST if OPT_IN in words else Dialect.V1_41


_RENAMED_SINCE_1_41 = {CACHE_WRITE_TOKENS: "gen_ai.usage.cache_write.input_tokens"}


def in_dialect(attributes: Mapping[str, Value], dialect: Dialect) -> dict[str, Value]:
    """The same attributes under that dialect's names."""
    if dialect is Dialect.V1_41:
        return dict(attributes)
    return {_RENAMED_SINCE_1_41.get(name, name): value for name, value in attributes.items()}


def operation_name(operation: str) -> str:
    """`gen_ai.operation.name` of our word for what was asked; what the conventions do not know keeps ours."""
    return _OPERATIONS.get(operation, operation)
