"""The loop: collect, decide, act, for every model that the policy names, on an absolute schedule.

The only file that knows all three. A tick returns quickly: changes run on in tasks of their own, one per model, and
count as made meanwhile. One model's trouble never stops the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scaler.acting.target import Target
from scaler.deciding.decider import decide
from scaler.deciding.decision import Decision
from scaler.deciding.forecast import Forecaster
from scaler.deciding.policy import Forecast
from scaler.deciding.safe_forecast import Forecasting
from scaler.deciding.start_times import StartTimes
from scaler.looping.feed import Feed, Subscription
from scaler.looping.model_loop import Book, Decide, ModelLoop, Parts, Say, Signaller
from scaler.looping.views import ModelView

SAY_LATE_EVERY_S = 60.0


class Loop:
    """`run` it, or call `tick` yourself. Models come and go with the book's policy; what runs is adopted."""

    def __init__(
        self,
        book: Book,
        collector: Signaller,
        target: Target,
        *,
        clock: Callable[[], float],
        say: Say,
        tick_s: float = 1.0,
        decide: Decide = decide,
        start_times: StartTimes | None = None,
        new_forecaster: Callable[[Forecast], Forecasting] = Forecaster,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.tick_s = tick_s
        self.start_times = start_times or StartTimes()
        self.num_missed_ticks = 0
        """Moments of the schedule that passed while a tick still ran, or the process did not."""
        self.last_tick_s: float | None = None
        """When the last tick ended."""
        self._clock = clock
        self._say = say
        self._sleep = sleep
        self._feed = Feed[ModelView]()
        self._nudged = asyncio.Event()
        self._models: dict[str, ModelLoop] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._said_late_s = float("-inf")
        self._parts = Parts(
            book=book,
            collector=collector,
            target=target,
            decide=decide,
            new_forecaster=new_forecaster,
            start_times=self.start_times,
            clock=clock,
            say=say,
            publish=self._feed.publish,
            counts_timeout_s=0.4 * tick_s,
        )

    def views(self) -> list[ModelView]:
        """Of each model that the policy names, as of its last tick or change. Never blocks."""
        return [model.view for model in self._models.values()]

    def subscribe(self, max_items: int = 256) -> Subscription[ModelView]:
        """A view after each tick of each model and at the end of each change; `is_news` tells which say something
        new. A slow reader loses the oldest. Close it, or use it in `with`."""
        return self._feed.subscribe(max_items)

    async def tick(self, now: float) -> list[Decision]:
        """One look at every model, all at the same time. Returns what was decided; changes run on."""
        self._follow_policy(now)
        decisions = await asyncio.gather(*(self._tick_one(model, now) for model in self._models.values()))
        self.last_tick_s = self._clock()
        return [decision for decision in decisions if decision is not None]

    async def run(self) -> None:
        """Ticks until it is cancelled; then drains are taken back and what was sent to a server is waited for."""
        due_s = self._clock()
        try:
            while True:
                is_due = await self._rest(max(0.0, due_s - self._clock()))
                if is_due:
                    due_s += self.tick_s + self._skip_missed(self._clock() - due_s)
                await self._tick_safely()
        finally:
            await self.stop()

    def nudge(self) -> None:
        """Something waits that must not wait for the next tick: look once now, between two of the schedule."""
        self._nudged.set()

    async def _rest(self, seconds: float) -> bool:
        """False: nudged before the time was over."""
        resting, nudged = (
            asyncio.ensure_future(self._sleep(seconds)),
            asyncio.ensure_future(self._nudged.wait()),
        )
        try:
            await asyncio.wait((resting, nudged), return_when=asyncio.FIRST_COMPLETED)
            self._nudged.clear()
            return resting.done()
        finally:
            resting.cancel()
            nudged.cancel()

    async def stop(self) -> None:
        """Ends all changes and all subscriptions."""
        await asyncio.gather(*(model.stop() for model in self._models.values()), *self._leaving)
        self._feed.close()

    def _skip_missed(self, late_s: float) -> float:
        """The schedule is absolute: a tick that took long makes none come later, it leaves some out."""
        num_missed = int(late_s // self.tick_s)
        if num_missed <= 0:
            return 0.0
        self.num_missed_ticks += num_missed
        now = self._clock()
        if now - self._said_late_s >= SAY_LATE_EVERY_S:
            self._said_late_s = now
            self._say(
                f"{num_missed} ticks of {self.tick_s:g} s missed ({self.num_missed_ticks} in all): "
                "this machine is overloaded, or the process was stopped"
            )
        return num_missed * self.tick_s

    async def _tick_safely(self) -> None:
        try:
            await self.tick(self._clock())
        except Exception as exc:
            self._say(f"tick failed: {type(exc).__name__}: {exc}")

    async def _tick_one(self, model: ModelLoop, now: float) -> Decision | None:
        try:
            return await model.tick(now)
        except Exception as exc:  # a fault in one model's figures or policy is not the others' trouble
            model.failed(exc, now)
            return None

    def _follow_policy(self, now: float) -> None:
        named = self._parts.book.policy.models
        for model in named.keys() - self._models.keys():
            self._models[model] = ModelLoop(model, self._parts, now)
        for model in self._models.keys() - named.keys():
            self._say(f"{model}: the policy no longer names it; it stays as it is")
            leaving = asyncio.create_task(self._models.pop(model).stop())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            self._parts.collector.forget(model)
