"""The node from start to stop: memory and fork server first, then models, then spares, then the ready line."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from contracts.metrics import MetricsServer, OnLoop
from python_backend.board import NUM_SLOTS, Board
from python_backend.messages import SpawnWorker, WorkerExited, WorkerSpawned
from python_backend.node.added import ADDED_NAME, AddedModel, read_added, write_added
from python_backend.node.arena import Arena, CpuArena
from python_backend.node.broker import BoardShare, Broker
from python_backend.node.config import NodeConfig
from python_backend.node.control import NodeView, describe, start_control
from python_backend.node.errors import ConfigInvalid, NodeAlreadyRuns, NodeError, PoolInconsistent
from python_backend.node.forkserver import FORKSERVER_COMMAND, ForkServer, describe_exit
from python_backend.node.hosting import ModelHost
from python_backend.node.instances import Instances, Slots
from python_backend.node.metrics import collect
from python_backend.node.peers import Listener
from python_backend.node.pool import Pool
from python_backend.node.pool_status import RecentHighWater, page_of
from python_backend.node.residency import Residency
from python_backend.node.spares import REPLENISH_DELAY_S, SparePlanner, Worker
from python_backend.node.watch import HangWatch
from python_backend.node.weights import WeightKeeper
from python_backend.node.workers import STOP_TIMEOUT_S, Workers
from python_backend.stats_page import STATS_NAME, StatsWriter

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
WATCH_INTERVAL_S = 0.5
STATS_INTERVAL_S = 0.1
NODE_SOCKET = "node.sock"
CONTROL_SOCKET = "control.sock"
LOCK_NAME = "node.lock"


def print_ready() -> None:
    print("tidegate-ready node", flush=True)


@dataclass(frozen=True)
class DaemonOptions:
    """What only tests change."""

    forkserver_command: Sequence[str] = FORKSERVER_COMMAND
    replenish_delay_s: float = REPLENISH_DELAY_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    on_ready: Callable[[], None] = print_ready


class Daemon:
    """One node. `run` serves until `stop` is called, and leaves nothing behind."""

    def __init__(self, config: NodeConfig, options: DaemonOptions | None = None) -> None:
        self._config = config
        self._options = options or DaemonOptions()
        self._run_dir = Path(config.run_dir)
        self._stop = asyncio.Event()
        self._kv_fd = -1
        self._kv_bytes = 0
        self._recent = RecentHighWater()

    def stop(self) -> None:
        """Make `run` return. Harmless when repeated."""
        self._stop.set()

    async def run(self) -> None:
        """Raises NodeError when the node cannot serve (any more); everything is cleaned up by then."""
        async with AsyncExitStack() as stack:
            lock_run_dir(self._run_dir, stack)
            self._arena = open_arena(self._config.device)
            stack.callback(self._arena.close)
            self._fork_server = ForkServer(self._options.forkserver_command, self._worker_news)
            stack.push_async_callback(self._fork_server.stop)
            self._broker = self._make_broker(stack)
            stack.push_async_callback(self._broker.close)
            self._host = self._make_host()
            await self._serve(stack)

    async def _serve(self, stack: AsyncExitStack) -> None:
        """Until `stop`, or until something that cannot be mended."""
        tasks = [
            asyncio.create_task(self._bring_up(stack)),
            asyncio.create_task(self._watch_fork_server()),
            asyncio.create_task(self._check_forever()),
            asyncio.create_task(self._watch_workers()),
            asyncio.create_task(self._publish_stats()),
        ]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            pending = {*tasks, stopping}
            while not stopping.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)

    async def _bring_up(self, stack: AsyncExitStack) -> None:
        config = self._config
        listener = Listener(self._run_dir / NODE_SOCKET, self._broker.connect)
        stack.callback(listener.close)
        view = NodeView(self._broker, self._board, self._host, tuple(config.models), self._recent)
        control = await start_control(self._run_dir / CONTROL_SOCKET, view)
        stack.push_async_callback(control.stop, 0.5)
        self._serve_metrics(view, stack)
        self._kv_fd = await asyncio.to_thread(self._arena.create_kv, self._kv_bytes)
        await self._host.start(config.models)
        await self._broker.wait_for_spares(
            {model.name: config.num_spares(model.name) for model in config.models}
        )
        logger.info("ready: %s", ", ".join(model.name for model in config.models))
        self._options.on_ready()
        await self._add_again()
        self._host.on_change = self._remember_added
        stack.callback(self._added_path.unlink, missing_ok=True)

    def _serve_metrics(self, view: NodeView, stack: AsyncExitStack) -> None:
        """Raises ConfigInvalid when the port is not to be had."""
        host, port = self._config.metrics_host, self._config.metrics_port
        if not port:
            return
        figures = OnLoop(asyncio.get_running_loop(), lambda: collect(describe(view)))
        try:
            server = MetricsServer(host, port, figures)
        except OSError as exc:
            raise ConfigInvalid(f"metrics_port {port} on {host}: {exc.strerror}; choose another") from exc
        stack.push_async_callback(asyncio.to_thread, server.close)

    async def _add_again(self) -> None:
        """What a node before this one, which was killed, had been told to serve beside its configuration."""
        for added in read_added(self._added_path):
            try:
                await self._host.serve(added.served, added.num_spares)
            except NodeError:
                logger.exception("model %s, added before the node died, cannot be served", added.served.name)

    def _remember_added(self) -> None:
        configured = {model.name for model in self._config.models}
        added = [
            AddedModel(served, self._broker.planner.target(name))
            for name, served in self._host.served.items()
            if name not in configured
        ]
        write_added(self._added_path, added)

    @property
    def _added_path(self) -> Path:
        return self._run_dir / ADDED_NAME

    def _make_host(self) -> ModelHost:
        free_bytes = max(0, self._arena.available_bytes() - self._kv_bytes)
        residency = Residency(self._config.weights_budget_bytes or free_bytes)
        keeper = WeightKeeper(self._arena, residency, self._run_dir)
        return ModelHost(keeper, self._fork_server, self._broker, self._kv_bytes, self._arena.device)

    def _make_broker(self, stack: AsyncExitStack) -> Broker:
        config = self._config
        self._board, board_fd = Board.create(config.cpu_budget())
        stack.callback(os.close, board_fd)
        stack.callback(self._board.close)
        self._kv_bytes = config.pool_size_bytes(self._arena.available_bytes)
        names = [model.name for model in config.models]
        return Broker(
            models=names,
            shared=BoardShare(self._board, board_fd),
            pool=Pool(self._kv_bytes),
            instances=Instances(Slots(NUM_SLOTS)),
            planner=SparePlanner(
                {name: config.num_spares(name) for name in names},
                max_warming=config.cpu_budget(),
                replenish_delay_s=self._options.replenish_delay_s,
            ),
            make_workers=lambda on_message, on_gone: Workers(
                self._spawn, on_message, on_gone, self._options.stop_timeout_s
            ),
        )

    def _spawn(self, worker: Worker, control: socket.socket) -> bool:
        has_kv = self._broker.bound[worker.model].block_bytes > 0
        message = SpawnWorker(worker.model, worker.id, self._kv_bytes if has_kv else 0)
        fds = [control.fileno(), self._kv_fd] if has_kv else [control.fileno()]
        return self._fork_server.spawn(message, fds)

    def _worker_news(self, message: WorkerSpawned | WorkerExited) -> None:
        """A worker's end is noticed by its pidfd; the fork server adds how it ended."""
        match message:
            case WorkerSpawned(worker_id=worker_id, pid=pid):
                self._broker.worker_spawned(worker_id, pid)
            case WorkerExited(pid=pid, status=status):
                log = logger.warning if status else logger.info
                log("worker pid %d %s", pid, describe_exit(status))

    async def _watch_fork_server(self) -> None:
        raise await self._fork_server.wait_lost()

    async def _publish_stats(self) -> None:
        """For whoever samples: a page that costs its readers no call. The pool is tidied first, when it changed."""
        writer = StatsWriter(self._run_dir / STATS_NAME)
        pool = self._broker.desk.pool
        mark = pool.watch_high_water()
        num_changes = -1
        try:
            while True:
                if pool.num_changes != num_changes:
                    pool.tidy()
                    num_changes = pool.num_changes
                page = page_of(pool, list(self._broker.bound), time.time())
                writer.write(page)
                self._recent.note(mark.take()[0], time.monotonic())
                await asyncio.sleep(STATS_INTERVAL_S)
        finally:
            mark.close()
            writer.close()

    async def _watch_workers(self) -> None:
        watch = HangWatch(self._config.worker_hang_timeout_s)
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self._broker.kill_hung(watch)

    async def _check_forever(self) -> None:
        """When nothing has happened for a while. A broken book is logged, not fatal: what serves goes on."""
        pool = self._broker.desk.pool
        num_checked = num_changes = -1
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            is_idle, num_changes = pool.num_changes == num_changes, pool.num_changes
            if is_idle and num_checked != num_changes and await self._check_books(pool):
                num_checked = num_changes

    async def _check_books(self, pool: Pool) -> bool:
        """False: it was broken off, the pool is in use again."""
        num_changes = pool.num_changes
        try:
            for _ in pool.check_in_steps():
                await asyncio.sleep(0)
                if pool.num_changes != num_changes:
                    return False
        except PoolInconsistent:
            logger.exception("the pool's books do not add up")
        return True


def open_arena(device: str) -> Arena:
    """Raises NodeError when there is no such device."""
    if device == "cpu":
        return CpuArena()
    cuda_arena = importlib.import_module(
        "python_backend.node.cuda_arena"
    )  # needs what only a GPU's machine has
    arena: Arena = cuda_arena.CudaArena(device)
    return arena


def lock_run_dir(run_dir: Path, stack: AsyncExitStack) -> None:
    """Make the folder private and ours alone as long as `stack` stands. Raises ConfigInvalid, NodeAlreadyRuns."""
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if run_dir.stat().st_uid != os.getuid():
            raise ConfigInvalid(f"run_dir {run_dir} belongs to another user; choose one of your own")
        run_dir.chmod(0o700)
        fd = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigInvalid(f"run_dir {run_dir}: {exc}") from exc
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        raise NodeAlreadyRuns(
            f"a node daemon (pid {holder}) runs in {run_dir}; stop it or choose another run_dir"
        ) from exc
    for table in run_dir.glob("tensors-*.json"):  # of a node that was killed
        table.unlink()
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
