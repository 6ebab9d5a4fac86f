"""A call that has ended -> its spans: the call, the time until it was let in, and each attempt at Triton. Pure."""

from __future__ import annotations

from contracts.tracing import names
from contracts.tracing.context import new_span_id
from contracts.tracing.span import Link, Span, SpanKind, SpanStatus, Value, unix_ns
from contracts.tracing.timing import engine_spans
from gateway.call import Call
from gateway.errors import ClientGone, GatewayError
from gateway.tracing import Attempt
from ledger.keys import without_secrets

MAX_TEXT_CHARS = 500


def spans_of(call: Call, ended_s: float) -> list[Span]:
    """`ended_s` on the monotonic clock."""
    spans = [_call_span(call, ended_s)]
    if call.admitted_s is not None:
        spans.append(_admit_span(call, call.admitted_s))
    for attempt in call.trace.attempts:
        spans.append(_attempt_span(call, attempt, ended_s))
        # Of a call that is traced whole the instance itself sends them.
        if attempt.timing is not None and not call.trace.context.is_sampled:
            spans += engine_spans(attempt.timing, call.trace.context.trace_id, attempt.span_id)
    return spans


def _unix_ns(call: Call, at_s: float) -> int:
    """All times are the monotonic clock's, set on the wall clock where the call began."""
    return unix_ns(call.started_unix_s + at_s - call.started_s)


def _call_span(call: Call, ended_s: float) -> Span:
    trace = call.trace
    operation = names.operation_name(call.operation or "")
    status, text = _status(call.error)
    return Span(
        service=names.GATEWAY,
        trace_id=trace.context.trace_id,
        span_id=trace.context.span_id,
        parent_id=trace.parent_id,
        name=f"{operation} {without_secrets(call.service)}".rstrip(),
        kind=SpanKind.INTERNAL if trace.is_part else SpanKind.SERVER,
        start_unix_ns=_unix_ns(call, call.started_s),
        end_unix_ns=_unix_ns(call, ended_s),
        attributes=_call_attributes(call, operation),
        links=[Link(trace.context.trace_id, trace.client_span_id)] if trace.client_span_id else [],
        status=status,
        status_text=text,
    )


def _call_attributes(call: Call, operation: str) -> dict[str, Value]:
    target = call.target
    given: dict[str, Value | None] = {
        names.OPERATION: operation,
        names.PROVIDER: names.OUR_PROVIDER,
        names.REQUEST_MODEL: without_secrets(call.service),
        names.REQUEST_STREAM: call.is_stream or None,
        names.RESPONSE_MODEL: target.model if target else None,
        names.RESPONSE_ID: call.request_id,
        names.INPUT_TOKENS: call.num_prompt_tokens,
        names.CACHE_READ_TOKENS: call.num_cached_tokens,
        names.OUTPUT_TOKENS: call.num_output_tokens,
        names.FINISH_REASONS: [call.finish_reason] if call.finish_reason else None,
        names.TIME_TO_FIRST_CHUNK: call.first_text_s,
        names.HTTP_STATUS if call.door == "http" else names.GRPC_STATUS: call.status,
        names.ERROR_TYPE: _error_type(call.error),
        names.REQUEST_ID: None if call.trace.is_part else call.request_id,
        names.TENANT: call.principal.tenant or None,
        names.VERSION: target.version_name if target else None,
        names.WHY_VERSION: target.why if target else None,
        names.OUTCOME: call.outcome,
        names.KEPT_BECAUSE: call.trace.kept_because,
    }
    return {name: value for name, value in given.items() if value is not None}


def _admit_span(call: Call, admitted_s: float) -> Span:
    return Span(
        service=names.GATEWAY,
        trace_id=call.trace.context.trace_id,
        span_id=new_span_id(),
        parent_id=call.trace.context.span_id,
        name=names.ADMIT,
        kind=SpanKind.INTERNAL,
        start_unix_ns=_unix_ns(call, call.started_s),
        end_unix_ns=_unix_ns(call, admitted_s),
    )


def _attempt_span(call: Call, attempt: Attempt, ended_s: float) -> Span:
    error = attempt.error if attempt.ended_s else call.error
    status, text = _status(error)
    address, _, port = attempt.endpoint.rpartition(":")
    attributes: dict[str, Value] = {
        names.ATTEMPT_NUMBER: attempt.number,
        names.SERVER_ADDRESS: address,
        names.SERVER_PORT: int(port) if port.isdecimal() else 0,
    }
    if (error_type := _error_type(error)) is not None:
        attributes[names.ERROR_TYPE] = error_type
    return Span(
        service=names.GATEWAY,
        trace_id=call.trace.context.trace_id,
        span_id=attempt.span_id,
        parent_id=call.trace.context.span_id,
        name=f"{names.ATTEMPT} {call.target.model if call.target else ''}".rstrip(),
        kind=SpanKind.CLIENT,
        start_unix_ns=_unix_ns(call, attempt.started_s),
        end_unix_ns=_unix_ns(call, attempt.ended_s or ended_s),
        attributes=attributes,
        status=status,
        status_text=text,
    )


def _status(error: GatewayError | None) -> tuple[SpanStatus, str]:
    if error is None:
        return SpanStatus.UNSET, ""
    return SpanStatus.ERROR, without_secrets(error.message)[:MAX_TEXT_CHARS]


def _error_type(error: GatewayError | None) -> str | None:
    """The few words of `errors`, so that they can be counted."""
    if error is None:
        return None
    return "cancelled" if isinstance(error, ClientGone) else error.code or type(error).__name__
