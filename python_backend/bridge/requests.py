"""Triton's request -> ours, checked. Everything a client can get wrong in a tensor is refused here."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from contracts.sampling import SamplingError, SamplingParams, parse_sampling
from contracts.tracing.timing import RETURN_TIMING_PARAMETER
from python_backend.bridge.errors import InvalidRequest

MAX_PROMPT_BYTES = 4 * 1024 * 1024
"""Refused before it is copied to the worker; no model here has a context near a million tokens."""
MAX_SAMPLING_BYTES = 64 * 1024

MAX_TENANT_CHARS = 256
MAX_PRIORITY = 2**31 - 1

DEADLINE_PARAMETER = "deadline_unix_ms"
TENANT_PARAMETER = "tenant"
PRIORITY_PARAMETER = "request_priority"
"""Not "priority": that one Triton takes for its own queues and never passes on."""


@dataclass(frozen=True)
class GenerateRequest:
    """A checked request of a generate model."""

    prompt: str
    sampling: SamplingParams
    stream: bool
    prepend_input: bool
    return_finish_reason: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool
    return_num_cached_tokens: bool
    return_timing: bool
    deadline_unix_s: float | None
    tenant: str
    priority: int

    @property
    def return_logprobs(self) -> bool:
        return self.sampling.logprobs is not None


def read_generate(request: Any, now_unix_s: float | None = None) -> GenerateRequest:
    """Raises InvalidRequest."""
    stream = _flag(request, "stream", False)
    exclude_input = _flag(request, "exclude_input_in_output", stream)
    if stream and not exclude_input:
        raise InvalidRequest("exclude_input_in_output = false is not possible with stream = true")
    parameters = json.loads(request.parameters() or "{}")
    return GenerateRequest(
        prompt=text_of(_only(request, "text_input"), "text_input", MAX_PROMPT_BYTES),
        sampling=_sampling(request),
        stream=stream,
        prepend_input=not exclude_input,
        return_finish_reason=_flag(request, "return_finish_reason", False),
        return_num_input_tokens=_flag(request, "return_num_input_tokens", False),
        return_num_output_tokens=_flag(request, "return_num_output_tokens", False),
        return_num_cached_tokens=_flag(request, "return_num_cached_tokens", False),
        return_timing=bool(parameters.get(RETURN_TIMING_PARAMETER)),
        deadline_unix_s=deadline_of(request, time.time() if now_unix_s is None else now_unix_s),
        tenant=_tenant(parameters.get(TENANT_PARAMETER, "")),
        priority=_priority(parameters.get(PRIORITY_PARAMETER, 0)),
    )


def read_texts(request: Any) -> list[str]:
    """`text_input` of a batch model, [batch, 1] -> one text a row. Raises InvalidRequest."""
    values = _array(request, "text_input").reshape(-1)
    if values.size == 0:
        raise InvalidRequest("text_input is empty: shape has a 0, at least one text is needed")
    return [text_of(value, "text_input", MAX_PROMPT_BYTES) for value in values]


def text_of(raw: Any, name: str, max_bytes: int) -> str:
    """One BYTES element -> text. Refuses what is empty, too large or not UTF-8 (with the byte's offset)."""
    if not raw:
        raise InvalidRequest(f"{name} is empty")
    if len(raw) > max_bytes:
        raise InvalidRequest(f"{name} has {len(raw)} bytes, at most {max_bytes} are allowed")
    try:
        return str(raw, "utf-8") if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError as exc:
        raise InvalidRequest(
            f"{name} is not UTF-8: byte 0x{raw[exc.start]:02x} at offset {exc.start}"
        ) from None


def deadline_of(request: Any, now_unix_s: float) -> float | None:
    """Our parameter `deadline_unix_ms`, else Triton's `timeout` (microseconds, counted from now)."""
    parameters = json.loads(request.parameters() or "{}")
    if (deadline_ms := parameters.get(DEADLINE_PARAMETER)) is not None:
        try:
            return float(deadline_ms) / 1000
        except (TypeError, ValueError):
            raise InvalidRequest(f"{DEADLINE_PARAMETER} = {deadline_ms!r}, must be a number") from None
    timeout_us = request.timeout()
    return now_unix_s + timeout_us / 1e6 if timeout_us > 0 else None


def _tenant(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TENANT_CHARS:
        raise InvalidRequest(f"{TENANT_PARAMETER} must be a string of at most {MAX_TENANT_CHARS} characters")
    return value


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY:
        raise InvalidRequest(
            f"{PRIORITY_PARAMETER} must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    return value


def _sampling(request: Any) -> SamplingParams:
    sampling = _given_sampling(request)
    if sampling.logprobs is None and _flag(request, "return_logprobs", False):
        return msgspec.structs.replace(sampling, logprobs=0)
    return sampling


def _given_sampling(request: Any) -> SamplingParams:
    tensor = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
    if tensor is None:
        return SamplingParams()
    raw = _only(request, "sampling_parameters")
    if not raw:
        return SamplingParams()
    try:
        return parse_sampling(text_of(raw, "sampling_parameters", MAX_SAMPLING_BYTES))
    except SamplingError as exc:
        raise InvalidRequest(str(exc)) from None


def _flag(request: Any, name: str, default: bool) -> bool:
    if pb_utils.get_input_tensor_by_name(request, name) is None:
        return default
    return bool(_only(request, name))


def _only(request: Any, name: str) -> Any:
    values = _array(request, name).reshape(-1)
    if values.size != 1:
        raise InvalidRequest(f"{name} has {values.size} elements, exactly 1 is needed")
    return values[0]


def _array(request: Any, name: str) -> np.ndarray[Any, Any]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        raise InvalidRequest(f"input {name} is missing")
    array: np.ndarray[Any, Any] = tensor.as_numpy()
    return array
