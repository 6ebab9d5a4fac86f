"""The worker's side of its lease: extents over the control socket to the node."""

from __future__ import annotations

from collections import deque

from python_backend.channel import PacketChannel, close_fds
from python_backend.messages import (
    ExtentLeased,
    LeaseBlocks,
    NodeToWorker,
    PoolExhausted,
    ReleaseExtent,
)

REPLY_TIMEOUT_S = 5.0
"""A node that is silent for this long is taken for dead: a worker must not hang on it for ever."""


class NodeLessor:
    """Asks the node and waits (11-70 µs). What else arrives meanwhile is kept in `unread`."""

    def __init__(self, control: PacketChannel[NodeToWorker]) -> None:
        self._control = control
        self.unread: deque[tuple[NodeToWorker, list[int]]] = deque()

    def lease(self, num_blocks: int) -> range | None:
        """Raises PeerLost when the node is gone, TimeoutError when it does not answer."""
        self._control.send(LeaseBlocks(num_blocks))
        self._control.sock.settimeout(REPLY_TIMEOUT_S)
        try:
            while True:
                message, fds = self._control.receive()
                if isinstance(message, ExtentLeased):
                    return range(message.first_block, message.first_block + message.num_blocks)
                if isinstance(message, PoolExhausted):
                    close_fds(fds)
                    return None
                self.unread.append((message, fds))
        finally:
            self._control.sock.settimeout(None)

    def release(self, extent: range) -> None:
        self._control.send(ReleaseExtent(extent.start, len(extent)))
