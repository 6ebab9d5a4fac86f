"""The routes: read, check, ask Triton, answer."""

from __future__ import annotations

import asyncio
import time

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway import translate
from gateway.catalog import GatewayModel
from gateway.choices import with_seeds
from gateway.context import Fitted
from gateway.http_work import (
    admit,
    arrived,
    counted_usage,
    embed_all,
    fit,
    gateway_of,
    generate_all,
    generate_call,
    id_of,
    outcome,
    route,
    stream_answer,
)
from gateway.schemas import parse_chat, parse_completion, parse_embedding
from gateway.streaming import read_body, while_connected
from gateway.usage import parse_days

READY_TIMEOUT_S = 2.0

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    gateway, call = arrived(request, "chat")
    body = parse_chat(await read_body(request, gateway.config.max_body_bytes))
    gateway.pipeline.enter(call, body.model)
    call.is_stream = body.is_stream

    def render(model: GatewayModel) -> list[str]:
        return [model.render(body.messages)]

    model, (text,), (count,) = await route(request, "generate", render)
    prompt = await fit(request, model, body, Fitted(text, count))
    room = model.room_for(prompt.num_tokens, "messages")
    most = min(body.max_tokens or room, room) * body.num_choices
    allowed = await admit(request, prompt.num_tokens, most)
    asked = [
        generate_call(
            request, model, prompt.text, sampling, max(allowed // body.num_choices, 1), body.is_stream
        )
        for sampling in with_seeds(body.sampling, body.num_choices)
    ]
    gateway.shadows.send(call, asked[0], prompt.num_tokens)
    answer_id, created = id_of("chatcmpl", call), int(time.time())
    about = {"context": msgspec.to_builtins(prompt.done)} if prompt.done else None
    if body.is_stream:
        chunks = translate.ChatChunks(
            answer_id, created, call.service, body.include_usage, body.num_choices, about
        )
        return await stream_answer(request, asked, chunks, prompt.num_tokens, body)
    replies = await while_connected(request, generate_all(gateway.triton, asked, call))
    counted = counted_usage(call, prompt.num_tokens, replies, body.num_choices)
    outcomes = [outcome(reply, body.sampling) for reply in replies]
    return json_answer(translate.chat_answer(answer_id, created, call.service, outcomes, counted, about))


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    gateway, call = arrived(request, "completion")
    body = parse_completion(await read_body(request, gateway.config.max_body_bytes))
    gateway.pipeline.enter(call, body.model)
    call.is_stream = body.is_stream
    model, prompts, counts = await route(request, "generate", lambda _: body.prompts)
    most = [min(body.max_tokens, model.room_for(count, "prompt")) for count in counts]
    allowed = await admit(request, sum(counts), sum(most) * body.num_choices)
    share = max(allowed // (len(most) * body.num_choices), 1)
    asked = [
        generate_call(request, model, prompt, sampling, min(num, share), body.is_stream)
        for prompt, num in zip(prompts, most, strict=True)
        for sampling in with_seeds(body.sampling, body.num_choices)
    ]
    for one, count in zip(asked[:: body.num_choices], counts, strict=True):
        gateway.shadows.send(call, one, count)
    answer_id, created = id_of("cmpl", call), int(time.time())
    if body.is_stream:
        chunks = translate.CompletionChunks(answer_id, created, call.service, body.include_usage, len(asked))
        return await stream_answer(request, asked, chunks, sum(counts), body)
    replies = await while_connected(request, generate_all(gateway.triton, asked, call))
    counted = counted_usage(call, sum(counts), replies, body.num_choices)
    outcomes = [outcome(reply, body.sampling) for reply in replies]
    return json_answer(translate.completion_answer(answer_id, created, call.service, outcomes, counted))


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    gateway, call = arrived(request, "embedding")
    body = parse_embedding(await read_body(request, gateway.config.max_body_bytes))
    gateway.pipeline.enter(call, body.model)
    model, texts, counts = await route(request, "embed", lambda _: body.texts)
    model.check_embeds(counts)
    await admit(request, sum(counts), None)
    vectors = await while_connected(request, embed_all(request, model.name, texts))
    return json_answer(translate.embedding_answer(call.service, vectors, sum(counts), body.is_base64))


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    gateway, call = arrived(request, None)
    # A batch model takes tensors, which this API has not.
    names = [
        name
        for name in gateway.pipeline.services_of(call)
        if gateway.pipeline.routes.routes.of(name).versions[0].model_name in gateway.catalog.names
    ]
    return json_answer(
        translate.model_list([translate.model_entry(name, gateway.started_unix_s) for name in names])
    )


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    gateway, call = arrived(request, None)
    gateway.pipeline.enter(call, name)
    return json_answer(
        translate.model_entry(name, gateway.started_unix_s).model_dump_json(exclude_unset=True).encode()
    )


@router.get("/v1/usage")
async def get_usage(request: Request) -> Response:
    gateway, call = arrived(request, None)
    days = parse_days(request.query_params.get("days"))
    services = gateway.pipeline.services_of(call)
    return json_answer(await while_connected(request, gateway.usage.of(call.principal, days, services)))


@router.get("/openapi.json")
async def get_openapi(request: Request) -> Response:
    return json_answer(gateway_of(request).openapi)


@router.get("/health/live")
async def live() -> Response:
    return json_answer(b'{"status":"live"}')


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Ready: Triton is live and every served model is ready in it."""
    gateway = gateway_of(request)
    names = gateway.catalog.names
    is_live, *are_ready = await asyncio.gather(
        gateway.triton.is_live(READY_TIMEOUT_S),
        *(gateway.triton.is_model_ready(name, READY_TIMEOUT_S) for name in names),
    )
    is_ready = is_live and all(are_ready)
    body = {
        "status": "ready" if is_ready else "not ready",
        "triton": is_live,
        "models": dict(zip(names, are_ready, strict=True)),
    }
    return json_answer(msgspec.json.encode(body), 200 if is_ready else 503)


def json_answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
