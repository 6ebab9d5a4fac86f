"""A driver without a GPU, for tests: allocations are memfds, "device" addresses are mappings of this process.

What real processes do with each other works here too, since the descriptors are real: contents, read-only mappings
(a write kills the writer), memory that outlives its maker. Contexts are only counted.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from dataclasses import dataclass, field

from python_backend.cuda import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    POSIX_FD_SUPPORTED,
    CudaError,
    Gpu,
)

FAKE_UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-99999999-8888-7777-6666-555555555555"
GRANULARITY_BYTES = 64 << 10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class FakeDriver:
    """`Driver`, in this process's own memory. The switches say what it shall not be able to do."""

    uuids: tuple[str, ...] = (FAKE_UUID,)
    memory_bytes: int = 64 << 20
    exports_fds: bool = True
    export_fails: bool = False
    """Promised by the attribute, refused when it is tried."""
    maps_read_only: bool = True
    calls: list[str] = field(default_factory=list)
    handles: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Handle -> (memfd, bytes)."""
    mapped: dict[int, int] = field(default_factory=dict)
    """Address -> bytes."""
    contexts: Counter[int] = field(default_factory=Counter)
    pinned: dict[int, mmap.mmap] = field(default_factory=dict)
    legacy: dict[int, int] = field(default_factory=dict)
    """Address -> handle."""
    _next: int = 100

    # --- devices ---

    def gpus(self) -> list[Gpu]:
        return [Gpu(ordinal, uuid) for ordinal, uuid in enumerate(self.uuids)]

    def attribute(self, ordinal: int, attribute: int) -> int:
        return int(self.exports_fds) if attribute == POSIX_FD_SUPPORTED else 1

    def total_bytes(self, ordinal: int) -> int:
        return self.memory_bytes

    def granularity(self, ordinal: int) -> int:
        return GRANULARITY_BYTES

    # --- virtual memory management ---

    def create(self, ordinal: int, num_bytes: int) -> int:
        self.calls.append("create")
        if num_bytes % GRANULARITY_BYTES:
            raise CudaError("cuMemCreate", INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE")
        if sum(size for _, size in self.handles.values()) + num_bytes > self.memory_bytes:
            raise CudaError("cuMemCreate", OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", f"{num_bytes} bytes")
        fd = os.memfd_create("fake-gpu", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_bytes)
        return self._add_handle(fd, num_bytes)

    def export_fd(self, handle: int) -> int:
        self.calls.append("export_fd")
        if self.export_fails:
            raise CudaError("cuMemExportToShareableHandle", NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED")
        return os.dup(self.handles[handle][0])

    def import_fd(self, fd: int) -> int:
        self.calls.append("import_fd")
        memory = os.dup(fd)
        return self._add_handle(memory, os.fstat(memory).st_size)

    def release(self, handle: int) -> None:
        self.calls.append("release")
        os.close(self.handles.pop(handle)[0])

    def map(self, ordinal: int, handle: int, num_bytes: int, writable: bool) -> int:
        self.calls.append("map")
        fd, size = self.handles[handle]
        if num_bytes != size:
            raise CudaError("cuMemMap", INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", f"{num_bytes} of {size}")
        if not writable and not self.maps_read_only:
            raise CudaError("cuMemSetAccess", NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "read-only")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = int(_libc.mmap(None, num_bytes, protection, mmap.MAP_SHARED, fd, 0))
        self.mapped[address] = num_bytes
        return address

    def unmap(self, address: int, num_bytes: int) -> None:
        self.calls.append("unmap")
        assert self.mapped.pop(address) == num_bytes  # noqa: S101 - a fake says what was wrong
        _libc.munmap(address, num_bytes)

    # --- with a context ---

    def enter_context(self, ordinal: int) -> None:
        self.contexts[ordinal] += 1

    def leave_context(self, ordinal: int) -> None:
        self.contexts[ordinal] -= 1

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def memory_info(self) -> tuple[int, int]:
        used = sum(size for _, size in self.handles.values())
        return self.memory_bytes - used, self.memory_bytes

    def copy_to_device(self, address: int, source: int, num_bytes: int, stream: int) -> None:
        ctypes.memmove(address, source, num_bytes)

    def copy_from_device(self, target: int, address: int, num_bytes: int) -> None:
        ctypes.memmove(target, address, num_bytes)

    def fill_zero(self, address: int, num_bytes: int) -> None:
        ctypes.memset(address, 0, num_bytes)

    def create_stream(self) -> int:
        self._next += 1
        return self._next

    def wait_for_stream(self, stream: int) -> None:
        self.calls.append("wait_for_stream")

    def allocate_pinned(self, num_bytes: int) -> int:
        buffer = mmap.mmap(-1, num_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self.pinned[address] = buffer
        return address

    def free_pinned(self, address: int) -> None:
        del self.pinned[address]

    # --- legacy IPC: a handle is the descriptor's number in the maker, found again through /proc ---

    def legacy_allocate(self, num_bytes: int) -> int:
        handle = self.create(0, num_bytes)
        address = self.map(0, handle, num_bytes, writable=True)
        self.legacy[address] = handle
        return address

    def legacy_free(self, address: int) -> None:
        handle = self.legacy.pop(address)
        self.unmap(address, self.handles[handle][1])
        self.release(handle)

    def legacy_export(self, address: int) -> tuple[bytes, int]:
        fd = self.handles[self.legacy[address]][0]
        return f"/proc/{os.getpid()}/fd/{fd}".encode().ljust(64, b"\0"), 0

    def legacy_open(self, handle: bytes) -> int:
        fd = os.open(handle.rstrip(b"\0").decode(), os.O_RDWR)
        opened = self._add_handle(fd, os.fstat(fd).st_size)
        address = self.map(0, opened, self.handles[opened][1], writable=True)
        self.release(opened)
        return address

    def legacy_close(self, address: int) -> None:
        self.unmap(address, self.mapped[address])

    def _add_handle(self, fd: int, num_bytes: int) -> int:
        self._next += 1
        self.handles[self._next] = (fd, num_bytes)
        return self._next
