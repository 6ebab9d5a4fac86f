"""A traced request in this instance: its context out of Triton, its spans and its worker's to telemetry.

The worker sends no spans, only figures with its last message: one process less that can be slow, and a worker that
dies still leaves a span that says so.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

from contracts.tracing import names
from contracts.tracing.context import (
    TRACEPARENT,
    TraceContext,
    instance_context,
    new_span_id,
    parse_traceparent,
)
from contracts.tracing.sending import SpanSender
from contracts.tracing.span import Link, Span, SpanKind, SpanStatus, Value
from contracts.tracing.timing import Timing, engine_span, engine_spans
from python_backend.bridge.attachment import InstanceName
from python_backend.bridge.errors import BridgeError
from python_backend.messages import BatchResult, EmbedResult


@dataclass(frozen=True)
class RequestTrace:
    """One request that is traced, from its arrival here. `parent`: Triton's span, or the gateway's."""

    parent: TraceContext
    num_in_flight: int
    """Of this instance when it came."""
    span_id: str = field(default_factory=new_span_id)
    started_ns: int = field(default_factory=time.time_ns)


def context_of(request: Any) -> TraceContext | None:
    """Of one of Triton's requests; None: it is not traced.

    Triton gives all requests of one stream the parent that came with the stream. Where the request's own parameter
    names another trace, the parameter holds.
    """
    parameters = request.parameters()
    own = (
        parse_traceparent(json.loads(parameters).get(TRACEPARENT))
        if TRACEPARENT in (parameters or "")
        else None
    )
    seen = request.trace().get_context()
    triton = parse_traceparent(json.loads(seen).get(TRACEPARENT)) if seen else None
    if triton is not None and (own is None or own.trace_id == triton.trace_id):
        return triton
    return own if own is not None and own.is_sampled else None


class BridgeTracing:
    """Of one instance. Costs a request that is not traced one look at its parameters."""

    def __init__(self, name: InstanceName) -> None:
        self._instance = name.group
        self._model = name.model
        self._start = instance_context(os.getppid(), name.model, name.group)
        self._began_ns = time.time_ns()
        self._sender = SpanSender.from_env()

    def started(self) -> None:
        """The instance has its worker and serves: the end of the span that began with this object."""
        span = Span(
            service=names.BRIDGE,
            trace_id=self._start.trace_id,
            span_id=self._start.span_id,
            parent_id="",
            name=f"{names.START} {self._instance}",
            kind=SpanKind.INTERNAL,
            start_unix_ns=self._began_ns,
            end_unix_ns=time.time_ns(),
            attributes={names.MODEL: self._model, names.INSTANCE: self._instance, names.PID: os.getpid()},
        )
        self._sender.send([span])

    def begin(self, request: Any, num_in_flight: int) -> RequestTrace | None:
        """None: it is not traced."""
        if not self._sender.is_on:
            return None
        context = context_of(request)
        return RequestTrace(context, num_in_flight) if context is not None else None

    def end_generate(self, trace: RequestTrace | None, timing: Timing | None, error: str = "") -> None:
        """`timing`: as the worker told; None: it did not, for it died."""
        if trace is not None:
            spans = [] if timing is None else engine_spans(timing, trace.parent.trace_id, trace.span_id)
            self._sender.send([self._own(trace, error), *spans])

    def end_batch(
        self,
        trace: RequestTrace | None,
        answer: EmbedResult | BatchResult | BridgeError,
        num_rows: int,
        error: str = "",
    ) -> None:
        """`num_rows`: of the batch that the worker computed; `error`: of this request alone."""
        if trace is None:
            return
        ran_unix_s = None
        if isinstance(answer, BridgeError):
            error = str(answer)
        else:
            error, ran_unix_s = answer.error or error, answer.ran_unix_s
        spans = [self._own(trace, error)]
        if ran_unix_s is not None:
            attributes: dict[str, Value] = {names.BATCH_SIZE: num_rows}
            trace_id = trace.parent.trace_id
            spans.append(engine_span(names.FORWARD, trace_id, trace.span_id, ran_unix_s, attributes))
        self._sender.send(spans)

    def _own(self, trace: RequestTrace, error: str) -> Span:
        return Span(
            service=names.BRIDGE,
            trace_id=trace.parent.trace_id,
            span_id=trace.span_id,
            parent_id=trace.parent.span_id,
            name=names.HELD,
            kind=SpanKind.INTERNAL,
            start_unix_ns=trace.started_ns,
            end_unix_ns=time.time_ns(),
            attributes={names.INSTANCE: self._instance, names.NUM_IN_FLIGHT: trace.num_in_flight},
            links=[Link(self._start.trace_id, self._start.span_id)],
            status=SpanStatus.ERROR if error else SpanStatus.UNSET,
            status_text=error,
        )
