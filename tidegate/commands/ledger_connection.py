"""Which ledger a command means, and opening it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.stack import default_run_dir
from tidegate.commands.errors import CommandError
from tidegate.commands.running import find_stack

if TYPE_CHECKING:
    from ledger.store import Store

LEDGER_VARIABLE = "TIDEGATE_LEDGER_URL"

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger-url",
        metavar="URL",
        help=f"sqlite:////path or postgresql://... (default: ${LEDGER_VARIABLE}, else the running stack's).",
    ),
]


def ledger_url_of(given: str | None, run_dir: Path | None) -> str:
    """The option, else the environment, else the running stack's, else what one has left. Raises CommandError."""
    from ledger.store import FILE_NAME, sqlite_url

    url = given or os.environ.get(LEDGER_VARIABLE)
    if url:
        return url
    stack = find_stack(run_dir)
    if stack is not None and stack.ledger_url:
        return stack.ledger_url
    left = (run_dir or default_run_dir()) / FILE_NAME
    if left.exists():
        return sqlite_url(left)
    raise CommandError(
        f"which ledger? No stack with a gateway runs here, and {left} is none: give --ledger-url or --run-dir, or "
        f"set {LEDGER_VARIABLE}"
    )


@contextlib.contextmanager
def opened_ledger(given: str | None, run_dir: Path | None) -> Iterator[Store]:
    """Raises CommandError, for what goes wrong inside the block too."""
    from ledger.errors import LedgerError
    from ledger.store import Store

    url = ledger_url_of(given, run_dir)
    try:
        store = Store.open(url)
        try:
            yield store
        finally:
            store.close()
    except LedgerError as exc:
        raise CommandError(str(exc)) from exc
