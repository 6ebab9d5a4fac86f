"""W3C trace context, https://www.w3.org/TR/trace-context/: `traceparent` read and written, sampling by trace id."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_WELL_FORMED = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = 1
_RANDOM_DIGITS = 14
"""Of a trace id, its rightmost, by level 2 of the specification: 7 bytes."""
_NUM_RANDOM = float(16**_RANDOM_DIGITS)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a span stands: its trace, and itself as the parent of what follows. Ids in lower-case hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def header(self) -> str:
        """The value of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """None for what is absent or not well formed: then a new trace begins, as the specification says."""
    match = _WELL_FORMED.fullmatch(text) if text else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def new_trace_id() -> str:
    """From the system's generator: workers are forks, which share a state of `random`."""
    return os.urandom(16).hex()


def new_span_id() -> str:
    return os.urandom(8).hex()


def instance_context(triton_pid: int, model: str, instance: str) -> TraceContext:
    """Of the span of an instance's start. Whoever knows the instance can link to it: the scaler that made it, the
    requests that it served."""
    digest = hashlib.blake2b(f"{triton_pid}/{model}/{instance}".encode(), digest_size=24).hexdigest()
    return TraceContext(digest[:32], digest[32:], is_sampled=True)


def is_in_ratio(trace_id: str, ratio: float) -> bool:
    """Is a trace among the `ratio` (0 to 1) that are kept? Everybody who asks says the same of one trace."""
    return int(trace_id[-_RANDOM_DIGITS:], 16) < ratio * _NUM_RANDOM
