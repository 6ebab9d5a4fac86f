"""A worker of a batch model, or of an encoder: one batch in, one batch out, through two sockets."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import tokenizers
import torch
from transformers import PreTrainedModel

from python_backend.channel import PacketChannel
from python_backend.messages import (
    BatchResult,
    BindModel,
    EmbedBatch,
    EmbedResult,
    NodeToWorker,
    RunBatch,
    SpawnWorker,
    TensorSpec,
)
from python_backend.worker import cuda_binding, skeleton
from python_backend.worker.cuda_binding import GpuWeights
from python_backend.worker.cuda_memory import start_cuda
from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.errors import ModelRefused
from python_backend.worker.generating import load_tokenizer
from python_backend.worker.modules import NamedModule, bind_state, load_module
from python_backend.worker.process import Attachment, WorkerLoop, wait_for_attachment
from python_backend.worker.progress import call_at_each_module
from python_backend.worker.running import run_batch
from python_backend.worker.trial import describe, refuse_threads, try_in_child

log = logging.getLogger(__name__)

BatchT = TypeVar("BatchT", EmbedBatch, RunBatch)


@dataclass(frozen=True)
class EmbedRole:
    """An encoder that workers inherit by fork."""

    bind: BindModel
    model: PreTrainedModel
    tokenizer: tokenizers.Tokenizer
    max_context_tokens: int
    block_bytes: int = 0
    block_tokens: int = 0
    gpu_weights: GpuWeights | None = None
    """None: the device is the CPU, and the model has its weights."""

    @classmethod
    def of(cls, bind: BindModel, weights_fd: int) -> EmbedRole:
        """Raises ModelRefused."""
        model, gpu_weights = cuda_binding.build(bind, weights_fd)
        limit = skeleton.max_context_tokens(model, bind.max_context_tokens)
        return cls(bind, model, load_tokenizer(bind.config_dir), limit, gpu_weights=gpu_weights)

    def run(self, spawn: SpawnWorker, control: PacketChannel[NodeToWorker], fds: list[int]) -> None:
        """Raises WorkerExit."""
        if self.gpu_weights is not None:
            self.gpu_weights.move_in(self.model, start_cuda(self.bind.device))
        runner = EncoderRunner(self.model, self.tokenizer, self.max_context_tokens)
        runner.warm_up()

        attachment = wait_for_attachment(control)
        runner.watch(attachment.beat)
        serve_batches(EmbedBatch, functools.partial(_embed, runner), attachment, control)


@dataclass(frozen=True)
class BatchRole:
    """A user's module that workers inherit by fork."""

    bind: BindModel
    module: NamedModule
    block_bytes: int = 0
    block_tokens: int = 0
    max_context_tokens: int = 0

    @classmethod
    def of(cls, bind: BindModel, weights_fd: int) -> BatchRole:
        """Built and run once in a child first, so that a broken module ends that. Raises ModelRefused."""
        if cuda_binding.is_for_gpu(bind):
            raise ModelRefused(f"{bind.model}: batch models run on the CPU; give them a node of their own")
        if bind.precision != "fp32":
            raise ModelRefused(
                f"{bind.model}: precision {bind.precision!r} is for decoders; a batch model computes in what its"
                " module was written for"
            )

        def rehearse() -> None:
            module = _bound_module(bind, weights_fd)
            refuse_threads()
            module.warm_up()

        try_in_child(rehearse, f"building and running {bind.model} once")
        try:
            module = _bound_module(bind, weights_fd)
        except BaseException as exc:  # SystemExit included: this process must live on
            raise ModelRefused(f"{bind.model}: {describe(exc)}") from exc
        finally:
            torch.set_num_threads(1)
        return cls(bind, module)

    def run(self, spawn: SpawnWorker, control: PacketChannel[NodeToWorker], fds: list[int]) -> None:
        """Raises WorkerExit."""
        self.module.warm_up()
        attachment = wait_for_attachment(control)
        call_at_each_module(self.module.module, attachment.beat)
        serve_batches(RunBatch, functools.partial(run_batch, self.module), attachment, control)


def serve_batches(
    kind: type[BatchT],
    answer: Callable[[BatchT], EmbedResult | BatchResult],
    attachment: Attachment,
    control: PacketChannel[NodeToWorker],
) -> None:
    """Answer batches for one instance until it goes. Raises WorkerExit."""
    loop = WorkerLoop(attachment, control)
    while True:
        for message in loop.receive(None):
            if not isinstance(message, kind):
                log.error("a worker for %s was sent %s", kind.__name__, type(message).__name__)
                continue
            loop.publish(running=_num_rows(message))
            loop.apply_thread_budget()
            began_unix_s = time.time()
            made = answer(message)
            loop.send(msgspec.structs.replace(made, ran_unix_s=(began_unix_s, time.time())))
            loop.publish(running=0)


def _bound_module(bind: BindModel, weights_fd: int) -> NamedModule:
    module = load_module(Path(bind.config_dir))
    table = msgspec.json.decode(Path(bind.table_path).read_bytes(), type=dict[str, TensorSpec])
    if table:
        raw = skeleton.map_weights(weights_fd, bind.weights_bytes)
        bind_state(module.module, skeleton.tensor_views(raw, table))
    return module


def _num_rows(batch: EmbedBatch | RunBatch) -> int:
    return len(batch.texts) if isinstance(batch, EmbedBatch) else sum(batch.sizes)


def _embed(runner: EncoderRunner, batch: EmbedBatch) -> EmbedResult:
    try:
        vectors, num_tokens, errors = runner.embed(batch.texts)
    except Exception as exc:  # one bad batch must not end the worker; its requests get the reason
        log.exception("embedding a batch of %d texts failed", len(batch.texts))
        return EmbedResult(batch.batch_id, runner.dim, b"", [], error_code="INTERNAL", error=describe(exc))
    return EmbedResult(batch.batch_id, runner.dim, vectors.numpy().tobytes(), num_tokens, errors)
