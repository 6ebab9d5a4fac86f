"""The client's end of a trace: one call in a hundred brings its context, and its span goes to telemetry.

A part that small costs the generator nothing that its dispatch delay would show.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from contracts.tracing import names
from contracts.tracing.context import TRACEPARENT, TraceContext, is_in_ratio, new_span_id, new_trace_id
from contracts.tracing.sending import SpanSender
from contracts.tracing.span import Span, SpanKind, SpanStatus, Value, unix_ns
from loadtest.call import Call
from loadtest.generating.answer import Answer
from loadtest.records import Status

RATIO = 0.01
_OPERATIONS = {
    "openai_chat": "chat",
    "openai_embeddings": "embedding",
    "grpc_generate": "stream_infer",
    "grpc_tensors": "infer",
}


@dataclass(frozen=True)
class ClientTrace:
    """One call that is traced."""

    context: TraceContext = field(default_factory=lambda: TraceContext(new_trace_id(), new_span_id(), True))

    def of(self, call: Call) -> Call:
        """The call with its context in its headers."""
        return replace(call, headers=(*call.headers, (TRACEPARENT, self.context.header)))


class ClientTracing:
    """`spans_socket` "": the target is no stack of this machine, and nothing is traced."""

    def __init__(self, spans_socket: str = "", ratio: float = RATIO) -> None:
        self._sender = SpanSender(spans_socket)
        self._ratio = ratio

    def begin(self) -> ClientTrace | None:
        if not self._sender.is_on or not is_in_ratio(new_trace_id(), self._ratio):
            return None
        return ClientTrace()

    def end(self, trace: ClientTrace, call: Call, answer: Answer, status: Status, error: str) -> None:
        """A call that never went out has no span: nobody else knows of it."""
        if not answer.is_sent:
            return
        offset_s = time.time() - time.monotonic()
        operation = names.operation_name(_OPERATIONS[call.protocol])
        attributes: dict[str, Value] = {
            names.OPERATION: operation,
            names.REQUEST_MODEL: call.service,
            names.INPUT_TOKENS: answer.input_tokens,
            names.OUTPUT_TOKENS: answer.output_tokens,
            names.LOADTEST_INDEX: call.index,
            names.LOADTEST_USER: call.user,
        }
        if answer.chunk_times_s:
            attributes[names.TIME_TO_FIRST_CHUNK] = answer.t_first_s - answer.t_sent_s
        self._sender.send(
            [
                Span(
                    service=names.LOADTEST,
                    trace_id=trace.context.trace_id,
                    span_id=trace.context.span_id,
                    parent_id="",
                    name=f"{operation} {call.service}",
                    kind=SpanKind.CLIENT,
                    start_unix_ns=unix_ns(answer.t_sent_s + offset_s),
                    end_unix_ns=unix_ns(answer.t_last_s + offset_s),
                    attributes=attributes,
                    status=SpanStatus.UNSET if status is Status.OK else SpanStatus.ERROR,
                    status_text=error,
                )
            ]
        )
