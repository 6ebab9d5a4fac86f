"""One call of a model: what the gateway learns of it from its arrival to its end, whichever door it came in by.

It is filled in on the way and read once at the end, when its limits are settled and its row goes into the call log.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Protocol

from contracts.logs import fields
from gateway.errors import ClientGone, GatewayError
from gateway.limiter import Admission
from gateway.principal import ANONYMOUS, Principal
from gateway.routing import Target
from gateway.tracing import Attempt, CallTrace, untraced
from ledger.calls import CallRow, Door, Operation, Outcome
from ledger.keys import without_secrets


def new_request_id() -> str:
    """A name, no secret: 128 random bits, without a system call for each."""
    return f"{random.getrandbits(128):032x}"


class TokenCounter(Protocol):
    """`gateway.grpc_tokens` has it."""

    def read(self, call: Call, reply: bytes) -> bytes: ...


@dataclass
class Call:
    request_id: str
    door: Door
    started_s: float = field(default_factory=time.monotonic)
    started_unix_s: float = field(default_factory=time.time)
    operation: Operation | None = None
    """None: it calls no model (a health check, a list), and the call log has no row of it."""
    principal: Principal = ANONYMOUS
    service: str = ""
    target: Target | None = None
    revision: int = 0
    """Of the routes that chose the target."""
    admission: Admission | None = None
    admitted_s: float | None = None
    """When it was let in, on the clock of `started_s`."""
    attempt: int = 1
    earlier: list[CallRow] = field(default_factory=list)
    """Rows of the attempts before this one."""
    endpoint: str = ""
    status: int = 0
    """HTTP's or gRPC's, by the door."""
    error: GatewayError | None = None
    finish_reason: str = ""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    first_text_s: float | None = None
    """Since `started_s`."""
    token_counter: TokenCounter | None = None
    """Of a language model at the gRPC door."""
    runs_on: bool = False
    """Its client left, and Triton can't be told: what it holds is given back when Triton has answered."""
    is_stream: bool = False
    is_shadow: bool = False
    trace: CallTrace = field(default_factory=untraced)
    trace_id: str = ""
    """Of a trace that is kept."""
    context: str = ""
    """What context management did to the prompt."""
    prompt: str | None = None
    """Only where the operator opted in."""

    def fail(self, error: GatewayError) -> None:
        """The first one counts: what follows is its consequence."""
        if self.error is None:
            self.error = error

    def begin_at(self, endpoint: str) -> Attempt:
        """The caller ends it."""
        self.endpoint = endpoint
        return self.trace.begin_attempt(endpoint, self.attempt)

    def try_again(self, error: GatewayError) -> None:
        """This attempt failed with nothing sent to the client. Its row is kept, the next one begins."""
        self.error = error
        self.status = error.status if self.door == "http" else int(error.grpc_code.value[0])
        if (row := self.row(time.monotonic() - self.started_s)) is not None:
            self.earlier.append(row)
        self.error, self.status, self.endpoint = None, 0, ""
        self.attempt += 1

    def note_admitted(self) -> None:
        self.admitted_s = time.monotonic()

    def note_text(self) -> None:
        """Text has gone to the client. Cheap to call for every piece."""
        if self.first_text_s is None:
            self.first_text_s = time.monotonic() - self.started_s

    @property
    def queue_s(self) -> float | None:
        """In the engine, before its first step; of several answers to one request the longest."""
        timings = [attempt.timing for attempt in self.trace.attempts if attempt.timing is not None]
        return max((timing.queue_s for timing in timings), default=None)

    @property
    def outcome(self) -> Outcome:
        if self.error is None:
            return "ok"
        if isinstance(self.error, ClientGone):
            return "cancelled"
        return "refused" if self.admission is None and self.error.status < 500 else "error"

    def row(self, duration_s: float) -> CallRow | None:
        """Of this attempt, as the log keeps it."""
        if self.operation is None:
            return None
        target = self.target
        return CallRow(
            request_id=self.request_id,
            attempt=self.attempt,
            started_unix_s=self.started_unix_s,
            door=self.door,
            operation=self.operation,
            key_id=self.principal.key_id,
            tenant=self.principal.tenant,
            service=without_secrets(self.service),
            version=target.version_name if target else "",
            model=target.model if target else "",
            why=target.why if target else "",
            endpoint=self.endpoint,
            revision=self.revision,
            outcome=self.outcome,
            status=self.status,
            error_code=(self.error.code or "") if self.error else "",
            error=without_secrets(self.error.message) if self.error else "",
            finish_reason=self.finish_reason,
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            output_tokens=self.num_output_tokens,
            ttft_s=self.first_text_s,
            duration_s=duration_s,
            queue_s=self.queue_s,
            trace_id=self.trace_id,
            is_stream=self.is_stream,
            is_shadow=self.is_shadow,
            context=self.context,
            prompt=self.prompt,
        )


def ids_of(call: Call) -> dict[str, dict[str, str]]:
    """For `extra` of a log line about it. Its trace, whether it is kept or not: that is known at the end only."""
    return fields(request_id=call.request_id, trace_id=call.trace.context.trace_id)
