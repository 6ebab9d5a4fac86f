"""Keys that have expired, or are good for something else: no RPC and no route does anything for them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway import batch_api, files_api, http_api, metrics_api
from gateway.console import pages
from gateway.grpc_rpcs import METHODS, NAMES_A_MODEL, Kind, kind_of
from gateway.testing import FakeTriton, free_port, running_gateway
from ledger.keys import KeyStore
from ledger.store import Store, sqlite_url
from tests.integration.grpc_codes import code_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Route = tuple[str, str]

OPEN: set[Route] = {
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/openapi.json"),
    ("GET", "/console"),
    ("GET", "/console/"),
    ("GET", "/console/files/{name}"),
    ("GET", "/console/trace/{trace_id}"),
}
"""Answer everybody; nothing in them is secret."""
OF_ANY_KEY: set[Route] = {
    ("GET", "/v1/models"),
    ("GET", "/v1/usage"),
    ("POST", "/v1/uploads"),
    ("POST", "/v1/uploads/{path:path}"),
}
"""Tell of the key's own services and use, or that they are not served."""
OF_METRICS: set[Route] = {
    ("GET", "/metrics"),
    ("GET", "/console/data"),
    ("GET", "/console/data/trace/{trace_id}"),
}
OF_ADMIN: set[Route] = {("POST", "/console/rollback")}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "chat", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "chat", "prompt": "hi"},
    "/v1/embeddings": {"model": "embed", "input": "hi"},
}
OF_MODELS: set[Route] = {*(("POST", path) for path in BODIES), ("GET", "/v1/models/{name:path}")}
ROUTES: set[Route] = {
    (method, route.path)  # type: ignore[attr-defined]
    for module in (http_api, files_api, batch_api, metrics_api, pages)
    for route in module.router.routes
    for method in route.methods  # type: ignore[attr-defined]
} - OPEN
"""All that there are: a new one is asked for the role `infer` here, until it says otherwise."""
OTHER_ROLES = {"infer": ["metrics"], "metrics": ["infer"], "admin": ["infer", "metrics"]}


def role_of(route: Route) -> str:
    return "admin" if route in OF_ADMIN else "metrics" if route in OF_METRICS else "infer"


@dataclass
class Rig:
    triton: FakeTriton
    http: httpx.AsyncClient
    stub: Any
    store: Store

    async def keys(self, *wanted: dict[str, Any]) -> list[str]:
        """Their texts, when the gateway knows them all."""
        store = KeyStore(self.store)
        texts = [store.create(tenant="t", name="n", **values)[1] for values in wanted]
        _, last = store.create(tenant="t", name="last")
        async with asyncio.timeout(10):
            while (await self.ask(("GET", "/v1/models"), last)).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return texts

    async def expired(self) -> str:
        """It stands in the ledger, and in the gateway's memory, like any other."""
        long_ago_s = time.time() - 100
        return (await self.keys({"expires_unix_s": long_ago_s + 1, "now": long_ago_s}))[0]

    async def ask(self, route: Route, key: str) -> httpx.Response:
        method, template = route
        path = re.sub(r"{[^}]*}", "chat", template)
        headers = {"authorization": f"Bearer {key}", "x-tidegate-console": "1"}
        return await self.http.request(method, path, json=BODIES.get(template), headers=headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("scopes")
    url = sqlite_url(folder / "ledger.db")
    store = Store.open(url)
    with free_port() as port:
        async with (
            FakeTriton() as triton,
            running_gateway(triton.address, ledger_url=url, requires_keys=True, grpc_port=port) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=20) as http,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield Rig(triton, http, service_pb2_grpc.GRPCInferenceServiceStub(channel), store)
    store.close()


def asked_of(triton: FakeTriton) -> int:
    return len(triton.generates) + len(triton.embed_batches)


async def test_an_expired_key_opens_no_route(rig: Rig) -> None:
    """401 on all but what is open to everybody, as for a key that never was."""
    expired = await rig.expired()
    answers = {route: await rig.ask(route, expired) for route in sorted(ROUTES)}
    assert {route: answer.status_code for route, answer in answers.items()} == dict.fromkeys(ROUTES, 401)
    unknown = await rig.ask(("GET", "/v1/models"), "tg_0123456789abcdef_" + "x" * 43)
    assert {answer.text for answer in answers.values()} == {unknown.text}
    for route in OPEN - {("GET", "/console/files/{name}")}:
        assert (await rig.ask(route, expired)).status_code in (200, 307), route


async def test_a_key_of_another_role_opens_no_route(rig: Rig) -> None:
    """403: one for figures where models answer, one for models where figures stand, both where routes change."""
    roles = list(OTHER_ROLES)
    keys = dict(zip(roles, await rig.keys(*({"roles": OTHER_ROLES[role]} for role in roles)), strict=True))
    wanted = ROUTES - OF_ANY_KEY
    found = {route: (await rig.ask(route, keys[role_of(route)])).status_code for route in sorted(wanted)}
    assert found == dict.fromkeys(wanted, 403)
    assert asked_of(rig.triton) == 0


async def test_a_key_for_another_service_opens_no_model(rig: Rig) -> None:
    """403 for chat and embed alike; lists show it nothing of them."""
    (other,) = await rig.keys({"services": ["other"]})
    found = {route: (await rig.ask(route, other)).status_code for route in sorted(OF_MODELS)}
    assert found == dict.fromkeys(OF_MODELS, 403)
    assert (await rig.ask(("GET", "/v1/models"), other)).json()["data"] == []
    assert "embed" not in (await rig.ask(("GET", "/v1/usage"), other)).text
    assert asked_of(rig.triton) == 0


async def test_an_expired_key_opens_no_rpc(rig: Rig) -> None:
    """UNAUTHENTICATED on all but health."""
    expired = await rig.expired()
    methods = {method for method in METHODS if kind_of(method) is not Kind.HEALTH}
    found = {method: await code_of(rig.stub, method, expired, writes=False) for method in sorted(methods)}
    assert found == dict.fromkeys(methods, grpc.StatusCode.UNAUTHENTICATED)


async def test_a_key_of_another_role_opens_no_rpc(rig: Rig) -> None:
    """PERMISSION_DENIED: one for figures on all, one for models and figures on what manages the server."""
    metrics, both = await rig.keys({"roles": ["metrics"]}, {"roles": ["infer", "metrics"]})
    for method in sorted(METHODS):
        kind = kind_of(method)
        if kind is not Kind.HEALTH:
            key = both if kind is Kind.MANAGE else metrics
            assert await code_of(rig.stub, method, key) is grpc.StatusCode.PERMISSION_DENIED, method
    assert asked_of(rig.triton) == 0


async def test_a_key_for_another_service_opens_no_rpc_that_names_a_model(rig: Rig) -> None:
    """Neither what infers nor what tells of a model, nor figures of all models. Those of its own service pass, and
    the fake Triton has not got them."""
    (embed,) = await rig.keys({"services": ["embed"]})
    for method in ("ModelInfer", "ModelStreamInfer", *sorted(NAMES_A_MODEL)):
        assert await code_of(rig.stub, method, embed, "chat") is grpc.StatusCode.PERMISSION_DENIED, method
    for method in sorted(NAMES_A_MODEL):
        assert await code_of(rig.stub, method, embed, "") is grpc.StatusCode.PERMISSION_DENIED, method
        assert await code_of(rig.stub, method, embed, "embed") is grpc.StatusCode.UNIMPLEMENTED, method
    assert asked_of(rig.triton) == 0


async def test_two_keys_in_one_rpc_are_refused(rig: Rig) -> None:
    """A good one and any other, in either order and either header."""
    (good,) = await rig.keys({})
    for header, scheme in (("authorization", "Bearer "), ("x-api-key", "")):
        for pair in ((good, "tg_x"), ("tg_x", good), (good, good)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rig.stub.ServerMetadata(
                    service_pb2.ServerMetadataRequest(),
                    metadata=tuple((header, f"{scheme}{key}") for key in pair),
                )
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, header
    assert await code_of(rig.stub, "ServerMetadata", good) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_name_in_disguise_opens_no_other_service(rig: Rig) -> None:
    """`chat` as a number of four bytes behind the name `embed`: Triton reads `embed`, so the key for chat is not
    enough."""
    (chat,) = await rig.keys({"services": ["chat"]})
    data = service_pb2.ModelInferRequest(model_name="embed").SerializeToString() + b"\x0dchat"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub.ModelInfer(
            service_pb2.ModelInferRequest.FromString(data), metadata=(("x-api-key", chat),)
        )
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert asked_of(rig.triton) == 0
