"""What instances cost in memory, against ordinary ones of the same model on the same Triton.

All sums are PSS (pages that several processes map are split among them), after every instance has answered, of the
processes that are there for the model alone. Ours: node daemon, fork server, workers, stubs, without spares. The
ordinary model's: its stubs. `tritonserver` is in neither sum, and neither is our KV pool, whose size is the user's
choice. (What the ordinary model's last request left in its allocator stays in its sum: a few MiB.)

- `private_mib_per_instance`: memory that no other process maps, of stub and worker together, without pages of the
  pool or the weights that happen to be mapped once; median of the second to fourth instance.
- `pss_4_over_1`: four instances of ours / one of ours.
- `instances_ratio`: so many of our instances take the memory of four ordinary ones that each own a copy of the
  weights / 4. Instances beyond the fourth are taken to cost what the second to fourth did on average.
- `instances_ratio_mmap`: the same against ordinary ones that map the weights from the file and share its pages,
  which transformers does as long as nothing is cast or quantized.
- peers `own copy` and `mmap`: their `pss_4_over_1`, `private_mib_per_instance`, and sums.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.clients import TritonLoad
from benchmarks.generate import prompts
from benchmarks.node import node_status, wait_until
from benchmarks.ordinary import MAX_NEW_TOKENS, ordinary_model
from benchmarks.report import Figure, Report
from contracts.stack import Stack
from scaler.acting.by_hand import scale
from tidegate.testing import running_stack

NAME = "memory"
MAX_INSTANCES = 4
POOL = "256MiB"
SETTLE_S = 1.0
"""Until what a request leaves behind has been given back: KV leases go after half a second of idleness."""
MIB = 1 << 20
KV_NAME = "memfd:tidegate-kv"
MAPPING_LINE = re.compile(r"[0-9a-f]+-[0-9a-f]+ (?P<access>\S{4}) \S+ \S+ \S+\s*(?P<name>.*)")
SIZE_LINE = re.compile(r"(?P<key>\w+): +(?P<kib>\d+) kB")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """One side. `pss`: bytes with one to four instances; `private`: bytes of each, in the order of their coming."""

    pss: Sequence[int]
    private: Sequence[int]

    @property
    def per_further(self) -> float:
        """Bytes of PSS that another instance adds."""
        return (self.pss[-1] - self.pss[0]) / (len(self.pss) - 1)

    def figures(self) -> dict[str, Figure]:
        further = [size / MIB for size in self.private[1:]]
        return {
            "private_mib_per_instance": Figure.of_runs(further, "MiB"),
            "pss_4_over_1": Figure(self.pss[-1] / self.pss[0], "ratio"),
            "pss_mib_1": Figure(self.pss[0] / MIB, "MiB"),
            "pss_mib_4": Figure(self.pss[-1] / MIB, "MiB"),
        }


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """`quick` changes nothing: sizes hardly vary."""
    del quick
    ours = _ours(progress)
    own_copy = _ordinary(progress, "own copy", owns_copy=True)
    mapped = _ordinary(progress, "mmap", owns_copy=False)
    figures = {
        **ours.figures(),
        "instances_ratio": Figure(instances_ratio(ours, own_copy), "ratio"),
        "instances_ratio_mmap": Figure(instances_ratio(ours, mapped), "ratio"),
    }
    peers = {"own copy": own_copy.figures(), "mmap": mapped.figures()}
    return Report(NAME, 1, figures, peers).to_dict()


def instances_ratio(ours: Sizes, theirs: Sizes) -> float:
    """Our instances in the memory of all of theirs / how many theirs are."""
    num_ours = 1 + (theirs.pss[-1] - ours.pss[0]) / ours.per_further
    return num_ours / len(theirs.pss)


def _ours(progress: Progress) -> Sizes:
    pss, private = [], []
    options = ("--model", "chat", "--no-gateway", "--spares", "chat=0", "--pool-bytes", POOL)
    with running_stack(*options) as running:
        stack = running.stack
        for num_instances in range(1, MAX_INSTANCES + 1):
            progress(f"ours: {num_instances} of {MAX_INSTANCES}")
            asyncio.run(_scale_and_use(stack, num_instances))
            status = wait_until(stack.node_socket, lambda status: status.pool.leased_bytes == 0)
            time.sleep(SETTLE_S)
            node = psutil.Process(stack.pids["node"])
            processes = [node.pid, *(child.pid for child in node.children(recursive=True))]
            processes += [entry.stub_pid for entry in status.instances]
            pss.append(sum(map(pss_without_kv, processes)))
            newest = max(status.instances, key=lambda entry: entry.attached_unix_ms)
            private.append(private_bytes(newest.stub_pid) + private_bytes(newest.worker_pid))
    return Sizes(pss, private)


async def _scale_and_use(stack: Stack, num_instances: int) -> None:
    """Every instance has answered afterwards. Raises RuntimeError."""
    if num_instances > 1:
        await scale(stack, "chat", num_instances, on_event=lambda _: None)
    before = await _landed(stack)
    sampling = {"max_tokens": MAX_NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    async with TritonLoad(stack.triton_grpc) as load:
        texts = prompts(4 * num_instances)
        streams = await asyncio.gather(*(load.stream("chat", text, sampling) for text in texts))
    if failed := [stream.error for stream in streams if stream.error]:
        raise RuntimeError(f"{len(failed)} of {len(streams)} requests failed: {failed[0]}")
    after = await _landed(stack)
    if idle := [name for name in after if after[name] == before.get(name, 0)]:
        raise RuntimeError(f"instances {idle} were never asked")


async def _landed(stack: Stack) -> dict[str, int]:
    status = await asyncio.to_thread(node_status, stack.node_socket)
    return {entry.instance: entry.landed for entry in status.instances}


def _ordinary(progress: Progress, label: str, *, owns_copy: bool) -> Sizes:
    pss, private = [], []
    with ordinary_model(owns_copy=owns_copy) as plain:
        for num_instances in range(1, MAX_INSTANCES + 1):
            progress(f"{label}: {num_instances} of {MAX_INSTANCES}")
            if num_instances > 1:
                plain.set_instances(num_instances)
            plain.use_all(prompts(1)[0])
            stubs = plain.stubs()
            pss.append(sum(pss_without_kv(stub.pid) for stub in stubs))
            private.append(private_bytes(max(stubs, key=lambda stub: stub.created_unix_s).pid))
    return Sizes(pss, private)


@dataclass
class Mapping:
    """One entry of /proc/PID/smaps."""

    name: str
    is_shared: bool
    sizes_kib: dict[str, int] = field(default_factory=dict)


def mappings(pid: int) -> list[Mapping]:
    found: list[Mapping] = []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := MAPPING_LINE.match(line):
            found.append(Mapping(match["name"], match["access"].endswith("s")))
        elif match := SIZE_LINE.match(line):
            found[-1].sizes_kib[match["key"]] = int(match["kib"])
    return found


def pss_without_kv(pid: int) -> int:
    return 1024 * sum(each.sizes_kib["Pss"] for each in mappings(pid) if KV_NAME not in each.name)


def private_bytes(pid: int) -> int:
    """Resident pages that no other process maps. What is mapped shared (weights, KV, the board, Triton's region)
    is not private, whoever else happens to look at it now."""
    own = [each.sizes_kib for each in mappings(pid) if not each.is_shared]
    return 1024 * sum(sizes["Private_Clean"] + sizes["Private_Dirty"] for sizes in own)
