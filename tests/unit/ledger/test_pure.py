"""What needs no database: percentiles, keys' texts, times as people write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from ledger.call_summary import Percentiles, percentiles
from ledger.errors import KeyFieldInvalid, UrlInvalid
from ledger.keys import KeyStore, parse_key
from ledger.store import Store
from tests.unit.ledger.rows import NOON
from tidegate.commands.errors import BadOption
from tidegate.commands.moments import parse_moment


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], None),
        ([0.5], Percentiles(0.5, 0.5, 0.5)),
        ([2.0, 1.0], Percentiles(1.0, 2.0, 2.0)),
        ([float(n) for n in range(20, 0, -1)], Percentiles(10.0, 19.0, 20.0)),
        ([float(n) for n in range(1, 101)], Percentiles(50.0, 95.0, 99.0)),
    ],
    ids=["none", "one", "two", "twenty", "hundred"],
)
def test_percentiles_are_of_the_nearest_rank(times: list[float], expected: Percentiles | None) -> None:
    """p95 of 20 times is the 19th."""
    assert percentiles(times) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tg_",
        "sk-123",
        "tg_0123456789abcdef_short",
        f"tg_0123456789ABCDEF_{'a' * 43}",
        f"tg_{'0' * 16}_{'a' * 44}",
        f"tg_{'0' * 16}_{'a' * 43}\n",
    ],
)
def test_what_is_no_key_is_not_looked_up(text: str) -> None:
    """The form is exact, a line feed at the end included."""
    assert parse_key(text) is None


def test_a_key_is_parsed_into_its_id_and_its_secret() -> None:
    """The secret may hold an underscore."""
    assert parse_key(f"tg_{'0' * 16}_{'_' * 43}") == ("0" * 16, "_" * 43)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"roles": ()}, r"roles = \[\], must be one or more of admin, infer, metrics"),
        ({"roles": ("root",)}, r"roles = \['root'\]"),
        ({"tenant": ""}, "tenant = ''"),
        ({"name": "line\nfeed"}, r"name = 'line\\nfeed'"),
        ({"services": ()}, "could use nothing"),
        ({"expires_unix_s": NOON}, "would have expired before it is made"),
    ],
    ids=["no role", "unknown role", "no tenant", "odd name", "no service", "expired"],
)
def test_a_key_that_would_make_no_sense_is_not_made(fields: dict[str, object], words: str) -> None:
    """Refused before the database is asked."""
    keys = KeyStore(None)  # type: ignore[arg-type]
    with pytest.raises(KeyFieldInvalid, match=words):
        keys.create(**{"tenant": "acme", "name": "ci", "now": NOON, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ledger.db", "can't be read; write sqlite:////"),
        ("sqlite://", "in memory would be gone"),
        ("sqlite:///:memory:", "in memory would be gone"),
        ("mysql://user:secret@host/name", "mysql: a ledger lives in sqlite or postgresql"),
    ],
)
def test_a_url_that_names_no_ledger_is_refused_without_its_password(url: str, words: str) -> None:
    """In words, before anything is opened."""
    with pytest.raises(UrlInvalid, match=words) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("2h", NOON - 7200),
        ("90s", NOON - 90),
        ("2025-12-01T11:00Z", NOON - 3600),
        ("2025-12-01T13:00:00+01:00", NOON),
        ("2025-12-01", datetime(2025, 12, 1).timestamp()),
    ],
)
def test_moments_are_spans_ago_or_dates(text: str, unix_s: float) -> None:
    """From noon of 2025-12-01, UTC."""
    assert parse_moment("--since", text, NOON) == unix_s


def test_what_is_no_moment_says_how_to_write_one() -> None:
    """Words are none."""
    with pytest.raises(BadOption, match="--since = 'yesterday' is no time; write 2h for two hours ago"):
        parse_moment("--since", "yesterday", NOON)
