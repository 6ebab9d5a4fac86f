"""One of several that could lead. Prints a line a look, "TIME 1" while it leads, until it is told to stop.

leader_process.py NAME file FOLDER | leader_process.py NAME lease KUBECONFIG
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from scaler.acting.kubernetes_api import KubernetesApi
from scaler.leading import file_leader
from scaler.leading.file_leader import FileLeadership
from scaler.leading.kubernetes_lease import KubernetesLease
from scaler.leading.leader import Leadership, Timing, awake_clock
from scaler.leading.lease import LeaseLeadership

LOOK_S = 0.01
TIMING = Timing(lease_s=2.0, renew_s=1.2, retry_s=0.1)


def quiet(text: str) -> None: ...


async def main(name: str, kind: str, place: str) -> None:
    api = KubernetesApi(place) if kind == "lease" else None
    leadership: Leadership
    if api:
        leadership = LeaseLeadership(
            KubernetesLease(api, "default", "tidegate"), name, say=quiet, timing=TIMING
        )
    else:
        file_leader.RETRY_S = TIMING.retry_s
        leadership = FileLeadership(Path(place), say=quiet, me=name)
    running = asyncio.create_task(leadership.run())
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    while not stopped.is_set():
        at_s = awake_clock()
        print(f"{at_s:.6f} {int(leadership.is_leader)}", flush=True)
        await asyncio.sleep(LOOK_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    if api:
        await api.close()


asyncio.run(main(*sys.argv[1:]))
