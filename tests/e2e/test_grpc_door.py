"""tritonclient's own examples through the gateway's port, changed in nothing but the address and a header.

After simple_grpc_health_metadata.py, simple_grpc_infer_client.py, simple_grpc_async_infer_client.py and
simple_grpc_custom_repeat.py of github.com/triton-inference-server/client, src/python/examples.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from ledger.keys import KeyStore
from ledger.store import Store, sqlite_url
from tests.e2e.plain_triton import write_decoupled_model
from tests.e2e.support import Up, launched, write_model
from tidegate.testing import free_ports

pytestmark = pytest.mark.e2e

Door = tuple[str, dict[str, str]]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Door]]:
    """API keys are on."""
    folder: Path = tmp_path_factory.mktemp("door")
    write_model(folder / "repository", "echo")
    write_decoupled_model(folder / "repository", "repeat")
    url = sqlite_url(folder / "ledger.db")
    with contextlib.closing(Store.open(url)) as store:
        _, key = KeyStore(store).create(tenant="acme", name="examples")
    http, grpc = free_ports(2)
    with launched(
        folder / "repository",
        "echo",
        "repeat",
        with_gateway="1",
        gateway_port=str(http),
        gateway_grpc_port=str(grpc),
        ledger_url=url,
        requires_keys="1",
    ) as up:
        up.wait_ready()
        yield up, (f"127.0.0.1:{grpc}", {"authorization": f"Bearer {key}"})


@pytest.fixture(scope="module")
def door(front: tuple[Up, Door]) -> Door:
    """The address, and the header."""
    return front[1]


def inputs_of(value: float, shape: list[int]) -> list[grpcclient.InferInput]:
    tensor = grpcclient.InferInput("IN", shape, "FP32")
    tensor.set_data_from_numpy(np.full(shape, value, np.float32))
    return [tensor]


def test_the_health_and_metadata_example(door: Door) -> None:
    """Server and model are live, ready and described; another model's description is Triton's own refusal."""
    address, headers = door
    client = grpcclient.InferenceServerClient(url=address)
    assert client.is_server_live(headers={"test": "1", "dummy": "2"})
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.get_server_metadata(headers=headers).name == "triton"
    assert client.get_model_metadata("echo", headers=headers | {"test": "1"}).name == "echo"
    assert client.get_model_config("echo", headers=headers).config.name == "echo"
    with pytest.raises(InferenceServerException, match="Request for unknown model"):
        client.get_model_metadata("wrong_model_name", headers=headers)
    client.close()


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_the_unary_example(door: Door, compression: str | None) -> None:
    """infer, with outputs named, compressed and not; statistics; a wrong name is an exception."""
    address, headers = door
    client = grpcclient.InferenceServerClient(url=address)
    results = client.infer(
        model_name="echo",
        inputs=inputs_of(7.0, [1, 1]),
        outputs=[grpcclient.InferRequestedOutput("OUT")],
        headers=headers,
        compression_algorithm=compression,
    )
    assert results.as_numpy("OUT") == [[7.0]]
    statistics = client.get_inference_statistics(model_name="echo", headers=headers)
    assert len(statistics.model_stats) == 1
    with pytest.raises(InferenceServerException, match="wrong_model_name"):
        client.get_inference_statistics(model_name="wrong_model_name", headers=headers)
    client.close()


def test_the_async_example(door: Door) -> None:
    """async_infer with a callback, sixteen at once."""
    address, headers = door
    client, user_data, arrived = grpcclient.InferenceServerClient(url=address), [], threading.Semaphore(0)

    def callback(user_data: list[Any], number: int, result: Any, error: Any) -> None:
        user_data.append((number, error or float(result.as_numpy("OUT")[0][0])))
        arrived.release()

    for number in range(16):
        client.async_infer(
            model_name="echo",
            inputs=inputs_of(number, [1, 1]),
            callback=functools.partial(callback, user_data, number),
            headers=headers,
        )
    for _ in range(16):
        assert arrived.acquire(timeout=20)
    assert sorted(user_data) == [(number, float(number)) for number in range(16)]
    client.close()


def test_the_stream_example(door: Door) -> None:
    """A decoupled model that repeats: three responses a request, two requests on one stream."""
    address, headers = door
    user_data: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(url=address) as client:
        client.start_stream(callback=lambda result, error: user_data.put(error or result), headers=headers)
        for request_id in ("1", "2"):
            client.async_stream_infer(model_name="repeat", inputs=inputs_of(3.0, [1]), request_id=request_id)
        results = [user_data.get(timeout=20) for _ in range(6)]
        client.stop_stream()
    assert not any(isinstance(result, InferenceServerException) for result in results), results
    assert sorted(result.get_response().id for result in results) == ["1"] * 3 + ["2"] * 3
    assert {float(result.as_numpy("OUT")[0]) for result in results} == {3.0}


async def test_the_asyncio_stream_example(door: Door) -> None:
    """stream_infer over an iterator of requests; cancelled in the middle, the next one works."""
    address, headers = door

    async def requests(count: float) -> Any:
        yield {"model_name": "repeat", "inputs": inputs_of(count, [1]), "request_id": "a"}

    async with triton_aio.InferenceServerClient(url=address) as client:
        endless = client.stream_infer(inputs_iterator=requests(20.0), headers=headers)
        async for _, error in endless:
            assert error is None
            break
        endless.cancel()
        answered = client.stream_infer(inputs_iterator=requests(2.0), headers=headers)
        async with asyncio.timeout(20):
            assert [error async for _, error in answered] == [None, None]


def test_without_the_header_nobody_is_served(door: Door) -> None:
    """Unary: UNAUTHENTICATED; health answers everybody."""
    address, _ = door
    client = grpcclient.InferenceServerClient(url=address)
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
        client.infer(model_name="echo", inputs=inputs_of(7.0, [1, 1]))
    client.close()


def test_a_gateway_that_is_killed_is_there_again_and_triton_is_the_same(front: tuple[Up, Door]) -> None:
    """kill -9: the whole stack ended with it. The same client, on the same channel, is served again."""
    up, (address, headers) = front
    client = grpcclient.InferenceServerClient(url=address)
    client.infer(model_name="echo", inputs=inputs_of(7.0, [1, 1]), headers=headers)
    before = up.wait_ready().pids
    os.kill(before["gateway"], signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while up.wait_ready().pids["gateway"] == before["gateway"]:
        assert time.monotonic() < deadline_s, up.output
        time.sleep(0.05)
    while True:
        try:
            client.infer(model_name="echo", inputs=inputs_of(7.0, [1, 1]), headers=headers)
            break
        except InferenceServerException:  # gRPC pauses before it connects again
            assert time.monotonic() < deadline_s, up.output
            time.sleep(0.1)
    client.close()
    assert up.wait_ready().pids["tritonserver"] == before["tritonserver"]
    assert f"gateway (pid {before['gateway']}) ended with signal SIGKILL" in up.output
