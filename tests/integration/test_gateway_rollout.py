"""Keys, routes and the call log under load: the real HTTP door, a gateway process, a ledger in a file."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from gateway import rollout
from gateway.route_table import KIND
from gateway.testing import FakeTriton, RunningGateway, running_gateway
from ledger import schema
from ledger.keys import KeyStore
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url

pytestmark = pytest.mark.integration

BODY = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@dataclass
class Rig:
    triton: FakeTriton
    gateway: RunningGateway
    store: Store
    http: httpx.AsyncClient
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def revisions(self) -> RevisionStore:
        return RevisionStore(self.store)

    async def ask(self, **headers: str) -> httpx.Response:
        answer = await self.http.post("/v1/chat/completions", json=BODY, headers=headers)
        self.statuses[answer.status_code] += 1
        return answer

    async def version(self, **headers: str) -> str:
        return str((await self.ask(**headers)).headers["x-tidegate-version"])

    async def ask_until(self, stopping: asyncio.Event, session: str, seen: dict[str, list[str]]) -> None:
        headers = {"x-tidegate-session": session} if session else {}
        while not stopping.is_set():
            seen.setdefault(session, []).append(await self.version(**headers))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    url = sqlite_url(tmp_path / "ledger.db")
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, more_models=["v2"], ledger_url=url) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=10) as http,
    ):
        store = Store.open(url)
        yield Rig(triton, gateway, store, http)
        store.close()


async def until_version(rig: Rig, wanted: str) -> float:
    """Seconds until ten calls in a row go there."""
    started_s, num = time.monotonic(), 0
    async with asyncio.timeout(5):
        while num < 10:
            num = num + 1 if await rig.version() == wanted else 0
    return time.monotonic() - started_s


async def test_a_rollback_reaches_new_calls_at_once_and_none_fails_over_seventy_changes(rig: Rig) -> None:
    """50 reloads and 20 rollbacks with eight callers: all answers are 200, no session switches meanwhile."""
    routes = rollout.start({}, "chat", "v2", 50)
    rig.revisions.put(KIND, rollout.write(routes), "test")
    await asyncio.sleep(0.5)
    stopping, seen = asyncio.Event(), dict[str, list[str]]()
    callers = [asyncio.create_task(rig.ask_until(stopping, name, seen)) for name in ("", "", *"abcdef")]
    for number in range(50):
        rig.revisions.put(KIND, rollout.write(rollout.set_percent(routes, "chat", 30 + number % 40)), "test")
        await asyncio.sleep(0.02)
    sessions = {name: set(versions) for name, versions in seen.items() if name}
    assert all(len(versions) == 1 for versions in sessions.values()), sessions
    for number in range(20):
        back = rollout.roll_back(routes, "chat") if number % 2 == 0 else rollout.promote(routes, "chat")
        rig.revisions.put(KIND, rollout.write(back), "test")
        await asyncio.sleep(0.02)
    rig.revisions.put(KIND, rollout.write(rollout.roll_back(routes, "chat")), "test")
    took_s = await until_version(rig, "chat")
    stopping.set()
    await asyncio.gather(*callers)
    print(f"a rollback was seen by ten calls in a row after {took_s:.2f} s")
    assert set(rig.statuses) == {200}


async def test_every_call_has_its_row_with_version_tokens_and_revision(rig: Rig) -> None:
    """Ten calls at 100 % v2, one refused: eleven rows when the gateway has stopped."""
    routes = rollout.promote(rollout.start({}, "chat", "v2", 5), "chat")
    number = rig.revisions.put(KIND, rollout.write(routes), "test")
    await until_version(rig, "v2")
    before = sum(rig.statuses.values())
    await asyncio.gather(*(rig.ask() for _ in range(10)))
    refused = await rig.http.post("/v1/chat/completions", json=BODY | {"model": "nosuch"})
    assert refused.status_code == 404
    assert await rig.gateway.stop() == 0
    with rig.store.read() as connection:
        rows = connection.execute(select(schema.calls)).all()
    assert len(rows) == before + 11
    good = [row for row in rows if row.revision == number and row.outcome == "ok"]
    assert len(good) >= 10
    assert {(row.service, row.version, row.model, row.operation) for row in good} == {
        ("chat", "v2", "v2", "chat")
    }
    assert all(row.prompt_tokens and row.output_tokens and row.finish_reason for row in good)
    assert all(row.prompt is None for row in rows), "content is not kept unless it is asked for"
    (bad,) = [row for row in rows if row.outcome == "refused"]
    assert (bad.service, bad.status, bad.error_code) == ("nosuch", 404, "model_not_found")


async def test_a_shadow_gets_copies_and_the_client_only_the_answer(rig: Rig) -> None:
    """All calls copied to v2: the client sees chat's, the log has both."""
    routes = "services: {chat: {versions: [{name: chat, percent: 100}], shadow: {target: v2, percent: 100}}}"
    rig.revisions.put(KIND, routes, "test")
    await asyncio.sleep(0.5)
    assert [await rig.version() for _ in range(5)] == ["chat"] * 5
    assert await rig.gateway.stop() == 0
    with rig.store.read() as connection:
        rows = connection.execute(select(schema.calls)).all()
    assert Counter((row.model, row.is_shadow) for row in rows) == {("chat", False): 5, ("v2", True): 5}


async def test_keys_open_the_door_until_they_are_revoked(tmp_path: Path) -> None:
    """No key: 401; a good one: 200; over its limit: 429 with when to come back; revoked: 401 within a second."""
    url = sqlite_url(tmp_path / "ledger.db")
    store = Store.open(url)
    keys = KeyStore(store)
    row, text = keys.create(tenant="acme", name="web", services=["chat"], limits={"requests_per_min": 3})
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, ledger_url=url, requires_keys=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=10) as http,
    ):
        bearer = {"authorization": f"Bearer {text}"}
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            assert (await http.post(path, json=BODY)).status_code == 401
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/health/live")).status_code == 200
        listed = (await http.get("/v1/models", headers=bearer)).json()["data"]
        assert [one["id"] for one in listed] == ["chat"]
        forbidden = await http.post(
            "/v1/embeddings", json={"model": "embed", "input": "x"}, headers={"x-api-key": text}
        )
        assert forbidden.status_code == 403
        answers = [await http.post("/v1/chat/completions", json=BODY, headers=bearer) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "2"
        assert 1 <= int(answers[3].headers["retry-after"]) <= 60
        keys.revoke(row.key_id)
        await asyncio.sleep(1.0)
        assert (await http.get("/v1/models", headers=bearer)).status_code == 401
        assert await gateway.stop() == 0
        said = gateway.log_path.read_text()
    assert text not in said
    assert text.split("_", 2)[2] not in said
    with store.read() as connection:
        rows = connection.execute(select(schema.calls)).all()
    assert {one.tenant for one in rows if one.outcome == "ok"} == {"acme"}
    assert Counter(one.status for one in rows) == {200: 3, 401: 3, 403: 1, 429: 1}
    store.close()
