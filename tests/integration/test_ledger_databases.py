"""The stores on SQLite and on a real PostgreSQL: the same cases on both."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from ledger import schema
from ledger.call_query import CallFilter, Order, find
from ledger.call_summary import Percentiles, Summary, summarize
from ledger.calls import FIELDS, CallRow
from ledger.errors import KeyUnknown, KeyUnusable, LedgerUnreadable, RevisionMoved
from ledger.files import FileStore
from ledger.keys import KeyStore, parse_key
from ledger.retention import delete_some
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url
from ledger.writer import CallWriter
from tests.integration.postgres import running_postgres
from tests.unit.ledger.rows import NOON, call

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], str]]:
    """Each call names an empty database."""
    if request.param == "sqlite":
        yield lambda: sqlite_url(tmp_path_factory.mktemp("ledger") / "ledger.db")
    else:
        with running_postgres() as postgres:
            yield postgres.new_database


@pytest.fixture
def store(new_url: Callable[[], str]) -> Iterator[Store]:
    opened = Store.open(new_url())
    yield opened
    opened.close()


def num_calls(store: Store) -> int:
    with store.read() as connection:
        return connection.execute(select(func.count()).select_from(schema.calls)).scalar_one()


# --- opening ---


def test_a_ledger_is_found_again_when_opened_again(new_url: Callable[[], str]) -> None:
    """One key, made before the first store is closed."""
    url = new_url()
    first = Store.open(url)
    row, _ = KeyStore(first).create(tenant="acme", name="ci")
    first.close()
    second = Store.open(url)
    assert KeyStore(second).find(row.key_id) == row
    second.close()


@pytest.mark.parametrize(("found", "way_out"), [(99, "use the newer tidegate"), (0, "move it away")])
def test_another_version_is_refused_and_left_as_it_is(store: Store, found: int, way_out: str) -> None:
    """Versions 99 and 0 where 2 is needed: both numbers and a way out are said, and the keys stay."""
    KeyStore(store).create(tenant="acme", name="ci")
    with store.write() as connection:
        connection.execute(update(schema.version).values(version=found))
    with pytest.raises(
        LedgerUnreadable, match=f"of version {found}, this tidegate needs version 2; {way_out}"
    ):
        Store.open(store._engine.url.render_as_string(hide_password=False))
    assert len(KeyStore(store).list()) == 1


def test_a_ledger_without_files_and_batches_gets_their_tables(store: Store) -> None:
    """Version 1 had none; its keys stay as they are."""
    KeyStore(store).create(tenant="acme", name="ci")
    with store.write() as connection:
        for table in (schema.files, schema.batches, schema.batch_lines):
            table.drop(connection)
        connection.execute(update(schema.version).values(version=1))
    again = Store.open(store._engine.url.render_as_string(hide_password=False))
    assert len(KeyStore(again).list()) == 1
    assert FileStore(again, 100).add("acme", "a", "batch", b"x").num_bytes == 1
    again.close()


def test_half_a_ledger_is_refused(store: Store) -> None:
    """The version's table is gone: nothing is made anew over what is there."""
    with store.write() as connection:
        schema.version.drop(connection)
    with pytest.raises(LedgerUnreadable, match="no tidegate_schema, so it is not a whole ledger"):
        Store.open(store._engine.url.render_as_string(hide_password=False))


def test_gateways_that_start_together_make_the_tables_once(new_url: Callable[[], str]) -> None:
    """Four threads open one empty database."""
    url, opened, failed = new_url(), [], []

    def open_it() -> None:
        try:
            opened.append(Store.open(url))
        except Exception as exc:
            failed.append(exc)

    _in_threads(4, open_it)
    assert not failed
    with opened[0].read() as connection:
        assert connection.execute(select(func.count()).select_from(schema.version)).scalar() == 1
    for each in opened:
        each.close()


# --- keys ---


def test_a_key_comes_back_as_it_was_made(store: Store) -> None:
    """Roles, services, limits and expiry survive the database; the secret is nowhere in the row."""
    row, text = KeyStore(store).create(
        tenant="acme",
        name="nightly batch",
        roles=("infer", "metrics"),
        services=("chat", "embed"),
        limits={"requests_per_min": 60, "tokens_per_day": 2_000_000},
        expires_unix_s=NOON + 60,
        who="maria",
        now=NOON,
    )
    assert KeyStore(store).find(row.key_id) == row
    key_id, secret = parse_key(text) or ("", "")
    assert key_id == row.key_id
    assert secret not in repr(row)
    assert row.secret_hash not in repr(row)
    assert row.has_secret(secret, NOON)
    assert (row.is_usable(NOON), row.is_usable(NOON + 60)) == (True, False)


def test_after_a_rotation_the_old_secret_serves_for_the_overlap(store: Store) -> None:
    """Overlap 60 s: at 59 s both secrets are good, at 60 s the new one alone. The key's id stays."""
    keys = KeyStore(store)
    made, old = keys.create(tenant="acme", name="ci", now=NOON)
    row, new = keys.rotate(made.key_id, overlap_s=60, now=NOON)
    assert row.key_id == made.key_id
    old_secret, new_secret = (
        (parse_key(text) or ("", ""))[1] if (text := old) else "",
        (parse_key(new) or ("", ""))[1],
    )
    assert [row.has_secret(old_secret, NOON + at) for at in (0, 59, 60)] == [True, True, False]
    assert [row.has_secret(new_secret, NOON + at) for at in (0, 59, 60)] == [True, True, True]


def test_a_second_rotation_ends_the_first_secret_at_once(store: Store) -> None:
    """Two rotations within the overlap: the secret from before both is dead."""
    keys = KeyStore(store)
    made, first = keys.create(tenant="acme", name="ci", now=NOON)
    keys.rotate(made.key_id, now=NOON)
    row, _ = keys.rotate(made.key_id, now=NOON + 1)
    assert not row.has_secret((parse_key(first) or ("", ""))[1], NOON + 2)


def test_rotations_at_the_same_time_follow_one_another(store: Store) -> None:
    """4 threads, 3 rotations each: every one has the secret of another, or the first, as its previous."""
    keys, rotated = KeyStore(store), []
    made, _ = keys.create(tenant="acme", name="ci")
    _in_threads(4, lambda: rotated.extend(keys.rotate(made.key_id)[0] for _ in range(3)))
    assert len({row.previous_hash for row in rotated}) == 12
    assert {made.secret_hash, *(row.secret_hash for row in rotated)} > {row.previous_hash for row in rotated}
    assert keys.changed() == 13


def test_a_revoked_key_stays_revoked_and_can_not_be_rotated(store: Store) -> None:
    """Revoked twice: the first time counts, and by whom."""
    keys = KeyStore(store)
    made, _ = keys.create(tenant="acme", name="ci", now=NOON)
    keys.revoke(made.key_id, who="maria", now=NOON + 1)
    row = keys.revoke(made.key_id, who="jan", now=NOON + 2)
    assert (row.revoked_unix_s, row.revoked_by) == (NOON + 1, "maria")
    assert not row.is_usable(NOON + 1)
    with pytest.raises(KeyUnusable, match="is revoked"):
        keys.rotate(made.key_id, now=NOON + 3)
    with pytest.raises(KeyUnknown, match="no key has the id 'nobody'"):
        keys.revoke("nobody")


def test_every_change_of_a_key_moves_the_counter_and_nothing_else_does(store: Store) -> None:
    """Create, rotate, revoke: 1, 2, 3. A second revoke and a look: still 3."""
    keys = KeyStore(store)
    assert keys.changed() == 0
    made, _ = keys.create(tenant="acme", name="ci")
    keys.rotate(made.key_id)
    keys.revoke(made.key_id)
    keys.revoke(made.key_id)
    assert keys.changed() == 3
    assert keys.snapshot() == (3, keys.list(tenant="acme"))
    assert keys.list(tenant="other") == ()


# --- revisions ---


def test_of_two_operators_who_saw_the_same_revision_one_is_refused(store: Store) -> None:
    """Both saw 1; the second's text is not taken and leaves no gap in the numbers."""
    revisions = RevisionStore(store)
    assert revisions.put("routes", "one", "maria", expected=0, now=NOON) == 1
    assert revisions.put("routes", "two", "maria", expected=1, now=NOON) == 2
    with pytest.raises(RevisionMoved, match="revision 2 of routes is in force, not 1"):
        revisions.put("routes", "other", "jan", expected=1)
    assert revisions.put("routes", "three", "jan", why="more for b", now=NOON + 1) == 3
    latest = revisions.latest("routes")
    assert latest is not None
    assert (latest.number, latest.who, latest.why, latest.text) == (3, "jan", "more for b", "three")
    assert [each.text for each in revisions.history("routes", limit=2)] == ["three", "two"]
    assert [each.text for each in revisions.history("routes", before=2)] == ["one"]
    assert revisions.at("routes", 1) == revisions.history("routes")[-1]
    assert (revisions.latest("rollout"), revisions.latest_number("rollout"), revisions.at("routes", 9)) == (
        None,
        0,
        None,
    )


def test_puts_at_the_same_time_get_one_number_each(store: Store) -> None:
    """4 threads, 5 puts each: the numbers 1 to 20. Of 4 that expect 20 one alone is taken."""
    revisions, taken, refused = RevisionStore(store), [], []

    def put_five() -> None:
        taken.extend(revisions.put("routes", "text", "one of four") for _ in range(5))

    def put_expecting() -> None:
        try:
            revisions.put("routes", "text", "one of four", expected=20)
        except RevisionMoved as exc:
            refused.append(exc)

    _in_threads(4, put_five)
    assert sorted(taken) == list(range(1, 21))
    _in_threads(4, put_expecting)
    assert len(refused) == 3
    assert [each.number for each in revisions.history("routes")] == list(range(21, 0, -1))


async def test_who_waits_for_a_revision_gets_it(store: Store) -> None:
    """Put before the wait begins: it returns without a poll."""
    revisions = RevisionStore(store)
    revisions.put("routes", "text", "maria")
    found = await revisions.wait("routes", 0, poll_s=3600)
    assert found.number == 1


# --- calls ---


def test_a_call_comes_back_as_it_was_put(store: Store) -> None:
    """Every field set, a prompt too, beside a row of defaults."""
    full = call(
        1,
        attempt=2,
        door="grpc",
        operation="stream_infer",
        key_id="k",
        tenant="acme",
        version="v2",
        model="chat-v2",
        why="split 5 %",
        endpoint="10.0.0.7:8001",
        instance="chat_0_1",
        revision=7,
        outcome="error",
        status=14,
        error_code="upstream",
        error="Übertragung brach ab",
        finish_reason="length",
        prompt_tokens=5_012,
        cached_tokens=4_096,
        output_tokens=0,
        ttft_s=0.25,
        queue_s=0.0,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        is_stream=True,
        is_shadow=True,
        context="truncated 5,012 → 4,000 tokens",
        prompt="Wie hoch ist die Flut?",
    )
    with CallWriter(store) as writer:
        writer.put(full)
        writer.put(call(2))
    table = schema.calls
    with store.read() as connection:
        rows = connection.execute(
            select(*(table.c[name] for name in FIELDS)).order_by(table.c.started_unix_s)
        )
        assert [type(full)(**row._mapping) for row in rows] == [full, call(2)]


_odd = st.one_of(
    st.text(st.characters(), max_size=50),
    st.floats(),
    st.integers(),
    st.sampled_from(["\0", "\ud800", "x" * 5_000, "'; DROP TABLE tidegate_calls; --"]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=_odd, number=st.one_of(st.floats(), st.integers()), count=st.one_of(st.none(), st.integers()))
@example(text="\0", number=math.nan, count=2**70)
@example(text="\ud800", number=math.inf, count=-1)
def test_no_row_is_too_odd_for_the_database(
    store: Store, text: object, number: float, count: int | None
) -> None:
    """NUL, half a surrogate, NaN, 2**70, a number for a text: each row is there, and so is the one beside it."""
    before = num_calls(store)
    odd = call(
        0,
        request_id=text,
        error=text,
        prompt=str(text),
        duration_s=number,
        ttft_s=number,
        prompt_tokens=count,
        revision=count or 0,
    )
    with CallWriter(store) as writer:
        writer.put(odd)
        writer.put(call(1))
    assert writer.stats().num_refused == 0
    assert num_calls(store) - before == 2


def test_a_row_that_is_refused_does_not_take_its_batch_along(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that lost what the table needs, between two good ones: two are written, one is counted and said."""
    bad = call(1)
    object.__setattr__(bad, "revision", None)
    with CallWriter(store, flush_s=3600) as writer:
        for row in (call(0), bad, call(2)):
            writer.put(row)
    stats = writer.stats()
    assert (stats.num_written, stats.num_refused, num_calls(store)) == (2, 1, 2)
    assert "a row is not taken" in caplog.text


def test_a_batch_whose_commit_was_not_answered_is_written_once(store: Store) -> None:
    """The same batch under the same number again: its rows are there once."""
    writer = CallWriter(store, flush_s=3600)
    writer._batch_number = 1
    writer._write([call(1), call(2)])
    writer._write([call(1), call(2)])
    assert num_calls(store) == 2
    writer.close()


@pytest.mark.parametrize("order", ["newest", "oldest", "slowest"])
def test_every_call_is_on_one_page(store: Store, order: Order) -> None:
    """23 calls, four at a time equal in time and duration; pages of 5, and a call comes in between."""
    _put(
        store, [call(number // 4, request_id=f"{number}", duration_s=number // 4 / 7) for number in range(23)]
    )
    wanted, after, pages = CallFilter(until_unix_s=NOON + 100), None, []
    while True:
        page = find(store, wanted, order=order, limit=5, after=after)
        pages.append(page.calls)
        after = page.next
        if after is None:
            break
        _put(store, [call(100)])
    assert [len(page) for page in pages] == [5, 5, 5, 5, 3]
    found = [row for page in pages for row in page]
    assert len({row.request_id for row in found}) == 23
    numbers = [row.started_unix_s if order != "slowest" else row.duration_s for row in found]
    assert numbers == sorted(numbers, reverse=order != "oldest")


def test_a_summary_is_what_one_would_count(store: Store) -> None:
    """Two days, two outcomes, calls without a first token, and a service that nobody calls in that time."""
    day = 86400
    _put(
        store,
        [
            call(0, ttft_s=0.1, prompt_tokens=10, output_tokens=1, cached_tokens=4),
            call(1, ttft_s=0.3, prompt_tokens=20, duration_s=2.0),
            call(2, outcome="error", duration_s=1.0),
            call(day, outcome="refused", duration_s=0.0),
            call(day + 1, outcome="cancelled", service="embed"),
            call(9 * day, service="late"),
        ],
    )
    found = summarize(store, CallFilter(until_unix_s=NOON + 2 * day), ("service", "day"))
    midnight = NOON - day / 2
    assert [each.group for each in found] == [
        {"service": "chat", "day": midnight},
        {"service": "chat", "day": midnight + day},
        {"service": "embed", "day": midnight + day},
    ]
    assert found[0] == Summary(
        group={"service": "chat", "day": midnight},
        num_calls=3,
        num_errors=1,
        num_refused=0,
        num_cancelled=0,
        prompt_tokens=30,
        cached_tokens=4,
        output_tokens=1,
        ttft=Percentiles(0.1, 0.3, 0.3),
        duration=Percentiles(1.0, 2.0, 2.0),
    )
    assert (found[1].num_refused, found[1].ttft, found[2].num_cancelled) == (1, None, 1)
    (whole,) = summarize(store, CallFilter(), ())
    assert (whole.group, whole.num_calls) == ({}, 6)
    assert summarize(store, CallFilter(service="nobody"), ()) == ()


def test_old_calls_are_deleted_a_few_at_a_time(store: Store) -> None:
    """10 calls, those of the first 7 seconds are too old: 3, 3, 1, then none."""
    _put(store, [call(number) for number in range(10)])
    assert [delete_some(store, NOON + 7, num_rows=3) for _ in range(4)] == [3, 3, 1, 0]
    assert num_calls(store) == 3


def _put(store: Store, rows: list[CallRow]) -> None:
    with CallWriter(store) as writer:
        for row in rows:
            writer.put(row)


def _in_threads(number: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    """0600, the WAL beside it too: it holds prompts and tenants."""
    store = Store.open(sqlite_url(tmp_path / "new" / "ledger.db"))
    KeyStore(store).create(tenant="acme", name="ci")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    store.close()
