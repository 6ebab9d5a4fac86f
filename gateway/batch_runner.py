"""Works off batches: their lines go through the HTTP door like anybody's calls, under their key's limits, a few at
a time and with a lower priority, so that whoever waits for an answer comes first.

What a limit or a busy service refuses is asked again later; what is wrong with a line is its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from gateway.batch_input import BatchInputInvalid, BatchLine, read_lines
from gateway.errors import KeyInvalid
from gateway.inner_calls import InnerAnswer
from gateway.principal import Principal
from ledger.batches import LEASE_S, BatchRow, BatchStore, LineRow
from ledger.errors import LedgerError
from ledger.files import FileStore

logger = logging.getLogger("gateway.batches")

MAX_BATCHES = 4
"""At a time, in this gateway; of others' one waits until one of them is done."""
MAX_LINES_AT_ONCE = 4
"""Of one batch. The engine batches them with whatever else runs."""
LOOK_S = 1.0
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
MAX_FAULTS = 3
"""Answers of 500 and the like that a line may have before that is its answer."""
PRIORITY = -1
_LATER = frozenset({408, 429, 503})

Ask = Callable[[BatchRow, Principal, str, bytes], Awaitable[InnerAnswer]]
"""The batch, whose call it is, its request id, its body."""


class BatchRunner:
    """`find` tells who a key is now; raises KeyInvalid. Run `follow` until it is cancelled."""

    def __init__(
        self,
        batches: BatchStore,
        files: FileStore,
        find: Callable[[str, str], Principal],
        ask: Ask,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._batches = batches
        self._files = files
        self._find = find
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._name = uuid.uuid4().hex

    async def follow(self) -> None:
        """Takes what nobody works on. While the database is down, what runs is tried again later."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                running = {task for task in running if not task.done()}
                with contextlib.suppress(LedgerError):
                    while len(running) < MAX_BATCHES:
                        batch = await asyncio.to_thread(self._batches.claim, self._name, self._clock())
                        if batch is None:
                            break
                        running.add(asyncio.create_task(self._work(batch)))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _work(self, batch: BatchRow) -> None:
        """While it is ours. What a failure here leaves undone, the next claim goes on with."""
        try:
            async with self._held(batch) as is_cancelled:
                await self.run(batch, is_cancelled)
        except LedgerError as exc:
            logger.warning("batch %s stops for now: %s", batch.batch_id, exc)
        except Exception:
            logger.exception("batch %s stops for now", batch.batch_id)

    async def run(self, batch: BatchRow, is_cancelled: asyncio.Event) -> None:
        """To its end, with one answer for every line."""
        content = await asyncio.to_thread(self._files.content, batch.tenant, batch.input_file_id)
        try:
            lines = read_lines(content or b"", batch.endpoint)
        except BatchInputInvalid:
            await asyncio.to_thread(self._batches.finish, batch, "failed", self._clock())
            return
        there = await asyncio.to_thread(self._batches.answered, batch.batch_id)
        waiting = iter([line for line in lines if line.number not in there])
        is_over = asyncio.Event()

        async def worker() -> None:
            for line in waiting:
                if is_over.is_set():
                    return
                row = await self._answer(batch, line)
                await asyncio.to_thread(self._batches.put, batch.batch_id, [row])

        work = asyncio.gather(*(worker() for _ in range(MAX_LINES_AT_ONCE)))
        ending = asyncio.create_task(self._until_over(batch, is_cancelled))
        try:
            await asyncio.wait((work, ending), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            status = ending.result() if ending.done() and not work.done() else "completed"
        finally:
            is_over.set()
            for each in (work, ending):
                each.cancel()
            await asyncio.gather(work, ending, return_exceptions=True)
        if status != "completed":
            await self._leave_out(batch, lines, status)
        await asyncio.to_thread(self._batches.finish, batch, status, self._clock())

    async def _until_over(self, batch: BatchRow, is_cancelled: asyncio.Event) -> str:
        try:
            async with asyncio.timeout(max(0.0, batch.expires_unix_s - self._clock())):
                await is_cancelled.wait()
            return "cancelled"
        except TimeoutError:
            return "expired"

    async def _leave_out(self, batch: BatchRow, lines: list[BatchLine], status: str) -> None:
        there = await asyncio.to_thread(self._batches.answered, batch.batch_id)
        error = {
            "code": f"batch_{status}",
            "message": f"the batch was {status} before this line was answered",
        }
        left = [_row(batch, line, None, error) for line in lines if line.number not in there]
        await asyncio.to_thread(self._batches.put, batch.batch_id, left)

    async def _answer(self, batch: BatchRow, line: BatchLine) -> LineRow:
        pause_s, num_faults = FIRST_PAUSE_S, 0
        request_id = f"{batch.batch_id}-{line.number}"
        while True:
            try:
                principal = self._find(batch.key_id, batch.tenant)
            except KeyInvalid as exc:
                return _row(batch, line, None, {"code": exc.code, "message": exc.message})
            answer = await self._ask(batch, principal, request_id, msgspec.json.encode(line.body))
            num_faults += answer.status >= 500 and answer.status not in _LATER
            if answer.status not in _LATER and (answer.status < 500 or num_faults >= MAX_FAULTS):
                return _row(batch, line, answer, None)
            after = answer.headers.get("retry-after", "")
            await self._sleep(max(pause_s, float(after) if after.isdecimal() else 0.0))
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    @contextlib.asynccontextmanager
    async def _held(self, batch: BatchRow) -> AsyncIterator[asyncio.Event]:
        """Keeps the lease, and gives it back at the end; the event: somebody has cancelled the batch. Who loses the
        lease is cancelled."""
        is_cancelled = asyncio.Event()
        if batch.status == "cancelling":
            is_cancelled.set()
        me = asyncio.current_task()

        async def keep() -> None:
            renewed_s = self._clock()
            while True:
                await asyncio.sleep(LOOK_S)
                now = self._clock()
                try:
                    status = await asyncio.to_thread(self._batches.renew, self._name, batch.batch_id, now)
                    renewed_s = now
                except LedgerError:
                    status = "" if now - renewed_s < LEASE_S / 2 else None
                if status == "cancelling":
                    is_cancelled.set()
                elif status is None and me is not None:
                    me.cancel()
                    return

        keeping = asyncio.create_task(keep())
        try:
            yield is_cancelled
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            with contextlib.suppress(LedgerError):
                await asyncio.shield(
                    asyncio.to_thread(
                        self._batches.renew, self._name, batch.batch_id, self._clock(), lease_s=-LEASE_S
                    )
                )


def _row(
    batch: BatchRow, line: BatchLine, answer: InnerAnswer | None, error: Mapping[str, str | None] | None
) -> LineRow:
    """OpenAI's form of a line."""
    response = None
    if answer is not None:
        response = {
            "status_code": answer.status,
            "request_id": answer.headers.get("x-request-id", ""),
            "body": msgspec.Raw(answer.body or b"null"),
        }
    said = {
        "id": f"batch_req_{batch.batch_id.removeprefix('batch_')}_{line.number}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    is_error = answer is None or answer.status != 200
    return LineRow(line.number, is_error, msgspec.json.encode(said).decode())
