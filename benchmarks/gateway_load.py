"""What the gateway bench sends, the same to each address: echoes at a steady rate, streams of stamped responses."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

ECHO_VALUES = 16


def echo_request() -> Any:
    request = service_pb2.ModelInferRequest(model_name="echo")
    request.inputs.add(name="IN", datatype="FP32", shape=[ECHO_VALUES])
    request.raw_input_contents.append(bytes(4 * ECHO_VALUES))
    return request


def ticks_request(count: int, every_s: float) -> Any:
    request = service_pb2.ModelInferRequest(model_name="ticks", id="ticks")
    request.inputs.add(name="TIMES", datatype="FP64", shape=[2])
    request.raw_input_contents.append(struct.pack("<2d", count, every_s))
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


class Door:
    """One connection to an address, and what was measured over it."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    async def echoes_s(self, rate_per_s: float, duration_s: float) -> list[float]:
        """Latencies of an open loop."""
        request = echo_request()

        async def echo() -> float:
            started_s = time.perf_counter()
            await self.stub.ModelInfer(request)
            return time.perf_counter() - started_s

        began_s, tasks = time.monotonic(), []
        for index in range(int(rate_per_s * duration_s)):
            await asyncio.sleep(max(0.0, began_s + index / rate_per_s - time.monotonic()))
            tasks.append(asyncio.create_task(echo()))
        return list(await asyncio.gather(*tasks))

    async def chunks_s(self, num_streams: int, num_chunks: int, every_s: float) -> list[float]:
        """From a response's leaving the model to its arrival, of all but each stream's first."""
        streams = [self.ticks_s(num_chunks, every_s) for _ in range(num_streams)]
        return [delay_s for stream in await asyncio.gather(*streams) for delay_s in stream[1:]]

    async def ticks_s(self, num_chunks: int, every_s: float) -> list[float]:
        """Raises RuntimeError when the stream says an error."""
        stream = self.stub.ModelStreamInfer()
        delays_s: list[float] = []
        await stream.write(ticks_request(num_chunks, every_s))
        while len(delays_s) < num_chunks:
            message = await stream.read()
            now_s = time.monotonic()
            if message is grpc.aio.EOF or message.error_message:
                raise RuntimeError(f"a stream of ticks broke: {getattr(message, 'error_message', 'ended')}")
            if message.infer_response.raw_output_contents:
                (sent_s,) = struct.unpack("<d", message.infer_response.raw_output_contents[0])
                delays_s.append(now_s - sent_s)
        await stream.done_writing()
        while await stream.read() is not grpc.aio.EOF:
            pass
        return delays_s

    @contextlib.asynccontextmanager
    async def idle(self, count: int) -> AsyncIterator[None]:
        """So many streams that are open and ask nothing."""
        streams = [self.stub.ModelStreamInfer() for _ in range(count)]
        await asyncio.gather(*(stream.wait_for_connection() for stream in streams))
        try:
            yield
        finally:
            for stream in streams:
                stream.cancel()
