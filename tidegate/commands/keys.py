"""`tidegate keys create|list|revoke|rotate`. Gateways notice a change within a second, without a restart."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.commands.errors import BadOption
from tidegate.commands.ledger_connection import LedgerOption, opened_ledger
from tidegate.commands.options import JsonOption, RunDirOption, parse_counts, parse_duration
from tidegate.console import note, out, print_json, print_table

if TYPE_CHECKING:
    from ledger.keys import KeyRow

app = typer.Typer(help="API keys: make, list, revoke and rotate them.", no_args_is_help=False)

KeyArgument = Annotated[str, typer.Argument(metavar="ID", help="As `tidegate keys list` shows it.")]
_SECRET_FIELDS = frozenset({"secret_hash", "previous_hash"})


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose calls they are: a team, a product.")],
    name: Annotated[str, typer.Option("--name", help="What it is for.")] = "default",
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--role", help="infer (default), metrics, admin (Triton's management too); repeat for more."
        ),
    ] = None,
    services: Annotated[
        list[str] | None,
        typer.Option("--service", metavar="NAME", help="It may use only these (default: all); repeat."),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=N",
            help="requests_per_min, tokens_per_min, tokens_per_day, concurrent, max_context_tokens, "
            "max_output_tokens; repeat.",
        ),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", metavar="90d", help="Seconds, or 12h, 90d (default: never).")
    ] = None,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key. Its text is printed once, on standard output; the ledger has only its hash."""
    found = _checked_limits(limits or [])
    expires_unix_s = None if expires_in is None else time.time() + parse_duration("--expires-in", expires_in)
    with opened_ledger(ledger_url, run_dir) as store:
        from ledger.keys import KeyStore

        row, text = KeyStore(store).create(
            tenant=tenant,
            name=name,
            roles=roles or ["infer"],
            services=services,
            limits={key: float(value) for key, value in found.items()},
            expires_unix_s=expires_unix_s,
            who=getpass.getuser(),
        )
    _print_new(row, text, as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this one's.")] = None,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """All keys, revoked and expired ones too. Never their text."""
    with opened_ledger(ledger_url, run_dir) as store:
        from ledger.keys import KeyStore

        rows = KeyStore(store).list(tenant=tenant)
    if as_json:
        print_json({"keys": [_plain(row) for row in rows]})
    elif rows:
        _print(rows, time.time())
    else:
        print("no keys; `tidegate keys create TENANT` makes one")


@app.command()
def revoke(
    key_id: KeyArgument,
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a key for ever. Answers that run are finished."""
    with opened_ledger(ledger_url, run_dir) as store:
        from ledger.keys import KeyStore

        row = KeyStore(store).revoke(key_id, who=getpass.getuser())
    if as_json:
        print_json(_plain(row))
    else:
        print(f"{row.key_id} ({row.tenant}/{row.name}) is revoked")


@app.command()
def rotate(
    key_id: KeyArgument,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="24h", help="So long the text before stays good too.")
    ] = "24h",
    ledger_url: LedgerOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """A new text for the same key; the one before stays good for a while, so nobody is locked out."""
    overlap_s = parse_duration("--overlap", overlap)
    with opened_ledger(ledger_url, run_dir) as store:
        from ledger.keys import KeyStore

        row, text = KeyStore(store).rotate(key_id, overlap_s=overlap_s)
    _print_new(row, text, as_json)


def _checked_limits(texts: list[str]) -> dict[str, int]:
    """Raises BadOption with the names that exist."""
    import msgspec

    from gateway.principal import Limits

    found = parse_counts("--limit", texts, example="requests_per_min=600")
    for name in found:
        if name not in Limits.__struct_fields__:
            raise BadOption(f"--limit: no limit {name!r}; there are {', '.join(Limits.__struct_fields__)}")
    try:
        msgspec.convert(found, Limits)
    except (msgspec.ValidationError, ValueError) as exc:
        raise BadOption(f"--limit: {exc}") from exc
    return found


def _plain(row: KeyRow) -> dict[str, Any]:
    values = {
        field.name: getattr(row, field.name) for field in fields(row) if field.name not in _SECRET_FIELDS
    }
    return values | {
        "roles": sorted(row.roles),
        "services": None if row.services is None else sorted(row.services),
        "limits": dict(row.limits),
    }


def _print_new(row: KeyRow, text: str, as_json: bool) -> None:
    if as_json:
        print_json(_plain(row) | {"key": text})
        return
    note(f"key {row.key_id} for {row.tenant}/{row.name}; this is the only time that it is shown:")
    print(text)


def _state(row: KeyRow, now: float) -> str:
    if row.revoked_unix_s is not None:
        return "revoked"
    if not row.is_usable(now):
        return "expired"
    return "good" if row.expires_unix_s is None else f"{(row.expires_unix_s - now) / 86400:.1f} days left"


def _overlap(row: KeyRow, now: float) -> str:
    """Until when the text before the last rotation is good too."""
    if (
        row.previous_until_unix_s is None
        or row.previous_until_unix_s <= now
        or row.revoked_unix_s is not None
    ):
        return "-"
    return datetime.fromtimestamp(row.previous_until_unix_s).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _print(rows: Sequence[KeyRow], now: float) -> None:
    from rich.table import Table

    titles = ("ID", "TENANT", "NAME", "STATE", "OLD TEXT UNTIL", "ROLES", "SERVICES", "LIMITS")
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(
            row.key_id,
            row.tenant,
            row.name,
            _state(row, now),
            _overlap(row, now),
            " ".join(sorted(row.roles)),
            "all" if row.services is None else " ".join(sorted(row.services)),
            " ".join(f"{name}={value:g}" for name, value in sorted(row.limits.items())) or "none",
        )
    print_table(out(), table)
