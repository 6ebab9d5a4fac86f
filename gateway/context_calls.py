"""Calls of models that context management makes on a request's behalf.

Each is a call of its own: admitted and charged under the caller's limits, with a row in the call log under the same
request id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from contracts.sampling import SamplingParams
from gateway.call import Call
from gateway.catalog import Catalog, GatewayModel
from gateway.errors import GatewayError
from gateway.pipeline import Pipeline
from gateway.routing import Target
from gateway.translate import sampling_json
from gateway.triton_client import Attempts, GenerateCall, GenerateReply
from ledger.calls import Operation

GREEDY = SamplingParams(temperature=0.0)
_T = TypeVar("_T")


class Embedder(Protocol):
    """What is asked of the client of Triton."""

    async def embed(
        self,
        model: str,
        request_id: str,
        texts: Sequence[str],
        deadline_unix_s: float | None = None,
        attempts: Attempts | None = None,
    ) -> list[bytes]: ...


@dataclass(frozen=True)
class Behalf:
    """For whose sake, and how long it may take."""

    call: Call
    deadline_unix_s: float | None = None


class ContextCalls:
    """`generate` collects a whole answer."""

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Pipeline,
        generate: Callable[[GenerateCall], Awaitable[GenerateReply]],
        embedder: Embedder,
        *,
        max_embed_batch: int,
    ) -> None:
        self._catalog = catalog
        self._pipeline = pipeline
        self._generate = generate
        self._embedder = embedder
        self._max_embed_batch = max_embed_batch

    def embed_model(self, name: str) -> GatewayModel:
        """Raises ModelNotFound, InvalidRequest."""
        return self._catalog.find_kind(name, "embed")

    async def summarize(
        self, behalf: Behalf, model: GatewayModel, text: str, num_prompt_tokens: int, max_tokens: int
    ) -> GenerateReply:
        """Greedy, so that the same turns have the same summary."""

        async def work(made: Call) -> GenerateReply:
            asked = GenerateCall(
                model.name,
                made.request_id,
                text,
                sampling_json(GREEDY, max_tokens),
                is_stream=False,
                deadline_unix_s=behalf.deadline_unix_s,
                num_tokens=num_prompt_tokens + max_tokens,
                attempts=made,
            )
            reply = await self._generate(asked)
            made.num_output_tokens, made.num_cached_tokens = reply.num_output_tokens, reply.num_cached_tokens
            made.finish_reason = reply.finish_reason or ""
            return reply

        made = _call(behalf.call, "chat", model.name, "summary of older turns")
        return await self._run(made, num_prompt_tokens, max_tokens, work)

    async def embed(
        self, behalf: Behalf, model: GatewayModel, texts: Sequence[str], num_tokens: int
    ) -> list[bytes]:
        """A vector a text."""
        size = self._max_embed_batch

        async def work(made: Call) -> list[bytes]:
            vectors: list[bytes] = []
            for at in range(0, len(texts), size):
                batch = texts[at : at + size]
                vectors += await self._embedder.embed(
                    model.name, made.request_id, batch, behalf.deadline_unix_s, made
                )
            return vectors

        made = _call(behalf.call, "embedding", model.name, "retrieval of older turns")
        return await self._run(made, num_tokens, None, work)

    async def _run(
        self,
        made: Call,
        num_prompt_tokens: int,
        max_tokens: int | None,
        work: Callable[[Call], Awaitable[_T]],
    ) -> _T:
        try:
            await self._pipeline.admit(made, num_prompt_tokens, max_tokens)
            result = await work(made)
            made.status = 200
            return result
        except GatewayError as exc:
            made.fail(exc)
            made.status = exc.status
            raise
        finally:
            await self._pipeline.end(made)


def _call(call: Call, operation: Operation, model: str, why: str) -> Call:
    return Call(
        call.request_id,
        call.door,
        operation=operation,
        principal=call.principal,
        service=call.service,
        target=Target(model, model, why),
        revision=call.revision,
        trace=call.trace.part(),
    )
