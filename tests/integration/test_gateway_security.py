"""The HTTP door against callers who mean harm: who may do what, broken heads, clients that stall."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from gateway.http_protocol import MAX_HEAD_BYTES
from gateway.testing import FakeTriton, RunningGateway, Script, running_gateway
from ledger.call_query import find
from ledger.keys import KeyStore
from ledger.store import Store, sqlite_url

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HEAD_TIMEOUT_S = 2.0
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ROUTES = (
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/completions", {"model": "chat", "prompt": "hi"}),
    ("POST", "/v1/embeddings", {"model": "embed", "input": "hi"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/chat", None),
    ("GET", "/v1/usage", None),
    ("GET", "/v1/files", None),
    ("POST", "/v1/files", None),
    ("DELETE", "/v1/files/f1", None),
    ("POST", "/v1/batches", {}),
    ("POST", "/v1/batches/b1/cancel", None),
)


@dataclass
class Rig:
    triton: FakeTriton
    gateway: RunningGateway
    store: Store
    http: httpx.AsyncClient
    secrets: list[str] = field(default_factory=list)

    def key(self, **values: object) -> tuple[str, str]:
        """(id, text)."""
        row, text = KeyStore(self.store).create(tenant="t", name="n", **values)  # type: ignore[arg-type]
        self.secrets.append(text.removeprefix(f"tg_{row.key_id}_"))
        return row.key_id, text

    async def good_key(self) -> str:
        _, text = self.key()
        await self.until(text, 200)
        return text

    async def until(self, key: str, status: int) -> float:
        started_s = time.monotonic()
        async with asyncio.timeout(10):
            while (await self.http.get("/v1/models", headers=bearer(key))).status_code != status:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return time.monotonic() - started_s

    async def statuses(self, headers: dict[str, str]) -> set[int]:
        answers = await asyncio.gather(
            *(self.http.request(method, path, json=body, headers=headers) for method, path, body in ROUTES)
        )
        assert all(answer.json()["error"]["message"] for answer in answers if answer.status_code != 200)
        return {answer.status_code for answer in answers}

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.gateway.url.removeprefix("http://").split(":")
        return await asyncio.open_connection(host, int(port))

    async def raw(self, *pieces: bytes, pause_s: float = 0.0) -> bytes:
        """All that comes back until the gateway closes."""
        reader, writer = await self.connect()
        answer = asyncio.ensure_future(reader.read())
        try:
            for piece in pieces:
                if not answer.done():
                    writer.write(piece)
                    await asyncio.sleep(pause_s)
            async with asyncio.timeout(20):
                return await answer
        except ConnectionResetError:
            return b""
        finally:
            answer.cancel()
            writer.close()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def head(*lines: str, target: str = "/v1/models", method: str = "GET") -> bytes:
    text = "".join(
        f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", "host: x", "connection: close", *lines)
    )
    return text.encode("latin-1") + b"\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("security")
    url = sqlite_url(folder / "ledger.db")
    store = Store.open(url)
    async with (
        FakeTriton() as triton,
        running_gateway(
            triton.address,
            ledger_url=url,
            requires_keys=True,
            head_timeout_s=HEAD_TIMEOUT_S,
            send_timeout_s=1.0,
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=20) as http,
    ):
        yield Rig(triton, gateway, store, http)
    store.close()


async def test_no_route_but_health_answers_without_a_good_key(rig: Rig) -> None:
    """None, unknown, revoked, expired, cut, of another scheme: 401 on all, and all wrong ones read alike."""
    revoked_id, revoked = rig.key()
    KeyStore(rig.store).revoke(revoked_id)
    long_ago_s = time.time() - 100
    _, expired = rig.key(expires_unix_s=long_ago_s + 1, now=long_ago_s)
    good = await rig.good_key()
    assert await rig.statuses({}) == {401}
    texts = set()
    for key in (revoked, expired, "tg_0123456789abcdef_" + "x" * 43, good[:-1], good[:-1] + "~", "sk-x"):
        assert await rig.statuses(bearer(key)) == {401}
        texts.add((await rig.http.get("/v1/models", headers=bearer(key))).text)
    assert len(texts) == 1
    assert await rig.statuses({"authorization": f"Basic {good}"}) == {401}
    for path in ("/health/live", "/health/ready", "/openapi.json"):
        assert (await rig.http.get(path)).status_code == 200


async def test_a_key_does_what_it_is_for_and_nothing_else(rig: Rig) -> None:
    """For `embed` alone: chat is 403, not even shown. For metrics alone: no model answers."""
    _, scoped = rig.key(services=["embed"])
    _, metrics = rig.key(roles=["metrics"])
    await rig.until(metrics, 200)
    names = (await rig.http.get("/v1/models", headers=bearer(scoped))).json()["data"]
    assert [model["id"] for model in names] == ["embed"]
    for body in (CHAT, CHAT | {"model": "nobody"}):
        answer = await rig.http.post("/v1/chat/completions", json=body, headers=bearer(scoped))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert (await rig.http.get("/v1/models/chat", headers=bearer(scoped))).status_code == 403
    for _, path, body in ROUTES[:3]:
        assert (await rig.http.post(path, json=body, headers=bearer(metrics))).status_code == 403


async def test_a_revoked_key_is_refused_within_a_second(rig: Rig) -> None:
    """Without a restart; the same for one that is rotated without overlap."""
    key_id, text = rig.key()
    await rig.until(text, 200)
    KeyStore(rig.store).revoke(key_id)
    # Its figure on a quiet machine is 0.3 s; what counts here is that it comes.
    assert await rig.until(text, 401) < 10


async def test_two_keys_in_one_request_are_refused(rig: Rig) -> None:
    """A good one and any other, in either order: a proxy may have checked the other one."""
    good = await rig.good_key()
    for first, second in ((good, "tg_x"), ("tg_x", good), (good, good)):
        answer = await rig.raw(head(f"authorization: Bearer {first}", f"authorization: Bearer {second}"))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"stands there twice" in answer


@pytest.mark.parametrize(
    "lines",
    [
        ["x-request-id: a\rx-evil: 1"],
        ["x-request-id: a\nx-evil: 1\n"],
        ["x-request-id: a\x00b"],
        ["x-request-id: a", " x-evil: 1"],
        ["x evil: 1"],
        ["content-length: 1", "content-length: 2"],
        ["content-length: -1"],
        ["content-length: 1", "transfer-encoding: gzip"],
        ["transfer-encoding: chunked, chunked"],
        ["host: two"],
        [f"x-long: {'a' * MAX_HEAD_BYTES}"],
        [f"x-{number}: a" for number in range(4000)],
    ],
    ids=lambda lines: lines[0][:24].encode().hex(),
)
async def test_a_broken_or_huge_head_is_refused_and_nothing_of_it_comes_back(
    rig: Rig, lines: list[str]
) -> None:
    """Or taken in a way that has one meaning: never a header of the caller's making in the answer, never a 5xx."""
    good = await rig.good_key()
    answer = await rig.raw(head(f"authorization: Bearer {good}", *lines))
    status_line, _, rest = answer.partition(b"\r\n")
    assert status_line.split()[1:2] in ([b"400"], [b"200"], [])
    assert b"\r\nx-evil" not in rest
    assert b"\nx-evil" not in rest
    assert rest.count(b"HTTP/1.1") == 0


async def test_a_body_has_one_length(rig: Rig) -> None:
    """Both Content-Length and chunked: one answer, and what follows the body is no second request."""
    body = json.dumps(CHAT).encode()
    smuggled = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    request = head(
        "content-length: 4", "transfer-encoding: chunked", target="/v1/chat/completions", method="POST"
    )
    answer = await rig.raw(request + chunked + smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.split()[1] in (b"400", b"401")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../v1/models",
        "//v1/models",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/v1/models/%ff%fe",
        "/V1/models/chat",
        "/v1/models/chat%0d%0ax-evil:%201",
        "/v1;/models",
        "http://elsewhere/v1/models/nobody",
        "*",
        "/v1/models?" + "a" * 20_000,
    ],
)
async def test_tricks_with_paths_reach_nothing(rig: Rig, target: str) -> None:
    """Unknown, or what it says and no more."""
    good = await rig.good_key()
    answer = await rig.raw(head(f"authorization: Bearer {good}", target=target))
    assert answer.split()[1] in (b"400", b"404") or (b'"object":"list"' in answer and "?" in target), answer[
        :200
    ]
    assert b"\nx-evil" not in answer
    assert b"root:" not in answer


async def test_tricks_with_model_names_reach_nothing(rig: Rig) -> None:
    """Names are looked up among the served ones, and shown cut and escaped."""
    good = await rig.good_key()
    names = [
        "../chat",
        "chat/1",
        "chat\x00",
        "CHAT",
        " chat",
        "chat\r\nx-evil: 1",
        "a" * 5000,
        "\u202echat",
        "$(id)",
        "",
    ]
    for name in names:
        answer = await rig.http.post(
            "/v1/chat/completions", json=CHAT | {"model": name}, headers=bearer(good)
        )
        assert answer.status_code == 404, name
        assert "x-evil" not in answer.headers
        assert len(answer.text) < 500
        looked = await rig.http.get("/v1/models/" + quote(name, safe=""), headers=bearer(good))
        assert looked.status_code in (200, 404) if name == "" else looked.status_code == 404


async def test_a_head_that_never_ends_is_cut_off(rig: Rig) -> None:
    """Nothing at all, half a line, a header now and then, half a second request: 408 after 2 s."""
    good = await rig.good_key()
    whole = head(f"authorization: Bearer {good}").replace(b"connection: close\r\n", b"")
    answers = await asyncio.gather(
        rig.raw(),
        rig.raw(b"GET /v1/mod"),
        rig.raw(b"GET / HTTP/1.1\r\n", *[b"x-a: b\r\n"] * 30, pause_s=0.2),
        rig.raw(whole, b"GET /v1/mod", pause_s=0.5),
    )
    for answer in answers:
        assert b"HTTP/1.1 408 " in answer, answer
        assert b"head_timeout" in answer
    assert answers[-1].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_half_open_connections_do_not_keep_others_out(rig: Rig, count: int) -> None:
    """All send half a head and wait; meanwhile forty chats are answered, and in the end every one is cut off."""
    good = await rig.good_key()
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for start in range(0, count, 100):
        opened += await asyncio.gather(*(rig.connect() for _ in range(start, min(start + 100, count))))
    for _, writer in opened:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    chats: Sequence[httpx.Response] = await asyncio.gather(
        *(rig.http.post("/v1/chat/completions", json=CHAT, headers=bearer(good)) for _ in range(40))
    )
    assert {chat.status_code for chat in chats} == {200}
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(reader.read() for reader, _ in opened))
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    for _, writer in opened:
        writer.close()


async def test_a_client_that_never_reads_is_given_up(rig: Rig) -> None:
    """40 MB for a reader who takes none of it: after 1 s its stream at Triton is closed."""
    good = await rig.good_key()
    rig.triton.script = Script(pieces=("x" * 1_000_000,) * 40)
    body = json.dumps(CHAT | {"stream": True}).encode()
    lines = (
        f"authorization: Bearer {good}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    _, writer = await rig.connect()
    try:
        writer.write(head(*lines, "x-request-id: deaf", target="/v1/chat/completions", method="POST") + body)
        lines_logged: list[dict[str, object]] = []
        async with asyncio.timeout(20):
            while not lines_logged or rig.triton.num_active > 0:
                await asyncio.sleep(0.05)
                lines_logged = rig.gateway.access_lines_of("deaf")
        assert lines_logged[0]["error"] == "client_closed_request"
    finally:
        writer.transport.abort()
        rig.triton.reset()


async def test_no_secret_is_in_any_log(rig: Rig) -> None:
    """Keys where they belong, and where a confused client may put them: path, query, model name, request id."""
    good = await rig.good_key()
    await rig.http.get(f"/v1/models/{good}", headers=bearer(good))
    await rig.http.get(f"/{good}?api_key={good}", headers={"x-api-key": good, "x-request-id": good})
    await rig.http.post("/v1/chat/completions", json=CHAT | {"model": good}, headers=bearer(good))
    await rig.http.post("/v1/chat/completions", json=CHAT, headers={"authorization": good})
    await rig.raw(head(f"authorization: Bearer {good}", "x bad: 1"))
    rows = ""
    async with asyncio.timeout(10):
        while "(secret)" not in rows:
            await asyncio.sleep(0.1)
            rows = repr(find(rig.store, limit=10_000).calls)
    log = rig.gateway.log_path.read_text()
    assert "(secret)" in log
    assert rig.secrets
    for secret in rig.secrets:
        assert secret not in log
        assert secret not in rows
