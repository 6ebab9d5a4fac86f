"""The messages between node, bridge, worker and fork server. Nouns and wishes, nothing that acts.

Three conversations, each a msgpack-encoded tagged union (see `channel` for the framing):

1. **bridge <-> node** over `RUN_DIR/node.sock` (SOCK_SEQPACKET). The connection is the instance's lease: EOF
   on it means that the stub is gone.
   `AttachInstance` -> `Attached` (+ fds: board, worker channel) or `AttachRefused`;
   later, after the worker died: `WorkerReplaced` (+ fd: a new worker channel).
2. **worker <-> node** over a socketpair made by the node (SOCK_SEQPACKET). The connection is the lease of all
   the KV extents the worker holds: EOF on it returns them.
   worker: `WorkerReady` (warm-up done, it is a spare now), `LeaseBlocks` -> `ExtentLeased` or `PoolExhausted`,
   `ReleaseExtent` (no answer), `MatchPrefix` -> `PrefixMatched`, `PublishBlocks` -> `BlocksPublished`,
   `DropBlocks` (no answer). node: `AttachWorker` (+ fds: board, bridge channel), `StopWorker`,
   `ReclaimBlocks` -> `ReleaseExtent`s, then `BlocksReclaimed`.
3. **bridge <-> worker** over a socketpair made by the node (SOCK_STREAM, framed).
   bridge: `Generate`, `CancelGenerate`, `EmbedBatch`, `RunBatch`.
   worker: `StepOutput`, `EmbedResult`, `BatchResult`.
4. **node <-> fork server** over a socketpair (SOCK_SEQPACKET).
   node: `BindModel` (+ fd: weights memfd), `UnbindModel`, `SpawnWorker` (+ fds: control socket, and for models
   with a KV cache the KV memfd). fork server: `ForkServerReady`, `ModelBound`, `BindFailed`, `ModelUnbound`,
   `WorkerSpawned`, `WorkerExited`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.sampling import SamplingParams
from contracts.stack import KVPrecision, ModelKind, Precision
from contracts.tracing.timing import Timing

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
    tenant: str = ""
    """On whose account; "": nobody's in particular."""


class ExtentLeased(Message, frozen=True):
    """Block ids `first_block .. first_block + num_blocks - 1` are the worker's."""

    first_block: int
    num_blocks: int


class PoolExhausted(Message, frozen=True):
    """No such extent is free, or a ceiling forbids it. An answer, not a failure."""

    largest_free_blocks: int
    """What a smaller request would get now, ceilings included."""
    reason: str = ""
    obtainable_blocks: int = 0
    """What several smaller requests would get together, at most."""


class ReleaseExtent(Message, frozen=True):
    """Any run of blocks that the worker holds on lease: a whole extent, or a piece of one."""

    first_block: int
    num_blocks: int


class MatchPrefix(Message, frozen=True):
    """Which leading blocks of a prompt are published? `hashes`: the chain, one per full block, from the root on
    (`worker/prefix.py` makes them); `tokens`: the token ids under them, int32 little-endian, for verification."""

    hashes: list[bytes]
    tokens: bytes


class PrefixMatched(Message, frozen=True):
    """The published blocks, in order; shorter than asked where the chain ends. The worker now holds one more
    reference on each, and may read them until it drops it."""

    blocks: list[int]


class PublishBlocks(Message, frozen=True):
    """Full blocks on lease to this worker, written and never to be written again; fields as in MatchPrefix,
    one hash and one block's tokens for each block."""

    blocks: list[int]
    hashes: list[bytes]
    tokens: bytes
    tenant: str = ""


class BlocksPublished(Message, frozen=True):
    """Per block: True: it is the pool's now (the lease is split around it) and the worker holds one reference.
    False: the same content is there already, or the quota is full; the block stays on lease."""

    accepted: list[bool]


class DropBlocks(Message, frozen=True):
    """Give back one reference on each of these published blocks."""

    blocks: list[int]


class ReclaimBlocks(Message, frozen=True):
    """Somebody is short: give back what is leased and unused, up to `num_blocks` (more is welcome)."""

    num_blocks: int


class BlocksReclaimed(Message, frozen=True):
    """The answer to ReclaimBlocks, after the ReleaseExtents that it led to."""


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
    tenant: str = ""
    priority: int = 0
    """Higher goes first."""
    is_traced: bool = False
    """Moments within its phases are wanted too."""


class CancelGenerate(Message, frozen=True):
    """Owes no answer of its own: the cancelled request's final reply has error CANCELLED."""

    request_id: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """One generated token. `top`: the likeliest alternatives, best first: (token id, its text, log probability)."""

    token_id: int
    token: str
    logprob: float
    top: list[tuple[int, str, float]] = []


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
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed because their blocks were published; set as num_input_tokens is."""
    logprobs: list[TokenLogprobs] = []
    """One entry per token of `num_output_tokens` when the request asked for them."""
    timing: Timing | None = None
    """On the last delta of a request that the engine accepted."""


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
    ran_unix_s: tuple[float, float] | None = None
    """From when to when the worker computed it."""


class TensorData(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    """numpy's name: "float32", "int64", "bool"."""
    shape: list[int]
    data: bytes
    """Row-major, little-endian."""


class RunBatch(Message, frozen=True):
    """One forward of a batch model. The first dimension of every tensor is the batch; rows that belong to one
    request lie together, `sizes` says how many each request has."""

    batch_id: int
    tensors: list[TensorData]
    sizes: list[int]
    outputs: list[str]
    """Which outputs are wanted; a module that names none makes them in this order."""


class BatchResult(Message, frozen=True):
    """Outputs in the order of `RunBatch.outputs`, the batch first. With `error_code` set the whole batch failed;
    `errors` names single requests that did, by index (their rows are zero)."""

    batch_id: int
    tensors: list[TensorData]
    errors: dict[int, str] = {}
    error_code: ErrorCode | None = None
    error: str = ""
    ran_unix_s: tuple[float, float] | None = None
    """As EmbedResult's."""


# --- 4. node <-> fork server ----------------------------------------------------------------------------


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """Where one tensor lies in the weights memfd."""

    offset_bytes: int
    shape: list[int]
    dtype: str
    """torch's name: "float32", "bfloat16", "int8"."""


class BindModel(Message, frozen=True):
    """Build the model's skeleton over the weights in the memfd that comes along (read-only, zero copy).

    The tensor table does not fit a packet for large models, so it lies as JSON (`dict[str, TensorSpec]`)
    in `table_path`, a file in the run directory.
    """

    model: str
    kind: ModelKind
    config_dir: str
    """Folder with config.json and tokenizer.json; of a batch model: with module.py or model.pt2."""
    table_path: str
    weights_bytes: int
    max_context_tokens: int
    """0: the model's own limit."""
    precision: Precision = "fp32"
    kv_precision: KVPrecision = "fp32"
    device: str = "cpu"
    """"cpu", or "cuda:UUID": of the GPU, not its index, which differs between processes."""
    fingerprint: str = ""
    """Of the weights as bound; part of every prefix hash."""
    max_output_tokens: int = 0
    """Per request; 0: what the context leaves."""


class UnbindModel(Message, frozen=True):
    """Forget the skeleton, so that its weights' memory can go. No worker of it is left or will be asked for."""

    model: str


class ModelUnbound(Message, frozen=True):
    model: str


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
WorkerToNode = (
    WorkerReady | LeaseBlocks | ReleaseExtent | MatchPrefix | PublishBlocks | DropBlocks | BlocksReclaimed
)
NodeToWorker = (
    AttachWorker | StopWorker | ExtentLeased | PoolExhausted | PrefixMatched | BlocksPublished | ReclaimBlocks
)
BridgeToWorker = Generate | CancelGenerate | EmbedBatch | RunBatch
WorkerToBridge = StepOutput | EmbedResult | BatchResult
NodeToForkServer = BindModel | UnbindModel | SpawnWorker
ForkServerToNode = ForkServerReady | ModelBound | BindFailed | ModelUnbound | WorkerSpawned | WorkerExited
