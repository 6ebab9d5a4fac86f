"""Admits a request against the limits of its key and of its service, and charges what it really used.

Reserve, then settle: a request takes its worst case (prompt and the most it may generate) before it starts, and
gives back at its end what it did not use, however it ended. So tokens that are being generated right now count
already, and a stream that is cut counts for what it made (litellm#41610: streams were never counted).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.errors import ContextLengthExceeded, LimitExceeded, LimitsUnavailable
from gateway.limit_counters import LEASE_S, Counters, CountersUnavailable, Left
from gateway.principal import NO_LIMITS, Limits, Principal

logger = logging.getLogger("gateway.limiter")

RENEW_S = LEASE_S / 3
SLOT_RETRY_S = 1.0

WhenGone = Literal["closed", "open"]
"""What holds while Redis does not answer: refuse everybody who has limits, or let everybody through."""


@dataclass(frozen=True)
class _Holder:
    """One set of limits that a request falls under."""

    key: str
    """"key:tg_abc" or "service:chat"."""
    words: str
    limits: Limits


@dataclass
class Admission:
    """A request that runs. Settle it exactly once."""

    headers: Mapping[str, str]
    max_output_tokens: int
    """The request's own, or less where a limit says so."""
    _settle: Callable[[int], Awaitable[None]] | None = None
    counts_tokens: bool = False
    """What is made has to be known while it is made, should the client leave."""
    _is_settled: bool = False

    @property
    def holds_something(self) -> bool:
        """Else there is nothing to settle."""
        return self._settle is not None

    async def settle(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """The tokens that it really used. A second call does nothing."""
        if self._settle is not None and not self._is_settled:
            self._is_settled = True
            await self._settle(num_prompt_tokens + num_output_tokens)


@dataclass
class _Taken:
    """What a request holds of one holder's limits."""

    holder: _Holder
    slot: str | None = None
    per_min: int | None = None
    per_day: int | None = None
    found: dict[str, Left] = field(default_factory=dict)


class Limiter:
    """One for the gateway. `service_limits`: what is said of each service, whoever calls it."""

    def __init__(
        self,
        counters: Counters,
        service_limits: Callable[[str], Limits] = lambda service: NO_LIMITS,
        *,
        when_gone: WhenGone = "closed",
    ) -> None:
        self._counters = counters
        self._service_limits = service_limits
        self._when_gone = when_gone

    async def admit(
        self, principal: Principal, service: str, num_prompt_tokens: int, max_output_tokens: int | None
    ) -> Admission:
        """`max_output_tokens`: what the request may generate at most; None: it generates nothing.

        Raises LimitExceeded, and LimitsUnavailable when Redis is gone and the gateway is to fail closed.
        """
        if not (holders := self._holders(principal, service)):
            return Admission({}, max_output_tokens or 0)
        output = _allowed_output(holders, num_prompt_tokens, max_output_tokens)
        taken: list[_Taken] = []
        try:
            for holder in holders:
                taken.append(_Taken(holder))
                await self._take(taken[-1], num_prompt_tokens + output)
        except CountersUnavailable as exc:
            await self._give_back(taken, 0)
            if self._when_gone == "closed":
                raise LimitsUnavailable(
                    "the limits can't be checked now: their store does not answer; try again shortly"
                ) from exc
            logger.warning("limits are not checked: %s", exc)
            return Admission({}, output)
        except BaseException:
            await self._give_back(taken, 0)
            raise
        renewing = self._renewing(taken)

        async def settle(num_tokens: int) -> None:
            if renewing:
                renewing.cancel()
            await self._give_back(taken, num_tokens)

        counts = any(item.per_min is not None or item.per_day is not None for item in taken)
        return Admission(_headers(taken), output, settle, counts)

    def max_context_tokens(self, principal: Principal, service: str) -> int | None:
        """Of one request, under the limits of its key and its service; None: no such limit."""
        both = (principal.limits.max_context_tokens, self._service_limits(service).max_context_tokens)
        return min((limit for limit in both if limit is not None), default=None)

    def _holders(self, principal: Principal, service: str) -> list[_Holder]:
        """Those that limit anything."""
        holders = []
        if principal.limits != NO_LIMITS:
            holders.append(_Holder(f"key:{principal.key_id}", f"key {principal.key_id}", principal.limits))
        if (limits := self._service_limits(service)) != NO_LIMITS:
            holders.append(_Holder(f"service:{service}", f"service {service!r}", limits))
        return holders

    async def _take(self, taken: _Taken, num_tokens: int) -> None:
        """Requests come last: of a moving window nothing can be given back."""
        key, words, limits = taken.holder.key, taken.holder.words, taken.holder.limits
        if limits.concurrent is not None:
            taken.slot = await self._counters.take_slot(key, limits.concurrent)
            if taken.slot is None:
                raise LimitExceeded(
                    f"{words}: {limits.concurrent} requests run at a time and all do; try again when one has ended",
                    retry_after_s=SLOT_RETRY_S,
                )
        if limits.tokens_per_min is not None:
            left = await self._counters.take_tokens(key, limits.tokens_per_min, num_tokens)
            taken.found["tokens"] = left
            _check(left, f"{words}: tokens per minute", f"this request may use {num_tokens:,}")
            taken.per_min = min(num_tokens, limits.tokens_per_min)
        if limits.tokens_per_day is not None:
            left = await self._counters.take_tokens(key, limits.tokens_per_day, num_tokens, per_day=True)
            _check(left, f"{words}: tokens per day", f"this request may use {num_tokens:,}")
            taken.per_day = min(num_tokens, limits.tokens_per_day)
        if limits.requests_per_min is not None:
            left = await self._counters.take_request(key, limits.requests_per_min)
            taken.found["requests"] = left
            _check(left, f"{words}: requests per minute", "this is one more")

    async def _give_back(self, taken: list[_Taken], num_tokens: int) -> None:
        """`num_tokens` were used in the end. What can't be given back while Redis is gone ends with its window."""
        for item in taken:
            key, limits = item.holder.key, item.holder.limits
            try:
                if item.slot is not None:
                    await self._counters.give_back_slot(key, item.slot)
                if item.per_min is not None and limits.tokens_per_min is not None:
                    change = num_tokens - item.per_min
                    await self._counters.correct_tokens(key, limits.tokens_per_min, change)
                if item.per_day is not None and limits.tokens_per_day is not None:
                    change = num_tokens - item.per_day
                    await self._counters.correct_tokens(key, limits.tokens_per_day, change, per_day=True)
            except CountersUnavailable as exc:
                logger.warning("a request's use is not settled: %s", exc)

    def _renewing(self, taken: list[_Taken]) -> asyncio.Task[None] | None:
        slots = [(item.holder.key, item.slot) for item in taken if item.slot is not None]
        return asyncio.create_task(self._renew(slots)) if slots else None

    async def _renew(self, slots: list[tuple[str, str]]) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for key, token in slots:
                try:
                    await self._counters.renew_slot(key, token)
                except CountersUnavailable as exc:
                    logger.warning("a slot is not renewed: %s", exc)


def _allowed_output(holders: list[_Holder], num_prompt_tokens: int, max_output_tokens: int | None) -> int:
    """What the request may generate under all limits. Raises ContextLengthExceeded."""
    if max_output_tokens is None:
        max_output_tokens = 0
    for holder in holders:
        limits = holder.limits
        if limits.max_output_tokens is not None:
            max_output_tokens = min(max_output_tokens, limits.max_output_tokens)
        if limits.max_context_tokens is not None:
            room = limits.max_context_tokens - num_prompt_tokens
            if room < min(1, max_output_tokens):
                raise ContextLengthExceeded(
                    f"{holder.words}: the prompt has {num_prompt_tokens:,} tokens, of at most "
                    f"{limits.max_context_tokens:,} for prompt and output; shorten it"
                )
            max_output_tokens = min(max_output_tokens, room)
    return max_output_tokens


def _check(left: Left, words: str, asked: str) -> None:
    if not left.is_taken:
        raise LimitExceeded(
            f"{words}: {left.limit:,} allowed, {left.remaining:,} left for {left.reset_s:.0f} s, {asked}",
            retry_after_s=left.reset_s,
            headers=_window_headers({"tokens" if "tokens" in words else "requests": left}),
        )


def _headers(taken: list[_Taken]) -> dict[str, str]:
    """Of all limits of a kind the one with the least left."""
    tightest: dict[str, Left] = {}
    for item in taken:
        for kind, left in item.found.items():
            if kind not in tightest or left.remaining < tightest[kind].remaining:
                tightest[kind] = left
    return _window_headers(tightest)


def _window_headers(found: Mapping[str, Left]) -> dict[str, str]:
    """OpenAI's names, which its clients and most tools read."""
    headers = {}
    for kind, left in found.items():
        headers[f"x-ratelimit-limit-{kind}"] = str(left.limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(left.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = f"{math.ceil(left.reset_s)}s"
    return headers
