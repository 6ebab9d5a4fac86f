"""Sources that go away and come back on the same port, as servers of a process of their own do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scaler.deciding.observation import Counts
from scaler.measuring.collector import Collector
from scaler.measuring.triton_metrics import TritonMetrics
from scaler.testing import FakeClock
from scaler.triton_client import TritonClient
from tidegate.testing import free_ports

pytestmark = pytest.mark.integration

TRITON = """
import http.server, sys, threading
from concurrent import futures
import grpc
from tritonclient.grpc import service_pb2 as pb, service_pb2_grpc as pb_grpc

class Triton(pb_grpc.GRPCInferenceServiceServicer):
    def ModelStatistics(self, request, context):
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=request.name)])
    def ModelConfig(self, request, context):
        return pb.ModelConfigResponse()

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'nv_inference_pending_request_count{model="slow",version="1"} 5')
    def log_message(self, *args): pass

server = grpc.server(futures.ThreadPoolExecutor(2))
pb_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
http.server.ThreadingHTTPServer.allow_reuse_address = True
page = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Page)
print("ready", flush=True)
page.serve_forever()
"""


@asynccontextmanager
async def triton(*ports: int) -> AsyncIterator[None]:
    """The three answers that a collector asks a Triton for; killed at the end."""
    command = [sys.executable, "-W", "ignore", "-c", TRITON, *map(str, ports)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.wait()


async def test_a_triton_that_was_killed_is_used_again_within_seconds_of_its_return():
    """Down for 5 s. gRPC left alone tries after 1, 2.6, 5.2 and 9.3 s, and after some minutes every two minutes."""
    ports = free_ports(2)
    clock = FakeClock()
    client, metrics = (
        TritonClient(f"127.0.0.1:{ports[0]}"),
        TritonMetrics(f"127.0.0.1:{ports[1]}"),
    )
    collector = Collector(client, clock=clock, metrics=metrics)

    async def look() -> dict[str, str]:
        await collector.signals("slow", Counts(1), clock.advance(1.0))
        await asyncio.sleep(0.2)
        return collector.troubles

    async with triton(*ports):
        assert await look() == {}
    for _ in range(25):
        assert set(await look()) == {"the metrics endpoint", "Triton (statistics of slow)"}
    async with triton(*ports):
        num_looks = 1
        while await look():
            num_looks += 1
    await client.close()
    await metrics.close()
    assert num_looks <= 10
