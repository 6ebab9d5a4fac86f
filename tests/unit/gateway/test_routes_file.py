"""routes.yaml as a way to make revisions, with a ledger that fails in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.route_table import KIND, RoutesFile
from ledger.errors import LedgerUnavailable
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url

TEXT = "services: {chat: {versions: [{name: chat, percent: 100}]}}"


@pytest.fixture
def revisions(tmp_path: Path) -> Iterator[RevisionStore]:
    store = Store.open(sqlite_url(tmp_path / "ledger.db"))
    yield RevisionStore(store)
    store.close()


def test_a_ledger_that_fails_between_the_files_revision_and_the_routes_loses_no_change(
    tmp_path: Path, revisions: RevisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of 5 s or a kill there, and the file's text counted as taken though no routes said so, for ever."""
    path = tmp_path / "routes.yaml"
    path.write_text(TEXT)
    file = RoutesFile(path, ["chat"], revisions)
    bump, num_calls = Store.bump, 0

    def failing(self: Store, connection: object, counter: str) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise LedgerUnavailable("database is locked")
        return bump(self, connection, counter)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "bump", failing)
    with pytest.raises(LedgerUnavailable):
        file.look()
    assert file.look() == 1
    latest = revisions.latest(KIND)
    assert latest is not None
    assert latest.text == TEXT
    assert file.look() is None
