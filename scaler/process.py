"""The scaler's parts put together, and taken apart in the order that leaves nothing half done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpc_reflection.v1alpha import reflection

from contracts import scaler_pb2, scaler_pb2_grpc
from scaler.book import Book, WatchedBook
from scaler.clock import steady_unix_clock
from scaler.collector import Collector
from scaler.config import ScalerConfig
from scaler.errors import ConfigInvalid, GpuUnreadable, PolicyInvalid
from scaler.gpu import GpuMeter
from scaler.health import Health
from scaler.loop import Loop
from scaler.node_client import NodeClient
from scaler.policy import ModelPolicy
from scaler.server import server_of
from scaler.service import ScalerService
from scaler.store import Store
from scaler.target import Limits
from scaler.triton_client import TritonClient
from scaler.triton_metrics import TritonMetrics
from scaler.triton_target import TritonTarget
from scaler.wakes import Wakes

LAST_WORDS_S = 1.0
"""For calls that are being answered when the scaler stops."""

Say = Callable[[str], None]


class ScalerProcess:
    """`async with ScalerProcess(...)`: it decides and serves inside. Raises ScaleError when it can't begin."""

    def __init__(self, config: ScalerConfig, environ: Mapping[str, str], *, say: Say) -> None:
        self._config = config
        self._environ = environ
        self._say = say
        self._clock = steady_unix_clock()
        self._parts = contextlib.AsyncExitStack()

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

    async def _start(self) -> None:
        config, clock, parts = self._config, self._clock, self._parts
        server, port = server_of(
            config.access(self._environ)
        )  # first: nothing is touched if it must not listen
        book = self._open_book()
        wakes = Wakes(clock)
        collector = self._collector(wakes, book)
        loop = Loop(
            WatchedBook(book, config.models),
            collector,
            self._target(book),
            clock=clock,
            say=self._say,
            tick_s=config.tick_s,
        )
        service = ScalerService(
            book,
            loop,
            clock=clock,
            wakes=wakes,
            target=f"{config.target} {config.triton_grpc}",
            lead_s=loop.start_times.lead_s,
            problems=lambda: [f"{source}: {why}" for source, why in collector.troubles.items()],
        )
        name = scaler_pb2.DESCRIPTOR.services_by_name["Scaler"].full_name
        health = Health(name)
        scaler_pb2_grpc.add_ScalerServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated
        health.add_to(server)
        reflection.enable_server_reflection((name, health.NAME, reflection.SERVICE_NAME), server)
        await server.start()
        parts.push_async_callback(server.stop, LAST_WORDS_S)
        self._run(loop.run())
        self._run(health.run(lambda: loop.last_tick_s, config.tick_s, clock))
        parts.push_async_callback(health.stop)
        self._say(
            f"scaling {', '.join(book.policy.models) or 'nothing: there is no policy'}; gRPC on port {port}"
        )

    def _open_book(self) -> Book:
        """As it was kept, with the policy file where that says something new."""
        store = Store(Path(self._config.state_dir))
        store.hold()
        self._parts.callback(store.release)
        book = Book(store.load(), keep=store.save)
        path = self._config.policy_path
        if not path:
            return book
        try:
            if book.follow_file(Path(path).read_text(), self._clock(), path):
                self._say(f"policy revision {book.revision}, from {path}")
        except PolicyInvalid as exc:
            if not book.revision:
                raise PolicyInvalid([f"{path}: {problem}" for problem in exc.problems]) from exc
            self._say(f"policy revision {book.revision} stays: {path} is refused: {exc}")
        except (OSError, UnicodeDecodeError) as exc:
            if not book.revision:
                raise ConfigInvalid(f"policy_path {path} can't be read: {exc}") from exc
            self._say(f"policy revision {book.revision} stays: {path} can't be read: {exc}")
        return book

    def _collector(self, wakes: Wakes, book: Book) -> Collector:
        config = self._config
        triton = TritonClient(config.triton_grpc)
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
            say=self._say,
        )

    def _gpu(self) -> GpuMeter | None:
        try:
            return GpuMeter()
        except GpuUnreadable:
            return None  # most machines have none; the duty cycle serves

    def _target(self, book: Book) -> TritonTarget:
        config = self._config
        target = TritonTarget(
            config.triton_grpc,
            Path(config.run_dir or config.state_dir),
            node_socket=config.node_socket,
            triton_pid=config.triton_pid,
            limits=lambda model: _limits(_policy_of(book, model)),
            say=self._say,
        )
        self._parts.push_async_callback(target.close)
        return target

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """In a task; when this ends, it is cancelled and waited for."""
        task = asyncio.create_task(work)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._parts.push_async_callback(end)


def _policy_of(book: Book, model: str) -> ModelPolicy:
    return book.policy.models.get(model) or ModelPolicy()


def _limits(policy: ModelPolicy) -> Limits:
    return Limits(policy.max_instances, policy.drain_timeout_s, policy.start_deadline_s)
