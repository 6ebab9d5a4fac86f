"""`python -m benchmarks.gateway_bare HOST:PORT`: the least that a proxy in grpc.aio can be, bytes in, bytes out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

READY_LINE = "tidegate-ready bare"


class BareProxy(grpc.GenericRpcHandler):
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def service(self, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method

        async def unary(request: bytes, _: Any) -> Any:
            return await self._channel.unary_unary(method)(request)

        async def stream(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
            async for reply in self._channel.stream_stream(method)(requests):
                yield reply

        if method.endswith("ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


async def main(triton: str) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    async with grpc.aio.insecure_channel(triton) as channel:
        server.add_generic_rpc_handlers([BareProxy(channel)])
        await server.start()
        print(READY_LINE, port, flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
