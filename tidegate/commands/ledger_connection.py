"""Which ledger a command means, and opening it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    """The option, else the environment, else the running stack's. Raises CommandError."""
    url = given or os.environ.get(LEDGER_VARIABLE)
    if url:
        return url
    stack = find_stack(run_dir)
    if stack is None or not stack.ledger_url:
        raise CommandError(
            f"which ledger? No stack with a gateway runs here: give --ledger-url, or set {LEDGER_VARIABLE}"
        )
    return stack.ledger_url


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
