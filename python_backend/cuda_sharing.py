"""One piece of a GPU's memory, made by one process and opened by others through a file descriptor.

Two ways. The driver's own descriptor (VMM): counted by the driver, so whoever goes first, the memory stays until
nobody has it, and the maker needs no context. Or, where the driver exports none, a memfd that holds a legacy IPC
handle and the offset in the allocation that it names: then the maker holds a context and must outlive all openers.
A descriptor tells by its kind which of both it is.

Each process opens a piece once and cuts views from it: a legacy handle cannot be opened twice.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from python_backend.cuda import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    POSIX_FD_SUPPORTED,
    VMM_SUPPORTED,
    CudaError,
    Driver,
    Gpu,
    rounded_up,
)

logger = logging.getLogger(__name__)

LEGACY_MAGIC = b"TIDEIPC1"
LEGACY_GRANULARITY_BYTES = 2 << 20
"""Smaller allocations share a segment with strangers, and a handle names the whole of it."""
_OFFSET_BYTES = 8
_MAX_LEGACY_BYTES = 256


def can_export_fds(driver: Driver, gpu: Gpu) -> bool:
    """Tried, not only asked: sandboxes hand out devices that promise more than they let through."""
    if not all(driver.attribute(gpu.ordinal, wanted) for wanted in (VMM_SUPPORTED, POSIX_FD_SUPPORTED)):
        return False
    handle = driver.create(gpu.ordinal, driver.granularity(gpu.ordinal))
    try:
        os.close(driver.export_fd(handle))
    except CudaError as exc:
        if not exc.means_unsupported:
            raise
        logger.warning("GPU %s exports no descriptors here: %s", gpu.uuid, exc)
        return False
    finally:
        driver.release(handle)
    return True


class SharedPiece:
    """The maker's side. `fd` is for others and stays this object's."""

    def __init__(self, driver: Driver, gpu: Gpu, num_bytes: int, is_legacy: bool) -> None:
        """Raises CudaError; nothing is left allocated then."""
        self._driver, self._gpu, self._is_legacy = driver, gpu, is_legacy
        unit = LEGACY_GRANULARITY_BYTES if is_legacy else driver.granularity(gpu.ordinal)
        self.num_bytes = rounded_up(num_bytes, unit)
        self.fd = self._make_legacy() if is_legacy else self._make()

    def release(self) -> None:
        """Others that have it open keep it, but for a legacy piece: there they must be gone."""
        os.close(self.fd)
        if self._is_legacy:
            self._driver.enter_context(self._gpu.ordinal)
            self._driver.legacy_free(self._handle)
            self._driver.leave_context(self._gpu.ordinal)
            self._driver.leave_context(self._gpu.ordinal)  # the one of `_make_legacy`
        else:
            self._driver.release(self._handle)

    def _make(self) -> int:
        self._handle = self._driver.create(self._gpu.ordinal, self.num_bytes)
        try:
            return self._driver.export_fd(self._handle)
        except CudaError:
            self._driver.release(self._handle)
            raise

    def _make_legacy(self) -> int:
        """Keeps the context: without it the memory would go."""
        self._driver.enter_context(self._gpu.ordinal)
        try:
            self._handle = self._driver.legacy_allocate(self.num_bytes)
            handle, offset_bytes = self._driver.legacy_export(self._handle)
        except CudaError:
            self._driver.leave_context(self._gpu.ordinal)  # and with the context what was allocated
            raise
        fd = os.memfd_create("tidegate-cuda-ipc", os.MFD_CLOEXEC)
        os.pwrite(fd, LEGACY_MAGIC + offset_bytes.to_bytes(_OFFSET_BYTES, "little") + handle, 0)
        return fd


@dataclass(frozen=True)
class OpenedPiece:
    """An opener's side: `num_bytes` at `address`, an address of this process and of the GPU."""

    address: int
    num_bytes: int
    """With what the granularity adds."""
    mapped_at: int
    is_legacy: bool
    driver: Driver

    def close(self) -> None:
        """Nothing may still run on it: synchronize first."""
        if self.is_legacy:
            self.driver.legacy_close(self.mapped_at)
        else:
            self.driver.unmap(self.mapped_at, self.num_bytes)


def open_piece(driver: Driver, gpu: Gpu, fd: int, num_bytes: int, writable: bool) -> OpenedPiece:
    """Map it; the GPU's context must be current. `fd` stays the caller's. Read-only pieces fault on a write, except
    legacy ones, which nothing protects. Raises CudaError."""
    if (legacy := _read_legacy(fd)) is not None:
        return _open_legacy(driver, legacy, rounded_up(num_bytes, LEGACY_GRANULARITY_BYTES))
    size = rounded_up(num_bytes, driver.granularity(gpu.ordinal))
    handle = driver.import_fd(fd)
    try:
        address = _map(driver, gpu, handle, size, writable)
    finally:
        driver.release(handle)  # the mapping keeps the memory
    return OpenedPiece(address, size, address, False, driver)


def _map(driver: Driver, gpu: Gpu, handle: int, size: int, writable: bool) -> int:
    try:
        return driver.map(gpu.ordinal, handle, size, writable)
    except CudaError as exc:
        if writable or exc.call != "cuMemSetAccess" or exc.code not in (INVALID_VALUE, NOT_SUPPORTED):
            raise
        logger.warning("this driver maps nothing read-only (%s): weights are not protected from writes", exc)
        return driver.map(gpu.ordinal, handle, size, writable=True)


def _read_legacy(fd: int) -> bytes | None:
    """Offset and handle; None: `fd` is the driver's own descriptor, which is no file."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    raw = os.pread(fd, _MAX_LEGACY_BYTES, 0)
    return raw.removeprefix(LEGACY_MAGIC) if raw.startswith(LEGACY_MAGIC) else None


def _open_legacy(driver: Driver, legacy: bytes, size: int) -> OpenedPiece:
    mapped_at = driver.legacy_open(legacy[_OFFSET_BYTES:])
    offset_bytes = int.from_bytes(legacy[:_OFFSET_BYTES], "little")
    return OpenedPiece(mapped_at + offset_bytes, size, mapped_at, True, driver)


@contextmanager
def in_context(driver: Driver, gpu: Gpu) -> Iterator[None]:
    """The GPU's primary context, current in this thread."""
    driver.enter_context(gpu.ordinal)
    try:
        yield
    finally:
        driver.leave_context(gpu.ordinal)
