"""The manifests under deploy/ agree with what the scaler asks for and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scaler.acting.keda_trigger import Trigger
from scaler.leading.kubernetes_lease import KubernetesLease

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("keda/*.yaml")), ids=lambda path: path.stem)
def test_a_scaled_object_names_a_model_and_adds_no_window(path: Path) -> None:
    """Both directions: stabilisation 0, tolerance 0, all at once; no fallback that would replace a count."""
    spec = yaml.safe_load(path.read_text())["spec"]
    (trigger,) = spec["triggers"]
    assert Trigger.parse(trigger["metadata"]) == Trigger("chat")
    assert trigger["metricType"] == "AverageValue"
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert {rules["stabilizationWindowSeconds"] for rules in behavior.values()} == {0}
    assert {rules["tolerance"] for rules in behavior.values()} == {"0"}
    assert "fallback" not in spec


def test_the_rights_are_those_that_the_calls_need() -> None:
    """Every path that KubernetesTarget and the lease ask for, and no other verb anywhere."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "scaler-rbac.yaml").read_text()))
    (role,) = (each for each in documents if each["kind"] == "Role")
    rights = {
        (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    workloads = {
        (f"{kind}{part}", "get") for kind in ("deployments", "statefulsets") for part in ("", "/scale")
    }
    writes = {("deployments/scale", "update"), ("statefulsets/scale", "update")}
    leases = {("leases", verb) for verb in ("create", "get", "update")}
    assert rights == workloads | writes | leases | {("horizontalpodautoscalers", "list")}
    assert names_of(role, "leases", "update") == [KubernetesLease.NAME]


def names_of(role: Any, resource: str, verb: str) -> list[str]:
    (rule,) = (rule for rule in role["rules"] if resource in rule["resources"] and verb in rule["verbs"])
    return list(rule["resourceNames"])
