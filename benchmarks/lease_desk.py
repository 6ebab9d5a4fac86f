"""The node's lease desk and books in a process of their own, with nothing else of the node: its CPU time is what
leases and prefix blocks cost there.

`python -m benchmarks.lease_desk FD BLOCKS BLOCK_BYTES BLOCK_TOKENS` serves one worker until that closes its end.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence

from python_backend.channel import PacketChannel, PeerLost
from python_backend.messages import ModelBound, WorkerToNode
from python_backend.node.desk import LeaseDesk
from python_backend.node.instances import WorkerId
from python_backend.node.pool import Pool
from python_backend.node.quota import ModelQuota
from python_backend.node.spares import Worker

MODEL = "chat"


async def serve_desk(channel: PacketChannel[WorkerToNode], bound: ModelBound, num_blocks: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pool = Pool(num_blocks * bound.block_bytes)
    pool.add_model(bound.model, bound.block_bytes, ModelQuota())
    worker = Worker(WorkerId(1), bound.model)
    desk = LeaseDesk(pool, {bound.model: bound}, lambda _, message: channel.send(message), list, loop)

    def serve() -> None:
        try:
            message, _ = channel.receive()
        except PeerLost:
            ended.set()
            return
        desk.serve(worker, message)

    loop.add_reader(channel.fileno(), serve)
    print("ready", flush=True)
    await ended.wait()
    loop.remove_reader(channel.fileno())


def main(arguments: Sequence[str]) -> None:
    fd, num_blocks, block_bytes, block_tokens = map(int, arguments)
    channel: PacketChannel[WorkerToNode] = PacketChannel(socket.socket(fileno=fd), WorkerToNode)
    bound = ModelBound(MODEL, block_bytes, block_tokens, max_context_tokens=0)
    asyncio.run(serve_desk(channel, bound, num_blocks))


if __name__ == "__main__":
    main(sys.argv[1:])
