"""`tidegate trace`: where one request's time went."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contracts.stack import default_run_dir
from tidegate.commands.errors import CommandError
from tidegate.commands.moments import parse_moment
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.console import note, out, print_json, print_table

SHORTLY_NS = 30_000_000_000

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.tracing.span import Span
    from contracts.tracing.store import TraceStore


def trace(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[REQUEST_ID|TRACE_ID]", help="Without one: a list of the latest."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the waterfall as a page of its own.")
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="List failed requests only.")] = False,
    slowest: Annotated[bool, typer.Option("--slowest", help="List the slowest first.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="List those that came then or later: 15m (ago)."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Requests on the list.")] = 20,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a request's time went: gateway, Triton, engine.

    The id is the x-request-id of an answer, or a trace id. Sampled, failed and slow requests of the last day are
    there; one that brings `traceparent: 00-...-01` is always traced.
    """
    from contracts.tracing.store import STORE_NAME, StoreError, TraceStore

    path = (run_dir or default_run_dir()) / STORE_NAME
    try:
        store = TraceStore.open(path)
        try:
            if which is None:
                since_unix_s = 0.0 if since is None else parse_moment("--since", since, time.time())
                _list(store, errors, slowest, since_unix_s, limit, as_json)
            else:
                _show(store, which, html, as_json)
        finally:
            store.close()
    except StoreError as exc:
        raise CommandError(
            f"no traces: {exc}; a stack with a gateway keeps them, unless --no-tracing; is --run-dir right?"
        ) from exc


def _show(store: TraceStore, which: str, html: Path | None, as_json: bool) -> None:
    spans = _spans_of(store, which)
    scalings = _scalings(store, spans)
    if html is not None:
        from contracts.tracing.tree import rows_of
        from telemetry.page import page_of

        html.write_text(page_of(which, rows_of(spans), scalings), encoding="utf-8")
        note(f"wrote {html}")
    if as_json:
        print_json(
            {
                "trace_id": spans[0].trace_id,
                "spans": [_values(span) for span in spans],
                "scalings": [_values(span) for span in scalings],
            }
        )
    elif html is None:
        from tidegate.commands.trace_text import print_waterfall

        print_waterfall(out(), spans, scalings)


def _spans_of(store: TraceStore, which: str) -> list[Span]:
    """Raises CommandError."""
    trace_ids = store.trace_ids_of(which)
    if len(trace_ids) > 1:
        note(
            f"{len(trace_ids)} requests have this id; the last one is shown, the others are {trace_ids[:-1]}"
        )
    spans = store.spans_of(trace_ids[-1] if trace_ids else which)
    if not spans:
        raise CommandError(
            f"no trace of {which!r}: it was not sampled (--trace-ratio), did not fail and was not slow, is older "
            "than a day, or ended less than a second ago; `tidegate trace` lists those that are there"
        )
    return spans


def _scalings(store: TraceStore, spans: Sequence[Span]) -> list[Span]:
    """Of the models that answered, while it ran or shortly before."""
    from contracts.tracing import names
    from contracts.tracing.tree import models_of

    models = models_of(spans)
    began, ended = min(span.start_unix_ns for span in spans), max(span.end_unix_ns for span in spans)
    found = store.scalings(began - SHORTLY_NS, ended)
    return [span for span in found if span.attributes.get(names.MODEL) in models]


def _list(
    store: TraceStore, errors: bool, slowest: bool, since_unix_s: float, limit: int, as_json: bool
) -> None:
    from dataclasses import asdict

    from tidegate.commands.trace_text import requests_table

    found = store.requests(
        "slowest" if slowest else "newest", limit, only_errors=errors, since_unix_s=since_unix_s
    )
    if as_json:
        print_json({"requests": [asdict(each) for each in found]})
    elif not found:
        note("no traced requests yet")
    else:
        print_table(out(), requests_table(found))


def _values(span: Span) -> dict[str, Any]:
    import msgspec

    return {name: msgspec.to_builtins(getattr(span, name)) for name in span.__struct_fields__}
