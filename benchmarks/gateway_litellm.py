"""LiteLLM's proxy before the same Triton: $LITELLM names its program, of an environment with `litellm[proxy]`.

It reaches Triton over HTTP alone, so what it adds is over the same text sent to Triton's HTTP endpoint directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.peers import PeerUnavailable
from tidegate.testing import free_ports

VARIABLE = "LITELLM"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
MODEL = "say"
TEXT = "hello"


def direct_call(triton_http: str) -> tuple[str, dict[str, Any]]:
    """URL and body."""
    return f"http://{triton_http}/v2/models/{MODEL}/generate", {"text_input": TEXT}


def proxied_call(proxy: str) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": TEXT}]
    return f"{proxy}/v1/chat/completions", {"model": MODEL, "messages": messages}


@contextmanager
def litellm_proxy(triton_http: str) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Its URL, its pid and the header it asks for. Raises PeerUnavailable."""
    program = os.environ.get(VARIABLE, "")
    if not program:
        raise PeerUnavailable(
            f"${VARIABLE} does not name the `litellm` program of an environment with litellm[proxy]"
        )
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="tg-litellm-") as name:
        config, log_path = Path(name) / "config.json", Path(name) / "litellm.log"
        upstream = {"model": f"triton/{MODEL}", "api_base": direct_call(triton_http)[0]}
        key = f"sk-{secrets.token_hex(16)}"
        env = {**os.environ, "LITELLM_MASTER_KEY": key}  # it does not start without one
        # YAML takes JSON.
        config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": upstream}]}))
        command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        with log_path.open("wb") as log:
            try:
                process = subprocess.Popen(
                    command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            except OSError as exc:
                raise PeerUnavailable(f"{program}: {exc.strerror}") from exc
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}", log_path)
            yield f"http://127.0.0.1:{port}", process.pid, {"authorization": f"Bearer {key}"}
        finally:
            _end(process)


async def posts_s(
    url: str, body: dict[str, Any], headers: dict[str, str], rate_per_s: float, duration_s: float
) -> list[float]:
    """Latencies of an open loop. Raises httpx.HTTPStatusError when one fails."""
    async with httpx.AsyncClient(timeout=60, trust_env=False, headers=headers) as http:

        async def post() -> float:
            started_s = time.perf_counter()
            (await http.post(url, json=body)).raise_for_status()
            return time.perf_counter() - started_s

        began_s, tasks = time.monotonic(), []
        for index in range(int(rate_per_s * duration_s)):
            await asyncio.sleep(max(0.0, began_s + index / rate_per_s - time.monotonic()))
            tasks.append(asyncio.create_task(post()))
        return list(await asyncio.gather(*tasks))


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its children."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


def _wait_ready(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with httpx.Client(timeout=2, trust_env=False) as http:
        while time.monotonic() < deadline_s and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if http.get(f"{url}/health/liveliness").status_code == 200:
                    return
            time.sleep(0.2)
    raise PeerUnavailable(f"litellm did not start: {log_path.read_text(errors='replace')[-300:]}")
