"""The few calls of NVIDIA's driver library that the pool needs, typed, through ctypes. No torch, no CUDA toolkit.

Creating and exporting needs no context, and the node must not have one: it would cost some 0.5 GB of the GPU's
memory. Mapping is done by processes that have one anyway. `legacy_*` is CUDA IPC, for GPUs whose driver exports
no file descriptors: there the exporter needs a context too, and must outlive everybody who has opened the handle.
"""

from __future__ import annotations

import ctypes
import uuid
from typing import Any, Final

from python_backend.cuda import CudaError, CudaUnavailable, Gpu

LIBRARY: Final = "libcuda.so.1"
MANAGEMENT_LIBRARY: Final = "libnvidia-ml.so.1"

_PINNED, _ON_DEVICE, _POSIX_FD = 1, 1, 1
_GRANULARITY_MINIMUM = 0
_READ, _READ_WRITE = 1, 3
_HOST_PORTABLE = 1
_IPC_LAZY_PEER_ACCESS = 1
_IPC_HANDLE_BYTES: Final = 64


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AllocationProp(ctypes.Structure):
    """CUmemAllocationProp, 32 bytes."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    )


class _AccessDesc(ctypes.Structure):
    """CUmemAccessDesc, 12 bytes."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * _IPC_HANDLE_BYTES),)


class CudaDriver:
    """The real one."""

    def __init__(self) -> None:
        """Initialises CUDA in this process, without a context. Raises CudaUnavailable, CudaError."""
        try:
            self._library: Any = ctypes.CDLL(LIBRARY)
        except OSError as exc:
            raise CudaUnavailable(
                f"{LIBRARY} cannot be loaded ({exc}); is NVIDIA's driver installed?"
            ) from exc
        self._call("cuInit", ctypes.c_uint(0))

    # --- devices ---

    def gpus(self) -> list[Gpu]:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [Gpu(ordinal, self._uuid_of(ordinal)) for ordinal in range(count.value)]

    def attribute(self, ordinal: int, attribute: int) -> int:
        value = ctypes.c_int()
        self._call(
            "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), self._device(ordinal)
        )
        return value.value

    def total_bytes(self, ordinal: int) -> int:
        total = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), self._device(ordinal))
        return total.value

    def granularity(self, ordinal: int) -> int:
        size = ctypes.c_size_t()
        self._call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(size),
            ctypes.byref(_prop(self._device(ordinal).value)),
            ctypes.c_int(_GRANULARITY_MINIMUM),
        )
        return size.value

    # --- virtual memory management ---

    def create(self, ordinal: int, num_bytes: int) -> int:
        handle = ctypes.c_ulonglong()
        prop = _prop(self._device(ordinal).value)
        self._call(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(num_bytes),
            ctypes.byref(prop),
            ctypes.c_ulonglong(0),
            detail=f"{num_bytes} bytes",
        )
        return handle.value

    def export_fd(self, handle: int) -> int:
        fd = ctypes.c_int(-1)
        self._call(
            "cuMemExportToShareableHandle",
            ctypes.byref(fd),
            ctypes.c_ulonglong(handle),
            ctypes.c_int(_POSIX_FD),
            ctypes.c_ulonglong(0),
        )
        return fd.value

    def import_fd(self, fd: int) -> int:
        handle = ctypes.c_ulonglong()
        # The descriptor itself is the pointer argument, not its address.
        self._call(
            "cuMemImportFromShareableHandle",
            ctypes.byref(handle),
            ctypes.c_void_p(fd),
            ctypes.c_int(_POSIX_FD),
        )
        return handle.value

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", ctypes.c_ulonglong(handle))

    def map(self, ordinal: int, handle: int, num_bytes: int, writable: bool) -> int:
        address = self._reserve(num_bytes)
        size = ctypes.c_size_t(num_bytes)
        try:
            zero_offset, flags = ctypes.c_size_t(0), ctypes.c_ulonglong(0)
            self._call(
                "cuMemMap", ctypes.c_ulonglong(address), size, zero_offset, ctypes.c_ulonglong(handle), flags
            )
            try:
                self._set_access(ordinal, address, num_bytes, _READ_WRITE if writable else _READ)
            except CudaError:
                self._call("cuMemUnmap", ctypes.c_ulonglong(address), size)
                raise
        except CudaError:
            self._call("cuMemAddressFree", ctypes.c_ulonglong(address), size)
            raise
        return address

    def unmap(self, address: int, num_bytes: int) -> None:
        self._call("cuMemUnmap", ctypes.c_ulonglong(address), ctypes.c_size_t(num_bytes))
        self._call("cuMemAddressFree", ctypes.c_ulonglong(address), ctypes.c_size_t(num_bytes))

    def _reserve(self, num_bytes: int) -> int:
        address = ctypes.c_ulonglong()
        self._call(
            "cuMemAddressReserve",
            ctypes.byref(address),
            ctypes.c_size_t(num_bytes),
            ctypes.c_size_t(0),
            ctypes.c_ulonglong(0),
            ctypes.c_ulonglong(0),
        )
        return address.value

    def _set_access(self, ordinal: int, address: int, num_bytes: int, access: int) -> None:
        access_desc = _AccessDesc(_Location(_ON_DEVICE, self._device(ordinal).value), access)
        self._call(
            "cuMemSetAccess",
            ctypes.c_ulonglong(address),
            ctypes.c_size_t(num_bytes),
            ctypes.byref(access_desc),
            ctypes.c_size_t(1),
            detail="read-only" if access == _READ else "read-write",
        )

    # --- with a context ---

    def enter_context(self, ordinal: int) -> None:
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(ordinal))
        self._call("cuCtxSetCurrent", context)

    def leave_context(self, ordinal: int) -> None:
        self._call("cuCtxSetCurrent", ctypes.c_void_p())
        self._call("cuDevicePrimaryCtxRelease_v2", self._device(ordinal))

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def memory_info(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def copy_to_device(self, address: int, source: int, num_bytes: int, stream: int) -> None:
        self._call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_ulonglong(address),
            ctypes.c_void_p(source),
            ctypes.c_size_t(num_bytes),
            ctypes.c_void_p(stream),
        )

    def copy_from_device(self, target: int, address: int, num_bytes: int) -> None:
        self._call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(target),
            ctypes.c_ulonglong(address),
            ctypes.c_size_t(num_bytes),
        )

    def fill_zero(self, address: int, num_bytes: int) -> None:
        self._call(
            "cuMemsetD8_v2", ctypes.c_ulonglong(address), ctypes.c_ubyte(0), ctypes.c_size_t(num_bytes)
        )

    def create_stream(self) -> int:
        stream = ctypes.c_void_p()
        non_blocking = ctypes.c_uint(1)
        self._call("cuStreamCreate", ctypes.byref(stream), non_blocking)
        return int(stream.value or 0)

    def wait_for_stream(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def allocate_pinned(self, num_bytes: int) -> int:
        address = ctypes.c_void_p()
        self._call(
            "cuMemHostAlloc",
            ctypes.byref(address),
            ctypes.c_size_t(num_bytes),
            ctypes.c_uint(_HOST_PORTABLE),
            detail=f"{num_bytes} bytes of pinned memory",
        )
        return int(address.value or 0)

    def free_pinned(self, address: int) -> None:
        self._call("cuMemFreeHost", ctypes.c_void_p(address))

    # --- legacy IPC ---

    def legacy_allocate(self, num_bytes: int) -> int:
        address = ctypes.c_ulonglong()
        self._call(
            "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes), detail=f"{num_bytes} bytes"
        )
        return address.value

    def legacy_free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_ulonglong(address))

    def legacy_export(self, address: int) -> tuple[bytes, int]:
        handle, base, size = _IpcHandle(), ctypes.c_ulonglong(), ctypes.c_size_t()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_ulonglong(address))
        self._call(
            "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_ulonglong(address)
        )
        return bytes(handle.reserved), address - base.value

    def legacy_open(self, handle: bytes) -> int:
        address = ctypes.c_ulonglong()
        flags = ctypes.c_uint(_IPC_LAZY_PEER_ACCESS)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _IpcHandle.from_buffer_copy(handle), flags)
        return address.value

    def legacy_close(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_ulonglong(address))

    # --- help ---

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        return device

    def _uuid_of(self, ordinal: int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(raw), self._device(ordinal))
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def _call(self, function: str, *arguments: Any, detail: str = "") -> None:
        try:
            code = int(getattr(self._library, function)(*arguments))
        except AttributeError as exc:
            raise CudaUnavailable(
                f"{LIBRARY} has no {function}: NVIDIA's driver is too old, 470 or newer is needed"
            ) from exc
        if code:
            raise CudaError(function, code, self._name_of(code), detail)

    def _name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return "an error that this driver has no name for"
        return text.value.decode()


def _prop(device: int) -> _AllocationProp:
    return _AllocationProp(_PINNED, _POSIX_FD, _Location(_ON_DEVICE, device), None, _AllocationFlags())


class _NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def free_bytes_by_management(gpu_uuid: str) -> int | None:
    """What the GPU has free, asked without a context (NVML); None when that library does not say."""
    try:
        nvml = ctypes.CDLL(MANAGEMENT_LIBRARY)
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    try:
        device, memory = ctypes.c_void_p(), _NvmlMemory()
        if nvml.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(gpu_uuid.encode()), ctypes.byref(device)):
            return None
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
        return int(memory.free)
    finally:
        nvml.nvmlShutdown()
