"""How busy and how full a GPU is, from NVML; where the library, driver or device is missing, why it cannot say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scaler.errors import GpuUnreadable


@dataclass(frozen=True)
class GpuFigures:
    """One device at one moment."""

    uuid: str
    utilization: float
    """0 to 1: share of NVML's last sample period (a sixth of a second to 1 s) in which any kernel ran."""
    memory_used_bytes: int
    memory_total_bytes: int


def load_nvml() -> Any:
    """The `pynvml` module, started. Raises GpuUnreadable."""
    try:
        import pynvml
    except ImportError as exc:
        raise GpuUnreadable("nvidia-ml-py is not installed; install tidegate[gpu] to see GPUs") from exc
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        raise GpuUnreadable(f"NVML does not start: {exc}") from exc
    return pynvml


class GpuMeter:
    """Reads one device, by its UUID: indices change with CUDA_VISIBLE_DEVICES and with reboots.

    `uuid` empty: the only device there is. Calls take from microseconds to, on a driver in trouble, seconds: make
    them in a thread.
    """

    def __init__(self, uuid: str = "", *, nvml: Any = None) -> None:
        """Raises GpuUnreadable."""
        self._nvml = nvml if nvml is not None else load_nvml()
        self._handle = self._find(uuid)
        self.uuid: str = self._call("nvmlDeviceGetUUID")

    def read(self) -> GpuFigures:
        """Raises GpuUnreadable."""
        rates, memory = self._call("nvmlDeviceGetUtilizationRates"), self._call("nvmlDeviceGetMemoryInfo")
        return GpuFigures(self.uuid, rates.gpu / 100, memory.used, memory.total)

    def _find(self, uuid: str) -> Any:
        nvml = self._nvml
        try:
            if uuid:
                return nvml.nvmlDeviceGetHandleByUUID(uuid)
            count = nvml.nvmlDeviceGetCount()
            if count == 1:
                return nvml.nvmlDeviceGetHandleByIndex(0)
        except nvml.NVMLError as exc:
            raise GpuUnreadable(f"no GPU {uuid or 'with index 0'}: {exc}; see nvidia-smi -L") from exc
        raise GpuUnreadable(f"{count} GPUs here; name one by its UUID (nvidia-smi -L)")

    def _call(self, name: str) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle)
        except self._nvml.NVMLError as exc:
            raise GpuUnreadable(f"{name} of GPU {getattr(self, 'uuid', '')}: {exc}") from exc
