"""The KV memory in a worker's address space: who touches what is not its own dies, and nobody else notices."""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator

import pytest

from python_backend.worker.mapping import KVMapping

pytestmark = pytest.mark.integration

BLOCK_BYTES = 2 * mmap.PAGESIZE
NUM_BLOCKS = 8
OLD = b"\x07"


@pytest.fixture
def fd() -> Iterator[int]:
    """A pool that others have written in."""
    fd = os.memfd_create("test-kv", os.MFD_CLOEXEC)
    os.write(fd, OLD * BLOCK_BYTES * NUM_BLOCKS)
    yield fd
    os.close(fd)


def block_of(fd: int, block: int) -> bytes:
    return os.pread(fd, BLOCK_BYTES, block * BLOCK_BYTES)


def end_of(work: Callable[[KVMapping], None], fd: int) -> int:
    """Do it in a worker of its own: its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(KVMapping(fd, NUM_BLOCKS * BLOCK_BYTES, BLOCK_BYTES))
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def poke(mapping: KVMapping, block: int) -> None:
    mapping.raw[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = 1


def peek(mapping: KVMapping, block: int) -> int:
    return int(mapping.raw[block * BLOCK_BYTES])


def test_leased_blocks_are_zero_and_writable(fd: int) -> None:
    """What another request left there is gone; the neighbours' blocks are as they were."""
    mapping = KVMapping(fd, NUM_BLOCKS * BLOCK_BYTES, BLOCK_BYTES)
    mapping.open_private(range(2, 4))
    assert block_of(fd, 2) == block_of(fd, 3) == bytes(BLOCK_BYTES)
    assert block_of(fd, 1) == block_of(fd, 4) == OLD * BLOCK_BYTES
    poke(mapping, 3)
    assert block_of(fd, 3) == b"\x01" * BLOCK_BYTES


def test_published_blocks_can_be_read(fd: int) -> None:
    """They keep what they hold."""
    mapping = KVMapping(fd, NUM_BLOCKS * BLOCK_BYTES, BLOCK_BYTES)
    mapping.open_shared(range(5, 6))
    assert peek(mapping, 5) == OLD[0]


def read_foreign(mapping: KVMapping) -> None:
    mapping.open_private(range(2, 3))
    peek(mapping, 3)


def write_foreign(mapping: KVMapping) -> None:
    mapping.open_private(range(2, 3))
    poke(mapping, 1)


def write_published(mapping: KVMapping) -> None:
    mapping.open_private(range(2, 4))
    mapping.open_shared(range(3, 4))
    peek(mapping, 3)
    poke(mapping, 2)
    poke(mapping, 3)


def read_given_back(mapping: KVMapping) -> None:
    mapping.open_private(range(2, 4))
    mapping.close(range(2, 4))
    peek(mapping, 2)


@pytest.mark.parametrize("stray", [read_foreign, write_foreign, write_published, read_given_back])
def test_a_stray_touch_ends_that_worker_alone(fd: int, stray: Callable[[KVMapping], None]) -> None:
    """SIGSEGV before anything has changed: what others hold is intact."""
    assert end_of(stray, fd) == -signal.SIGSEGV
    intact = [block for block in range(NUM_BLOCKS) if block not in (2, 3)]
    assert all(block_of(fd, block) == OLD * BLOCK_BYTES for block in intact)
    if stray is write_published:
        assert block_of(fd, 3) == bytes(BLOCK_BYTES)


def test_blocks_that_are_no_whole_pages_are_refused(fd: int) -> None:
    """Protection comes by the page."""
    with pytest.raises(ValueError, match="4097 bytes are no multiple of the page"):
        KVMapping(fd, NUM_BLOCKS * BLOCK_BYTES, 4097)
