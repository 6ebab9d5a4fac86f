"""`tidegate calls ...`: what was asked of the gateway, by whom, and how it went."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.errors import BadOption, CommandError
from tidegate.commands.ledger_connection import LedgerOption, opened_ledger
from tidegate.commands.moments import parse_moment
from tidegate.commands.options import JsonOption, RunDirOption
from tidegate.console import note, out, print_json, print_table

if TYPE_CHECKING:
    from ledger.call_query import CallFilter
    from ledger.export import Format

app = typer.Typer(
    help="Look into the log of calls: one row per attempt to answer a request.",
    epilog="Times: 2h (ago), 2026-12-01, 2026-12-01T18:00, 2026-12-01T17:00Z. Without a zone: our clock.",
)


class OutcomeChoice(StrEnum):
    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class OrderChoice(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"
    SLOWEST = "slowest"


class FormatChoice(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


SinceOption = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Started then or later.")]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Started before.")]
ServiceOption = Annotated[str | None, typer.Option("--service", metavar="NAME")]
VersionOption = Annotated[str | None, typer.Option("--version", metavar="NAME", help="Of the service.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", metavar="NAME")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="ID", help="The key's public id.")]
TraceOption = Annotated[str | None, typer.Option("--trace", metavar="ID", help="32 hexadecimal digits.")]
OutcomeOption = Annotated[OutcomeChoice | None, typer.Option("--outcome")]
ErrorsOption = Annotated[bool, typer.Option("--errors", help="Failed calls only: --outcome error.")]
ShadowOption = Annotated[
    bool | None, typer.Option("--shadow/--no-shadow", help="Only, or no, copies that answered nobody.")
]


@app.callback(invoke_without_command=True)
def calls(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


@app.command()
def query(
    since: SinceOption = None,
    until: UntilOption = None,
    service: ServiceOption = None,
    version: VersionOption = None,
    tenant: TenantOption = None,
    key: KeyOption = None,
    trace: TraceOption = None,
    outcome: OutcomeOption = None,
    errors: ErrorsOption = False,
    shadow: ShadowOption = None,
    order: Annotated[OrderChoice, typer.Option("--order", help="Which come first.")] = OrderChoice.NEWEST,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Calls on a page.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="PLACE", help="The page that follows PLACE.")
    ] = None,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List calls, newest first.

    Examples: `tidegate calls query --since 2h --errors --service chat`, `... --order slowest --limit 10`.
    """
    from ledger.call_query import find
    from tidegate.commands.calls_text import call_values, calls_table

    wanted = _filter(since, until, service, version, tenant, key, trace, outcome, errors, shadow)
    with opened_ledger(ledger_url, run_dir) as store:
        page = find(store, wanted, order=order.value, limit=limit, after=after)
    if as_json:
        print_json({"calls": [call_values(row) for row in page.calls], "next": page.next})
        return
    if not page.calls:
        note("no such calls")
        return
    print_table(out(), calls_table(page.calls))
    if page.next is not None:
        note(f"more: --after {page.next}")


@app.command()
def show(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="The x-request-id of an answer.")],
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything that is known about one request: each attempt, where it went and why."""
    from ledger.call_query import attempts
    from tidegate.commands.calls_text import call_details, call_values

    with opened_ledger(ledger_url, run_dir) as store:
        found = attempts(store, request_id)
    if not found:
        raise CommandError(
            f"no call has the request id {request_id!r}; it may be deleted by now, or not be written yet "
            "(that takes a fraction of a second)"
        )
    if as_json:
        print_json({"request_id": request_id, "attempts": [call_values(row) for row in found]})
        return
    for row in found:
        out().print(call_details(row))


@app.command()
def summary(
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="FIELDS",
            help="service, version, model, tenant, key_id, outcome, error_code, hour, day, ...; several by commas.",
        ),
    ] = "service,version",
    since: SinceOption = "24h",
    until: UntilOption = None,
    service: ServiceOption = None,
    version: VersionOption = None,
    tenant: TenantOption = None,
    key: KeyOption = None,
    outcome: OutcomeOption = None,
    errors: ErrorsOption = False,
    shadow: ShadowOption = False,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count calls, errors and tokens, with percentiles of time to first token and of duration.

    Shadow copies are left out unless --shadow asks for them alone.
    """
    import msgspec

    from ledger.call_summary import summarize
    from tidegate.commands.calls_text import print_summary

    groups = [name.strip() for name in by.split(",") if name.strip()]
    wanted = _filter(since, until, service, version, tenant, key, None, outcome, errors, shadow)
    with opened_ledger(ledger_url, run_dir) as store:
        found = summarize(store, wanted, groups)
    if as_json:
        print_json({"by": groups, "groups": [msgspec.to_builtins(each) for each in found]})
    elif found:
        print_summary(out(), groups, found)
    else:
        note("no such calls")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="- is standard output, for csv and jsonl.")],
    file_format: Annotated[
        FormatChoice | None, typer.Option("--format", help="Default: by the file's ending.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    service: ServiceOption = None,
    version: VersionOption = None,
    tenant: TenantOption = None,
    key: KeyOption = None,
    trace: TraceOption = None,
    outcome: OutcomeOption = None,
    errors: ErrorsOption = False,
    shadow: ShadowOption = None,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write calls to a file, oldest first. An old file of that name is replaced when all is written."""
    from ledger.export import export as export_to
    from ledger.export import export_file

    choice = file_format or _format_of(file)
    chosen: Format = choice.value
    wanted = _filter(since, until, service, version, tenant, key, trace, outcome, errors, shadow)
    with opened_ledger(ledger_url, run_dir) as store:
        if str(file) == "-":
            if chosen == "parquet":
                raise BadOption("Parquet goes to a file only; name one")
            export_to(store, wanted, sys.stdout.buffer, chosen)
            return
        num_calls = export_file(store, wanted, file, chosen)
    if as_json:
        print_json({"file": str(file), "format": chosen, "num_calls": num_calls})
    else:
        print(f"{num_calls:,} calls in {file}")


def _filter(
    since: str | None,
    until: str | None,
    service: str | None,
    version: str | None,
    tenant: str | None,
    key: str | None,
    trace: str | None,
    outcome: OutcomeChoice | None,
    errors: bool,
    shadow: bool | None,
) -> CallFilter:
    from ledger.call_query import CallFilter

    if errors and outcome not in (None, OutcomeChoice.ERROR):
        raise BadOption(f"--errors and --outcome {outcome} exclude each other")
    now = time.time()
    return CallFilter(
        since_unix_s=None if since is None else parse_moment("--since", since, now),
        until_unix_s=None if until is None else parse_moment("--until", until, now),
        service=service,
        version=version,
        tenant=tenant,
        key_id=key,
        trace_id=trace,
        outcome="error" if errors else outcome,
        is_shadow=shadow,
    )


def _format_of(file: Path) -> FormatChoice:
    try:
        return FormatChoice(file.suffix.removeprefix("."))
    except ValueError as exc:
        raise BadOption(f"{file}: which format? Say --format csv, jsonl or parquet") from exc
