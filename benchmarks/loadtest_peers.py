"""Other load generators on the same server, each as its users run it.

But with real-time priority where ours has it: on a busy machine the difference would be the scheduler's.

- Locust: this environment's, `constant_throughput`, its own figures from its CSV.
- perf_analyzer: $PERF_ANALYZER. PyPI `tritonclient==2.51.0` carries the binary; Debian's `libb64-0d` and PyPI's
  `nvidia-cuda-runtime-cu12` go on $LD_LIBRARY_PATH. It exports each request's stamps.
- aiperf: $AIPERF, of an environment of its own. Its tokenizer is that of a fetched model.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import PeerUnavailable
from benchmarks.report import Figure
from contracts.stack import tidegate_home
from loadtest.generating.precise_loop import run_in_real_time

TIMEOUT_S = 180.0
TOKENIZER = "smollm2-135m-instruct"
_LOCUSTFILE = """
from locust import HttpUser, constant_throughput, task


class Embedder(HttpUser):
    wait_time = constant_throughput({rate_per_s})

    @task
    def embed(self):
        self.client.post("/v1/embeddings", json={{"model": "mock", "input": "text"}})
"""


def locust_round(url: str, num_users: int, rate_per_s: float, duration_s: float) -> dict[str, Figure]:
    """Its own report of so many users who share the rate. Raises PeerUnavailable."""
    with tempfile.TemporaryDirectory(prefix="tg-locust-") as folder:
        (Path(folder) / "bench.py").write_text(_LOCUSTFILE.format(rate_per_s=rate_per_s / num_users))
        command = [
            *(sys.executable, "-m", "locust", "-f", "bench.py", "--headless", "--host", url, "--csv", "out"),
            *("-u", str(num_users), "-r", str(num_users), "-t", f"{duration_s:g}s", "--only-summary"),
        ]
        _run("locust", command, folder, os.environ)
        with (Path(folder) / "out_stats.csv").open() as file:
            row = next(row for row in csv.DictReader(file) if row["Name"] == "/v1/embeddings")
    return {
        "calls": Figure(float(row["Request Count"]), "calls"),
        "stall_p95_ms": Figure(float(row["95%"]), "ms"),
        "stall_p99_ms": Figure(float(row["99%"]), "ms"),
        "stall_p999_ms": Figure(float(row["99.9%"]), "ms"),
    }


def perf_analyzer_round(address: str, model: str, rate_per_s: float, duration_s: float) -> list[float]:
    """Seconds from each request's sending to its answer. Raises PeerUnavailable."""
    program = _named("PERF_ANALYZER", "perf_analyzer")
    with tempfile.TemporaryDirectory(prefix="tg-pa-") as folder:
        command = [
            *(program, "-m", model, "-i", "grpc", "-u", address, "--async"),
            *("--request-rate-range", f"{rate_per_s:g}", "--request-distribution", "constant"),
            *("--request-count", str(round(rate_per_s * duration_s)), "--profile-export-file", "out.json"),
        ]
        _run("perf_analyzer", command, folder, os.environ)
        exported = json.loads((Path(folder) / "out.json").read_text())
    requests = exported["experiments"][0]["requests"]
    return [(each["response_timestamps"][-1] - each["timestamp"]) / 1e9 for each in requests]


def aiperf_round(url: str, rate_per_s: float, duration_s: float) -> dict[str, float]:
    """Its figures of streamed chats in ms, by our names. Raises PeerUnavailable."""
    program = _named("AIPERF", "aiperf")
    tokenizer = tidegate_home() / "models" / TOKENIZER
    if not tokenizer.exists():
        raise PeerUnavailable(f"aiperf needs a tokenizer, and {TOKENIZER} is not here; tidegate models fetch")
    with tempfile.TemporaryDirectory(prefix="tg-aiperf-") as folder:
        command = [
            *(program, "profile", "-m", "mock", "--url", url, "--endpoint-type", "chat", "--streaming"),
            *("--request-rate", f"{rate_per_s:g}", "--arrival-pattern", "constant", "--ui", "none"),
            *("--request-count", str(round(rate_per_s * duration_s)), "--isl", "16", "--osl", "16"),
            *("--tokenizer", str(tokenizer), "--output-artifact-dir", folder, "--use-server-token-count"),
        ]
        _run("aiperf", command, folder, os.environ)
        found = next(Path(folder).rglob("profile_export_aiperf.json"), None)
        if found is None:
            raise PeerUnavailable("aiperf wrote no profile_export_aiperf.json")
        exported = json.loads(found.read_text())
    return {
        "ttft_p50": _of(exported, "time_to_first_token", "p50"),
        "ttft_p99": _of(exported, "time_to_first_token", "p99"),
        "latency_p50": _of(exported, "request_latency", "p50"),
        "latency_p99": _of(exported, "request_latency", "p99"),
        "itl_p50": _of(exported, "inter_token_latency", "p50"),
    }


def _of(exported: dict[str, Any], metric: str, statistic: str) -> float:
    found = exported.get("records", exported)[metric]
    if found["unit"] != "ms":
        raise PeerUnavailable(f"aiperf gives {metric} in {found['unit']}, not in ms")
    return float(found[statistic])


def _named(variable: str, what: str) -> str:
    if not (path := os.environ.get(variable)):
        raise PeerUnavailable(f"${variable} does not name {what}")
    if not Path(path).exists():
        raise PeerUnavailable(f"{variable}={path} does not exist")
    return path


def _run(name: str, command: list[str], folder: str, env: Any) -> None:
    first = f"from {run_in_real_time.__module__} import run_in_real_time as go; import os, sys; go(); "
    start = [sys.executable, "-c", first + "os.execv(sys.argv[1], sys.argv[1:])"]
    try:
        done = subprocess.run(
            [*start, *command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise PeerUnavailable(f"{name}: {exc}") from exc
    if done.returncode:
        raise PeerUnavailable(
            f"{name} ended with status {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
        )
