"""Memory and processor time of the stack's processes: RSS at every sample, PSS, which walks page tables, seldom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import psutil

from loadtest.watching.source import Labels, Reading, Sample, SourceUnreadable, ticks

PSS_PERIOD_S = 5.0
FAMILY_PERIOD_S = 1.0
"""How often new children are looked for."""


class ProcessSource:
    """`pids`: the stack's processes by name ("node", "tritonserver", "gateway"); their children are found here."""

    name = "processes"

    def __init__(self, pids: Mapping[str, int], period_s: float) -> None:
        self.period_s = period_s
        self._pids = dict(pids)
        self._family: Sequence[tuple[Labels, psutil.Process]] = ()

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """The files under /proc are read in a thread: the pages of a large process take milliseconds."""
        family_due_s = pss_due_s = 0.0
        async for now_s in ticks(self.period_s):
            if now_s >= family_due_s:
                self._family = await asyncio.to_thread(self._find_family)
                family_due_s = now_s + FAMILY_PERIOD_S
            with_pss = now_s >= pss_due_s
            if with_pss:
                pss_due_s = now_s + PSS_PERIOD_S
            yield Sample(now_s, await asyncio.to_thread(self._read, with_pss))

    def _find_family(self) -> list[tuple[Labels, psutil.Process]]:
        family: list[tuple[Labels, psutil.Process]] = []
        for name, pid in self._pids.items():
            try:
                parent = psutil.Process(pid)
                members = [(name, parent), *((_kind(child), child) for child in parent.children(True))]
            except psutil.Error:
                continue  # it has ended; its row ends here
            family += [((("process", kind), ("pid", str(each.pid))), each) for kind, each in members]
        if not family:
            raise SourceUnreadable(
                f"none of the stack's processes runs: {', '.join(self._pids) or 'no pids'}"
            )
        return family

    def _read(self, with_pss: bool) -> tuple[Reading, ...]:
        readings = []
        for labels, process in self._family:
            try:
                readings += read_process(process, labels, with_pss)
            except (psutil.Error, OSError):
                continue  # it ended between the look and the reading
        return tuple(readings)


def read_process(process: psutil.Process, labels: Labels, with_pss: bool) -> list[Reading]:
    """Raises psutil.Error, OSError when it has ended or is not ours to look into."""
    times = process.cpu_times()
    readings = [
        Reading("rss_bytes", labels, "bytes", process.memory_info().rss),
        Reading("cpu_s", labels, "s", times.user + times.system),
    ]
    if with_pss:
        readings.append(Reading("pss_bytes", labels, "bytes", pss_bytes(process.pid)))
    return readings


def pss_bytes(pid: int) -> int:
    """Pages that several processes map are split among them. One line of smaps_rollup. Raises OSError."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/smaps_rollup has no Pss")


def _kind(child: psutil.Process) -> str:
    """ "stub", "forkserver", "worker", or the program's name."""
    command = " ".join(child.cmdline())
    if "triton_python_backend_stub" in command:
        return "stub"
    if "worker.forkserver" in command:
        parent = child.parent()
        is_fork = parent is not None and "worker.forkserver" in " ".join(parent.cmdline())
        return "worker" if is_fork else "forkserver"
    return child.name()
