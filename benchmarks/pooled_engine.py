"""An engine over the pool as a worker has it: blocks from `lease_server`'s process, memory opened by extents."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.lease_server import lease_server
from contracts.sampling import SamplingParams
from python_backend.worker.blocks import BlockPool
from python_backend.worker.decoder import DecoderRunner
from python_backend.worker.engine import Engine, EngineConfig
from python_backend.worker.generating import EXTENT_BYTES
from python_backend.worker.kv import KVLayout, view_arena
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.mapping import KVMapping
from python_backend.worker.prefix import PrefixIdentity
from python_backend.worker.sequence import Sequence

NUM_BLOCKS = 400
MAX_CONTEXT_TOKENS = 8192


class PooledEngine:
    """`tokenizer` and `model` as the engine takes them. Use as a context manager."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._layout = KVLayout.of(model)

    def __enter__(self) -> PooledEngine:
        layout = self._layout
        nbytes = NUM_BLOCKS * layout.block_bytes
        self._open = contextlib.ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="tg-")))
        self._desk = self._open.enter_context(
            lease_server(folder, nbytes, layout.block_bytes, layout.block_tokens)
        )
        control = self._desk.connect()
        self._open.callback(control.close)
        self._lessor = CountingLessor(control)
        fd = os.memfd_create("bench-kv", os.MFD_CLOEXEC)
        os.posix_fallocate(fd, 0, nbytes)  # the node's KV memory has all its pages, too
        self._memory = KVMapping(fd, nbytes, layout.block_bytes)
        os.close(fd)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, prompts: list[str], max_tokens: int, *, caching: bool) -> dict[str, Any]:
        """All prompts at once, greedy, `max_tokens` each. CPU times in seconds, of all threads; `steps`: of each
        step in which every stream decoded its duration in seconds, and whether blocks were leased in it."""
        identity = PrefixIdentity("bench", "fp32", "fp32", self._layout.block_tokens) if caching else None
        extent_blocks = max(1, EXTENT_BYTES // self._layout.block_bytes)
        pool = TimedBlockPool(self._lessor, self._layout.block_tokens, extent_blocks, self._memory, identity)
        runner = DecoderRunner(self._model, view_arena(self._memory.raw, self._layout))
        config = EngineConfig(frozenset(), MAX_CONTEXT_TOKENS, NUM_BLOCKS)
        engine = Engine(config, self._tokenizer, runner, pool)
        started_s, cpu_s, desk_cpu_s = time.perf_counter(), time.process_time(), self._desk_cpu_s()
        for index, prompt in enumerate(prompts):
            engine.add(index, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))
        steps = self._run_to_end(engine, len(prompts))
        answer = {
            "seconds": time.perf_counter() - started_s,
            "cpu_s": time.process_time() - cpu_s,
            "desk_cpu_s": self._desk_cpu_s() - desk_cpu_s,
            "caching_cpu_s": pool.caching_cpu_s,
            "num_tokens": engine.num_tokens_out,
            "num_cached_tokens": engine.scheduler.num_cached_tokens,
            "steps": steps,
        }
        engine.trim()
        return answer

    def _run_to_end(self, engine: Engine, num_streams: int) -> list[tuple[float, bool]]:
        steps: list[tuple[float, bool]] = []
        while engine.has_work:
            leased_before = self._lessor.num_leases
            engine.step(0.0)
            metrics = engine.last_step
            if metrics is not None and metrics.num_decodes == num_streams and not metrics.num_prefill_tokens:
                steps.append((metrics.duration_s, self._lessor.num_leases > leased_before))
        return steps

    def _desk_cpu_s(self) -> float:
        on_cpu_ns = Path(f"/proc/{self._desk.pid}/schedstat").read_text().split()[0]
        return int(on_cpu_ns) / 1e9


class CountingLessor(NodeLessor):
    num_leases = 0

    def lease(self, num_blocks: int, tenant: str) -> range | int:
        answer = super().lease(num_blocks, tenant)
        self.num_leases += isinstance(answer, range)
        return answer


class TimedBlockPool(BlockPool):
    """Adds up the CPU time of what exists for prefix blocks alone: hashing, matching, publishing, dropping."""

    caching_cpu_s = 0.0

    def match(self, sequence: Sequence) -> None:
        self._timed(lambda: super(TimedBlockPool, self).match(sequence))

    def publish(self, sequences: Iterable[Sequence]) -> None:
        self._timed(lambda: super(TimedBlockPool, self).publish(sequences))

    def _drop(self, blocks: list[int]) -> None:
        self._timed(lambda: super(TimedBlockPool, self)._drop(blocks))

    def _timed(self, work: Callable[[], None]) -> None:
        started_s = time.thread_time()
        work()
        self.caching_cpu_s += time.thread_time() - started_s
