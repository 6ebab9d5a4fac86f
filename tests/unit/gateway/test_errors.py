"""Triton's error texts and codes -> ours."""

from __future__ import annotations

import json

import grpc
import pytest

from gateway import errors
from gateway.errors import GatewayError, UpstreamUnavailable, from_http_status, from_triton, shown
from gateway.grpc_stream import code_of


def all_errors(base: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    return [base, *(error for kind in base.__subclasses__() for error in all_errors(kind))]


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("invalid argument: top_p = 2", 400, "top_p = 2"),
        ("unavailable: no worker", 503, "no worker"),
        ("deadline exceeded: in the queue", 504, "in the queue"),
        ("cancelled: by the client", 500, "by the client"),
        ("internal: broke", 500, "broke"),
        ("Stub process 'chat_0_0' is not healthy.", 503, "Stub process"),
        ("Exceeds maximum queue size", 429, "queue"),
        ("Server exiting", 503, "exiting"),
        ("Request for unknown model: 'chat' has no available versions", 503, "unknown model"),
        ("Request for unknown model: 'chat' is not found", 404, "unknown model"),
        ("This protocol is restricted, expecting header 'triton-grpc-protocol-x'", 500, "restricted"),
        ("who knows", 500, "who knows"),
        ("", 500, "None"),
    ],
)
def test_a_text_of_triton_gets_its_status(text: str, status: int, message: str) -> None:
    """On a stream the text is all there is."""
    error = from_triton(text)
    assert error.status == status
    assert message in error.message


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
        (grpc.StatusCode.INTERNAL, 500),
        (grpc.StatusCode.UNKNOWN, 500),
    ],
)
def test_a_code_of_grpc_gets_its_status(code: grpc.StatusCode, status: int) -> None:
    """Where no text says better."""
    assert from_triton("failed to connect to all addresses", code).status == status


def test_the_text_of_a_dead_stub_counts_more_than_its_code() -> None:
    """Triton says INTERNAL, but another try may reach a living instance (triton-practice H5)."""
    assert from_triton("Stub process 'embed_0_0' is not healthy.", grpc.StatusCode.INTERNAL).status == 503


def test_a_connection_that_broke_under_a_write_is_one_that_is_gone() -> None:
    """gRPC's client says INTERNAL (grpc#36066): a call lost so would not be tried elsewhere."""
    lost = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
    )
    assert isinstance(from_triton(lost.details() or "", lost.code()), UpstreamUnavailable)
    assert code_of(lost) is grpc.StatusCode.UNAVAILABLE


def test_every_error_has_a_status_and_openais_shape() -> None:
    """The tree in the docstring is whole: each class stands there."""
    tree = errors.__doc__ or ""
    for kind in all_errors():
        if kind.__module__ == "gateway.errors":
            assert kind.__name__ in tree
        body = json.loads(kind("what", "where").body())
        assert body == {"error": {"message": "what", "type": kind.type, "param": "where", "code": kind.code}}
        assert 400 <= kind.status < 600


def test_what_may_be_tried_again_says_when() -> None:
    """429 and 503 carry Retry-After."""
    retried = {kind.status for kind in all_errors() if kind.retry_after_s is not None}
    assert retried == {429, 503}


def test_the_routers_own_refusals_get_our_shape() -> None:
    """Unknown path, wrong method, anything else."""
    assert [from_http_status(status).status for status in (404, 405, 418)] == [404, 405, 500]


def test_a_shown_value_is_cut() -> None:
    """An error text must not carry a megabyte back."""
    assert shown("x" * 1000) == '"' + "x" * 76 + "..."
    assert shown({"a": 1}) == '{"a":1}'
