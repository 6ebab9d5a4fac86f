"""One call from its start to its row, with the turns that follow it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.call import Call
from loadtest.call import Protocol as CallProtocol
from loadtest.generating.answer import Answer, CallFailed
from loadtest.generating.messages import Sent
from loadtest.generating.reporter import Reporter
from loadtest.generating.sender import Sender
from loadtest.generating.tracing import ClientTracing
from loadtest.records import Status


class NoAddress(LookupError):
    """The plan's target lacks the address that a call needs."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose message is made."""

    call: Call
    message: Any


class Caller:
    """Every call that begins leaves exactly one row, however it ends; so does each later turn that falls due."""

    def __init__(
        self,
        senders: Mapping[CallProtocol, Sender],
        reporter: Reporter,
        timeout_s: float,
        duration_s: float,
        tracing: ClientTracing | None = None,
    ) -> None:
        self._senders = senders
        self._reporter = reporter
        self._timeout_s = timeout_s
        self._duration_s = duration_s
        self._tracing = tracing or ClientTracing()

    def prepare(self, call: Call) -> Prepared:
        """Raises NoAddress."""
        if (sender := self._senders.get(call.protocol)) is None:
            door = "http" if call.protocol.startswith("openai") else "grpc"
            raise NoAddress(
                f"user {call.user} calls by {call.protocol}, and the plan's target.{door} is empty"
            )
        return Prepared(call, sender.prepare(call))

    async def run(self, prepared: Prepared, t_intended_s: float, t0_s: float) -> None:
        """The call and its turns. A turn whose start falls after the run's end, or after a failure, is none."""
        first = call = prepared.call
        answer = await self._one(call, first.index, 0, prepared.message, t_intended_s, t0_s)
        earlier: list[tuple[Call, str]] = []
        for turn, later in enumerate(first.later_turns, start=1):
            if answer is None:
                return
            earlier.append((call, "".join(answer.text)))
            call, t_intended_s = later, answer.t_last_s - t0_s + later.think_s
            if t_intended_s >= self._duration_s:
                return
            message = self._senders[call.protocol].prepare(call, earlier)
            await asyncio.sleep(t0_s + t_intended_s - time.monotonic())
            answer = await self._one(call, first.index, turn, message, t_intended_s, t0_s)

    async def _one(
        self, call: Call, index: int, turn: int, message: Any, t_intended_s: float, t0_s: float
    ) -> Answer | None:
        """None: it failed."""
        answer, status, error = Answer(), Status.ERROR, ""
        trace = self._tracing.begin()
        sent = trace.of(call) if trace else call
        now_s = time.monotonic() - t0_s
        self._reporter.sent(Sent(index, turn, call.user, call.service, call.session, t_intended_s, now_s))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._senders[call.protocol].send(sent, message, answer)
            status = Status.OK
        except CallFailed as exc:
            error = str(exc)
        except TimeoutError:
            error = f"timeout: no end within {self._timeout_s:g} s"
        except asyncio.CancelledError:
            status = Status.CENSORED if answer.is_sent else Status.NOT_SENT
            raise
        except Exception as exc:
            error = f"generator: {type(exc).__name__}: {exc}"
        finally:
            if status is not Status.OK:
                answer.ended(time.monotonic())
            self._reporter.ended(answer.row(call, index, turn, status, error, t_intended_s, t0_s))
            if trace is not None:
                self._tracing.end(trace, call, answer, status, error)
        return answer if status is Status.OK else None
