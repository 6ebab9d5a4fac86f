"""A worker of a batch model: one batch in, one batch out, through two sockets."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import tokenizers
from transformers import PreTrainedModel

from python_backend.channel import PacketChannel
from python_backend.messages import BindModel, EmbedBatch, EmbedResult, NodeToWorker, SpawnWorker
from python_backend.worker import skeleton
from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.generating import load_tokenizer
from python_backend.worker.process import Attachment, WorkerLoop, wait_for_attachment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbedRole:
    """An encoder that workers inherit by fork."""

    bind: BindModel
    model: PreTrainedModel
    tokenizer: tokenizers.Tokenizer
    max_context_tokens: int
    block_bytes: int = 0
    block_tokens: int = 0

    @classmethod
    def of(cls, bind: BindModel, weights_fd: int) -> EmbedRole:
        """Raises ModelRefused."""
        model = skeleton.build_skeleton(bind, weights_fd)
        limit = skeleton.max_context_tokens(model, bind.max_context_tokens)
        return cls(bind, model, load_tokenizer(bind.config_dir), limit)

    def run(self, spawn: SpawnWorker, control: PacketChannel[NodeToWorker], fds: list[int]) -> None:
        """Raises WorkerExit."""
        runner = EncoderRunner(self.model, self.tokenizer, self.max_context_tokens)
        runner.warm_up()
        serve_embed(runner, wait_for_attachment(control), control)


def serve_embed(runner: EncoderRunner, attachment: Attachment, control: PacketChannel[NodeToWorker]) -> None:
    """Embed batches for one instance until it goes. Raises WorkerExit."""
    loop = WorkerLoop(attachment, control)
    while True:
        for message in loop.receive(None):
            if not isinstance(message, EmbedBatch):
                log.error("an embed worker was sent %s", type(message).__name__)
                continue
            loop.publish(running=len(message.texts))
            loop.apply_thread_budget()
            loop.send(_embed(runner, message))
            loop.publish(running=0)


def _embed(runner: EncoderRunner, batch: EmbedBatch) -> EmbedResult:
    try:
        vectors, num_tokens, errors = runner.embed(batch.texts)
    except Exception as exc:  # one bad batch must not end the worker; its requests get the reason
        log.exception("embedding a batch of %d texts failed", len(batch.texts))
        return EmbedResult(batch.batch_id, runner.dim, b"", [], error_code="INTERNAL", error=_one_line(exc))
    return EmbedResult(batch.batch_id, runner.dim, vectors.numpy().tobytes(), num_tokens, errors)


def _one_line(exc: BaseException) -> str:
    words: Any = str(exc).split()
    return f"{type(exc).__name__}: {' '.join(words)}"[:300]
