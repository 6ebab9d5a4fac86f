"""`tidegate top`: what /console shows, in the terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import need_stack
from tidegate.console import out, print_json

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE = "TIDEGATE_API_KEY"
TIMEOUT_S = 10.0
KEPT_STEPS = 720
"""Of the history: an hour."""


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, max=60.0, metavar="S", help="Seconds between two looks.")
    ] = 1.0,
    url: Annotated[
        str | None,
        typer.Option("--url", help="A gateway elsewhere: https://HOST:9000.", envvar="TIDEGATE_GATEWAY_URL"),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="Trust this certificate (PEM).")
    ] = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the stack: models, instances, queues, latency, the KV pool, what the scaler does. Ctrl-C ends it.

    A gateway with keys wants one with the role metrics in $TIDEGATE_API_KEY. --json prints what /console/data says.
    """
    import httpx

    base_url = (url or _gateway_of(run_dir)).rstrip("/")
    key = os.environ.get(KEY_VARIABLE, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(
        base_url=base_url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=_trust(ca)
    ) as http:
        first = _look(http, 0)
        if as_json:
            print_json(first)
        elif once:
            _print_once(first)
        else:
            _watch(http, first, interval_s)


def _gateway_of(run_dir: Path | None) -> str:
    stack = need_stack(run_dir)
    if not stack.gateway_http:
        raise CommandError("the stack runs without a gateway; start it without --no-gateway, or give --url")
    return f"{stack.gateway_scheme}://{stack.gateway_http}"


def _trust(ca: Path | None) -> Any:
    if ca is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=str(ca))
    except OSError as exc:
        raise CommandError(f"--ca {ca} can't be read: {exc}") from exc


def _look(http: httpx.Client, since: int) -> dict[str, Any]:
    """Raises CommandError, with what the gateway says."""
    import httpx

    try:
        reply = http.get("/console/data", params={"since": since})
    except httpx.HTTPError as exc:
        raise CommandError(f"no answer from the gateway at {http.base_url}: {exc}") from exc
    if reply.status_code in (401, 403):
        told = reply.json().get("error", {}).get("message", "")
        raise CommandError(f"{told}; `tidegate top` takes a key with the role metrics from ${KEY_VARIABLE}")
    if reply.status_code != 200:
        raise CommandError(
            f"the gateway at {http.base_url} answered {reply.status_code}; is it an older one?"
        )
    found: dict[str, Any] = reply.json()
    return found


def _print_once(found: dict[str, Any]) -> None:
    from tidegate.commands.top_text import screen

    out().print(screen(found, ""))


def _watch(http: httpx.Client, found: dict[str, Any], interval_s: float) -> None:
    """Until Ctrl-C. While the gateway is silent the last screen stays, and says so."""
    from rich.live import Live

    from tidegate.commands.top_text import joined, screen

    with Live(screen(found, ""), console=out(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            trouble = ""
            try:
                fresh = _look(http, found["last_step"])
                fresh["history"] = joined(found["history"], fresh["history"], KEPT_STEPS)
                found = fresh
            except CommandError as exc:
                trouble = str(exc)
            live.update(screen(found, trouble), refresh=True)
