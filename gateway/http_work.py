"""What the HTTP routes share, between reading a body and writing an answer: route, fit, admit, ask, stream."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from openai.types.completion_usage import CompletionUsage
from starlette.requests import Request
from starlette.responses import Response

from contracts.sampling import SamplingParams
from contracts.stack import ModelKind
from gateway import openapi, translate
from gateway.access_log import call_of
from gateway.balanced_triton import BalancedTriton
from gateway.batch_parts import BatchParts
from gateway.call import Call
from gateway.catalog import Catalog, GatewayModel
from gateway.choices import merged, num_cached
from gateway.config import GatewayConfig
from gateway.context import ContextManager, Fitted
from gateway.context_calls import Behalf, ContextCalls
from gateway.errors import InvalidRequest, shown
from gateway.http_caller import authenticate
from gateway.inner_calls import PRIORITY
from gateway.metrics import GatewayMetrics
from gateway.pipeline import Pipeline
from gateway.schemas import Completion, Conversation
from gateway.shadowing import Shadows
from gateway.streaming import EventStream, while_connected
from gateway.triton_client import GenerateCall, GenerateReply, check_finished, collect
from gateway.usage import Usage
from gateway.waking import WakingTriton
from ledger.calls import Operation

TIMEOUT_HEADER = "x-tidegate-timeout-s"
SESSION_HEADER = "x-tidegate-session"
"""Calls with the same one go to the same version of a service."""
MAX_TIMEOUT_S = 24 * 3600.0
MAX_EMBED_CALLS = 4
"""Calls to Triton at once for one request: a client with 2,048 texts leaves room for others."""

_T = TypeVar("_T")


class Gateway:
    """What the routes need; app.state.gateway."""

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        triton: BalancedTriton | WakingTriton,
        pipeline: Pipeline,
        usage: Usage,
        metrics: GatewayMetrics,
        batches: BatchParts | None = None,
    ) -> None:
        self.batches = batches
        self.pipeline = pipeline
        self.usage = usage
        self.metrics = metrics
        self.openapi = openapi.document()
        self.config = config
        self.catalog = catalog
        self.triton = triton
        self.started_unix_s = int(time.time())
        self.shadows = Shadows(catalog, self._generate, pipeline.end)
        self.context = ContextManager(
            ContextCalls(
                catalog,
                pipeline,
                self._generate,
                triton,
                max_embed_batch=config.max_embed_batch,
            )
        )

    async def _generate(self, call: GenerateCall) -> GenerateReply:
        return await collect(self.triton.generate(call))

    async def close(self) -> None:
        await self.shadows.close()
        await self.triton.close()


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def arrived(request: Request, operation: Operation | None) -> tuple[Gateway, Call]:
    """Raises KeyMissing and KeyInvalid, before a byte of the body is read."""
    gateway, call = gateway_of(request), call_of(request)
    call.operation = operation
    authenticate(request, gateway.pipeline)
    return gateway, call


async def route(
    request: Request, kind: ModelKind, render: Callable[[GatewayModel], Sequence[str]]
) -> tuple[GatewayModel, Sequence[str], list[int]]:
    """The model that answers, the texts as it reads them, their tokens.

    How long a prompt is depends on the model's tokenizer, and which model it is may depend on how long the prompt
    is: it is counted for the model that a short one would go to, and again if it goes elsewhere.
    """
    gateway, call = gateway_of(request), call_of(request)
    sticky = request.headers.get(SESSION_HEADER)

    async def counted(model_name: str) -> tuple[GatewayModel, Sequence[str], list[int]]:
        model = gateway.catalog.find_kind(model_name, kind)
        texts = render(model)
        counts = await model.count_tokens(texts)
        call.num_prompt_tokens = sum(counts)
        if gateway.pipeline.keeps_prompts:
            call.prompt = "\n".join(texts)
        return model, texts, counts

    first = gateway.pipeline.route(call, sticky=sticky, num_prompt_tokens=0)
    found = await counted(first.model)
    target = gateway.pipeline.route(call, sticky=sticky, num_prompt_tokens=sum(found[2]))
    return found if target.model == first.model else await counted(target.model)


async def admit(request: Request, num_prompt_tokens: int, max_output_tokens: int | None) -> int:
    """Waits while the service is saturated, if it has to. How many tokens may be generated."""
    pipeline, call = gateway_of(request).pipeline, call_of(request)
    if pipeline.must_wait(call):
        await while_connected(request, pipeline.wait_turn(call))
    return await pipeline.admit(call, num_prompt_tokens, max_output_tokens)


async def fit(request: Request, model: GatewayModel, body: Conversation, prompt: Fitted) -> Fitted:
    """What its service's context management makes of it."""
    gateway, call = gateway_of(request), call_of(request)
    limits = (model.max_context_tokens, gateway.pipeline.max_context_tokens(call))
    work = gateway.context.fit(
        Behalf(call, _deadline_unix_s(request)),
        model,
        gateway.pipeline.routes.routes.of(call.service).context,
        body.messages,
        prompt,
        limit=min(limit for limit in limits if limit is not None),
        max_output_tokens=body.max_tokens,
    )
    fitted = await while_connected(request, work)
    if fitted.done is not None:
        call.context = fitted.done.words()
    return fitted


def counted_usage(
    call: Call, num_prompt_tokens: int, replies: Sequence[GenerateReply], num_choices: int
) -> CompletionUsage:
    call.num_output_tokens = sum(reply.num_output_tokens for reply in replies)
    call.num_cached_tokens = num_cached([reply.num_cached_tokens for reply in replies], num_choices)
    call.finish_reason = replies[-1].finish_reason or ""
    return translate.usage(num_prompt_tokens, call.num_output_tokens, call.num_cached_tokens)


def outcome(reply: GenerateReply, sampling: SamplingParams) -> translate.Outcome:
    logprobs = None if sampling.logprobs is None else reply.logprobs
    return reply.text, str(reply.finish_reason), logprobs


def id_of(kind: str, call: Call) -> str:
    return f"{kind}-{call.request_id}"


def generate_call(
    request: Request,
    model: GatewayModel,
    text: str,
    sampling: SamplingParams,
    max_tokens: int,
    is_stream: bool,
) -> GenerateCall:
    call = call_of(request)
    return GenerateCall(
        model=model.name,
        request_id=call.request_id,
        text=text,
        sampling=translate.sampling_json(sampling, max_tokens),
        is_stream=is_stream or (call.admission is not None and call.admission.counts_tokens),
        deadline_unix_s=_deadline_unix_s(request),
        session=request.headers.get(SESSION_HEADER),
        num_tokens=(call.num_prompt_tokens or 0) + max_tokens,
        is_whole=not is_stream,
        priority=request.scope.get(PRIORITY, 0),
        attempts=call,
    )


def _deadline_unix_s(request: Request) -> float | None:
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER} = {shown(given)}, must be seconds above 0 and at most {MAX_TIMEOUT_S:.0f}",
            TIMEOUT_HEADER,
        )
    return time.time() + timeout_s


async def generate_all(
    triton: BalancedTriton | WakingTriton, calls: Sequence[GenerateCall], made: Call
) -> list[GenerateReply]:
    def note(reply: GenerateReply) -> None:
        """For who leaves before the end: what was made is charged."""
        made.num_output_tokens = (made.num_output_tokens or 0) + reply.num_output_tokens

    return await _side_by_side([collect(triton.generate(call), note) for call in calls])


async def _side_by_side(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results. The first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as exc:
        raise exc.exceptions[0] from None
    return [task.result() for task in tasks]


async def embed_all(request: Request, model: str, texts: Sequence[str]) -> list[bytes]:
    gateway, request_id = gateway_of(request), call_of(request).request_id
    size = gateway.config.max_embed_batch
    deadline = _deadline_unix_s(request)
    turns = asyncio.Semaphore(MAX_EMBED_CALLS)

    async def embed(batch: Sequence[str]) -> list[bytes]:
        async with turns:
            return await gateway.triton.embed(model, request_id, batch, deadline, call_of(request))

    batches = await _side_by_side([embed(texts[at : at + size]) for at in range(0, len(texts), size)])
    return [vector for batch in batches for vector in batch]


async def stream_answer(
    request: Request,
    asked: Sequence[GenerateCall],
    chunks: translate.Chunks,
    num_prompt_tokens: int,
    body: Conversation | Completion,
) -> Response:
    """Waits for the first reply, so that what fails before it is an HTTP error and not a broken stream."""
    triton = gateway_of(request).triton
    replies = merged([triton.generate(call) for call in asked])
    first = await while_connected(request, _next(replies))

    made = call_of(request)

    async def events() -> AsyncGenerator[bytes]:
        made.num_output_tokens = made.num_cached_tokens = 0
        cached: list[int] = [0] * len(asked)
        reasons: list[str | None] = [None] * len(asked)
        item = first
        async with contextlib.aclosing(replies):
            yield chunks.start()
            while item is not None:
                index, reply = item
                made.num_output_tokens += reply.num_output_tokens
                cached[index] = max(cached[index], reply.num_cached_tokens)
                made.num_cached_tokens = num_cached(cached, body.num_choices)
                if reply.text or reply.logprobs:
                    made.note_text()
                    yield chunks.text(index, reply.text, reply.logprobs)
                if reply.finish_reason:
                    made.finish_reason = reasons[index] = reply.finish_reason
                    yield chunks.finish(index, reply.finish_reason, is_last=None not in reasons)
                item = await _next(replies)
        for reason in reasons:
            check_finished(reason)
        if body.include_usage:
            yield chunks.usage(
                translate.usage(num_prompt_tokens, made.num_output_tokens, made.num_cached_tokens)
            )
        yield translate.DONE

    return EventStream(request, events(), gateway_of(request).config.send_timeout_s)


async def _next(
    replies: AsyncIterator[tuple[int, GenerateReply]],
) -> tuple[int, GenerateReply] | None:
    return await anext(replies, None)
