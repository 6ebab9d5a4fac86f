"""Prometheus' endpoints of processes as they run: gateway, and scaler; the node's stands with the real stack's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.core import GaugeMetricFamily

from contracts import metrics
from contracts.metrics import MetricsServer, OnLoop
from gateway.testing import FakeTriton, running_gateway
from ledger.keys import KeyStore
from ledger.store import Store
from tests.integration.scaler_process import running_scaler, started
from tidegate.testing import free_ports

pytestmark = pytest.mark.integration


async def test_a_call_shows_in_the_gateways_figures():
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
    ):
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    line = 'tidegate_gateway_attempts_total{door="http",outcome="ok",service="chat",version="chat"} 1.0'
    assert line in answer.text.splitlines()
    assert f'tidegate_gateway_upstream_ejected{{endpoint="{triton.address}"}} 0.0' in answer.text


async def test_with_keys_on_figures_need_the_role_metrics(tmp_path: Path):
    """They name tenants."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with contextlib.closing(Store.open(url)) as store:
        _, reader = KeyStore(store).create(tenant="ops", name="prometheus", roles=["metrics"])
        _, caller = KeyStore(store).create(tenant="acme", name="app", roles=["infer"])
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, ledger_url=url, requires_keys=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
    ):
        statuses = [
            (await client.get("/metrics", headers=headers)).status_code
            for headers in (
                {},
                {"authorization": f"Bearer {caller}"},
                {"authorization": f"Bearer {reader}"},
            )
        ]
    assert statuses == [401, 403, 200]


def test_the_scaler_tells_its_figures(tmp_path: Path):
    (port,) = free_ports(1)
    policy = tmp_path / "policy.yaml"
    policy.write_text("models: {chat: {max_instances: 3}}")
    with running_scaler(tmp_path, metrics_port=port, policy_path=str(policy), tick_s=0.1) as scaler:
        deadline_s = time.monotonic() + 20
        while True:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            if 'tidegate_scaler_max_instances{model="chat"} 3.0' in text:
                break
            assert time.monotonic() < deadline_s, text
            time.sleep(0.05)
        assert "tidegate_collect_failed 0.0" in text
        assert "tidegate_scaler_instances{" not in text  # its Triton does not answer: not known is not 0
        assert scaler.stop() == 0


def test_a_metrics_port_that_is_taken_is_said_in_one_line(tmp_path: Path):
    holder = MetricsServer("127.0.0.1", 0)
    try:
        with started(tmp_path, port=free_ports(1)[0], metrics_port=holder.port) as (process, log_path):
            assert process.wait(30) != 0
            assert f"metrics_port {holder.port} on 127.0.0.1: Address already in use" in log_path.read_text()
    finally:
        holder.close()


def test_a_loop_that_is_too_busy_gives_no_old_figures(monkeypatch: pytest.MonkeyPatch):
    """It says that it could not say, and the scrape ends."""
    monkeypatch.setattr(metrics, "COLLECT_TIMEOUT_S", 0.05)
    loop, free = asyncio.new_event_loop(), threading.Event()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    loop.call_soon_threadsafe(free.wait, 20)
    server = MetricsServer(
        "127.0.0.1", 0, OnLoop(loop, lambda: [GaugeMetricFamily("figure", "Any.", value=1.0)])
    )
    try:
        text = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
        assert "tidegate_collect_failed 1.0" in text
        assert "\nfigure" not in text
    finally:
        free.set()
        server.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
