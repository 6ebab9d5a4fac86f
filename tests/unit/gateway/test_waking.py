"""Requests for a model without an instance: held, counted together, bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.errors import DeadlineExceeded, ModelAsleep, ModelNotFound, ModelNotLoaded, from_triton
from gateway.scaler_client import ScalerSilent, WakeRefused
from gateway.triton_client import GenerateCall, GenerateReply
from gateway.waking import WakingTriton

CALL = GenerateCall("chat", "r1", "hi", b"{}", is_stream=False)
NOT_LOADED = "Request for unknown model: 'chat' has no available versions"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.waking.ASK_TRITON_S", 0)


@dataclass
class FakeTriton:
    is_loaded: bool = False
    num_calls: int = 0
    breaks_after_first: bool = False

    async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateReply]:
        self.num_calls += 1
        if not self.is_loaded:
            raise from_triton(NOT_LOADED)
        yield GenerateReply("hello", 1, None)
        if self.breaks_after_first:
            raise from_triton(NOT_LOADED)
        yield GenerateReply(" world", 1, "stop")

    async def embed(
        self, model: str, request_id: str, texts: Sequence[str], deadline: Any, attempts: Any
    ) -> list[bytes]:
        self.num_calls += 1
        if not self.is_loaded:
            raise from_triton("Request for unknown model: 'embed' is not found")
        return [b""] * len(texts)

    async def is_model_ready(self, model: str, timeout_s: float) -> bool:
        return self.is_loaded


@dataclass
class FakeScaler:
    triton: FakeTriton
    wakes: list[tuple[str, int]] = field(default_factory=list)
    wakes_needed: int = 1
    error: Exception | None = None

    async def wake(self, model: str, num_waiting: int) -> None:
        self.wakes.append((model, num_waiting))
        if self.error:
            raise self.error
        if len(self.wakes) >= self.wakes_needed:
            self.triton.is_loaded = True

    async def resting(self, models: Sequence[str]) -> set[str]:
        if self.error:
            raise self.error
        return {"chat"} & set(models)


def rig(timeout_s: float = 60.0, **scaler: Any) -> tuple[WakingTriton, FakeTriton, FakeScaler]:
    triton = FakeTriton()
    waker = FakeScaler(triton, **scaler)
    return WakingTriton(triton, waker, timeout_s), triton, waker  # type: ignore[arg-type]


async def texts(waking: WakingTriton, call: GenerateCall = CALL) -> list[str]:
    return [reply.text async for reply in waking.generate(call)]


async def test_the_first_request_wakes_its_model_and_is_answered() -> None:
    """Sent, refused, woken, sent again."""
    waking, triton, scaler = rig()
    assert await texts(waking) == ["hello", " world"]
    assert (triton.num_calls, scaler.wakes) == (2, [("chat", 1)])
    assert await waking.embed("embed", "r2", ["a"]) == [b""]


async def test_all_requests_that_wait_share_one_wake() -> None:
    """Five at once: one call to the scaler, which hears that five wait."""
    waking, triton, scaler = rig()
    answers = await asyncio.gather(*(texts(waking) for _ in range(5)))
    assert answers == [["hello", " world"]] * 5
    assert scaler.wakes == [("chat", 5)]
    assert triton.num_calls == 10


async def test_the_scaler_is_told_again_while_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets who waits after a few seconds."""
    monkeypatch.setattr("gateway.waking.ASK_SCALER_S", 0)
    waking, _, scaler = rig(wakes_needed=3)
    await texts(waking)
    assert len(scaler.wakes) == 3


async def test_a_model_that_does_not_come_in_time_is_a_clear_503() -> None:
    """With Retry-After, and why the scaler could not be asked."""
    waking, _, _ = rig(timeout_s=0.01, error=ScalerSilent("the scaler at x:1 does not answer"))
    with pytest.raises(
        ModelAsleep, match=r"none came within 0.01 s \(the scaler at x:1 does not answer\)"
    ) as caught:
        await texts(waking)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 5)


async def test_a_request_with_less_time_than_that_ends_at_its_deadline() -> None:
    """504, as everywhere."""
    waking, _, _ = rig(wakes_needed=1_000_000)
    call = GenerateCall("chat", "r1", "hi", b"{}", is_stream=False, deadline_unix_s=time.time() + 0.01)
    with pytest.raises(DeadlineExceeded, match="while its model was brought back"):
        await texts(waking, call)


async def test_what_the_scaler_does_not_scale_fails_as_without_it() -> None:
    """Its policy does not name the model: nobody will bring it."""
    waking, _, _ = rig(error=WakeRefused("the policy does not name chat"))
    with pytest.raises(ModelNotLoaded, match="has no available versions"):
        await texts(waking)
    with pytest.raises(ModelNotFound):
        await waking.embed("embed", "r2", ["a"])
    assert not await waking.is_model_ready("chat", 1.0)


async def test_an_answer_that_has_begun_is_never_asked_for_again() -> None:
    """The client has text already: a second try would say it twice."""
    waking, triton, _ = rig()
    triton.is_loaded = triton.breaks_after_first = True
    with pytest.raises(ModelNotLoaded):
        await texts(waking)
    assert triton.num_calls == 1


async def test_clients_that_leave_end_the_wait() -> None:
    """The last one takes it along."""
    waking, _, scaler = rig(wakes_needed=1_000_000)
    tasks = [asyncio.create_task(texts(waking)) for _ in range(2)]
    while not scaler.wakes:  # noqa: ASYNC110  # the fake has no event
        await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait({tasks[0]})
    assert waking._waits["chat"].num_waiting == 1
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    assert waking._waits == {}


async def test_a_model_that_may_rest_counts_as_ready_one_that_may_not_does_not() -> None:
    """The gateway must not leave the balancer because a model sleeps as it was told to."""
    waking, _, _ = rig()
    assert await waking.is_model_ready("chat", 1.0)
    assert not await waking.is_model_ready("embed", 1.0)
