"""What every call goes through, at either door: authenticate, route, admit; and at its end settle and log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from gateway.authentication import Authenticator, require
from gateway.call import Call, ids_of
from gateway.errors import ModelNotFound, shown
from gateway.limiter import Admission, Limiter
from gateway.principal import Principal
from gateway.route_table import RouteTable
from gateway.routing import Target
from gateway.saturation import WaitingRoom
from gateway.spans import spans_of
from gateway.tracing import Tracer
from ledger.calls import CallRow

logger = logging.getLogger("gateway")

MAX_NAME_CHARS = 255
"""Of what a caller names, in logs: bodies have megabytes, and names of no service come from anybody."""


class Watcher(Protocol):
    """Who wants to know which calls are in flight. Both are on the hot path."""

    def begin(self, call: Call) -> None: ...

    def end(self, call: Call) -> None:
        """Also of calls that never began."""


class Pipeline:
    """One for the gateway. `log` takes the rows of the call log and never blocks."""

    def __init__(
        self,
        authenticator: Authenticator,
        limiter: Limiter,
        routes: RouteTable,
        log: Callable[[CallRow], object] = lambda row: None,
        *,
        keeps_prompts: bool = False,
        tracer: Tracer | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.limiter = limiter
        self.routes = routes
        self.keeps_prompts = keeps_prompts
        self._log = log
        self._tracer = tracer or Tracer(None)
        self._watcher = watcher
        self._waiting = WaitingRoom()

    def authenticate(self, call: Call, headers: Mapping[str, str]) -> None:
        """The call begins, and its trace. Raises KeyMissing, KeyInvalid."""
        call.trace = self._tracer.begin(headers)
        call.principal = self.authenticator.authenticate(headers)

    def begin_inner(self, call: Call, principal: Principal, headers: Mapping[str, str]) -> None:
        """The gateway calls itself for somebody who is known already; the trace begins as any call's."""
        call.trace = self._tracer.begin(headers)
        call.principal = principal

    def enter(self, call: Call, service: str) -> None:
        """The caller names a service. Raises Forbidden, ModelNotFound (a name that may not be used is not told)."""
        call.service = service[:MAX_NAME_CHARS]
        require(call.principal, "infer", service)
        if service not in self.routes.services:
            known = ", ".join(self.services_of(call)) or "none"
            raise ModelNotFound(f"model {shown(service)} is not served here; served: {known}", "model")
        if self._watcher is not None and call.operation is not None:
            self._watcher.begin(call)

    def services_of(self, call: Call) -> list[str]:
        """Those that the caller may use."""
        return [name for name in self.routes.services if call.principal.may_use(name)]

    def route(self, call: Call, *, sticky: str | None, num_prompt_tokens: int) -> Target:
        """After `enter`. `sticky` None: a call on its own. Raises what the routes raise."""
        call.target, call.revision = self.routes.choose(
            call.service,
            tenant=call.principal.tenant,
            session=sticky or call.request_id,
            is_sticky=sticky is not None,
            num_prompt_tokens=num_prompt_tokens,
        )
        return call.target

    def must_wait(self, call: Call) -> bool:
        """Is its service saturated, with nothing to degrade to?"""
        route = self.routes.routes.of(call.service)
        return route.degrade is None and self.routes.is_saturated(call.service)

    async def wait_turn(self, call: Call) -> None:
        """Until it need not wait any more. Raises ServiceSaturated."""
        queue = self.routes.routes.of(call.service).queue
        await self._waiting.wait(call.service, queue, lambda: self.must_wait(call))

    def max_context_tokens(self, call: Call) -> int | None:
        """Of one request, where a limit says so."""
        return self.limiter.max_context_tokens(call.principal, call.service)

    async def admit(self, call: Call, num_prompt_tokens: int, max_output_tokens: int | None) -> int:
        """How many tokens it may generate. Raises what `Limiter.admit` raises."""
        call.num_prompt_tokens = num_prompt_tokens
        cap = call.target.max_output_tokens if call.target else None
        if cap is not None and max_output_tokens is not None:
            max_output_tokens = min(max_output_tokens, cap)
        call.admission = await self.limiter.admit(
            call.principal, call.service, num_prompt_tokens, max_output_tokens
        )
        call.note_admitted()
        return call.admission.max_output_tokens

    async def end(self, call: Call) -> None:
        """However it ended. Raises nothing of its own: the client has its answer."""
        self.log(call)
        await self.settle(call)

    def log(self, call: Call) -> None:
        """Its rows, its spans; it is not among the calls in flight any more."""
        if self._watcher is not None:
            self._watcher.end(call)
        ended_s = time.monotonic()
        self._trace(call, ended_s)
        row = call.row(ended_s - call.started_s)
        for each in [*call.earlier, *([row] if row is not None else [])]:
            self._log(replace(each, trace_id=call.trace_id) if each.trace_id != call.trace_id else each)

    async def settle(self, call: Call) -> None:
        """Its limits, to the end also when a cancel comes meanwhile; without a task where nothing is held."""
        if call.admission is not None and call.admission.holds_something:
            await asyncio.shield(self._settle(call, call.admission))

    async def _settle(self, call: Call, admission: Admission) -> None:
        used = call.num_output_tokens or 0
        # What never reached Triton used nothing.
        prompt = call.num_prompt_tokens or 0 if call.error is None or used or call.endpoint else 0
        try:
            await admission.settle(prompt, used)
        except Exception:
            logger.exception("request %s: its limits are not settled", call.request_id, extra=ids_of(call))

    def _trace(self, call: Call, ended_s: float) -> None:
        if call.operation is None:
            return
        took_s = ended_s - call.started_s if call.first_text_s is None else call.first_text_s
        if self._tracer.keeps(call.trace, has_failed=call.outcome == "error", took_s=took_s):
            call.trace_id = call.trace.context.trace_id
            self._tracer.send(spans_of(call, ended_s))
