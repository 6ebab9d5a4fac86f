"""Working off batches: one answer a line, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.batch_runner import MAX_FAULTS, MAX_LINES_AT_ONCE, BatchRunner
from gateway.errors import KeyInvalid
from gateway.inner_calls import InnerAnswer
from gateway.principal import ANONYMOUS, Principal
from ledger.batches import BatchRow, BatchStore, LineRow
from ledger.files import FileStore
from ledger.store import Store, sqlite_url

CHAT = "/v1/chat/completions"
FAR = 4e9


class Rig:
    """Answers come from `reply`: body -> (status, seconds to wait before the next try)."""

    def __init__(self, store: Store) -> None:
        self.files, self.batches = FileStore(store, 10**6), BatchStore(store)
        self.asked: Counter[str] = Counter()
        self.slept: list[float] = []
        self.num_running = self.most_running = 0
        self.reply: Callable[[str], tuple[int, str]] = lambda text: (200, "")
        self.is_key_good = True

    def runner(self) -> BatchRunner:
        return BatchRunner(self.batches, self.files, self._find, self._ask, lambda: 1e9, self._sleep)

    def batch(self, *texts: str, expires_unix_s: float = FAR) -> BatchRow:
        lines = [
            json.dumps({"custom_id": text, "method": "POST", "url": CHAT, "body": {"text": text}})
            for text in texts
        ]
        file = self.files.add("acme", "in.jsonl", "batch", "\n".join(lines).encode())
        return self.batches.add(BatchRow("acme", "k1", CHAT, file.file_id, len(texts), expires_unix_s))

    def lines(self, file_id: str | None) -> list[dict[str, object]]:
        content = self.files.content("acme", file_id) if file_id else b""
        return [json.loads(line) for line in (content or b"").splitlines()]

    def now(self, batch: BatchRow) -> BatchRow:
        found = self.batches.get("acme", batch.batch_id)
        assert found is not None
        return found

    def _find(self, key_id: str, tenant: str) -> Principal:
        assert (key_id, tenant) == ("k1", "acme")
        if not self.is_key_good:
            raise KeyInvalid("not good any more")
        return ANONYMOUS

    async def _ask(self, batch: BatchRow, principal: Principal, request_id: str, body: bytes) -> InnerAnswer:
        text = json.loads(body)["text"]
        self.asked[text] += 1
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0)
        self.num_running -= 1
        status, after = self.reply(text)
        headers = {"x-request-id": request_id} | ({"retry-after": after} if after else {})
        return InnerAnswer(status, headers, json.dumps({"said": text}).encode())

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    store = Store.open(sqlite_url(tmp_path / "ledger.db"))
    yield Rig(store)
    store.close()


async def test_every_line_has_its_answer_in_the_order_of_the_file(rig: Rig) -> None:
    """A few at a time; the body is what the door said, word for word."""
    names = [f"line {number}" for number in range(20)]
    batch = rig.batch(*names)
    await rig.runner().run(batch, asyncio.Event())
    found = rig.now(batch)
    assert (found.status, found.num_completed, found.num_failed, found.error_file_id) == (
        "completed",
        20,
        0,
        None,
    )
    lines = rig.lines(found.output_file_id)
    assert [line["custom_id"] for line in lines] == names
    assert lines[3]["response"] == {
        "status_code": 200,
        "request_id": f"{batch.batch_id}-3",
        "body": {"said": "line 3"},
    }
    assert 1 < rig.most_running <= MAX_LINES_AT_ONCE


async def test_what_is_wrong_with_a_line_is_its_answer_and_no_other_ones(rig: Rig) -> None:
    """In the error file, with status and body."""
    rig.reply = lambda text: (400 if text == "bad" else 200, "")
    batch = rig.batch("a", "bad", "c")
    await rig.runner().run(batch, asyncio.Event())
    found = rig.now(batch)
    assert (found.num_completed, found.num_failed) == (2, 1)
    (error,) = rig.lines(found.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("bad", 400)  # type: ignore[index]


async def test_a_limit_is_waited_for(rig: Rig) -> None:
    """As long as it says, and as often as it takes."""
    rig.reply = lambda text: (429, "7") if rig.asked[text] < 5 else (200, "")
    batch = rig.batch("a")
    await rig.runner().run(batch, asyncio.Event())
    assert rig.now(batch).num_completed == 1
    assert rig.slept == [7, 7, 7, 8]


async def test_a_fault_is_tried_again_and_then_told(rig: Rig) -> None:
    """A worker that died is no reason; one that dies each time is."""
    rig.reply = lambda text: (500, "") if text == "always" or rig.asked[text] < MAX_FAULTS else (200, "")
    batch = rig.batch("always", "twice")
    await rig.runner().run(batch, asyncio.Event())
    found = rig.now(batch)
    assert [line["custom_id"] for line in rig.lines(found.output_file_id)] == ["twice"]
    assert [line["custom_id"] for line in rig.lines(found.error_file_id)] == ["always"]
    assert rig.asked == {"always": MAX_FAULTS, "twice": MAX_FAULTS}


async def test_a_runner_that_is_cut_off_leaves_the_rest_to_the_next_one(rig: Rig) -> None:
    """What has its answer is not asked again, and nothing has two answers."""
    blocked = asyncio.Event()
    names = [f"line {number}" for number in range(12)]
    batch = rig.batch(*names)
    first = rig.runner()
    plain = first._ask

    async def ask(*args: object) -> InnerAnswer:
        if sum(rig.asked.values()) >= 6:
            await blocked.wait()
        return await plain(*args)  # type: ignore[arg-type]

    first._ask = ask  # type: ignore[assignment]
    cut = asyncio.create_task(first.run(batch, asyncio.Event()))
    async with asyncio.timeout(10):
        while len(rig.batches.answered(batch.batch_id)) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    assert rig.now(batch).status == "in_progress"
    # An answer that came while the first runner was cut off stays as it is.
    rig.batches.put(batch.batch_id, [LineRow(0, is_error=True, text="another")])
    await rig.runner().run(rig.now(batch), asyncio.Event())
    assert [line["custom_id"] for line in rig.lines(rig.now(batch).output_file_id)] == names
    assert set(rig.asked.values()) == {1}


async def test_cancelled_and_expired_batches_answer_what_is_left_too(rig: Rig) -> None:
    """One answer a line, in one of the two files."""
    is_cancelled = asyncio.Event()

    def reply(text: str) -> tuple[int, str]:
        if text == "3":
            is_cancelled.set()
        return (200, "") if text < "4" else (429, "")

    rig.reply = reply
    batch = rig.batch(*"0123456789")
    await rig.runner().run(batch, is_cancelled)
    found = rig.now(batch)
    done, left = rig.lines(found.output_file_id), rig.lines(found.error_file_id)
    assert found.status == "cancelled"
    assert sorted(str(line["custom_id"]) for line in [*done, *left]) == list("0123456789")
    assert {line["error"]["code"] for line in left} == {"batch_cancelled"}  # type: ignore[index]
    late = rig.batch("4", expires_unix_s=1e9)
    await rig.runner().run(late, asyncio.Event())
    (only,) = rig.lines(rig.now(late).error_file_id)
    assert (rig.now(late).status, only["error"]["code"]) == ("expired", "batch_expired")  # type: ignore[index]


async def test_a_key_that_was_revoked_asks_nothing_more(rig: Rig) -> None:
    """Its lines say why."""
    rig.is_key_good = False
    batch = rig.batch("a", "b")
    await rig.runner().run(batch, asyncio.Event())
    errors = rig.lines(rig.now(batch).error_file_id)
    assert [line["error"]["code"] for line in errors] == ["invalid_api_key"] * 2  # type: ignore[index]
    assert not rig.asked


def test_a_batch_has_one_owner_until_its_lease_is_over(rig: Rig) -> None:
    """Two gateways that look at once: one gets it. Who lost it hears so; the next one gets it after 30 s."""
    batch = rig.batch("a")
    first = rig.batches.claim("one", 100.0)
    assert first is not None
    assert first.batch_id == batch.batch_id
    assert rig.batches.claim("two", 129.0) is None
    assert rig.batches.claim("two", 131.0) is not None
    assert rig.batches.renew("one", batch.batch_id, 132.0) is None
    assert rig.batches.renew("two", batch.batch_id, 132.0) == "in_progress"
