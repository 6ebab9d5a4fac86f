"""One tritonserver: its command line, its readiness, its own words when a model fails, its stubs, its end.

Restarts nothing silently: a crash of the server ends the stack with the reason; a dead stub, which Triton would
go on to call READY, is said in the log, and its model is reloaded as it was.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from google.protobuf import json_format

from scaler.acting.model_lock import ModelLock
from scaler.errors import ModelUnknown, ScaleError
from scaler.triton_client import TritonClient
from tidegate import processes, stubs, triton_key
from tidegate.launch_errors import ModelLoadFailed, ProcessFailed
from tidegate.settings import Settings

NAME = "tritonserver"
ERROR_LINE = re.compile(r'E\d{4} [\d:.]+ \d+ (?P<where>\S+)\] "(?P<text>.*)"')
INFO_LINE = re.compile(r"^I\d{4} ", re.MULTILINE)
USUAL_ERRORS = ("CudaDriverHelper has not been initialized",)
"""Lines that every start without a GPU has."""
RELOAD_TIMEOUT_S = 60.0
UNLOAD_POLL_S = 0.05

IDLE_BEFORE_KILL_S = 4.0
"""At a stop: instances without work for so long, and Triton that is still there, waits for what can't end."""
IDLE_POLL_S = 0.25

Say = Callable[[str], None]
InFlight = Callable[[], Awaitable[int | None]]
"""Requests that the instances have in flight; None when nobody can tell."""


@dataclass(frozen=True)
class TritonPaths:
    """Where this Triton's files lie."""

    binary: Path
    backends: Path | None
    repository: Path
    run_dir: Path

    @property
    def stub_record(self) -> Path:
        return self.run_dir / "triton" / "stubs.json"


def argv(
    settings: Settings, paths: TritonPaths, models: Sequence[str], key: str, otlp_url: str = ""
) -> list[str]:
    """The whole command line. `otlp_url`: where Triton's own spans go; "": nowhere."""
    return [
        str(paths.binary),
        f"--model-repository={paths.repository}",
        *([f"--backend-directory={paths.backends}"] if paths.backends else []),
        "--model-control-mode=explicit",
        # Else every load starts one more stub, only to ask it for its config.
        "--disable-auto-complete-config",
        *(f"--load-model={model}" for model in models),
        # Without it an instance update never returns while requests queue (test_scale_under_queue).
        "--rate-limit=execution_count",
        f"--http-address={settings.host}",
        f"--http-port={settings.triton_http_port}",
        f"--grpc-address={settings.host}",
        f"--grpc-port={settings.triton_grpc_port}",
        "--allow-metrics=true",
        f"--metrics-address={settings.host}",
        f"--metrics-port={settings.triton_metrics_port}",
        f"--exit-timeout-secs={max(1, int(settings.stop_timeout_s))}",
        *triton_key.restrictions(key, also_inference=settings.requires_keys),
        *(tracing_options(otlp_url) if otlp_url else []),
    ]


def tracing_options(otlp_url: str) -> list[str]:
    """Rate 0: it traces the requests that bring a context, and no others."""
    given = (
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=0",
        "count=-1",
        f"opentelemetry,url={otlp_url}",
        "opentelemetry,bsp_schedule_delay=1000",
        "opentelemetry,resource=service.name=triton-inference-server",
    )
    return [f"--trace-config={option}" for option in given]


def error_lines(log_text: str) -> list[str]:
    """Triton's own error lines, unescaped and without those that every start has, each text once."""
    found: dict[str, None] = {}
    for match in ERROR_LINE.finditer(log_text):
        text = match["text"].replace("\\n", "\n").replace('\\"', '"').strip()
        if not any(usual in text for usual in USUAL_ERRORS):
            found[text] = None
    return list(found)


class TritonServer:
    """Start it, wait for it, watch it a few times a second, stop it."""

    def __init__(
        self, settings: Settings, paths: TritonPaths, child: processes.Child, key: str, say: Say
    ) -> None:
        self._settings = settings
        self._key = key
        self._is_key_hidden = False
        self._paths = paths
        self.child = child
        self._say = say
        self._book = stubs.StubBook(child.pid, paths.stub_record)
        self._reloads: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def start(
        cls,
        settings: Settings,
        paths: TritonPaths,
        models: Sequence[str],
        env: dict[str, str],
        say: Say,
        otlp_url: str = "",
    ) -> TritonServer:
        for line in stubs.clear_record(paths.stub_record):
            say(f"left by a crash of the stack before: {line}")
        log_dir = paths.run_dir / "logs"
        key = triton_key.make_key(paths.run_dir)
        child = processes.start(NAME, argv(settings, paths, models, key, otlp_url), env=env, log_dir=log_dir)
        return cls(settings, paths, child, key, say)

    async def wait_ready(self) -> None:
        """All models loaded. Raises ModelLoadFailed with Triton's own error, ProcessFailed, StartTimeout."""
        url = f"http://{self._settings.host}:{self._settings.triton_http_port}/v2/health/ready"
        async with httpx.AsyncClient(timeout=2, trust_env=False) as http:

            async def is_ready() -> bool:
                self._book.look()
                self._hide_key()
                try:
                    return (await http.get(url)).status_code == 200
                except httpx.TransportError:
                    return False

            try:
                await processes.wait_ready(self.child, is_ready, self._settings.start_timeout_s)
            except ProcessFailed as exc:
                if errors := error_lines(self.child.log_text()):
                    raise ModelLoadFailed(describe_errors(errors, self.child)) from exc
                raise

    def _hide_key(self) -> None:
        # Its first line of information comes after it has read its options.
        if self._is_key_hidden or not INFO_LINE.search(self.child.log_text()):
            return
        self._is_key_hidden = True
        if not triton_key.hide(self.child.pid, self._key) and self.child.exit_code is None:
            self._say("warning: Triton's key can be read in its command line by every user of this machine")

    def watch(self) -> None:
        """Raises ProcessFailed when the server is gone, or a reload failed (then it is killed: draining would wait
        for what can't end). Begins to reload the model of each stub found dead."""
        if self.child.exit_code is not None:
            raise ProcessFailed(processes.describe_exit(self.child))
        for stub in self._book.look():
            name = f"of instance {stub.instance}" if stub.model else "of an instance just made"
            self._say(f"stub {stub.pid} {name} died, which Triton does not notice; reloading its model")
            if stub.model not in self._reloads:
                reload = self._reload(stub.model, stub.instance) if stub.model else self._reload_incomplete()
                self._reloads[stub.model] = asyncio.create_task(reload)
        for model in [model for model, task in self._reloads.items() if task.done()]:
            if failure := self._reloads.pop(model).exception():
                processes.kill_group(self.child)
                raise failure

    async def _reload_incomplete(self) -> None:
        """Reload every model that has an instance without a living stub."""
        client = self._client()
        try:
            for entry in await client.index():
                groups = (await client.config(entry.name)).instance_group if entry.state == "READY" else []
                if not {group.name for group in groups} <= self._book.serving(entry.name):
                    await self._reload(entry.name)
        except ScaleError as exc:
            raise ProcessFailed(f"a stub died and its model could not be found out: {exc}") from exc
        finally:
            await client.close()

    def _client(self) -> TritonClient:
        return TritonClient(f"{self._settings.host}:{self._settings.triton_grpc_port}", self._key)

    async def _reload(self, model: str, instance: str = "") -> None:
        """Unload and load `model` with the config it had. Nothing when `instance`, the one that died, was not
        served yet: a start that the scaler gave up, which Triton drops itself. Raises ProcessFailed when it does
        not work: a model that Triton calls READY and that serves no one must not go on."""
        started_s = time.monotonic()
        client = self._client()
        try:
            async with ModelLock(self._paths.run_dir, model, RELOAD_TIMEOUT_S):
                config = await client.config(model)
                if instance and instance not in {group.name for group in config.instance_group}:
                    return self._say(f"{model}: {instance} was never served, so there is nothing to reload")
                await client.unload(model)
                await self._unloaded(client, model)
                text = json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
                await client.load(model, text, RELOAD_TIMEOUT_S)
        except ModelUnknown:
            self._say(f"{model} was unloaded by someone else; left so")
        except ScaleError as exc:
            raise ProcessFailed(f"a stub of {model} died and the reload failed: {exc}") from exc
        else:
            self._say(f"{model} serves again after {time.monotonic() - started_s:.1f} s")
        finally:
            await client.close()

    async def _kill_when_idle(self, num_in_flight: InFlight) -> None:
        """A stream cancelled at its very last response is never released by this Triton, which then waits its whole
        exit time-out for nothing. When the instances have had nothing in flight for a while, it need not."""
        idle_since_s = time.monotonic()
        while time.monotonic() - idle_since_s < IDLE_BEFORE_KILL_S:
            await asyncio.sleep(IDLE_POLL_S)
            if await num_in_flight() != 0:
                idle_since_s = time.monotonic()
        if self.child.exit_code is None:
            self._say(f"{NAME} waits for streams that their clients cancelled as they ended; killing it")
            processes.kill_group(self.child)

    async def _unloaded(self, client: TritonClient, model: str) -> None:
        """Raises ProcessFailed when that never ends: a stream that its dead stub has not ended stays open, silent,
        and keeps the model UNLOADING. Only the server's end ends it."""
        deadline_s = time.monotonic() + self._settings.stop_timeout_s
        while True:
            states = {entry.name: entry.state for entry in await client.index()}
            if states.get(model, "UNAVAILABLE") == "UNAVAILABLE":
                return
            if time.monotonic() > deadline_s:
                raise ProcessFailed(
                    f"a stub of {model} died, and Triton could not unload the model within "
                    f"{self._settings.stop_timeout_s:.0f} s: it waits for streams that were open, or cancelled as "
                    "they ended; killing it so that they end; start the stack again"
                )
            await asyncio.sleep(UNLOAD_POLL_S)

    async def stop(self, num_in_flight: InFlight) -> None:
        """Requests in flight finish first. Afterwards no stub and no region of its is left."""
        for task in self._reloads.values():
            task.cancel()
        self._book.look()
        killing = asyncio.create_task(self._kill_when_idle(num_in_flight))
        # Triton's own exit time-out comes first: past it, it says what it waited for.
        if not await processes.stop(self.child, self._settings.stop_timeout_s + 5):
            self._say(f"{NAME} did not stop within {self._settings.stop_timeout_s:.0f} s and was killed")
        killing.cancel()
        # Its stubs end with it after a clean stop, so there is nothing to say of them then.
        for line in stubs.clear_record(self._paths.stub_record):
            self._say(line)


def describe_errors(errors: Sequence[str], child: processes.Child) -> str:
    listed = "\n".join("  " + text.replace("\n", "\n  ") for text in errors)
    return f"Triton failed to start; in its own words (all in {child.log_path}):\n{listed}"
