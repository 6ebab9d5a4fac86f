"""A worker of a generate model: the engine over leased KV blocks, fed and read through two sockets."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from transformers import PreTrainedModel

from python_backend.channel import PacketChannel, PeerLost
from python_backend.messages import (
    BindModel,
    BridgeToWorker,
    CancelGenerate,
    Delta,
    Generate,
    NodeToWorker,
    SpawnWorker,
    StepOutput,
)
from python_backend.worker import cuda_binding, cuda_worker, skeleton
from python_backend.worker.blocks import BlockPool, Memory
from python_backend.worker.cuda_binding import GpuWeights
from python_backend.worker.cuda_runner import CudaRunner
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.errors import RequestRefused
from python_backend.worker.grammar import Grammars, GrammarVocabulary, read_vocabulary
from python_backend.worker.kv import KV_DTYPES, KVCache, KVLayout, view_arena
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.mapping import KVMapping
from python_backend.worker.prefix import PrefixIdentity
from python_backend.worker.process import Attachment, WorkerExit, WorkerLoop, wait_for_attachment

log = logging.getLogger(__name__)

TRIM_AFTER_IDLE_S = 0.5
"""Idle this long, the worker gives its unused extents back."""
SURPLUS_INTERVAL_S = 1.0
"""How often a busy worker looks whether it holds far more than it uses."""
EXTENT_BYTES = 2 << 20
"""What a growing sequence leases at once: more to map and to zero (0.25 ms per MiB) would show in a decode step."""
STUCK_PAUSE_S = 0.02
"""No sequence can run because the pool is out: look again after this."""


@dataclass(frozen=True)
class GenerateRole:
    """A decoder that workers inherit by fork."""

    bind: BindModel
    model: PreTrainedModel
    tokenizer: tokenizers.Tokenizer
    max_context_tokens: int
    layout: KVLayout
    eos_token_ids: frozenset[int]
    grammar_vocabulary: GrammarVocabulary | None
    gpu_weights: GpuWeights | None = None
    """None: the device is the CPU, and the model has its weights."""

    @classmethod
    def of(cls, bind: BindModel, weights_fd: int) -> GenerateRole:
        """Raises ModelRefused."""
        model, gpu_weights = cuda_binding.build(bind, weights_fd)
        layout = KVLayout.of(model, KV_DTYPES[bind.kv_precision])
        tokenizer = load_tokenizer(bind.config_dir)
        eos_token_ids = skeleton.eos_token_ids(bind.config_dir)
        return cls(
            bind=bind,
            model=model,
            tokenizer=tokenizer,
            max_context_tokens=skeleton.max_context_tokens(model, bind.max_context_tokens),
            layout=layout if gpu_weights is None else cuda_worker.gpu_layout(bind, layout),
            eos_token_ids=eos_token_ids,
            grammar_vocabulary=read_vocabulary(tokenizer, model.config.vocab_size, eos_token_ids),
            gpu_weights=gpu_weights,
        )

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes

    @property
    def block_tokens(self) -> int:
        return self.layout.block_tokens

    def run(self, spawn: SpawnWorker, control: PacketChannel[NodeToWorker], fds: list[int]) -> None:
        """`fds`: the KV memfd. Raises WorkerExit."""
        memory, cache, runner = self._start(fds[0], spawn.kv_total_bytes)
        runner.warm_up()
        attachment = wait_for_attachment(control)
        attachment.beat_in(self.model)
        lessor = NodeLessor(control)
        config = EngineConfig(
            eos_token_ids=self.eos_token_ids,
            max_context_tokens=self.max_context_tokens,
            total_blocks=cache.num_blocks,
            vocabulary_size=self.model.config.vocab_size,
            max_output_tokens=self.bind.max_output_tokens,
        )
        pool = BlockPool(
            lessor,
            self.layout.block_tokens,
            extent_blocks=max(1, EXTENT_BYTES // self.block_bytes),
            memory=memory,
            identity=self._identity(),
        )
        grammars = Grammars(self.grammar_vocabulary) if self.grammar_vocabulary else None
        engine = Engine(config, self.tokenizer, runner, pool, grammars)
        try:
            serve_generate(engine, attachment, control, lessor)
        except PeerLost:
            raise WorkerExit("the node went while it was asked for blocks") from None

    def _start(self, kv_fd: int, kv_bytes: int) -> tuple[Memory, KVCache, DecoderRunner | CudaRunner]:
        if self.gpu_weights is not None:
            kv = kv_fd, kv_bytes
            return cuda_worker.start(self.gpu_weights, self.model, self.layout, kv, self.max_context_tokens)
        mapping = KVMapping(kv_fd, kv_bytes, self.layout.block_bytes)
        cache = view_arena(mapping.raw, self.layout)
        return mapping, cache, DecoderRunner(self.model, cache)

    def _identity(self) -> PrefixIdentity:
        bind = self.bind
        return PrefixIdentity(bind.fingerprint, bind.precision, bind.kv_precision, self.block_tokens)


def load_tokenizer(config_dir: str) -> tokenizers.Tokenizer:
    """Raises what `tokenizers` raises on a missing or broken file."""
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(config_dir) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def serve_generate(
    engine: Engine, attachment: Attachment, control: PacketChannel[NodeToWorker], lessor: NodeLessor
) -> None:
    """Run the engine for one instance until it goes. Raises WorkerExit."""
    loop = WorkerLoop(attachment, control, lessor)
    idle_since_s: float | None = time.monotonic()
    trimmed_s = time.monotonic()

    def reclaim() -> None:
        engine.give_back_unused()
        lessor.reclaimed()

    loop.on_reclaim = reclaim
    while True:
        messages = loop.receive(_generate_timeout(engine, idle_since_s))
        deltas = [delta for message in messages for delta in _accept(engine, message)]
        if engine.has_work:
            idle_since_s = None
            loop.apply_thread_budget()
            steps_before = engine.num_steps
            deltas += engine.step(time.time())
            if engine.num_steps > steps_before:
                log.debug("%s", engine.last_step)
            elif engine.has_work:
                time.sleep(STUCK_PAUSE_S)
            if time.monotonic() - trimmed_s >= SURPLUS_INTERVAL_S:
                engine.give_back_surplus()
                trimmed_s = time.monotonic()
        elif idle_since_s is None:
            idle_since_s = time.monotonic()
        elif engine.num_leased_blocks and time.monotonic() - idle_since_s >= TRIM_AFTER_IDLE_S:
            engine.trim()
        if deltas:
            loop.send(StepOutput(deltas))
        loop.publish(**engine.counters())


def _generate_timeout(engine: Engine, idle_since_s: float | None) -> float | None:
    if engine.has_work or idle_since_s is None:
        return 0.0
    if not engine.num_leased_blocks:
        return None
    return max(0.0, idle_since_s + TRIM_AFTER_IDLE_S - time.monotonic())


def _accept(engine: Engine, message: BridgeToWorker) -> list[Delta]:
    """Put a message into the engine; the last delta at once if it is refused or cancelled."""
    if isinstance(message, CancelGenerate):
        ended = engine.cancel(message.request_id)
        return [ended] if ended else []
    if not isinstance(message, Generate):
        log.error("a generate worker was sent %s", type(message).__name__)
        return []
    try:
        engine.add(
            message.request_id,
            message.prompt,
            message.sampling,
            message.deadline_unix_s,
            tenant=message.tenant,
            priority=message.priority,
            is_traced=message.is_traced,
        )
    except RequestRefused as exc:
        return [Delta(message.request_id, "", 0, error_code=exc.code, error=str(exc))]
    return []
