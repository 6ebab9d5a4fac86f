"""Measures each model, once a tick: asks all sources at the same time and turns their answers into `Signals`.

| figure | batch models | generate models of ours |
|---|---|---|
| utilization | time in executions / (time x ready instances) | requests in flight / (cap x ready instances) |
| queue | pending in Triton | the same, and what waits in bridges and engines |
| queue_time_s | of those that left the queue | queue / arrivals (Little's law) |

A source that does not answer makes its own figures stale, then useless, and no others. Triton's own statistics
are no measure of a decoupled model that is not ours (`execute` returns before the work is done): its utilisation is
missing, which holds the count, and never 0, which would scale it in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contracts import node_pb2
from scaler.deciding.observation import Counts, Signals
from scaler.measuring.engine_figures import figures_of
from scaler.measuring.figures import Look, Spans
from scaler.measuring.gpu import GpuFigures
from scaler.measuring.model_windows import ModelWindows
from scaler.measuring.sources import Say, Sources
from scaler.measuring.triton_statistics import counters_of


class Triton(Protocol):
    """`TritonClient` is one."""

    async def statistics(self, model: str) -> Any: ...
    async def config(self, model: str) -> Any: ...


class Metrics(Protocol):
    """`TritonMetrics` is one."""

    async def pending(self) -> Mapping[str, float]: ...


class Node(Protocol):
    """`NodeClient` is one."""

    async def status(self) -> node_pb2.NodeStatus: ...


class Gpu(Protocol):
    """`GpuMeter` is one."""

    def read(self) -> GpuFigures: ...


@dataclass(frozen=True)
class _Shared:
    """What one look asks for all models together."""

    now: float
    pending: asyncio.Task[Mapping[str, float] | None]
    node: asyncio.Task[node_pb2.NodeStatus | None]
    gpu: asyncio.Task[GpuFigures | None]


class Collector:
    """`signals` never raises, and takes `ask_timeout_s` at most.

    `metrics`, `node`, `gpu`: None where there is none.
    `clock`: the loop's; every answer is stamped with the moment at which it came.
    `stale_after_s`: of a model; the policy says it.
    """

    def __init__(
        self,
        triton: Triton,
        *,
        clock: Callable[[], float],
        metrics: Metrics | None = None,
        node: Node | None = None,
        gpu: Gpu | None = None,
        stale_after_s: Callable[[str], float] = lambda model: 10.0,
        wakes: Callable[[str], int] = lambda model: 0,
        ask_timeout_s: float = 0.4,
        spans: Spans | None = None,
        say: Say = lambda text: None,
    ) -> None:
        self._triton = triton
        self._metrics, self._node, self._gpu = metrics, node, gpu
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._wakes = wakes
        self._spans = spans or Spans()
        self._sources = Sources(ask_timeout_s, say)
        self._windows: dict[str, ModelWindows] = {}
        self._configs: dict[str, Any] = {}
        self._shared: _Shared | None = None
        self.gpu_figures: GpuFigures | None = None
        """The device as last read; None: there is none, or it did not answer."""

    @property
    def troubles(self) -> dict[str, str]:
        """Sources that did not answer when last asked, and why."""
        return self._sources.troubles

    def forget(self, model: str) -> None:
        """It is no longer looked at; when it is again, its windows begin anew."""
        self._windows.pop(model, None)
        self._configs.pop(model, None)

    async def signals(self, model: str, counts: Counts | None, now: float) -> Signals:
        """All models that are asked for with the same `now` share one look at what answers for all of them."""
        shared = self._look(now)
        stats, config, *_ = await asyncio.gather(
            self._ask_of(model, "statistics", self._triton.statistics),
            self._config(model),
            *(asyncio.wait({task}) for task in (shared.pending, shared.node, shared.gpu)),
        )
        windows = self._windows.setdefault(model, ModelWindows(self._spans))
        pending, node = shared.pending.result(), shared.node.result()
        self.gpu_figures = shared.gpu.result()
        is_reloaded = windows.take(
            Look(
                at_s=self._clock(),
                counters=counters_of(stats) if stats is not None else None,
                pending=pending.get(model) if pending is not None else None,
                engine=figures_of(node, model) if node is not None else None,
                gpu_utilization=self.gpu_figures.utilization if self.gpu_figures else None,
                num_ready=counts.ready if counts else None,
            )
        )
        if is_reloaded:
            self._configs.pop(model, None)
        return windows.signals(
            self._clock(),
            stale_after_s=self._stale_after_s(model),
            wakes=self._wakes(model),
            is_blind=config is None or config.model_transaction_policy.decoupled,
            has_pending=self._metrics is not None,
            gpu_share=self._gpu_share(model),
        )

    def _look(self, now: float) -> _Shared:
        if self._shared is None or self._shared.now != now:
            gpu = self._gpu
            self._shared = _Shared(
                now,
                pending=self._start(
                    "the metrics endpoint", self._metrics.pending() if self._metrics else None
                ),
                node=self._start("the node", self._node.status() if self._node else None),
                gpu=self._start("the GPU", asyncio.to_thread(gpu.read) if gpu else None),
            )
        return self._shared

    def _start(self, source: str, question: Awaitable[Any] | None) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self._sources.ask(source, question) if question else _nothing())

    async def _ask_of(self, model: str, what: str, ask: Callable[[str], Awaitable[Any]]) -> Any:
        return await self._sources.ask(f"Triton ({what} of {model})", ask(model))

    async def _config(self, model: str) -> Any:
        """Asked for once, and again after a reload: it says whether Triton sees what the model does, and where."""
        if model not in self._configs:
            config = await self._ask_of(model, "config", self._triton.config)
            if config is None:
                return None
            self._configs[model] = config
        return self._configs[model]

    def _gpu_share(self, model: str) -> float | None:
        """Of the device's busy time, the part that is this model's, by the compute times of all models on it.

        None: it does not run on the GPU. A model alone on its device has all of it.
        """
        if not self._on_gpu(model):
            return None
        busy = {name: windows.busy() for name, windows in self._windows.items() if self._on_gpu(name)}
        total = sum(busy.values())
        return busy[model] / total if total > 0 else 0.0

    def _on_gpu(self, model: str) -> bool:
        config = self._configs.get(model)
        return config is not None and any(
            group.kind == config.instance_group[0].KIND_GPU for group in config.instance_group
        )


async def _nothing() -> None:
    return None
