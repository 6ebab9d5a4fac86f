"""The node daemon as the launcher keeps it: probed over its control socket.

Triton need not restart for it: the stubs fail their requests at once and join the next node by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from scaler.errors import ScaleError
from scaler.node_client import NodeClient
from tidegate.kept_process import KeptProcess, Say
from tidegate.processes import Child


class NodeProcess(KeptProcess):
    """A node that does not answer for `hang_timeout_s` is killed, and the next one started."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        wait_ready: Callable[[Child], Awaitable[None]],
        on_ready: Callable[[], None],
        control_socket: str,
        hang_timeout_s: float,
        say: Say,
    ) -> None:
        async def answers(timeout_s: float) -> bool:
            return await _answers(control_socket, timeout_s)

        super().__init__(spawn, wait_ready, on_ready, say, answers=answers, hang_timeout_s=hang_timeout_s)


async def _answers(control_socket: str, timeout_s: float) -> bool:
    started_s = time.monotonic()
    client = NodeClient(control_socket)
    try:
        async with asyncio.timeout(timeout_s):
            await client.status()
        return True
    except (ScaleError, TimeoutError):
        await asyncio.sleep(max(0.0, started_s + timeout_s - time.monotonic()))
        return False
    finally:
        await client.close()
