"""Bad input gets a clear error and costs nothing else: the worker serves on, no block is leaked."""

import asyncio
import json
import struct
from pathlib import Path

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2

from benchmarks.clients import TritonLoad, generate_request
from benchmarks.node import wait_until
from tests.models import chat_text

pytestmark = pytest.mark.e2e

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
OK = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(autouse=True)
def serves_on_afterwards(running):
    """After every case: the same worker answers, and the pool is whole again."""
    before = chat_workers(running)
    yield

    async def ask():
        async with TritonLoad(running.stack.triton_grpc) as load:
            return await load.stream("chat", chat_text("hi"), OK)

    assert asyncio.run(ask()).error == ""
    assert chat_workers(running) == before
    wait_until(running.stack.node_socket, lambda status: status.pool.leased_bytes == 0)


def chat_workers(running) -> list[int]:
    status = wait_until(running.stack.node_socket, lambda _: True)
    return sorted(entry.worker_pid for entry in status.instances if entry.model == "chat")


def stream_error(running, request) -> str:
    """The error text of one raw request on a stream."""

    async def ask() -> str:
        async def requests():
            yield request

        async with TritonLoad(running.stack.triton_grpc) as load:
            try:
                async for response in load.stub.ModelStreamInfer(requests()):
                    if response.error_message:
                        return response.error_message
            except grpc.aio.AioRpcError as exc:
                return f"{exc.code().name}: {exc.details()}"
        return ""

    return asyncio.run(ask())


def raw(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def test_a_missing_tensor_is_named(running):
    """text_input left out."""
    request = generate_request("chat", "x", OK)
    del request.inputs[0]
    del request.raw_input_contents[0]
    assert "text_input" in stream_error(running, request)


def test_a_wrong_dtype_is_refused(running):
    """INT32 where BYTES is wanted."""
    request = generate_request("chat", "x", OK)
    request.inputs[0].datatype = "INT32"
    request.raw_input_contents[0] = struct.pack("<i", 7)
    assert "text_input" in stream_error(running, request)


@pytest.mark.parametrize("shape", [[2], [1, 1], [0], [2**62], [-1]])
def test_a_wrong_shape_is_refused(running, shape):
    """Rank, zero, huge and negative."""
    request = generate_request("chat", "x", OK)
    del request.inputs[0].shape[:]
    request.inputs[0].shape.extend(shape)
    assert stream_error(running, request) != ""


def test_a_lying_length_prefix_is_refused(running):
    """Announces 100 bytes, brings 3."""
    request = generate_request("chat", "x", OK)
    request.raw_input_contents[0] = struct.pack("<I", 100) + b"abc"
    assert stream_error(running, request) != ""


def test_an_empty_prompt_is_refused(running):
    assert "empty" in stream_error(running, generate_request("chat", "", OK))


def test_a_prompt_over_the_context_names_both_numbers(running):
    """9,000 words where 8,192 tokens fit."""
    error = stream_error(running, generate_request("chat", "word " * 9000, OK))
    assert error.startswith("invalid argument: ")
    assert "has 9001 tokens" in error
    assert "context of 8192" in error


def test_bytes_that_are_no_text_are_refused_with_the_offset(running):
    """shared/cases/bytes_ff.bin."""
    request = generate_request("chat", "x", OK)
    request.raw_input_contents[0] = raw(b"ok\xff\xfe\x80")
    assert "not UTF-8: byte 0xff at offset 2" in stream_error(running, request)


def test_a_prompt_of_100_mb_is_refused_with_the_limit(running):
    """Before it reaches the worker."""
    error = stream_error(running, generate_request("chat", "x" * 100_000_000, OK))
    assert "100000000 bytes" in error or "RESOURCE_EXHAUSTED" in error


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ('{"max_tokens": 0}', "max_tokens = 0"),
        ('{"max_tokens": -4}', "max_tokens = -4"),
        ('{"temperature": NaN}', "no valid JSON"),
        ('{"temperature": 9}', "temperature = 9"),
        ('{"temprature": 0.5}', "did you mean 'temperature'"),
        ('{"stop": [""]}', "stop"),
        ('{"max_tokens": 4', "no valid JSON"),
        ("[" * 10_000, "no valid JSON"),
    ],
)
def test_a_bad_sampling_setting_is_refused_by_name(running, sampling, words):
    """Malformed JSON, unknown keys, values out of range."""
    request = generate_request("chat", "x", OK)
    request.raw_input_contents[1] = raw(sampling.encode())
    error = stream_error(running, request)
    assert error.startswith("invalid argument: ")
    assert words in error


def test_every_bad_setting_of_the_shared_cases_is_refused(running):
    """shared/cases/sampling_bad.json; max_tokens null alone is fine."""
    if not CASES.exists():
        pytest.skip("shared/cases is not beside this checkout")
    for values in json.loads((CASES / "sampling_bad.json").read_text()):
        request = generate_request("chat", "x", OK)
        request.raw_input_contents[1] = raw(json.dumps(values).encode())
        refused = stream_error(running, request).startswith("invalid argument: ")
        assert refused != (values == {"max_tokens": None}), values


def test_an_unknown_model_is_not_found(running):
    assert "nosuch" in stream_error(running, generate_request("nosuch", "x", OK))


def test_a_deadline_that_has_passed_costs_no_step(running):
    """deadline_unix_ms in the past."""
    error = stream_error(running, generate_request("chat", "x", OK, {"deadline_unix_ms": 1}))
    assert error.startswith("deadline exceeded: ")


@pytest.mark.parametrize(
    ("shape", "contents"), [([0, 1], b""), ([1, 0], b""), ([1, 2], raw(b"a") + raw(b"b"))]
)
def test_odd_shapes_of_a_batch_model_are_refused(running, shape, contents):
    """Zero-size and too wide."""

    async def ask() -> grpc.StatusCode:
        request = service_pb2.ModelInferRequest(
            model_name="embed",
            inputs=[
                service_pb2.ModelInferRequest.InferInputTensor(
                    name="text_input", shape=shape, datatype="BYTES"
                )
            ],
            raw_input_contents=[contents],
        )
        async with TritonLoad(running.stack.triton_grpc) as load:
            try:
                await load.stub.ModelInfer(request, timeout=10)
            except grpc.aio.AioRpcError as exc:
                return exc.code()
        return grpc.StatusCode.OK

    assert asyncio.run(ask()) is grpc.StatusCode.INVALID_ARGUMENT


def test_one_bad_text_does_not_fail_its_batch(running):
    """Sixteen callers, one of them with bytes that are no text."""

    async def ask() -> list[str]:
        bad = service_pb2.ModelInferRequest(
            model_name="embed",
            inputs=[
                service_pb2.ModelInferRequest.InferInputTensor(
                    name="text_input", shape=[1, 1], datatype="BYTES"
                )
            ],
            raw_input_contents=[raw(b"\xff")],
        )
        async with TritonLoad(running.stack.triton_grpc) as load:
            calls = [load.embed("embed", [f"text {index}"]) for index in range(15)]
            results = await asyncio.gather(*calls, load.stub.ModelInfer(bad), return_exceptions=True)
        return [str(result) for result in results if isinstance(result, BaseException)]

    failures = asyncio.run(ask())
    assert len(failures) == 1
    assert "not UTF-8" in failures[0]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", b'{"model": "chat", "messages": [', 400),
        ("chat/completions", b'{"model": "nosuch", "messages": [{"role": "user", "content": "x"}]}', 404),
        ("chat/completions", b'{"model": "chat", "messages": []}', 400),
        ("chat/completions", b"[" * 10_000, 400),
        ("completions", b'{"model": "chat", "prompt": ""}', 400),
        ("completions", b'{"model": "chat", "prompt": "x", "max_tokens": 0}', 400),
        ("completions", b'{"model": "chat", "prompt": "' + b"word " * 9000 + b'"}', 400),
        ("embeddings", b'{"model": "embed", "input": ""}', 400),
        ("embeddings", b'{"model": "embed", "input": "' + b"word " * 600 + b'"}', 400),
    ],
)
def test_the_openai_door_answers_in_openais_shape(running, path, body, status):
    """Status, and an error object with message and type."""
    answer = httpx.post(
        f"http://{running.stack.gateway_http}/v1/{path}",
        content=body,
        headers={"content-type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == status
    assert {"message", "type", "param", "code"} <= answer.json()["error"].keys()
