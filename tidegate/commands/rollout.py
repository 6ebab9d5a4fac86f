"""`tidegate rollout`: a new version takes over a service's calls by percent, and gives them back in one command.

Every step is a new revision of the routes in the ledger; gateways follow within a third of a second.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.commands.errors import CommandError
from tidegate.commands.ledger_connection import LedgerOption, opened_ledger
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.commands.running import find_stack
from tidegate.console import note, out, print_json

if TYPE_CHECKING:
    from contracts.stack import Stack
    from ledger.revisions import Revision

app = typer.Typer(help="Move a service's calls to another version by percent, and back at once.")

ServiceArgument = Annotated[
    str, typer.Argument(metavar="SERVICE", help="The name that clients ask for: chat.")
]
WhyOption = Annotated[str, typer.Option("--why", help="Kept in the history (default: what was done).")]


@app.command()
def start(
    service: ServiceArgument,
    to: Annotated[str, typer.Option("--to", metavar="VERSION", help="The new version's name.")],
    percent: Annotated[
        float, typer.Option("--percent", min=0, max=100, help="Its share of the calls.")
    ] = 5.0,
    model: Annotated[
        str | None, typer.Option("--model", help="Triton's model of it (default: the version's name).")
    ] = None,
    why: WhyOption = "",
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a new version its first calls. The version before keeps the rest, and its weights stay in memory."""
    from gateway import rollout

    found = _change(
        service,
        lambda routes: rollout.start(routes, service, to, percent, model),
        why or f"{service}: rollout to {to} at {percent:g} %",
        ledger_url,
        run_dir,
    )
    _pin_previous(found["previous_model"], run_dir)
    _print_status(found, as_json)


@app.command("set-percent")
def set_percent(
    service: ServiceArgument,
    percent: Annotated[float, typer.Argument(metavar="PERCENT", min=0, max=100)],
    why: WhyOption = "",
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the new version's share. A session that has begun stays where it is while that has any share."""
    from gateway import rollout

    change = _change(
        service,
        lambda routes: rollout.set_percent(routes, service, percent),
        why or f"{service}: rollout at {percent:g} %",
        ledger_url,
        run_dir,
    )
    _print_status(change, as_json)


@app.command()
def promote(
    service: ServiceArgument,
    why: WhyOption = "",
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """All calls to the new version. The previous one stays, at 0 %: `rollback` still works."""
    from gateway import rollout

    why = why or f"{service}: promoted"
    change = _change(service, lambda routes: rollout.promote(routes, service), why, ledger_url, run_dir)
    _print_status(change, as_json)


@app.command()
def rollback(
    service: ServiceArgument,
    why: WhyOption = "",
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """All new calls to the previous version, within a second. Answers that run are finished where they are."""
    from gateway import rollout

    why = why or f"{service}: rolled back"
    change = _change(service, lambda routes: rollout.roll_back(routes, service), why, ledger_url, run_dir)
    _print_status(change, as_json)


@app.command()
def finish(
    service: ServiceArgument,
    why: WhyOption = "",
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop the versions that have no share: their models need not be served any more, and there is no way back."""
    from gateway import rollout

    why = why or f"{service}: finished"
    change = _change(service, lambda routes: rollout.finish(routes, service), why, ledger_url, run_dir)
    _print_status(change, as_json)


@app.command()
def status(
    service: ServiceArgument,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Which version has what share now."""
    from gateway.route_table import KIND

    with opened_ledger(ledger_url, run_dir) as store:
        from ledger.revisions import RevisionStore

        latest = RevisionStore(store).latest(KIND)
    _check_known(service, latest, run_dir)
    _print_status(_status_of(service, latest), as_json)


@app.command()
def history(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Newest first.")] = 20,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every revision of the routes: when, who, why."""
    from gateway.route_table import KIND

    with opened_ledger(ledger_url, run_dir) as store:
        from ledger.revisions import RevisionStore

        revisions = RevisionStore(store).history(KIND, limit=limit)
    if as_json:
        keys = ("number", "made_unix_s", "who", "why", "text")
        print_json({"revisions": [{key: getattr(one, key) for key in keys} for one in revisions]})
        return
    for one in revisions:
        when = datetime.fromtimestamp(one.made_unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
        print(f"{one.number:>5}  {when}  {one.who}  {one.why}")
    if not revisions:
        print("no revision yet: every served model is a service of its own")


def _change(
    service: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    why: str,
    ledger_url: str | None,
    run_dir: Path | None,
) -> dict[str, Any]:
    """The status after it. Raises CommandError; then nothing has changed."""
    from gateway import rollout
    from gateway.route_table import KIND
    from gateway.routes import Routes, RoutesInvalid
    from ledger.revisions import RevisionStore

    with opened_ledger(ledger_url, run_dir) as store:
        revisions = RevisionStore(store)
        latest = revisions.latest(KIND)
        try:
            after = change(rollout.read(latest.text if latest else ""))
            Routes.check(after, _served(after, run_dir))
        except rollout.RolloutRefused as exc:
            raise CommandError(str(exc)) from exc
        except RoutesInvalid as exc:
            raise CommandError("\n".join(exc.problems)) from exc
        expected = latest.number if latest else 0
        revisions.put(KIND, rollout.write(after), getpass.getuser(), why=why, expected=expected)
        return _status_of(service, revisions.latest(KIND))


def _served(routes: dict[str, Any], run_dir: Path | None) -> set[str]:
    """The running stack's models; without one here every name is taken, and the gateways refuse what they lack."""
    stack = find_stack(run_dir)
    if stack is not None and stack.gateway_http:
        return _models_of(stack)
    note("no gateway runs here: whether the models are served is for the gateways to see")
    return AnyName()


def _models_of(stack: Stack) -> set[str]:
    """Those that Triton serves alone too. Raises CommandError."""
    from gateway.config import ConfigError
    from tidegate.routes_status import served_models

    try:
        return served_models(stack)
    except ConfigError as exc:
        raise CommandError(str(exc)) from exc


class AnyName(set[str]):
    def __contains__(self, name: object) -> bool:
        return True


def _check_known(service: str, latest: Revision | None, run_dir: Path | None) -> None:
    """Raises CommandError for a service that neither the routes nor the running stack know."""
    from gateway import rollout

    named = rollout.read(latest.text if latest else "").get("services") or {}
    stack = find_stack(run_dir)
    served = _models_of(stack) if stack is not None and stack.gateway_http else set[str]()
    if service not in named and service not in served:
        known = ", ".join(sorted({*named, *served})) or "none"
        where = "" if stack is not None else "; no stack runs here, so served models are not known"
        raise CommandError(f"no service {service!r}; there are: {known}{where}")


def _status_of(service: str, latest: Revision | None) -> dict[str, Any]:
    from gateway import rollout
    from gateway.routes import Routes

    document = rollout.read(latest.text if latest else "")
    route = Routes.check(document, AnyName()).of(service)
    found = rollout.status(document, service)
    models = {version.name: version.model_name for version in route.versions}
    return found | {
        "revision": latest.number if latest else 0,
        "versions": {version.name: version.percent for version in route.versions},
        "previous_model": models.get(found["previous"] or ""),
    }


def _print_status(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    shares = ", ".join(f"{name} {percent:g} %" for name, percent in found["versions"].items())
    print(f"{found['service']}: {shares} (revision {found['revision']})")
    if found["previous"] is not None:
        out().print(
            f"rollout from {found['previous']} to {found['next']} at {found['percent']:g} %", markup=False
        )


def _pin_previous(model: str | None, run_dir: Path | None) -> None:
    """A rollback must not wait for a load: the previous version's weights stay in the pool."""
    from scaler.errors import ScaleError
    from tidegate.rollout_pins import pin

    stack = find_stack(run_dir)
    if stack is None or not stack.node_socket or model is None:
        return
    try:
        import asyncio

        asyncio.run(pin(stack.node_socket, {model}))
    except ScaleError as exc:
        note(f"the weights of {model} could not be pinned ({exc}); a rollback may have to load them")
