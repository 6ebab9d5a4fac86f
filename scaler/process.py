"""The scaler's parts put together, and taken apart in the order that leaves nothing half done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from grpc_reflection.v1alpha import reflection
from prometheus_client.core import Metric

from contracts import scaler_pb2, scaler_pb2_grpc
from contracts.metrics import MetricsServer, OnLoop
from scaler.acting.keda_server import KedaServer, open_access
from scaler.acting.kubernetes_api import KubernetesApi
from scaler.acting.target import Limits
from scaler.acting.targets import choose, lead, take_turn
from scaler.acting.traced_target import TracedTarget
from scaler.clock import steady_unix_clock
from scaler.config import ScalerConfig
from scaler.deciding.policy import ModelPolicy
from scaler.errors import ConfigInvalid, GpuUnreadable, NotLeader, OwnedByOther, StateHeld
from scaler.leading.leader import Leadership
from scaler.leading.led import LedBook
from scaler.looping.loop import Loop
from scaler.looping.wakes import Wakes
from scaler.measuring.collector import Collector
from scaler.measuring.figures import Spans
from scaler.measuring.gpu import GpuMeter
from scaler.measuring.sampled import Sampled
from scaler.measuring.triton_metrics import TritonMetrics
from scaler.node_client import NodeClient
from scaler.serving.book import Book
from scaler.serving.health import Health
from scaler.serving.kept_book import open_book
from scaler.serving.kept_start_times import KeptStartTimes
from scaler.serving.metrics import Tally, collect
from scaler.serving.server import server_of
from scaler.serving.service import ScalerService
from scaler.serving.watched_book import WatchedBook
from scaler.triton_client import TritonClient

STANDBY_S = 0.5
LAST_WORDS_S = 1.0
"""For calls that are being answered when the scaler stops."""

Say = Callable[[str], None]
T = TypeVar("T")


class ScalerProcess:
    """`async with ScalerProcess(...)`: it decides and serves inside. Raises ScaleError when it can't begin."""

    def __init__(self, config: ScalerConfig, environ: Mapping[str, str], *, say: Say) -> None:
        self._config = config
        self._environ = environ
        self._say = say
        self._clock = steady_unix_clock()
        self._parts = contextlib.AsyncExitStack()
        self._leadership: Leadership | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._parts.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._parts.aclose()

    async def broken(self) -> NoReturn:
        """Raises what ended a part that should never end; this process is of no use then."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        await done.pop()
        raise RuntimeError("a part of the scaler returned")

    async def _start(self) -> None:
        config, clock, parts = self._config, self._clock, self._parts
        access = config.access(self._environ)
        access.check()  # first: nothing is touched by one that must not listen
        api = self._kubernetes()
        leadership = lead(config, api, self._say)
        await self._patiently(lambda: take_turn(leadership, Path(config.state_dir)))
        book = open_book(
            Path(config.state_dir), config.policy_path, clock(), check_leads=self._check_leads, say=self._say
        )
        wakes = Wakes(clock)
        collector = self._collector(wakes, book)
        chosen = await self._patiently(
            lambda: choose(
                config, api, leadership, parts, limits=lambda model: _limits(book, model), say=self._say
            )
        )
        self._leadership = leadership
        server, port = server_of(access)
        if chosen.replicas is not None:  # before all else: KEDA asks once what to ask for (keda#7729)
            keda = open_access(config.keda_address, access)
            await parts.enter_async_context(KedaServer(chosen.replicas, keda))
        tally = Tally()
        loop = Loop(
            LedBook(WatchedBook(book, config.models), leadership),
            Sampled(collector, chosen.measured, 0.4 * config.tick_s) if api else collector,
            TracedTarget.around(chosen.target, config.spans_socket, config.triton_pid),
            clock=clock,
            say=self._say,
            tick_s=config.tick_s,
            start_times=KeptStartTimes(Path(config.state_dir), self._say, on_start=tally.started),
        )
        service = ScalerService(
            book,
            loop,
            clock=clock,
            wakes=wakes,
            target=chosen.words,
            lead_s=loop.start_times.lead_s,
            problems=lambda: self._problems(collector, leadership),
        )
        name = scaler_pb2.DESCRIPTOR.services_by_name["Scaler"].full_name
        health = Health(name)
        scaler_pb2_grpc.add_ScalerServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated
        health.add_to(server)
        reflection.enable_server_reflection((name, health.NAME, reflection.SERVICE_NAME), server)
        await server.start()
        parts.push_async_callback(server.stop, LAST_WORDS_S)
        self._serve_metrics(loop, tally)
        self._run(leadership.run())
        self._run(loop.run())  # ends before leadership is given up
        self._run(health.run(lambda: loop.last_tick_s, config.tick_s, clock))
        parts.push_async_callback(health.stop)
        scaled = ", ".join(book.policy.models) or "nothing: there is no policy"
        self._say(f"scaling {scaled}; {chosen.words}; gRPC on port {port}")

    def _serve_metrics(self, loop: Loop, tally: Tally) -> None:
        """Raises ConfigInvalid when the port is not to be had."""
        if not self._config.metrics_port:
            return

        def figures() -> Iterable[Metric]:
            age_s = None if loop.last_tick_s is None else max(0.0, self._clock() - loop.last_tick_s)
            yield from collect(loop.views(), age_s, loop.num_missed_ticks)
            yield from tally.collect()

        host, port = self._config.host, self._config.metrics_port
        try:
            served = MetricsServer(host, port, OnLoop(asyncio.get_running_loop(), figures))
        except OSError as exc:
            raise ConfigInvalid(f"metrics_port {port} on {host}: {exc.strerror}; choose another") from exc
        self._parts.push_async_callback(asyncio.to_thread, served.close)
        self._run(tally.follow(loop.subscribe()))

    def _problems(self, collector: Collector, leadership: Leadership) -> list[str]:
        found = [f"{source}: {why}" for source, why in collector.troubles.items()]
        return found if leadership.is_leader else [f"{leadership.leader} leads, this scaler watches", *found]

    def _kubernetes(self) -> KubernetesApi | None:
        if self._config.kubernetes is None:
            return None
        api = KubernetesApi(self._config.kubernetes.kubeconfig or None)
        self._parts.push_async_callback(api.close)
        return api

    async def _patiently(self, attempt: Callable[[], T]) -> T:
        """A standby tries until the other scaler is gone."""
        while True:
            try:
                return attempt()
            except (StateHeld, OwnedByOther):
                if not self._config.is_standby:
                    raise
            await asyncio.sleep(STANDBY_S)

    def _check_leads(self) -> None:
        """Raises NotLeader. Until the loop begins nobody else can say anything."""
        if self._leadership is not None and not self._leadership.is_leader:
            raise NotLeader(f"{self._leadership.leader} leads; say it there, this scaler only watches")

    def _collector(self, wakes: Wakes, book: Book) -> Collector:
        config = self._config
        triton = TritonClient(config.triton_grpc, config.triton_key())
        self._parts.push_async_callback(triton.close)
        metrics = TritonMetrics(config.triton_metrics) if config.triton_metrics else None
        node = NodeClient(config.node_socket) if config.node_socket else None
        for source in (metrics, node):
            if source is not None:
                self._parts.push_async_callback(source.close)
        return Collector(
            triton,
            clock=self._clock,
            metrics=metrics,
            node=node,
            gpu=self._gpu(),
            stale_after_s=lambda model: _policy_of(book, model).stale_after_s,
            wakes=wakes.num_waiting,
            ask_timeout_s=0.4 * config.tick_s,
            spans=Spans(utilization_s=config.window_s, queue_s=config.window_s / 3),
            say=self._say,
        )

    def _gpu(self) -> GpuMeter | None:
        try:
            return GpuMeter()
        except GpuUnreadable:
            return None  # most machines have none; the duty cycle serves

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """In a task; when this ends, it is cancelled and waited for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._parts.push_async_callback(end)


def _policy_of(book: Book, model: str) -> ModelPolicy:
    return book.policy.models.get(model) or ModelPolicy()


def _limits(book: Book, model: str) -> Limits:
    policy = _policy_of(book, model)
    return Limits(
        max_instances=policy.max_instances,
        drain_timeout_s=policy.drain_timeout_s,
        start_deadline_s=policy.start_deadline_s,
        longest_stream_s=policy.longest_stream_s,
    )
