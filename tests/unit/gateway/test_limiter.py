"""Limits in one process: what is admitted, what is charged, what the caller is told."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import ContextLengthExceeded, LimitExceeded, LimitsUnavailable
from gateway.limit_counters import Counters, CountersUnavailable
from gateway.limiter import Limiter
from gateway.principal import ANONYMOUS, NO_LIMITS, Limits, Principal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits library asks time.time(); `clock[0] += 60` is a minute later."""
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


def caller(**limits: int) -> Principal:
    return Principal("tg_a", "acme", frozenset({"infer"}), limits=Limits(**limits))


async def refusal(
    limiter: Limiter, principal: Principal, prompt: int = 10, output: int = 10
) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        await limiter.admit(principal, "chat", prompt, output)
    return caught.value


async def test_two_hundred_at_once_get_exactly_what_is_allowed() -> None:
    """50 a minute, 200 clients: 50 run, 150 are told when to come back."""
    limiter, who = Limiter(Counters.in_memory()), caller(requests_per_min=50)
    outcomes = await asyncio.gather(
        *(limiter.admit(who, "chat", 1, 1) for _ in range(200)), return_exceptions=True
    )
    assert sum(not isinstance(each, Exception) for each in outcomes) == 50
    refused = [each for each in outcomes if isinstance(each, LimitExceeded)]
    assert len(refused) == 150
    assert all(each.retry_after_s and 1 <= each.retry_after_s <= 60 for each in refused)


async def test_a_minute_moves_with_the_clock(clock: list[float]) -> None:
    """2 at second 0 and 59: the third one must wait for the first to be a minute old, not for a new minute."""
    limiter, who = Limiter(Counters.in_memory()), caller(requests_per_min=2)
    await limiter.admit(who, "chat", 1, 1)
    clock[0] += 59
    await limiter.admit(who, "chat", 1, 1)
    clock[0] += 0.5
    await refusal(limiter, who)
    clock[0] += 1
    await limiter.admit(who, "chat", 1, 1)
    await refusal(limiter, who)


async def test_tokens_that_may_be_generated_count_before_they_are() -> None:
    """litellm#41610: 20 streams of 1,000 tokens at 5,000 a minute: 5 run."""
    limiter, who = Limiter(Counters.in_memory()), caller(tokens_per_min=5000)
    outcomes = await asyncio.gather(
        *(limiter.admit(who, "chat", 100, 900) for _ in range(20)), return_exceptions=True
    )
    assert sum(not isinstance(each, Exception) for each in outcomes) == 5


async def test_what_was_not_used_is_given_back() -> None:
    """1,000 reserved of 1,000, 150 used: the next one may use 850, not more."""
    limiter, who = Limiter(Counters.in_memory()), caller(tokens_per_min=1000)
    admission = await limiter.admit(who, "chat", 100, 900)
    assert "850" not in str((await refusal(limiter, who)).message)
    await admission.settle(100, 50)
    await admission.settle(100, 50)
    assert "850 left" in (await refusal(limiter, who, 100, 800)).message
    await limiter.admit(who, "chat", 100, 750)


async def test_what_was_used_beyond_the_reservation_is_charged() -> None:
    """A request whose worst case is above the whole limit runs alone, and its real use counts."""
    limiter, who = Limiter(Counters.in_memory()), caller(tokens_per_min=1000)
    admission = await limiter.admit(who, "chat", 100, 5000)
    await admission.settle(100, 3000)
    assert "0 left" in (await refusal(limiter, who, 1, 1)).message


async def test_a_window_that_ended_meanwhile_is_not_given_anything_back(clock: list[float]) -> None:
    """Reserved in one minute, settled in the next: the new window stays as it is."""
    limiter, who = Limiter(Counters.in_memory()), caller(tokens_per_min=1000)
    admission = await limiter.admit(who, "chat", 100, 900)
    clock[0] += 61
    await admission.settle(100, 0)
    await limiter.admit(who, "chat", 0, 1000)
    await refusal(limiter, who, 0, 1)


async def test_a_refused_request_takes_nothing() -> None:
    """Refused for its tokens: neither a slot nor a request is gone."""
    limiter = Limiter(Counters.in_memory())
    who = caller(tokens_per_min=100, requests_per_min=1, concurrent=1)
    admission = await limiter.admit(who, "chat", 50, 50)
    await admission.settle(100, 0)
    assert "tokens per minute" in (await refusal(limiter, who, 50, 50)).message
    other = caller(requests_per_min=1, concurrent=1)
    assert "requests per minute" in (await refusal(limiter, other, 1, 1)).message


async def test_slots_come_back_when_a_request_ends() -> None:
    """2 at a time: the third is refused until one has settled."""
    limiter, who = Limiter(Counters.in_memory()), caller(concurrent=2)
    first = await limiter.admit(who, "chat", 1, 1)
    second = await limiter.admit(who, "chat", 1, 1)
    assert "2 requests run at a time" in (await refusal(limiter, who)).message
    await first.settle(1, 1)
    third = await limiter.admit(who, "chat", 1, 1)
    for admission in (second, third):
        await admission.settle(1, 1)


async def test_the_limits_of_the_service_hold_for_all_keys_together() -> None:
    """3 a minute for `chat`, two callers."""
    limiter = Limiter(Counters.in_memory(), lambda service: Limits(requests_per_min=3))
    others = [Principal(f"tg_{name}", "acme", frozenset({"infer"})) for name in "ab"]
    for who in (others[0], others[1], others[0]):
        await limiter.admit(who, "chat", 1, 1)
    assert "service 'chat'" in (await refusal(limiter, others[1])).message


async def test_the_output_is_cut_to_what_the_limits_allow() -> None:
    """200 asked for; 64 by the key, 40 by the context that is left."""
    limiter = Limiter(Counters.in_memory())
    assert (await limiter.admit(caller(max_output_tokens=64), "chat", 10, 200)).max_output_tokens == 64
    assert (await limiter.admit(caller(max_context_tokens=50), "chat", 10, 200)).max_output_tokens == 40


async def test_a_prompt_above_the_context_limit_is_refused_with_both_numbers() -> None:
    """60 tokens of at most 50; an embedding of exactly 50 passes, as it generates nothing."""
    limiter, who = Limiter(Counters.in_memory()), caller(max_context_tokens=50)
    with pytest.raises(ContextLengthExceeded, match="60 tokens, of at most 50"):
        await limiter.admit(who, "chat", 60, 10)
    await limiter.admit(who, "embed", 50, None)


async def test_the_headers_tell_the_tightest_window() -> None:
    """OpenAI's names; the service's 5 are less than the key's 10."""
    limiter = Limiter(Counters.in_memory(), lambda service: Limits(requests_per_min=5))
    headers = (await limiter.admit(caller(requests_per_min=10, tokens_per_min=1000), "chat", 10, 20)).headers
    assert headers["x-ratelimit-limit-requests"] == "5"
    assert headers["x-ratelimit-remaining-requests"] == "4"
    assert headers["x-ratelimit-remaining-tokens"] == "970"
    assert headers["x-ratelimit-reset-requests"].endswith("s")


async def test_a_budget_lasts_a_day(clock: list[float]) -> None:
    """1,000 a day: spent, refused an hour later, free again after 24."""
    limiter, who = Limiter(Counters.in_memory()), caller(tokens_per_day=1000)
    await (await limiter.admit(who, "chat", 500, 500)).settle(500, 500)
    clock[0] += 3600
    assert "tokens per day: 1,000 allowed, 0 left" in (await refusal(limiter, who)).message
    clock[0] += 24 * 3600
    await limiter.admit(who, "chat", 10, 10)


class _Gone(Counters):
    """Redis that does not answer."""

    async def take_slot(self, key: str, limit: int) -> str | None:
        raise CountersUnavailable("connection refused")


async def test_a_store_that_is_gone_refuses_or_lets_through_as_configured() -> None:
    """Closed: 503 and try again. Open: it runs, without limits. Who has no limits notices nothing."""
    gone = _Gone.in_memory()
    with pytest.raises(LimitsUnavailable):
        await Limiter(gone).admit(caller(concurrent=1), "chat", 1, 1)
    open_limiter = Limiter(gone, when_gone="open")
    await (await open_limiter.admit(caller(concurrent=1), "chat", 1, 1)).settle(1, 1)
    await Limiter(gone).admit(ANONYMOUS, "chat", 1, 1)


def test_a_limit_below_one_is_refused_by_name() -> None:
    """0 would mean never; no limit is leaving it out."""
    with pytest.raises(ValueError, match="requests_per_min = 0, must be at least 1"):
        Limits(requests_per_min=0)
    assert Limits() == NO_LIMITS
