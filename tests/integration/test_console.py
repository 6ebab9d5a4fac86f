"""The console at a real gateway: who gets in, what it says, its button; and the page in a real browser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from contracts.tracing.span import Span, SpanKind
from contracts.tracing.store import TraceStore
from gateway import rollout
from gateway.console.testing import FakeNode, FakeScaler, serving
from gateway.route_table import KIND
from gateway.testing import FakeTriton, RunningGateway, Script, running_gateway
from ledger.keys import KeyStore
from ledger.revisions import RevisionStore
from ledger.store import Store, sqlite_url
from tests.integration.browser import CHROMIUM

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True}
OURS = {"x-tidegate-console": "1"}
ROLES = ("infer", "metrics", "admin")
OVERFLOW_PX = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass
class Rig:
    triton: FakeTriton
    scaler: FakeScaler
    gateway: RunningGateway
    store: Store
    http: httpx.AsyncClient
    keys: dict[str, dict[str, str]]
    """Role -> headers."""
    traces: Path

    async def data(self, **headers: str) -> dict[str, Any]:
        answer = await self.http.get("/console/data", headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, is_so: Any, **headers: str) -> dict[str, Any]:
        while not is_so(found := await self.data(**headers)):  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.1)
        return found

    @property
    def revisions(self) -> RevisionStore:
        return RevisionStore(self.store)

    async def split(self, **headers: str) -> int:
        """20 % of chat's calls to v2; in force when it returns."""
        self.triton.script = Script()
        routes = rollout.write(rollout.start({}, "chat", "v2", 20))
        revision = self.revisions.put(KIND, routes, "ada", why="a new version")
        await self.until(lambda data: data["routes"]["revision"] == revision, **headers)
        return revision


@asynccontextmanager
async def rigged(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    url, scaler = sqlite_url(folder / "ledger.db"), FakeScaler()
    store = Store.open(url)
    made = {role: KeyStore(store).create(tenant="acme", name=role, roles=[role]) for role in ROLES}
    keys = {role: {"authorization": f"Bearer {text}"} for role, (_, text) in made.items()}
    async with (
        FakeTriton() as triton,
        serving(scaler, FakeNode(), folder) as (address, socket_path),
        running_gateway(
            triton.address,
            more_models=["v2"],
            ledger_url=url,
            scaler_grpc=address,
            node_socket=socket_path,
            traces_path=str(folder / "traces.db"),
            **settings,
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        try:
            yield Rig(triton, scaler, gateway, store, http, keys, folder / "traces.db")
        finally:
            store.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Without keys, all calls traced. Tests leave routes and errors behind, and look at their own."""
    folder = tmp_path_factory.mktemp("open")
    async with rigged(folder, trace_ratio=1.0, spans_socket=str(folder / "nobody.sock")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """With keys."""
    async with rigged(tmp_path_factory.mktemp("locked"), requires_keys=True) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(
    chromium: Browser, url: str, *, width: int = 1280, dark: bool = False
) -> AsyncIterator[tuple[Page, list[str]]]:
    """The console in a fresh window, and what the browser complained about or asked of others."""
    complaints: list[str] = []
    context = await chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    page = await context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None
    )
    page.on(
        "request",
        lambda asked: None if asked.url.startswith((url, "data:")) else complaints.append(asked.url),
    )
    try:
        await page.goto(f"{url}/console")
        yield page, complaints
    finally:
        await context.close()


async def test_the_console_tells_what_all_sources_say(rig: Rig) -> None:
    """Calls of the gateway, decisions and counts of the scaler, the arena; Triton is not asked."""
    await rig.split()
    rig.scaler.decide(1, 3, "queue 12 above 4 <b>per instance</b>, " + "x" * 300)
    rig.triton.script = Script(pieces=("a",), error="<img src=x onerror=alert(1)>")
    await rig.http.post("/v1/chat/completions", json=CHAT)
    rig.triton.script = Script(delay_s=30)
    waiting = asyncio.create_task(rig.http.post("/v1/chat/completions", json=CHAT))
    found = await rig.until(
        lambda data: (
            data["decisions"]
            and data["errors"]
            and data["pool"]
            and data["pool"]["map"]
            and data["in_flight"]["total"]
        )
    )
    waiting.cancel()
    assert {one["name"]: one["state"] for one in found["sources"]} == {
        "scaler": "ok", "node": "ok", "triton": "off",
    }  # fmt: skip
    chat = next(one for one in found["models"] if one["model"] == "chat")
    assert (chat["scaler"]["ready"], chat["scaler"]["max"], chat["scaler"]["utilization"]) == (1, 4, 0.4)
    assert chat["scaler"]["queue_time_s"] is None
    assert found["decisions"][0]["reason"].startswith("queue 12 above 4")
    assert {kind["tenant"] for kind in found["pool"]["map"]["kinds"]} == {"acme", "globex"}
    assert "onerror" in found["errors"][0]["text"]
    assert found["in_flight"]["longest"][0]["state"] == "waiting for its answer"
    service = next(one for one in found["routes"]["services"] if one["service"] == "chat")
    assert [(one["name"], one["percent"]) for one in service["versions"]] == [("chat", 80), ("v2", 20)]
    assert service["can_roll_back"]


async def test_sources_that_are_down_are_told_and_break_nothing(tmp_path: Path) -> None:
    """Neither a scaler nor a node nor metrics at their addresses."""
    async with (
        FakeTriton() as triton,
        running_gateway(
            triton.address,
            scaler_grpc="127.0.0.1:1",
            node_socket=str(tmp_path / "nobody.sock"),
            triton_metrics="127.0.0.1:1",
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        while True:
            found = (await http.get("/console/data")).json()
            if all(one["state"] == "down" and one["error"] for one in found["sources"]):
                break
            await asyncio.sleep(0.1)
        assert (found["pool"], found["can_change"]) == (None, False)
        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_with_keys_metrics_may_look_and_only_admin_may_change(locked: Rig) -> None:
    """The page itself is open, as it holds nothing; its data is not."""
    infer, metrics, admin = (locked.keys[role] for role in ROLES)
    revision = await locked.split(**admin)
    body = {"service": "chat", "revision": revision}
    assert (await locked.http.get("/console")).status_code == 200
    assert (await locked.http.get("/console/data")).status_code == 401
    assert (await locked.http.get("/console/data", headers=infer)).status_code == 403
    assert not (await locked.data(**metrics))["can_change"]
    refused = await locked.http.post("/console/rollback", json=body, headers=metrics | OURS)
    assert (refused.status_code, locked.revisions.latest_number(KIND)) == (403, revision)
    done = await locked.http.post("/console/rollback", json=body, headers=admin | OURS)
    assert (done.status_code, done.json()["revision"]) == (200, revision + 1)
    latest = locked.revisions.latest(KIND)
    assert latest is not None
    assert rollout.status(rollout.read(latest.text), "chat")["percent"] == 0
    assert latest.who.startswith("key ")


async def test_without_keys_only_this_machine_gets_in(rig: Rig) -> None:
    """A rebound DNS name keeps its Host, and what came through a proxy is not from here."""
    for headers in (
        {"host": "evil.example"},
        {"x-forwarded-for": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
    ):
        answer = await rig.http.get("/console/data", headers=headers)
        assert answer.status_code == 403, headers
        assert "--require-keys" in answer.json()["error"]["message"]


async def test_another_site_cannot_press_the_button(rig: Rig) -> None:
    """No header of ours, another origin, another site: each is refused, and nothing changes."""
    revision = await rig.split()
    body = {"service": "chat", "revision": revision}
    for headers in (
        {},
        OURS | {"origin": "https://evil.example"},
        OURS | {"sec-fetch-site": "cross-site"},
    ):
        answer = await rig.http.post("/console/rollback", json=body, headers=headers)
        assert answer.status_code in (400, 403), headers
    assert rig.revisions.latest_number(KIND) == revision


async def test_a_rollback_that_cannot_be_is_refused(rig: Rig) -> None:
    """Routes that have moved on, services without a rollout, a body that is none."""
    revision = await rig.split()
    for change, status in (
        ({"revision": revision - 1}, 409),
        ({"service": "embed"}, 400),
        ({"service": "nobody"}, 400),
        ({"more": 1}, 400),
    ):
        body = {"service": "chat", "revision": revision} | change
        answer = await rig.http.post("/console/rollback", json=body, headers=OURS)
        assert answer.status_code == status, answer.text
    assert rig.revisions.latest_number(KIND) == revision


async def test_the_page_shows_it_all_in_a_browser(rig: Rig, chromium: Browser) -> None:
    """Charts, map, tables; texts of others stay texts; no complaint; no scrolling sideways, on a phone either."""
    await rig.until(lambda data: data["last_step"] >= 1 and data["decisions"] and data["errors"])
    async with opened(chromium, rig.gateway.url, dark=True) as (page, complaints):
        await page.wait_for_selector("#chart-instances canvas")
        await page.wait_for_selector("#map-legend li")
        assert "onerror=alert(1)" in (await page.text_content("#errors") or "")
        assert await page.locator("#errors img").count() == 0
        for summary in await page.query_selector_all("summary"):
            await summary.click()
        assert "<b>per instance</b>" in (await page.text_content("#decisions") or "")
        await page.focus("#map")
        await page.keyboard.press("ArrowRight")
        assert "chat, leased, tenant acme" in (await page.text_content("#map-at") or "")
        await page.select_option("#model", "chat")
        await page.wait_for_selector("#chart-latency .legend :text('TTFT p99')")
        assert await page.evaluate(OVERFLOW_PX) == 0
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate(OVERFLOW_PX) == 0
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 19, 23)"
        assert complaints == []


async def test_a_slow_call_is_listed_and_opens_its_waterfall(rig: Rig, chromium: Browser) -> None:
    """From the list of the slowest; its time is the one until its first text."""
    rig.triton.script = Script(delay_s=0.4)
    answer = await rig.http.post("/v1/chat/completions", json=CHAT)
    rig.triton.script = Script()
    request_id = answer.headers["x-request-id"]
    data = await rig.until(lambda data: request_id in {one["request_id"] for one in data["slowest"]})
    found = next(one for one in data["slowest"] if one["request_id"] == request_id)
    assert found["ttft_s"] >= 0.4
    async with opened(chromium, rig.gateway.url) as (page, complaints):
        await page.click(f"#slowest a[href='/console/trace/{found['trace_id']}']")
        await page.wait_for_url(f"**/console/trace/{found['trace_id']}")
        assert all("404" in said for said in complaints)


async def test_the_button_asks_before_it_rolls_back(rig: Rig, chromium: Browser) -> None:
    """By keyboard: the safe answer has the focus; then all calls are the old version's."""
    revision = await rig.split()
    async with opened(chromium, rig.gateway.url) as (page, complaints):
        await page.focus("text=Roll back to chat")
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.textContent") == "Leave it"
        await page.keyboard.press("Enter")
        assert rig.revisions.latest_number(KIND) == revision
        await page.click("text=Roll back to chat")
        await page.click("#confirm-go")
        await page.wait_for_selector("#routes button", state="detached")
        assert rig.revisions.latest_number(KIND) == revision + 1
        assert complaints == []


async def test_a_key_is_asked_for_and_stays_in_the_tab(locked: Rig, chromium: Browser) -> None:
    """A wrong one is told; a good one opens; no cookie, nothing in localStorage; signing out forgets it."""
    text = locked.keys["metrics"]["authorization"].removeprefix("Bearer ")
    async with opened(chromium, locked.gateway.url) as (page, complaints):
        await page.fill("#key", "tg_nobody_nothing")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#refused:text('not known')")
        await page.fill("#key", text)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#board:not([hidden])")
        assert await page.context.cookies() == []
        assert await page.evaluate("localStorage.length") == 0
        assert text not in await page.content()
        await page.click("#leave")
        assert await page.evaluate("sessionStorage.length") == 0
        assert await page.is_visible("#login")
        assert all("401" in said for said in complaints)


async def test_a_gateway_that_goes_away_is_told_on_the_page(chromium: Browser) -> None:
    """What is shown stays, and says how old it is."""
    async with (
        FakeTriton() as triton,
        running_gateway(triton.address) as gateway,
        opened(chromium, gateway.url) as (page, _),
    ):
        await page.wait_for_selector("#board:not([hidden])")
        await gateway.stop()
        await page.wait_for_selector("#trouble:text('does not answer')")
        assert "s old" in (await page.text_content("#trouble") or "")
        assert await page.is_visible("#models")


async def test_an_answer_holds_no_secret_and_says_so_to_caches(locked: Rig) -> None:
    """Neither a key's secret nor its hash; strict headers on page and data."""
    admin = locked.keys["admin"]
    answer = await locked.http.get("/console/data", headers=admin)
    assert admin["authorization"].split("_")[-1] not in answer.text
    page = await locked.http.get("/console")
    for one in (answer, page):
        assert one.headers["cache-control"] == "no-store"
        assert "unsafe" not in one.headers["content-security-policy"]
        assert "default-src 'none'" in one.headers["content-security-policy"]
    assert answer.json()["who"].startswith("key ")


async def test_a_failed_call_links_to_its_waterfall(locked: Rig, chromium: Browser) -> None:
    """A kept trace opens with its spans; one that is not kept says so; neither answers without a key."""
    trace_id, key = "ab" * 16, locked.keys["metrics"]
    store = TraceStore.create(locked.traces)
    whole = Span(
        "tidegate-gateway", trace_id, "a" * 16, "", "chat <i>chat</i>", SpanKind.SERVER, 0, 9 * 10**9
    )
    part = Span(
        "tidegate-engine", trace_id, "b" * 16, "a" * 16, "prefill", SpanKind.INTERNAL, 10**9, 4 * 10**9
    )
    store.add([whole, part], time.time())
    store.close()
    address = f"/console/data/trace/{trace_id}"
    assert (await locked.http.get(address)).status_code == 401
    found = (await locked.http.get(address, headers=key)).json()
    assert [(row["name"], row["depth"], row["starts_s"]) for row in found["rows"]][1] == ("prefill", 1, 1.0)
    for unknown in ("cd" * 16, "..%2Ftraces.db", "x"):
        assert (await locked.http.get(f"/console/data/trace/{unknown}", headers=key)).status_code == 404
    async with opened(chromium, locked.gateway.url, width=390) as (page, complaints):
        await page.goto(f"{locked.gateway.url}/console/trace/{trace_id}")
        await page.wait_for_selector("#trouble:text('Sign in')")
        await page.evaluate("text => sessionStorage.setItem('tidegate-key', text)", key["authorization"][7:])
        await page.reload()
        await page.wait_for_selector(".waterfall details")
        assert "chat <i>chat</i>" in (await page.text_content("#rows") or "")
        assert await page.evaluate(OVERFLOW_PX) == 0
        assert all("401" in said for said in complaints)
