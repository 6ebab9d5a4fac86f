"""GPU memory that several processes share: what the driver must do for it, how its errors read, which GPU is meant.

Shared by the node, which creates and exports allocations, and by whoever maps them. A GPU is named by its UUID; an
ordinal is a process's own and depends on its CUDA_VISIBLE_DEVICES. `cuda_driver` has the real driver,
`cuda_sharing` makes and opens allocations with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

VMM_SUPPORTED: Final = 102
POSIX_FD_SUPPORTED: Final = 103
"""CUdevice_attribute."""
INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NO_DEVICE: Final = 100
OPERATING_SYSTEM: Final = 304
NOT_SUPPORTED: Final = 801
WAYS_OUT: Mapping[int, str] = {
    OUT_OF_MEMORY: "lower pool_bytes or weights_budget_bytes, or free the GPU (nvidia-smi names who holds it)",
    NO_DEVICE: "is the GPU visible here (nvidia-smi, CUDA_VISIBLE_DEVICES, the container's --gpus)?",
    101: "the ordinal is not visible here; check CUDA_VISIBLE_DEVICES",
    3: "the process was forked after CUDA had been initialised, which only its children may do",
    201: "another process's handle, or a context that is gone",
    OPERATING_SYSTEM: "the sandbox or container forbids sharing; run pool and workers in one container",
    NOT_SUPPORTED: "this driver or GPU cannot do it",
    999: "look at `dmesg` and `nvidia-smi` for the driver's own report",
}


class CudaError(Exception):
    """A driver call failed. The text names the call, CUDA's name for the error, and a way out."""

    def __init__(self, call: str, code: int, name: str, detail: str = "") -> None:
        self.call, self.code, self.name = call, code, name
        way_out = WAYS_OUT.get(code, "")
        text = f"{call}: {name} ({code})" + (f", {detail}" if detail else "")
        super().__init__(f"{text}; {way_out}" if way_out else text)

    @property
    def means_unsupported(self) -> bool:
        """Another way of sharing may work."""
        return self.code in (NOT_SUPPORTED, OPERATING_SYSTEM)


class CudaUnavailable(Exception):
    """There is no driver library, or no such GPU."""


@dataclass(frozen=True)
class Gpu:
    ordinal: int
    """In this process only."""
    uuid: str
    """"GPU-…", as nvidia-smi prints it."""


class Driver(Protocol):
    """What `CudaDriver` does and tests fake. Sizes of allocations are multiples of `granularity`. Everything
    raises CudaError."""

    def gpus(self) -> list[Gpu]: ...
    def attribute(self, ordinal: int, attribute: int) -> int: ...
    def total_bytes(self, ordinal: int) -> int: ...
    def granularity(self, ordinal: int) -> int: ...

    def create(self, ordinal: int, num_bytes: int) -> int:
        """Physical memory that can be exported -> handle. Contents undefined."""
        ...

    def export_fd(self, handle: int) -> int:
        """A descriptor of the caller's; it keeps the memory alive like the handle does."""
        ...

    def import_fd(self, fd: int) -> int:
        """-> handle. `fd` stays the caller's."""
        ...

    def release(self, handle: int) -> None:
        """Mappings of it stay valid; the memory goes with the last of handles, descriptors and mappings."""
        ...

    def map(self, ordinal: int, handle: int, num_bytes: int, writable: bool) -> int:
        """The whole allocation -> its address here."""
        ...

    def unmap(self, address: int, num_bytes: int) -> None: ...

    def enter_context(self, ordinal: int) -> None:
        """Make the GPU's primary context (the one that torch uses) current in this thread."""
        ...

    def leave_context(self, ordinal: int) -> None: ...

    def synchronize(self) -> None:
        """Wait for everything of the current context."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes; needs a context."""
        ...

    def copy_to_device(self, address: int, source: int, num_bytes: int, stream: int) -> None:
        """From pinned memory; returns before it is done."""
        ...

    def copy_from_device(self, target: int, address: int, num_bytes: int) -> None: ...
    def fill_zero(self, address: int, num_bytes: int) -> None: ...
    def create_stream(self) -> int: ...
    def wait_for_stream(self, stream: int) -> None: ...
    def allocate_pinned(self, num_bytes: int) -> int: ...
    def free_pinned(self, address: int) -> None: ...

    def legacy_allocate(self, num_bytes: int) -> int: ...
    def legacy_free(self, address: int) -> None: ...
    def legacy_export(self, address: int) -> tuple[bytes, int]:
        """The handle, which names the whole allocation, and how far `address` lies inside it."""
        ...

    def legacy_open(self, handle: bytes) -> int:
        """At most once per process; never in the exporter's own."""
        ...

    def legacy_close(self, address: int) -> None: ...


def find_gpu(driver: Driver, device: str) -> Gpu:
    """`device`: "cuda" (the first visible GPU) or "cuda:GPU-UUID". Raises CudaUnavailable, CudaError."""
    gpus = driver.gpus()
    _, _, wanted = device.partition(":")
    found = next((gpu for gpu in gpus if not wanted or gpu.uuid.lower() == wanted.lower()), None)
    if found is None:
        seen = ", ".join(gpu.uuid for gpu in gpus) or "none"
        raise CudaUnavailable(
            f"device = {device!r}: no such GPU here, visible: {seen}; check CUDA_VISIBLE_DEVICES, `nvidia-smi -L`"
        )
    return found


def rounded_up(num_bytes: int, granularity: int) -> int:
    """At least one unit: an empty allocation cannot be made."""
    return max(1, -(-num_bytes // granularity)) * granularity


def refuse_expandable_segments(environ: Mapping[str, str]) -> None:
    """torch's expandable segments share the address space and the handle exchange of ours, and break both.

    Raises CudaUnavailable.
    """
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        for option in environ.get(name, "").split(","):
            key, _, value = option.partition(":")
            if key.strip().lower() == "expandable_segments" and value.strip().lower() in ("true", "1"):
                raise CudaUnavailable(
                    f"{name} has expandable_segments:True; the shared pool does not work beside it, take it out"
                )
