"""GPU memory in use, of every device that NVML sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from loadtest.watching.source import Reading, Sample, SourceUnreadable, ticks


def load_nvml() -> Any:
    """The `pynvml` module, started; None where there is no library or no driver, and so no GPU to watch."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


class GpuSource:
    """`nvml`: what `load_nvml` returned."""

    name = "gpu"

    def __init__(self, nvml: Any, period_s: float) -> None:
        self.period_s = period_s
        self._nvml = nvml

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """NVML is asked in a thread: a driver in trouble may take seconds."""
        async for now_s in ticks(self.period_s):
            yield Sample(now_s, await asyncio.to_thread(self._read))

    def _read(self) -> tuple[Reading, ...]:
        nvml = self._nvml
        readings = []
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                labels = (("gpu", str(nvml.nvmlDeviceGetUUID(device))),)
                memory = nvml.nvmlDeviceGetMemoryInfo(device)
                readings += [
                    Reading("gpu.used_bytes", labels, "bytes", memory.used),
                    Reading("gpu.total_bytes", labels, "bytes", memory.total),
                ]
        except nvml.NVMLError as exc:
            raise SourceUnreadable(f"NVML: {exc}") from exc
        return tuple(readings)
