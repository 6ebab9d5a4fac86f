"""What the gateway tells Prometheus: the same as its call log says."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import MAX_TENANTS, GatewayMetrics
from ledger.calls import CallRow


def row(**given: Any) -> CallRow:
    values = {
        "request_id": "r",
        "started_unix_s": 0.0,
        "door": "http",
        "operation": "chat",
        "tenant": "acme",
        "service": "chat",
        "version": "chat",
        "model": "chat",
        "outcome": "ok",
        "status": 200,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "is_stream": True,
        "ttft_s": 0.2,
        "duration_s": 1.0,
    }
    return CallRow(**{**values, **given})


def samples(metrics: GatewayMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def test_an_answered_stream_counts_once_everywhere():
    """1 s in all, first text after 0.2 s, 5 tokens: 0.2 s a token."""
    metrics = GatewayMetrics()
    metrics.note(row())
    of = {"service": "chat", "version": "chat"}
    assert value(metrics, "tidegate_gateway_attempts_total", **of, door="http", outcome="ok") == 1
    assert value(metrics, "tidegate_gateway_request_duration_seconds_sum", **of) == 1.0
    assert value(metrics, "tidegate_gateway_time_to_first_token_seconds_sum", **of) == 0.2
    assert value(metrics, "tidegate_gateway_time_per_output_token_seconds_sum", **of) == 0.2
    assert value(metrics, "tidegate_gateway_tokens_total", service="chat", kind="output") == 5
    assert value(metrics, "tidegate_gateway_tenant_tokens_total", tenant="acme") == 15


def test_a_failed_attempt_has_no_latency_of_an_answer():
    """Else an outage would look like the fastest day of the year."""
    metrics = GatewayMetrics()
    metrics.note(row(outcome="error", error_code="upstream_unavailable", ttft_s=None, output_tokens=None))
    names = {name for name, _ in samples(metrics)}
    assert "tidegate_gateway_request_duration_seconds_count" not in names
    assert value(metrics, "tidegate_gateway_errors_total", service="chat", code="upstream_unavailable") == 1


def test_a_name_that_a_caller_made_up_is_no_label():
    """Refused before it was routed: its model is not known."""
    metrics = GatewayMetrics()
    for number in range(3):
        metrics.note(
            row(service=f"made-up-{number}", version="", model="", outcome="refused", error_code="x")
        )
    assert value(metrics, "tidegate_gateway_errors_total", service="other", code="x") == 3


def test_tenants_beyond_the_bound_count_together():
    metrics = GatewayMetrics()
    for number in range(MAX_TENANTS + 2):
        metrics.note(row(tenant=f"t{number}"))
    assert value(metrics, "tidegate_gateway_tenant_tokens_total", tenant="other") == 30


def test_a_shadow_and_a_retry_are_not_taken_for_calls():
    """A shadow answers nobody; a second attempt is one request's, and counted as such."""
    metrics = GatewayMetrics()
    metrics.note(row(is_shadow=True))
    metrics.note(row(attempt=2))
    assert value(metrics, "tidegate_gateway_shadows_total", service="chat", outcome="ok") == 1
    assert value(metrics, "tidegate_gateway_retries_total", service="chat") == 1
    labels = {"service": "chat", "version": "chat", "door": "http", "outcome": "ok"}
    assert value(metrics, "tidegate_gateway_attempts_total", **labels) == 1


def test_a_refused_call_is_charged_no_tokens():
    """Its prompt was counted, and never computed."""
    metrics = GatewayMetrics()
    metrics.note(row(outcome="refused", error_code="rate_limit_exceeded", output_tokens=None, ttft_s=None))
    assert value(metrics, "tidegate_gateway_tenant_tokens_total", tenant="acme") is None
