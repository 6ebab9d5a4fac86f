"""One model's part of the loop: its state from tick to tick, and the one change that may run.

A decision that cannot be acted on now (the last change failed a moment ago, or has not ended) leaves no trace in
the state: no cooldown begins for what did not happen, and the next tick decides anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from scaler.decision import Cause, Decision, Direction, Floor, Spec, State
from scaler.demand import measure
from scaler.in_progress import Change, Starts, merged
from scaler.observation import Counts, Observation, Signals
from scaler.outage import LastKnown
from scaler.policy import Forecast, ModelPolicy, Policy
from scaler.safe_forecast import Forecasting, SafeForecast
from scaler.start_times import StartTimes
from scaler.target import ScaleResult, Target
from scaler.views import ChangeView, ModelView

MAX_RETRY_S = 60.0
"""Between two tries of a change that keeps failing: 1, 2, 4 s and so on up to this."""
SAY_AGAIN_S = 60.0

Say = Callable[[str], None]
Decide = Callable[[Spec, State, Observation, float], Decision]


class Book(Protocol):
    """What the loop needs of `scaler.book.Book`."""

    @property
    def policy(self) -> Policy: ...
    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec: ...


class Signaller(Protocol):
    """What the loop needs of `scaler.collector.Collector`."""

    async def signals(self, model: str, counts: Counts | None, now: float) -> Signals: ...
    def forget(self, model: str) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What all models of a loop share."""

    book: Book
    collector: Signaller
    target: Target
    decide: Decide
    new_forecaster: Callable[[Forecast], Forecasting]
    start_times: StartTimes
    clock: Callable[[], float]
    say: Say
    publish: Callable[[ModelView], None]
    counts_timeout_s: float


class ModelLoop:
    """`tick` it. `stop` takes back what can be taken back, and waits for the rest."""

    def __init__(self, model: str, parts: Parts, now: float) -> None:
        self.model = model
        self.view = ModelView(model, now)
        self._parts = parts
        self._state = State.adopted(now)
        self._starts = Starts()
        self._last_known = LastKnown()
        self._forecast: SafeForecast | None = None
        self._change: Change | None = None
        self._newest: asyncio.Task[ScaleResult | None] | None = None
        """Carries `_change` out."""
        self._tasks: set[asyncio.Task[ScaleResult | None]] = set()
        """It, and those that were cancelled and have not ended."""
        self._num_failed = 0
        self._retry_at_s = now
        self._said_s: dict[Cause, float] = {}

    async def tick(self, now: float) -> Decision:
        parts = self._parts
        policy = parts.book.policy.models[self.model]
        counts = await self._counts()
        if counts is not None:
            counts = self._without_late_starts(merged(counts, self._change), policy.start_deadline_s, now)
        signals = await parts.collector.signals(self.model, counts, now)
        observation = Observation(counts, signals)
        spec = self._spec(policy, counts, now)
        self._observe(observation, now)
        decision = parts.decide(spec, self._state, observation, now)
        hindrance = self._hindrance(now) if decision.direction is not Direction.HOLD else ""
        if hindrance:
            # The state of a tick that changes nothing: windows go on, no cooldown begins for what did not happen.
            held = parts.decide(replace(spec, is_paused=True), self._state, observation, now)
            decision = replace(decision, state=held.state)
        elif decision.direction is not Direction.HOLD:
            self._begin(decision, now)
        self._state = decision.state
        self._show(spec, observation, decision, hindrance, now)
        return decision

    def failed(self, exc: Exception, now: float) -> None:
        """A tick that could not be decided: nothing has changed."""
        self._note_error(f"not decided: {type(exc).__name__}: {exc}", now)

    async def stop(self) -> None:
        """A drain is taken back; what was sent to a server is waited for."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- before the decision ---

    async def _counts(self) -> Counts | None:
        try:
            async with asyncio.timeout(self._parts.counts_timeout_s):
                return await self._parts.target.counts(self.model)
        except Exception:  # who cannot say has not said 0
            return None

    def _without_late_starts(self, counts: Counts, deadline_s: float, now: float) -> Counts:
        counts, num_late = self._starts.counted(counts, deadline_s, now)
        if num_late:
            self._note_error(
                f"gave up {num_late} instances that have not come up in {deadline_s:g} s; no longer counted. "
                "Look at the server's log for why, or raise start_deadline_s",
                now,
            )
            if self._change is not None and self._newest is not None:
                self._change = replace(self._change, is_given_up=True)
                self._newest.cancel()
        return counts

    def _spec(self, policy: ModelPolicy, counts: Counts | None, now: float) -> Spec:
        parts = self._parts
        lead_s = parts.start_times.lead_s(self.model, policy)
        spec = parts.book.spec(self.model, now, lead_s, self._forecast_floor(policy, lead_s, now))
        before_outage = self._last_known.floor(counts, policy.scale_in.window_s, now)
        return replace(spec, floors=(*spec.floors, before_outage)) if before_outage else spec

    def _forecast_floor(self, policy: ModelPolicy, lead_s: float, now: float) -> Floor | None:
        if not policy.forecast.enabled:
            self._forecast = None
            return None
        if self._forecast is None or self._forecast.policy != policy.forecast:
            self._forecast = SafeForecast(policy.forecast, self._parts.new_forecaster(policy.forecast))
        return self._forecast.floor(now, lead_s, policy)

    def _observe(self, observation: Observation, now: float) -> None:
        busy = measure(observation).busy
        if self._forecast is not None and busy is not None:
            self._forecast.observe(now, busy)

    # --- the change ---

    def _hindrance(self, now: float) -> str:
        """Why no change can begin now; empty: none."""
        if self._change is not None and self._change.is_given_up:
            return "a change that was given up has not ended"
        if now < self._retry_at_s:
            return f"next try in {self._retry_at_s - now:.0f} s, {self.view.last_error}"
        return ""

    def _begin(self, decision: Decision, now: float) -> None:
        """A change that runs is cancelled first, which takes a drain back; this one waits for its end."""
        before_it = set(self._tasks)
        for task in before_it:
            task.cancel()
        change = Change(decision.before, decision.wanted, now, decision.reason)
        task = asyncio.create_task(self._carry_out(change, before_it), name=f"scale {self.model}")
        self._change, self._newest = change, task
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, change, self._state))

    async def _carry_out(
        self, change: Change, before_it: set[asyncio.Task[ScaleResult | None]]
    ) -> ScaleResult | None:
        """None: taking the earlier change back was enough."""
        if before_it:
            await asyncio.wait(before_it)
            counts = await self._counts()
            if change.is_out and counts is not None and counts.total >= change.num_wanted:
                return None
        return await self._parts.target.scale(self.model, change.num_wanted, change.reason)

    def _ended(self, change: Change, state_before: State, task: asyncio.Task[ScaleResult | None]) -> None:
        now = self._parts.clock()
        self._tasks.discard(task)
        if task is self._newest:
            self._change = self._newest = None
        if task.cancelled():
            return
        if exc := task.exception():
            self._num_failed += 1
            self._retry_at_s = now + min(MAX_RETRY_S, 2.0 ** (self._num_failed - 1))
            if change.is_out:
                # It did not happen, so no cooldown keeps the next try back; that is what the pause above is for.
                self._state = replace(
                    self._state,
                    last_out_s=state_before.last_out_s,
                    patience=state_before.patience,
                    reversed_s=state_before.reversed_s,
                )
            return self._note_error(
                f"{change.num_before}→{change.num_wanted} failed: {type(exc).__name__}: {exc}", now
            )
        self._num_failed = 0
        self._succeeded(change, task.result(), now)

    def _succeeded(self, change: Change, result: ScaleResult | None, now: float) -> None:
        if result is None:
            text = f"{change.num_before}→{change.num_wanted} by taking a drain back"
        else:
            text = f"{result.before}→{result.after} done in {result.seconds:.2f} s"
            text += f" ({result.detail})" if result.detail else ""
            text += ", not in place" if result.in_place is False else ""
            if result.after > result.before:
                self._parts.start_times.started(self.model, result.seconds)
        self._parts.say(f"{self.model} {text}")
        self._publish(
            replace(self.view, at_s=now, change=None, last_error="", last_error_s=0.0, is_news=True)
        )

    # --- what is shown ---

    def _note_error(self, text: str, now: float) -> None:
        if text != self.view.last_error:
            self._parts.say(f"{self.model}: {text}")
        view = replace(self.view, at_s=now, change=self._change_view(), is_news=True)
        self._publish(replace(view, last_error=text, last_error_s=now))

    def _show(
        self, spec: Spec, observation: Observation, decision: Decision, hindrance: str, now: float
    ) -> None:
        last = self.view.decision
        has_begun = decision.direction is not Direction.HOLD and not hindrance
        is_news = has_begun or last is None or last.cause is not decision.cause
        if has_begun or (is_news and self._is_worth_a_line(decision.cause, now)):
            self._parts.say(f"{decision.reason} (not now: {hindrance})" if hindrance else decision.reason)
        view = replace(self.view, at_s=now, observation=observation, spec=spec, decision=decision)
        forecast = self._forecast.status() if self._forecast else "off: the policy says so"
        if self.view.forecast and _switch(forecast) != _switch(self.view.forecast):
            self._parts.say(f"{self.model}: forecast {forecast}")
        self._publish(replace(view, change=self._change_view(), forecast=forecast, is_news=is_news))

    def _is_worth_a_line(self, cause: Cause, now: float) -> bool:
        """Load that plays around a threshold changes the cause each second; the log has each once a minute."""
        if now - self._said_s.get(cause, -math.inf) < SAY_AGAIN_S:
            return False
        self._said_s[cause] = now
        return True

    def _change_view(self) -> ChangeView | None:
        change = self._change
        if change is None:
            return None
        return ChangeView(
            change.num_before, change.num_wanted, change.since_s, change.reason, change.is_given_up
        )

    def _publish(self, view: ModelView) -> None:
        self.view = view
        self._parts.publish(view)


def _switch(forecast_status: str) -> str:
    """ "on (season)" of "on (season): error 0.31 ...": what is worth a line when it changes."""
    return forecast_status.partition(":")[0]
