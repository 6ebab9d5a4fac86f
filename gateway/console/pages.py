"""The console's addresses: the page and its files (nothing in them is secret), its data, its button."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import resources

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from contracts import web
from gateway.console import access, rollback, traces
from gateway.console.following import Console
from gateway.errors import InvalidRequest, RouteNotFound, shown
from gateway.pipeline import Pipeline
from gateway.streaming import read_body

MAX_BODY_BYTES = 4096
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}

router = APIRouter()


@router.get("/console")
async def page() -> Response:
    return _answer(_file("page.html"), "html")


@router.get("/console/")
async def page_with_slash() -> Response:
    return RedirectResponse("/console", headers=HEADERS)


@router.get("/console/files/{name}")
async def file(name: str) -> Response:
    """Scripts and styles: the page's own, and those that all our pages share."""
    shared = {"charts.js": web.scripts, "look.css": web.styles}
    if name in shared:
        return _answer(shared[name](), name.rpartition(".")[2])
    if name in ("console.js", "console.css", "trace.js"):
        return _answer(_file(name), name.rpartition(".")[2])
    raise RouteNotFound("there is no such file; the console is at /console")


@router.get("/console/data")
async def data(request: Request) -> Response:
    """`?since=N`: history after that step alone. The page asks once a second."""
    console, pipeline = _parts_of(request)
    who = access.check(request, pipeline, "metrics")
    found = console.look(_since(request.query_params.get("since")))
    found["who"] = who
    found["can_change"] = console.revisions is not None and _may_change(request, pipeline)
    # A hundred kilobytes of JSON is a millisecond that no call should wait for.
    return _json(await asyncio.to_thread(msgspec.json.encode, found))


@router.get("/console/trace/{trace_id}")
async def trace_page(trace_id: str) -> Response:
    """The page; it asks for its trace itself, with the key that the tab keeps."""
    return _answer(_file("trace.html"), "html")


@router.get("/console/data/trace/{trace_id}")
async def trace_data(request: Request, trace_id: str) -> Response:
    """The spans of one kept trace as a waterfall. 404 where nothing is kept of it."""
    _, pipeline = _parts_of(request)
    access.check(request, pipeline, "metrics")
    store_path = request.app.state.gateway.config.traces_path
    found = await asyncio.to_thread(traces.waterfall, store_path, trace_id)
    return _json(msgspec.json.encode(found))


@router.post("/console/rollback")
async def post_rollback(request: Request) -> Response:
    """`{"service", "revision"}`, with the role `admin`; 409 when the routes have changed since."""
    console, pipeline = _parts_of(request)
    access.check_is_ours(request)
    who = access.check(request, pipeline, "admin")
    asked = rollback.parse(await read_body(request, MAX_BODY_BYTES))
    return _json(msgspec.json.encode(await rollback.roll_back(console.revisions, console.models, asked, who)))


def _may_change(request: Request, pipeline: Pipeline) -> bool:
    from gateway.access_log import call_of

    return not pipeline.authenticator.is_on or call_of(request).principal.may("admin")


def _parts_of(request: Request) -> tuple[Console, Pipeline]:
    console: Console = request.app.state.console
    pipeline: Pipeline = request.app.state.gateway.pipeline
    return console, pipeline


def _since(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidRequest(f"since = {shown(text)}, must be the number of a step", "since")
    return int(text)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers=HEADERS)


def _answer(text: str, kind: str) -> Response:
    return Response(text, media_type=f"{TYPES[kind]}; charset=utf-8", headers=HEADERS)


@cache
def _file(name: str) -> str:
    return resources.files("gateway.console").joinpath(name).read_text(encoding="utf-8")
