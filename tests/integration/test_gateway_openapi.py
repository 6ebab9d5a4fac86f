"""The rest of the HTTP API: its own description, held against what it does; usage; what is not served yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from gateway.testing import FakeTriton, RunningGateway, running_gateway
from ledger.keys import KeyStore
from ledger.store import Store, sqlite_url

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_EXAMPLES = 12
"""Of each operation."""
HELLO = [{"role": "user", "content": "hi"}]


@dataclass
class Rig:
    gateway: RunningGateway
    keys: KeyStore
    http: httpx.AsyncClient

    def headers(self, tenant: str, **limits: float) -> dict[str, str]:
        _, text = self.keys.create(tenant=tenant, name=tenant, limits=limits)
        return {"authorization": f"Bearer {text}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("openapi")
    url = sqlite_url(folder / "ledger.db")
    store = Store.open(url)
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address, ledger_url=url, requires_keys=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=20) as http,
    ):
        yield Rig(gateway, KeyStore(store), http)
    store.close()


async def known(rig: Rig, headers: dict[str, str]) -> dict[str, str]:
    """When the gateway has heard of the key."""
    async with asyncio.timeout(5):
        while (await rig.http.get("/v1/models", headers=headers)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return headers


async def test_the_gateway_keeps_to_its_own_description(rig: Rig) -> None:
    """Good and bad requests that schemathesis makes of it: no 5xx, no status and no shape that it does not have."""
    headers = await known(rig, rig.headers("fuzz"))
    document = (await rig.http.get("/openapi.json")).json()
    for name, model in (
        ("ChatRequest", "chat"),
        ("CompletionRequest", "chat"),
        ("EmbeddingRequest", "embed"),
    ):
        # Names that are made up would all end at 404.
        document["components"]["schemas"][name]["properties"]["model"] = {"const": model}
    schema = schemathesis.openapi.from_dict(document)
    schema.config.base_url = rig.gateway.url

    def fuzz() -> int:
        num_cases = 0
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=NUM_EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def one(case: schemathesis.Case) -> None:
                nonlocal num_cases
                num_cases += 1
                case.call_and_validate(
                    headers=headers,
                    checks=[
                        checks.not_a_server_error,
                        openapi_checks.status_code_conformance,
                        openapi_checks.content_type_conformance,
                        openapi_checks.response_schema_conformance,
                    ],
                )

            one()
        return num_cases

    assert await asyncio.to_thread(fuzz) >= NUM_EXAMPLES


async def test_a_key_sees_what_it_used_itself(rig: Rig) -> None:
    """Two chats of acme and one of beta: acme sees two, with tokens, today; its limits beside them."""
    acme = await known(rig, rig.headers("acme", tokens_per_day=5000))
    beta = await known(rig, rig.headers("beta"))
    for headers in (acme, acme, beta):
        body = {"model": "chat", "messages": HELLO}
        assert (await rig.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    usage: dict[str, object] = {}
    async with asyncio.timeout(10):
        while usage.get("today", {}).get("requests") != 2:  # type: ignore[attr-defined]
            await asyncio.sleep(0.3)
            usage = (await rig.http.get("/v1/usage?days=2", headers=acme)).json()
    assert usage["today"] == usage["total"]
    assert usage["total"] == {
        "requests": 2,
        "errors": 0,
        "refused": 0,
        "cancelled": 0,
        "prompt_tokens": 42,
        "cached_tokens": 0,
        "output_tokens": 4,
    }
    assert (usage["tenant"], usage["limits"]) == ("acme", {"tokens_per_day": 5000})
    for days in ("0", "32", "x", "-1", "٣"):
        assert (await rig.http.get("/v1/usage", params={"days": days}, headers=acme)).status_code == 400
