"""Rules, dashboard and runbooks are about figures that exist, and every alert has a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.node_pb2 import NodeStatus
from gateway.metrics import GatewayMetrics
from gateway.metrics_state import GatewayState
from gateway.route_table import RouteTable
from gateway.upstreams import Upstreams
from ledger.store import Store
from ledger.writer import CallWriter
from python_backend.node import metrics as node_metrics
from scaler.serving import metrics as scaler_metrics
from tidegate.settings import Settings

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "tidegate.rules.yml").read_text())
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "tidegate.json").read_text())
RULE_LIST: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULE_LIST if "alert" in rule]
_OURS = re.compile(r"\btidegate_[a-z_0-9]+|\b[a-z]+:tidegate_[a-z_0-9:]+")
_PARTS = re.compile(r"_(bucket|sum|count|total)$")


def engine_names() -> Iterator[str]:
    """The stub's own: read from the source, for its module needs Triton's."""
    source = (ROOT / "python_backend" / "bridge" / "metrics.py").read_text()
    for name in re.findall(r'^ +"([a-z_]+)": \("|^ +"([a-z_]+_seconds)",$', source, re.MULTILINE):
        yield "tidegate_engine_" + _PARTS.sub("", name[0] or name[1])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names without their endings, as the processes would show them."""
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}")
    writer = CallWriter(store)
    state = GatewayState(RouteTable(["chat"]), writer)
    state.upstreams = Upstreams(["a:1"], lambda address: pytest.fail("no call is made"))
    texts = re.findall(r"^# HELP (\S+)", GatewayMetrics(state).render().decode(), re.MULTILINE)
    writer.close()
    store.close()
    tally = scaler_metrics.Tally()
    found = [*node_metrics.collect(NodeStatus()), *scaler_metrics.collect([], 0.0, 0), *tally.collect()]
    return {_PARTS.sub("", name) for name in [*texts, *(metric.name for metric in found), *engine_names()]}


def named(expression: str) -> set[str]:
    return set(_OURS.findall(expression))


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["expr"]


def test_every_figure_that_is_named_is_exported_or_recorded(exported: set[str]):
    """A typing mistake in an alert is an alert that never comes."""
    recorded = {rule["record"] for rule in RULE_LIST if "record" in rule}
    expressions = [*(rule["expr"] for rule in RULE_LIST), *dashboard_expressions()]
    wanted = set().union(*map(named, expressions))
    unknown = {name for name in wanted - recorded if _PARTS.sub("", name) not in exported}
    assert not unknown
    assert len(wanted) > 30


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_has_a_page_that_says_what_to_do(alert: dict[str, Any]):
    page = ROOT / alert["annotations"]["runbook"]
    assert page.name == f"{alert['alert']}.md"
    assert "\n1. " in page.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["check", "config", "prometheus.yml"], id="config"),
        pytest.param(["check", "rules", "tidegate.rules.yml"], id="rules"),
        pytest.param(["test", "rules", "tidegate.rules.test.yml"], id="each alert comes and stays away"),
    ],
)
def test_promtool_finds_nothing_wrong(arguments: list[str]):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; Debian's package prometheus has it")
    done = subprocess.run([promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_configuration_names_the_ports_of_a_stack_that_was_told_none():
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    settings = Settings()
    ports = {
        "tidegate-gateway": settings.gateway_port,
        "tidegate-scaler": settings.scaler_metrics_port,
        "tidegate-node": settings.node_metrics_port,
        "tidegate-triton": settings.triton_metrics_port,
    }
    assert {job["job_name"]: job["static_configs"] for job in config["scrape_configs"]} == {
        name: [{"targets": [f"127.0.0.1:{port}"]}] for name, port in ports.items()
    }


def test_every_query_of_the_dashboard_is_one(tmp_path: Path):
    """promtool reads rules, so each query becomes one. A macro of Grafana's would not parse."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; Debian's package prometheus has it")
    queries = list(dashboard_expressions())
    rules = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout


def test_every_alert_is_tried_by_promtool():
    tried = yaml.safe_load((PROMETHEUS / "tidegate.rules.test.yml").read_text())
    names = {case["alertname"] for test in tried["tests"] for case in test["alert_rule_test"]}
    assert names == {alert["alert"] for alert in ALERTS}
