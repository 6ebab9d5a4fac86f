"""A target whose changes are spans: what was decided and why, how long it took, which instances it made."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from contracts.logs import fields
from contracts.tracing import names
from contracts.tracing.context import instance_context, new_span_id, new_trace_id
from contracts.tracing.sending import SpanSender
from contracts.tracing.span import Link, Span, SpanKind, SpanStatus, Value
from scaler.acting.target import ScaleResult, Target
from scaler.deciding.observation import Counts

log = logging.getLogger("scaler")

MAX_TEXT_CHARS = 500


class Sender(Protocol):
    """`SpanSender` is one."""

    def send(self, spans: list[Span]) -> None: ...


class TracedTarget:
    """A `Target` around another. `triton_pid`: whose stubs the instances are; 0: not known, nothing is linked."""

    def __init__(self, target: Target, sender: Sender, triton_pid: int = 0) -> None:
        self._target = target
        self._sender = sender
        self._triton_pid = triton_pid

    @classmethod
    def around(cls, target: Target, spans_socket: str, triton_pid: int) -> Target:
        """The target itself where nobody takes spans."""
        return cls(target, SpanSender(spans_socket), triton_pid) if spans_socket else target

    async def counts(self, model: str) -> Counts | None:
        return await self._target.counts(model)

    async def scale(self, model: str, wanted: int, reason: str) -> ScaleResult:
        started_ns = time.time_ns()
        result: ScaleResult | None = None
        error = ""
        try:
            result = await self._target.scale(model, wanted, reason)
            return result
        except asyncio.CancelledError:
            error = "taken back by a later decision"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        finally:
            span = self._span(model, wanted, reason, started_ns, result, error)
            self._sender.send([span])
            log.info(
                "%s: change to %d is trace %s",
                model,
                wanted,
                span.trace_id,
                extra=fields(
                    trace_id=span.trace_id, model=model, wanted=wanted, reason=reason, error=error or None
                ),
            )

    def _span(
        self, model: str, wanted: int, reason: str, started_ns: int, result: ScaleResult | None, error: str
    ) -> Span:
        changed = result.detail.split() if result else []
        added = [word[1:] for word in changed if word.startswith("+")]
        attributes: dict[str, Value] = {
            names.MODEL: model,
            names.SCALE_WANTED: wanted,
            names.SCALE_REASON: reason[:MAX_TEXT_CHARS],
            names.INSTANCES: added,
        }
        if result is not None:
            attributes |= {names.SCALE_BEFORE: result.before, names.SCALE_AFTER: result.after}
            if result.detail:
                attributes[names.SCALE_CHANGED] = result.detail
        return Span(
            service=names.SCALER,
            trace_id=new_trace_id(),
            span_id=new_span_id(),
            parent_id="",
            name=f"{names.SCALE} {model}",
            kind=SpanKind.INTERNAL,
            start_unix_ns=started_ns,
            end_unix_ns=time.time_ns(),
            attributes=attributes,
            links=[self._link(model, instance) for instance in added] if self._triton_pid else [],
            status=SpanStatus.ERROR if error else SpanStatus.UNSET,
            status_text=error[:MAX_TEXT_CHARS],
        )

    def _link(self, model: str, instance: str) -> Link:
        start = instance_context(self._triton_pid, model, instance)
        return Link(start.trace_id, start.span_id)
