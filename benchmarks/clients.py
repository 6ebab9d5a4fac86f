"""Load on Triton's gRPC port, as asyncio tasks: streams of a generate model, calls of a batch model."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc


@dataclass
class Streamed:
    """One stream as its client saw it. Times are `time.monotonic()`."""

    started_s: float
    token_times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_cached_tokens: int = 0
    """Of the prompt, where `return_num_cached_tokens` was among the flags."""
    finish_reason: str = ""
    error: str = ""
    ended_s: float = 0.0
    num_finals: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.started_s

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first."""
        return (self.token_times_s[-1] - self.token_times_s[0]) / max(1, len(self.token_times_s) - 1)


class TritonLoad:
    """One channel to Triton's gRPC port."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self.stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> TritonLoad:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def stream(
        self,
        model: str,
        prompt: str,
        sampling: dict[str, Any],
        parameters: dict[str, int] | None = None,
        flags: Sequence[str] = (),
    ) -> Streamed:
        """One request on a stream of its own, read to its end."""
        seen = Streamed(time.monotonic())
        request = generate_request(model, prompt, sampling, parameters, flags)

        async def requests() -> AsyncIterator[Any]:
            yield request

        try:
            async for response in self.stub.ModelStreamInfer(requests()):
                _note(seen, response)
        except grpc.aio.AioRpcError as exc:
            seen.error = seen.error or f"{exc.code().name}: {exc.details()}"
        seen.ended_s = time.monotonic()
        return seen

    async def embed(
        self, model: str, texts: Sequence[str], metadata: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """float32 rows. Raises grpc.aio.AioRpcError."""
        request = service_pb2.ModelInferRequest(
            model_name=model,
            inputs=[_input("text_input", [len(texts), 1], "BYTES")],
            raw_input_contents=[b"".join(_bytes_element(text) for text in texts)],
        )
        response = await self.stub.ModelInfer(request, metadata=tuple(metadata))
        vectors: bytes = response.raw_output_contents[0]
        return vectors

    async def batch_sizes(self, model: str) -> dict[int, int]:
        """Batch size -> how often Triton ran it, over the server's life."""
        request = service_pb2.ModelStatisticsRequest(name=model)
        statistics = await self.stub.ModelStatistics(request)
        return {
            batch.batch_size: batch.compute_infer.count
            for entry in statistics.model_stats
            for batch in entry.batch_stats
        }


def generate_request(
    model: str,
    prompt: str,
    sampling: dict[str, Any],
    parameters: dict[str, int] | None = None,
    more_flags: Sequence[str] = (),
) -> Any:
    """A streaming request with token counts and finish reason asked for, and what `more_flags` ask for."""
    flags = ("stream", "return_finish_reason", "return_num_output_tokens", *more_flags)
    request = service_pb2.ModelInferRequest(
        model_name=model,
        inputs=[
            _input("text_input", [1], "BYTES"),
            _input("sampling_parameters", [1], "BYTES"),
            *(_input(flag, [1], "BOOL") for flag in flags),
        ],
        raw_input_contents=[
            _bytes_element(prompt),
            _bytes_element(json.dumps(sampling)),
            *(b"\x01" for _ in flags),
        ],
    )
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for key, value in (parameters or {}).items():
        request.parameters[key].int64_param = value
    return request


def _note(seen: Streamed, response: Any) -> None:
    if response.error_message:
        seen.error = response.error_message
        return
    inner = response.infer_response
    seen.num_finals += inner.parameters["triton_final_response"].bool_param
    outputs = dict(zip((o.name for o in inner.outputs), inner.raw_output_contents, strict=True))
    if "text_output" not in outputs:
        return
    seen.token_times_s.append(time.monotonic())
    seen.texts.append(outputs["text_output"][4:].decode())
    seen.num_tokens += struct.unpack("<I", outputs["num_output_tokens"])[0]
    if "num_cached_tokens" in outputs:
        seen.num_cached_tokens = struct.unpack("<I", outputs["num_cached_tokens"])[0]
    reason = outputs["finish_reason"][4:].decode()
    seen.finish_reason = "" if reason == "null" else reason


def _input(name: str, shape: list[int], datatype: str) -> Any:
    return service_pb2.ModelInferRequest.InferInputTensor(name=name, shape=shape, datatype=datatype)


def _bytes_element(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw


async def closed_loop(num_clients: int, num_calls: int, call: Any) -> list[float]:
    """`num_clients` callers, each with one call open, until `num_calls` are done. Latencies in seconds."""
    latencies: list[float] = []
    remaining = iter(range(num_calls))

    async def client() -> None:
        for index in remaining:
            started_s = time.monotonic()
            await call(index)
            latencies.append(time.monotonic() - started_s)

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return latencies
