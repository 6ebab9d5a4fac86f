"""OpenAI's own client and its batches, at the real gateway: two tenants, a restart in the middle."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from sqlalchemy import update

from gateway.testing import FakeTriton, RunningGateway, Script, running_gateway, start_gateway
from ledger import schema
from ledger.keys import KeyStore
from ledger.store import Store, sqlite_url

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT = "/v1/chat/completions"


@dataclass
class Rig:
    triton: FakeTriton
    gateway: RunningGateway
    keys: KeyStore
    config_path: Path
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    async def client(self, tenant: str) -> openai.AsyncOpenAI:
        """When the gateway has heard of its key."""
        _, key = self.keys.create(tenant=tenant, name=tenant)
        client = openai.AsyncOpenAI(base_url=f"{self.gateway.url}/v1", api_key=key, max_retries=0)
        self.clients.append(client)
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.models.list()
                    return client
                except openai.AuthenticationError:
                    await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    url = sqlite_url(tmp_path_factory.mktemp("batches") / "ledger.db")
    store = Store.open(url)
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, ledger_url=url, requires_keys=True) as gateway,
    ):
        rig = Rig(triton, gateway, KeyStore(store), gateway.log_path.with_name("gateway.json"))
        yield rig
        for client in rig.clients:
            await client.close()
    store.close()


def chats(*names: str, **body: Any) -> bytes:
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": CHAT,
            "body": {"model": "chat", "messages": [{"role": "user", "content": name}], **body},
        }
        for name in names
    ]
    return "\n".join(map(json.dumps, lines)).encode()


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
                return batch
            await asyncio.sleep(0.2)


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[Any]:
    text = (await client.files.content(file_id)).text if file_id else ""
    return [json.loads(line) for line in text.splitlines()]


async def test_openais_own_client_sends_a_batch_and_reads_its_answers(rig: Rig) -> None:
    """As in OpenAI's guide: upload, create, retrieve, download; an unknown model is that line's error. The engine
    is asked with the lower priority."""
    client = await rig.client("guide")
    content = chats("one", "two") + b"\n" + chats("lost", model="nobody")
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "in.jsonl",
        "batch",
        "processed",
    )
    made = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "nightly"}
    )
    batch = await ended(client, made.id)
    assert (batch.status, batch.metadata) == ("completed", {"job": "nightly"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    answers = await lines_of(client, batch.output_file_id)
    assert [line["custom_id"] for line in answers] == ["one", "two"]
    assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
    assert answers[0]["response"]["body"]["usage"]["completion_tokens"] == 2
    (lost,) = await lines_of(client, batch.error_file_id)
    assert (lost["response"]["status_code"], lost["response"]["body"]["error"]["code"]) == (
        404,
        "model_not_found",
    )
    assert {seen.parameters["request_priority"] for seen in rig.triton.generates} == {-1}
    assert [each.id for each in (await client.batches.list()).data] == [made.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)


async def test_a_tenant_has_its_own_files_and_batches_alone(rig: Rig) -> None:
    """Another one's are not there: not to read, not to use, not to cancel, not in any list."""
    mine, other = await rig.client("mine"), await rig.client("other")
    file = await mine.files.create(file=("in.jsonl", chats("a")), purpose="batch")
    made = await mine.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    for refused in (
        other.files.retrieve(file.id),
        other.files.content(file.id),
        other.files.delete(file.id),
        other.batches.retrieve(made.id),
        other.batches.cancel(made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await refused
    with pytest.raises(openai.BadRequestError, match="no file"):
        await other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert not (await other.files.list()).data
    assert not (await other.batches.list()).data
    assert (await ended(mine, made.id)).status == "completed"


async def test_what_is_wrong_is_told_before_anything_runs(rig: Rig) -> None:
    """A bad line with its number, another purpose or endpoint, a batch that is over."""
    client = await rig.client("wrong")
    file = await client.files.create(file=("in.jsonl", chats("a", "a")), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(each.code, each.line) for each in batch.errors.data or ()] == [("duplicate_custom_id", 2)]
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=b"{}", purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/responses",
            completion_window="24h",
        )
    with pytest.raises(openai.ConflictError, match="is failed"):
        await client.batches.cancel(batch.id)


async def test_pages_of_files_follow_one_another(rig: Rig) -> None:
    """The client's own iterator sees each once."""
    client = await rig.client("pages")
    made = [(await client.files.create(file=(f"{n}.jsonl", b"{}"), purpose="batch")).id for n in range(5)]
    found = [each.id async for each in client.files.list(limit=2)]
    assert found == list(reversed(made))


async def test_a_batch_outlives_a_gateway_that_is_killed(rig: Rig) -> None:
    """kill -9 in the middle of 24 lines: the next gateway goes on, and each line has one answer. Its lease of 30 s
    is made to be over."""
    client = await rig.client("killed")
    rig.triton.script = Script(delay_s=0.1)
    names = [f"line {number}" for number in range(24)]
    file = await client.files.create(file=("in.jsonl", chats(*names)), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    async with asyncio.timeout(30):
        while (await client.batches.retrieve(made.id)).request_counts.completed < 4:  # type: ignore[union-attr] # noqa: ASYNC110
            await asyncio.sleep(0.05)
    with pytest.raises(openai.ConflictError, match="a batch that runs reads"):
        await client.files.delete(file.id)
    rig.gateway.process.send_signal(signal.SIGKILL)
    await rig.gateway.process.wait()
    _forget_leases(rig)
    port = int(rig.gateway.url.rpartition(":")[2])
    again = await start_gateway(rig.config_path, rig.gateway.log_path.with_name("again.log"), port)
    try:
        batch = await ended(client, made.id)
        assert batch.status == "completed"
        assert [line["custom_id"] for line in await lines_of(client, batch.output_file_id)] == names
    finally:
        assert await again.stop() == 0


def _forget_leases(rig: Rig) -> None:
    with rig.keys._store.write() as connection:
        connection.execute(update(schema.batches).values(lease_until_unix_s=0.0))
