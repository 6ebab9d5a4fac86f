"""The messages between node, bridge, worker and fork server. Nouns and wishes, nothing that acts.

Three conversations, each a msgpack-encoded tagged union (see `channel` for the framing):

1. **bridge <-> node** over `RUN_DIR/node.sock` (SOCK_SEQPACKET). The connection is the instance's lease: EOF
   on it means that the stub is gone.
   `AttachInstance` -> `Attached` (+ fds: board, worker channel) or `AttachRefused`;
   later, after the worker died: `WorkerReplaced` (+ fd: a new worker channel).
2. **worker <-> node** over a socketpair made by the node (SOCK_SEQPACKET). The connection is the lease of all
   the KV extents the worker holds: EOF on it returns them.
   worker: `WorkerReady` (warm-up done, it is a spare now), `LeaseBlocks` -> `ExtentLeased` or `PoolExhausted`,
   `ReleaseExtent` (no answer). node: `AttachWorker` (+ fds: board, bridge channel), `StopWorker`.
3. **bridge <-> worker** over a socketpair made by the node (SOCK_STREAM, framed).
   bridge: `Generate`, `CancelGenerate`, `EmbedBatch`. worker: `StepOutput`, `EmbedResult`.
4. **node <-> fork server** over a socketpair (SOCK_SEQPACKET).
   node: `BindModel` (+ fd: weights memfd), `SpawnWorker` (+ fds: control socket, and for models with a KV
   cache the KV memfd). fork server: `ForkServerReady`, `ModelBound`, `BindFailed`, `WorkerSpawned`,
   `WorkerExited`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.sampling import SamplingParams

ErrorCode = Literal["INVALID_ARGUMENT", "UNAVAILABLE", "INTERNAL", "CANCELLED", "DEADLINE_EXCEEDED"]
FinishReason = Literal["stop", "length"]


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; the tag is the class name."""


# --- 1. bridge <-> node ---------------------------------------------------------------------------------


class AttachInstance(Message, frozen=True):
    """A stub is up and wants a worker. `instance` is Triton's group name ("chat-0")."""

    model: str
    instance: str
    pid: int
    cap: int
    """Requests in flight from which the instance takes no more (published on the board)."""


class Attached(Message, frozen=True):
    """Sent with two descriptors: the board, and the bridge's end of the worker channel."""

    slot: int


class AttachRefused(Message, frozen=True):
    reason: str


class WorkerReplaced(Message, frozen=True):
    """The instance's worker died; this carries the descriptor of a channel to the next one."""

    worker_pid: int


# --- 2. worker <-> node ---------------------------------------------------------------------------------


class WorkerReady(Message, frozen=True):
    pid: int


class LeaseBlocks(Message, frozen=True):
    """Wants one contiguous extent of `num_blocks` blocks, aligned to the model's block size."""

    num_blocks: int


class ExtentLeased(Message, frozen=True):
    """Block ids `first_block .. first_block + num_blocks - 1` are the worker's."""

    first_block: int
    num_blocks: int


class PoolExhausted(Message, frozen=True):
    """No such extent is free. An answer, not a failure."""

    largest_free_blocks: int


class ReleaseExtent(Message, frozen=True):
    first_block: int
    num_blocks: int


class AttachWorker(Message, frozen=True):
    """Sent with two descriptors: the board, and the worker's end of the bridge channel."""

    instance: str
    slot: int


class StopWorker(Message, frozen=True):
    pass


# --- 3. bridge <-> worker -------------------------------------------------------------------------------


class Generate(Message, frozen=True):
    request_id: int
    """Chosen by the bridge, unique per channel."""
    prompt: str
    sampling: SamplingParams
    deadline_unix_s: float | None = None


class CancelGenerate(Message, frozen=True):
    """Owes no answer of its own: the cancelled request's final reply has error CANCELLED."""

    request_id: int


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one engine step made for one request. `finish_reason` or `error_code` set: it is the last one."""

    request_id: int
    text: str
    num_output_tokens: int
    """Tokens generated since the last delta (text may lag behind: held-back stop strings, half characters)."""
    num_input_tokens: int = 0
    """Set on the first and on the last delta."""
    finish_reason: FinishReason | None = None
    error_code: ErrorCode | None = None
    error: str = ""


class StepOutput(Message, frozen=True):
    """All that one engine step made: one message a step, not one a token."""

    deltas: list[Delta]


class EmbedBatch(Message, frozen=True):
    batch_id: int
    texts: list[str]


class EmbedResult(Message, frozen=True):
    """`vectors`: float32, row-major, shape [len(texts), dim]. With `error_code` set the whole batch failed;
    `errors` names single texts that were refused, by index (their rows are zero)."""

    batch_id: int
    dim: int
    vectors: bytes
    num_tokens: list[int]
    errors: dict[int, str] = {}
    error_code: ErrorCode | None = None
    error: str = ""


# --- 4. node <-> fork server ----------------------------------------------------------------------------


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """Where one tensor lies in the weights memfd."""

    offset_bytes: int
    shape: list[int]
    dtype: str
    """numpy's name: "float32"."""


class BindModel(Message, frozen=True):
    """Build the model's skeleton over the weights in the memfd that comes along (read-only, zero copy).

    The tensor table does not fit a packet for large models, so it lies as JSON (`dict[str, TensorSpec]`)
    in `table_path`, a file in the run directory.
    """

    model: str
    kind: Literal["generate", "embed"]
    config_dir: str
    """Folder with config.json and tokenizer.json."""
    table_path: str
    weights_bytes: int
    max_context_tokens: int
    """0: the model's own limit."""


class SpawnWorker(Message, frozen=True):
    model: str
    worker_id: int
    kv_total_bytes: int
    """Length of the KV memfd that comes along as second descriptor; 0: none comes."""


class ForkServerReady(Message, frozen=True):
    pid: int


class ModelBound(Message, frozen=True):
    model: str
    block_bytes: int
    """Size of one KV block, all layers; 0 for models without a KV cache."""
    block_tokens: int
    max_context_tokens: int


class BindFailed(Message, frozen=True):
    model: str
    error: str


class WorkerSpawned(Message, frozen=True):
    worker_id: int
    pid: int


class WorkerExited(Message, frozen=True):
    pid: int
    status: int
    """As `os.waitstatus_to_exitcode`: negative for a signal."""


BridgeToNode = AttachInstance
NodeToBridge = Attached | AttachRefused | WorkerReplaced
WorkerToNode = WorkerReady | LeaseBlocks | ReleaseExtent
NodeToWorker = AttachWorker | StopWorker | ExtentLeased | PoolExhausted
BridgeToWorker = Generate | CancelGenerate | EmbedBatch
WorkerToBridge = StepOutput | EmbedResult
NodeToForkServer = BindModel | SpawnWorker
ForkServerToNode = ForkServerReady | ModelBound | BindFailed | WorkerSpawned | WorkerExited
