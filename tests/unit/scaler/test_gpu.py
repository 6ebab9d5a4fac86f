"""NVML, played by a module of the same names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scaler.errors import GpuUnreadable
from scaler.measuring.gpu import GpuFigures, GpuMeter, load_nvml


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, *uuids: str, broken: bool = False) -> None:
        self.uuids = uuids
        self.broken = broken

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.uuids:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if self.broken:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=83, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(used=60, total=80)


def test_a_device_is_found_by_its_uuid_and_read_as_shares():
    """83 % is 0.83."""
    meter = GpuMeter("GPU-b", nvml=FakeNvml("GPU-a", "GPU-b"))
    assert meter.read() == GpuFigures("GPU-b", 0.83, 60, 80)


def test_the_only_device_needs_no_name():
    """One GPU here: that one."""
    assert GpuMeter(nvml=FakeNvml("GPU-a")).uuid == "GPU-a"


def test_among_several_devices_one_has_to_be_named():
    """Guessing would scale by another model's load."""
    with pytest.raises(GpuUnreadable, match="2 GPUs here; name one"):
        GpuMeter(nvml=FakeNvml("GPU-a", "GPU-b"))


def test_a_device_that_is_not_there_is_named_in_the_error():
    """A typo, or a card that was taken out."""
    with pytest.raises(GpuUnreadable, match="GPU-c"):
        GpuMeter("GPU-c", nvml=FakeNvml("GPU-a"))


def test_a_device_that_fell_off_the_bus_says_so():
    """NVML's own words."""
    with pytest.raises(GpuUnreadable, match="GPU is lost"):
        GpuMeter(nvml=FakeNvml("GPU-a", broken=True)).read()


def test_without_a_driver_there_is_a_reason_and_no_crash(monkeypatch):
    """NVML is installed, the driver's library is not."""
    import pynvml

    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    with pytest.raises(GpuUnreadable, match="NVML does not start"):
        load_nvml()
