"""The gateway's HTTP API as an OpenAPI 3.1 document: what is taken here, not all that OpenAI's own API knows.

Answers have the types of the `openai` package, the same that the gateway answers with. A unit test holds the
bodies' keys to those that `schemas` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from openai.types import Batch, FileDeleted, FileObject
from openai.types.chat.chat_completion import ChatCompletion
from openai.types.completion import Completion
from openai.types.create_embedding_response import CreateEmbeddingResponse
from openai.types.model import Model
from pydantic import BaseModel

from contracts.guide import KEYS as GUIDE_KEYS
from contracts.sampling import MAX_LOGPROBS
from gateway.batch_input import ENDPOINTS
from gateway.batch_parts import MAX_PAGE
from gateway.principal import Limits
from gateway.schemas import MAX_ANSWERS, MAX_EMBED_INPUTS, MAX_PROMPTS
from gateway.usage import DEFAULT_DAYS, MAX_DAYS

Schema = dict[str, Any]

_ANY: Schema = {}
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": ["boolean", "null"]}
_TEXT_OR_TEXTS: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}


def _number(low: float, high: float) -> Schema:
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def _whole(low: int, high: int = 2**31 - 1) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def _object(properties: Mapping[str, Schema], *required: str) -> Schema:
    """Other keys are refused, but for those that ask for nothing."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}


_SAMPLING: Mapping[str, Schema] = {
    "max_tokens": _whole(1),
    "temperature": _number(0, 2),
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "top_k": _whole(-1),
    "min_p": _number(0, 1),
    "seed": {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
    "stop": {"anyOf": [{"type": "null"}, *_TEXT_OR_TEXTS["anyOf"]]},
    "stop_token_ids": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}},
    "min_tokens": _whole(0),
    "ignore_eos": _FLAG,
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 100},
    "logit_bias": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
    "n": _whole(1, MAX_ANSWERS),
    "stream": _FLAG,
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": _FLAG},
        "description": "Only with stream.",
    },
    **dict.fromkeys(GUIDE_KEYS, _ANY),
    "guided_lenient": _FLAG,
}
_MESSAGE = _object(
    {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {
            "anyOf": [
                _TEXT,
                {
                    "type": "array",
                    "minItems": 1,
                    "items": _object({"type": {"const": "text"}, "text": _TEXT}, "type", "text"),
                },
            ]
        },
        "name": _TEXT,
    },
    "role",
    "content",
)
BODIES: Mapping[str, Schema] = {
    "ChatRequest": _object(
        {
            "model": _TEXT,
            "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
            "max_completion_tokens": _whole(1),
            "logprobs": _FLAG,
            "top_logprobs": _whole(0, MAX_LOGPROBS),
            "response_format": {"type": ["object", "null"]},
            **_SAMPLING,
        },
        "model",
        "messages",
    ),
    "CompletionRequest": _object(
        {
            "model": _TEXT,
            "prompt": {
                "anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS}]
            },
            "logprobs": _whole(0, MAX_LOGPROBS),
            **_SAMPLING,
        },
        "model",
        "prompt",
    ),
    "EmbeddingRequest": _object(
        {
            "model": _TEXT,
            "input": {
                "anyOf": [
                    _TEXT,
                    {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_EMBED_INPUTS},
                ]
            },
            "encoding_format": {"enum": ["float", "base64", None]},
        },
        "model",
        "input",
    ),
}
_ERROR = _object(
    {
        "error": _object(
            {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "message",
            "type",
            "param",
            "code",
        )
    },
    "error",
)
_FIGURES = {
    name: {"type": "integer"}
    for name in (
        "requests",
        "errors",
        "refused",
        "cancelled",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
    )
}
_USAGE = _object(
    {
        "object": {"const": "usage"},
        "key": {"type": ["string", "null"]},
        "tenant": {"type": ["string", "null"]},
        "since_unix_s": {"type": "integer"},
        "today": _object(_FIGURES, *_FIGURES),
        "total": _object(_FIGURES, *_FIGURES),
        "data": {
            "type": "array",
            "items": _object(
                {"day_unix_s": {"type": "integer"}, "model": {"type": ["string", "null"]}, **_FIGURES},
                "day_unix_s",
                "model",
                *_FIGURES,
            ),
        },
        "limits": {
            "type": "object",
            "properties": {name: {"type": "integer"} for name in Limits.__struct_fields__},
        },
    },
    "object",
    "since_unix_s",
    "today",
    "total",
    "data",
    "limits",
)
_MODELS = _object(
    {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}},
    },
    "object",
    "data",
)
_PAGE = _object(
    {"object": {"const": "list"}, "data": {"type": "array"}, "has_more": {"type": "boolean"}},
    "object",
    "data",
    "has_more",
)
_BODY_ERRORS = (400, 403, 404, 408, 413, 429, 500, 503, 504)


def document() -> bytes:
    """As JSON."""
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "tidegate", "version": "1"},
            "components": {
                "schemas": {**BODIES, **_answer_types()},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"key": []}],
            "paths": {
                "/v1/chat/completions": {"post": _post("ChatRequest", "ChatCompletion", streams=True)},
                "/v1/completions": {"post": _post("CompletionRequest", "Completion", streams=True)},
                "/v1/embeddings": {"post": _post("EmbeddingRequest", None)},
                "/v1/models": {"get": _get("Models")},
                "/v1/models/{model}": {"get": _get("Model", 403, 404, path="model")},
                "/v1/usage": {"get": _usage_page()},
                **_files_and_batches(),
                "/health/live": {"get": {"security": [], "responses": {"200": _json(_ANY)}}},
                "/health/ready": {
                    "get": {"security": [], "responses": {"200": _json(_ANY), "503": _json(_ANY)}}
                },
            },
        }
    )


def _answer_types() -> dict[str, Schema]:
    schemas: dict[str, Schema] = {"Error": _ERROR, "KeyUsage": _USAGE, "Models": _MODELS, "Page": _PAGE}
    types: tuple[type[BaseModel], ...] = (
        *(ChatCompletion, Completion, CreateEmbeddingResponse, Model),
        *(FileObject, FileDeleted, Batch),
    )
    for one in types:
        # Types of one name, and not the same, stand in several of them.
        schema = one.model_json_schema(ref_template=f"#/components/schemas/{one.__name__}.{{model}}")
        schemas |= {f"{one.__name__}.{name}": part for name, part in schema.pop("$defs", {}).items()}
        schemas[one.__name__] = schema
    return schemas


def _json(schema: Schema) -> Schema:
    return {"description": "", "content": {"application/json": {"schema": schema}}}


def _of(name: str | None) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"} if name else _ANY


def _errors(*statuses: int) -> dict[str, Schema]:
    return {str(status): _json(_of("Error")) for status in (401, *statuses)}


def _post(body: str, answer: str | None, *, streams: bool = False) -> Schema:
    answered = _json(_of(answer))
    if streams:
        answered["content"]["text/event-stream"] = {"schema": _TEXT}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _of(body)}}},
        "responses": {"200": answered, **_errors(*_BODY_ERRORS)},
    }


def _get(answer: str, *statuses: int, path: str | None = None) -> Schema:
    made: Schema = {"responses": {"200": _json(_of(answer)), **_errors(*statuses)}}
    if path is not None:
        made["parameters"] = [{"name": path, "in": "path", "required": True, "schema": _TEXT}]
    return made


def _usage_page() -> Schema:
    days = {"type": "integer", "minimum": 1, "maximum": MAX_DAYS, "default": DEFAULT_DAYS}
    return _get("KeyUsage", 400, 501) | {"parameters": [{"name": "days", "in": "query", "schema": days}]}


def _files_and_batches() -> dict[str, Schema]:
    limit = {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}}
    after = {"name": "after", "in": "query", "schema": _TEXT}
    page: Schema = _get("Page", 400, 403, 501) | {"parameters": [limit, after]}
    form = _object(
        {"purpose": {"const": "batch"}, "file": {"type": "string", "format": "binary"}}, "purpose", "file"
    )
    content: Schema = {"description": "", "content": {"application/octet-stream": {"schema": _TEXT}}}
    file = {"path": "file_id"}
    batch = {"path": "batch_id"}
    return {
        "/v1/files": {
            "get": page,
            "post": {
                "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}},
                "responses": {"200": _json(_of("FileObject")), **_errors(400, 403, 408, 413, 501)},
            },
        },
        "/v1/files/{file_id}": {
            "get": _get("FileObject", 403, 404, 501, **file),
            "delete": _get("FileDeleted", 403, 404, 409, 501, **file),
        },
        "/v1/files/{file_id}/content": {
            "get": _get("FileObject", 403, 404, 501, **file)
            | {"responses": {"200": content, **_errors(403, 404, 501)}}
        },
        "/v1/batches": {
            "get": page,
            "post": {
                "requestBody": {"required": True, "content": {"application/json": {"schema": _BATCH}}},
                "responses": {"200": _json(_of("Batch")), **_errors(400, 403, 408, 413, 501)},
            },
        },
        "/v1/batches/{batch_id}": {"get": _get("Batch", 403, 404, 501, **batch)},
        "/v1/batches/{batch_id}/cancel": {"post": _get("Batch", 403, 404, 409, 501, **batch)},
    }


_BATCH = _object(
    {
        "input_file_id": _TEXT,
        "endpoint": {"enum": list(ENDPOINTS)},
        "completion_window": {"const": "24h"},
        "metadata": {"type": ["object", "null"], "additionalProperties": _TEXT},
    },
    "input_file_id",
    "endpoint",
)
