"""Reading one gauge off Triton's Prometheus page."""

from __future__ import annotations

import httpx
import pytest

from scaler.errors import TritonUnreachable
from scaler.measuring.triton_metrics import TritonMetrics, pending_by_model

PAGE = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="slow",version="1"} 32
nv_inference_pending_request_count{model="slow",version="2"} 4
nv_inference_pending_request_count{version="1",model="chat"} 0
nv_inference_exec_count{model="slow",version="1"} 145
"""


def test_pending_requests_are_summed_over_versions_and_zero_is_a_figure():
    """slow 32 + 4, chat 0; other metrics are not taken for it."""
    assert pending_by_model(PAGE) == {"slow": 36.0, "chat": 0.0}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "", "many"])
def test_a_value_that_is_no_count_is_no_figure(value):
    """Left out, which reads as missing; never 0, and never one version's part of the sum."""
    line = f'nv_inference_pending_request_count{{model="slow",version="2"}} {value}\n'
    assert pending_by_model(PAGE + line) == {"chat": 0.0}


def test_less_than_nothing_waits_is_read_as_nothing():
    """−1 → 0."""
    assert pending_by_model('nv_inference_pending_request_count{model="m",version="1"} -1') == {"m": 0.0}


def test_a_page_without_the_metric_has_no_figures():
    """Triton started without it: no model, no zeros."""
    assert pending_by_model("# nothing here\n") == {}


@pytest.mark.parametrize(
    "answer", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.Response(503)], ids=str
)
async def test_what_goes_wrong_with_the_page_is_one_error_of_ours(answer):
    """Refused, cut off, or answered with 503: TritonUnreachable that names the address."""

    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    metrics = TritonMetrics("127.0.0.1:8002", transport=httpx.MockTransport(handle))
    with pytest.raises(TritonUnreachable, match=r"http://127\.0\.0\.1:8002/metrics"):
        await metrics.pending()
    await metrics.close()
