"""A real Prometheus on the real stack, with the scrape configuration, the rules and the dashboard as they ship."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.models import CHAT, EMBED, model_folder
from tidegate import cli
from tidegate.testing import RunningStack, free_ports, running_stack

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "tidegate.json").read_text())
QUERIES = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
    *(annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]),
]
POLICY = "models: {chat: {max_instances: 2, forecast: {enabled: false}}, embed: {max_instances: 1}}"
WAIT_S = 90.0


@dataclass(frozen=True)
class Prometheus:
    """As Grafana asks it."""

    url: str

    def numbers(self, query: str) -> list[float]:
        """Now, those that are none (a ratio of nothing) left out."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        values = [float(series["value"][1]) for series in answer.json()["data"]["result"]]
        return [value for value in values if not math.isnan(value)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """With a policy, so that the scaler decides."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not here; Debian's package of that name has it")
    model_folder(CHAT)
    model_folder(EMBED)
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)
    with running_stack("--pool-bytes", "512MiB", "--spares", "chat=1", "--policy", str(policy)) as started:
        yield started


@pytest.fixture(scope="module")
def prometheus(running: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The shipped configuration, with this stack's ports and a shorter interval."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    addresses = {
        "tidegate-gateway": running.stack.gateway_http,
        "tidegate-scaler": running.stack.scaler_metrics,
        "tidegate-node": running.stack.node_metrics,
        "tidegate-triton": running.stack.triton_metrics,
    }
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [addresses.pop(job["job_name"])]}]
    assert not addresses
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_ready(f"http://{address}")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(30)


def wait_ready(url: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def until_all(prometheus: Prometheus, queries: list[str], running: RunningStack) -> list[str]:
    """Calls until each has a number; those that have none when the time is over."""
    deadline_s = time.monotonic() + WAIT_S
    missing = queries
    while missing and time.monotonic() < deadline_s:
        asyncio.run(calls(running))
        missing = [query for query in missing if not prometheus.numbers(query)]
    return missing


async def calls(running: RunningStack) -> None:
    """A stream, embeddings, and a refusal."""
    chat = {"model": "chat", "messages": [{"role": "user", "content": "Say hi. " * 20}], "max_tokens": 4}
    async with httpx.AsyncClient(base_url=f"http://{running.stack.gateway_http}", timeout=60) as http:
        for path, body, status in (
            ("/v1/chat/completions", {**chat, "stream": True}, 200),
            ("/v1/embeddings", {"model": "embed", "input": "tide"}, 200),
            ("/v1/chat/completions", {**chat, "max_tokens": -1}, 400),
        ):
            assert (await http.post(path, json=body)).status_code == status


def test_every_target_of_the_scrape_configuration_answers(running: RunningStack, prometheus: Prometheus):
    """Gateway, scaler, node and Triton, each at the path that the file says; its ports are a unit test's."""
    assert until_all(prometheus, ["count(up == 1) == 4"], running) == []


def test_every_query_of_the_dashboard_gets_a_number(running: RunningStack, prometheus: Prometheus):
    """While calls come and an instance is added: no panel is empty for a name or a label that nobody exports."""
    assert until_all(prometheus, ["count(up == 1) == 4"], running) == []
    command = ["scaler", "scale-to", "chat", "2", "--for", "10m", "--why", "test"]
    assert cli.run([*command, "--run-dir", running.stack.run_dir]) == 0
    assert until_all(prometheus, QUERIES, running) == []
