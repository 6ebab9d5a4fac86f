"""A GPU worker's start, after the fork and while it is a spare: context, weights, KV memory, the runner."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

from torch import nn

from python_backend.messages import BindModel
from python_backend.worker.cuda_backends import Backend, Installed, choose_backend
from python_backend.worker.cuda_binding import GpuWeights
from python_backend.worker.cuda_memory import GpuBlocks, start_cuda
from python_backend.worker.cuda_runner import CudaRunner
from python_backend.worker.kv import KVCache, KVLayout, view_arena

log = logging.getLogger(__name__)


def gpu_layout(bind: BindModel, layout: KVLayout) -> KVLayout:
    """With the block size that the attention backend wants."""
    backend = _backend(bind, layout)
    log.info(
        "%s: attention %s, blocks of %d tokens: %s",
        bind.model,
        backend.name,
        backend.block_tokens,
        backend.reason,
    )
    return replace(layout, block_tokens=backend.block_tokens)


def start(
    weights: GpuWeights,
    model: nn.Module,
    layout: KVLayout,
    kv: tuple[int, int],
    max_context_tokens: int,
) -> tuple[GpuBlocks, KVCache, CudaRunner]:
    """`kv`: descriptor and bytes of the KV pool. Raises CudaError, CudaUnavailable: the worker cannot serve."""
    bind, started_s = weights.bind, time.monotonic()
    gpu = start_cuda(bind.device)
    context_s = time.monotonic()
    weights.move_in(model, gpu)
    kv_fd, kv_bytes = kv
    memory = gpu.open(kv_fd, kv_bytes, writable=True)
    log.info(
        "%s on %s: context %.2f s, memory opened in %.3f s",
        bind.model,
        bind.device,
        context_s - started_s,
        time.monotonic() - context_s,
    )
    cache = view_arena(memory.tensor, layout)
    runner = CudaRunner(model, cache, _backend(bind, layout), max_context_tokens, gpu.synchronize)
    return GpuBlocks(memory.tensor, layout.block_bytes, gpu.synchronize), cache, runner


def _backend(bind: BindModel, layout: KVLayout) -> Backend:
    """The same in the fork server and in its workers: from versions and types alone."""
    return choose_backend(bind.precision, bind.kv_precision, layout.head_dim, Installed.look(), os.environ)
