"""The memory pool's own costs, and what its books leave usable. No model runs here.

- `alloc_us_per_op`: one allocation or free of the byte allocator, over 200,000 mixed ones.
- `books_us_per_op`: one lease, publication, match, drop or release in the pool's books, all checks included.
- `rpc_p50_us`, `rpc_p99_us`: a lease as a worker asks for it, over the raw socket; the release after it is not in.
- `reclaim_p95_ms`: from `kill -9` of a process that holds leases until its bytes are free; `leaked_bytes` by it.
- `usable_share_min`: over a simulated day of scaling churn with prefix blocks alive, the least share of the free
  bytes (neither leased nor published) that a model could lease in single blocks; models of three block sizes.
- `tide_peak_share_min`: two models with opposite tides: least share of the whole arena that either had at its peak.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lease_server import RunningServer, lease_server
from benchmarks.report import Figure, Report
from benchmarks.statistics import percentile
from contracts.sampling import SamplingParams
from python_backend.node.allocator import Allocator
from python_backend.node.pool import Pool
from python_backend.node.pool_figures import Refused
from python_backend.node.quota import ModelQuota
from python_backend.pool_testing import BooksLessor
from python_backend.worker.blocks import BlockPool
from python_backend.worker.lessor import NodeLessor
from python_backend.worker.prefix import PrefixIdentity
from python_backend.worker.sequence import Sequence

NAME = "pool"
MIB = 1 << 20
BLOCK_BYTES = {"chat": 737_280, "small": 294_912, "large": 1_835_008}
"""SmolLM2-135M's, and one smaller and one larger: none is a multiple of another."""
RECLAIM_TIMEOUT_S = 5.0
HELD_BLOCKS = 12

Progress = Callable[[str], None]


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    runs = 1 if quick else 5
    figures: dict[str, Figure] = {}
    progress("allocator and books")
    figures["alloc_us_per_op"] = Figure.of_runs([alloc_us(200_000) for _ in range(runs)], "us")
    figures["books_us_per_op"] = Figure.of_runs([books_us(20_000) for _ in range(runs)], "us")
    with (
        tempfile.TemporaryDirectory(prefix="tg-") as folder,
        lease_server(Path(folder), 2048 * MIB, BLOCK_BYTES["chat"], 16) as server,
    ):
        progress("lease round trips")
        figures |= round_trips(server, 2_000 if quick else 20_000)
        figures |= kills(server, 50 if quick else 1_000, progress)
    progress("a day of churn")
    shares = [usable_share(seed, hours=6 if quick else 24) for seed in range(1 if quick else 3)]
    figures["usable_share_min"] = Figure(min(shares), "ratio", min(shares), max(shares))
    peaks = tide_peaks(days=3)
    figures["tide_peak_share_min"] = Figure(min(peaks), "ratio", min(peaks), max(peaks))
    return Report(NAME, runs, figures).to_dict()


def alloc_us(num_ops: int) -> float:
    """Mixed allocations and frees of 1 to 16 blocks, in an arena that is about two thirds full."""
    rng = random.Random(1)
    allocator = Allocator(4096 * MIB)
    held: list[int] = []
    plan = [(rng.random(), rng.randint(1, 16) * 65_536) for _ in range(num_ops)]
    started_s = time.perf_counter()
    for chance, nbytes in plan:
        if held and chance < 0.5:
            allocator.free(held.pop(int(chance * 2 * len(held))))
        elif (offset := allocator.alloc(nbytes, 65_536)) is not None:
            held.append(offset)
    return (time.perf_counter() - started_s) / num_ops * 1e6


def books_us(num_requests: int) -> float:
    """The life of a request's four blocks, one of which it found published: eight operations."""
    pool = Pool(2048 * MIB)
    pool.add_model("m", BLOCK_BYTES["chat"], ModelQuota())
    started_s = time.perf_counter()
    for index in range(num_requests):
        digests = [b"start", *(f"{index}-{part}".encode() for part in range(2))]
        found = pool.match(1, "m", digests, digests)
        own = [_lease_block(pool) for _ in range(4 - len(found))]
        for digest in digests[len(found) :]:
            if pool.publish(1, "m", "", own[0], digest, digest):
                found.append(own.pop(0))
        pool.drop(1, "m", found)
        for block in own:
            pool.release(1, "m", block, 1)
    return (time.perf_counter() - started_s) / (num_requests * 8) * 1e6


def _lease_block(pool: Pool) -> int:
    block = pool.lease(1, "m", "", 1)
    if isinstance(block, Refused):
        raise TypeError(f"the pool refused a lease: {block.reason}")
    return block


def round_trips(server: RunningServer, count: int) -> dict[str, Figure]:
    """As a worker asks for blocks."""
    channel = server.connect()
    lessor = NodeLessor(channel)
    times_us = []
    for _ in range(count):
        started_s = time.perf_counter()
        blocks = lessor.lease(8, "")
        times_us.append((time.perf_counter() - started_s) * 1e6)
        if not isinstance(blocks, range):
            raise TypeError(f"a lease of 8 blocks was refused; {blocks} can be had")
        lessor.release(blocks)
    channel.close()
    return {
        f"rpc_p{percent}_us": Figure(percentile(times_us, percent), "us", min(times_us), max(times_us))
        for percent in (50, 99)
    }


def kills(server: RunningServer, count: int, progress: Progress) -> dict[str, Figure]:
    """Four processes at a time hold leases; one after another is killed and replaced."""
    reclaim_ms = []
    holders = [_holder(server) for _ in range(4)]
    leaked = 0
    for index in range(count):
        if index % 50 == 0:
            progress(f"kill -9 {index + 1} of {count}")
        holder = holders.pop(0)
        reclaim_ms.append(_kill_and_wait(server, holder) * 1000)
        leaked = max(leaked, server.stats().leased_bytes - len(holders) * HELD_BLOCKS * BLOCK_BYTES["chat"])
        holders.append(_holder(server))
    for holder in holders:
        _kill_and_wait(server, holder)
    leaked = max(leaked, server.stats().leased_bytes)
    return {
        "reclaim_p95_ms": Figure(percentile(reclaim_ms, 95), "ms", min(reclaim_ms), max(reclaim_ms)),
        "leaked_bytes": Figure(leaked, "bytes"),
        "kills": Figure(count, "processes"),
    }


def _kill_and_wait(server: RunningServer, holder: subprocess.Popen[bytes]) -> float:
    """Seconds until the server has taken everything back: it writes its page when a peer has gone."""
    killed_unix_s, started_s = time.time(), time.perf_counter()
    os.kill(holder.pid, signal.SIGKILL)
    while server.stats().unix_s < killed_unix_s:
        if time.perf_counter() - started_s > RECLAIM_TIMEOUT_S:
            raise TimeoutError(f"the leases of pid {holder.pid} did not return")
        time.sleep(0.0002)
    seconds = time.perf_counter() - started_s
    holder.wait()
    return seconds


def _holder(server: RunningServer) -> subprocess.Popen[bytes]:
    """A process that holds leases, and has said so. It imports nothing but what it needs."""
    code = (
        "import socket, sys, time, msgspec\n"
        "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "sock.connect(sys.argv[1])\n"
        "for blocks in (8, 3, 1):\n"
        "    sock.send(msgspec.msgpack.encode(['LeaseBlocks', blocks]))\n"
        "    assert msgspec.msgpack.decode(sock.recv(4096))[0] == 'ExtentLeased'\n"
        "print('holds', flush=True)\n"
        "time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(server.socket_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if holder.stdout is None or holder.stdout.readline() != b"holds\n":
        raise RuntimeError("a lease holder did not start")
    holder.stdout.close()
    return holder


def usable_share(seed: int, hours: int) -> float:
    """Least share of free bytes that each model could use, looked at every simulated minute. The pool tidies up
    once a minute; on a node it does ten times a second."""
    rng = random.Random(seed)
    pool = Pool(2048 * MIB)
    for model, block_bytes in BLOCK_BYTES.items():
        pool.add_model(model, block_bytes, ModelQuota())
    day = _Churn(pool, rng)
    worst = 1.0
    for minute in range(hours * 60):
        day.minute(minute)
        pool.tidy()
        free_bytes = pool.stats().free_bytes
        if free_bytes >= 64 * MIB:  # below, one block more or less is several percent
            worst = min(worst, *(pool.usable_bytes(model) / free_bytes for model in BLOCK_BYTES))
    return worst


class _Churn:
    """Instances come and go with each model's own tide; each is a worker's own block bookkeeping over the pool.

    A request shares one of four beginnings of eight blocks, has 9 to 24 in all, and ends after one to ten minutes.
    """

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self._pool = pool
        self._rng = rng
        self._instances: dict[str, list[_Instance]] = {model: [] for model in BLOCK_BYTES}
        self._num_owners = self._num_requests = 0

    def minute(self, minute: int) -> None:
        for number, (model, instances) in enumerate(self._instances.items()):
            wanted = 1 + round(2 * (1 + _tide(minute / 1440 + number / len(BLOCK_BYTES))))
            while len(instances) < wanted:
                self._num_owners += 1
                instances.append(_Instance(self._pool, self._num_owners, model))
            while len(instances) > wanted:
                self._pool.forget(instances.pop(self._rng.randrange(len(instances))).owner)
            for instance in instances:
                instance.end_those_until(minute)
                self._start(instance, minute)

    def _start(self, instance: _Instance, minute: int) -> None:
        self._num_requests += 1
        start = self._rng.randrange(4) * 8
        tokens = [*range(start, start + 8), *range(self._num_requests * 100, self._num_requests * 100 + 16)]
        instance.start(tokens[: self._rng.randint(9, 24)], minute + self._rng.randint(1, 10))


class _Instance:
    """One worker: a block is one token here."""

    def __init__(self, pool: Pool, owner: int, model: str) -> None:
        self.owner = owner
        identity = PrefixIdentity(model, "fp32", "fp32", 1)
        self._blocks = BlockPool(BooksLessor(pool, owner, model), block_tokens=1, identity=identity)
        self._running: list[tuple[int, Sequence]] = []

    def start(self, tokens: list[int], until: int) -> None:
        sequence = Sequence(0, tokens, len(tokens), SamplingParams())
        self._blocks.match(sequence)
        if not self._blocks.grow(sequence, len(tokens)):
            self._blocks.free(sequence)
            return
        sequence.num_computed = len(tokens) - 1
        self._blocks.publish([sequence])
        self._running.append((until, sequence))

    def end_those_until(self, minute: int) -> None:
        for until, sequence in self._running:
            if until <= minute:
                self._blocks.free(sequence)
        self._running = [entry for entry in self._running if entry[0] > minute]
        self._blocks.give_back_unused(keep=16)


def _tide(day: float) -> float:
    """-1 at night, 1 at the peak."""
    phase = day % 1
    return 4 * phase - 1 if phase < 0.5 else 3 - 4 * phase


def tide_peaks(days: int) -> list[float]:
    """Share of the arena that each of two models gets in its own peak, the other's cache still there."""
    pool = Pool(2048 * MIB)
    shares = []
    for model in ("chat", "large"):
        pool.add_model(model, BLOCK_BYTES[model], ModelQuota())
    for tide in range(2 * days):
        model = ("chat", "large")[tide % 2]
        blocks: list[int] = []
        while not isinstance(first := pool.lease(tide, model, "", 1), Refused):
            blocks.append(first)
        shares.append(len(blocks) * BLOCK_BYTES[model] / pool.total_bytes)
        for block in blocks:
            name = f"{tide}-{block}".encode()
            pool.publish(tide, model, "", block, name, name)
        pool.forget(tide)
    return shares
