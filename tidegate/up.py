"""`tidegate up`: telemetry, node, Triton with its models, gateway, scaler; until a signal, or until one dies.

Stops in reverse order, each drained. The node is started again when it dies (`node_process`), as Triton's stubs can
join the next one, and so are gateway and scaler (`scaler_process`); a stack that lost Triton ends with the reason.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from contracts.logs import FORMAT_VARIABLE
from contracts.stack import STACK_NAME, Stack, write_whole
from contracts.tracing.sending import SPANS_SOCKET_NAME, SPANS_SOCKET_VARIABLE
from contracts.tracing.store import STORE_NAME
from contracts.triton_key import TRITON_KEY_NAME
from gateway.routes import Routes, RoutesInvalid
from ledger.errors import LedgerError
from python_backend.node.added import ADDED_NAME
from scaler.deciding.policy import Policy
from scaler.errors import PolicyInvalid, ScaleError
from scaler.node_client import NodeClient
from scaler.serving.server import is_loopback
from scaler.serving.store import Store
from tidegate import ports, processes, repository, run_dir, triton_install
from tidegate.console import ConsoleProgress
from tidegate.cpu_tiers import read_cpu_flags, slow_tier_warnings
from tidegate.kept_process import KeptProcess
from tidegate.launch_errors import LaunchError, SettingsInvalid
from tidegate.load_progress import showing
from tidegate.node_process import NodeProcess
from tidegate.processes import Child
from tidegate.rollout_pins import pin_previous_versions
from tidegate.scaler_process import ScalerProcess, is_well
from tidegate.settings import Settings
from tidegate.telemetry_process import TelemetryProcess
from tidegate.triton_process import TritonPaths, TritonServer

LAST_WORDS_S = 5.0
"""The gateway's time past its own grace, to end what is still open with an error."""
WATCH_S = 0.25
"""Between two looks at the processes; a dead stub is known after two to three of them."""

SCALER_PROBE_TIMEOUT_S = 3.0
LOOPBACK = "127.0.0.1"
"""Of the OTLP port: what comes in there is believed."""

Say = Callable[[str], None]


def run_up(settings: Settings, *, as_json: bool = False) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code: 0 after a stop, 1 when something failed.

    Standard output gets what a reader or a script waits for (the URLs; with `as_json` the stack on one line),
    standard error what happens. Call it from the main thread.
    """
    try:
        run_dir.prepare(settings.run_dir)
        with run_dir.held(settings.run_dir):
            return asyncio.run(_serve(settings, as_json))
    except LaunchError as exc:
        say(str(exc))
        return 1


async def _serve(settings: Settings, as_json: bool) -> int:
    launcher = Launcher(settings, say)
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            say("second signal: killing what still runs")
            launcher.kill()
        stopping.set()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, on_signal)
    work = asyncio.create_task(_start_and_watch(launcher, as_json))
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return 0
        await work  # raises why it ended
    except LaunchError as exc:
        say(str(exc))
    finally:
        work.cancel()
        stopped.cancel()
        await asyncio.wait({work, stopped})
        if launcher.has_started_any:
            grace = f"{settings.stop_timeout_s:.0f} s"
            say(f"stopping; requests in flight have {grace} to finish, a second signal kills")
        await launcher.stop()
    return 1


async def _start_and_watch(launcher: Launcher, as_json: bool) -> None:
    stack = await launcher.start()
    print(msgspec.json.encode(stack).decode() if as_json else ready_text(stack), flush=True)
    await launcher.watch()


def without_password(url: str) -> str:
    """stack.json is read by others: `tidegate calls` takes the password from $TIDEGATE_LEDGER_URL."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{host}"))


def say(text: str) -> None:
    print(f"tidegate: {text}", file=sys.stderr, flush=True)


def ready_text(stack: Stack) -> str:
    """The ready line, and what to do with the stack."""
    lines = [f"tidegate is ready after {time.time() - stack.started_unix_s:.1f} s"]
    if stack.gateway_http:
        lines.append(f"  OpenAI API     {stack.gateway_scheme}://{stack.gateway_http}/v1")
        tls = " (TLS)" if stack.gateway_scheme == "https" else ""
        lines.append(f"  KServe gRPC    {stack.gateway_grpc}{tls}")
        lines.append(f"  console        {stack.gateway_scheme}://{stack.gateway_http}/console")
    if stack.scaler_grpc:
        lines.append(f"  scaler gRPC    {stack.scaler_grpc}")
    lines += [
        f"  Triton gRPC    {stack.triton_grpc}",
        f"  Triton HTTP    http://{stack.triton_http}/v2",
        f"  metrics        {', '.join(metrics_urls(stack).values())}",
        f"  models         {', '.join(model.name for model in stack.models)}",
        f"  logs           {stack.run_dir}/logs",
    ]
    return "\n".join(lines)


def metrics_urls(stack: Stack) -> dict[str, str]:
    """Prometheus' targets: the job's name -> URL."""
    urls = {"triton": f"http://{stack.triton_metrics}/metrics"}
    if stack.gateway_http:
        urls["gateway"] = f"{stack.gateway_scheme}://{stack.gateway_http}/metrics"
    if stack.scaler_metrics:
        urls["scaler"] = f"http://{stack.scaler_metrics}/metrics"
    if stack.node_metrics:
        urls["node"] = f"http://{stack.node_metrics}/metrics"
    return urls


def policy_text(policy: Path | None, state_dir: Path) -> str:
    """Whose policy the scaler follows; one that was set long ago must not surprise."""
    if Store(state_dir).path.exists():
        edited = f", and {policy} where it was edited since" if policy else ""
        return f"policy, pauses and reservations as kept in {state_dir}{edited}"
    if policy:
        return f"policy of {policy}"
    return "no policy, so it observes and changes nothing; `tidegate scaler policy set FILE` gives it one"


class Launcher:
    """The stack's processes, in the order of their start."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._trace_port = settings.trace_port
        self._telemetry: TelemetryProcess | None = None
        self._node: NodeProcess | None = None
        self._triton: TritonServer | None = None
        self._gateway: KeptProcess | None = None
        self._scaler: ScalerProcess | None = None
        self._pinning: asyncio.Task[None] | None = None

    async def start(self) -> Stack:
        """Everything ready, and stack.json written. Raises LaunchError; then `stop` what had started."""
        settings, started_unix_s = self._settings, time.time()
        self._check_policy()
        self._check_routes()
        install = triton_install.find(os.environ)
        triton_install.check_usable(install)
        ports.check_free(settings.host, settings.ports)
        paths = TritonPaths(
            binary=install.binary,
            backends=triton_install.prepare_backends(install, settings.run_dir / "triton" / "backends"),
            repository=settings.run_dir / "triton" / "repository",
            run_dir=settings.run_dir,
        )
        source = settings.repository or repository.shipped()
        models = repository.prepare(source, paths.repository, settings.models)
        if settings.traces:
            self._telemetry = self._start_telemetry()
        if settings.with_node and models.served:
            for text in slow_tier_warnings(models.served, read_cpu_flags()):
                self._say(f"warning: {text}")
            self._node = self._start_node(models)
            await self._node.first_ready()
        env = triton_install.server_environ(install, os.environ, settings.run_dir / "node.sock")
        if self._telemetry is not None:
            env[SPANS_SOCKET_VARIABLE] = self._spans_socket
            await self._telemetry.first_ready()
        await self._start_triton(paths, env)
        if settings.with_gateway:
            self._gateway = KeptProcess(
                spawn=lambda: self._spawn("gateway", "gateway", self._gateway_config(models)),
                wait_ready=self._wait_ready,
                on_ready=self._rewrite_stack,
                say=self._say,
            )
            await self._gateway.first_ready()
            if self._node is not None:
                await self._pin_rollouts()
        if settings.with_scaler:
            self._say(f"scaler: {policy_text(settings.policy, self._scaler_state_dir)}")
            self._scaler = ScalerProcess(
                spawn=lambda: self._spawn("scaler", "scaler", self._scaler_config(models)),
                wait_ready=self._wait_ready,
                on_ready=self._rewrite_stack,
                say=self._say,
                answers=lambda: is_well(self._scaler_address, SCALER_PROBE_TIMEOUT_S),
                hang_timeout_s=settings.node_hang_timeout_s,
            )
            await self._scaler.first_ready()
        self._started = (models, started_unix_s)
        return self._write_stack(models, started_unix_s)

    def _start_telemetry(self) -> TelemetryProcess:
        if not self._trace_port:
            self._trace_port = ports.any_free(LOOPBACK)
        return TelemetryProcess(
            spawn=lambda: self._spawn("telemetry", "telemetry", self._telemetry_config()),
            wait_ready=self._wait_ready,
            say=self._say,
        )

    def _start_node(self, models: repository.Repository) -> NodeProcess:
        # Of a stack that was killed: only nodes of one stack inherit from each other.
        (self._settings.run_dir / ADDED_NAME).unlink(missing_ok=True)
        return NodeProcess(
            spawn=lambda: self._spawn("node", "python_backend.node", self._node_config(models)),
            wait_ready=self._wait_ready,
            on_ready=self._on_node_ready,
            control_socket=self._control_socket,
            hang_timeout_s=self._settings.node_hang_timeout_s,
            say=self._say,
        )

    async def _start_triton(self, paths: TritonPaths, env: dict[str, str]) -> None:
        settings = self._settings
        before = repository.fingerprint(paths.repository)
        started_s = time.monotonic()
        self._say(f"starting Triton ({paths.binary}) with {', '.join(settings.models)}")
        otlp_url = f"http://{LOOPBACK}:{self._trace_port}/v1/traces" if self._telemetry else ""
        self._triton = TritonServer.start(settings, paths, settings.models, env, self._say, otlp_url)
        await self._triton.wait_ready()
        self._say(f"Triton is ready after {time.monotonic() - started_s:.1f} s")
        if repository.fingerprint(paths.repository) != before:
            self._say(
                f"warning: the load wrote into {paths.repository}; the first scale-out will be a full reload"
            )

    def _spawn(self, name: str, module: str, config: dict[str, object]) -> Child:
        """`python -m module --config RUN_DIR/NAME.json`."""
        self._say(f"starting {name}")
        config_path = self._settings.run_dir / f"{name}.json"
        write_whole(config_path, msgspec.json.format(msgspec.json.encode(config)))
        argv = [sys.executable, "-m", module, "--config", str(config_path)]
        env = os.environ | {FORMAT_VARIABLE: self._settings.log_format}
        return processes.start(name, argv, env=env, log_dir=self._settings.run_dir / "logs")

    async def _wait_ready(self, child: Child) -> None:
        started_s = time.monotonic()
        with ConsoleProgress() as progress:
            is_ready = showing(processes.ready_line(child), child.log_text, progress)
            await processes.wait_ready(child, is_ready, self._settings.start_timeout_s)
        self._say(f"{child.name} is ready after {time.monotonic() - started_s:.1f} s")

    def _telemetry_config(self) -> dict[str, object]:
        return {
            "spans_socket": self._spans_socket,
            "store_path": str(self._settings.run_dir.absolute() / STORE_NAME),
            "host": LOOPBACK,
            "port": self._trace_port,
            "otlp_endpoint": self._settings.otlp_endpoint,
        }

    def _node_config(self, models: repository.Repository) -> dict[str, object]:
        names = {model.name for model in models.served}
        return {
            "run_dir": str(self._settings.run_dir),
            "pool_bytes": self._settings.pool_bytes,
            "pool_share": self._settings.pool_share,
            "weights_budget_bytes": self._settings.weights_budget_bytes,
            "device": self._settings.device,
            "num_cpus": self._settings.num_cpus,
            "worker_hang_timeout_s": self._settings.worker_hang_timeout_s,
            "metrics_host": self._settings.host,
            "metrics_port": self._settings.node_metrics_port,
            "models": models.served,
            "spares": {name: num for name, num in self._settings.spares.items() if name in names},
        }

    def _gateway_config(self, models: repository.Repository) -> dict[str, object]:
        talking = [model for model in models.served if model.kind != "batch"]
        names = {model.name for model in talking}
        return {
            "host": self._settings.host,
            "port": self._settings.gateway_port,
            "grpc_port": self._settings.gateway_grpc_port,
            "batch_models": [name for name in self._settings.models if name not in names],
            "triton_grpc": self._address(self._settings.triton_grpc_port),
            "triton_key_file": str(self._settings.run_dir.absolute() / TRITON_KEY_NAME),
            "models": talking,
            "drain_grace_s": max(1, int(self._settings.stop_timeout_s)),
            "scaler_grpc": self._scaler_address if self._settings.with_scaler else "",
            "node_socket": self._control_socket if self._node else "",
            "triton_metrics": self._address(self._settings.triton_metrics_port),
            "traces_path": str(self._settings.run_dir.absolute() / STORE_NAME) if self._telemetry else "",
            "ledger_url": self._settings.ledger_url_used,
            "routes_path": str(self._settings.routes.absolute()) if self._settings.routes else "",
            "requires_keys": self._settings.requires_keys,
            "redis_url": self._settings.redis_url,
            **{
                name: str(path.absolute())
                for name in ("tls_cert", "tls_key", "tls_client_ca")
                if (path := getattr(self._settings, name)) is not None
            },
            "keeps_prompts": self._settings.keeps_prompts,
            "spans_socket": self._spans_socket if self._telemetry else "",
            "trace_ratio": self._settings.trace_ratio,
            "trace_slow_s": self._settings.trace_slow_s,
        }

    def _check_policy(self) -> None:
        """Before anything starts. Raises SettingsInvalid with every problem."""
        path = self._settings.policy
        if path is None:
            return
        if not self._settings.with_scaler:
            raise SettingsInvalid("--policy needs a scaler; leave out --no-scaler")
        try:
            Policy.read(path)
        except PolicyInvalid as exc:
            raise SettingsInvalid("\n".join(f"{path}: {problem}" for problem in exc.problems)) from exc
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsInvalid(f"--policy {path} can't be read: {exc}") from exc

    def _check_routes(self) -> None:
        """As `_check_policy`: the gateway, which starts last, would refuse them too."""
        path = self._settings.routes
        if path is None:
            return
        try:
            Routes.parse(path.read_text(), self._settings.models)
        except RoutesInvalid as exc:
            raise SettingsInvalid("\n".join(f"{path}: {problem}" for problem in exc.problems)) from exc
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsInvalid(f"--routes {path} can't be read: {exc}") from exc

    @property
    def has_started_any(self) -> bool:
        return any((self._telemetry, self._node, self._triton, self._gateway, self._scaler))

    @property
    def _scaler_state_dir(self) -> Path:
        return self._settings.scaler_state_dir or self._settings.run_dir / "scaler"

    def _scaler_config(self, models: repository.Repository) -> dict[str, object]:
        settings = self._settings
        return {
            "host": self._scaler_host,
            "port": settings.scaler_port,
            "metrics_port": settings.scaler_metrics_port,
            "state_dir": str(self._scaler_state_dir),
            "policy_path": str(settings.policy.absolute()) if settings.policy else "",
            "models": settings.models,
            "triton_grpc": self._address(settings.triton_grpc_port),
            "triton_key_file": str(settings.run_dir.absolute() / TRITON_KEY_NAME),
            "triton_metrics": self._address(settings.triton_metrics_port),
            "triton_pid": self._triton.child.pid if self._triton else 0,
            "node_socket": self._control_socket if self._node else "",
            "run_dir": str(settings.run_dir),
            "spans_socket": self._spans_socket if self._telemetry else "",
        }

    @property
    def _scaler_address(self) -> str:
        return f"{self._scaler_host}:{self._settings.scaler_port}"

    @property
    def _scaler_host(self) -> str:
        """Who commands the scaler sits at this machine, also where the models are served to others."""
        return self._settings.host if is_loopback(self._settings.host) else "127.0.0.1"

    def _address(self, port: int) -> str:
        return f"{self._settings.host}:{port}"

    def _write_stack(self, models: repository.Repository, started_unix_s: float) -> Stack:
        settings = self._settings
        stack = Stack(
            pid=os.getpid(),
            run_dir=str(settings.run_dir),
            node_socket=self._control_socket if self._node else "",
            triton_http=self._address(settings.triton_http_port),
            triton_grpc=self._address(settings.triton_grpc_port),
            triton_metrics=self._address(settings.triton_metrics_port),
            gateway_http=self._address(settings.gateway_port) if self._gateway else "",
            gateway_scheme="https" if settings.tls_cert else "http",
            gateway_grpc=self._address(settings.gateway_grpc_port) if self._gateway else "",
            scaler_grpc=self._scaler_address if self._scaler else "",
            scaler_metrics=f"{self._scaler_host}:{settings.scaler_metrics_port}"
            if self._scaler and settings.scaler_metrics_port
            else "",
            node_metrics=self._address(settings.node_metrics_port)
            if self._node and settings.node_metrics_port
            else "",
            ledger_url=without_password(settings.ledger_url_used),
            models=list(models.served),
            otlp_http=f"{LOOPBACK}:{self._trace_port}" if self._telemetry else "",
            pids={child.name: child.pid for child in self._children()},
            started_unix_s=started_unix_s,
        )
        write_whole(self._stack_path, msgspec.json.format(msgspec.json.encode(stack)))
        return stack

    def _rewrite_stack(self) -> None:
        """One of them has another pid now."""
        if self._stack_path.exists():
            self._write_stack(*self._started)

    def _on_node_ready(self) -> None:
        self._rewrite_stack()
        self._pinning = asyncio.create_task(self._pin_rollouts())

    async def _pin_rollouts(self) -> None:
        """A node that starts has nothing pinned; what a rollout may go back to stays in its pool all the same."""
        try:
            await pin_previous_versions(self._control_socket, self._settings.ledger_url_used)
        except (LedgerError, ScaleError) as exc:
            self._say(f"warning: weights of versions before a rollout are not pinned: {exc}")

    @property
    def _spans_socket(self) -> str:
        return str(self._settings.run_dir.absolute() / SPANS_SOCKET_NAME)

    @property
    def _control_socket(self) -> str:
        return str(self._settings.run_dir / "control.sock")

    @property
    def _stack_path(self) -> Path:
        return self._settings.run_dir / STACK_NAME

    def _children(self) -> list[Child]:
        node = self._node.child if self._node else None
        triton = self._triton.child if self._triton else None
        scaler = self._scaler.child if self._scaler else None
        telemetry = self._telemetry.child if self._telemetry else None
        gateway = self._gateway.child if self._gateway else None
        started = (telemetry, node, triton, gateway, scaler)
        return [child for child in started if child is not None]

    async def watch(self) -> None:
        """Returns never. Raises ProcessFailed when a process has died for good."""
        while True:
            if self._telemetry:
                self._telemetry.watch()
            if self._node:
                self._node.watch()
            if self._triton:
                self._triton.watch()
            if self._gateway:
                self._gateway.watch()
            if self._scaler:
                self._scaler.watch()
            await asyncio.sleep(WATCH_S)

    async def _num_in_flight(self) -> int | None:
        if self._node is None or self._node.child.exit_code is not None:
            return None
        client = NodeClient(self._control_socket)
        try:
            return sum(instance.in_flight for instance in (await client.status()).instances)
        except ScaleError:
            return None
        finally:
            await client.close()

    def kill(self) -> None:
        """Don't wait for anything in flight. `stop` still has to clear up."""
        for child in self._children():
            processes.kill_group(child)

    async def stop(self) -> None:
        """In reverse order, each drained; nothing of them is left afterwards. Harmless when nothing runs."""
        self._stack_path.unlink(missing_ok=True)
        timeout_s = self._settings.stop_timeout_s
        # First, so that it scales nothing that is being taken down; what it drains serves on.
        if self._scaler and not await self._scaler.stop(timeout_s):
            self._say(f"scaler did not stop within {timeout_s:.0f} s and was killed")
        # Past its grace the gateway tells the streams that are left that they are cut: it needs a moment for that.
        if self._gateway and not await self._gateway.stop(timeout_s + LAST_WORDS_S):
            self._say(f"gateway did not stop within {timeout_s:.0f} s and was killed")
        if self._triton:
            await self._triton.stop(self._num_in_flight)
        if self._node and not await self._node.stop(timeout_s):
            self._say(f"node did not stop within {timeout_s:.0f} s and was killed")
        # Last, for the spans of all the others' ends.
        if self._telemetry:
            await self._telemetry.stop(LAST_WORDS_S)
