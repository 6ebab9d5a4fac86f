"""Which sources a run has: those that its target names."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.planning.plan import Memory, Target
from loadtest.watching.gpu import GpuSource, load_nvml
from loadtest.watching.node import NodeSource
from loadtest.watching.processes import ProcessSource
from loadtest.watching.source import MemorySource
from loadtest.watching.triton import TritonSource

SLOW_HZ = 5.0
"""Of the sources that are asked anew for each sample; the node, which streams them, keeps the plan's rate."""


def sources_for(target: Target, memory: Memory, pids: Mapping[str, int]) -> list[MemorySource]:
    """`target` with its addresses filled in; `pids`: the stack's processes, {} when it is not on this machine."""
    slow_s = 1 / min(SLOW_HZ, memory.hz)
    sources: list[MemorySource] = []
    if target.node_socket is not None:
        sources.append(NodeSource(str(target.node_socket), 1 / memory.hz))
    if target.triton_metrics is not None:
        sources.append(TritonSource(target.triton_metrics, slow_s))
    if memory.processes and pids:
        sources.append(ProcessSource(pids, slow_s))
    if memory.gpu and pids and (nvml := load_nvml()) is not None:
        sources.append(GpuSource(nvml, slow_s))
    return sources
