"""A TritonClient over several Tritons: picks one for each call, and another when that one can't be reached.

Only while the client has seen nothing: what it has seen is never begun again. No hedging: a call is at one
endpoint at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from contracts.tracing.timing import Timing
from gateway.balancing import Outcome
from gateway.errors import GatewayError
from gateway.triton_client import BEGINS_AGAIN, Attempt, Attempts, GenerateCall, GenerateReply
from gateway.upstreams import Upstreams


class _Unrecorded:
    """Attempts, and an attempt, of a call that nobody keeps a record of."""

    traceparent = ""

    def begin_at(self, endpoint: str) -> Attempt:
        return self

    def try_again(self, error: GatewayError) -> None:
        pass

    def note(self, timing: Timing) -> None:
        pass

    def end(self, error: GatewayError | None = None) -> None:
        pass


class BalancedTriton:
    """Close it: it closes the upstreams."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateReply]:
        """As TritonClient's. Of a call that is whole the answer may begin again, which a reply says then."""
        tried: set[str] = set()
        attempts = call.attempts or _Unrecorded()
        is_answering = False
        while True:
            if is_answering:
                yield BEGINS_AGAIN
            lease = self._upstreams.pick(session=call.session, tokens=call.num_tokens, avoid=tried)
            tried.add(lease.endpoint)
            attempt = attempts.begin_at(lease.endpoint)
            is_answering = False
            try:
                answer = lease.triton.generate(call, attempt.traceparent)
                async with contextlib.aclosing(answer) as replies:
                    async for reply in replies:
                        is_answering = True
                        if reply.timing is not None:
                            attempt.note(reply.timing)
                        yield reply
                lease.done()
                attempt.end()
                return
            except GatewayError as exc:
                lease.failed(exc)
                attempt.end(exc)
                is_too_late = is_answering and not call.is_whole
                if is_too_late or not self._upstreams.may_retry(exc, tried):
                    raise
                attempts.try_again(exc)
            finally:
                lease.done(Outcome.UNKNOWN)

    async def embed(
        self,
        model: str,
        request_id: str,
        texts: Sequence[str],
        deadline_unix_s: float | None = None,
        attempts: Attempts | None = None,
    ) -> list[bytes]:
        """As TritonClient's."""
        tried: set[str] = set()
        attempts = attempts or _Unrecorded()
        while True:
            lease = self._upstreams.pick(tokens=len(texts), avoid=tried)
            tried.add(lease.endpoint)
            attempt = attempts.begin_at(lease.endpoint)
            try:
                vectors = await lease.triton.embed(
                    model, request_id, texts, deadline_unix_s, attempt.traceparent
                )
                lease.done()
                attempt.end()
                return vectors
            except GatewayError as exc:
                lease.failed(exc)
                attempt.end(exc)
                if not self._upstreams.may_retry(exc, tried):
                    raise
                attempts.try_again(exc)
            finally:
                lease.done(Outcome.UNKNOWN)

    async def is_live(self, timeout_s: float) -> bool:
        """Is one of them?"""
        asked = [self._upstreams.client(name).is_live(timeout_s) for name in self._upstreams.endpoints]
        return any(await asyncio.gather(*asked))

    async def is_model_ready(self, model: str, timeout_s: float) -> bool:
        """At one of them?"""
        clients = [self._upstreams.client(name) for name in self._upstreams.endpoints]
        return any(await asyncio.gather(*(client.is_model_ready(model, timeout_s) for client in clients)))

    async def close(self) -> None:
        await self._upstreams.close()
