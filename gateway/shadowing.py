"""Copies of calls to a model that is only being tried: nobody waits for them, nobody sees their answers.

They have rows in the call log, which is what they are for. When too many run, the next ones are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from gateway.call import Call, ids_of
from gateway.catalog import Catalog
from gateway.errors import GatewayError, InternalError
from gateway.routing import Target
from gateway.triton_client import GenerateCall, GenerateReply

logger = logging.getLogger("gateway")

MAX_RUNNING = 32

Generate = Callable[[GenerateCall], Coroutine[Any, Any, GenerateReply]]


class Shadows:
    """`generate` collects a whole answer; `end` writes the row."""

    def __init__(
        self, catalog: Catalog, generate: Generate, end: Callable[[Call], Coroutine[Any, Any, None]]
    ) -> None:
        self._catalog = catalog
        self._generate = generate
        self._end = end
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_left_out = 0

    def send(self, call: Call, asked: GenerateCall, num_prompt_tokens: int) -> None:
        """A copy of `call` to its target's shadow, if it has one. Returns at once."""
        model = call.target.shadow if call.target else None
        if model is None:
            return
        if len(self._tasks) >= MAX_RUNNING:
            self.num_left_out += 1
            return
        copy = Call(
            call.request_id,
            call.door,
            operation=call.operation,
            principal=call.principal,
            service=call.service,
            target=Target(model, model, f"shadow of {call.target.version_name if call.target else ''}"),
            revision=call.revision,
            endpoint=call.endpoint,
            num_prompt_tokens=num_prompt_tokens,
            is_shadow=True,
            trace=call.trace.part(),
        )
        task = asyncio.create_task(
            self._run(copy, replace(asked, model=model, is_stream=False, attempts=copy))
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, copy: Call, asked: GenerateCall) -> None:
        try:
            self._catalog.find_kind(asked.model, "generate")
            reply = await self._generate(asked)
            copy.status, copy.finish_reason = 200, reply.finish_reason or ""
            copy.num_output_tokens, copy.num_cached_tokens = reply.num_output_tokens, reply.num_cached_tokens
        except GatewayError as exc:
            copy.fail(exc)
            copy.status = exc.status
        except Exception:
            logger.exception("the shadow of request %s failed", copy.request_id, extra=ids_of(copy))
            copy.fail(InternalError("the gateway failed; its log says more"))
            copy.status = InternalError.status
        await self._end(copy)
