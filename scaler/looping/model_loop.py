"""One model's part of the loop: what one tick leaves to the next.

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

from scaler.acting.target import Target
from scaler.deciding.decision import Cause, Decision, Direction, Floor, Spec, State
from scaler.deciding.demand import measure
from scaler.deciding.observation import Counts, Observation, Signals
from scaler.deciding.policy import Forecast, ModelPolicy, Policy
from scaler.deciding.safe_forecast import Forecasting, SafeForecast
from scaler.deciding.start_times import StartTimes
from scaler.looping.changes import Changes, Outcome
from scaler.looping.in_progress import Starts, merged
from scaler.looping.outage import LastKnown
from scaler.looping.views import Change, ModelView

SAY_AGAIN_S = 60.0
NOT_DECIDED = "not decided"

Say = Callable[[str], None]
Decide = Callable[[Spec, State, Observation, float], Decision]


class Book(Protocol):
    """What the loop needs of `scaler.serving.book.Book`."""

    @property
    def policy(self) -> Policy: ...
    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec: ...


class Signaller(Protocol):
    """What the loop needs of `scaler.measuring.collector.Collector`."""

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
        self._changes = Changes(model, parts.target, self._counts, parts.clock)
        self._said_s: dict[Cause, float] = {}

    async def tick(self, now: float) -> Decision:
        parts = self._parts
        policy = parts.book.policy.models[self.model]
        counts = await self._counts()
        if counts is not None:
            counts = self._without_late_starts(
                merged(counts, self._changes.current), policy.start_deadline_s, now
            )
        signals = await parts.collector.signals(self.model, counts, now)
        observation = Observation(counts, signals)
        spec = self._spec(policy, counts, now)
        self._observe(observation, now)
        decision = parts.decide(spec, self._state, observation, now)
        hindrance = self._changes.hindrance(now) if decision.direction is not Direction.HOLD else ""
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
        self._note_error(f"{NOT_DECIDED}: {type(exc).__name__}: {exc}", now)

    async def stop(self) -> None:
        """A drain is taken back; what was sent to a server is waited for."""
        await self._changes.stop()

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
            self._changes.give_up()
            self._note_error(
                f"gave up {num_late} instances that have not come up in {deadline_s:g} s; no longer counted. "
                "Look at the server's log for why, or raise start_deadline_s",
                now,
            )
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

    def _begin(self, decision: Decision, now: float) -> None:
        change = Change(decision.before, decision.wanted, now, decision.reason)
        self._changes.begin(change, partial(self._ended, change, self._state))

    def _ended(self, change: Change, state_before: State, outcome: Outcome) -> None:
        now = self._parts.clock()
        if isinstance(outcome, Exception):
            if change.is_out:
                # It did not happen, so no cooldown keeps the next try back.
                self._state = replace(
                    self._state,
                    last_out_s=state_before.last_out_s,
                    patience=state_before.patience,
                    reversed_s=state_before.reversed_s,
                )
            return self._note_error(self._changes.last_failure, now)
        if outcome is None:
            text = f"{change.num_before}→{change.num_wanted} by taking a drain back"
        else:
            text = f"{outcome.before}→{outcome.after} done in {outcome.seconds:.2f} s"
            text += f" ({outcome.detail})" if outcome.detail else ""
            text += ", not in place" if outcome.in_place is False else ""
            if outcome.after > outcome.before:
                self._parts.start_times.started(self.model, outcome.seconds)
        self._parts.say(f"{self.model} {text}")
        self._publish(
            replace(self.view, at_s=now, change=None, last_error="", last_error_s=0.0, is_news=True)
        )

    # --- what is shown ---

    def _note_error(self, text: str, now: float) -> None:
        if text != self.view.last_error:
            self._parts.say(f"{self.model}: {text}")
        view = replace(self.view, at_s=now, change=self._changes.current, is_news=True)
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
        if view.last_error.startswith(NOT_DECIDED):
            view = replace(view, last_error="", last_error_s=0.0)
        forecast = self._forecast.status() if self._forecast else "off: the policy says so"
        if self.view.forecast and _switch(forecast) != _switch(self.view.forecast):
            self._parts.say(f"{self.model}: forecast {forecast}")
        self._publish(replace(view, change=self._changes.current, forecast=forecast, is_news=is_news))

    def _is_worth_a_line(self, cause: Cause, now: float) -> bool:
        """Load that plays around a threshold changes the cause each second; the log has each once a minute."""
        if now - self._said_s.get(cause, -math.inf) < SAY_AGAIN_S:
            return False
        self._said_s[cause] = now
        return True

    def _publish(self, view: ModelView) -> None:
        self.view = view
        self._parts.publish(view)


def _switch(forecast_status: str) -> str:
    """ "on (season)" of "on (season): error 0.31 ...": what is worth a line when it changes."""
    return forecast_status.partition(":")[0]
