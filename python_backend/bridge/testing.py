"""A stand-in for Triton's `triton_python_backend_utils`: as much of it as the bridge uses, for tests."""

from __future__ import annotations

import sys
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

MODULE = "triton_python_backend_utils"
FINAL = 1


@dataclass
class TritonError(Exception):
    """Text and code as the bridge gave them."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"

    text: str
    code: str = "INTERNAL"


@dataclass
class Tensor:
    tensor_name: str
    array: np.ndarray[Any, Any]

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self.array


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: TritonError | None = None

    def outputs(self) -> dict[str, Any]:
        """Name -> first element, bytes as text."""
        values = {tensor.tensor_name: tensor.array.reshape(-1)[0] for tensor in self.output_tensors}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@dataclass
class FakeSender:
    """Records what is sent. Refuses, as Triton does, to be used after the final flag."""

    responses: list[InferenceResponse | None] = field(default_factory=list)
    num_finals: int = 0
    cancelled: bool = False

    def send(self, response: InferenceResponse | None, flags: int = 0) -> None:
        self._check_open()
        self.responses.append(response)
        self.num_finals += flags == FINAL

    def is_cancelled(self) -> bool:
        self._check_open()
        return self.cancelled

    def _check_open(self) -> None:
        if self.num_finals:
            raise RuntimeError("the response factory is gone: the real Triton would have crashed")


@dataclass
class FakeTrace:
    """Of a request that Triton traces, when there is a context."""

    context_json: str | None = None

    def get_context(self) -> str | None:
        return self.context_json


@dataclass
class FakeRequest:
    """Inputs by name; an array, a value or a list of values."""

    inputs: dict[str, Any]
    parameters_json: str = ""
    timeout_us: int = 0
    context_json: str | None = None

    def trace(self) -> FakeTrace:
        return FakeTrace(self.context_json)

    def parameters(self) -> str:
        return self.parameters_json

    def timeout(self) -> int:
        return self.timeout_us


@dataclass
class FakeMetric:
    """What Triton would show of it: a number, or what was observed. Refuses once its family is gone, as Triton."""

    family: weakref.ref[MetricFamily]
    labels: dict[str, str]
    buckets: list[float] | None = None
    value: float = 0.0
    observed: list[float] = field(default_factory=list)

    def set(self, value: float) -> None:
        self._check_family()
        self.value = value

    def increment(self, value: float) -> None:
        self._check_family()
        self.value += value

    def observe(self, value: float) -> None:
        self._check_family()
        self.observed.append(value)

    def _check_family(self) -> None:
        if self.family() is None:
            raise RuntimeError("the corresponding 'MetricFamily' has been deleted")


@dataclass
class MetricFamily:
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    made: ClassVar[dict[str, FakeMetric]] = {}
    """Every metric of this process, by its family's name."""

    name: str
    description: str
    kind: str

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> FakeMetric:
        return self.made.setdefault(self.name, FakeMetric(weakref.ref(self), labels, buckets))


def get_input_tensor_by_name(request: FakeRequest, name: str) -> Tensor | None:
    if name not in request.inputs:
        return None
    value = request.inputs[name]
    if isinstance(value, np.ndarray):
        return Tensor(name, value)
    values = value if isinstance(value, list) else [value]
    kind: Any = np.bool_ if isinstance(values[0], bool) else np.object_
    return Tensor(name, np.array(values, dtype=kind))


def install() -> None:
    """Make `import triton_python_backend_utils` find this. For test processes only."""
    module: Any = types.ModuleType(MODULE)
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    for thing in (TritonError, Tensor, InferenceResponse, MetricFamily, get_input_tensor_by_name):
        setattr(module, thing.__name__, thing)
    sys.modules.setdefault(MODULE, module)
